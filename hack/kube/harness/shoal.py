"""Shoal in a cluster for people: its image, its operator, and a job to try it with.

On a cluster with a real node everything runs as it would anywhere: `deploy/install.yaml` with the image made from this
work tree. Without one (nobody is root) no Pod runs: the definitions are installed, and the operator runs beside the
cluster as one more of its processes. Its jobs are sized, queued and granted; their Pods do nothing.
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
OPERATOR = "shoal-operator"


def install(cluster: Cluster, folder: Path, *, has_node: bool) -> Path:
    """Install Shoal; returns the file of a job that can be submitted."""
    if has_node:
        from hack.image.images import shoal_image

        cluster.node.load(shoal_image(folder / "bundle"))
        deploy(cluster)
    else:
        run_beside(cluster)
    job = folder / "job.yaml"
    job.write_text(json.dumps(a_job() if has_node else a_pretended_job(), indent=2), encoding="utf-8")
    return job


def run_beside(cluster: Cluster) -> None:
    """Install the definitions, start the operator as a process, and wait until it leads."""
    for file in sorted(CRDS.glob("*.yaml")):
        cluster.kubectl("apply", "--server-side", "-f", str(file))
    cluster.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=60s")
    cluster.kubectl("create", "namespace", NAMESPACE)
    words = [sys.executable, "-m", "shoal", "operator", "--kubeconfig", cluster.kubeconfig, "--home", NAMESPACE]
    words += ["--listen", "127.0.0.1:0", "--image", BUSYBOX]
    cluster.processes.start(OPERATOR, words, {"PYTHONPATH": str(ROOT / "src")})
    leases = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"
    cluster.api.wait(leases, lambda items: items, what="the operator leads", timeout=180)


def deploy(cluster: Cluster) -> None:
    """Apply `install.yaml` with the image made from this work tree, which the node has, and wait until it runs."""
    from hack.image.images import SHOAL

    manifests = INSTALL.read_text(encoding="utf-8")
    shipped = next(line.split("image:", 1)[1].strip() for line in manifests.splitlines() if " image: " in line)
    cluster.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=manifests.replace(shipped, SHOAL))
    cluster.kubectl("-n", NAMESPACE, "rollout", "status", "deployment", "--timeout", "300s")


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


def a_pretended_job() -> Object:
    """For hosts that run nothing: somebody has to say its size, since no master will."""
    template = {"spec": {"containers": [{"name": "main", "image": BUSYBOX, "command": ["train"]}]}}
    return {
        "apiVersion": "elastic.iml.github.io/v1alpha1",
        "kind": "ElasticJob",
        "metadata": {"name": "cnn"},
        "spec": {"optimizeMode": "manual", "worker": {"replicas": 2, "max": 8, "template": template}},
    }
