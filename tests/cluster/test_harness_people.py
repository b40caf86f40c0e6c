"""`make cluster` and `make cluster-down`: a cluster that stays when the command that started it is over."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hack.kube.harness import Cluster, tear_down
from hack.kube.harness.teardown import processes_of
from tests.cluster.operators import is_so, until

ROOT = Path(__file__).parents[2]


def harness(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "hack.kube.harness", f"--folder={folder}", *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


def typed(line: str, kubeconfig: Path) -> str:
    """What a printed line says when it is typed."""
    environment = {**os.environ, "KUBECONFIG": str(kubeconfig), "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"}
    done = subprocess.run(line, shell=True, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, f"{line}: {done.stdout}{done.stderr}"
    return done.stdout


def found(pattern: str, text: str) -> str:
    match = re.search(pattern, text)
    assert match is not None, f"no {pattern} in: {text}"
    return match[1]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("with_node", [True, False], ids=["with-a-node", "without-one"])
def test_a_cluster_for_people_stays_with_shoal_in_it_until_it_is_told_to_go(
    tmp_path: Path, kwok: Cluster, with_node: bool
) -> None:
    if with_node and os.geteuid() != 0:
        pytest.skip("a node that runs Pods wants root")
    manifests = tmp_path / "install.yaml"
    manifests.write_text("{apiVersion: v1, kind: Namespace, metadata: {name: installed}}")
    folder = tmp_path / "cluster"
    try:
        started = harness(folder, "up", "--hosts=2", f"--apply={manifests}", *([] if with_node else ["--no-node"]))
        assert started.returncode == 0, started.stderr
        kubeconfig = Path(found(r"KUBECONFIG=(\S+)", started.stdout))
        seen = kwok.kubectl("get", "nodes,namespaces,crds", "-o=name", kubeconfig=kubeconfig).split()
        assert {"node/host-0", "node/host-1", "namespace/installed", "namespace/shoal-system"} <= set(seen)
        assert "customresourcedefinition.apiextensions.k8s.io/elasticjobs.elastic.iml.github.io" in seen
        where = "runs in Pods of namespace shoal-system" if with_node else "runs as a process of this machine"
        assert where in started.stdout

        submit = found(r"(shoal submit \S+)", started.stdout)
        typed(submit, kubeconfig)
        assert "cnn" in typed("shoal get", kubeconfig)

        def is_looked_after() -> bool:
            job = json.loads(kwok.kubectl("get", "ej/cnn", "-o=json", kubeconfig=kubeconfig))
            return is_so(job, "Ready", "True") if not with_node else bool(job.get("status", {}).get("conditions"))

        until(is_looked_after, "the operator looks after it")

        again = harness(folder, "up")
        assert again.returncode == 1
        assert "runs already" in again.stderr

        assert harness(folder, "down").stdout == "The cluster is down.\n"
        assert processes_of(folder) == []
        assert harness(folder, "down").stdout == f"No cluster runs in {folder}.\n"
    finally:
        tear_down(folder)
