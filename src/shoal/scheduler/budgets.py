"""What jobs may have together, apart from what fits on hosts: how full the cluster may be, and quotas.

Growth stops at L of each resource (less the headroom kept for services), admission at U, and above U jobs have to give
back. U is never below L, so that no job grows and shrinks by turns. Quotas count all that a namespace's admitted jobs
ask for, running or not, as Kubernetes counts requests.
"""

from dataclasses import dataclass

from shoal.scheduler.reasons import quantity
from shoal.scheduler.rows import NOTHING, Job, Quota, Room, Seconds
from shoal.scheduler.scores import footprint
from shoal.scheduler.settings import SchedulerSettings
from shoal.scheduler.snapshot import Snapshot

HOUR = 3_600
HOURS = 24
ALL = 2**62
"""No limit."""
COUNTED = ("cpu", "memory", "gpu")
"""What there are limits of. Places for Pods may all be used, and quotas count Pods by themselves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The most that may be in use in the whole cluster."""

    grow: Room
    reclaim: Room


def limits(capacity: Room, now: Seconds, settings: SchedulerSettings) -> Limits:
    loads = {kind: (getattr(capacity, kind), getattr(settings, kind)) for kind in COUNTED}
    grow = Room(**{kind: int(whole * load.grow) for kind, (whole, load) in loads.items()}, pods=ALL)
    reclaim = Room(**{kind: int(whole * load.reclaim) for kind, (whole, load) in loads.items()}, pods=ALL)
    return Limits(grow=grow.minus(headroom(now, settings)), reclaim=reclaim)


def headroom(now: Seconds, settings: SchedulerSettings) -> Room:
    """Room that growing leaves free for services, at this time of day."""
    if not settings.headroom_by_hour:
        return settings.service_headroom
    return settings.headroom_by_hour[int(now // HOUR) % HOURS]


def allows(limit: Room, used: Room, more: Room) -> bool:
    """Whether so much more stays within the limit; what is not asked for does not matter."""
    return all(not m or u + m <= most for most, u, m in zip(limit, used, more, strict=True))


def pods_of(job: Job, trainers: int) -> int:
    servers = 0 if job.servers is None else job.servers.beside(trainers)
    return trainers + servers + sum(part.count for part in job.fixed)


class Quotas:
    """How much of its quota each namespace has left. It changes as the round goes on."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._quotas = snapshot.quotas
        self._used: dict[str, tuple[Room, int]] = {
            namespace: (quota.used_by_others.plus(quota.leaving), quota.pods_of_others + quota.leaving.pods)
            for namespace, quota in snapshot.quotas.items()
        }
        if not self._quotas:
            return
        for job in snapshot.jobs:
            if job.is_admitted:
                self.add(job, 0, job.target)

    def __contains__(self, namespace: str) -> bool:
        return namespace in self._quotas

    def add(self, job: Job, before: int, after: int) -> None:
        """The job goes from one size to another; 0 is nothing at all."""
        used = self._used.get(job.key.namespace)
        if used is not None:
            more, pods = difference(job, before, after)
            self._used[job.key.namespace] = (used[0].plus(more), used[1] + pods)

    def allows(self, job: Job, before: int, after: int) -> bool:
        used = self._used.get(job.key.namespace)
        if used is None:
            return True
        more, pods = difference(job, before, after)
        return not _above(self._quotas[job.key.namespace], used[0].plus(more), used[1] + pods, more, pods)

    def ever_allows(self, job: Job, trainers: int) -> bool:
        """Whether a job of this size would be within the whole quota, with no other job beside it."""
        quota = self._quotas.get(job.key.namespace)
        if quota is None:
            return True
        room, pods = footprint(job, trainers), pods_of(job, trainers)
        return not _above(quota, room.plus(quota.used_by_others), pods + quota.pods_of_others, room, pods)

    def exceeded(self, namespace: str) -> tuple[str, ...]:
        """The kinds of which the namespace has more than its quota."""
        used, pods = self._used[namespace]
        return _above(self._quotas[namespace], used, pods, used, pods)

    def describe(self, job: Job, trainers: int) -> str:
        """What is missing for a job of this size, in numbers."""
        quota = self._quotas[job.key.namespace]
        used, pods = self._used[job.key.namespace]
        more, more_pods = footprint(job, trainers), pods_of(job, trainers)
        told = []
        for kind in _above(quota, used.plus(more), pods + more_pods, more, more_pods):
            had, asked = (pods, more_pods) if kind == "pods" else (getattr(used, kind), getattr(more, kind))
            whole = quantity(kind, getattr(quota, kind))
            told.append(f"{quantity(kind, had)} of {whole} in use, {quantity(kind, asked)} asked")
        return "; ".join(told)


def difference(job: Job, before: int, after: int) -> tuple[Room, int]:
    if before and after and job.servers is None:
        return NOTHING.plus(job.each, after - before), after - before
    room, pods = (footprint(job, after), pods_of(job, after)) if after else (NOTHING, 0)
    had, had_pods = (footprint(job, before), pods_of(job, before)) if before else (NOTHING, 0)
    return room.minus(had), pods - had_pods


def _above(quota: Quota, used: Room, pods: int, more: Room, more_pods: int) -> tuple[str, ...]:
    """Of which kinds more is used than the quota allows; kinds that are not asked for do not matter."""
    found = [
        kind
        for kind in COUNTED
        if getattr(more, kind) > 0
        and getattr(used, kind) > (ALL if getattr(quota, kind) is None else getattr(quota, kind))
    ]
    if more_pods > 0 and quota.pods is not None and pods > quota.pods:
        found.append("pods")
    return tuple(found)
