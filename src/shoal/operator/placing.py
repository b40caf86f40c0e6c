"""Where a new Pod would best be: the host on which the scheduler has found room for it, and none that failed it before.

These are preferences and no more. Kubernetes' own scheduler binds Pods and knows rules that ours does not look at;
somebody else may be faster; and a Pod that fits nowhere but on a host that was lost once is better there than nowhere.
"""

from collections.abc import Iterable

from shoal.operator.objects import Manifest
from shoal.scheduler.decisions import STRONGEST

_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


def prefer(pod: Manifest, host: str) -> Manifest:
    """The same Pod, best on this host. What its user prefers is kept."""
    return _with_preference(pod, "In", [host])


def avoid(pod: Manifest, hosts: Iterable[str]) -> Manifest:
    """The same Pod, best on any host but these."""
    return _with_preference(pod, "NotIn", sorted(hosts))


def _with_preference(pod: Manifest, operator: str, hosts: Iterable[str]) -> Manifest:
    spec = pod["spec"]
    affinity = spec.get("affinity") or {}
    nodes = affinity.get("nodeAffinity") or {}
    fields = [{"key": "metadata.name", "operator": operator, "values": [host]} for host in hosts]  # one value each
    wish = {"weight": STRONGEST, "preference": {"matchFields": fields}}
    preferred = [*(nodes.get(_PREFERRED) or []), wish]
    return {**pod, "spec": {**spec, "affinity": {**affinity, "nodeAffinity": {**nodes, _PREFERRED: preferred}}}}
