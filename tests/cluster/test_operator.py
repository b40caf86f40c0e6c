"""`shoal operator` on a real API server with simulated hosts: the life of jobs that a test is the master of."""

import re
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from hack.kube.harness import ApiError, Cluster, Object
from hypothesis import Phase, given, settings
from tests.api.strategies import valid
from tests.cluster.operators import TEMPLATE, Jobs, Process, Watcher, condition, install, operator, running

SEEDS = Path(__file__).parents[1] / "api" / "examples"
MakeNamespace = Callable[[Cluster], str]
KINDS = {
    "ElasticJob": ("elastic.iml.github.io/v1alpha1", "elasticjobs"),
    "ScalePlan": ("elastic.iml.github.io/v1alpha1", "scaleplans"),
    "JobResource": ("elastic.easydl.org/v1alpha1", "jobresources"),
    "TrainingJob": ("paddlepaddle.org/v1", "trainingjobs"),
}


@pytest.fixture(scope="module")
def cluster(kwok: Cluster) -> Iterator[Cluster]:
    install(kwok)
    names = kwok.hosts.add(4, prefix="operated", cpu=128, gpus=16)
    yield kwok
    kwok.hosts.remove(names)


@pytest.fixture
def jobs(cluster: Cluster, make_namespace: MakeNamespace, tmp_path: Path) -> Iterator[Jobs]:
    namespace = make_namespace(cluster)
    with operator(cluster, namespace, tmp_path):
        yield Jobs(cluster, namespace)


def test_the_life_of_a_manual_job(jobs: Jobs) -> None:
    jobs.make("mnist", optimizeMode="manual")
    jobs.wait_for("mnist", "Admitted", "False", "WaitingForPlan")
    jobs.wait_for_pods("mnist-master-1")

    jobs.plan("plan", "mnist", replicaResourceSpecs={"worker": {"replicas": 2, "resource": {"cpu": "0.5"}}})
    jobs.settled("mnist", "mnist-master-1", "mnist-worker-0", "mnist-worker-1")
    jobs.wait_for_plan("plan", "Completed", "True")

    jobs.cluster.kubectl("scale", "-n", jobs.namespace, "elasticjob/mnist", "--replicas=3")
    job = jobs.settled("mnist", "mnist-master-1", *(f"mnist-worker-{number}" for number in range(3)))
    assert job["status"]["replicas"] == 3
    jobs.wait_for_plan("plan", "Admitted", "True")  # it still pins the resource

    jobs.cluster.kubectl("scale", "-n", jobs.namespace, "elasticjob/mnist", "--replicas=1")
    jobs.settled("mnist", "mnist-master-1", "mnist-worker-0")

    jobs.change("mnist", {"suspend": True})
    jobs.wait_for_pods()
    jobs.wait_for("mnist", "Ready", "False", "Suspended")
    jobs.change("mnist", {"suspend": False})
    jobs.settled("mnist", "mnist-master-2", "mnist-worker-3")

    jobs.report("mnist", "succeeded", "all data was trained")
    jobs.wait_for("mnist", "Succeeded", "True", "Completed")
    jobs.wait_for_pods()

    events = jobs.cluster.kubectl("get", "events", "-n", jobs.namespace, "-o=jsonpath={.items[*].reason}")
    assert {"Resized", "Suspended", "Completed"} <= set(events.split())
    jobs.cluster.kubectl("delete", "-n", jobs.namespace, "elasticjob/mnist", "--timeout=60s")
    jobs.wait(jobs.pods, lambda items: not items, "all Pods are gone")
    jobs.wait(f"/api/v1/namespaces/{jobs.namespace}/services", lambda items: not items, "the Service is gone")


