"""What is made of a TrainingJob: manifests that bear names, owners, labels, environment and commands as they should."""

from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from tests.api.strategies import training_jobs
from tests.operator.builders import NOW, SETTINGS
from tests.operator.training.builders import KEY, a_job, elastic

from shoal.api import TrainingJob
from shoal.api.labels import JOB_UID, KIND, ROLE
from shoal.api.trainingjob import TrainingRole
from shoal.api.trainingspec import understand
from shoal.operator.training.objects import fixed_objects, form_of, pod_template, workload
from shoal.operator.training.snapshot import TrainingSeen
from shoal.platforms.kubernetes.uses import shape

TRAINER, PSERVER, MASTER, ETCD = (
    TrainingRole.TRAINER,
    TrainingRole.PSERVER,
    TrainingRole.MASTER,
    TrainingRole.ETCD,
)


def made(job: TrainingSeen, role: TrainingRole, **more: Any) -> dict[str, Any]:
    assert job.spec is not None
    return workload(job, job.spec, role, 2, SETTINGS, **more)


def pod(job: TrainingSeen, role: TrainingRole, settings: Any = SETTINGS) -> dict[str, Any]:
    assert job.spec is not None
    found: dict[str, Any] = pod_template(job, job.spec, role, settings)["spec"]
    return found


def env(container: dict[str, Any]) -> dict[str, str]:
    return {each["name"]: each.get("value", "") for each in container["env"]}


def test_the_trainers_job_leaves_the_count_of_failures_to_us() -> None:
    spec = made(a_job(trainer=elastic()), TRAINER)["spec"]
    assert spec["parallelism"] == 2
    assert "completions" not in spec
    assert spec["backoffLimit"] == 2**31 - 1
    assert spec["podReplacementPolicy"] == "Failed"
    (rule,) = spec["podFailurePolicy"]["rules"]
    assert (rule["action"], rule["onPodConditions"][0]["type"]) == ("Ignore", "DisruptionTarget")
    assert spec["template"]["spec"]["restartPolicy"] == "Never"


def test_a_job_that_our_master_has_given_up_is_over_for_kubernetes_as_well() -> None:
    spec = made(a_job(master={}), TRAINER)["spec"]
    assert spec["podFailurePolicy"]["rules"][1:] == [
        {"action": "FailJob", "onExitCodes": {"containerName": "trainer", "operator": "In", "values": [78]}}
    ]
    assert [each["name"] for each in spec["template"]["spec"]["containers"]] == ["trainer"]


@pytest.mark.parametrize("role", TrainingRole)
def test_everything_is_owned_and_labelled(role: TrainingRole) -> None:
    job = a_job(master={}, pserver={})
    manifest = made(job, role)
    (owner,) = manifest["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"], owner["controller"]) == ("TrainingJob", "job-uid", True)
    labels = manifest["spec"]["template"]["metadata"]["labels"]
    assert (labels[ROLE], labels[JOB_UID], labels[KIND]) == (role, "job-uid", "TrainingJob")
    assert labels["app.kubernetes.io/instance"] == "job"
    original = {"trainer": "paddle-job", "pserver": "paddle-job-pserver", "master": "paddle-job-master"}
    assert role is ETCD or labels[original[role]] == "job"
    chosen = manifest["spec"].get("selector", {}).get("matchLabels", {})
    assert chosen.items() <= labels.items()


def test_trainers_of_a_job_of_ours_run_under_the_agent() -> None:
    job = a_job(
        master={}, trainer={"workspace": "/workspace/job-1/", "resources": {"limits": {"nvidia.com/gpu": 2, "cpu": 4}}}
    )
    spec = pod(job, TRAINER)
    (container,) = spec["containers"]
    assert container["command"] == ["/shoal/bin/shoal", "agent", "--", "python", "train.py"]
    assert container["workingDir"] == "/workspace/job-1/"
    assert [each["name"] for each in spec["initContainers"]] == ["shoal-agent"]
    told = env(container)
    assert told["SHOAL_AGENT_MASTER"] == "wss://job-master.default.svc:7077"
    assert told["SHOAL_AGENT_SLOTS"] == "2"
    assert told["SHOAL_AGENT_CONTAINER"] == "own"
    assert "SHOAL_AGENT_NODE" not in told  # the master gives it a name
    assert spec["automountServiceAccountToken"] is False


def test_any_other_job_runs_what_it_says() -> None:
    spec = pod(a_job(), TRAINER)
    assert spec["containers"][0]["command"] == ["python", "train.py"]
    assert "initContainers" not in spec
    assert "SHOAL_AGENT_MASTER" not in env(spec["containers"][0])
    assert "command" not in pod(a_job(trainer={"entrypoint": None}), TRAINER)["containers"][0]


