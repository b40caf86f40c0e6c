"""Pods for the real node that run this machine's Python, with everything installed for it: no image has to be built.

Over a small image the machine's own folders are mounted, read-only and at the same paths: libraries, interpreter,
virtual environment, this repository. So a Pod imports PyTorch, and Shoal as it stands in the work tree, within seconds.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from .api import Object
from .images import BUSYBOX

ROOT = Path(__file__).parents[3]


def python_pod(
    name: str,
    arguments: Sequence[str],
    *,
    environment: Mapping[str, str] | None = None,
    resources: Object | None = None,
    restart: str = "Never",
) -> Object:
    """A Pod that runs `python ARGUMENTS` once."""
    container: Object = {
        "name": "main",
        "image": BUSYBOX,
        "command": [sys.executable, *arguments],
        "env": [
            {"name": key, "value": value} for key, value in {**python_environment(), **(environment or {})}.items()
        ],
        "volumeMounts": python_mounts(),
        "resources": resources or {},
    }
    spec: Object = {
        "containers": [container],
        "volumes": python_volumes(),
        "restartPolicy": restart,
        "terminationGracePeriodSeconds": 1,
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": name}}, "spec": spec}


def python_volumes() -> list[Object]:
    """What goes into a Pod's `volumes`."""
    return [{"name": f"host-{number}", "hostPath": {"path": str(path)}} for number, path in enumerate(_folders())]


def python_mounts() -> list[Object]:
    """What goes into a container's `volumeMounts`."""
    folders = enumerate(_folders())
    return [{"name": f"host-{number}", "mountPath": str(path), "readOnly": True} for number, path in folders]


def python_environment() -> dict[str, str]:
    """The one thing a container must have in `env`: where this work tree is, and that nothing can be written there."""
    return {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]), "PYTHONDONTWRITEBYTECODE": "1"}


def _folders() -> list[Path]:
    wanted = [Path("/usr"), Path("/lib"), Path("/lib64"), Path(sys.base_prefix), Path(sys.prefix), ROOT]
    there = [path for path in dict.fromkeys(wanted) if path.is_dir()]
    return [path for path in there if not any(other in path.parents for other in there)]