def test_the_seeds_job_resource_launches_before_it_removes(jobs: Jobs, tmp_path: Path) -> None:
    name = "elastic-deepctr-job"
    jobs.make(name, distributionStrategy="parameter_server", parameterServer={"template": TEMPLATE})
    jobs.wait_for_pods(f"{name}-master-1")
    resource = {"cpu": 4, "memory": 4096, "disk": 8192, "gpu": 1}
    with Watcher(jobs.cluster, jobs.namespace, tmp_path / "pods.log") as watcher:
        jobs.cluster.api.create(
            jobs.job_resources,
            {
                "apiVersion": "elastic.easydl.org/v1alpha1",
                "kind": "JobResource",
                "metadata": {"name": "elastic-training-resource"},
                "spec": {
                    "selector": {"name": name},
                    "parameter_server": {"replicas": 4, "resource": resource},
                    "worker": {"replicas": 4, "resource": resource},
                    "evaluator": {"replicas": 1, "resource": resource},
                    "resource_updation": [
                        {"name": f"{name}-ps-0", "resource": {"cpu": 8, "memory": 8192}},
                        {"name": f"{name}-ps-1", "resource": {"cpu": 16, "memory": 8192}},
                    ],
                },
            },
        )
        jobs.wait_for_plan("elastic-training-resource", "Completed", "True", path=jobs.job_resources)
        servers = [f"{name}-ps-{number}" for number in (2, 3, 4, 5)]
        workers = [f"{name}-worker-{number}" for number in range(4)]
        jobs.wait_for_pods(f"{name}-master-1", f"{name}-evaluator-0", *servers, *workers)
        lines = watcher.stop()
    assert [f"Running {name}-ps-{number}" in lines for number in range(4)] == [True] * 4
    status = jobs.cluster.api.get(f"{jobs.jobs}/{name}")["status"]
    moves = {move["name"]: move["replacement"] for move in status["moves"]}
    assert sorted(moves) == [f"{name}-ps-0", f"{name}-ps-1"]
    for old, new in moves.items():
        assert lines.index(f"Running {new}") < lines.index(f"Deleted {old}")
    pods = {pod["metadata"]["name"]: pod for pod in jobs.cluster.api.get(jobs.pods)["items"]}
    cpus = {old: pods[new]["spec"]["containers"][0]["resources"]["requests"]["cpu"] for old, new in moves.items()}
    assert cpus == {f"{name}-ps-0": "8", f"{name}-ps-1": "16"}


def test_dlrovers_manual_job_and_plan_get_the_pods_they_ask_for(jobs: Jobs, tmp_path: Path) -> None:
    def there(items: list[Object]) -> list[str]:
        return sorted(item["metadata"]["name"] for item in items)

    name = "deepctr-manual-scale"
    for file, servers in (("dlrover-manual", 1), ("dlrover-manual-scaleplan", 2)):
        written = tmp_path / f"{file}.yaml"
        written.write_text(yaml.safe_dump(_without_volumes(yaml.safe_load((SEEDS / f"{file}.yaml").read_text()))))
        jobs.cluster.kubectl("apply", "-n", jobs.namespace, "-f", str(written))
        members = ["master-1", *(f"ps-{number}" for number in range(servers)), "worker-0", "worker-1"]
        wanted = [f"{name}-{member}" for member in members]
        jobs.wait(jobs.pods, lambda items, wanted=wanted: there(items) == wanted, f"Pods {', '.join(wanted)}")
    pods = {pod["metadata"]["name"]: pod["spec"] for pod in jobs.cluster.api.get(jobs.pods)["items"]}
    assert pods[f"{name}-ps-1"]["containers"][0]["resources"]["requests"] == {"cpu": "2", "memory": "3Gi"}
    assert pods[f"{name}-worker-1"]["restartPolicy"] == "Never"  # the master decides who comes back


def _without_volumes(written: Any) -> Any:
    """The same without the claim on a file system that only its cluster has: nobody could start."""
    if isinstance(written, dict):
        return {
            name: _without_volumes(each) for name, each in written.items() if name not in ("volumes", "volumeMounts")
        }
    return [_without_volumes(each) for each in written] if isinstance(written, list) else written


