"""What a member's Pod is made of: the user's template, kept, and what we add."""

import copy
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.operator.builders import SETTINGS, TEMPLATE, a_job

from shoal.api.elasticjob import Role
from shoal.api.jobspec import JobDefaults
from shoal.api.quantities import format_cores, format_mebibytes, parse_quantity
from shoal.api.resources import Resource, of_list
from shoal.cli import agent
from shoal.operator.asks import needs_of
from shoal.operator.memory import Member
from shoal.operator.objects import fixed_objects
from shoal.operator.pods import master_pod, member_pod, resized
from shoal.operator.settings import JobTimes

MEMBER = Member(name="mnist-worker-3", role=Role.WORKER, id=3, rank=1)


def a_member_pod(
    template: dict[str, Any] | None = None, *, member: Member = MEMBER, resource: Resource | None = None, **spec: Any
) -> dict[str, Any]:
    job = a_job(worker={"template": template or TEMPLATE}, **spec)
    assert job.spec is not None
    needs = needs_of(job.spec, member.role)
    assert needs is not None
    return member_pod(job, job.spec, needs, member, resource or Resource(), SETTINGS)


def with_container(**more: Any) -> dict[str, Any]:
    container = {**TEMPLATE["spec"]["containers"][0], **more}
    return {"spec": {"containers": [container]}}


def env(pod: dict[str, Any]) -> dict[str, Any]:
    return {each["name"]: each.get("value", each.get("valueFrom")) for each in pod["spec"]["containers"][0]["env"]}


@pytest.mark.parametrize(
    ("command", "args", "expected"),
    [
        (["python", "train.py"], None, ["/shoal/bin/shoal", "agent", "--", "python", "train.py"]),
        (["python"], ["-m", "x"], ["/shoal/bin/shoal", "agent", "--", "python", "-m", "x"]),
        (["shoal", "run", "train.py"], None, ["shoal", "run", "train.py"]),
    ],
    ids=["wrapped", "arguments-too", "left-when-it-is-ours"],
)
def test_the_agent_stands_before_the_users_command(command: list, args: list | None, expected: list) -> None:
    more = {"command": command} | ({"args": args} if args else {})
    container = a_member_pod(with_container(**more))["spec"]["containers"][0]
    assert container["command"] == expected
    assert "args" not in container


def test_the_template_is_kept_and_not_changed() -> None:
    template = {
        "metadata": {"annotations": {"scheduling.k8s.io/group-name": "gang"}, "labels": {"team": "a"}},
        "spec": {
            "containers": [
                {**TEMPLATE["spec"]["containers"][0], "volumeMounts": [{"name": "data", "mountPath": "/data"}]},
                {"name": "side", "image": "side"},
            ],
            "volumes": [{"name": "data", "emptyDir": {}}],
            "schedulerName": "volcano",
            "schedulingGates": [{"name": "kueue.x-k8s.io/admission"}],
            "securityContext": {"runAsUser": 7},
            "automountServiceAccountToken": True,
        },
    }
    before = copy.deepcopy(template)
    pod = a_member_pod(template)
    assert template == before
    assert pod["metadata"]["annotations"] == {"scheduling.k8s.io/group-name": "gang"}
    assert pod["metadata"]["labels"]["team"] == "a"
    assert pod["spec"]["schedulerName"] == "volcano"
    assert pod["spec"]["schedulingGates"] == [{"name": "kueue.x-k8s.io/admission"}]
    assert pod["spec"]["securityContext"] == {"runAsUser": 7}
    assert pod["spec"]["automountServiceAccountToken"] is True
    assert pod["spec"]["containers"][1] == {"name": "side", "image": "side"}
    assert {"name": "data", "mountPath": "/data"} in pod["spec"]["containers"][0]["volumeMounts"]


@pytest.mark.parametrize(("spec", "given", "processes"), [(None, None, "1"), (4, None, "4"), (4, 2, "2"), (4, 0, "1")])
def test_a_member_has_a_process_for_each_device_that_it_gets(
    spec: int | None, given: int | None, processes: str
) -> None:
    resources = {} if spec is None else {"resources": {"limits": {"nvidia.com/gpu": spec}}}
    pod = a_member_pod(with_container(**resources), resource=Resource(gpu_num=given))
    assert env(pod)["SHOAL_AGENT_SLOTS"] == processes
    assert env(pod)["SHOAL_AGENT_CONTAINER"] == "own"


