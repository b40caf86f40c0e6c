"""From Nodes, Pods and ResourceQuotas as the API server has them to what the cluster's scheduler counts with. Pure.

A Pod takes what all its containers request together, or the most that it needs while one of its init containers runs,
whichever is more, its overhead, and one of the places that its host has for Pods. Init containers that are restarted
always (native sidecars) run beside whatever comes after them. A container that requests nothing and has a limit
requests its limit. Quantities that nobody can read count as nothing, and those beyond any host as `MOST`: the API
server has let them in, and one odd Pod must not stop the scheduler.
"""

import math
from collections.abc import Iterable, Mapping
from datetime import datetime
from functools import lru_cache
from typing import Any

import msgspec

from shoal.api.labels import JOB_UID, ROLE
from shoal.api.quantities import parse_quantity
from shoal.api.resources import GPU_NAMES
from shoal.core.hosts import (
    BY_NAME,
    MOST,
    Amounts,
    Demand,
    HostSeen,
    Placement,
    PodUse,
    QuotaSeen,
    Shape,
    Taint,
    Toleration,
)
from shoal.platforms.kubernetes.objects import Container, Node, ObjectMeta, Pod, PodSpec, ResourceQuota

_OVER = frozenset({"Succeeded", "Failed"})
_OWN_TAINTS = "node.kubernetes.io/"
"""Taints under which Kubernetes says that a host is not ready, cordoned or short of something: `is_open` says it."""

_LEAVES_WITHIN = 60
"""Seconds in which a Pod that was told to end is expected to be gone, however long its grace is. A parameter server has
half an hour; whoever was promised its room should not wait there for so long."""


def host_seen(node: Node) -> HostSeen:
    conditions = {each.type: each.status for each in node.status.conditions}
    return HostSeen(
        name=node.metadata.name,
        capacity=_within(amounts(node.status.allocatable)._replace(pods=_places(node.status.allocatable))),
        labels=node.metadata.labels,
        taints=tuple(
            Taint(each.key, each.value, each.effect)
            for each in node.spec.taints
            if not each.key.startswith(_OWN_TAINTS)
        ),
        is_open=conditions.get("Ready") == "True" and not node.spec.unschedulable,
    )


def _places(allocatable: Mapping[str, str]) -> int:
    """How many Pods a host takes. Every kubelet says so; of a host that does not, nothing is assumed."""
    return _whole(allocatable["pods"], 1) if "pods" in allocatable else MOST.pods


def pod_use(pod: Pod) -> PodUse:
    meta, spec, status = pod.metadata, pod.spec, pod.status
    scheduled = next((each for each in status.conditions if each.type == "PodScheduled"), None)
    return PodUse(
        namespace=meta.namespace,
        name=meta.name,
        uid=meta.uid,
        amounts=pod_amounts(_as_given(pod)),
        job=meta.labels.get(JOB_UID, ""),
        role=meta.labels.get(ROLE, ""),
        host=spec.node_name,
        runs=status.phase == "Running",
        is_ready=any(each.type == "Ready" and each.status == "True" for each in status.conditions),
        succeeded=status.phase == "Succeeded",
        is_over=status.phase in _OVER,
        ends=_ends(meta),
        priority=spec.priority or 0,
        since=_seconds(meta.creation_timestamp),
        is_unschedulable=scheduled is not None and scheduled.status == "False" and scheduled.reason == "Unschedulable",
        nominated=status.nominated_node_name,
        placement=placement(spec),
    )


def _ends(meta: ObjectMeta) -> float | None:
    if meta.deletion_timestamp is None:
        return None
    grace = meta.deletion_grace_period_seconds or 0
    return meta.deletion_timestamp.timestamp() - max(0, grace - _LEAVES_WITHIN)


def _as_given(pod: Pod) -> PodSpec:
    """What a Pod has by its host's word. What it should have instead counts from when the host has agreed, or waits
    only for room (`Deferred`): before that nobody knows whether it ever gets it."""
    waits = any(
        each.type == "PodResizePending" and each.status == "True" and each.reason == "Deferred"
        for each in pod.status.conditions
    )
    given = {each.name: each.allocated_resources for each in pod.status.container_statuses if each.allocated_resources}
    if waits or not given:
        return pod.spec
    has = [_with_requests(each, given.get(each.name, {})) for each in pod.spec.containers]
    return msgspec.structs.replace(pod.spec, containers=has)


def _with_requests(container: Container, given: Mapping[str, str]) -> Container:
    written = container.resources
    requests = {**written.limits, **written.requests, **given}
    return msgspec.structs.replace(container, resources=msgspec.structs.replace(written, requests=requests))


