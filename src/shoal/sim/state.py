"""The simulated cluster as it stands: hosts with what is taken of them, jobs with their Pods.

These are the only mutable things of a trace simulation. The engine changes them; schedulers look.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from shoal.scheduler.rows import Room
from shoal.sim.models import Model, Placement, placement_of
from shoal.sim.recorder import Gauge
from shoal.sim.workload import JobSpec


class PodState(StrEnum):
    PENDING = "pending"
    """It has no host yet."""
    STARTING = "starting"
    READY = "ready"
    LEAVING = "leaving"
    """It was told to go and still holds its room."""


@dataclass(slots=True, eq=False)
class Pod:
    name: str
    each: Room
    ordinal: int
    """In the order in which the Pods of a job were made: the oldest leads."""
    host: int | None = None
    wanted: int | None = None
    """The host that the scheduler has in mind for it."""
    state: PodState = PodState.PENDING
    until: float = 0.0
    """When a leaving Pod is gone."""
    since: float = 0.0


@dataclass(slots=True, eq=False)
class SimJob:
    spec: JobSpec
    model: Model
    order: int
    """By submission."""
    target: int = 0
    """Trainers by the last decision; 0: it waits."""
    pods: dict[str, Pod] = field(default_factory=dict)
    made: int = 0
    """Pods so far."""
    world: tuple[int, ...] = ()
    """The host of each member that trains, the oldest first; empty: it does not train."""
    placement: Placement = ()
    settled: float = 0.0
    """Its progress is known up to here."""
    blocked_until: float = 0.0
    """Its world does not make progress before this."""
    trained: float = 0.0
    """Seconds of progress so far."""
    slowdown: float = 0.0
    generation: int = 0
    """Counts worlds, so that an event for an old one is known to be void."""
    started: float | None = None
    finished: float | None = None
    moves: int = 0
    held: Gauge = field(default_factory=Gauge)
    """Pods with a host, over time."""
    effective: float = 0.0
    """What it holds and trains with, now."""

    def staying(self) -> Iterator[Pod]:
        return (pod for pod in self.pods.values() if pod.state is not PodState.LEAVING)

    def enter(self, world: tuple[int, ...]) -> None:
        self.world = world
        self.placement = placement_of(world)
        self.generation += 1


class Hosts:
    """What is taken of each host."""

    def __init__(self, capacities: Iterable[Room]) -> None:
        self.capacity = list(capacities)
        self.free = list(self.capacity)
        self.open = [True] * len(self.capacity)
        self.names = [f"host-{at:04d}" for at in range(len(self.capacity))]
        self.index = {name: at for at, name in enumerate(self.names)}

    def fits(self, host: int, each: Room) -> bool:
        return self.open[host] and self.free[host].holds(each)

    def take(self, host: int, each: Room) -> None:
        self.free[host] = self.free[host].minus(each)

    def give_back(self, host: int, each: Room) -> None:
        self.free[host] = self.free[host].plus(each)

    def choose(self, each: Room, wanted: int | None) -> int | None:
        """The host that was planned if it has room, else the emptiest that has, as Kubernetes would."""
        if wanted is not None and self.fits(wanted, each):
            return wanted
        free = self.free
        fitting = [at for at in range(len(free)) if self.fits(at, each)]
        return max(fitting, key=lambda at: (free[at].gpu, free[at].cpu, free[at].memory, -at), default=None)