def test_a_pod_says_whose_it_is_and_which_place_it_takes() -> None:
    labels = a_member_pod()["metadata"]["labels"]
    assert labels["elastic.iml.github.io/job-uid"] == "job-uid"
    assert labels["elastic.iml.github.io/role"] == "worker"
    assert labels["elastic.iml.github.io/rank-hint"] == "1"
    assert labels["elastic.iml.github.io/generation"] == "1"
    assert labels["elastic.iml.github.io/incarnation"] == "3"


def test_the_agent_is_told_who_it_is_and_where_its_master_is() -> None:
    said = env(a_member_pod(checkpoint={"path": "/ckpt"}))
    assert said["SHOAL_AGENT_MASTER"] == "wss://mnist-master.default.svc:7077"
    assert said["SHOAL_AGENT_NODE"] == "worker-3"
    assert said["SHOAL_AGENT_CHECKPOINT_DIR"] == "/ckpt"
    assert said["SHOAL_AGENT_FINGERPRINT_FILE"] == "/var/run/shoal/fingerprint"
    assert said["SHOAL_AGENT_ADDRESS"] == {"fieldRef": {"fieldPath": "status.podIP"}}


def test_a_job_with_parameter_servers_has_a_directory_of_its_own_in_its_checkpoint_path() -> None:
    """Two jobs may have one path, and so may a job and the one of the same name before it."""
    words = {"checkpoint": {"path": "/ckpt/"}, "parameterServer": {"template": TEMPLATE}}
    job, told = a_job(**words), {}
    assert job.spec is not None
    for uid in ("0f5f8a3c-1111", "9b2c77d0-2222"):
        spec = replace(job.spec, uid=uid)
        for role in (Role.PS, Role.WORKER):
            member = Member(name=f"mnist-{role}-0", role=role, id=0, rank=0)
            said = env(member_pod(job, spec, spec.roles[role], member, Resource(), SETTINGS))
            assert said["SHOAL_CHECKPOINT_DIR"] == said["SHOAL_AGENT_CHECKPOINT_DIR"]
            told[uid, role] = said["SHOAL_CHECKPOINT_DIR"]
    assert list(told.values()) == ["/ckpt/mnist.0f5f8a3c"] * 2 + ["/ckpt/mnist.9b2c77d0"] * 2


def test_no_token_stands_in_a_pod() -> None:
    job = a_job()
    tokens = fixed_objects(job, 1, SETTINGS)[0]["data"].values()
    for pod in (a_member_pod(), master_pod(job, 1, SETTINGS)):
        assert not any(token in str(pod) for token in tokens)


def test_a_master_is_told_which_job_it_is_of_and_what_the_operator_assumes_of_jobs() -> None:
    job, settings = a_job(), replace(SETTINGS, defaults=JobDefaults(max_members=32), autoscale_seconds=8)
    (container,) = master_pod(job, 3, settings)["spec"]["containers"]
    said = {each["name"]: each.get("value") for each in container["env"]}
    assert (said["SHOAL_JOB_UID"], said["SHOAL_TERM"], said["SHOAL_MAX_MEMBERS"]) == (job.uid, "3", "32")
    assert said["SHOAL_AUTOSCALE_EVERY"] == "8"


@pytest.mark.parametrize(("frozen", "period", "patience"), [(60, 10, 5), (6, 1, 1), (1, 1, 1)])
def test_a_master_that_answers_nobody_any_more_is_ended_by_its_host(frozen: int, period: int, patience: int) -> None:
    settings = replace(SETTINGS, master_frozen=timedelta(seconds=frozen))
    pod = master_pod(a_job(), 1, settings)["spec"]
    probe = pod["containers"][0]["livenessProbe"]
    assert probe["httpGet"] == {"path": "/healthz", "port": 7077, "scheme": "HTTPS"}
    assert (probe["periodSeconds"], probe["timeoutSeconds"], probe["failureThreshold"]) == (period, patience, 6)
    assert pod["restartPolicy"] == "Never"  # the next one has another term


