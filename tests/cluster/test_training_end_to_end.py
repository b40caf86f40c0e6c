"""A TrainingJob on the real node: parser, scheduler, Kubernetes' own controllers, etcd, master, agents, PyTorch."""

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hack.image.images import ETCD, SHOAL, etcd_image
from hack.kube.harness import Cluster
from hack.kube.harness.images import BUSYBOX
from hack.kube.harness.pods import python_environment, python_mounts, python_volumes
from tests.cluster.operators import operator
from tests.cluster.training import PATIENCE, SCRIPT, Training
from tests.cluster.training_jobs import TrainingJobs

pytestmark = [pytest.mark.torch, pytest.mark.timeout(1800)]
SAMPLES = 30_000
TRAIN_PS = Path(__file__).parents[1] / "master" / "train_ps.py"
"""It ends when there is a file `finish` beside its checkpoints."""


@pytest.fixture(scope="module")
def node(shoal_node: Cluster) -> Cluster:
    shoal_node.node.load(etcd_image())
    return shoal_node


@pytest.fixture
def namespace(node: Cluster, make_namespace: Callable[[Cluster], str]) -> str:
    return make_namespace(node)


@pytest.fixture
def training(node: Cluster, namespace: str, tmp_path: Path) -> Iterator[Training]:
    with operator(node, namespace, tmp_path, "--image", SHOAL, "--etcd-image", ETCD):
        yield Training(node, namespace, tmp_path / "log")


def test_a_training_job_grows_and_shrinks_while_it_trains_and_completes(training: Training) -> None:
    jobs = TrainingJobs(training.cluster, training.namespace, patience=PATIENCE)
    small = {"requests": {"cpu": "50m", "memory": "64Mi"}}
    jobs.make(
        "x",
        image=BUSYBOX,
        trainer={
            "entrypoint": f"{sys.executable} {SCRIPT} --log /log --size {SAMPLES} --pace 0.1",
            "workspace": "/log",
            "resources": small,
            "grace_period_seconds": 5,
        },
        pserver={"entrypoint": "sleep 100000", "resources": small, "grace_period_seconds": 1},
        master={"resources": small},
        envs=python_environment(),
        volumes=[*python_volumes(), {"name": "log", "hostPath": {"path": str(training.folder)}}],
        VolumeMounts=[*python_mounts(), {"name": "log", "mountPath": "/log"}],
    )
    jobs.roles({"master": 1, "etcd": 1, "pserver": 1, "trainer": 1})
    jobs.is_in("x", "Running", 1)
    until(lambda: sizes(training) >= {1}, "it trains alone")
    (first,) = training.processes()

    jobs.kubectl("scale", "tj/x", "--replicas=2")
    jobs.roles({"master": 1, "etcd": 1, "pserver": 1, "trainer": 2})
    job = jobs.is_in("x", "Running", 2)
    assert [(each["from"], each["to"]) for each in job["status"]["scaleRecords"]] == [(0, 1), (1, 2)]
    until(lambda: sizes(training) == {1, 2}, "two train together")
    assert len(training.processes()[first]) == 1  # the same process goes on

    jobs.kubectl("scale", "tj/x", "--replicas=1")
    jobs.roles({"master": 1, "etcd": 1, "pserver": 1, "trainer": 1})
    until(lambda: last_size(training) == 1, "one goes on alone")
    assert len(training.processes()[first]) == 1

    training.fast()
    job = jobs.is_in("x", "Succeeded")
    assert "1 trainer succeeded" in job["status"]["reason"]  # who was evicted has neither succeeded nor failed
    assert not [each for each in job["status"]["replicaStatuses"] if each.get("failed")]
    jobs.roles({})
    training.audit(SAMPLES)


def test_parameter_servers_come_and_go_while_a_training_job_trains(training: Training) -> None:
    """With a script that has no TensorFlow in it: it says and does what one would have to."""
    jobs = TrainingJobs(training.cluster, training.namespace, patience=PATIENCE)
    kept = training.folder / "kept"
    kept.mkdir(mode=0o777)
    make_with_servers(jobs, training, "y", checkpoint={"path": "/log/kept"}, envs=python_environment())
    jobs.roles({"master": 1, "etcd": 1, "pserver": 1, "trainer": 1})
    until(lambda: "version 1: 1 parameter server " in master_log(jobs, "y"), "one server holds the model")

    jobs.change("y", pserver={"max-instance": 2})
    jobs.roles({"master": 1, "etcd": 1, "pserver": 2, "trainer": 1})
    until(lambda: "version 2: 2 parameter servers " in master_log(jobs, "y"), "two servers do")

    jobs.change("y", pserver={"max-instance": 1})
    until(lambda: "version 3: 1 parameter server " in master_log(jobs, "y"), "one has taken over")
    jobs.roles({"master": 1, "etcd": 1, "pserver": 1, "trainer": 1})
    until(lambda: "it was drained" in master_log(jobs, "y"), "the other was let go")
    job = jobs.is_in("y", "Running", 1)
    records = [(each["from"], each["to"]) for each in job["status"]["scaleRecords"] if each.get("role") == "pserver"]
    assert records == [(1, 2), (2, 1)]

    (kept / "finish").touch()
    jobs.is_in("y", "Succeeded")
    jobs.roles({})


def make_with_servers(jobs: TrainingJobs, training: Training, name: str, **more: Any) -> None:
    small = {"requests": {"cpu": "50m", "memory": "64Mi"}}
    jobs.make(
        name,
        image=BUSYBOX,
        trainer={"entrypoint": f"{sys.executable} {TRAIN_PS}", "resources": small, "grace_period_seconds": 5},
        pserver={"min-instance": 1, "max-instance": 1, "resources": small},
        master={"resources": small},
        volumes=[*python_volumes(), {"name": "log", "hostPath": {"path": str(training.folder)}}],
        VolumeMounts=[*python_mounts(), {"name": "log", "mountPath": "/log"}],
        **more,
    )


def master_log(jobs: TrainingJobs, name: str) -> str:
    return jobs.kubectl("logs", f"--selector=paddle-job-master={name}", "--tail=-1")


def sizes(training: Training) -> set[int]:
    """How many trained together, in all steps so far."""
    return {line.size for _, line in training.lines()}


def last_size(training: Training) -> int:
    return max((line.step, line.size) for _, line in training.lines())[1]


def until(so: Callable[[], bool], what: str) -> None:
    """Until Pods have written down that it is so."""
    deadline = time.monotonic() + PATIENCE
    while not so():
        assert time.monotonic() < deadline, f"not within {PATIENCE:g} s: {what}"
        time.sleep(0.2)