def test_a_lost_member_waits_for_the_master_and_returns_with_more_memory(jobs: Jobs) -> None:
    jobs.make("mnist", worker={"replicas": 2})
    jobs.settled("mnist", "mnist-master-1", "mnist-worker-0", "mnist-worker-1")
    jobs.report("mnist", "running")
    jobs.cluster.hosts.end_pod(jobs.namespace, "mnist-worker-1", 137, "OOMKilled")

    def told(items: list) -> bool:
        auto = next(item for item in items if item["metadata"]["name"] == "mnist-auto")
        pods = {pod["name"]: pod for pod in (auto.get("status") or {}).get("pods", [])}
        return bool(pods.get("mnist-worker-1", {}).get("oomKilled"))

    jobs.wait(jobs.scale_plans, told, "the master is told of the OOM")
    jobs.wait_for("mnist", "Degraded", "True", "MemberFailed")
    order = {"name": "mnist-worker-2", "type": "worker", "id": 2, "rankIndex": 1, "replaces": "mnist-worker-1"}
    order |= {"resource": {"memory": "3Gi"}, "avoidHosts": ["operated-0"]}
    jobs.cluster.api.patch(f"{jobs.scale_plans}/mnist-auto", {"spec": {"createPods": [order]}})
    jobs.settled("mnist", "mnist-master-1", "mnist-worker-0", "mnist-worker-2")
    pod = jobs.cluster.api.get(f"{jobs.pods}/mnist-worker-2")
    assert pod["spec"]["containers"][0]["resources"]["limits"] == {"memory": "3Gi"}
    assert pod["spec"]["nodeName"] != "operated-0"
    assert pod["metadata"]["labels"]["elastic.iml.github.io/rank-hint"] == "1"


def test_members_of_a_lost_host_are_replaced_elsewhere(
    cluster: Cluster, make_namespace: MakeNamespace, tmp_path: Path
) -> None:
    namespace = make_namespace(cluster)
    with operator(cluster, namespace, tmp_path, "--host-grace", "1"):
        jobs = Jobs(cluster, namespace)
        jobs.make("mnist", worker={"replicas": 2})
        jobs.settled("mnist", "mnist-master-1", "mnist-worker-0", "mnist-worker-1")
        host = cluster.api.get(f"{jobs.pods}/mnist-worker-1")["spec"]["nodeName"]
        cluster.hosts.lose(host)
        try:

            def elsewhere(items: list) -> bool:
                live = [pod for pod in items if pod["metadata"]["name"] in running(items)]
                workers = [pod for pod in live if "-worker-" in pod["metadata"]["name"]]
                return len(workers) == 2 and len(live) == 3 and host not in [pod["spec"]["nodeName"] for pod in live]

            jobs.wait(jobs.pods, elsewhere, "all of the job is on other hosts")
            job = jobs.wait_for("mnist", "Ready", "True")
            new = next(each for each in job["status"]["members"] if each["rank"] == 1 and each["state"] == "live")
            assert new["name"] != "mnist-worker-1"
            assert new["avoidHosts"] == [host]
            terms = cluster.api.get(f"{jobs.pods}/{new['name']}")["spec"]["affinity"]["nodeAffinity"][
                "preferredDuringSchedulingIgnoredDuringExecution"
            ]
            fields = [field for term in terms for field in term["preference"]["matchFields"]]
            assert [field["values"] for field in fields if field["operator"] == "NotIn"] == [[host]]
        finally:
            cluster.hosts.bring_back(host)
        gone = "mnist-worker-1"
        jobs.wait(jobs.pods, lambda items: gone not in [p["metadata"]["name"] for p in items], "the lost Pod is gone")


