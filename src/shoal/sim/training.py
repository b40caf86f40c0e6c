"""Simulated training processes: what the SDK does, without tensors.

A process waits for a world, takes the source's state over, then does steps. Each step is one collective that every
process of the generation must enter; when it comes back the step is committed. A `Pause` is agreed on through a flag
that rides on the step's collective; an `Interrupt` gives the collective up. The model's state is a step and a digest
of all updates made to it: an update done twice, left out, or done on another state shows.
"""

import random
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from shoal.core.world import World
from shoal.sim.clock import Event, VirtualClock


@dataclass(frozen=True, slots=True)
class State:
    """A model after `step` updates. Sums differ in their last bits with the size of the world, and so do digests."""

    step: int
    digest: int

    def updated(self, size: int) -> "State":
        return State(self.step + 1, hash((self.digest, self.step + 1, size)))


FRESH = State(0, 0)


class Phase(StrEnum):
    STARTING = "starting"
    WAITING = "waiting"
    TRAINING = "training"
    FINISHED = "finished"
    GONE = "gone"


class Violation(AssertionError):
    """Something happened that must never happen."""


class Host(Protocol):
    """What a process tells its agent."""

    def process_ready(self, process: "Process") -> None: ...
    def process_acked(self, process: "Process", generation: int) -> None: ...
    def process_finished(self, process: "Process", generation: int) -> None: ...
    def process_gained(self, process: "Process", generation: int, step: int) -> None: ...
    def process_lost_peer(self, process: "Process", generation: int) -> None: ...
    def process_exited(self, process: "Process", code: int) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How long things take at most, in microseconds."""

    start: int = 900_000
    bootstrap: int = 20_000
    collective: int = 30_000
    compute: int = 120_000
    commit: int = 3_000
    drain: int = 10_000

    def step(self, size: int, chance: random.Random) -> int:
        """What a process computes in one step of a world of so many."""
        return chance.randrange(1, self.compute)


class Group:
    """The connections between the processes of one generation."""

    def __init__(self, world: World, clock: VirtualClock, chance: random.Random, pace: Pace) -> None:
        self.world = world
        self.clock = clock
        self.chance = chance
        self.pace = pace
        self.ranks: dict[int, Process] = {}
        self.torn = False
        self._entered: dict[int, dict[int, tuple[State | None, bool]]] = {}
        self._waiting: dict[int, int] = {}
        """Which collective a rank waits for."""

    def join(self, process: "Process", rank: int) -> None:
        if rank in self.ranks:
            raise Violation(f"rank {rank} of generation {self.world.generation} is {self.ranks[rank]} and {process}")
        self.ranks[rank] = process

    def enter(self, rank: int, index: int, state: State | None, pausing: bool) -> None:
        entered = self._entered.setdefault(index, {})
        entered[rank] = (state, pausing)
        self._waiting[rank] = index
        if self.torn:
            self._maybe_notice(rank)
        elif len(entered) == self.world.size:
            self._complete(index, entered)

    def _complete(self, index: int, entered: dict[int, tuple[State | None, bool]]) -> None:
        states = {state for state, _ in entered.values()}
        if (index > 0 or not self.world.transfer) and len(states) != 1:
            raise Violation(f"generation {self.world.generation}, collective {index}: states differ: {entered}")
        state = entered[self.world.source][0]
        pausing = any(flag for _, flag in entered.values())
        for rank in sorted(entered):
            process = self.ranks[rank]
            delay = self.chance.randrange(1, self.pace.collective)
            self.clock.after(delay, process.doing(lambda r=rank: self._arrived(r, index, state, pausing)))  # type: ignore[misc]

    def _arrived(self, rank: int, index: int, state: State | None, pausing: bool) -> None:
        if self._waiting.get(rank) == index:
            del self._waiting[rank]
            self.ranks[rank].collective_done(self, index, state, pausing)

    def tear(self, rank: int) -> None:
        """One end of the connections closes. What was on its way may be lost; whoever waits may notice, or not."""
        self._waiting.pop(rank, None)
        if self.torn:
            return
        self.torn = True
        for other in sorted(self._waiting):
            if self.chance.random() < 0.5:
                self._waiting[other] = -1
            self._maybe_notice(other)

    def _maybe_notice(self, rank: int) -> None:
        process = self.ranks[rank]
        if self.chance.random() < 0.5:
            delay = self.chance.randrange(1, self.pace.collective)
            self.clock.after(delay, process.doing(lambda: process.peer_closed(self)))


class Process:
    """One training process."""

    def __init__(
        self, host: Host, name: str, slot: int, total: int, clock: VirtualClock, chance: random.Random, pace: Pace
    ) -> None:
        self.host = host
        self.name = name
        self.slot = slot
        self.phase = Phase.STARTING
        self.frozen = False
        self.state: State | None = None
        self.synced = 0
        """The last generation whose state it took over."""
        self.group: Group | None = None
        self.rank = -1
        self.collectives = 0
        self._total = total
        self._clock = clock
        self._chance = chance
        self._pace = pace
        self._prepared = 0
        self._pausing = False
        self._committing = False
        self._interrupted = False
        self._backlog: list[Event] = []
        self._after(pace.start, self._started)

    def __str__(self) -> str:
        return self.name

    # Being a process

    def doing(self, event: Event) -> Event:
        """What this process is about to do: not when it is gone, and later when it is frozen."""

        def run() -> None:
            if self.phase is Phase.GONE:
                return
            if self.frozen:
                self._backlog.append(run)
            else:
                event()

        return run

    def _after(self, longest: int, event: Event) -> None:
        self._clock.after(self._chance.randrange(1, longest), self.doing(event))

    def thaw(self) -> None:
        self.frozen = False
        backlog, self._backlog = self._backlog, []
        for event in backlog:
            event()

    def die(self, code: int) -> None:
        if self.phase is Phase.GONE:
            return
        self.phase = Phase.GONE
        if self.group is not None:
            self.group.tear(self.rank)
        self.host.process_exited(self, code)

    # What its agent tells it

    def prepare(self, world: World, rank: int, group: Group) -> None:
        if self.phase is not Phase.WAITING:
            raise Violation(f"{self} is {self.phase} and is told to prepare generation {world.generation}")
        if world.generation <= self._prepared:
            if world.generation == self._prepared:
                return  # told again after a reconnect
            raise Violation(f"{self} prepared {self._prepared} and is told to prepare {world.generation}")
        self._prepared = world.generation
        self.group, self.rank = group, rank
        self._after(self._pace.bootstrap, lambda: self._bootstrapped(world.generation))

    def _bootstrapped(self, generation: int) -> None:
        if self._prepared == generation and self.phase is Phase.WAITING:
            self.host.process_acked(self, generation)

    def commit(self, generation: int) -> None:
        if self.phase is not Phase.WAITING or self._prepared != generation or self.group is None:
            raise Violation(f"{self} is {self.phase}, prepared {self._prepared}, and is told to commit {generation}")
        self.phase = Phase.TRAINING
        self._pausing = self._interrupted = self._committing = False
        self.collectives = 0
        self.group.join(self, self.rank)
        self._enter()

    def pause(self, generation: int) -> None:
        if self._is_in(generation) and self.phase is Phase.TRAINING:
            self._pausing = True

    def interrupt(self, generation: int | None) -> None:
        """None: whatever world it is in; a process of the same node died."""
        if self.phase not in (Phase.TRAINING, Phase.FINISHED) or not (generation is None or self._is_in(generation)):
            return
        if self._committing:
            self._interrupted = True  # never between the first write and the commit
        else:
            self._give_up()

    def release(self, generation: int) -> None:
        if self.phase is not Phase.FINISHED or not self._is_in(generation):
            raise Violation(f"{self} is {self.phase} and is released from generation {generation}")
        if self.state is None or self.state.step != self._total:
            raise Violation(f"{self} is released with {self.state} of {self._total} steps")
        self._after(self._pace.drain, lambda: self.die(0))

    def _is_in(self, generation: int) -> bool:
        return self.group is not None and self.group.world.generation == generation

    # Training

    def _started(self) -> None:
        self.phase = Phase.WAITING
        self.host.process_ready(self)

    def _enter(self) -> None:
        """Collective 0 hands the state on, the others are steps."""
        if self.phase is Phase.TRAINING and self.group is not None:
            self.group.enter(self.rank, self.collectives, self.state, self._pausing)

    def collective_done(self, group: Group, index: int, state: State | None, pausing: bool) -> None:
        if index == 0:
            self.state = state or FRESH
            self.synced = group.world.generation
            self._next(pausing)
        else:
            self._committing = True
            self._after(self._pace.commit, lambda: self._commit(group, pausing))

    def _commit(self, group: Group, pausing: bool) -> None:
        assert self.state is not None
        self._committing = False
        self.state = self.state.updated(group.world.size)
        self.host.process_gained(self, group.world.generation, self.state.step)
        self._next(pausing)

    def _next(self, pausing: bool) -> None:
        assert self.state is not None
        assert self.group is not None
        self.collectives += 1
        if self._interrupted:
            self._give_up()
        elif pausing:
            self._come_out()
        elif self.state.step >= self._total:
            self.phase = Phase.FINISHED
            self.host.process_finished(self, self.group.world.generation)
        else:
            world = self.group.world
            computing = self._pace.step(world.size, self._chance)
            self._clock.after(computing, self.doing(lambda: self._enter() if self._is_in(world.generation) else None))

    def _give_up(self) -> None:
        if self.group is not None:
            self.group.tear(self.rank)
        self._come_out()

    def _come_out(self) -> None:
        """Stand still, and say so a moment later."""
        self.phase = Phase.STARTING
        self._after(self._pace.drain, self._started)

    def peer_closed(self, group: Group) -> None:
        if self.group is group and self.phase is Phase.TRAINING:
            self.host.process_lost_peer(self, group.world.generation)