def test_a_master_that_was_never_ready_is_judged_by_the_operator_and_not_by_its_host() -> None:
    """Ended from outside it would count as nobody's fault, and be followed by the next for ever."""
    settings = replace(SETTINGS, times=JobTimes(pending=timedelta(seconds=30)))
    probe = master_pod(a_job(), 1, settings)["spec"]["containers"][0]["startupProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] > settings.times.pending.total_seconds()


def test_tensorflow_is_quiet_in_jobs_with_parameter_servers_unless_the_user_says_otherwise() -> None:
    servers = {"distributionStrategy": "parameter_server", "ps": {"template": TEMPLATE}}
    assert env(a_member_pod(**servers))["TF_CPP_MIN_LOG_LEVEL"] == "2"
    loud = with_container(env=[{"name": "TF_CPP_MIN_LOG_LEVEL", "value": "0"}])
    said = a_member_pod(loud, **servers)["spec"]["containers"][0]["env"]
    assert [each["value"] for each in said if each["name"] == "TF_CPP_MIN_LOG_LEVEL"] == ["0"]
    assert "TF_CPP_MIN_LOG_LEVEL" not in env(a_member_pod())


def test_a_template_switches_the_waiting_process_of_its_servers_on() -> None:
    servers = {"template": with_container(env=[{"name": "SHOAL_AGENT_SPARE_AFTER", "value": "30"}])}
    words = {"distributionStrategy": "parameter_server", "parameterServer": servers}
    assert "SHOAL_AGENT_SPARE_AFTER" not in env(a_member_pod(**words)), "it is a worker"
    said = env(a_member_pod(member=Member(name="mnist-ps-0", role=Role.PS, id=0, rank=0), **words))
    texts = {name: value for name, value in said.items() if isinstance(value, str) and not name.endswith("_FILE")}
    flags = ["--address", "10.0.0.1", "--fingerprint", "sha256:" + "0" * 64]
    made = agent.settings([*flags, "train.py"], {**texts, "SHOAL_TOKEN": "t"})
    assert made is not None
    assert made.spare_after == 30.0


def test_members_of_a_job_that_only_reads_tf_config_have_names_by_role_and_rank() -> None:
    """Who takes another's place has its name."""
    servers = {"parameterServer": {"template": TEMPLATE, "max": 2}, "tfConfig": True}
    pod = a_member_pod(**servers)
    assert (pod["spec"]["hostname"], pod["spec"]["subdomain"]) == ("worker-1", "mnist-members")
    said = env(pod)
    assert said["SHOAL_AGENT_SEAT"] == "1"
    names = [f"ps-{rank}.mnist-members.default.svc:2222" for rank in range(2)]
    assert said["SHOAL_AGENT_TF_SERVERS"].split(",") == names
    workers = said["SHOAL_AGENT_TF_WORKERS"].split(",")
    assert workers[1] == "worker-1.mnist-members.default.svc:2222"
    assert len(workers) == JobDefaults().max_members
    others = env(a_member_pod(parameterServer={"template": TEMPLATE}))
    assert not {"SHOAL_AGENT_TF_WORKERS", "SHOAL_AGENT_TF_SERVERS"} & others.keys()


def test_only_a_job_that_only_reads_tf_config_has_a_service_for_the_names_of_its_members() -> None:
    def services(**spec: Any) -> dict[str, Any]:
        made = fixed_objects(a_job(parameterServer={"template": TEMPLATE}, **spec), 1, SETTINGS)
        return {each["metadata"]["name"]: each["spec"] for each in made if each["kind"] == "Service"}

    assert services().keys() == {"mnist-master"}
    names = services(tfConfig=True)["mnist-members"]
    assert (names["clusterIP"], names["selector"]) == ("None", {"elastic.iml.github.io/job-uid": "job-uid"})
    assert "publishNotReadyAddresses" not in names  # one that is going would share its name with who comes


def test_a_training_pod_mounts_only_the_agents_token() -> None:
    volume = next(each for each in a_member_pod()["spec"]["volumes"] if each["name"] == "shoal-token")
    assert [item["key"] for item in volume["secret"]["items"]] == ["agent", "fingerprint"]


@pytest.mark.parametrize("key", ["serviceAccountName", "serviceAccount"])
def test_a_training_pod_is_nobody_but_its_jobs_agent_unless_its_template_says_who(key: str) -> None:
    pod = a_member_pod()["spec"]
    accounts = [each for each in fixed_objects(a_job(), 1, SETTINGS) if each["kind"] == "ServiceAccount"]
    (account,) = (each for each in accounts if each["metadata"]["name"] == pod["serviceAccountName"] == "mnist-agent")
    assert account["automountServiceAccountToken"] is pod["automountServiceAccountToken"] is False
    bindings = [each for each in fixed_objects(a_job(), 1, SETTINGS) if each["kind"] == "RoleBinding"]
    assert "mnist-agent" not in str(bindings)
    told = a_member_pod({"spec": {**TEMPLATE["spec"], key: "mine"}})["spec"]
    assert {told.get("serviceAccountName"), told.get("serviceAccount")} == {"mine", None}
    assert a_member_pod({"spec": {**TEMPLATE["spec"], key: None}})["spec"]["serviceAccountName"] == "mnist-agent"


def test_shared_memory_is_memory_unless_the_user_mounts_it() -> None:
    volumes = {each["name"]: each for each in a_member_pod()["spec"]["volumes"]}
    assert volumes["shoal-shm"]["emptyDir"] == {"medium": "Memory"}
    own = with_container(volumeMounts=[{"name": "mine", "mountPath": "/dev/shm"}])
    assert "shoal-shm" not in {each["name"] for each in a_member_pod(own)["spec"]["volumes"]}


@pytest.mark.parametrize(
    ("written", "resource", "expected"),
    [
        ({}, Resource(), {}),
        (
            {},
            Resource(cpu=0.5, memory=512, gpu_num=1),
            {
                "requests": {"cpu": "500m", "memory": "512Mi", "nvidia.com/gpu": "1"},
                "limits": {"memory": "512Mi", "nvidia.com/gpu": "1"},
            },
        ),
        (
            {"requests": {"cpu": "1", "memory": "1500M"}, "limits": {"cpu": "1"}},
            Resource(cpu=2.0, memory=1431),
            {"requests": {"cpu": "2", "memory": "1500M"}, "limits": {"cpu": "2"}},
        ),
        (
            {"limits": {"amd.com/gpu": 1}},
            Resource(gpu_num=4),
            {"requests": {"amd.com/gpu": "4"}, "limits": {"amd.com/gpu": "4"}},
        ),
    ],
    ids=["nothing-said", "all-said", "the-users-words-stay-where-nothing-else-is-asked", "devices-of-the-users-vendor"],
)
def test_resources(written: dict, resource: Resource, expected: dict) -> None:
    template = with_container(resources=written) if written else None
    assert a_member_pod(template, resource=resource)["spec"]["containers"][0].get("resources", {}) == expected


def test_hosts_are_avoided_by_a_preference_beside_the_users_affinity() -> None:
    """All of its pool may be such hosts: better there than nowhere."""
    terms = [{"matchExpressions": [{"key": "zone", "operator": "In", "values": [zone]}]} for zone in "ab"]
    wish = {"weight": 7, "preference": terms[0]}
    affinity = {
        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms},
        "preferredDuringSchedulingIgnoredDuringExecution": [wish],
    }
    template = {"spec": {**TEMPLATE["spec"], "affinity": {"nodeAffinity": affinity}}}
    pod = a_member_pod(template, member=replace(MEMBER, avoid_hosts=frozenset({"bad", "worse"})))
    fields = [{"key": "metadata.name", "operator": "NotIn", "values": [host]} for host in ("bad", "worse")]
    away = {"weight": 100, "preference": {"matchFields": fields}}
    assert pod["spec"]["affinity"]["nodeAffinity"] == {
        **affinity,
        "preferredDuringSchedulingIgnoredDuringExecution": [wish, away],
    }