def test_a_master_that_answers_drains_and_one_that_does_not_is_not_waited_for(jobs: Jobs) -> None:
    jobs.make("mnist", worker={"replicas": 3})
    jobs.settled("mnist", "mnist-master-1", *(f"mnist-worker-{number}" for number in range(3)))
    jobs.report("mnist", "running")
    jobs.change("mnist", {"worker": {"replicas": 2}})
    jobs.wait_for("mnist", "Resizing", "True", "ScalingDown")
    removed = {"spec": {"removePods": [{"name": "mnist-worker-0"}]}}
    jobs.cluster.api.patch(f"{jobs.scale_plans}/mnist-auto", removed)
    jobs.settled("mnist", "mnist-master-1", "mnist-worker-1", "mnist-worker-2")
    jobs.change("mnist", {"worker": {"replicas": 1}})  # this time the master does nothing: --drain passes
    job = jobs.settled("mnist", "mnist-master-1", "mnist-worker-1")
    assert jobs.names() == ["mnist-master-1", "mnist-worker-1"]
    assert job["status"]["term"] == 1, "the master that does nothing is not replaced"


def test_a_killed_master_pod_is_followed_by_the_next_term(jobs: Jobs) -> None:
    jobs.make("mnist", worker={"replicas": 1})
    jobs.settled("mnist", "mnist-master-1", "mnist-worker-0")
    jobs.cluster.api.delete(f"{jobs.pods}/mnist-master-1")
    job = jobs.settled("mnist", "mnist-master-2", "mnist-worker-0")
    assert job["status"]["term"] == 2

    def selects(items: list) -> bool:
        return any(item["spec"]["selector"].get("elastic.iml.github.io/term") == "2" for item in items)

    jobs.wait(f"/api/v1/namespaces/{jobs.namespace}/services", selects, "the Service selects the newest master")


def test_a_job_is_deleted_after_its_ttl(jobs: Jobs) -> None:
    jobs.make("mnist", worker={"replicas": 1}, ttlSecondsAfterFinished=1)
    jobs.settled("mnist", "mnist-master-1", "mnist-worker-0")
    jobs.report("mnist", "failed", "no data")
    jobs.wait(jobs.jobs, lambda items: not items, "the job is gone")
    jobs.wait(jobs.pods, lambda items: not items, "its Pods are gone")
    assert jobs.cluster.api.get(jobs.jobs)["items"] == jobs.cluster.api.get(jobs.pods)["items"] == []


# What goes wrong -----------------------------------------------------------------------------------------------------


def test_a_plan_for_a_job_that_is_not_there_or_not_named_says_so(jobs: Jobs) -> None:
    jobs.plan("early", "mnist", replicaResourceSpecs={"worker": {"replicas": 1}})
    plan = jobs.wait_for_plan("early", "Accepted", "Unknown", "JobNotFound")
    assert f"no ElasticJob mnist in namespace {jobs.namespace}" in condition(plan, "Accepted")["message"]
    jobs.plan("anyone", None, replicaResourceSpecs={"worker": {"replicas": 1}})
    plan = jobs.wait_for_plan("anyone", "Accepted", "False", "NoJobNamed")
    assert "say `spec.ownerJob`" in condition(plan, "Accepted")["message"]
    jobs.make("mnist")
    jobs.settled("mnist", "mnist-master-1", "mnist-worker-0")
    jobs.report("mnist", "succeeded")
    jobs.wait_for("mnist", "Succeeded", "True")
    jobs.plan("late", "mnist", replicaResourceSpecs={"worker": {"replicas": 5}})
    jobs.wait_for_plan("late", "Accepted", "False", "JobFinished")


