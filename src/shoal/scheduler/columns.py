"""The same facts in columns: one record for each job and each host, so that questions about all of them at once are
asked in one go.

The records follow the order of the rows. They hold what a policy asks of every job in every round; whatever it asks of
few (the hosts a job is on, its parts) stays in the rows. Jobs that ask for the same Pod in the same pools have the same
*shape*: what is found out about room for one of them holds for all.
"""

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from shoal.scheduler.rows import NOTHING, Host, Job, Priority, Room

Records = NDArray[np.void]
Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

PRIORITIES: tuple[Priority, ...] = tuple(Priority)
_NUMBER = {priority: number for number, priority in enumerate(PRIORITIES)}

_MOST = 2**62
"""Of any number in a record: with a margin, for sums."""

JOB = np.dtype(
    [
        ("target", "i8"), ("least", "i8"), ("most", "i8"), ("unit", "i8"), ("min", "i8"), ("max", "i8"),
        ("placed", "i8"), ("pending", "i8"), ("misses_fixed", "?"),
        ("cpu", "i8"), ("memory", "i8"), ("gpu", "i8"), ("pods", "i8"),
        ("fixed_cpu", "i8"), ("fixed_memory", "i8"), ("fixed_gpu", "i8"), ("fixed_pods", "i8"), ("has_servers", "?"),
        ("shape", "i8"), ("namespace", "i8"), ("priority", "i8"), ("created", "f8"),
        ("is_known", "?"), ("v", "f8"), ("at", "f8"), ("rate", "f8"),
        ("resizing", "?"), ("frozen_until", "f8"), ("wants_more", "?"), ("waiting_since", "f8"),
    ]
)  # fmt: skip

HOST = np.dtype(
    [
        ("cpu", "i8"), ("memory", "i8"), ("gpu", "i8"), ("pods", "i8"),
        ("others_cpu", "i8"), ("others_memory", "i8"), ("others_gpu", "i8"), ("others_pods", "i8"),
        ("taken_cpu", "i8"), ("taken_memory", "i8"), ("taken_gpu", "i8"), ("taken_pods", "i8"),
        ("open", "?"), ("leaving", "?"), ("pool", "i8"),
    ]
)  # fmt: skip


class Shape(NamedTuple):
    """One Pod and where it may run."""

    each: Room
    pools: frozenset[str] | None


T = TypeVar("T", bound=Hashable)


class Names(Generic[T]):
    """Small numbers for values: the same number for the same value as long as this lives."""

    def __init__(self) -> None:
        self.values: list[T] = []
        self._numbers: dict[T, int] = {}

    def number(self, value: T) -> int:
        known = self._numbers.get(value)
        if known is None:
            known = self._numbers[value] = len(self.values)
            self.values.append(value)
        return known


class Vocabulary:
    """What the numbers in the records stand for. It only grows, so old records stay readable."""

    def __init__(self) -> None:
        self.shapes: Names[Shape] = Names()
        self.namespaces: Names[str] = Names()
        self.pools: Names[str] = Names()


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    jobs: Records
    hosts: Records
    vocabulary: Vocabulary


def least_size(job: Job) -> int:
    """The fewest trainers it starts with: its minimum, in whole units."""
    if job.unit == 1:
        return job.min
    up = -(-job.min // job.unit) * job.unit
    return up if up <= job.max else job.min


def most_size(job: Job) -> int:
    """The most trainers it is ever given: its maximum, in whole units."""
    if job.unit == 1:
        return job.max
    return max(least_size(job), job.max // job.unit * job.unit)


def job_record(job: Job, vocabulary: Vocabulary) -> tuple[Any, ...]:
    cpu, memory, gpu, pods = 0, 0, 0, 0
    servers = job.servers
    parts = [(part.each, part.count) for part in job.fixed]
    if servers is not None and servers.is_fixed:
        parts.append((servers.each, servers.max))
    for each, number in parts:
        cpu, memory, gpu = cpu + each.cpu * number, memory + each.memory * number, gpu + each.gpu * number
        pods += each.pods * number
    attained = job.attained
    return (
        job.target, least_size(job), most_size(job), job.unit, job.min, job.max,
        sum(job.placed.values()), job.pending, bool(job.fixed_pending),
        *job.each,
        cpu, memory, gpu, pods, servers is not None and not servers.is_fixed,
        vocabulary.shapes.number(Shape(job.each, job.pools)), vocabulary.namespaces.number(job.key.namespace),
        _NUMBER[job.priority], job.created,
        *((False, 0.0, 0.0, 0.0) if attained is None else (True, attained.v, attained.at, attained.rate)),
        job.resizing, job.frozen_until, 0 < job.asked < job.max,
        np.nan if job.waiting_since is None else job.waiting_since,
    )  # fmt: skip


def check_numbers(job: Job) -> None:
    """Raises `ValueError` for a job that asks for more of something than a record can hold."""
    for name, value in zip(JOB.names or (), job_record(job, Vocabulary()), strict=True):
        if isinstance(value, int) and abs(value) > _MOST:
            raise ValueError(f"its {name.replace('_', ' ')} of {value:,} is beyond what can be counted")


def host_record(host: Host, taken: Room, vocabulary: Vocabulary) -> tuple[Any, ...]:
    pool = vocabulary.pools.number(host.pool)
    return (*host.capacity, *host.others, *taken, host.open, bool(host.leaving), pool)


def held_by(job: Job) -> Iterable[tuple[str, Room]]:
    """What the job's Pods that stay have, by host; a host may come twice."""
    for host, count in job.placed.items():
        yield host, Room().plus(job.each, count)
    yield from job.fixed_placed.items()


def taken_on_hosts(jobs: Iterable[Job]) -> dict[str, Room]:
    taken: dict[str, Room] = {}
    for job in jobs:
        for host, room in held_by(job):
            taken[host] = taken.get(host, NOTHING).plus(room)
    return taken


def columns_from(hosts: Iterable[Host], jobs: Iterable[Job]) -> Columns:
    """All columns from the rows, from nothing."""
    jobs = tuple(jobs)
    vocabulary = Vocabulary()
    taken: Mapping[str, Room] = taken_on_hosts(jobs)
    return Columns(
        jobs=np.array([job_record(job, vocabulary) for job in jobs], dtype=JOB),
        hosts=np.array([host_record(host, taken.get(host.name, NOTHING), vocabulary) for host in hosts], dtype=HOST),
        vocabulary=vocabulary,
    )
