"""How long training stands still when a worker is killed, a node is killed, a node is added.

Who: Shoal with the SDK (`scripts/elastic.py`); Shoal with a script that knows nothing of it, and torchrun with the very
same script (`scripts/plain.py`, plain DDP). torchrun is *tuned* (monitor interval 0.1 s, last call 1 s, dead after 3
heartbeats of 1 s, no shared store: with it joins hang), and in the full run also as it comes, which takes minutes.
`dlrover-run` takes part in the full run when it is on the PATH, tuned in the same way. All on this machine: three nodes
of one process, a perceptron of 85,000 parameters with gloo, one thread each, steps of at least 10 ms.

What: one life of a job is: two nodes train, a third is added, a worker is killed, a node (agent and worker) is killed,
with SIGKILL and at a random point of a step, never the node that hosts torchrun's store. Every process writes the time
of every finished step to a file, whoever runs it; from these files:

- *kill*: from the signal until all ranks of a new world have finished a step in it. For the SDK that is the survivors'
  world; restarted processes join it later. Everybody else restarts all processes.
- *join*: the pause is the longest time in which nobody finished a step, minus a median step. It is counted from the
  launch of the node (the command that asks for it) on; so is the time until its first finished step, which is
  mostly its imports.

An attempt that has not recovered within the bound is counted and its job ended; what was left to measure is measured
on another. The systems take turns, one life each.
"""

import contextlib
import itertools
import math
import random
import shutil
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import psutil

from _common import Row, kill_all, parse_options, progress, report, tree
from _fleets import DlroverFleet, Finished, Fleet, GaveUp, Job, OutOfTime, ShoalFleet, TorchrunFleet, Trial

NODES = 3
STEADY_STEPS = 15
PACE = "0.01"
QUICK_SECONDS = 160.0
"""After so long a quick run ends what it is doing and tells what it has."""
DEFAULT_ROUNDS = 3
"""torchrun as it comes takes minutes for a life: it lives fewer of them."""
TUNED = ("--monitor-interval=0.1", "--rdzv-conf=last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=3")


class Case(StrEnum):
    KILL_WORKER = "kill worker"
    KILL_NODE = "kill node"
    PAUSE = "add node, pause of the others"
    JOIN = "add node, launch to its first step"


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    name: str
    script: str
    make: Callable[[Job], Fleet]
    bound: float
    """Seconds after which an attempt counts as never recovered."""
    start: float
    """Seconds that its start may take."""


SDK = System(name="sdk", script="elastic.py", make=ShoalFleet, bound=30, start=60)
PLAIN = System(name="plain", script="plain.py", make=ShoalFleet, bound=30, start=60)
TORCHRUN = System(
    name="torchrun, tuned",
    script="plain.py",
    make=lambda job: TorchrunFleet(job, *TUNED, share_store=False),
    bound=30,
    start=60,
)
DLROVER = System(
    name="dlrover-run, tuned",
    script="plain.py",
    make=lambda job: DlroverFleet(job, "--monitor_interval=0.1", "--rdzv_conf=lastcall_timeout=1"),
    bound=60,
    start=120,
)
TORCHRUN_DEFAULT = System(name="torchrun, default", script="plain.py", make=TorchrunFleet, bound=120, start=120)


@dataclass(slots=True)
class Results:
    """Of one system and case: seconds of each attempt that recovered, and how many did not."""

    seconds: list[float]
    never: int = 0

    @property
    def median(self) -> float | None:
        return statistics.median(self.seconds) if self.seconds else None

    @property
    def attempts(self) -> int:
        return len(self.seconds) + self.never


Table = Mapping[tuple[System, Case], Results]


# One life ------------------------------------------------------------------------------------------------


class Life:
    """One job from its start to its end, measured on the way."""

    def __init__(self, system: System, trial: Trial, results: Table, chance: random.Random) -> None:
        self._system = system
        self._trial = trial
        self._results = results
        self._chance = chance

    def start(self, nodes: int) -> None:
        self._trial.fleet.start(nodes)
        self._trial.wait_steady(nodes, steps=STEADY_STEPS, seconds=self._system.start)

    def suffer(self, case: Case) -> None:
        match case:
            case Case.JOIN | Case.PAUSE:
                self._add_node()
            case Case.KILL_WORKER:
                self._kill(case, lambda pid: [psutil.Process(pid)])
            case Case.KILL_NODE:
                self._kill(case, lambda pid: tree(self._trial.fleet.node_of(pid).pid))

    def _add_node(self) -> None:
        steps = self._trial.steps
        launched = time.time()
        self._trial.fleet.add_node()
        with self._counted(Case.JOIN):
            self._trial.wait_steady(NODES, steps=STEADY_STEPS, seconds=self._system.start)
        self._note(Case.JOIN, first_steps(steps.all, NODES, since=launched) - launched)
        self._note(Case.PAUSE, longest_gap(steps.all, since=launched) - median_step(steps.all, before=launched))

    def _kill(self, case: Case, whom: Callable[[int], list[psutil.Process]]) -> None:
        before = self._trial.wait_steady(NODES, steps=STEADY_STEPS, seconds=self._system.start)
        victims = whom(self._victim(before))
        time.sleep(self._chance.uniform(0.0, 0.05))
        killed = time.time()
        kill_all(victims)
        with self._counted(case):
            self._trial.wait_for(
                lambda: recovered(self._trial.steps.all, before, since=killed) is not None,
                seconds=self._system.bound,
                what="recovery",
            )
        at = recovered(self._trial.steps.all, before, since=killed)
        assert at is not None
        self._note(case, at - killed)

    def _victim(self, world: list[Finished]) -> int:
        fleet = self._trial.fleet
        return next(member.pid for member in reversed(world) if fleet.may_lose(fleet.node_of(member.pid)))

    @contextlib.contextmanager
    def _counted(self, case: Case) -> Iterator[None]:
        try:
            yield
        except GaveUp:
            self._results[self._system, case].never += 1
            raise

    def _note(self, case: Case, seconds: float) -> None:
        self._results[self._system, case].seconds.append(seconds)


