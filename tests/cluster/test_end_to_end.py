"""Everything together on the real node: real API server, operator, master Pod, agents in Pods, PyTorch on gloo."""

import contextlib
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from hack.image.images import NO_PYTHON, SHOAL, no_python_image, shoal_image
from hack.kube.harness import Cluster
from tests.cluster.operators import install, operator, running
from tests.cluster.training import PATIENCE, Training

pytestmark = [pytest.mark.torch, pytest.mark.timeout(1800)]

SHARDS = Path(__file__).parents[1] / "data" / "train_shards.py"
SAMPLES = 3000


@pytest.fixture(scope="module")
def shoal_node(real_node: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    """The real node, with our images and definitions."""
    install(real_node)
    real_node.node.load(shoal_image(tmp_path_factory.mktemp("bundle") / "shoal"))
    real_node.node.load(no_python_image())
    return real_node


@pytest.fixture
def training(shoal_node: Cluster, make_namespace: Callable[[Cluster], str], tmp_path: Path) -> Iterator[Training]:
    namespace = make_namespace(shoal_node)
    with operator(shoal_node, namespace, tmp_path, "--image", SHOAL, "--drain", "60", "--silence", "60"):
        yield Training(shoal_node, namespace, tmp_path / "log")


def test_a_job_that_says_nothing_of_sizes_trains_through_everything(training: Training) -> None:
    training.apply("x", training.template("--size", "60000", "--pace", "0.1"))
    report = training.trains_with("x", 2)
    first = training.processes()
    assert sorted(first) == ["x-worker-0", "x-worker-1"]

    training.kubectl("scale", "ej/x", "--replicas=3")
    report = training.trains_with("x", 3, after=report["world"])
    assert {pod: training.processes()[pod] for pod in first} == first  # the same processes go on

    training.plan("smaller", "x", replicaResourceSpecs={"worker": {"replicas": 2}})
    report = training.trains_with("x", 2, after=report["world"])
    now = training.processes()
    assert all(now[pod] == processes for pod, processes in first.items())
    training.wait_for_pods("x-master-1", "x-worker-0", "x-worker-1")

    survivor, victim = training.pod_of_rank(0), training.pod_of_rank(1)
    training.kubectl("delete", "pod", victim, "--wait=false")
    report = training.trains_with("x", 2, after=report["world"] + 1)
    assert training.processes()[survivor] == first[survivor]

    second = training.pod_of_rank(1)
    training.kubectl("delete", "pod", survivor, "--wait=false")
    report = training.trains_with("x", 2, after=report["world"] + 1)
    assert training.pod_of_rank(0) == second  # the oldest that is left

    before = training.processes()
    training.kubectl("delete", "pod", "x-master-1", "--wait=false")
    report = training.until("x", lambda said, _: said.get("term", 0) > 1, "another master")
    report = training.gains("x", report["step"])
    assert report["world"] == training.trains_with("x", 2)["world"]
    assert training.processes() == before

    training.fast()
    assert training.ended("x")["status"] == "True"
    training.cluster.api.wait(
        training.pods, lambda pods: not running(pods), what="no Pod runs any more", timeout=PATIENCE
    )
    training.audit(60000)


def test_a_worker_that_takes_more_memory_than_it_has_comes_back_with_more(training: Training) -> None:
    limits = {"limits": {"memory": "700Mi"}}
    training.apply("x", training.template("--size", "24000", "--hungry", "400", resources=limits))
    pod = training.cluster.api.wait(
        training.pods,
        lambda pods: next(
            (
                pod
                for pod in pods
                if pod["spec"]["containers"][0]["resources"].get("limits", {}).get("memory") == "1050Mi"
            ),
            None,
        ),
        what="a Pod with more memory",
        timeout=PATIENCE,
    )
    assert pod["metadata"]["labels"]["elastic.iml.github.io/rank-hint"] == "1"
    assert "out of memory with 700 MiB, gets 1050 MiB" in training.kubectl("logs", "x-master-1")
    training.trains_with("x", 2, after=1)
    training.fast()
    assert training.ended("x")["status"] == "True"
    training.audit(24000)


def test_masters_that_are_killed_cost_no_sample_and_none_is_trained_twice(training: Training) -> None:
    """Workers on their own, with leased shards; the state is written every 10 s, and masters die in between."""
    template = training.template()
    words = f"--log /log/$HOSTNAME --size {SAMPLES} --shard 10 --epochs 2 --seconds 0.01"
    script = f"mkdir -p /log/$HOSTNAME && exec {sys.executable} {SHARDS} {words}"
    template["spec"]["containers"][0]["command"] = ["/bin/sh", "-c", script]
    training.apply("x", template, replicas=2)
    for term in (1, 2, 3):
        # In the middle of work that no record tells of yet.
        seen = training.counts("x", term=term)
        training.counts("x", term=term, beyond=seen + 200)
        if term < 3:
            kill_master(training.namespace, term)
    assert training.ended("x")["status"] == "True"
    counts: Counter[str] = Counter()
    for path in training.folder.glob("*/*.log"):
        counts.update(path.read_text().splitlines())
    assert counts == Counter(f"train {epoch} {record}" for epoch in range(2) for record in range(SAMPLES))


def kill_master(namespace: str, term: int) -> None:
    """SIGKILL, as the kernel does: no last word, no last write."""
    wanted = {"SHOAL_NAMESPACE": namespace, "SHOAL_TERM": str(term)}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if wanted.items() <= process.environ().items():
                process.kill()
                return
    raise AssertionError(f"no master of term {term} runs in {namespace}")


def test_an_image_without_python_runs_under_the_agent(training: Training) -> None:
    command = ["/bin/sh", "-c", "! command -v python3 && echo rank $RANK of $WORLD_SIZE says hello"]
    container = {"name": "main", "image": NO_PYTHON, "command": command}
    training.apply("plain", {"spec": {"containers": [container]}}, replicas=2)
    assert training.ended("plain")["status"] == "True"
    said = training.kubectl("logs", "plain-worker-0") + training.kubectl("logs", "plain-worker-1")
    assert "rank 0 of 2 says hello" in said
    assert "rank 1 of 2 says hello" in said
