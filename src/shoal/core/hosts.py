"""Hosts, and what Pods take of them: the facts that the cluster's scheduler starts from.

The Kubernetes platform makes these values from what the API server says; the operator's scheduler counts with them.
Amounts are whole numbers: thousandths of a core, bytes, devices. Times are seconds since 1970.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

BY_NAME = "metadata.name"
"""The key that stands for a host's own name where labels are asked for."""
_KEEPS_AWAY = frozenset({"NoSchedule", "NoExecute"})


class Amounts(NamedTuple):
    cpu: int = 0
    """Thousandths of a core."""
    memory: int = 0
    """Bytes."""
    gpu: int = 0
    """Devices."""
    pods: int = 0
    """Places for Pods: a Pod takes one."""


MOST = Amounts(cpu=2**48, memory=2**48, gpu=2**24, pods=2**24)
"""No Pod and no host counts for more: far above any that exists, and little enough that the sums over thousands of them
stay within 64 bits."""


class Taint(NamedTuple):
    key: str
    value: str = ""
    effect: str = "NoSchedule"


class Toleration(NamedTuple):
    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""

    def bears(self, taint: Taint) -> bool:
        if self.effect and self.effect != taint.effect:
            return False
        if self.operator == "Exists":
            return self.key in ("", taint.key)
        return self.key == taint.key and self.value == taint.value


class Demand(NamedTuple):
    """One requirement on a host's labels."""

    key: str
    operator: str
    """In, NotIn, Exists, DoesNotExist, Gt or Lt."""
    values: tuple[str, ...] = ()

    def holds(self, labels: Mapping[str, str]) -> bool:
        value = labels.get(self.key)
        match self.operator:
            case "In":
                return value in self.values
            case "NotIn":
                return value not in self.values
            case "Exists":
                return value is not None
            case "DoesNotExist":
                return value is None
            case "Gt" | "Lt":
                return self._compares(value)
            case _:  # a word that came after us: better too many hosts than none
                return True

    def _compares(self, value: str | None) -> bool:
        try:
            difference = int(value or "") - int(self.values[0])
        except (ValueError, IndexError):
            return False
        return difference > 0 if self.operator == "Gt" else difference < 0


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a Pod may be: what it demands of a host, and which taints it bears."""

    alternatives: tuple[tuple[Demand, ...], ...] = ()
    """All demands of at least one of them must hold. Empty: nothing is demanded."""
    tolerations: tuple[Toleration, ...] = ()

    def admits(self, host: "HostSeen") -> bool:
        kept_away = (taint for taint in host.taints if taint.effect in _KEEPS_AWAY)
        if not all(any(each.bears(taint) for each in self.tolerations) for taint in kept_away):
            return False
        if not self.alternatives:
            return True
        labels = {**host.labels, BY_NAME: host.name}
        return any(all(demand.holds(labels) for demand in demands) for demands in self.alternatives)


ANYWHERE = Placement()


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSeen:
    name: str
    capacity: Amounts
    """What Pods may have in all."""
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: Sequence[Taint] = ()
    """But for those that only say that it is not open."""
    is_open: bool = True
    """Ready, and not cordoned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodUse:
    """What one Pod takes, or would."""

    namespace: str
    name: str
    uid: str
    amounts: Amounts
    job: str = ""
    """The uid of the job it says it belongs to."""
    role: str = ""
    host: str = ""
    """Empty: it has none yet."""
    runs: bool = False
    is_ready: bool = False
    succeeded: bool = False
    is_over: bool = False
    ends: float | None = None
    """It was told to end, and should be gone by then."""
    priority: int = 0
    since: float = 0.0
    is_unschedulable: bool = False
    """Kubernetes has looked for a host and found none."""
    nominated: str = ""
    """The host that Kubernetes is clearing for it."""
    placement: Placement = ANYWHERE


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaSeen:
    """A namespace's ResourceQuota, as far as it is about Pods. None: no limit of that kind."""

    namespace: str
    name: str
    cpu: int | None = None
    memory: int | None = None
    gpu: int | None = None
    pods: int | None = None


@dataclass(frozen=True, slots=True)
class Shape:
    """What a Pod that is still to be made will ask for."""

    amounts: Amounts
    placement: Placement = ANYWHERE
