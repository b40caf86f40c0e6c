"""Everything together on the real node: real API server, operator, master Pod, agents in Pods, PyTorch on gloo."""

import contextlib
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from hack.image.images import NO_PYTHON, SHOAL
from hack.kube.harness import Cluster
from tests.cluster.operators import operator, running
from tests.cluster.training import PATIENCE, Training

pytestmark = [pytest.mark.torch, pytest.mark.timeout(1800)]

SHARDS = Path(__file__).parents[1] / "data" / "train_shards.py"
SAMPLES = 3000


@pytest.fixture
def flags() -> tuple[str, ...]:
    """What the operator is told besides."""
    return ()


@pytest.fixture
def training(
    shoal_node: Cluster, make_namespace: Callable[[Cluster], str], tmp_path: Path, flags: tuple[str, ...]
) -> Iterator[Training]:
    namespace = make_namespace(shoal_node)
    with operator(shoal_node, namespace, tmp_path, "--image", SHOAL, "--drain", "60", "--silence", "60", *flags):
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


@pytest.mark.parametrize("flags", [("--pod-scaler",)], ids=["pod-scaler"])
def test_a_job_whose_master_makes_its_pods_trains_through_a_loss_and_a_new_size(training: Training) -> None:
    training.apply("x", training.template("--size", "12000", "--pace", "0.4"))
    report = training.trains_with("x", 2)
    assert training.makers() == {"x-worker-0": "shoal-master", "x-worker-1": "shoal-master"}

    survivor, victim = training.pod_of_rank(0), training.pod_of_rank(1)
    processes = training.processes()[survivor]
    training.kubectl("delete", "pod", victim, "--wait=false")
    report = training.trains_with("x", 2, after=report["world"] + 1)
    training.wait_for_pods("x-master-1", survivor, "x-worker-2")

    training.kubectl("scale", "ej/x", "--replicas=3")
    report = training.trains_with("x", 3, after=report["world"])
    assert training.processes()[survivor] == processes  # never restarted
    assert training.makers().keys() >= {survivor, "x-worker-2", "x-worker-3"}
    assert set(training.makers().values()) == {"shoal-master"}

    training.fast()
    assert training.ended("x")["status"] == "True"
    training.cluster.api.wait(
        training.pods, lambda pods: not running(pods), what="no Pod runs any more", timeout=PATIENCE
    )
    training.audit(12000)


@pytest.mark.parametrize("killed", ["its-process", "the-container"])
def test_a_worker_that_takes_more_memory_than_it_has_comes_back_with_more(training: Training, killed: str) -> None:
    """The kernel takes one process, which the agent outlives and reports, or all of the container (as it does where
    control groups are of version 2), which the kubelet reports."""
    words, limits = ["--size", "12000", "--pace", "0.4", "--hungry", "400"], {"memory": "700Mi"}
    if killed == "the-container":
        words[-1:] = ["200", "--takes-all"]  # which takes 340 more
        limits["cpu"] = "900m"
    training.apply("x", training.template(*words, resources={"limits": limits}))
    if killed == "the-container":
        assert training.end_of("x-worker-1") == (137, "OOMKilled")
    pod = training.cluster.api.wait(
        training.pods,
        lambda pods: next(
            (
                pod
                for pod in pods
                if pod["spec"]["containers"][0]["resources"].get("limits", {}).get("memory") == "1408Mi"
            ),
            None,
        ),
        what="a Pod with more memory",
        timeout=PATIENCE,
    )
    assert pod["metadata"]["labels"]["elastic.iml.github.io/rank-hint"] == "1"
    assert "out of memory with 700 MiB, gets 1408 MiB" in training.kubectl("logs", "x-master-1")
    name = pod["metadata"]["name"]
    training.until("x", lambda *_: name in training.processes(), f"{name} trains")
    training.fast()
    assert training.ended("x")["status"] == "True"
    training.audit(12000)


def test_running_members_grow_and_shrink_in_place(training: Training) -> None:
    """By the real kubelet: the same Pods, the same processes, another size."""
    template = training.template("--size", "12000", "--pace", "0.4", resources={"limits": {"memory": "700Mi"}})
    training.apply("x", template)
    world = training.trains_with("x", 2)["world"]
    first, processes = training.uids(), training.processes()

    training.plan("sized", "x", replicaResourceSpecs={"worker": {"resource": {"cpu": "250m", "memory": "900Mi"}}})
    for pod in ("x-worker-0", "x-worker-1"):
        given = training.given(pod, "900Mi")
        assert given == {"requests": {"cpu": "250m", "memory": "900Mi"}, "limits": {"memory": "900Mi"}}
        assert training.memory_limit(pod) == 900 * 2**20
    training.wait_for_plan("sized", "Completed", "True")

    training.resize_plan("sized", memory="900Gi")
    said = training.until_plan_says("sized", "x-worker-0, and 1 more: keeps what it has")
    assert "Infeasible" in said
    training.wait_for_plan("sized", "Completed", "False", "ResizeRefused")

    training.resize_plan("sized", memory="700Mi")
    for pod in ("x-worker-0", "x-worker-1"):
        given = training.given(pod, "700Mi")
        assert given == {"requests": {"cpu": "250m", "memory": "700Mi"}, "limits": {"memory": "700Mi"}}
    training.wait_for_plan("sized", "Completed", "True")

    assert training.trains_with("x", 2)["world"] == world  # nobody left, nobody came
    assert training.uids() == first
    assert training.processes() == processes
    training.fast()
    assert training.ended("x")["status"] == "True"
    training.audit(12000)


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
            # As the kernel does: no last word, no last write.
            signal_master(training.namespace, term, signal.SIGKILL)
    assert training.ended("x")["status"] == "True"
    counts: Counter[str] = Counter()
    for path in training.folder.glob("*/*.log"):
        counts.update(path.read_text().splitlines())
    assert counts == Counter(f"train {epoch} {record}" for epoch in range(2) for record in range(SAMPLES))


@pytest.mark.parametrize("flags", [("--master-frozen", "18")], ids=["soon"])
def test_a_master_that_is_frozen_is_followed_by_the_next_while_training_goes_on(training: Training) -> None:
    """Its process is there, and so is its port; nobody answers."""
    training.apply("x", training.template("--size", "12000", "--pace", "0.2"), replicas=2)
    report = training.trains_with("x", 2)
    before = training.processes()
    signal_master(training.namespace, 1, signal.SIGSTOP)
    assert training.end_of("x-master-1")[0] == 137
    later = training.until("x", lambda said, _: said.get("term", 0) > 1 and "step" in said, "another one hears of it")
    training.gains("x", later["step"])
    assert later["term"] == 2
    assert (later["world"], training.processes()) == (report["world"], before)
    training.fast()
    assert training.ended("x")["status"] == "True"
    training.audit(12000)


def signal_master(namespace: str, term: int, number: signal.Signals) -> None:
    wanted = {"SHOAL_NAMESPACE": namespace, "SHOAL_TERM": str(term)}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if wanted.items() <= process.environ().items():
                process.send_signal(number)
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
