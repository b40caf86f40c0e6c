"""Policies that never resize: a job gets what its owner asked for, all at once, and keeps it to its end.

They are what elastic policies are compared with (`fifo`, `static`). Both walk the queue in the order of arrival and
start a gang when all of it finds room; they differ in whether somebody may overtake. Trainers of a job are packed on
as few hosts as possible: into the fullest host that takes all that are left, else into the emptiest.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from shoal.scheduler.columns import Ints, Shape, taken_on_hosts
from shoal.scheduler.decisions import Action, Change, Code, Decisions, Reason, Wait
from shoal.scheduler.gangs import TRAINERS, hardest_first, servers_of, trainers_of
from shoal.scheduler.rows import NOTHING, Host, Job, Part, Quota, Room
from shoal.scheduler.scores import footprint
from shoal.scheduler.snapshot import Snapshot

_ANY_NUMBER = 10**6


def plan_rigid(snapshot: Snapshot, *, overtaking: bool, gang: bool) -> Decisions:
    """Start whoever's turn it is and who fits. `gang=False`: start everybody, and let Pods wait instead of jobs."""
    room = FreeRoom(snapshot.hosts, snapshot.jobs)
    limits = _Limits(snapshot)
    changes: list[Change] = []
    waits: list[Wait] = []
    held_up: Job | None = None
    for job in sorted((job for job in snapshot.jobs if not job.is_admitted), key=lambda job: (job.created, job.key)):
        reason = limits.objection(job)
        if reason is None and held_up is not None and not overtaking:
            reason = Reason(code=Code.QUEUED, text=f"{held_up.key} came first and waits for room")
        if reason is None:
            found = room.take_gang(job, size_of(job), partly=not gang)
            if found is not None:
                changes.append(_admission(job, found))
                limits.count(job)
                continue
            reason = _no_room(job, snapshot.hosts, room)
            if reason.code is Code.NO_ROOM:
                held_up = held_up or job
        waits.append(Wait(key=job.key, place=len(waits) + 1, reason=reason))
    return Decisions(changes=tuple(changes), waits=tuple(waits), min_v=snapshot.min_v)


def size_of(job: Job) -> int:
    """What its owner asked for."""
    return job.max if job.size is None else max(1, job.size)


def _admission(job: Job, found: "Found") -> Change:
    return Change(
        key=job.key,
        action=Action.ADMIT,
        target=size_of(job),
        before=job.target,
        hosts=found.trainers,
        fixed_hosts=found.fixed,
        reason=Reason(code=Code.ADMITTED, text=f"it starts with the {size_of(job)} trainers that it asks for"),
    )


def _no_room(job: Job, hosts: Sequence[Host], room: "FreeRoom") -> Reason:
    if not room.would_fit_alone(job, size_of(job)):
        text = f"{size_of(job)} trainers and what goes with them do not fit on the {len(hosts)} hosts even when empty"
        return Reason(code=Code.TOO_LARGE, text=text)
    return Reason(code=Code.NO_ROOM, text=f"it waits until {size_of(job)} trainers fit at once")


# Room --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Found:
    trainers: Mapping[str, int]
    fixed: Mapping[str, Mapping[str, int]]


