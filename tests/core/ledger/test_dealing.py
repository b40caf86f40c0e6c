"""Shards dealt inside a world: every record once an epoch, however many seats there are from step to step."""

from collections import Counter
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.ledger.builders import NOW, a_dataset, a_stream, an_ordered_dataset

from shoal.core.errors import BadInput
from shoal.core.ledger import (
    Ask,
    Checkpoint,
    Ledger,
    Owner,
    Shuffle,
    account_of,
    checkpoint,
    exchange,
    is_complete,
    records,
    registered,
    restored,
    stood,
)
from shoal.core.ledger.dealing import Deal, Standing, dealt, mark_of, opened, standing_at
from shoal.core.ledger.intervals import merged
from shoal.core.ledger.ordered import OrderedCheckpoint
from shoal.core.ledger.rewind import LaneMark, OpenShard


def a_shared_dataset(size: int = 20, shard_size: int = 5, **others: object) -> Standing:
    return opened(a_dataset(size, shard_size, together=True, **others))


@st.composite
def standings(draw: st.DrawFn) -> Standing:
    size = draw(st.integers(1, 80))
    return a_shared_dataset(
        size,
        draw(st.integers(1, min(size, 12))),
        epochs=draw(st.integers(1, 3)),
        shuffle=draw(st.sampled_from(Shuffle)),
        drop_last=draw(st.booleans()),
        seed=draw(st.integers(0, 9)),
    )


moves = st.lists(st.tuples(st.integers(1, 6), st.sampled_from(["commit", "commit", "give up", "checkpoint"])))


def played(standing: Standing, size: int, worlds: list[tuple[int, str]]) -> list[Deal]:
    """The committed steps, when the world has these sizes and steps are given up or the state goes through a mark."""
    deals: list[Deal] = []
    while (deal := dealt(standing, seats=worlds[len(deals) % len(worlds)][0], size=size)) is not None:
        match worlds.pop(0)[1] if len(worlds) > 1 else "commit":
            case "give up":
                continue
            case "checkpoint":
                standing = standing_at(mark_of(standing))
            case _:
                deals.append(deal)
                standing = deal.after
    return deals


@given(standings(), st.integers(1, 7), st.integers(1, 6), moves)
def test_every_record_is_dealt_once_an_epoch_whatever_becomes_of_the_world(
    standing: Standing, size: int, last: int, worlds: list[tuple[int, str]]
) -> None:
    spec = standing.spec
    counts: Counter[tuple[int, int]] = Counter()
    for deal in played(standing, size, [*worlds, (last, "commit")]):
        assert all(each <= size for each in deal.sizes)
        assert sum(deal.sizes) > 0
        for hand in deal.hands:
            counts.update((deal.epoch, record) for record in records(spec, deal.epoch, hand))
    assert set(counts.values()) <= {1}
    assert spec.epochs is not None
    left_out = spec.records % spec.shard if spec.drop_last else 0
    assert len(counts) == spec.epochs * (spec.records - left_out)


@given(standings(), st.integers(1, 7), st.integers(1, 6))
def test_only_the_last_step_of_an_epoch_is_short(standing: Standing, size: int, seats: int) -> None:
    deals = played(standing, size, [(seats, "commit")])
    for deal, following in pairwise(deals):
        if deal.epoch == following.epoch:
            assert deal.sizes == (size,) * seats


@given(standings(), st.integers(1, 7), st.integers(1, 6), st.integers(0, 30))
def test_the_ledger_stands_where_the_world_says(standing: Standing, size: int, seats: int, steps: int) -> None:
    ledger = registered(Ledger(), standing.spec)
    trained: dict[int, list[tuple[int, int]]] = {}
    over = False
    for _ in range(steps):
        deal = dealt(standing, seats=seats, size=size)
        if deal is None:
            over = True
            break
        standing = deal.after
        trained.setdefault(deal.epoch, []).extend(stretch for hand in deal.hands for stretch in hand)
    ledger = stood(ledger, mark_of(standing), generation=1, step=steps)
    account = account_of(ledger, "train")
    assert account.done == (merged(trained.get(account.epoch, [])),)
    assert is_complete(ledger) or not over


def test_a_seat_reads_on_in_its_own_shard_and_shares_when_none_is_left() -> None:
    deal = dealt(a_shared_dataset(15, 5), seats=2, size=4)
    assert deal is not None
    assert deal.hands == (((0, 4),), ((5, 9),))
    deal = dealt(deal.after, seats=2, size=4)
    assert deal is not None
    assert deal.hands == (((4, 5), (10, 13)), ((9, 10), (13, 15)))
    assert dealt(deal.after, seats=2, size=4) is None


def test_shards_of_lost_seats_are_first_in_line() -> None:
    first = dealt(a_shared_dataset(40, 5), seats=3, size=2)
    assert first is not None
    second = dealt(first.after, seats=1, size=5)
    assert second is not None
    assert second.hands == (((2, 5), (7, 9)),)
    third = dealt(second.after, seats=3, size=1)
    assert third is not None
    assert third.hands == (((9, 10),), ((12, 13),), ((15, 16),))


