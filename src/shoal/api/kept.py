"""Whether what a job saves outlives its Pods: which volume of a template its checkpoint path is on."""

import posixpath
from collections.abc import Mapping
from typing import Any

from shoal.api.elasticjob import Role, Strategy
from shoal.api.fields import Template
from shoal.api.jobspec import JobSpec

_SAVERS = (Role.PS, Role.WORKER, Role.CHIEF)
"""Who writes a checkpoint of a job with parameter servers, or reads it back. Any worker may become its chief."""
_END_WITH_THEIR_POD = frozenset(
    {"emptyDir", "ephemeral", "configMap", "secret", "downwardAPI", "projected", "gitRepo", "image"}
)


def why_not_kept(spec: JobSpec) -> str:
    """Why what a job with parameter servers saves in its path would be gone with a Pod; empty: it is kept, or the job
    has no path, or no servers. A path with a scheme, as `gs://bucket`, is on no volume and is kept."""
    path = spec.checkpoint_path
    if path is None or spec.strategy is not Strategy.PARAMETER_SERVER or "://" in path:
        return ""
    for role in _SAVERS:
        needs = spec.roles.get(role)
        where = None if needs is None else _where_it_ends(path, needs.template)
        if where is not None:
            return f"checkpoint.path {path} is on {where} of its {role} Pods: what is saved there is gone with them"
    return ""


def _where_it_ends(path: str, template: Template) -> str | None:
    """What a path in the training container is on that ends with its Pod; None: on a volume that outlives it."""
    pod: Mapping[str, Any] = template["spec"]
    mounts = [mount for mount in pod["containers"][0].get("volumeMounts") or () if _covers(mount, path)]
    if not mounts:
        return "no volume"
    name = max(mounts, key=lambda mount: len(_plain(mount["mountPath"])))["name"]
    volumes = {each.get("name"): each for each in pod.get("volumes") or ()}
    volume = volumes.get(name, {})
    kinds = [kind for kind, said in volume.items() if kind != "name" and said is not None]
    if kinds and not _END_WITH_THEIR_POD & set(kinds):
        return None
    return f"the volume {name} ({kinds[0] if kinds else 'emptyDir'})"  # nothing said: that is what Kubernetes takes


def _covers(mount: Mapping[str, Any], path: str) -> bool:
    at = _plain(mount.get("mountPath") or "")
    return bool(mount.get("mountPath")) and (_plain(path) + "/").startswith(at.rstrip("/") + "/")


def _plain(path: str) -> str:
    return posixpath.normpath("/" + path.lstrip("/"))