def test_a_plan_for_a_job_of_another_namespace_is_told_where_that_is(
    cluster: Cluster, make_namespace: MakeNamespace, tmp_path: Path
) -> None:
    """By an operator of all namespaces: one of a single namespace knows of no other."""
    here, team = (Jobs(cluster, make_namespace(cluster)) for _ in range(2))
    with operator(cluster, "all", tmp_path, "--home", here.namespace):
        team.make("theirs", worker={"replicas": 1})
        team.settled("theirs", "theirs-master-1", "theirs-worker-0")
        here.plan("more", "theirs", replicaResourceSpecs={"worker": {"replicas": 2}})
        plan = here.wait_for_plan("more", "Accepted", "Unknown", "JobNotFound")
        where = f"there is one in {team.namespace}, but a plan is for jobs of its own namespace"
        assert where in condition(plan, "Accepted")["message"]
        team.plan("more", "theirs", replicaResourceSpecs={"worker": {"replicas": 2}})  # the same where the job is
        team.settled("theirs", "theirs-master-1", "theirs-worker-0", "theirs-worker-1")
        assert condition(here.wait_for_plan("more", "Accepted", "Unknown"), "Accepted")["reason"] == "JobNotFound"
        assert not cluster.api.get(here.pods)["items"]


def test_more_than_the_most_is_trimmed_on_the_plan(jobs: Jobs) -> None:
    jobs.make("mnist", worker={"max": 2})
    jobs.plan("greedy", "mnist", replicaResourceSpecs={"worker": {"replicas": 50}})
    jobs.settled("mnist", "mnist-master-1", "mnist-worker-0", "mnist-worker-1")
    plan = jobs.wait_for_plan("greedy", "Admitted", "True", "Trimmed")
    assert plan["status"]["trimmed"][0] == {
        "what": "worker.replicas",
        "asked": "50",
        "got": "2",
        "reason": "job mnist has at most 2 of worker",
    }


def test_a_quota_that_has_no_room_is_said_in_the_servers_words_and_heals(jobs: Jobs) -> None:
    quota = f"/api/v1/namespaces/{jobs.namespace}/resourcequotas"
    spec = {"hard": {"pods": "2"}, "scopes": ["NotTerminating"]}  # for some Pods only: the scheduler leaves it alone
    jobs.cluster.api.create(quota, {"metadata": {"name": "small"}, "spec": spec})
    jobs.wait(quota, lambda items: items[0].get("status", {}).get("hard"), "the quota counts")
    jobs.make("mnist", worker={"replicas": 3})
    job = jobs.wait_for("mnist", "Degraded", "True", "QuotaExceeded")
    assert "exceeded quota: small" in condition(job, "Degraded")["message"]
    jobs.cluster.api.patch(f"{quota}/small", {"spec": {"hard": {"pods": "10"}}})
    jobs.settled("mnist", "mnist-master-1", *(f"mnist-worker-{number}" for number in range(3)))
    jobs.wait_for("mnist", "Degraded", "False")


def test_a_quota_that_the_scheduler_knows_trims_a_job_and_nothing_is_refused(jobs: Jobs) -> None:
    quota = f"/api/v1/namespaces/{jobs.namespace}/resourcequotas"
    jobs.cluster.api.create(quota, {"metadata": {"name": "small"}, "spec": {"hard": {"pods": "2"}}})
    jobs.wait(quota, lambda items: items[0].get("status", {}).get("hard"), "the quota counts")
    jobs.make("mnist", worker={"replicas": 3}, freezingWindow="1s")
    jobs.settled("mnist", "mnist-master-1", "mnist-worker-0")
    job = jobs.wait_for("mnist", "Admitted", "True", "Trimmed")
    assert condition(job, "Degraded")["status"] == "False"
    jobs.cluster.api.patch(f"{quota}/small", {"spec": {"hard": {"pods": "10"}}})
    jobs.settled("mnist", "mnist-master-1", *(f"mnist-worker-{number}" for number in range(3)))


def test_a_job_that_fits_nowhere_waits_and_says_so(jobs: Jobs) -> None:
    jobs.make("mnist", worker={"replicas": 1, "resource": {"gpu": 64, "cpu": "128"}})
    jobs.wait_for("mnist", "Admitted", "False", "TooLarge")
    assert jobs.names() == []


