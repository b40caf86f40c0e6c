"""`shoal submit`, `get`, `describe`, `why`, `scale`, `suspend`, `stop`: as people type them, on a real API server.

Most of it is what people see when something is not as it should be: a message that says what, and what to do.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from hack.kube.harness import Cluster
from tests.cluster.conftest import running
from tests.cluster.operators import ROOT, Jobs, Process, install, operator, until
from tools.install_yaml import INSTALL

MakeNamespace = Callable[[Cluster], str]
JOB = """
apiVersion: elastic.iml.github.io/v1alpha1
kind: ElasticJob
metadata: {name: mnist}
spec:
  worker:
    max: 4
    template:
      spec:
        containers: [{name: main, image: "localhost/anything:1", command: [python, train.py]}]
        tolerations: [{operator: Exists}]
---
apiVersion: elastic.iml.github.io/v1alpha1
kind: ScalePlan
metadata: {name: two, labels: {scale-type: manual}}
spec: {ownerJob: mnist, replicaResourceSpecs: {worker: {replicas: 2}}}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    code: int
    out: str
    err: str


class Person:
    """Somebody at a terminal, with a kubeconfig."""

    def __init__(self, kubeconfig: Path, namespace: str, home: Path) -> None:
        self._namespace = namespace
        self._environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            "KUBECONFIG": str(kubeconfig),
            "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT))),
        }

    def shoal(self, verb: str, *words: str, stdin: str = "") -> Said:
        command = [sys.executable, "-m", "shoal", verb, f"--namespace={self._namespace}", *words]
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, env=self._environment, timeout=120)
        assert "Traceback" not in done.stderr, done.stderr
        return Said(code=done.returncode, out=done.stdout, err=done.stderr)

    def ok(self, verb: str, *words: str, stdin: str = "") -> str:
        said = self.shoal(verb, *words, stdin=stdin)
        assert said.code == 0, said.err
        return said.out

    def refused(self, verb: str, *words: str, stdin: str = "") -> str:
        said = self.shoal(verb, *words, stdin=stdin)
        assert said.code in (1, 2), said
        return said.err


def bind(cluster: Cluster, namespace: str, user: str, role: str) -> None:
    cluster.kubectl(
        "create", "rolebinding", f"{user}-{role}", f"--clusterrole={role}", f"--user={user}", "-n", namespace
    )


# A job's life, by somebody who may edit ------------------------------------------------------------------------------


@pytest.fixture
def story(kwok: Cluster, make_namespace: MakeNamespace, tmp_path: Path) -> Iterator[Jobs]:
    install(kwok)
    roles = [each for each in yaml.safe_load_all(INSTALL.read_text()) if each and each["kind"] == "ClusterRole"]
    everybodys = json.dumps({"apiVersion": "v1", "kind": "List", "items": roles})
    kwok.kubectl("apply", "--server-side", "-f", "-", stdin=everybodys)
    names = kwok.hosts.add(1, prefix="people")
    namespace = make_namespace(kwok)
    bind(kwok, namespace, "jane", "edit")
    bind(kwok, namespace, "vera", "view")
    with operator(kwok, namespace, tmp_path):
        yield Jobs(kwok, namespace)
    kwok.hosts.remove(names)


def test_a_jobs_life_by_somebody_with_the_clusters_edit_role(story: Jobs, tmp_path: Path) -> None:
    jane = Person(story.cluster.user("jane"), story.namespace, tmp_path)
    vera = Person(story.cluster.user("vera"), story.namespace, tmp_path)
    file = tmp_path / "job.yaml"
    file.write_text(JOB)

    assert jane.ok("get") == f"no jobs in namespace {story.namespace}\n"
    assert "created (dry run)" in jane.ok("submit", "--dry-run", str(file))
    made = jane.ok("submit", str(file))
    assert made == f"ElasticJob {story.namespace}/mnist created\nScalePlan {story.namespace}/two created\n"
    assert "configured" in jane.ok("submit", "-", stdin=JOB)
    story.settled("mnist", "mnist-master-1", "mnist-worker-0", "mnist-worker-1")

    titles, row = vera.ok("get").splitlines()
    assert dict(zip(titles.split(), row.split(), strict=False))["WORKERS"] == "2"
    assert vera.ok("get", "mnist", "-o", "yaml") == vera.ok("describe", "mnist", "-o", "yaml")
    assert json.loads(vera.ok("get", "-o", "json"))["items"][0]["metadata"]["name"] == "mnist"
    shown = vera.ok("describe", "mnist")
    assert "mnist-worker-1" in shown
    assert "two" in shown
    assert "2" in vera.ok("why", "mnist")
    lacks = vera.refused("scale", "mnist", "worker=3")
    assert "vera lacks the permission to " in lacks
    assert "elasticjobs/scale of elastic.iml.github.io" in lacks

    jane.ok("scale", "mnist", "worker=3")
    story.settled("mnist", "mnist-master-1", *(f"mnist-worker-{number}" for number in range(3)))
    assert "suspended" in jane.ok("suspend", "mnist")
    story.wait_for("mnist", "Ready", "False", "Suspended")
    story.wait_for_pods()
    assert "suspended already" in jane.ok("suspend", "mnist")
    assert "resumed" in jane.ok("resume", "mnist")
    story.wait_for("mnist", "Ready", "True")
    assert "deleted" in jane.ok("stop", "mnist")
    story.wait(story.jobs, lambda items: not items, "the job is gone")
    assert f"no job named mnist in namespace {story.namespace}" in jane.refused("why", "mnist")


