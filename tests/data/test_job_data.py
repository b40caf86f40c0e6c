"""The ledger as part of a job: what losses, time, steps and other masters do to it."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from tests.core.job_builders import Story

from shoal.core import journal
from shoal.core import ledger as ledgers
from shoal.core.exits import ProcessExit
from shoal.core.job.takeover import taken_over
from shoal.core.job.values import DataAnswered, DataAsked, DataWoken, NodeExited
from shoal.core.ledger import Ask, DatasetSpec, GlobalBatch, Kind, Lease, LeaseSettings, Progress, Verdict
from shoal.core.ledger.dealing import Standing, dealt, mark_of, opened
from shoal.core.nodes import NodeId
from shoal.core.rounds import Departure, Extent, Holding, Restore, Round, RoundAnswer, Stand, owner_of
from shoal.core.view import JobPhase

LEASE = timedelta(seconds=60)


class DataStory(Story):
    """A job of two nodes, each with one process that asks for data."""

    def __init__(self, *, minimum: int = 1, **dataset: Any) -> None:
        super().__init__(nodes=2, minimum=minimum)
        self.join("worker-0", "worker-1")
        words = {"name": "train", "size": 40, "shard_size": 10, "leases": LeaseSettings(time=LEASE), **dataset}
        self.spec = DatasetSpec(**words)
        self.rounds = 0
        self.say(0, specs=(self.spec,))

    def say(self, node: int, **words: Any) -> RoundAnswer:
        self.rounds += 1
        self.happen(DataAsked(node=NodeId(f"worker-{node}"), round=Round(number=self.rounds, **words)))
        answered = [e.what.answer for e in self.told(DataAnswered) if isinstance(e.what, DataAnswered)]
        return answered[-1]

    def ask(self, node: int, want: int = 1, *, pid: int = 1, **words: Any) -> tuple[Lease, ...]:
        ask = Ask(owner=owner_of(f"worker-{node}", 0, pid, "a"), dataset="train", want=want, **words)
        return self.say(node, asks=(ask,)).given[0].leases

    def woken(self) -> list[str]:
        return [node for tell in self.told(DataWoken) for node in tell.to]


def test_words_for_another_nodes_process_do_not_count() -> None:
    story = DataStory()
    (lease,) = story.ask(0)
    foreign = Ask(owner=owner_of("worker-0", 0, 1, "a"), dataset="train", completed=(lease.attempt,))
    gone = Departure(owner=foreign.owner, charged=True, reason="says a stranger")
    assert story.say(1, asks=(foreign,), departed=(gone,)).given == ()
    assert list(story.job.ledger.dynamic["train"].held) == [foreign.owner]


def test_a_lost_nodes_shards_go_to_whoever_waits_and_it_is_woken() -> None:
    story = DataStory()
    leases = story.ask(0, 4)
    story.ask(0, 0, progress=(Progress(leases[0].attempt, 3),))
    answer = story.say(1, asks=(Ask(owner=owner_of("worker-1", 0, 1, "a"), dataset="train", want=1),))
    assert answer.given[0].verdict is Verdict.WAIT
    story.happen(NodeExited(node=NodeId("worker-0"), exit=ProcessExit(code=137)))
    assert story.woken() == ["worker-1"]
    (again,) = story.ask(1)
    assert (again.shard, again.done) == (leases[0].shard, 3)


def test_who_is_left_trains_the_rest_although_fewer_than_the_minimum_are_left() -> None:
    story = DataStory(minimum=2)
    story.ready("worker-0", "worker-1", sdk=False)
    story.ack()
    leases = story.ask(1, 2)
    gone = Departure(owner=owner_of("worker-1", 0, 1, "a"), charged=True, reason="it was killed")
    story.succeed("worker-0")
    for world in (2, 3):
        story.crash("worker-1", 137, uptime=90)
        story.ready("worker-1", sdk=False)
        story.ack()
        assert (story.job.rendezvous.generation, story.world) == (world, ["worker-1"])
    story.say(1, departed=(gone,))
    again = story.ask(1, 4, pid=2)
    assert {lease.shard for lease in leases} < {lease.shard for lease in again}
    attempts = tuple(lease.attempt for lease in again)
    story.say(1, asks=(Ask(owner=owner_of("worker-1", 0, 2, "a"), dataset="train", completed=attempts),))
    story.succeed("worker-1")
    assert story.job.ending is JobPhase.SUCCEEDED


def test_a_silent_worker_loses_its_shard_when_its_time_is_over() -> None:
    story = DataStory()
    (lease,) = story.ask(0)
    for _ in range(7):
        story.beat()
        story.wait(9)
    assert story.job.ledger.dynamic["train"].held == {}
    refused = story.say(
        0, asks=(Ask(owner=owner_of("worker-0", 0, 1, "a"), dataset="train", completed=(lease.attempt,)),)
    )
    assert [r.attempt for r in refused.given[0].refused] == [lease.attempt]


def test_a_poisoned_shard_ends_the_job_with_its_name() -> None:
    story = DataStory()
    for pid in range(1, 4):
        story.ask(0, pid=pid)
        gone = Departure(owner=owner_of("worker-0", 0, pid, "a"), charged=True, reason="it ended with exit 1")
        story.say(0, departed=(gone,))
    assert story.job.ending is JobPhase.FAILED
    assert story.job.reason.startswith("dataset train: poisoned at shard 0")


def test_a_new_master_gives_nothing_away_before_owners_could_come_back() -> None:
    story = DataStory()
    (lease,) = story.ask(0)
    job = journal.replay([journal.snapshot(story.job)])
    assert job is not None
    later = story.now + timedelta(hours=1)  # nobody could report meanwhile
    story.job, story.now = taken_over(job, later, reason="took over", term=2), later
    story.wait(story.job.settings.suspect_after_restart.total_seconds() - 1)
    assert list(story.job.ledger.dynamic["train"].held) == [owner_of("worker-0", 0, 1, "a")]
    story.join("worker-0")
    (next_lease,) = story.ask(0, completed=(lease.attempt,))
    assert next_lease.attempt > lease.attempt
    assert ledgers.account_of(story.job.ledger, "train").count == 10


def test_the_account_of_a_fixed_order_follows_the_committed_steps() -> None:
    batch = GlobalBatch(micro_batches=2, micro_batch_size=2)
    story = DataStory(shard_size=None, batch=batch, drop_last=True)
    story.ready("worker-0", "worker-1")
    story.ack()
    story.gain(3)
    assert ledgers.account_of(story.job.ledger, "train").count == 12
    story.gain(10)
    assert ledgers.is_complete(story.job.ledger)
    assert story.view.data[0].done == 40


@pytest.mark.parametrize("dataset", ["nothing", ""])
def test_asking_for_a_dataset_that_nobody_named_is_answered_with_why(dataset: str) -> None:
    story = DataStory()
    ask = Ask(owner=owner_of("worker-0", 0, 1, "a"), dataset=dataset, want=1)
    (refusal,) = story.say(0, asks=(ask,)).unusable
    assert "is not registered; registered: train" in refusal.reason


def test_who_means_another_dataset_by_that_name_is_given_none_of_it() -> None:
    """Its positions are other records: what it trained would be counted as what it did not."""
    story = DataStory()
    (lease,) = story.ask(0)
    ask = Ask(owner=owner_of("worker-0", 0, 2, "a"), dataset="train", want=2)
    mine = Ask(owner=owner_of("worker-0", 0, 1, "a"), dataset="train", completed=(lease.attempt,))
    answer = story.say(0, specs=(replace(story.spec, size=50),), asks=(ask, mine))
    assert "size 50 instead of 40" in answer.unusable[0].reason
    assert [given.leases for given in answer.given] == [(), ()]
    assert ledgers.account_of(story.job.ledger, "train").count == 10  # what was trained still counts


# Streams -------------------------------------------------------------------------------------------------------


def a_stream_story() -> DataStory:
    return DataStory(name="train", kind=Kind.STREAM, size=None, partitions=(0, 100))


def grown(partition: int, until: int, *, closed: bool = False) -> Extent:
    return Extent(dataset="train", partition=partition, until=until, closed=closed)


def test_whoever_waits_for_a_stream_is_woken_by_another_nodes_word() -> None:
    story = a_stream_story()
    story.say(0, extents=(grown(0, 0), grown(1, 100)))
    assert story.ask(1) == ()
    story.say(0, extents=(grown(0, 9),))
    assert story.woken() == []  # not a whole shard
    story.say(0, extents=(grown(0, 25),))
    assert story.woken() == ["worker-1"]
    assert [(lease.start, lease.stop) for lease in story.ask(1, 5)] == [(0, 10), (10, 20)]


def test_words_about_a_stream_may_come_twice_late_and_from_anybody() -> None:
    story = a_stream_story()
    for node, extents in ((0, [grown(0, 30), grown(1, 100)]), (1, [grown(0, 20)]), (0, [grown(0, 30)])):
        assert story.say(node, extents=tuple(extents)).unusable == ()
    leases = story.ask(0, 9)
    assert len(leases) == 3
    for node in (0, 1):
        assert story.say(node, extents=(grown(0, 33, closed=True), grown(1, 100, closed=True))).unusable == ()
    assert story.say(1, extents=(grown(0, 50),)).unusable == ()
    (tail,) = story.ask(0, 9, completed=tuple(lease.attempt for lease in leases))
    assert (tail.start, tail.stop) == (30, 33)
    story.ask(0, 0, completed=(tail.attempt,))
    assert ledgers.is_complete(story.job.ledger)


def test_what_is_known_of_a_stream_survives_the_master() -> None:
    story = a_stream_story()
    story.say(0, extents=(grown(0, 20), grown(1, 100, closed=True)))
    job = journal.replay([journal.snapshot(story.job)])
    assert job is not None
    assert job.ledger == story.job.ledger
    assert [lane.until for lane in job.ledger.dynamic["train"].lanes] == [20, 100]


def test_a_stream_that_is_said_to_end_in_two_places_cannot_be_used() -> None:
    story = a_stream_story()
    story.say(0, extents=(grown(0, 30, closed=True),))
    (refusal,) = story.say(1, extents=(grown(0, 31, closed=True),)).unusable
    assert refusal.reason == "dataset train: partition 0 is closed at 30, and cannot be closed at 31"


# Worlds that deal shards by themselves -------------------------------------------------------------------------


def after(standing: Standing, steps: int) -> Standing:
    for _ in range(steps):
        deal = dealt(standing, seats=2, size=4)
        assert deal is not None
        standing = deal.after
    return standing


def a_stand(standing: Standing, *, node: int = 0, generation: int = 1, step: int) -> Stand:
    owner = owner_of(f"worker-{node}", 0, 1, "a")
    return Stand(owner=owner, generation=generation, step=step, mark=mark_of(standing))


def test_the_account_follows_what_the_worlds_source_says() -> None:
    story = DataStory(together=True)
    start = opened(story.spec)
    story.say(0, stands=(a_stand(after(start, 3), step=3),))
    assert ledgers.account_of(story.job.ledger, "train").count == 24
    story.say(1, stands=(a_stand(after(start, 2), node=1, step=2),))  # of one that was the source before
    assert ledgers.account_of(story.job.ledger, "train").count == 24
    story.say(1, stands=(a_stand(after(start, 2), node=1, generation=2, step=2),))  # from a checkpoint
    assert ledgers.account_of(story.job.ledger, "train").count == 16
    story.say(1, stands=(a_stand(after(start, 5), node=1, generation=2, step=5),))
    assert ledgers.is_complete(story.job.ledger)


def test_no_node_speaks_for_another_ones_world() -> None:
    story = DataStory(together=True)
    story.say(1, stands=(a_stand(after(opened(story.spec), 3), node=0, step=3),))
    assert ledgers.account_of(story.job.ledger, "train").count == 0


def test_losing_a_node_leaves_the_data_of_a_world_where_it_is() -> None:
    story = DataStory(together=True)
    story.say(0, stands=(a_stand(after(opened(story.spec), 3), step=3),))
    before = story.job.ledger
    story.happen(NodeExited(node=NodeId("worker-0"), exit=ProcessExit(code=137)))
    assert story.job.ledger == before


def test_leases_of_a_dataset_that_is_dealt_are_refused_with_why() -> None:
    story = DataStory(together=True)
    ask = Ask(owner=owner_of("worker-0", 0, 1, "a"), dataset="train", want=1)
    (refusal,) = story.say(0, asks=(ask,)).unusable
    assert refusal.reason == "dataset train is dealt inside a world: nothing of it is leased"


def test_a_node_that_begins_anew_gives_back_at_once_what_its_lost_processes_held() -> None:
    story = DataStory()
    held = story.ask(0, 3)
    story.ask(1)
    story.say(0, roll_call=True)  # its agent was killed with all its processes, and another one is in its place
    dataset = story.job.ledger.dynamic["train"]
    assert list(dataset.held) == [owner_of("worker-1", 0, 1, "a")]
    assert [back.shard for back in dataset.returned] == [lease.shard for lease in held]


def test_who_answers_a_roll_call_keeps_what_it_holds() -> None:
    story = DataStory()
    held, owner = story.ask(0, 3), owner_of("worker-0", 0, 1, "a")
    answer = story.say(0, roll_call=True, holding=(Holding(owner=owner, dataset="train", leases=held),))
    assert answer.void == ()
    assert list(story.job.ledger.dynamic["train"].held[owner]) == [lease.attempt for lease in held]


def test_a_restore_counts_once_however_often_it_is_said_and_is_forgotten_when_it_is_said_no_more() -> None:
    story = DataStory()
    restore = Restore(owner=owner_of("worker-0", 0, 1, "a"), number=1, mark=ledgers.checkpoint(story.job.ledger))
    story.say(0, restores=(restore,))
    (lease,) = story.ask(1)
    story.ask(1, 0, completed=(lease.attempt,))
    assert story.job.restored == {restore.owner: 1}  # another node's words do not tell that it was answered
    story.say(0, restores=(restore,))  # the answer was lost
    assert ledgers.account_of(story.job.ledger, "train").count == 10
    story.say(0)
    assert story.job.restored == {}


def test_a_process_of_the_next_life_restores_though_it_has_the_same_pid_and_count() -> None:
    story = DataStory()
    mark = ledgers.checkpoint(story.job.ledger)
    for life in ("a", "b"):
        story.say(0, restores=(Restore(owner=owner_of("worker-0", 0, 1, life), number=1, mark=mark),))
        assert ledgers.account_of(story.job.ledger, "train").count == 0
        (lease,) = story.ask(1)
        story.ask(1, 0, completed=(lease.attempt,))
