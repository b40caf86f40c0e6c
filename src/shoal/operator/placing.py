"""Where a new Pod would best be: the host on which the scheduler has found room for it.

It is a preference and no more. Kubernetes' own scheduler binds Pods and knows rules that ours does not look at; and
somebody else may be faster.
"""

from shoal.operator.objects import Manifest

_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
_STRONGEST = 100


def prefer(pod: Manifest, host: str) -> Manifest:
    """The same Pod, best on this host. What its user prefers is kept."""
    spec = pod["spec"]
    affinity = spec.get("affinity") or {}
    nodes = affinity.get("nodeAffinity") or {}
    best = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [host]}]}
    preferred = [*(nodes.get(_PREFERRED) or []), {"weight": _STRONGEST, "preference": best}]
    return {**pod, "spec": {**spec, "affinity": {**affinity, "nodeAffinity": {**nodes, _PREFERRED: preferred}}}}
