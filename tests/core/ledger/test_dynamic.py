"""Leases told as stories: what the machine test checks in bulk, and what it does not reach."""

from dataclasses import replace
from datetime import timedelta

import msgspec
import pytest
from tests.core.ledger.builders import LEASE_TIME, Desk, a_dataset

from shoal.core.errors import BadInput
from shoal.core.ledger import (
    Ask,
    Checkpoint,
    DatasetSpec,
    LeaseSettings,
    Ledger,
    Owner,
    Purpose,
    Shuffle,
    Verdict,
    Wake,
    account_of,
    checkpoint,
    deadline,
    exchange,
    fenced,
    is_complete,
    poisons,
    reconnected,
    registered,
    restored,
)
from shoal.core.ledger.leases import ATTEMPTS_PER_TERM


def test_one_round_trip_counts_and_leases() -> None:
    desk = Desk(a_dataset(10, 2))
    first = desk.ask("a", 2)
    assert [(x.shard, x.start, x.stop) for x in first.leases] == [(0, 0, 2), (1, 2, 4)]
    second = desk.ask("a", 1, completed=(1,), progress=((2, 1),))
    assert second.verdict is Verdict.GO
    assert [x.shard for x in second.leases] == [2]
    assert account_of(desk.ledger, "train").done == (((0, 3),),)


def test_what_a_lost_worker_held_is_leased_first_in_its_order_and_resumes() -> None:
    desk = Desk(a_dataset(20, 2))
    assert desk.shards("a", 3) == [0, 1, 2]
    assert desk.shards("b", 1) == [3]
    desk.ask("a", 0, progress=((1, 1),))
    desk.lose("a")
    again = desk.ask("b", 4).leases
    assert [(x.shard, x.done) for x in again] == [(0, 1), (1, 0), (2, 0), (4, 0)]


def test_the_latest_loss_comes_before_earlier_ones() -> None:
    desk = Desk(a_dataset(20, 2))
    desk.shards("a", 2), desk.shards("b", 2)
    desk.lose("b")
    desk.lose("a")
    assert desk.shards("c", 5) == [0, 1, 2, 3, 4]


def test_a_late_report_is_refused_with_a_reason() -> None:
    desk = Desk(a_dataset(10, 2))
    desk.ask("a")
    desk.lose("a")
    desk.ask("b")
    answer = desk.ask("a", 0, completed=(1,), progress=((2, 1), (9, 1)))
    assert [(x.attempt, x.reason) for x in answer.refused] == [
        (1, "attempt 1 is not a's lease (any more): it was completed, or given back and away"),
        (2, "attempt 2 is not a's lease (any more): it was completed, or given back and away"),
        (9, "attempt 9 was never given, the last is 2"),
    ]
    assert account_of(desk.ledger, "train").count == 0


def test_progress_beyond_the_shard_is_refused_and_older_progress_ignored() -> None:
    desk = Desk(a_dataset(10, 5))
    desk.ask("a")
    assert [x.reason for x in desk.ask("a", 0, progress=((1, 6),)).refused] == ["6 records done of 5"]
    desk.ask("a", 0, progress=((1, 3),))
    assert desk.ask("a", 0, progress=((1, 2),)).refused == ()
    assert account_of(desk.ledger, "train").done == (((0, 3),),)


def test_who_asks_while_others_train_waits_and_is_woken() -> None:
    desk = Desk(a_dataset(4, 2))
    desk.ask("a"), desk.ask("b")
    assert desk.ask("c").verdict is Verdict.WAIT
    assert desk.ask("a", 1, completed=(1,)).verdict is Verdict.WAIT
    assert desk.lose("b") == (Wake(Owner("c"), "train"), Wake(Owner("a"), "train"))
    assert not is_complete(desk.ledger)  # nobody holds anything, but there is something to do
    assert desk.shards("c") == [1]
    assert desk.ask("a").verdict is Verdict.WAIT
    last = desk.ask("c", 1, completed=(3,))
    assert (last.verdict, last.woken) == (Verdict.END, (Wake(Owner("a"), "train"),))
    assert desk.ask("a").verdict is Verdict.END
    assert is_complete(desk.ledger)


def test_one_who_waits_and_only_reports_goes_on_waiting() -> None:
    desk = Desk(a_dataset(4, 2))
    desk.ask("a"), desk.ask("b")
    desk.ask("b", 1)
    desk.ask("b", 0, progress=((2, 1),))
    assert desk.lose("a") == (Wake(Owner("b"), "train"),)


