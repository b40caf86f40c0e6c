"""Shoal as people have it: `install.yaml` on a cluster whose Pods run. The operator is a Deployment of two, as its own
service account and under the restricted policy; jobs are submitted, watched and changed with `shoal` alone.
"""

import json
import re
import shlex
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hack.image.images import NO_PYTHON
from hack.kube.harness import Cluster
from hack.kube.harness import shoal as installing
from tests.cluster.operators import Jobs, running
from tests.cluster.test_people import Person
from tests.cluster.training import PATIENCE, Training

pytestmark = [pytest.mark.torch, pytest.mark.timeout(1800)]

OUTAGE = 60.0
"""Seconds that the API server is away: longer than leases last."""


@pytest.fixture(scope="module")
def installed(shoal_node: Cluster) -> Iterator[Cluster]:
    installing.deploy(shoal_node)
    yield shoal_node
    # Whoever comes next on this cluster has an operator of its own.
    shoal_node.kubectl("-n", installing.NAMESPACE, "delete", "deployment", "--all", "--timeout=60s")
    operators = f"/api/v1/namespaces/{installing.NAMESPACE}/pods"
    shoal_node.api.wait(operators, lambda pods: not pods, what="no operator is left", timeout=PATIENCE)


@pytest.fixture
def training(installed: Cluster, make_namespace: Callable[[Cluster], str], tmp_path: Path) -> Training:
    return Training(installed, make_namespace(installed), tmp_path / "log")


def test_an_installed_operator_runs_a_job_through_an_outage_of_the_api_server(
    training: Training, tmp_path: Path
) -> None:
    person = Person(training.cluster.kubeconfig, training.namespace, tmp_path)
    template = training.template("--size", "60000", "--pace", "0.2")
    command = shlex.join(template["spec"]["containers"][0]["command"])
    template["spec"]["containers"][0]["command"] = ["/bin/sh", "-c", f"echo $SHOAL_NODE is here; exec {command}"]
    training.apply("x", template)
    training.trains_with("x", 2)
    pods = training.cluster.api.get(f"/api/v1/namespaces/{installing.NAMESPACE}/pods")["items"]
    assert len(running(pods)) == 2
    processes = training.processes()
    said = [set(re.findall(r"\S+(?= is here)", person.ok("logs", "x", "--rank", rank))) for rank in ("0", "1")]
    assert sorted(said, key=min) == [{"worker-0"}, {"worker-1"}]
    told = json.loads(person.ok("why", "x", "-o", "json"))
    assert any("worker" in line for line in told), told

    before = last_step(training)
    training.cluster.processes.kill("kube-apiserver")
    try:
        time.sleep(OUTAGE)  # what is tested is that it lasts
        assert last_step(training) > before + 5, "training does not wait for the API server"
    finally:
        training.cluster.processes.restart("kube-apiserver")
        training.cluster.wait_until_ready()
    assert training.processes() == processes
    report = training.gains("x", last_step(training))
    assert training.processes() == processes, "nobody was started again for an outage"
    assert report["term"] == 1

    person.ok("scale", "x", "worker=3")
    training.trains_with("x", 3, after=report["world"])
    assert {pod: training.processes()[pod] for pod in processes} == processes
    training.fast()
    assert training.ended("x")["status"] == "True"
    training.audit(60000)


def last_step(training: Training) -> int:
    """As the processes wrote it down: nobody else can be asked."""
    return max(line.step for _, line in training.lines())


def test_an_image_that_does_not_exist_is_named_and_mended_as_the_condition_says(training: Training) -> None:
    jobs = Jobs(training.cluster, training.namespace)
    script = {"name": "main", "command": ["/bin/sh", "-c", "echo hello"], "imagePullPolicy": "Never"}
    training.apply("x", {"spec": {"containers": [{**script, "image": "localhost/nowhere:1"}]}}, replicas=1)
    job = jobs.wait_for("x", "Degraded", "True", "ImagePullFailed")
    said = next(each for each in job["status"]["conditions"] if each["type"] == "Degraded")["message"]
    assert "localhost/nowhere:1" in said
    training.kubectl("patch", "ej", "x", "--type=merge", "-p", json.dumps({"spec": {"suspend": True}}))
    jobs.wait_for("x", "Ready", "False", "Suspended")
    jobs.wait_for_pods()
    whole = {"spec": {"containers": [{**script, "image": NO_PYTHON}]}}
    training.kubectl("patch", "ej", "x", "--type=merge", "-p", json.dumps({"spec": {"worker": {"template": whole}}}))
    training.kubectl("patch", "ej", "x", "--type=merge", "-p", json.dumps({"spec": {"suspend": False}}))
    ended = training.ended("x")
    assert ended["status"] == "True", ended["message"]