def test_an_evaluator_that_is_not_described_runs_the_workers_template() -> None:
    evaluator = Member(name="mnist-evaluator-0", role=Role.EVALUATOR, id=0, rank=0)
    assert env(a_member_pod(member=evaluator))["SHOAL_ROLE"] == "evaluator"


def test_nulls_in_a_template_are_nothing() -> None:
    template = {"spec": {**TEMPLATE["spec"], "affinity": None, "nodeSelector": None, "volumes": None}}
    pod = a_member_pod(
        template, member=replace(MEMBER, avoid_hosts=frozenset({"bad"})), resource=Resource(gpu_type="a100")
    )
    assert pod["spec"]["nodeSelector"] == {"nvidia.com/gpu.product": "a100"}


def test_the_fixed_objects_are_the_same_each_time_and_differ_between_jobs() -> None:
    job = a_job()
    assert fixed_objects(job, 1, SETTINGS) == fixed_objects(job, 1, SETTINGS)
    other = replace(job, uid="another")
    assert fixed_objects(job, 1, SETTINGS)[0]["data"] != fixed_objects(other, 1, SETTINGS)[0]["data"]


def test_the_masters_role_names_its_objects_and_nothing_else() -> None:
    role = next(each for each in fixed_objects(a_job(), 1, SETTINGS) if each["kind"] == "Role")
    assert all(rule["resourceNames"] for rule in role["rules"])
    assert {rule["resourceNames"][0] for rule in role["rules"]} == {"mnist", "mnist-auto", "mnist-state"}
    assert not any("create" in rule["verbs"] or "delete" in rule["verbs"] for rule in role["rules"])