def test_a_passed_deadline_gives_all_that_the_owner_holds_away() -> None:
    desk = Desk(a_dataset(20, 2))
    leases = desk.ask("a", 2).leases
    assert [x.deadline - desk.now for x in leases] == [LEASE_TIME, 2 * LEASE_TIME]
    assert deadline(desk.ledger) == leases[0].deadline
    desk.wait(LEASE_TIME - timedelta(seconds=1))
    assert desk.ask("a", 0, progress=((1, 1),)).refused == ()  # and gets as long again
    desk.wait(LEASE_TIME - timedelta(seconds=1))
    assert desk.ask("a", 0, completed=(1, 2)).refused == ()
    desk.shards("a", 2)
    desk.wait(LEASE_TIME)
    assert [(x.shard, x.failures) for x in desk.ask("b", 3).leases] == [(2, 1), (3, 0), (4, 0)]
    assert len(desk.ask("a", 0, completed=(3, 4)).refused) == 2


def test_a_lease_behind_a_slow_one_is_given_away_uncharged() -> None:
    desk = Desk(a_dataset(100, 50))
    desk.ask("a", 2)
    for minute in range(1, 3):
        desk.ask("a", 0, progress=((1, minute),))
        desk.wait(LEASE_TIME - timedelta(seconds=1))
    desk.ask("a", 0, progress=((1, 10),))
    desk.wait(timedelta(seconds=2))
    (lease,) = desk.ask("b").leases
    assert (lease.shard, lease.failures) == (1, 0)
    assert desk.ask("a", 0, completed=(1,)).refused == ()


def test_after_max_attempts_the_dataset_is_poisoned_and_says_where() -> None:
    desk = Desk(a_dataset(10, 2, max_attempts=2))
    desk.ask("b")
    desk.ask("b", 0, completed=(1,))
    for owner in ("w1", "w2"):
        desk.ask(owner, 3)  # only the first of them was begun
        assert not poisons(desk.ledger)
        desk.ask(owner, 0, progress=((desk.ledger.dynamic["train"].attempts - 2, 1),))
        desk.lose(owner)
    (poison,) = poisons(desk.ledger)
    assert (poison.epoch, poison.shard) == (0, 1)
    assert poison.reason == (
        "dataset train: poisoned at shard 1 (epoch 0, positions 2..3, stuck behind 1 of its records): "
        "2 attempts failed, the last because w2 died"
    )
    answer = desk.ask("b", 5)
    assert (answer.verdict, answer.leases, answer.reason) == (Verdict.POISONED, (), poison.reason)
    assert not is_complete(desk.ledger)


def test_poison_wakes_whoever_waits_and_what_is_in_flight_still_counts() -> None:
    desk = Desk(a_dataset(4, 2, max_attempts=1))
    desk.ask("a"), desk.ask("b"), desk.ask("c")
    assert desk.lose("a") == (Wake(Owner("c"), "train"),)
    assert desk.ask("b", 1, completed=(2,)).verdict is Verdict.POISONED
    assert account_of(desk.ledger, "train").done == (((2, 4),),)


def test_losses_that_are_nobodys_fault_poison_nothing() -> None:
    desk = Desk(a_dataset(4, 2, max_attempts=1))
    for _ in range(5):
        assert desk.shards("a") == [0]
        desk.lose("a", charged=False)
    assert not poisons(desk.ledger)


def test_epochs_follow_one_another_each_complete() -> None:
    desk = Desk(a_dataset(4, 2, epochs=2))
    desk.ask("a"), desk.ask("b")
    assert desk.ask("a", 1, completed=(1,)).verdict is Verdict.WAIT
    turned = desk.ask("b", 1, completed=(2,))
    assert [(x.epoch, x.shard) for x in turned.leases] == [(1, 0)]
    assert turned.woken == (Wake(Owner("a"), "train"),)


def test_an_epoch_asked_for_ends_when_it_is_complete() -> None:
    desk = Desk(a_dataset(4, 2, epochs=2))
    attempts = tuple(x.attempt for x in desk.ask("a", 2, epoch=0).leases)
    assert desk.ask("b", 1, epoch=1).verdict is Verdict.WAIT
    answer = desk.ask("a", 1, completed=attempts, epoch=0)
    assert (answer.verdict, answer.woken) == (Verdict.END, (Wake(Owner("b"), "train"),))
    assert [x.epoch for x in desk.ask("b", 1, epoch=1).leases] == [1]


