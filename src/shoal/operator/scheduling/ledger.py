"""What Pods take of hosts and of quotas, kept up to date Pod by Pod.

A round must not cost a look at every Pod of the cluster. So the sums are changed when a Pod is: what Pods that belong
to no job have on each host and in each namespace, which of those wait for a host, and who is about to leave.
"""

from collections.abc import Iterable

from shoal.core.hosts import PodUse
from shoal.scheduler.rows import NOTHING, Leaving, Room

ANY_HOST = "any host"
"""The one host there is for an operator that may not look at hosts."""


def room_of(use: PodUse) -> Room:
    return Room(*use.amounts)


class Ledger:
    def __init__(self, *, knows_hosts: bool = True) -> None:
        """`knows_hosts` False: every Pod that has a host is counted on one, `ANY_HOST`."""
        self._knows_hosts = knows_hosts
        self._pods: dict[str, PodUse] = {}
        self._jobs: dict[str, dict[str, PodUse]] = {}
        self._strangers: dict[str, Room] = {}
        self._ending: dict[str, dict[str, PodUse]] = {}
        self._homeless: dict[str, PodUse] = {}
        self._used: dict[str, tuple[Room, int]] = {}
        self._versions: dict[str, int] = {}

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

    def of(self, job: str) -> list[PodUse]:
        """The Pods that say they belong to the job with this uid, by name."""
        return sorted(self._jobs.get(job, {}).values(), key=lambda use: use.name)

    def version(self, job: str) -> int:
        """Another number whenever anything about the job's Pods has changed."""
        return self._versions.get(job, 0)

    def jobs(self) -> Iterable[str]:
        return self._jobs.keys()

    def strangers(self, host: str) -> Room:
        """What Pods of no job have there, and keep."""
        return self._strangers.get(host, NOTHING)

    def ending(self, host: str) -> list[Leaving]:
        """What is told to end there, whosever it is."""
        return [
            Leaving(room=room_of(use), until=use.ends)
            for use in self._ending.get(host, {}).values()
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
            self._versions[use.job] = self._versions.get(use.job, 0) + 1
            _keep(self._jobs, use.job, use, times)
        if use.is_over:
            return
        if use.ends is not None and host:
            _keep(self._ending, host, use, times)
        if use.job:
            return
        room, pods = self._used.get(use.namespace, (NOTHING, 0))
        self._used[use.namespace] = (room.plus(room_of(use), times), pods + times)
        if not host and times > 0:
            self._homeless[use.uid] = use
        elif not host:
            self._homeless.pop(use.uid, None)
        elif use.ends is None:
            self._strangers[host] = self.strangers(host).plus(room_of(use), times)


def _keep(shelf: dict[str, dict[str, PodUse]], key: str, use: PodUse, times: int) -> None:
    if times > 0:
        shelf.setdefault(key, {})[use.uid] = use
        return
    there = shelf.get(key, {})
    there.pop(use.uid, None)
    if not there:
        shelf.pop(key, None)


def filled(uses: Iterable[PodUse], *, knows_hosts: bool = True) -> Ledger:
    """A ledger of these Pods."""
    ledger = Ledger(knows_hosts=knows_hosts)
    for use in uses:
        ledger.saw(use)
    return ledger