def test_another_install_key_changes_no_pod_of_a_job_that_has_its_tokens() -> None:
    job = a_job()
    assert job.spec is not None
    pods = [
        member_pod(job, job.spec, job.spec.worker, MEMBER, Resource(), replace(SETTINGS, install_key=key * 32))
        for key in (b"a", b"b")
    ]
    assert pods[0] == pods[1]
    assert env(pods[0])["SHOAL_AGENT_FINGERPRINT_FILE"] == "/var/run/shoal/fingerprint"


@pytest.mark.parametrize(
    ("limits", "setting", "size"),
    [({}, None, None), ({"memory": "8Gi"}, None, "4096Mi"), ({"memory": "8Gi"}, "6Gi", "6Gi")],
    ids=["no-limit", "half-of-it", "as-set"],
)
def test_shared_memory_has_a_size_where_memory_has_one(limits: dict, setting: str | None, size: str | None) -> None:
    job = a_job(worker={"template": with_container(resources={"limits": limits})})
    assert job.spec is not None
    settings = replace(SETTINGS, shared_memory=setting)
    pod = member_pod(job, job.spec, job.spec.worker, MEMBER, Resource(), settings)
    volume = next(each for each in pod["spec"]["volumes"] if each["name"] == "shoal-shm")
    assert volume["emptyDir"].get("sizeLimit") == size


def test_our_image_can_be_pulled_wherever_a_job_is() -> None:
    template = {"spec": {**TEMPLATE["spec"], "imagePullSecrets": [{"name": "own"}, {"name": "a"}]}}
    job = a_job(worker={"template": template})
    assert job.spec is not None
    settings = replace(SETTINGS, image_pull_secrets=("a", "b"))
    pod = member_pod(job, job.spec, job.spec.worker, MEMBER, Resource(), settings)
    assert [each["name"] for each in pod["spec"]["imagePullSecrets"]] == ["own", "a", "b"]
    assert master_pod(job, 1, settings)["spec"]["imagePullSecrets"] == [{"name": "a"}, {"name": "b"}]
    assert "imagePullSecrets" not in master_pod(job, 1, SETTINGS)["spec"]