class FreeRoom:
    """What is free on open hosts, less what Pods of admitted jobs still have to get."""

    def __init__(self, hosts: Sequence[Host], jobs: Iterable[Job]) -> None:
        self._hosts = [host for host in hosts if host.open]
        self._empty = _table(host.capacity for host in self._hosts)
        taken = taken_on_hosts(jobs := tuple(jobs))
        self._free = _table(
            _less_leaving(host).minus(host.others).minus(taken.get(host.name, NOTHING)) for host in self._hosts
        )
        self._hopeless: dict[Shape, int] = {}
        self._fits_alone: dict[tuple[Shape, int], bool] = {}
        for job in jobs:
            if job.is_admitted:
                for part in hardest_first((*job.fixed_pending, trainers_of(job, job.pending))):
                    if part.count:
                        self._take(part, self._free, partly=True)

    def take_gang(self, job: Job, size: int, *, partly: bool) -> Found | None:
        """Hosts for the whole gang, which is theirs from now on. `partly`: for as much of it as there is room for."""
        shape = _shape(job)
        if shape is not None and not partly and size >= self._hopeless.get(shape, size + 1):
            return None  # no less than what another one just like it did not find
        found = self._find(job, size, self._free.copy(), partly=partly)
        if found is None:
            if shape is not None:
                self._hopeless[shape] = size
            return None
        self._free, hosts = found
        return hosts

    def would_fit_alone(self, job: Job, size: int) -> bool:
        shape = _shape(job)
        if shape is None:
            return self._find(job, size, self._empty.copy(), partly=False) is not None
        if (shape, size) not in self._fits_alone:
            self._fits_alone[shape, size] = self._find(job, size, self._empty.copy(), partly=False) is not None
        return self._fits_alone[shape, size]

    def _find(self, job: Job, size: int, free: Ints, *, partly: bool) -> tuple[Ints, Found] | None:
        parts = [*job.fixed, trainers_of(job, size)]
        if job.servers is not None:
            parts.insert(-1, servers_of(job, job.servers.beside(size)))
        found: dict[str, Mapping[str, int]] = {}
        for part in hardest_first(parts):
            hosts = self._take(part, free, partly=partly)
            if hosts is None:
                return None
            found[part.role] = hosts
        return free, Found(found.pop(TRAINERS), found)

    def _take(self, part: Part, free: Ints, *, partly: bool) -> dict[str, int] | None:
        each, count = part.each, part.count
        spots = self._spots(part, free)
        if (there := int(spots.sum())) < count:
            if not partly:
                return None
            count = there
        taken: dict[str, int] = {}
        while count > 0:
            at = _next_host(spots, count)
            here = min(int(spots[at]), count)
            taken[self._hosts[at].name] = here
            free[at] -= np.array(each) * here
            spots[at] = 0
            count -= here
        return taken

    def _spots(self, part: Part, free: Ints) -> Ints:
        """How often one fits on each host; one that asks for nothing fits as often as anybody likes."""
        each, pools = part.each, part.pools
        asked = [kind for kind, amount in enumerate(each) if amount > 0]
        spots = np.full(len(free), _ANY_NUMBER, np.int64)
        for kind in asked:
            spots = np.minimum(spots, free[:, kind] // each[kind])
        if pools is not None:
            spots[[host.pool not in pools for host in self._hosts]] = 0
        return np.maximum(spots, 0)


def _table(rooms: Iterable[Room]) -> Ints:
    """One line for each host."""
    return np.array(list(rooms), np.int64).reshape(-1, len(Room._fields))


def _shape(job: Job) -> Shape | None:
    """What jobs have in common that differ in nothing but their size. None: this one has more than trainers."""
    return None if job.fixed or job.servers is not None else Shape(job.each, job.pools)


def _next_host(spots: Ints, count: int) -> int:
    """The fullest that takes all, else the emptiest; the first of equals."""
    emptiest = int(spots.argmax())
    if spots[emptiest] < count:
        return emptiest
    return int(np.where(spots >= count, spots, _ANY_NUMBER + 1).argmin())


def _less_leaving(host: Host) -> Room:
    room = host.capacity
    for leaving in host.leaving:
        room = room.minus(leaving.room)
    return room


# Quotas ------------------------------------------------------------------------------------------------------------


class _Limits:
    """What namespaces may still have."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._quotas = snapshot.quotas
        self._used: dict[str, Room] = {name: quota.used_by_others for name, quota in self._quotas.items()}
        self._pods: dict[str, int] = {name: quota.pods_of_others for name, quota in self._quotas.items()}
        for job in snapshot.jobs:
            if job.is_admitted:
                self._add(job, job.target)

    def objection(self, job: Job) -> Reason | None:
        quota = self._quotas.get(job.key.namespace)
        if quota is None:
            return None
        need, pods = footprint(job, size_of(job)), _pods(job, size_of(job))
        if not _within(quota, need, pods):
            text = f"it asks for more than the whole quota of {job.key.namespace}"
            return Reason(code=Code.OVER_QUOTA, text=text)
        used = self._used[job.key.namespace].plus(need)
        if not _within(quota, used, self._pods[job.key.namespace] + pods):
            return Reason(code=Code.QUOTA, text=f"the quota of {job.key.namespace} is used up by its other jobs")
        return None

    def count(self, job: Job) -> None:
        self._add(job, size_of(job))

    def _add(self, job: Job, trainers: int) -> None:
        if job.key.namespace in self._quotas:
            used = self._used[job.key.namespace]
            self._used[job.key.namespace] = used.plus(footprint(job, trainers))
            self._pods[job.key.namespace] += _pods(job, trainers)


def _within(quota: Quota, used: Room, pods: int) -> bool:
    pairs = ((quota.cpu, used.cpu), (quota.memory, used.memory), (quota.gpu, used.gpu), (quota.pods, pods))
    return all(limit is None or have <= limit for limit, have in pairs)


def _pods(job: Job, trainers: int) -> int:
    servers = 0 if job.servers is None else job.servers.beside(trainers)
    return trainers + servers + sum(part.count for part in job.fixed)