def test_kubectl_finds_it_as_a_plugin(control_plane: Cluster, make_namespace: MakeNamespace, tmp_path: Path) -> None:
    install(control_plane)
    plugin = tmp_path / "kubectl-shoal"
    plugin.write_text(f'#!/bin/sh\nexec {sys.executable} -m shoal "$@"\n')
    plugin.chmod(0o755)
    done = subprocess.run(
        [control_plane.programs / "kubectl", "shoal", "get", "--all-namespaces", "--platform=kubernetes"],
        capture_output=True,
        text=True,
        env={
            "PATH": f"{tmp_path}:{os.environ['PATH']}",
            "HOME": str(tmp_path),
            "KUBECONFIG": str(control_plane.kubeconfig),
            "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT))),
        },
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout


# What is not as it should be -----------------------------------------------------------------------------------------


@pytest.fixture
def namespace(control_plane: Cluster, make_namespace: MakeNamespace) -> str:
    install(control_plane)
    return make_namespace(control_plane)


def test_a_missing_permission_is_named(control_plane: Cluster, namespace: str, tmp_path: Path) -> None:
    nobody = Person(control_plane.user("nobody"), namespace, tmp_path)
    where = f"elasticjobs of elastic.iml.github.io in namespace {namespace}"
    assert f"nobody lacks the permission to list {where}" in nobody.refused("get")
    assert f"nobody lacks the permission to get {where}" in nobody.refused("why", "mnist")
    assert "nobody lacks the permission to " in nobody.refused("submit", "-", stdin=JOB)


def test_credentials_that_the_server_no_longer_takes(control_plane: Cluster, namespace: str, tmp_path: Path) -> None:
    gone = Person(control_plane.service_account(namespace, "gone"), namespace, tmp_path)
    control_plane.api.delete(f"/api/v1/namespaces/{namespace}/serviceaccounts/gone")
    assert "does not accept our credentials: they may have expired" in gone.refused("get")


def test_a_namespace_that_is_not_there(control_plane: Cluster, namespace: str, tmp_path: Path) -> None:
    admin = Person(control_plane.kubeconfig, "nowhere", tmp_path)
    assert 'namespaces "nowhere" not found' in admin.refused("submit", "-", stdin=JOB)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        pytest.param("{", "not YAML", id="no yaml"),
        pytest.param("a: " + "[" * 5000, "not YAML", id="deep"),
        pytest.param("a: &a [x, x]\n" + "b: " + "[*a, " * 60 + "]" * 60, "kind is one of", id="aliases"),
        pytest.param("x" * (2 << 20), "bytes", id="huge"),
        pytest.param("kind: Pod\nmetadata: {name: x}", "kind is one of ElasticJob", id="another kind"),
        pytest.param(JOB.replace("name: mnist", "name: млист"), "metadata.name", id="unicode name"),
        pytest.param(JOB.replace("max: 4", "max: -4"), "spec.worker.max", id="negative"),
        pytest.param(JOB.replace("max: 4", "max: 4, min: 9"), "min", id="min above max"),
        pytest.param(JOB.replace("command: [python, train.py]", "env: []"), "command", id="no command"),
    ],
)
def test_input_that_cannot_be_is_refused_with_what_is_wrong(
    control_plane: Cluster, tmp_path: Path, text: str, says: str
) -> None:
    install(control_plane)
    said = Person(control_plane.kubeconfig, "default", tmp_path).refused("submit", "-", stdin=text)
    assert says in said
    assert len(said) < 4000
    assert control_plane.api.get(Jobs(control_plane, "default").jobs)["items"] == []


# A cluster without Shoal, and one that is gone -----------------------------------------------------------------------


@pytest.fixture
def bare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    yield from running("control plane", lambda: Cluster(tmp_path_factory.mktemp("bare")))


def test_an_operator_says_which_definitions_are_missing_and_outlives_their_loss(bare: Cluster, tmp_path: Path) -> None:
    process = Process(bare.kubeconfig, "default", tmp_path / "operator-0.log")
    assert process.wait() == 2
    assert "install Shoal's definitions" in process.log.read_text()
    install(bare)
    jobs = Jobs(bare, "default")
    with operator(bare, "default", tmp_path) as process:
        jobs.make("before", worker={"replicas": 1})
        jobs.wait_for("before", "Admitted", "False")  # there are no hosts
        bare.kubectl("delete", "crd", "scaleplans.elastic.iml.github.io", "--timeout=60s")
        until(lambda: "scaleplans" in process.log.read_text(), "the operator says what it cannot list")
        assert process.is_alive()
        install(bare)
        jobs.make("after", worker={"replicas": 1})
        jobs.plan("two", "after", replicaResourceSpecs={"worker": {"replicas": 2}})
        jobs.wait_for_plan("two", "Accepted", "True")


def test_missing_definitions_and_an_api_server_that_is_gone(bare: Cluster, tmp_path: Path) -> None:
    admin = Person(bare.kubeconfig, "default", tmp_path)
    for words in (("get",), ("describe", "mnist"), ("submit", "-")):
        said = admin.refused(*words, stdin=JOB)
        assert "does not serve elasticjobs.elastic.iml.github.io" in said
        assert "is Shoal installed in this cluster? (docs/install.md)" in said
    bare.processes.kill("kube-apiserver")
    said = admin.refused("get")
    assert bare.server.removeprefix("https://") in said
    bare.processes.restart("kube-apiserver")
    bare.wait_until_ready()
