"""Which hosts have fallen silent, and since when: what decides whether a Pod's host is still there.

A host that Kubernetes no longer hears of stays in its books, and so do the Pods on it: nobody is left to say that they
have ended. `HostBook` is what we know of hosts at this moment. It is careful, for who is on a lost host is given up:

- A host is down when Kubernetes has not heard of it (`Ready` is `Unknown`). One that says itself that it is not ready
  (`False`: its container runtime hiccups) is there, its Pods may well train, and it can say when they end.
- Where more than half of the hosts are silent at once it is the network, or the API server that they cannot reach, and
  not this host or that one: then none is down. Kubernetes' own evictions stop there, too.
- While we hear nothing of the API server we know nothing of hosts. When it is back hosts get to speak first: silence
  counts from then on, not from before.
"""

from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta

from shoal.platforms.kubernetes.cache import Change, Removed
from shoal.platforms.kubernetes.objects import Node

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_OUTAGE = timedelta(seconds=5)
"""A watch that is cut off and is back sooner is none: hosts have not missed the API server."""


class HostBook:
    def __init__(self) -> None:
        self._silent: dict[str, datetime] = {}
        self._others: set[str] = set()
        self._unheard_since: datetime | None = _EPOCH
        self._heard_since = _EPOCH
        self._told: list[Callable[[str], None]] = []

    def on_change(self, told: Callable[[str], None]) -> None:
        """Tell the name of every host that is down now, or is no longer, or is gone."""
        self._told.append(told)

    def happened(self, change: Change[Node]) -> None:
        name = change.object.metadata.name
        before, was_general = self._silent.get(name), self._is_general
        self._silent.pop(name, None)
        self._others.discard(name)
        if not isinstance(change, Removed):
            since = silent_since(change.object)
            if since is None:
                self._others.add(name)
            else:
                self._silent[name] = since
        changed = {name} if self._silent.get(name) != before else set()
        if self._is_general is not was_general:
            changed |= self._silent.keys()
        self._tell(changed)

    def hears(self, now: datetime) -> None:
        """The API server is heard: for the first time, or again."""
        if self._unheard_since is None:
            return
        if now - self._unheard_since >= _OUTAGE:
            self._heard_since = now
        self._unheard_since = None
        self._tell(self._silent)

    def hears_nothing(self, now: datetime) -> None:
        self._unheard_since = self._unheard_since or now

    def down_since(self, host: str) -> datetime | None:
        """Since when a host is down; None: it is not, or nobody can tell."""
        since = self._silent.get(host)
        if since is None or self._is_general or self._unheard_since is not None:
            return None
        return max(since, self._heard_since)

    @property
    def _is_general(self) -> bool:
        """Most hosts are silent."""
        return len(self._silent) > len(self._others)

    def _tell(self, names: Iterable[str]) -> None:
        for name in sorted(names):
            for told in self._told:
                told(name)


def silent_since(node: Node) -> datetime | None:
    """Since when Kubernetes has not heard of a host; None: it has, or the host has never said anything yet."""
    for each in node.status.conditions:
        if each.type == "Ready" and each.status == "Unknown":
            return each.last_transition_time or node.metadata.creation_timestamp or _EPOCH
    return None
