"""Whole jobs with parameter servers from a seed: the promises hold, and the simulation notices when one does not."""

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime

import pytest

from shoal.core import job as jobs
from shoal.core.job.values import Effect, Event, Job, LeaveNode, SayWord, Tell, WordSaid
from shoal.core.ledger import Checkpoint
from shoal.core.ps.values import Phase
from shoal.core.ps.words import Drained, Save
from shoal.core.view import JobPhase
from shoal.sim import servers

Turned = tuple[Job, tuple[Effect, ...]]
SEEDS = range(40)


def watched(job: Job, event: Event, now: datetime) -> Turned:
    """As it is; what is told of changes agrees with what goes on."""
    after, effects = jobs.handle(job, event, now)
    assert after.servers is not None
    assert all(change.outcome is not None for change in after.changes[:-1])
    if after.changes and after.servers.failed is None:
        told, change = after.changes[-1], after.servers.change
        assert (told.phase, told.outcome is None) == (None if change is None else change.phase, change is not None)
        assert min(told.launch, told.prepare, told.drain, told.move, told.go) >= 0
        lasted = (now - told.at).total_seconds()
        assert told.launch + told.prepare + told.drain + told.move + told.go <= lasted + 1e-6
    return after, effects


@pytest.mark.parametrize("failovers", [False, True])
def test_every_schedule_keeps_the_promises(failovers: bool) -> None:
    outcomes = [servers.run(seed, handle=watched, failovers=failovers) for seed in SEEDS]
    kind = " --failovers" if failovers else ""
    broken = [str(outcome) for outcome in outcomes if outcome.violation]
    assert not broken, f"replay with: python -m shoal.sim.servers{kind} --seed N\n" + "\n".join(broken)
    assert sum(o.ended is JobPhase.SUCCEEDED for o in outcomes) >= 0.9 * len(SEEDS)
    assert sum(o.versions for o in outcomes) > len(SEEDS), "the schedules change servers"
    assert sum(o.rollbacks for o in outcomes), "and lose some"


def test_the_command_says_how_it_went(capsys: pytest.CaptureFixture[str]) -> None:
    assert servers.main(["--seeds", "0:2"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("2 schedules, 0 with violations")
    assert servers.main(["--seed", "3"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("seed 3: succeeded")


# A simulation that notices nothing is worth nothing: these masters are each broken in one way.


def leaves_the_ledger_where_it_is(job: Job, event: Event, now: datetime) -> Turned:
    after, effects = jobs.handle(job, event, now)
    assert job.servers is not None
    assert after.servers is not None
    current = after.servers.current
    if current is not None and current is not job.servers.current and current.is_rollback:
        after = replace(after, ledger=job.ledger)
    return after, effects


def forgets_the_mark(job: Job, event: Event, now: datetime) -> Turned:
    after, effects = jobs.handle(job, event, now)
    return after, tuple(_without_mark(effect) for effect in effects)


def _without_mark(effect: Effect) -> Effect:
    if not isinstance(effect, Tell) or not isinstance(effect.what, SayWord) or not isinstance(effect.what.word, Save):
        return effect
    save = effect.what.word
    word = Save(version=save.version, barrier=save.barrier, path=save.path, mark=Checkpoint())
    return replace(effect, what=SayWord(word=word))


def lets_servers_go_early(job: Job, event: Event, now: datetime) -> Turned:
    after, effects = jobs.handle(job, event, now)
    assert after.servers is not None
    change = after.servers.change
    if change is not None and change.phase is Phase.PREPARING and not after.servers.removing:
        gone = tuple(sorted(after.servers.pre_dropped))
        if gone:
            leave = LeaveNode(reason="it will not be needed", grace=after.settings.grace)
            effects += (Tell(to=gone, what=leave),)
    return after, effects


def does_not_wait_for_drains(job: Job, event: Event, now: datetime) -> Turned:
    after, effects = jobs.handle(job, event, now)
    assert after.servers is not None
    for trainer in after.servers.trainers.values():
        if trainer.halted is not None and not trainer.drained:
            word = Drained(barrier=trainer.halted, step=0)
            said = WordSaid(node=trainer.node, incarnation=trainer.incarnation, word=word)
            after, more = jobs.handle(after, said, now)
            effects += more
    return after, effects


@pytest.mark.parametrize(
    "broken", [leaves_the_ledger_where_it_is, forgets_the_mark, lets_servers_go_early, does_not_wait_for_drains]
)
def test_a_broken_master_is_caught(broken: Callable[[Job, Event, datetime], Turned]) -> None:
    assert any(servers.run(seed, handle=broken).violation for seed in range(100))