def test_an_older_word_about_where_the_world_stands_changes_nothing() -> None:
    standing = a_shared_dataset()
    ahead = dealt(standing, seats=2, size=4)
    assert ahead is not None
    ledger = stood(registered(Ledger(), standing.spec), mark_of(ahead.after), generation=3, step=8)
    assert stood(ledger, mark_of(standing), generation=3, step=7) == ledger
    assert stood(ledger, mark_of(standing), generation=2, step=99) == ledger
    back = stood(ledger, mark_of(standing), generation=4, step=2)  # a later world goes on from a checkpoint
    assert account_of(back, "train").count == 0


def test_a_restored_ledger_still_knows_which_word_was_the_last() -> None:
    standing = a_shared_dataset()
    ledger = stood(registered(Ledger(), standing.spec), mark_of(standing), generation=3, step=8)
    ledger, _ = restored(ledger, checkpoint(ledger))
    ahead = dealt(standing, seats=2, size=4)
    assert ahead is not None
    assert stood(ledger, mark_of(ahead.after), generation=3, step=7) == ledger


def test_what_is_dealt_is_not_leased_and_what_is_leased_is_not_dealt() -> None:
    together = registered(Ledger(), a_dataset(together=True))
    with pytest.raises(BadInput, match="dataset train is dealt inside a world: nothing of it is leased"):
        exchange(together, Ask(owner=Owner("a"), dataset="train", want=1), NOW)
    with pytest.raises(BadInput, match="dataset train is leased by the master"):
        stood(registered(Ledger(), a_dataset()), mark_of(a_shared_dataset(10, 2)), generation=1, step=1)
    with pytest.raises(BadInput, match="dataset train is leased by the master"):
        opened(a_dataset())
    with pytest.raises(BadInput, match="is not the one of the checkpoint: size 10 instead of 20"):
        stood(together, mark_of(a_shared_dataset(20, 2)), generation=1, step=1)


def test_streams_fixed_orders_and_evaluations_are_not_dealt() -> None:
    with pytest.raises(BadInput, match="kind must be bounded inside a world"):
        a_stream(0, together=True)
    with pytest.raises(BadInput, match="batch must be none when shards are dealt"):
        an_ordered_dataset(10, 1, 1, together=True)
    with pytest.raises(BadInput, match="purpose must be training inside a world"):
        a_dataset(together=True, purpose="evaluation", epochs=None)


@pytest.mark.parametrize(("seats", "size"), [(0, 1), (1, 0)])
def test_a_step_of_nothing_is_refused(seats: int, size: int) -> None:
    with pytest.raises(BadInput, match="a step needs seats and records"):
        dealt(a_shared_dataset(), seats=seats, size=size)


BAD = {
    "no-lane": {"lanes": ()},
    "two-lanes": {"lanes": (LaneMark(1, 20, True), LaneMark(1, 20, True))},
    "beyond-the-end": {"lanes": (LaneMark(5, 20, True),)},
    "before-the-beginning": {"lanes": (LaneMark(-1, 20, True),)},
    "another-line": {"lanes": (LaneMark(1, 2000, True),)},
    "an-epoch-too-many": {"epoch": 1},
    "an-epoch-before-the-first": {"epoch": -1},
    "a-shard-that-nobody-began": {"open_shards": (OpenShard(0, 2, 1),)},
    "a-shard-of-no-lane": {"open_shards": (OpenShard(1, 0, 1),)},
    "a-shard-twice": {"open_shards": (OpenShard(0, 1, 1), OpenShard(0, 1, 2))},
    "more-than-a-shard-has": {"open_shards": (OpenShard(0, 1, 5),)},
    "an-attempt-that-no-master-gives": {"attempts": 1 << 63},
    "the-turn-of-no-lane": {"turn": 1},
    "less-than-nothing": {"open_shards": (OpenShard(0, 1, -1),)},
}


@pytest.mark.parametrize("wrong", BAD.values(), ids=BAD.keys())
def test_a_mark_that_no_ledger_has_made_is_refused_and_changes_nothing(wrong: dict[str, Any]) -> None:
    deal = dealt(a_shared_dataset(20, 5), seats=2, size=3)
    assert deal is not None
    mark = replace(mark_of(deal.after), **wrong)
    ledger = registered(Ledger(), mark.spec)
    with pytest.raises(BadInput, match=r"dataset train: what is said to be trained of epoch -?[01] cannot be"):
        stood(ledger, mark, generation=1, step=1)
    with pytest.raises(BadInput, match="cannot be"):
        restored(ledger, Checkpoint(dynamic=(mark,)))


@pytest.mark.parametrize("wrong", [{"epoch": 1 << 63}, {"lanes": (LaneMark(1 << 63, None, False),)}], ids=str)
def test_a_mark_with_numbers_that_cannot_be_written_down_is_refused(wrong: dict[str, Any]) -> None:
    ledger = registered(Ledger(), a_stream(0))
    (mark,) = checkpoint(ledger).dynamic
    with pytest.raises(BadInput, match="cannot be"):
        restored(ledger, Checkpoint(dynamic=(replace(mark, **wrong),)))


def test_a_mark_of_the_other_mode_is_refused() -> None:
    leased, in_order = a_dataset(20, 5), an_ordered_dataset(20, 2, 2)
    with pytest.raises(BadInput, match="dataset train has no steps"):
        restored(Ledger(), Checkpoint(ordered=(OrderedCheckpoint(spec=leased, steps=1),)))
    (mark,) = checkpoint(registered(Ledger(), leased)).dynamic
    with pytest.raises(BadInput, match="cannot be"):
        restored(Ledger(), Checkpoint(dynamic=(replace(mark, spec=in_order, lanes=()),)))
