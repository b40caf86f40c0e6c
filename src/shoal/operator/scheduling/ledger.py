"""What Pods take of hosts and of quotas, kept up to date Pod by Pod.

A round must not cost a look at every Pod of the cluster. So the sums are changed when a Pod is: what Pods that belong
to no job have on each host and in each namespace, which of those wait for a host, and who is about to leave.

Events change a ledger while a round is computed in a thread, so a round gets a copy (`as_it_is`). That costs as much as
there are hosts and jobs, not Pods: what is kept for one of them is shared, and copied when it is changed next.
"""

from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

from shoal.core.hosts import PodUse
from shoal.scheduler.rows import NOTHING, Leaving, Room

ANY_HOST = "any host"
"""The one host there is for an operator that may not look at hosts."""
K = TypeVar("K", bound=Hashable)
Owner = tuple[str, str]
"""A namespace, and the uid of a job in it."""


def room_of(use: PodUse) -> Room:
    return Room(*use.amounts)


class Shelf(Generic[K]):
    """Pods by what they are kept under, which can be handed out as it is."""

    def __init__(self) -> None:
        self.kept: dict[K, dict[str, PodUse]] = {}
        self._shared: set[K] = set()
        """Whose Pods were handed out: they are copied before they are changed."""

    def keep(self, key: K, use: PodUse, times: int) -> None:
        there = self.kept.get(key, {})
        if key in self._shared:
            there = dict(there)
            self._shared.remove(key)
        if times > 0:
            there[use.uid] = use
        else:
            there.pop(use.uid, None)
        if there:
            self.kept[key] = there
        else:
            self.kept.pop(key, None)

    def as_it_is(self) -> "Shelf[K]":
        found = Shelf[K]()
        found.kept = dict(self.kept)
        self._shared, found._shared = set(self.kept), set(self.kept)
        return found


class Ledger:
    def __init__(self, *, knows_hosts: bool = True) -> None:
        """`knows_hosts` False: every Pod that has a host is counted on one, `ANY_HOST`."""
        self._knows_hosts = knows_hosts
        self._pods: dict[str, PodUse] = {}
        self._jobs = Shelf[Owner]()
        self._ending = Shelf[str]()
        self._strangers: dict[str, Room] = {}
        self._homeless: dict[str, PodUse] = {}
        self._used: dict[str, tuple[Room, int]] = {}
        self._versions: dict[Owner, int] = {}
        self._changes = 0

    def as_it_is(self) -> "Ledger":
        """The same, to be looked at elsewhere: later changes of this one do not reach it."""
        found = Ledger(knows_hosts=self._knows_hosts)
        found._pods = self._pods  # only who changes a ledger needs it
        found._jobs, found._ending = self._jobs.as_it_is(), self._ending.as_it_is()
        found._strangers, found._homeless = dict(self._strangers), dict(self._homeless)
        found._used, found._versions = dict(self._used), dict(self._versions)
        return found

    def saw(self, use: PodUse) -> None:
        self.gone(use.uid)
        if use.is_over and not use.job:
            return
        self._pods[use.uid] = use
        self._count(use, 1)

    def gone(self, uid: str) -> None:
        before = self._pods.pop(uid, None)
        if before is not None:
            self._count(before, -1)

    # Looking ---------------------------------------------------------------------------------------------------

    def of(self, job: str, namespace: str) -> list[PodUse]:
        """The Pods of this namespace that say they belong to the job with this uid, by name. Whoever says so elsewhere
        is none of it: anybody may write a label."""
        return sorted(self._jobs.kept.get((namespace, job), {}).values(), key=lambda use: use.name)

    def version(self, job: str, namespace: str) -> int:
        """Another number whenever anything about the job's Pods has changed."""
        return self._versions.get((namespace, job), 0)

    def jobs(self) -> Iterable[Owner]:
        """All that Pods say they belong to."""
        return self._jobs.kept.keys()

    def strangers(self, host: str) -> Room:
        """What Pods of no job have there, and keep."""
        return self._strangers.get(host, NOTHING)

    def ending(self, host: str) -> list[Leaving]:
        """What is told to end there, whosever it is."""
        return [
            Leaving(room=room_of(use), until=use.ends)
            for use in self._ending.kept.get(host, {}).values()
            if use.ends is not None
        ]

    def homeless(self) -> list[PodUse]:
        """Pods of no job that have no host."""
        return list(self._homeless.values())

    def used(self, namespace: str) -> tuple[Room, int]:
        """What Pods of no job have in a namespace, and how many they are."""
        return self._used.get(namespace, (NOTHING, 0))

    def host_of(self, use: PodUse) -> str:
        return use.host if self._knows_hosts or not use.host else ANY_HOST

    # -----------------------------------------------------------------------------------------------------------

    def _count(self, use: PodUse, times: int) -> None:
        host = self.host_of(use)
        if use.job:
            self._count_for_job(use, times)
        if use.is_over:
            return
        if use.ends is not None and host:
            self._ending.keep(host, use, times)
        if use.job:
            return
        room, pods = self.used(use.namespace)
        self._used[use.namespace] = (room.plus(room_of(use), times), pods + times)
        if not self._used[use.namespace][1]:
            del self._used[use.namespace]
        if not host and times > 0:
            self._homeless[use.uid] = use
        elif not host:
            self._homeless.pop(use.uid, None)
        elif use.ends is None:
            self._count_at_host(host, room_of(use), times)

    def _count_for_job(self, use: PodUse, times: int) -> None:
        owner = (use.namespace, use.job)
        self._jobs.keep(owner, use, times)
        self._changes += 1  # of all jobs: one that was forgotten and comes back has no version twice
        if owner in self._jobs.kept:
            self._versions[owner] = self._changes
        else:
            self._versions.pop(owner, None)

    def _count_at_host(self, host: str, room: Room, times: int) -> None:
        self._strangers[host] = self.strangers(host).plus(room, times)
        if self._strangers[host] == NOTHING:
            del self._strangers[host]


def filled(uses: Iterable[PodUse], *, knows_hosts: bool = True) -> Ledger:
    """A ledger of these Pods."""
    ledger = Ledger(knows_hosts=knows_hosts)
    for use in uses:
        ledger.saw(use)
    return ledger