def quota_seen(quota: ResourceQuota) -> QuotaSeen | None:
    """None: it is about something else, or about some Pods only. What it refuses then, the server says."""
    if quota.spec.scopes or quota.spec.scope_selector is not None:
        return None
    hard = quota.spec.hard
    found = QuotaSeen(
        namespace=quota.metadata.namespace,
        name=quota.metadata.name,
        cpu=_least(hard, ("cpu", "requests.cpu"), 1_000),
        memory=_least(hard, ("memory", "requests.memory"), 1),
        gpu=_least(hard, tuple(f"requests.{name}" for name in GPU_NAMES), 1),
        pods=_least(hard, ("pods", "count/pods"), 1),
    )
    is_ours = any(each is not None for each in (found.cpu, found.memory, found.gpu, found.pods))
    return found if is_ours else None


def amounts(written: Mapping[str, str]) -> Amounts:
    return _within(
        Amounts(
            cpu=_whole(written.get("cpu", "0"), 1_000),
            memory=_whole(written.get("memory", "0"), 1),
            gpu=sum(_whole(written[name], 1) for name in GPU_NAMES if name in written),
        )
    )


def _within(found: Amounts) -> Amounts:
    return Amounts(*(min(max(0, amount), most) for amount, most in zip(found, MOST, strict=True)))


def pod_amounts(spec: PodSpec) -> Amounts:
    beside, peak = Amounts(), Amounts()
    for container in spec.init_containers:
        needs = _plus(beside, _requested(container))
        peak = Amounts(*map(max, peak, needs))
        if container.restart_policy == "Always":
            beside = needs
    together = beside
    for container in spec.containers:
        together = _plus(together, _requested(container))
    return _within(_plus(Amounts(*map(max, peak, together)), amounts(spec.overhead))._replace(pods=1))


def shape(manifest: Mapping[str, Any]) -> Shape:
    """What a Pod of this manifest will ask for. Raises `ValueError` where it is no Pod's."""
    spec = manifest["spec"]
    containers = {
        part: [_with_texts(each) for each in spec.get(part) or ()] for part in ("containers", "initContainers")
    }
    wanted = ("nodeSelector", "affinity", "tolerations")
    rest = {name: spec[name] for name in wanted if spec.get(name) is not None}
    rest["overhead"] = {kind: str(amount) for kind, amount in (spec.get("overhead") or {}).items()}
    read = msgspec.convert({**rest, **containers}, PodSpec)
    return Shape(pod_amounts(read), placement(read))


def _with_texts(container: Mapping[str, Any]) -> dict[str, Any]:
    """What we look at of a container, with quantities as the server would write them: people write numbers too."""
    written = container.get("resources") or {}
    parts = {part: {k: str(v) for k, v in (written.get(part) or {}).items()} for part in ("requests", "limits")}
    always = {"restartPolicy": "Always"} if container.get("restartPolicy") == "Always" else {}
    return {"name": str(container.get("name", "")), "resources": parts, **always}


def placement(spec: PodSpec) -> Placement:
    selector = tuple(Demand(key, "In", (value,)) for key, value in sorted(spec.node_selector.items()))
    tolerations = tuple(Toleration(each.key, each.operator, each.value, each.effect) for each in spec.tolerations)
    terms = [_demands(term) for term in _terms(spec.affinity)]
    alternatives = tuple((*selector, *term) for term in terms if term) or ((selector,) if selector else ())
    return Placement(alternatives, tuple(sorted(tolerations)))


def _terms(affinity: Mapping[str, Any] | None) -> Iterable[Mapping[str, Any]]:
    """The alternatives that a Pod's affinity requires. It is a user's: any part may be missing or null."""
    found: Any = affinity
    for part in ("nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution", "nodeSelectorTerms"):
        found = found.get(part) if isinstance(found, Mapping) else None
    return [each for each in found if isinstance(each, Mapping)] if isinstance(found, list) else []


def _demands(term: Mapping[str, Any]) -> tuple[Demand, ...]:
    labels, fields = term.get("matchExpressions") or (), term.get("matchFields") or ()
    written = [(str(each.get("key", "")), each) for each in labels] + [(BY_NAME, each) for each in fields]
    return tuple(
        Demand(key, str(each.get("operator", "")), tuple(str(value) for value in each.get("values") or ()))
        for key, each in written
    )


def _requested(container: Container) -> Amounts:
    return amounts({**container.resources.limits, **container.resources.requests})


def _plus(one: Amounts, other: Amounts) -> Amounts:
    return Amounts(one.cpu + other.cpu, one.memory + other.memory, one.gpu + other.gpu)


def _least(hard: Mapping[str, str], names: tuple[str, ...], units: int) -> int | None:
    return min((_whole(hard[name], units) for name in names if name in hard), default=None)


@lru_cache(maxsize=4096)
def _whole(written: str, units: int) -> int:
    """In so many units to one, rounded up."""
    try:
        return math.ceil(parse_quantity(written) * units)
    except ValueError:
        return 0


def _seconds(moment: datetime | None) -> float:
    return 0.0 if moment is None else moment.timestamp()
