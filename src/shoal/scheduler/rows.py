"""The facts a policy looks at: one value for each host, job, waiting service Pod and quota.

Amounts are whole numbers in the smallest unit that Kubernetes counts: thousandths of a core, bytes, devices. A host has
places for only so many Pods besides, and a Pod takes one of them whatever else it asks for. Times are seconds since
any moment that is the same for all of them.

A job has *trainers*, whose number the policy chooses between `min` and `max` (TrainingJob trainers, ElasticJob
workers), and *fixed* Pods that come with it whatever its size (master, pservers at their least, chief). Its *gang* is
what it cannot start without: the fixed Pods and `min` trainers, all at once.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

Seconds = float


class Room(NamedTuple):
    """An amount of each resource: what a Pod asks for, what a host has."""

    cpu: int = 0
    """Thousandths of a core."""
    memory: int = 0
    """Bytes."""
    gpu: int = 0
    """Devices."""
    pods: int = 0
    """Places on a host. A Pod with 0 is not counted: simulated clusters have as many places as anybody likes."""

    def plus(self, other: "Room", times: int = 1) -> "Room":
        cpu, memory, gpu, pods = other
        return Room(
            self.cpu + cpu * times, self.memory + memory * times, self.gpu + gpu * times, self.pods + pods * times
        )

    def minus(self, other: "Room", times: int = 1) -> "Room":
        return self.plus(other, -times)

    def holds(self, other: "Room") -> bool:
        cpu, memory, gpu, pods = other
        return self.cpu >= cpu and self.memory >= memory and self.gpu >= gpu and self.pods >= pods


NOTHING = Room()


class Kind(StrEnum):
    ELASTIC_JOB = "ElasticJob"
    TRAINING_JOB = "TrainingJob"


class JobKey(NamedTuple):
    namespace: str
    name: str
    kind: Kind = Kind.TRAINING_JOB

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"


class Priority(StrEnum):
    EXPERIMENT = "Experiment"
    OFFLINE = "Offline"
    NORMAL = "Normal"
    PRODUCTION = "Production"


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaving:
    """Room that is still taken and will be free: Pods that were told to end."""

    room: Room
    until: Seconds
    """When they should be gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    name: str
    capacity: Room
    """What Pods may have in all (`allocatable`)."""
    others: Room = NOTHING
    """What Pods that belong to no scheduled job have here: services, daemons, system Pods. Not those that leave."""
    leaving: tuple[Leaving, ...] = ()
    """All Pods here that were told to end, a job's or not; their room counts as taken until they are gone."""
    open: bool = True
    """Takes new Pods: ready and not cordoned."""
    pool: str = ""
    """Hosts alike in labels and taints share a pool; each part of a job says in which pools its Pods can run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Fixed Pods of one role."""

    role: str
    each: Room
    count: int
    pools: frozenset[str] | None = None
    """Where they can run. None: everywhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Servers:
    """Parameter servers beyond the fixed ones, which come and go with the trainers."""

    each: Room
    min: int
    max: int
    per_trainer: float
    pools: frozenset[str] | None = None
    """Where they can run. None: everywhere."""

    def beside(self, trainers: int) -> int:
        """How many are needed beside so many trainers."""
        needed = math.ceil(round(trainers * self.per_trainer, 6))  # 25 x (14 / 50) is a little more than 7
        return min(self.max, max(self.min, needed))

    @property
    def is_fixed(self) -> bool:
        """Their number is the same beside any number of trainers."""
        return self.min == self.max


@dataclass(frozen=True, slots=True, kw_only=True)
class Attained:
    """Service received so far, divided by the job's weight. It is written down only when the rate changes."""

    v: float = 0.0
    at: Seconds = 0.0
    rate: float = 0.0
    """How fast `v` grows: score of the running Pods x W0 / weight, per second."""

    def now(self, now: Seconds) -> float:
        return self.v + self.rate * max(0.0, now - self.at)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    key: JobKey
    uid: str = ""
    priority: Priority = Priority.NORMAL
    created: Seconds = 0.0
    min: int = 1
    max: int = 1
    """The ask: the policy never gives more."""
    size: int | None = None
    """What its owner would ask for if nothing could change it: the rigid policies give this. None: `max`."""
    unit: int = 1
    """Trainers come and go in multiples of this."""
    each: Room = NOTHING
    """One trainer."""
    fixed: tuple[Part, ...] = ()
    servers: Servers | None = None
    pools: frozenset[str] | None = None
    """Where its trainers can run. None: everywhere. Its other Pods may have other pools."""

    target: int = 0
    """Trainers it may have by the last decision; 0: it was never admitted, or was put back."""
    placed: Mapping[str, int] = field(default_factory=dict)
    """Trainers that stay, by host."""
    fixed_placed: Mapping[str, Room] = field(default_factory=dict)
    """What its other Pods have, by host."""
    pending: int = 0
    """Trainers that exist and have no host yet, or are still to be made."""
    unbound_since: tuple[Seconds, ...] = ()
    """Since when each of those that exist has."""
    fixed_pending: tuple[Part, ...] = ()
    """Fixed Pods of an admitted job that have no host yet."""
    running: int = 0
    """Trainers that run."""
    leaving: int = 0
    """Trainers that were told to end."""
    ended: int = 0
    """Trainers that ended by themselves, well or badly."""

    suspended: bool = False
    """By its owner. It takes no part, and keeps what it attained."""
    over: bool = False
    resizing: bool = False
    """Its last change has not settled: fewer Pods run than it may have, or some are still leaving."""
    attained: Attained | None = None
    """None: it has never been seen by the scheduler."""
    waiting_since: Seconds | None = None
    short_since: Seconds | None = None
    """Since when it has been admitted without hosts for all of its gang."""
    frozen_until: Seconds = 0.0
    asked: int = 0
    """The most it asked for when its last change was decided; 0: not known. Who has come to ask for more grows into
    free room although it is frozen."""
    freezing_window: Seconds | None = None
    """None: the setting."""

    @property
    def is_elastic(self) -> bool:
        return self.min < self.max

    @property
    def has_devices(self) -> bool:
        """Some of its Pods ask for devices."""
        if self.each.gpu or (self.servers is not None and self.servers.each.gpu):
            return True
        return any(part.each.gpu for part in self.fixed)

    @property
    def is_admitted(self) -> bool:
        return self.target > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServicePod:
    """A Pod that is not a scheduled job's and has no host."""

    namespace: str
    name: str
    each: Room
    priority: int = 0
    since: Seconds = 0.0
    pools: frozenset[str] | None = None
    nominated: str | None = None
    """The host that Kubernetes' own scheduler is clearing for it: somebody is already at it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """The most that a namespace's jobs may ask for together. None: no limit of that kind."""

    cpu: int | None = None
    memory: int | None = None
    gpu: int | None = None
    pods: int | None = None
    used_by_others: Room = NOTHING
    """What Pods of the namespace have that no scheduled job owns, where the limit counts them too."""
    pods_of_others: int = 0
    leaving: Room = NOTHING
    """What Pods of jobs that take no part have until they are gone; it stops nobody for good."""
