"""Masters that die at every point of simulated schedules: whatever else happens, the promises hold."""

import os
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime

import pytest

from shoal.core import job as jobs
from shoal.core.job.values import AgentJoined, Effect, Event, Job
from shoal.core.view import JobPhase
from shoal.sim import worlds
from shoal.sim.cluster import Crash

SEEDS = int(os.environ.get("SHOAL_SIM_SEEDS", "2000"))
OUTAGES = SEEDS // 2


@pytest.mark.parametrize("kind", ["failovers", "outages"])
def test_every_schedule_in_which_masters_die_keeps_the_promises(kind: str) -> None:
    """With outages nothing can be recorded for a while, and who takes over then knows less than the agents."""
    seeds = range(SEEDS if kind == "failovers" else OUTAGES)
    outcomes = worlds.run_many(seeds, at_once=os.cpu_count() or 1, **{kind: True})
    broken = [str(outcome) for outcome in outcomes if outcome.violation]
    assert not broken, f"replay with: python -m shoal.sim.worlds --{kind} --seed N\n" + "\n".join(broken)
    assert sum(outcome.ended is JobPhase.SUCCEEDED for outcome in outcomes) >= 0.9 * len(seeds)


def test_a_torn_connection_told_just_before_the_master_died_is_not_forgotten() -> None:
    outcome = worlds.run(4603, outages=True)
    assert outcome.violation is None
    assert outcome.ended is JobPhase.SUCCEEDED


@pytest.mark.parametrize("seed", [28, 379])
def test_a_master_that_could_record_nothing_may_die_at_every_step(seed: int) -> None:
    """In schedules with a loss and a resize: its store is away since the beginning, or since a moment ago."""
    steps = worlds.run(seed).events
    outages = [
        worlds.Outage(away_at=max(1, crash_at - before), crash_at=crash_at, how=how, micros=5_000_000)
        for crash_at in range(2, steps)
        for before, how in ((1_000, Crash.IDLE), (12, Crash.UNACTED), (4, Crash.UNRECORDED))
    ]
    assert len(outages) > 200
    broken = {outage: why for outage in outages if (why := worlds.run(seed, outage=outage).violation)}
    assert not broken


# A simulation that notices nothing is worth nothing: these masters do not listen to what agents and platforms tell.

Turned = tuple[Job, tuple[Effect, ...]]


def hears_no_numbers(job: Job, event: Event, now: datetime) -> Turned:
    if isinstance(event, AgentJoined):
        event = replace(event, prepared=0, generation=min(event.generation, job.rendezvous.generation))
    return jobs.handle(job, event, now)


def waits_for_nobody(job: Job, event: Event, now: datetime) -> Turned:
    return jobs.handle(replace(job, rendezvous=replace(job.rendezvous, strays=frozenset())), event, now)


def believes_its_own_incarnations(job: Job, event: Event, now: datetime) -> Turned:
    if isinstance(event, AgentJoined) and event.node in job.nodes:
        event = replace(event, incarnation=job.nodes[event.node].incarnation)
    return jobs.handle(job, event, now)


@pytest.mark.parametrize(
    ("broken", "seeds"),
    [
        (hears_no_numbers, range(50, 100)),
        (waits_for_nobody, range(90, 140)),
        (believes_its_own_incarnations, range(590, 640)),
    ],
)
def test_a_master_that_does_not_learn_what_was_not_recorded_is_caught(
    broken: Callable[[Job, Event, datetime], Turned], seeds: range
) -> None:
    assert any(worlds.run(seed, handle=broken, outages=True).violation for seed in seeds), "nothing was noticed"


def test_a_seed_with_failovers_replays_to_the_byte() -> None:
    traces: list[list[str]] = [[], []]
    for trace in traces:
        worlds.run(5, trace=trace.append, failovers=True)
    assert traces[0] == traces[1]
    assert any("takes over" in line for seed in range(20) for line in _trace(seed))


def _trace(seed: int) -> list[str]:
    lines: list[str] = []
    worlds.run(seed, trace=lines.append, failovers=True)
    return lines
