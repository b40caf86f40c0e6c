"""A job of which nothing runs any more begins again: with other nodes, and with its data where it stood."""

from dataclasses import replace

import pytest
from tests.core.job_builders import Story
from tests.core.ledger.builders import NOW, Desk, a_dataset, an_ordered_dataset

from shoal.core import journal
from shoal.core import ledger as ledgers
from shoal.core.errors import BadInput
from shoal.core.job import Job, resumed
from shoal.core.job.values import Scale, StopAsked
from shoal.core.ledger import Ask, Ledger, Owner, registered
from shoal.core.view import JobPhase


def again(story: Story, *, nodes: int = 2, term: int = 2) -> Job:
    """The machine went down; a master has the records."""
    job = journal.replay([journal.snapshot(story.job)])
    assert job is not None
    story.job, story.last = resumed(job, job.spec, job.settings, nodes=nodes, term=term, now=story.now)
    story.effects = list(story.last)
    return story.job


def test_new_nodes_have_new_names_and_the_next_world_a_new_generation() -> None:
    story = Story(nodes=3)
    story.train("worker-0", "worker-1", "worker-2")
    job = again(story)
    assert list(job.nodes) == ["worker-3", "worker-4"]
    assert [[n.id for n in e.plan.launch_nodes] for e in story.last if isinstance(e, Scale)] == [
        ["worker-3", "worker-4"]
    ]
    assert (job.phase, job.resumed, job.started) == (JobPhase.STARTING, 1, story.now)
    story.train("worker-3", "worker-4")
    assert story.job.rendezvous.committed is not None
    assert story.job.rendezvous.committed.generation == 2
    assert story.world == ["worker-3", "worker-4"]


def test_a_step_below_the_one_that_was_reached_is_progress_again() -> None:
    story = Story(nodes=1)
    story.train("worker-0", step=30)
    again(story, nodes=1)
    story.train("worker-1", step=21)
    assert story.view.step == 21


def test_what_failed_before_is_forgiven() -> None:
    story = Story(nodes=1)
    story.train("worker-0")
    for _ in range(8):
        if story.job.ended is None:
            story.crash("worker-0", 1, error="ValueError: no")
            story.join("worker-0")
            story.ready("worker-0")
    assert story.job.ending is JobPhase.FAILED
    job = again(story, nodes=1)
    assert (job.ending, job.ended, job.error, job.budgets) == (None, None, None, {})
    assert "failed" in job.decisions[0].reason or "lost" in job.decisions[0].reason


def test_a_stopped_job_can_go_on_and_one_that_succeeded_cannot() -> None:
    story = Story(nodes=1)
    story.train("worker-0")
    story.happen(StopAsked(reason="enough"))
    again(story, nodes=1)
    done = Story(nodes=1)
    done.train("worker-0")
    done.finish("worker-0")
    done.succeed("worker-0")
    assert done.job.phase is JobPhase.SUCCEEDED
    with pytest.raises(BadInput, match="job j has succeeded"):
        again(done)


def test_nodes_that_join_by_themselves_are_waited_for_again() -> None:
    story = Story(nodes=1, joins=1)
    job = replace(story.job, target=2)
    job, _ = resumed(job, job.spec, job.settings, nodes=1, awaited_joins=1, term=2, now=story.now)
    assert (job.target, list(job.places)) == (2, ["worker-3"])


# The ledger ----------------------------------------------------------------------------------------------


def ask(ledger: Ledger, owner: str, want: int) -> tuple[Ledger, list[int], list[int]]:
    words = Ask(owner=Owner(owner), dataset="train", completed=(), progress=(), want=want)
    ledger, answer = ledgers.exchange(ledger, words, NOW)
    return ledger, [lease.shard for lease in answer.leases], [lease.attempt for lease in answer.leases]


def test_what_was_held_is_given_out_again_behind_its_reported_records_under_another_attempt() -> None:
    desk = Desk(a_dataset(size=10, shard_size=2))
    first = desk.ask("a", 2).leases
    desk.ask("a", 0, completed=(first[0].attempt,), progress=((first[1].attempt, 1),))
    before = ledgers.account_of(desk.ledger, "train")
    ledger = registered(ledgers.resumed(desk.ledger, 2), desk.spec)
    assert ledgers.account_of(ledger, "train") == before
    ledger, shards, attempts = ask(ledger, "b", 4)
    assert shards == [1, 2, 3, 4]
    assert min(attempts) > first[1].attempt
    held = ledger.dynamic["train"].held[Owner("b")]
    assert held[attempts[0]].done == 1


def test_a_poisoned_shard_is_tried_again() -> None:
    desk = Desk(a_dataset(max_attempts=1))
    desk.ask("a", 1)
    desk.lose("a")
    assert ledgers.poisons(desk.ledger)
    ledger = registered(ledgers.resumed(desk.ledger, 2), desk.spec)
    assert not ledgers.poisons(ledger)
    assert ask(ledger, "b", 1)[1] == [0]


@pytest.mark.parametrize("spec", [a_dataset(), an_ordered_dataset(40, 2, 5)], ids=["dynamic", "ordered"])
def test_another_dataset_of_the_same_name_is_refused_and_more_epochs_are_not(spec: ledgers.DatasetSpec) -> None:
    ledger = ledgers.resumed(registered(Ledger(), spec), 2)
    with pytest.raises(BadInput, match=r"train is not the one that this job has trained so far: size 80 instead of"):
        registered(ledger, replace(spec, size=80))
    ledger = registered(ledger, replace(spec, epochs=3))
    assert not ledgers.is_complete(ledger)
    with pytest.raises(BadInput, match="registered already"):
        registered(ledger, spec)


def test_another_global_batch_is_refused() -> None:
    ledger = ledgers.resumed(registered(Ledger(), an_ordered_dataset(40, 2, 5)), 2)
    with pytest.raises(BadInput, match="not the one that this job has trained so far: batch"):
        registered(ledger, an_ordered_dataset(40, 4, 5))


def test_steps_stay_where_they_were_until_the_model_says_otherwise() -> None:
    spec = an_ordered_dataset(40, 2, 5)
    ledger = ledgers.rewound(registered(Ledger(), spec), "train", 3)
    ledger = registered(ledgers.resumed(ledger, 2), spec)
    assert ledger.ordered["train"].steps == 3
    assert ledgers.rewound(ledger, "train", 2).ordered["train"].steps == 2


def test_an_epoch_that_was_over_goes_on_when_more_are_asked_for() -> None:
    desk = Desk(a_dataset(size=4, shard_size=2))
    leases = desk.ask("a", 2).leases
    desk.ask("a", 0, completed=tuple(lease.attempt for lease in leases))
    assert ledgers.is_complete(desk.ledger)
    ledger = registered(ledgers.resumed(desk.ledger, 2), replace(desk.spec, epochs=2))
    assert ask(ledger, "b", 2)[1] == [0, 1]
    assert ledger.dynamic["train"].epoch == 1