def test_an_evaluation_round_begins_when_it_is_asked_for() -> None:
    desk = Desk(a_dataset(4, 2, purpose=Purpose.EVALUATION, epochs=None, name="eval"))
    attempts = tuple(x.attempt for x in desk.ask("a", 2, epoch=1000).leases)
    assert desk.ask("b", 1, epoch=2000).verdict is Verdict.WAIT
    assert is_complete(desk.ledger)  # evaluations keep no job alive
    done = desk.ask("a", 1, completed=attempts, epoch=1000)
    assert (done.verdict, done.woken) == (Verdict.END, (Wake(Owner("b"), "eval"),))
    assert desk.ask("a", 1, epoch=1000).verdict is Verdict.END
    assert [x.epoch for x in desk.ask("b", 1, epoch=2000).leases] == [2000]
    assert desk.ask("a", 1, epoch=1000).verdict is Verdict.END


def test_towards_the_end_nobody_takes_more_than_its_part() -> None:
    desk = Desk(a_dataset(80, 1))
    assert len(desk.shards("a", 60)) == 60
    assert len(desk.shards("b", 60)) == 10
    assert len(desk.shards("c", 60)) == 3


def test_nobody_holds_more_than_it_may() -> None:
    spec = replace(a_dataset(1000, 1), leases=LeaseSettings(max_held=5))
    desk = Desk(spec)
    assert len(desk.shards("a", 50)) == 5
    more = desk.ask("a", 50)
    assert (more.verdict, more.leases) == (Verdict.GO, ())
    assert len(desk.ask("a", 50, completed=(1, 2)).leases) == 2


def test_the_answer_that_never_arrived_is_leased_again() -> None:
    desk = Desk(a_dataset(10, 2))
    (known,) = desk.ask("a").leases
    desk.ask("a", 2)
    desk.ledger, reunion = reconnected(desk.ledger, Owner("a"), "train", [known], desk.now)
    assert [x.attempt for x in reunion.kept] == [1]
    again = desk.ask("b", 2).leases
    assert [(x.shard, x.failures) for x in again] == [(1, 0), (2, 0)]


def test_leases_of_a_master_whose_last_words_were_lost_hold_on() -> None:
    """The new master knows an older ledger: the workers' claims are adopted, the shards between them are TODO."""
    desk = Desk(a_dataset(40, 2))
    desk.ask("a")
    old = desk.ledger
    b, c = desk.ask("b", 2).leases, desk.ask("c", 2).leases
    desk.ledger = fenced(old, term=1)
    desk.ledger, answer = reconnected(desk.ledger, Owner("c"), "train", c, desk.now)
    assert [x.shard for x in answer.kept] == [3, 4]
    assert desk.ask("c", 0, completed=tuple(x.attempt for x in c)).refused == ()
    (lease,) = desk.ask("d").leases
    assert lease.shard == 1  # b has not come back yet
    assert lease.attempt > max(x.attempt for x in c)
    desk.ledger, answer = reconnected(desk.ledger, Owner("b"), "train", b, desk.now)
    assert [x.shard for x in answer.kept] == [2]
    assert [x.reason for x in answer.refused] == [f"d has shard 1 as attempt {lease.attempt}"]
    assert account_of(desk.ledger, "train").done == (((6, 10),),)


def test_a_claim_to_what_is_complete_is_refused() -> None:
    desk = Desk(a_dataset(10, 2))
    (lease,) = desk.ask("a").leases
    desk.ask("a", 0, completed=(1,))
    desk.ledger, answer = reconnected(desk.ledger, Owner("a"), "train", [lease], desk.now)
    assert [x.reason for x in answer.refused] == ["shard 0 is complete"]
    assert account_of(desk.ledger, "train").done == (((0, 2),),)


def test_of_two_claims_to_one_shard_the_newer_counts() -> None:
    desk = Desk(a_dataset(10, 2))
    older = desk.ask("a").leases
    desk.lose("a")
    newer = desk.ask("a").leases
    desk.lose("a")
    desk.ledger, answer = reconnected(desk.ledger, Owner("a"), "train", [*older, *newer], desk.now)
    assert ([x.attempt for x in answer.kept], [x.attempt for x in answer.refused]) == ([2], [1])


