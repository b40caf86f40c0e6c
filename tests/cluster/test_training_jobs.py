"""TrainingJobs on a real API server with Kubernetes' own controllers: the life of jobs, on simulated hosts."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml
from hack.kube.harness import Cluster, Object
from tests.cluster.operators import Process, install, operator
from tests.cluster.training_jobs import TrainingJobs

pytestmark = pytest.mark.timeout(600)
SEED = Path(__file__).parents[1] / "api" / "examples" / "seed-trainingjob.yaml"
MakeNamespace = Callable[[Cluster], str]
ROLE = "elastic.iml.github.io/role"


@pytest.fixture(scope="module")
def cluster(kwok: Cluster) -> Iterator[Cluster]:
    install(kwok)
    names = kwok.hosts.add(4, prefix="shared", cpu=32, gpus=8)
    yield kwok
    kwok.hosts.remove(names)


@pytest.fixture
def namespace(cluster: Cluster, make_namespace: MakeNamespace) -> str:
    return make_namespace(cluster)


@pytest.fixture
def process(cluster: Cluster, namespace: str, tmp_path: Path) -> Iterator[Process]:
    with operator(cluster, namespace, tmp_path, "--training-image", "localhost/paddle:1") as running:
        yield running


@pytest.fixture
def jobs(cluster: Cluster, namespace: str, process: Process) -> TrainingJobs:
    return TrainingJobs(cluster, namespace)


def objects(jobs: TrainingJobs, kind: str, group: str = "apps") -> dict[str, Object]:
    found = jobs.cluster.api.get(f"/apis/{group}/v1/namespaces/{jobs.namespace}/{kind}")["items"]
    return {each["metadata"]["name"]: each for each in found}


def test_the_seeds_job_becomes_its_objects_and_they_end_with_it(jobs: TrainingJobs) -> None:
    jobs.kubectl("apply", "-f", str(SEED))
    jobs.says("job-1", "Admitted", "False", "TooLittleCpu")  # half a core cannot keep a device busy
    jobs.kubectl("delete", "tj", "job-1", "--timeout=60s")
    seed = yaml.safe_load(SEED.read_text())
    for amounts in seed["spec"]["trainer"]["resources"].values():
        amounts["cpu"] = 2
    jobs.cluster.api.create(jobs.path, seed)
    jobs.roles({"master": 1, "etcd": 1, "pserver": 3, "trainer": 6})
    job = jobs.is_in("job-1", "Running", 6)
    assert {each["role"]: each["running"] for each in job["status"]["replicaStatuses"]} == {
        "master": 1,
        "etcd": 1,
        "pserver": 3,
        "trainer": 6,
    }
    sets, trainers = objects(jobs, "replicasets"), objects(jobs, "jobs", "batch")["job-1-trainer"]
    assert sorted(sets) == ["job-1-master", "job-1-pserver"]
    assert sorted(objects(jobs, "statefulsets")) == ["job-1-etcd"]
    assert "completions" not in trainers["spec"]
    for each in (*sets.values(), trainers):
        assert each["metadata"]["ownerReferences"][0]["uid"] == job["metadata"]["uid"]
    (container,) = trainers["spec"]["template"]["spec"]["containers"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "1"
    assert container["image"] == "localhost/paddle:1"

    for pod in jobs.trainers():
        jobs.ends(pod["metadata"]["name"], 0)
    job = jobs.is_in("job-1", "Succeeded")
    jobs.roles({})
    assert "6 trainers succeeded" in job["status"]["reason"]
    assert len(jobs.trainers()) == 6  # what has ended keeps its logs
    jobs.kubectl("delete", "tj", "job-1", "--timeout=60s")
    jobs.cluster.api.wait(jobs.pods, lambda items: not items, what="nothing is left", timeout=60)


def test_it_grows_and_shrinks_and_the_oldest_stay(jobs: TrainingJobs) -> None:
    jobs.make("x", trainer={"min-instance": 1, "max-instance": 2})
    first = {pod["metadata"]["uid"] for pod in jobs.roles({"trainer": 2})}
    jobs.is_in("x", "Running", 2)
    jobs.kubectl("scale", "tj/x", "--replicas=5")
    jobs.roles({"trainer": 5})
    job = jobs.is_in("x", "Running", 5)
    assert [(each["from"], each["to"]) for each in job["status"]["scaleRecords"]][-1] == (2, 5)
    jobs.kubectl("scale", "tj/x", "--replicas=2")
    left = {pod["metadata"]["uid"] for pod in jobs.roles({"trainer": 2})}
    assert left == first
    job = jobs.is_in("x", "Running", 2)
    batch = objects(jobs, "jobs", "batch")["x-trainer"]
    assert (batch["spec"]["parallelism"], batch["status"].get("failed", 0)) == (2, 0)  # an eviction is no failure
    assert not [each for each in job["status"]["replicaStatuses"] if each.get("failed")]


def test_after_every_shrink_its_pods_come_back_as_promptly_as_they_came_first(jobs: TrainingJobs) -> None:
    """A Job whose Pods count as failed waits longer with each before it makes others: for minutes after a few."""

    def grows() -> float:
        began = time.monotonic()
        jobs.kubectl("scale", "tj/x", "--replicas=5")
        jobs.roles({"trainer": 5})
        return time.monotonic() - began

    jobs.make("x", trainer={"min-instance": 1, "max-instance": 1})
    jobs.is_in("x", "Running", 1)
    first, later = grows(), []
    for _ in range(3):
        jobs.is_in("x", "Running", 5)
        jobs.kubectl("scale", "tj/x", "--replicas=1")
        jobs.is_in("x", "Running", 1)
        later.append(grows())
    assert sorted(later)[1] < 5 * first, f"first {first:.1f} s, then {later}"
    status = objects(jobs, "jobs", "batch")["x-trainer"]["status"]
    assert (status.get("failed", 0), status.get("succeeded", 0)) == (0, 0)


def test_suspended_it_has_nothing_and_comes_back_changed(jobs: TrainingJobs) -> None:
    jobs.make("x", pserver={"min-instance": 1})
    jobs.roles({"trainer": 1, "pserver": 1})
    with pytest.raises(RuntimeError, match="image cannot change while the job runs"):
        jobs.kubectl("patch", "tj/x", "--type=merge", "-p", '{"spec": {"image": "localhost/other:1"}}')
    jobs.change("x", suspend=True)
    jobs.says("x", "Admitted", "False", "Suspended")
    jobs.roles({})
    jobs.change("x", suspend=False, image="localhost/other:1")
    pods = jobs.roles({"trainer": 1, "pserver": 1})
    assert {pod["spec"]["containers"][0]["image"] for pod in pods} == {"localhost/other:1"}
    assert [each["to"] for each in jobs.is_in("x", "Running")["status"]["scaleRecords"]] == [1, 0, 1]


def test_trainers_that_fail_are_replaced_until_it_is_enough(jobs: TrainingJobs) -> None:
    jobs.make("x", trainer={"max-restarts": 1}, fault_tolerant=True)
    (pod,) = jobs.roles({"trainer": 1})
    jobs.ends(pod["metadata"]["name"], 3)
    jobs.until("x", lambda status: any(each.get("failed") == 1 for each in status["replicaStatuses"]), "a failure")
    (again,) = jobs.roles({"trainer": 1})
    assert again["metadata"]["name"] != pod["metadata"]["name"]
    jobs.ends(again["metadata"]["name"], 3)
    job = jobs.is_in("x", "Failed")
    assert "2 trainers failed, 1 are allowed" in job["status"]["reason"]
    jobs.roles({})


def test_an_operator_that_was_killed_changes_nothing(
    cluster: Cluster, jobs: TrainingJobs, process: Process, tmp_path: Path
) -> None:
    jobs.make("x", trainer={"min-instance": 1, "max-instance": 3}, pserver={"min-instance": 1}, master={})
    before = {pod["metadata"]["uid"] for pod in jobs.roles({"master": 1, "etcd": 1, "pserver": 1, "trainer": 3})}
    standing = jobs.is_in("x", "Running", 3)["status"]["scheduling"]
    process.kill()
    (tmp_path / "second").mkdir()
    with operator(cluster, jobs.namespace, tmp_path / "second", "--training-image", "localhost/paddle:1"):
        jobs.kubectl("scale", "tj/x", "--replicas=4")
        after = {pod["metadata"]["uid"] for pod in jobs.roles({"master": 1, "etcd": 1, "pserver": 1, "trainer": 4})}
        now = jobs.is_in("x", "Running", 4)["status"]["scheduling"]
    assert len(before & after) >= len(before) - 1  # its master has to learn the new bounds
    assert float(now["v"]) >= float(standing["v"])


def test_who_names_no_image_is_told_so(cluster: Cluster, namespace: str, tmp_path: Path) -> None:
    with operator(cluster, namespace, tmp_path):
        jobs = TrainingJobs(cluster, namespace)
        job = yaml.safe_load(SEED.read_text())
        cluster.api.create(jobs.path, job)
        jobs.says("job-1", "ImageMissing", "True", "ImageMissing")
        assert jobs.is_in("job-1", "Pending")["status"]["reason"].startswith("no image is named")
        jobs.roles({})
