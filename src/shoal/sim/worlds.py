"""Schedules of joins, leaves, losses and late messages, each from one seed, against the real job core.

    python -m shoal.sim.worlds --seeds 0:3000     many schedules; the seeds of those that fail are printed
    python -m shoal.sim.worlds --seed 17          one schedule with its trace, the same to the byte every time
    ... --failovers                               masters die too, and others take over
    ... --outages                                 and for a while nothing that they decide can be recorded

What is checked in every run: a generation is used once and all its members see the same ranks; a collective is entered
by members with the same state; no update is lost but with the dead, and then one; every run ends, with success or
with a failure that something in the schedule explains.
"""

import argparse
import functools
import multiprocessing
import os
import random
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from datetime import timedelta

from shoal.core import job as jobs
from shoal.core.hang import HangSettings
from shoal.core.job.values import JobSettings, JobSpec, ScaleAsked
from shoal.core.view import JobPhase
from shoal.sim.agents import Agent
from shoal.sim.cluster import Cluster, Crash, Handle
from shoal.sim.training import Phase, Process, Violation

LONGEST = 600_000_000
"""Microseconds after which a run that has not ended is stuck."""
MOST_EVENTS = 60_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    seed: int
    ended: JobPhase | None
    violation: str | None
    worlds: int = 0
    lost_steps: int = 0
    faults: int = 0
    events: int = 0
    seconds: float = 0.0

    def __str__(self) -> str:
        how = f"VIOLATION: {self.violation}" if self.violation else str(self.ended)
        return (
            f"seed {self.seed}: {how}; {self.worlds} worlds, {self.faults} faults, {self.lost_steps} steps lost, "
            f"{self.events} events, {self.seconds:.3f} simulated seconds"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Outage:
    """At this event of a schedule nothing can be recorded any more, at that one the master dies."""

    away_at: int
    crash_at: int
    how: Crash
    micros: int = 20_000_000


class Schedule:
    """What happens to a cluster, at which of its events."""

    def __init__(
        self, cluster: Cluster, chance: random.Random, *, failovers: bool = False, outages: bool = False
    ) -> None:
        self.cluster = cluster
        self.failovers = failovers or outages
        """Masters die too, as often as all other things together happen."""
        self.outages = outages
        """Also, nothing can be recorded for a while, as often."""
        self.chance = chance
        self.faults = 0
        self.crashes = 0
        count = chance.choice([0, 1, 1, 2, 3, 4, 6])
        horizon = chance.choice([60, 200, 500])
        self.due = [(at, self.strike) for at in sorted(chance.randrange(1, horizon) for _ in range(count))]

    def add(self, outage: Outage) -> None:
        """Beside all else that happens."""
        self.due += [
            (outage.away_at, lambda: self.cluster.lose_store(outage.micros)),
            (outage.crash_at, lambda: self._crash_master(outage.how)),
        ]
        self.due.sort(key=lambda due: due[0])

    def strike(self) -> None:
        """Do one of the things that may happen."""
        if self.outages and self.chance.random() < 0.3:
            self._lose_store()
            return
        if self.failovers and self.chance.random() < 0.5:
            self._crash_master(self.chance.choice(list(Crash)))
            return
        actions: list[tuple[Callable[[], None], int]] = [
            (self._kill_process, 5),
            (self._kill_node, 3),
            (self._scale, 5),
            (self._crash_process, 1),
            (self._cut, 2),
            (self._freeze_node, 1),
            (self._freeze_process, 1),
            (self._tear, 1),
        ]
        action = self.chance.choices([a for a, _ in actions], [weight for _, weight in actions])[0]
        self.faults += 1
        action()

    def _crash_master(self, how: Crash) -> None:
        self.faults += 1
        self.cluster.losses += 1
        self.cluster.note("strike: crash master", how)
        self.cluster.crash_master(how)

    def _lose_store(self) -> None:
        micros = self.chance.choice([200_000, 2_000_000, 20_000_000])
        self.faults += 1
        self.cluster.note("strike: the store is away for", micros / 1e6)
        self.cluster.lose_store(micros)

    def _agents(self) -> list[Agent]:
        return [agent for agent in self.cluster.agents.values() if agent.alive]

    def _processes(self) -> list[Process]:
        return [p for a in self._agents() for p in a.processes.values() if p.phase is not Phase.GONE]

    def _kill_process(self) -> None:
        self._end_process(137)

    def _crash_process(self) -> None:
        self.crashes += 1
        self._end_process(1)

    def _end_process(self, code: int) -> None:
        if processes := self._processes():
            process = self.chance.choice(processes)
            self.cluster.losses += 1
            self.cluster.note("strike: end process", process, code)
            process.die(code)

    def _kill_node(self) -> None:
        if agents := self._agents():
            agent = self.chance.choice(agents)
            self.cluster.losses += 1
            self.cluster.note("strike: kill node", agent.node)
            agent.end(137)

    def _scale(self) -> None:
        spec = self.cluster.job.spec
        count = self.chance.randrange(spec.min_nodes, spec.max_nodes + 1)
        if jobs.refusal(self.cluster.job, count) is None:
            self.cluster.happen(ScaleAsked(count=count, who="somebody"))

    def _cut(self) -> None:
        if agents := self._agents():
            agent = self.chance.choice(agents)
            self.cluster.losses += 1
            self.cluster.note("strike: cut", agent.node)
            agent.cut()

    def _freeze_node(self) -> None:
        if agents := self._agents():
            agent = self.chance.choice(agents)
            self.cluster.losses += 1
            self.cluster.note("strike: freeze node", agent.node)
            agent.freeze()
            self.cluster.clock.after(self.chance.choice([500_000, 30_000_000]), agent.thaw)

    def _freeze_process(self) -> None:
        """Hangs are looked for in SDK jobs, from the first world to the last step."""
        processes = [p for p in self._processes() if p.phase is not Phase.FINISHED]
        if processes and self.cluster.job.sdk:
            process = self.chance.choice(processes)
            self.cluster.losses += 1
            self.cluster.note("strike: freeze process", process)
            process.frozen = True
            if self.chance.random() < 0.5:
                self.cluster.clock.after(500_000, process.thaw)

    def _tear(self) -> None:
        """A connection between two members of a world fails; nobody is gone."""
        groups = [p for p in self._processes() if p.group is not None and p.phase is Phase.TRAINING]
        if groups:
            process = self.chance.choice(groups)
            assert process.group is not None
            self.cluster.losses += 1
            self.cluster.note("strike: tear", process)
            process.group.tear(process.rank)
            process.peer_closed(process.group)


def run(
    seed: int,
    *,
    handle: Handle = jobs.handle,
    trace: Callable[[str], None] | None = None,
    failovers: bool = False,
    outages: bool = False,
    outage: Outage | None = None,
) -> Outcome:
    """One schedule from beginning to end. `failovers`: masters die too; `outages`: and cannot always record; `outage`:
    that one besides."""
    chance = random.Random(seed)
    unit = chance.choice([1, 1, 1, 1, 2])
    low = unit * chance.choice([1, 1, 1, 2])
    high = low + unit * chance.randrange(0, 4 if unit == 1 else 2)
    nproc = chance.choice([1, 1, 1, 2])
    spec = JobSpec(name="sim", uid="sim", min_nodes=low, max_nodes=high, node_unit=unit, nproc=nproc)
    settings = JobSettings(
        suspect_after=timedelta(seconds=5),
        hang=HangSettings(timeout=timedelta(seconds=4), after_steps=0, patience=2.0),
    )
    cluster = Cluster(
        spec,
        settings,
        nodes=chance.randrange(low, high + 1, unit),
        total=chance.randrange(1, 12),
        chance=chance,
        trace=trace,
        handle=handle,
    )
    schedule = Schedule(cluster, chance, failovers=failovers, outages=outages)
    if outage is not None:
        schedule.add(outage)
    violation: str | None = None
    try:
        _drive(cluster, schedule)
        _judge(cluster, schedule)
    except Violation as exc:
        violation = str(exc)
    return Outcome(
        seed=seed,
        ended=cluster.job.phase if cluster.over else None,
        violation=violation,
        worlds=cluster.worlds,
        lost_steps=cluster.lost_steps,
        faults=schedule.faults,
        events=cluster.clock.events,
        seconds=cluster.clock.micros / 1e6,
    )


def _drive(cluster: Cluster, schedule: Schedule) -> None:
    due = list(schedule.due)
    clock = cluster.clock
    while not cluster.over and clock.step():
        while due and clock.events >= due[0][0]:
            _, strike = due.pop(0)
            strike()
        if clock.micros > LONGEST or clock.events > MOST_EVENTS:
            break


def _judge(cluster: Cluster, schedule: Schedule) -> None:
    job = cluster.job
    if not cluster.over:
        members = {m.node: (m.standing.value, m.incarnation) for m in job.rendezvous.members.values()}
        breaking = job.rendezvous.breaking
        raise Violation(f"stuck in {job.phase} ({job.reason}), breaking {breaking}, members {members}")
    if job.phase is JobPhase.FAILED and not (schedule.crashes or "after training had finished" in job.reason):
        raise Violation(f"failed with nobody to blame: {job.reason}")
    if job.phase is JobPhase.SUCCEEDED and cluster.highest != cluster.total:
        raise Violation(f"succeeded after {cluster.highest} of {cluster.total} steps")


def run_many(
    seeds: Sequence[int], *, at_once: int = 1, failovers: bool = False, outages: bool = False
) -> list[Outcome]:
    """Run these schedules, `at_once` processes sharing the work. The order and content of the answer is the same."""
    one = functools.partial(run, failovers=failovers, outages=outages)
    if at_once == 1 or len(seeds) < 200:
        return [one(seed) for seed in seeds]
    with ProcessPoolExecutor(at_once, mp_context=multiprocessing.get_context("spawn")) as pool:
        return list(pool.map(one, seeds, chunksize=50))


def _seeds(text: str) -> range:
    first, colon, last = text.rpartition(":")
    seeds = range(int(first) if colon else 0, int(last))
    if not seeds:
        raise ValueError("no seeds")
    return seeds


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m shoal.sim.worlds", description="Simulated schedules of worlds.")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--seed", type=int, help="run one schedule and print its trace")
    what.add_argument("--seeds", metavar="N|A:B", type=_seeds, help="run the schedules 0 to N-1, or A to B-1")
    parser.add_argument("--at-once", type=int, default=os.cpu_count() or 1, help="processes that share the work")
    parser.add_argument("--failovers", action="store_true", help="masters die too")
    parser.add_argument("--outages", action="store_true", help="and for a while they can record nothing")
    given = parser.parse_args(arguments)
    kind = {"failovers": given.failovers, "outages": given.outages}
    out = sys.stdout
    if given.seed is not None:
        outcome = run(given.seed, trace=lambda line: print(line, file=out), **kind)
        print(outcome, file=out)
        return 1 if outcome.violation else 0
    began = time.monotonic()
    outcomes = run_many(given.seeds, at_once=given.at_once, **kind)
    failed = [o for o in outcomes if o.violation]
    for outcome in failed:
        print(outcome, file=out)
    took = time.monotonic() - began
    print(
        f"{len(outcomes)} schedules, {len(failed)} with violations, "
        f"{sum(o.ended is JobPhase.SUCCEEDED for o in outcomes)} jobs succeeded, "
        f"{sum(o.ended is JobPhase.FAILED for o in outcomes)} failed for a reason, "
        f"{sum(o.worlds for o in outcomes)} worlds, {sum(o.lost_steps for o in outcomes)} steps lost, {took:.1f} s",
        file=out,
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