@pytest.mark.parametrize(
    ("entrypoint", "words"),
    [
        ("python train.py --lr=0.1", ["python", "train.py", "--lr=0.1"]),
        ("cd /x && python train.py", ["/bin/sh", "-c", "cd /x && python train.py"]),
        ('python -c "print(1)"', ["/bin/sh", "-c", 'python -c "print(1)"']),
        ("A=1 python train.py", ["/bin/sh", "-c", "A=1 python train.py"]),
        ("python train.py $HOME", ["/bin/sh", "-c", "python train.py $HOME"]),
        ("one\ntwo", ["/bin/sh", "-c", "one\ntwo"]),
    ],
)
def test_a_shell_is_used_where_one_is_needed(entrypoint: str, words: list[str]) -> None:
    assert pod(a_job(trainer={"entrypoint": entrypoint}), TRAINER)["containers"][0]["command"] == words


def test_servers_run_what_trainers_run_unless_they_say() -> None:
    assert pod(a_job(pserver={}), PSERVER)["containers"][0]["command"] == ["python", "train.py"]
    own = a_job(pserver={"entrypoint": "./serve"}, master={})
    assert pod(own, PSERVER)["containers"][0]["command"] == ["./serve"]
    assert env(pod(own, PSERVER)["containers"][0])["TRAINING_ROLE"] == "PSERVER"
    assert "SHOAL_AGENT_MASTER" not in env(pod(own, PSERVER)["containers"][0])
    assert "SHOAL_MIN_SERVERS" not in env(pod(own, MASTER)["containers"][0])


def test_servers_that_trainers_follow_run_under_an_agent_of_their_own_role() -> None:
    job = a_job(pserver={"min-instance": 2, "max-instance": 3}, master={}, checkpoint={"path": "/kept"})
    made = pod(job, PSERVER)
    container = made["containers"][0]
    assert container["command"] == ["/shoal/bin/shoal", "agent", "--role", "ps", "--", "python", "train.py"]
    told = env(container)
    assert (told["SHOAL_AGENT_ROLE"], told["SHOAL_ROLE"], told["SHOAL_AGENT_SLOTS"]) == ("ps", "ps", "1")
    assert told["SHOAL_AGENT_MASTER"] == env(pod(job, TRAINER)["containers"][0])["SHOAL_AGENT_MASTER"]
    assert made["initContainers"][0]["command"] == ["/shoal/bin/shoal", "bring", "/target"]
    assert made["terminationGracePeriodSeconds"] == 1800, "one that is told to end stays until it is let go"
    hasty = a_job(pserver={"grace_period_seconds": 7}, master={})
    assert pod(hasty, PSERVER)["terminationGracePeriodSeconds"] == 7
    master = env(pod(job, MASTER)["containers"][0])
    assert (master["SHOAL_MIN_SERVERS"], master["SHOAL_MAX_SERVERS"]) == ("2", "3")
    assert master["SHOAL_CHECKPOINT_PATH"] == "/kept"


def test_a_grace_that_is_said_for_all_shortens_no_servers_that_trainers_follow() -> None:
    def graces(**spec: Any) -> list[int]:
        job = a_job(**{"master": {}, "pserver": {}, **spec})
        return [pod(job, role)["terminationGracePeriodSeconds"] for role in (TRAINER, PSERVER)]

    assert graces() == [45, 1800]
    assert graces(grace_period_seconds=30) == [30, 1800]
    assert graces(grace_period_seconds=3600) == [3600, 3600]
    assert graces(grace_period_seconds=30, pserver={"grace_period_seconds": 7}) == [30, 7], "what they say holds"
    assert graces(grace_period_seconds=30, pserver={"entrypoint": "./serve"}) == [30, 30], "nobody lets those go"


def test_the_first_controllers_environment_is_told() -> None:
    job = a_job(
        trainer={**elastic(3, 6), "passes": 50, "resources": {"requests": {"cpu": "1500m"}}},
        pserver={"min-instance": 2},
        port=7000,
        ports_num=2,
    )
    told = env(pod(job, TRAINER)["containers"][0])
    assert (
        told.items()
        >= {
            "PADDLE_JOB_NAME": "job",
            "TRAINERS": "3",
            "PSERVERS": "2",
            "ENTRY": "python train.py",
            "PADDLE_INIT_PORT": "7000",
            "PADDLE_INIT_PORTS_NUM": "2",
            "PADDLE_INIT_TRAINER_COUNT": "2",
            "PADDLE_INIT_NUM_GRADIENT_SERVERS": "3",
            "PADDLE_INIT_NUM_PASSES": "50",
            "PADDLE_INIT_USE_GPU": "0",
            "PSERVER_SERVICE": "job-pserver.default.svc",
        }.items()
    )
    assert {"NAMESPACE", "POD_IP"} <= told.keys()
    assert [each["containerPort"] for each in pod(job, TRAINER)["containers"][0]["ports"]] == [7000, 7001, 7002]


def test_devices_stand_in_the_limits_under_a_name_that_kubernetes_takes() -> None:
    job = a_job(trainer={"resources": {"limits": {"alpha.kubernetes.io/nvidia-gpu": 1}, "requests": {"cpu": 2}}})
    assert pod(job, TRAINER)["containers"][0]["resources"] == {
        "limits": {"nvidia.com/gpu": "1"},
        "requests": {"cpu": "2", "nvidia.com/gpu": "1"},
    }