def test_pods_that_kubernetes_finds_no_host_for_are_said(jobs: Jobs) -> None:
    term = {"labelSelector": {"matchLabels": {"app": "nobody"}}, "topologyKey": "kubernetes.io/hostname"}
    affinity = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    jobs.make("mnist", worker={"replicas": 1, "template": {"spec": {**TEMPLATE["spec"], "affinity": affinity}}})
    job = jobs.wait_for("mnist", "Ready", "False", "Unschedulable")
    assert "affinity" in condition(job, "Ready")["message"]


def test_a_foreign_object_of_a_fixed_name_is_never_adopted(jobs: Jobs) -> None:
    services = f"/api/v1/namespaces/{jobs.namespace}/services"
    foreign = {"metadata": {"name": "mnist-master"}, "spec": {"selector": {"app": "x"}, "ports": [{"port": 80}]}}
    jobs.cluster.api.create(services, foreign)
    jobs.make("mnist", worker={"replicas": 1})
    job = jobs.wait_for("mnist", "Degraded", "True", "NameConflict")
    assert f"Service {jobs.namespace}/mnist-master" in condition(job, "Degraded")["message"]
    assert jobs.cluster.api.get(f"{services}/mnist-master")["spec"]["selector"] == {"app": "x"}
    jobs.cluster.api.delete(f"{services}/mnist-master")
    jobs.settled("mnist", "mnist-master-1", "mnist-worker-0")


def test_a_namespace_that_is_being_deleted_ends_quietly(
    cluster: Cluster, make_namespace: MakeNamespace, tmp_path: Path
) -> None:
    namespace = cluster.namespace(f"ending-{uuid.uuid4().hex[:6]}")
    home = make_namespace(cluster)
    with operator(cluster, "all", tmp_path, "--home", home) as process:
        jobs = Jobs(cluster, namespace)
        jobs.make("mnist", worker={"replicas": 2})
        jobs.settled("mnist", "mnist-master-1", "mnist-worker-0", "mnist-worker-1")
        cluster.api.delete(f"/api/v1/namespaces/{namespace}")
        cluster.api.wait(
            "/api/v1/namespaces",
            lambda items: all(item["metadata"]["name"] != namespace for item in items),
            what="the namespace is gone",
            timeout=90,
        )
        assert process.is_alive()
        assert "Traceback" not in process.log.read_text()


def test_what_the_server_lets_in_never_crashes_the_operator(jobs: Jobs) -> None:
    hostile = [
        {"volumes": [{"name": "x", "hostPath": {"path": "relative/../.."}}]},
        {"containers": [{**TEMPLATE["spec"]["containers"][0], "resources": {"requests": {"cpu": "lots"}}}]},
        {"initContainers": [{"name": "shoal-agent", "image": "mine"}]},
        {"affinity": {"nodeAffinity": None}, "volumes": None, "tolerations": None},
    ]
    made = []
    for number, extra in enumerate(hostile):
        template = {"spec": {**TEMPLATE["spec"], **extra}}
        with suppress(ApiError):  # what the server refuses never gets to us
            jobs.make(f"odd-{number}", worker={"template": template, "replicas": 1})
            made.append(f"odd-{number}")
    assert made
    jobs.make("fine", worker={"replicas": 1})
    for name in made:
        jobs.wait(jobs.jobs, lambda items, name=name: _is_visited(items, name), f"{name} has conditions")
    jobs.wait_for("fine", "Ready", "True")