def recovered(steps: list[Finished], before: list[Finished], *, since: float) -> float | None:
    """When all ranks of a world that is not `before` had finished a step in it."""
    pids = {member.pid for member in before}
    fresh = [s for s in steps if s.at > since and (s.pid not in pids or s.size != len(before))]
    ends = [first_steps(fresh, size, since=since) for size in {s.size for s in fresh} if is_whole(fresh, size)]
    return min(ends, default=None)


def is_whole(steps: list[Finished], size: int) -> bool:
    return {s.rank for s in steps if s.size == size} == set(range(size))


def first_steps(steps: list[Finished], size: int, *, since: float) -> float:
    """When the last rank of a world of this size had finished its first step."""
    firsts: dict[int, float] = {}
    for s in steps:
        if s.size == size and s.at > since:
            firsts[s.rank] = min(s.at, firsts.get(s.rank, s.at))
    return max(firsts.values())


def longest_gap(steps: list[Finished], *, since: float) -> float:
    times = sorted(s.at for s in steps if s.at > since)
    return max(later - earlier for earlier, later in itertools.pairwise(times))


def median_step(steps: list[Finished], *, before: float) -> float:
    times = sorted(s.at for s in steps if s.at < before and s.rank == 0)
    return statistics.median(later - earlier for earlier, later in itertools.pairwise(times))


# All of them ---------------------------------------------------------------------------------------------


def live_once(system: System, results: Table, chance: random.Random, *, until: float) -> None:
    """Let a job suffer everything; if it does not survive something, another one the rest."""
    left = [Case.JOIN, Case.KILL_WORKER, Case.KILL_NODE]
    while left:
        first = left.pop(0)
        with Trial(
            system.make,
            system.script,
            *("--pace", PACE),
            nodes=(NODES - 1, NODES),
            checkpoint=system is not SDK,
            until=until,
        ) as trial:
            life = Life(system, trial, results, chance)
            try:
                life.start(NODES - 1 if first is Case.JOIN else NODES)
                life.suffer(first)
                while left:
                    life.suffer(left.pop(0))
            except GaveUp as exc:
                progress(f"{system.name}: {exc}")


def live_in_turns(systems: Sequence[System], results: Table, *, rounds: int, until: float) -> None:
    chance = random.Random(0)
    for number in range(rounds):
        for system in systems:
            if system is TORCHRUN_DEFAULT and number >= DEFAULT_ROUNDS:
                continue
            progress(f"life {number + 1} of {rounds}: {system.name}")
            try:
                live_once(system, results, chance, until=until)
            except OutOfTime:
                progress("the time for a quick run is over")
                return


def rows(results: Table, peers: Iterable[System]) -> Iterable[Row]:
    peers = list(peers)
    for case in Case:
        for system in (SDK, PLAIN):
            mine = results[system, case]
            for peer in peers:
                theirs = results[peer, case]
                yield Row(
                    case=f"{system.name}: {case} ({len(mine.seconds)})",
                    value=mine.median,
                    unit="s",
                    peer=f"{peer.name} ({len(theirs.seconds)})",
                    peer_value=theirs.median,
                )
    for case in (Case.KILL_WORKER, Case.KILL_NODE, Case.JOIN):
        for system in (SDK, PLAIN):
            mine = results[system, case]
            for peer in peers:
                theirs = results[peer, case]
                yield Row(
                    case=f"{system.name}: {case}: never recovered, of {mine.attempts}",
                    value=mine.never,
                    unit="attempts",
                    peer=f"{peer.name}, of {theirs.attempts}",
                    peer_value=theirs.never,
                )


def main() -> None:
    options = parse_options(__doc__)
    results: Table = defaultdict(lambda: Results([]))
    if options.quick:
        peers, rounds, until = [TORCHRUN], 3, time.monotonic() + QUICK_SECONDS
    else:
        installed = [DLROVER] if shutil.which("dlrover-run") else []
        peers, rounds, until = [TORCHRUN, TORCHRUN_DEFAULT, *installed], 10, math.inf
    live_in_turns([SDK, *peers, PLAIN], results, rounds=rounds, until=until)
    what = f"{NODES} nodes of 1 process, 85,000 parameters, gloo; medians of (n) attempts"
    report("recovery", what, list(rows(results, peers)), options)


if __name__ == "__main__":
    main()
