"""Which cluster, as kubectl finds it: `--kubeconfig`, `KUBECONFIG`, `~/.kube/config`, else the Pod we are in."""

import os
from collections.abc import Mapping
from pathlib import Path

from shoal.core.errors import BadInput
from shoal.platforms.kubernetes import config
from shoal.platforms.kubernetes.access import Access


def kubeconfigs(environment: Mapping[str, str]) -> list[Path]:
    said = environment.get("KUBECONFIG")
    if said:
        return [Path(part) for part in said.split(os.pathsep) if part]
    return [Path(environment.get("HOME", "/")) / ".kube" / "config"]


def access_from(environment: Mapping[str, str], *, kubeconfig: str | None, context: str | None) -> Access:
    """Raises `BadInput` with where a kubeconfig was looked for."""
    if kubeconfig is not None:
        return config.load([Path(kubeconfig)], context, environment=environment)
    paths = kubeconfigs(environment)
    if not any(path.exists() for path in paths) and environment.get("KUBERNETES_SERVICE_HOST"):
        if context is not None:
            raise BadInput("--context: there is no kubeconfig here, only the service account of this Pod")
        return config.in_cluster(environment=environment)
    return config.load(paths, context, environment=environment)
