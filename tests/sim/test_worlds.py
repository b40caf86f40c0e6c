"""Whole jobs from a seed: thousands of schedules hold the promises, and the simulation notices when one does not."""

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime

import pytest

from shoal.core import job as jobs
from shoal.core.job.values import Effect, Event, Job, NodeAcked, NodeReady, Tell
from shoal.core.view import JobPhase
from shoal.core.world import Interrupt, Prepare, World
from shoal.sim import worlds

SEEDS = int(os.environ.get("SHOAL_SIM_SEEDS", "3000"))

Turned = tuple[Job, tuple[Effect, ...]]


def test_every_schedule_keeps_the_promises() -> None:
    outcomes = worlds.run_many(range(SEEDS), at_once=os.cpu_count() or 1)
    broken = [str(outcome) for outcome in outcomes if outcome.violation]
    assert not broken, "replay with: python -m shoal.sim.worlds --seed N\n" + "\n".join(broken)
    assert len(outcomes) == SEEDS
    succeeded = sum(outcome.ended is JobPhase.SUCCEEDED for outcome in outcomes)
    assert succeeded >= 0.9 * SEEDS, "most of what can happen to a job does not end it"
    assert sum(outcome.worlds for outcome in outcomes) > 2 * SEEDS, "the schedules change worlds"


def test_a_seed_replays_to_the_byte() -> None:
    """In two interpreters with different hash seeds: nothing may hang on the order of a set."""
    runs = [
        subprocess.run(
            [sys.executable, "-m", "shoal.sim.worlds", "--seed", "11"],
            capture_output=True,
            check=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2")
    ]
    assert runs[0] == runs[1]
    assert runs[0].count(b"\n") > 20
    assert runs[0].splitlines()[-1].startswith(b"seed 11: succeeded")


def test_a_run_in_many_is_the_run_alone() -> None:
    together = worlds.run_many(range(400, 620), at_once=2)
    assert together[7] == worlds.run(407)
    assert [outcome.seed for outcome in together] == list(range(400, 620))


def test_the_command_says_how_it_went(capsys: pytest.CaptureFixture[str]) -> None:
    assert worlds.main(["--seeds", "0:20", "--at-once", "1"]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("20 schedules, 0 with violations")


# A simulation that notices nothing is worth nothing: these masters are each broken in one way.


def forgets_generations(job: Job, event: Event, now: datetime) -> Turned:
    return jobs.handle(replace(job, rendezvous=replace(job.rendezvous, generation=0)), event, now)


def takes_any_state_for_the_newest(job: Job, event: Event, now: datetime) -> Turned:
    if isinstance(event, NodeReady):
        event = replace(event, steps=(None,) * len(event.steps))
    return jobs.handle(job, event, now)


def _with_world(turned: Turned, change: Callable[[World], World]) -> Turned:
    job, effects = turned
    return job, tuple(
        replace(e, what=Prepare(change(e.what.world))) if isinstance(e, Tell) and isinstance(e.what, Prepare) else e
        for e in effects
    )


def never_sends_state(job: Job, event: Event, now: datetime) -> Turned:
    return _with_world(jobs.handle(job, event, now), lambda world: replace(world, transfer=False))


def gives_rank_0_to_all(job: Job, event: Event, now: datetime) -> Turned:
    def all_first(world: World) -> World:
        return replace(world, members=tuple(replace(m, base_rank=0) for m in world.members))

    return _with_world(jobs.handle(job, event, now), all_first)


def _without(turned: Turned, kind: type) -> Turned:
    job, effects = turned
    return job, tuple(e for e in effects if not (isinstance(e, Tell) and isinstance(e.what, kind)))


def forgets_to_interrupt(job: Job, event: Event, now: datetime) -> Turned:
    return _without(jobs.handle(job, event, now), Interrupt)


def believes_an_old_incarnation(job: Job, event: Event, now: datetime) -> Turned:
    if isinstance(event, NodeReady | NodeAcked) and event.node in job.nodes:
        event = replace(event, incarnation=job.nodes[event.node].incarnation)
    nodes = {n: replace(node, incarnation=1) if node.is_live else node for n, node in job.nodes.items()}
    return jobs.handle(replace(job, nodes=nodes), event, now)


@pytest.mark.parametrize(
    "broken",
    [
        forgets_generations,
        takes_any_state_for_the_newest,
        never_sends_state,
        gives_rank_0_to_all,
        forgets_to_interrupt,
        believes_an_old_incarnation,
    ],
)
def test_a_broken_master_is_caught(broken: Callable[[Job, Event, datetime], Turned]) -> None:
    assert any(worlds.run(seed, handle=broken).violation for seed in range(150)), "150 schedules noticed nothing"


@pytest.mark.parametrize(("text", "count"), [("5", 5), ("7:10", 3)])
def test_seeds_are_a_number_or_a_range(text: str, count: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert worlds.main(["--seeds", text, "--at-once", "1"]) == 0
    assert capsys.readouterr().out.startswith(f"{count} schedules, 0 with violations")


def test_seeds_that_are_none_are_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        worlds.main(["--seeds", "3:3"])
    assert ended.value.code == 2
