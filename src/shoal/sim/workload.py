"""What is simulated: jobs that arrive, hosts, services beside them, and how long everything takes.

All plain values. The only thing made anew for each run is a job's `Model`, by the function that its spec holds.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from shoal.scheduler.rows import Priority, Room
from shoal.sim.models import Model

GIBIBYTE = 2**30
TRAINER = Room(cpu=4_000, memory=16 * GIBIBYTE, gpu=1)
"""A trainer of which nothing else is said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """A job as its owner wrote it."""

    name: str
    submitted: float
    model: Callable[[], Model]
    size: int
    """What its owner asks for; policies that resize choose between `min` and `max` instead."""
    min: int = 1
    max: int = 1
    each: Room = TRAINER
    namespace: str = "default"
    priority: Priority = Priority.NORMAL
    application: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceSpec:
    """An online service whose Pods follow the day: fewest at its start, most half a day later."""

    name: str
    each: Room
    low: int
    high: int
    period: float = 86_400.0

    def wanted(self, now: float) -> int:
        return round(self.low + (self.high - self.low) * (1.0 - math.cos(2.0 * math.pi * now / self.period)) / 2.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    name: str
    jobs: tuple[JobSpec, ...]
    """By submission."""
    hosts: tuple[Room, ...]
    """What each host has."""
    services: tuple[ServiceSpec, ...] = ()

    @property
    def capacity(self) -> Room:
        whole = Room()
        for host in self.hosts:
            whole = whole.plus(host)
        return whole


@dataclass(frozen=True, slots=True, kw_only=True)
class SimSettings:
    """How long things take, in seconds."""

    interval: float = 60.0
    """A scheduling round at every multiple of this."""
    reacts: bool = True
    """Whether arrivals, ends and losses bring a round at once. If not, room is handed on at the next round only."""
    spacing: float = 1.0
    """The least time between two rounds."""
    pod_start: float = 5.0
    """From a Pod's host being chosen until its trainer is ready."""
    startup: float = 30.0
    """Without progress, when a job starts or comes back from being suspended."""
    resize: float = 5.0
    """Without progress, when the members of a running job change."""
    grace: float = 30.0
    """How long a Pod that was told to go still holds its room."""
    checkpoint: float = 600.0
    """Between checkpoints. What was trained since the last is lost when all members of a job are lost at once."""
    host_mtbf: float | None = None
    """The mean time between two failures of a host. None: hosts never fail."""
    host_repair: float = 900.0
    service_step: float = 300.0
    """How often services look at what they want."""
    interference: float = 0.0
    """By how much a job on several hosts is slower when another such job shares one of them."""
    until: float | None = None
    """The run ends here even if jobs have not."""


ON_POLLUX_GROUND = SimSettings(reacts=False, pod_start=0.0, startup=30.0, resize=30.0, grace=0.0)
"""A round each minute and at no other time, and half a minute for each change: what the published runs assumed."""