def test_our_master_finds_its_state_in_etcd_and_knows_its_bounds() -> None:
    job = a_job(master={}, trainer=elastic(2, 5))
    (container,) = pod(job, MASTER)["containers"]
    assert container["command"] == ["/shoal/bin/shoal", "master", "--training"]
    told = env(container)
    assert told["SHOAL_STORE"] == "etcd://job-etcd.default.svc:2379/job-uid"
    assert (told["SHOAL_MIN_NODES"], told["SHOAL_MAX_NODES"]) == ("2", "5")
    assert container["securityContext"]["runAsNonRoot"] is True


def test_our_master_is_ended_by_its_host_when_it_answers_nobody_any_more() -> None:
    (container,) = pod(a_job(master={}), MASTER)["containers"]
    for name in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[name]["httpGet"] == {"path": "/healthz", "port": 7077, "scheme": "HTTPS"}


def test_our_master_is_told_how_to_write_its_log_lines() -> None:
    job = a_job(master={})
    assert "SHOAL_LOG_FORMAT" not in env(pod(job, MASTER)["containers"][0])
    in_json = pod(job, MASTER, replace(SETTINGS, log_format="json"))
    assert env(in_json["containers"][0])["SHOAL_LOG_FORMAT"] == "json"


def test_a_master_of_somebody_elses_is_just_run() -> None:
    job = a_job(master={"entrypoint": "./master -port=8080"})
    (container,) = pod(job, MASTER)["containers"]
    assert (container["image"], container["command"]) == ("trainer", ["./master", "-port=8080"])
    assert job.spec is not None
    names = {(each["kind"], each["metadata"]["name"]) for each in fixed_objects(job, job.spec, SETTINGS)}
    assert names == {("NetworkPolicy", "job"), ("Service", "job-master"), ("Service", "job-etcd")}


def test_three_members_of_etcd_find_each_other_and_one_finds_itself() -> None:
    three = made(a_job(master={"etcd-replicas": 3, "etcd-storage": "1Gi"}), ETCD)["spec"]
    (words,) = (each["command"] for each in three["template"]["spec"]["containers"])
    (members,) = (word for word in words if word.startswith("--initial-cluster="))
    assert members.count("http://job-etcd-") == 3
    assert three["volumeClaimTemplates"][0]["spec"]["resources"] == {"requests": {"storage": "1Gi"}}
    one = made(a_job(master={}), ETCD)["spec"]
    assert "--initial-cluster=job-etcd-0=http://127.0.0.1:2380" in one["template"]["spec"]["containers"][0]["command"]
    assert one["template"]["spec"]["volumes"] == [{"name": "data", "emptyDir": {}}]


def test_planned_hosts_are_preferred_and_training_pods_come_after_services() -> None:
    job = a_job()
    spec = made(job, TRAINER, hosts={"a": 1, "b": 2})["spec"]["template"]["spec"]
    wishes = spec["affinity"]["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert [(each["weight"], each["preference"]["matchFields"][0]["values"]) for each in wishes] == [
        (50, ["a"]),
        (100, ["b"]),
    ]
    settings = replace(SETTINGS, priority_class="shoal-training")
    assert pod(job, TRAINER, settings)["priorityClassName"] == "shoal-training"


def test_the_form_is_of_what_pods_are_made_of_and_not_of_their_number() -> None:
    def form(**more: Any) -> str:
        job = a_job(**more)
        assert job.spec is not None
        return form_of(job.spec, SETTINGS)

    plain = form(trainer=elastic(1, 2))
    assert plain == form(trainer=elastic(1, 5), priority="Production", suspend=True)
    assert plain != form(trainer=elastic(1, 2), image="another")
    small, large = (made(a_job(trainer=elastic(1, most), master={}), MASTER) for most in (2, 5))
    assert small["metadata"]["annotations"] != large["metadata"]["annotations"]  # a master of ours is told


@given(training_jobs())
@settings(max_examples=40, deadline=None)
def test_every_valid_job_can_be_made_and_shaped(written: dict[str, Any]) -> None:
    written["metadata"] |= {"namespace": KEY.namespace, "uid": "job-uid"}
    spec = understand(msgspec.convert(written, TrainingJob))
    job = TrainingSeen(key=KEY, uid="job-uid", generation=1, created_at=NOW, spec=spec)
    for part in (spec.trainer, *spec.parts):
        manifest = workload(job, spec, part.role, part.min, SETTINGS)
        msgspec.json.encode(manifest)
        shape(manifest["spec"]["template"])


def test_trainers_on_the_hosts_network_take_no_ports_there() -> None:
    job = a_job(host_network=True, pserver={})
    assert "ports" not in pod(job, TRAINER)["containers"][0]
    assert pod(job, PSERVER)["containers"][0]["ports"]
    assert pod(a_job(), TRAINER)["containers"][0]["ports"]