@pytest.mark.parametrize(
    "lie",
    [
        {"shard": 10**9, "start": 2 * 10**9, "stop": 2 * 10**9 + 2},
        {"shard": -1, "start": -2, "stop": 0},
        {"partition": 3},
        {"stop": 9},
        {"epoch": 4},
        {"attempt": 2 * ATTEMPTS_PER_TERM},
    ],
    ids=str,
)
def test_a_claim_to_what_is_no_shard_changes_nothing(lie: dict[str, int]) -> None:
    desk = Desk(a_dataset(10, 2))
    (lease,) = desk.ask("a").leases
    before = desk.ledger
    claim = replace(lease, **{"attempt": 7, **lie})
    desk.ledger, answer = reconnected(desk.ledger, Owner("b"), "train", [claim], desk.now)
    assert [x.attempt for x in answer.refused] == [claim.attempt]
    assert desk.ledger == before


def test_after_a_restore_what_was_held_is_void_and_trained_again() -> None:
    desk = Desk(a_dataset(10, 2))
    desk.ask("a", 2, progress=())
    desk.ask("a", 0, completed=(1,), progress=((2, 1),))
    mark = checkpoint(desk.ledger)
    held = desk.ask("a", 1, completed=(2,)).leases
    desk.ledger, _ = restored(desk.ledger, mark)
    assert account_of(desk.ledger, "train").done == (((0, 3),),)
    desk.ledger, answer = reconnected(desk.ledger, Owner("a"), "train", held, desk.now)
    assert [x.reason for x in answer.refused] == ["attempt 3 is from before a restore"]
    late = desk.ask("a", 0, completed=(3,))
    assert [x.reason for x in late.refused] == ["attempt 3 is from before a restore"]
    assert [(x.attempt, x.shard, x.done) for x in desk.ask("a", 2).leases] == [(4, 1, 1), (5, 2, 0)]


def test_datasets_do_not_touch_one_another() -> None:
    desk = Desk(a_dataset(4, 2))
    other = a_dataset(6, 3, name="other")
    desk.ledger = registered(registered(desk.ledger, other), other)
    desk.ask("a")
    desk.ledger, answer = exchange(desk.ledger, Ask(owner=Owner("a"), dataset="other", want=2), desk.now)
    assert [x.shard for x in answer.leases] == [0, 1]
    mark = checkpoint(desk.ledger)
    desk.lose("a")
    assert desk.shards("b") == [0]
    desk.ledger, _ = restored(desk.ledger, mark)
    assert {name: len(d.returned) for name, d in desk.ledger.dynamic.items()} == {"train": 1, "other": 2}


def test_what_is_unknown_or_contradicts_is_refused() -> None:
    desk = Desk(a_dataset(10, 2))
    with pytest.raises(BadInput, match="dataset x is not registered; registered: train"):
        exchange(desk.ledger, Ask(owner=Owner("a"), dataset="x", want=1), desk.now)
    with pytest.raises(BadInput, match="dataset train is registered already, now with size 11 instead of 10, seed 1"):
        registered(desk.ledger, a_dataset(11, 2, seed=1))
    mark = checkpoint(desk.ledger)
    with pytest.raises(BadInput, match="dataset train is not the one of the checkpoint: shard_size 5 instead of 2"):
        restored(registered(Ledger(), a_dataset(10, 5)), mark)


def test_a_resumed_job_may_have_more_epochs() -> None:
    desk = Desk(a_dataset(4, 2))
    desk.ask("a", 0, completed=tuple(x.attempt for x in desk.ask("a", 2).leases))
    assert is_complete(desk.ledger)
    longer = registered(Ledger(), a_dataset(4, 2, epochs=3))
    longer, _ = restored(longer, checkpoint(desk.ledger))
    assert not is_complete(longer)
    assert account_of(longer, "train").epoch == 1


def test_a_dataset_newer_than_the_checkpoint_begins_anew() -> None:
    desk = Desk(a_dataset(4, 2))
    desk.ask("a", 2)
    desk.ledger, _ = restored(desk.ledger, Checkpoint())
    assert desk.shards("a", 2) == [0, 1]


def test_a_billion_records_cost_kilobytes() -> None:
    spec = DatasetSpec(name="train", size=10**9, shard_size=100, shuffle=Shuffle.SAMPLES)
    desk = Desk(spec)
    for n in range(64):
        desk.ask(f"worker-{n}", 16)
    for _ in range(20):
        desk.ask("worker-0", 16, completed=tuple(desk.ledger.dynamic["train"].held[Owner("worker-0")]))
    saved = msgspec.msgpack.encode(checkpoint(desk.ledger))
    assert len(saved) < 100_000
    again, _ = restored(Ledger(), msgspec.msgpack.decode(saved, type=Checkpoint))
    assert account_of(again, "train") == account_of(desk.ledger, "train")