def test_whatever_our_schema_allows_gets_conditions_and_crashes_nothing(jobs: Jobs) -> None:
    """Random objects of all kinds, within a quota: what they ask for is not the point."""
    quota = {"metadata": {"name": "few"}, "spec": {"hard": {"pods": "12"}}}
    jobs.cluster.api.create(f"/api/v1/namespaces/{jobs.namespace}/resourcequotas", quota)
    drawn: list[Object] = []

    @settings(max_examples=40, database=None, phases=[Phase.generate], deadline=None)
    @given(valid)
    def draw(written: Object) -> None:
        drawn.append(written)

    draw()
    drawn = [each for each in drawn if "managedBy" not in each["spec"]]  # others' jobs are not ours to look at
    for plan in (each["spec"] for each in drawn if each["kind"] == "ScalePlan"):
        plan.setdefault("ownerJob", "nowhere")  # one that names no job is nobody's to answer
    made: dict[str, list[str]] = {}
    for number, written in enumerate(drawn):
        group, plural = KINDS[written["kind"]]
        path = f"/apis/{group}/namespaces/{jobs.namespace}/{plural}"
        name = f"drawn-{number}"
        jobs.cluster.api.create(path, {**written, "metadata": {"name": name}})
        made.setdefault(path, []).append(name)
    assert len(made) >= 3, "too few kinds were drawn to show anything"
    for path, names in made.items():

        def are_visited(items: list[Object], names: list[str] = names) -> bool:
            return all(_is_visited(items, name) for name in names)

        jobs.wait(path, are_visited, f"all of {path} have conditions")
    pods = jobs.cluster.api.get(jobs.pods)["items"]
    assert len(pods) <= 12
    jobs.make("fine", worker={"replicas": 1})
    jobs.wait(jobs.jobs, lambda items: _is_visited(items, "fine"), "one more is looked at, too")


def _is_visited(items: list, name: str) -> bool:
    return any(item["metadata"]["name"] == name and item.get("status", {}).get("conditions") for item in items)


# The process ---------------------------------------------------------------------------------------------------------


def test_it_serves_metrics_and_says_whether_it_is_ready(
    cluster: Cluster, make_namespace: MakeNamespace, tmp_path: Path
) -> None:
    namespace = make_namespace(cluster)
    with operator(cluster, namespace, tmp_path) as process:
        jobs = Jobs(cluster, namespace)
        jobs.make("mnist", worker={"replicas": 1})
        jobs.settled("mnist", "mnist-master-1", "mnist-worker-0")
        address = process.address()
        assert urllib.request.urlopen(f"{address}/healthz").read() == b"ok\n"
        assert urllib.request.urlopen(f"{address}/readyz").read() == b"ok\n"
        text = urllib.request.urlopen(f"{address}/metrics").read().decode()
        assert 'shoal_jobs{state="ready"} 1.0' in text
        assert 'shoal_leader{replica_role="leader"} 1.0' in text
        for name in ("shoal_build_info", "shoal_reconcile_duration_seconds", "shoal_informer_staleness_seconds"):
            assert name in text
        assert not re.search(r'verb="(list|watch)",resource="secrets"', text)


def test_it_says_which_permissions_are_missing_before_it_starts(
    control_plane: Cluster, make_namespace: MakeNamespace, tmp_path: Path
) -> None:
    install(control_plane)
    namespace = make_namespace(control_plane)
    nobody = control_plane.service_account(namespace, "nobody")
    process = Process(nobody, namespace, tmp_path / "log")
    assert process.wait() == 2
    assert (
        f"lacks permissions: get elasticjobs of elastic.iml.github.io in namespace {namespace}"
        in process.log.read_text()
    )


def test_it_does_not_start_beside_dlrovers_operator(
    control_plane: Cluster, make_namespace: MakeNamespace, tmp_path: Path
) -> None:
    install(control_plane)
    namespace = make_namespace(control_plane)
    other = {
        "metadata": {"name": "dlrover-controller-manager-0", "labels": {"control-plane": "controller-manager"}},
        "spec": {
            "containers": [{"name": "manager", "image": "registry/intelligent-machine-learning/dlrover:operator"}]
        },
    }
    control_plane.api.create(f"/api/v1/namespaces/{namespace}/pods", other)
    process = Process(control_plane.kubeconfig, namespace, tmp_path / "log")
    assert process.wait() == 2
    assert f"DLRover's operator runs here ({namespace}/dlrover-controller-manager-0)" in process.log.read_text()
