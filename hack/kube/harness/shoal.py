"""Shoal in a cluster for people: its image, its operator, and a job to try it with.

On a cluster with a real node everything runs as it would anywhere: `deploy/install.yaml` with the image made from this
work tree. Without one (nobody is root) no Pod runs, so only the definitions are installed.
"""

import json
import sys
from pathlib import Path

from .api import Object
from .cluster import Cluster
from .images import BUSYBOX
from .pods import ROOT, python_environment, python_mounts, python_volumes

CRDS = ROOT / "deploy" / "chart" / "templates" / "crds"
INSTALL = ROOT / "deploy" / "install.yaml"
NAMESPACE = "shoal-system"


def install(cluster: Cluster, folder: Path, *, has_node: bool) -> Path | None:
    """Install Shoal; the file of a job that can be submitted, where Pods run."""
    if not has_node:
        for file in sorted(CRDS.glob("*.yaml")):
            cluster.kubectl("apply", "--server-side", "-f", str(file))
        return None
    from hack.image.images import SHOAL, shoal_image

    cluster.node.load(shoal_image(folder / "bundle"))
    manifests = INSTALL.read_text(encoding="utf-8")
    shipped = next(line.split("image:", 1)[1].strip() for line in manifests.splitlines() if " image: " in line)
    cluster.kubectl("apply", "--server-side", "-f", "-", stdin=manifests.replace(shipped, SHOAL))
    cluster.kubectl("-n", NAMESPACE, "rollout", "status", "deployment", "--timeout", "180s")
    job = folder / "job.yaml"
    job.write_text(json.dumps(a_job(), indent=2), encoding="utf-8")
    return job


def a_job() -> Object:
    """The example that trains a small CNN: this machine's Python and PyTorch over an image that has neither."""
    container = {
        "name": "main",
        "image": BUSYBOX,
        "command": [sys.executable, "-u", str(ROOT / "examples" / "cnn.py"), "--steps", "5000"],
        "env": [{"name": name, "value": value} for name, value in python_environment().items()],
        "volumeMounts": python_mounts(),
    }
    template = {"spec": {"containers": [container], "volumes": python_volumes()}}
    return {
        "apiVersion": "elastic.iml.github.io/v1alpha1",
        "kind": "ElasticJob",
        "metadata": {"name": "cnn"},
        "spec": {"distributionStrategy": "ring-allreduce", "worker": {"template": template}},
    }
