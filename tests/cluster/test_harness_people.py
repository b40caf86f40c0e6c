"""`make cluster` and `make cluster-down`: a cluster that stays when the command that started it is over."""

import re
import subprocess
import sys
from pathlib import Path

from hack.kube.harness import Cluster, tear_down
from hack.kube.harness.teardown import processes_of

ROOT = Path(__file__).parents[2]


def harness(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "hack.kube.harness", f"--folder={folder}", *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


def test_a_cluster_for_people_stays_until_it_is_told_to_go(tmp_path: Path, kwok: Cluster) -> None:
    manifests = tmp_path / "install.yaml"
    manifests.write_text("{apiVersion: v1, kind: Namespace, metadata: {name: installed}}")
    folder = tmp_path / "cluster"
    try:
        started = harness(folder, "up", "--hosts=2", f"--apply={manifests}")
        assert started.returncode == 0, started.stderr
        told = re.search(r"KUBECONFIG=(\S+)", started.stdout)
        assert told is not None
        seen = kwok.kubectl("get", "nodes,namespaces", "-o=name", kubeconfig=Path(told[1])).split()
        assert {"node/host-0", "node/host-1", "namespace/installed"} <= set(seen)

        again = harness(folder, "up")
        assert again.returncode == 1
        assert "runs already" in again.stderr

        assert harness(folder, "down").stdout == "The cluster is down.\n"
        assert processes_of(folder) == []
        assert harness(folder, "down").stdout == f"No cluster runs in {folder}.\n"
    finally:
        tear_down(folder)