@pytest.mark.parametrize(
    ("resources", "ours"),
    [
        ({"limits": {"cpu": "1", "memory": "2Gi"}}, {"cpu": "1", "memory": "2Gi"}),
        ({"limits": {"cpu": 1, "memory": "2Gi"}, "requests": {"cpu": "1000m"}}, {"cpu": 1, "memory": "2Gi"}),
        ({"limits": {"cpu": "2", "memory": "2Gi"}, "requests": {"cpu": "1"}}, None),
        ({"limits": {"memory": "2Gi"}}, None),
        ({}, None),
    ],
    ids=["limits", "the-same-in-other-words", "more-than-requested", "one-of-two", "nothing"],
)
def test_a_guaranteed_pod_stays_one(resources: dict[str, Any], ours: dict[str, Any] | None) -> None:
    pod = a_member_pod(with_container(resources=resources))
    given = pod["spec"]["initContainers"][0]["resources"]
    assert given.get("limits") == ours
    assert ours is None or given["requests"] == ours


# Changing a Pod that runs ------------------------------------------------------------------------------------------


@st.composite
def written_resources(draw: st.DrawFn) -> dict[str, dict[str, str]]:
    """What users write: limits, requests no larger, either or none."""
    written: dict[str, dict[str, str]] = {"limits": {}, "requests": {}}
    for name, unit in (("cpu", lambda amount: format_cores(amount / 1000)), ("memory", format_mebibytes)):
        request, more = draw(st.integers(1, 4000)), draw(st.integers(0, 4000))
        if draw(st.booleans()):
            written["limits"][name] = unit(request + more)
        if draw(st.booleans()):
            written["requests"][name] = unit(request)
    return written


RESOURCES = st.builds(
    Resource,
    cpu=st.none() | st.integers(1, 8000).map(lambda milli: milli / 1000),
    memory=st.none() | st.integers(1, 8000),
)


@given(written_resources(), st.lists(RESOURCES, min_size=1, max_size=3))
def test_a_pod_that_was_changed_in_place_has_what_a_new_one_would(
    written: dict[str, dict[str, str]], wanted: list[Resource]
) -> None:
    """However often, up or down; only what nobody names any more stays. Never a request above a limit."""
    job = a_job(worker={"template": with_container(resources=written)})
    assert job.spec is not None
    needs = needs_of(job.spec, Role.WORKER)
    assert needs is not None
    has = as_served(written)
    for resource in wanted:
        name, change = resized(needs, of_list({**has["limits"], **has["requests"]}), resource, SETTINGS)
        assert name == "main"
        has = {part: {**has[part], **change.get(part, {})} for part in has}
        for kind, amount in has["requests"].items():
            assert parse_quantity(amount) <= parse_quantity(has["limits"].get(kind, amount))
    new = a_member_pod(with_container(resources=written), resource=wanted[-1])["spec"]["containers"][0]["resources"]
    assert all(
        has[part][kind] == amount for part, amounts in as_served(new).items() for kind, amount in amounts.items()
    )


def as_served(resources: dict[str, dict[str, str]]) -> dict[str, dict[str, str]]:
    """As the API server completes it: who has only a limit requests as much."""
    limits = resources.get("limits", {})
    return {"limits": limits, "requests": {**limits, **resources.get("requests", {})}}


def test_pods_of_jobs_come_after_services_unless_a_template_says_otherwise() -> None:
    settings = replace(SETTINGS, priority_class="shoal-training")
    job = a_job()
    assert job.spec is not None
    made = member_pod(job, job.spec, job.spec.worker, MEMBER, Resource(), settings)
    assert made["spec"]["priorityClassName"] == "shoal-training"
    assert master_pod(job, 1, settings)["spec"]["priorityClassName"] == "shoal-training"
    template = {"spec": {**TEMPLATE["spec"], "priorityClassName": "mine"}}
    own = a_job(worker={"template": template})
    assert own.spec is not None
    made = member_pod(own, own.spec, own.spec.worker, MEMBER, Resource(), settings)
    assert made["spec"]["priorityClassName"] == "mine"


def test_masters_log_as_the_operator_does() -> None:
    quiet, machine = (master_pod(a_job(), 1, replace(SETTINGS, log_format=form)) for form in ("text", "json"))
    assert "SHOAL_LOG_FORMAT" not in env(quiet)
    assert env(machine)["SHOAL_LOG_FORMAT"] == "json"
