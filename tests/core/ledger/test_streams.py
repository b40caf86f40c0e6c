"""Streams: unbounded, growing, closed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.ledger.builders import Desk, a_dataset, a_stream

from shoal.core.errors import BadInput
from shoal.core.ledger import (
    Ledger,
    Owner,
    Verdict,
    Wake,
    account_of,
    checkpoint,
    closed,
    grown,
    is_complete,
    registered,
    restored,
)


def places(desk: Desk, owner: str, want: int) -> list[tuple[int, int, int]]:
    return [(x.partition, x.start, x.stop) for x in desk.ask(owner, want).leases]


def test_a_stream_of_which_nobody_has_said_goes_on_and_on_each_partition_in_turn() -> None:
    desk = Desk(a_stream(100, 7))
    assert places(desk, "a", 3) == [(0, 100, 110), (1, 7, 17), (0, 110, 120)]
    assert places(desk, "b", 2) == [(1, 17, 27), (0, 120, 130)]
    assert account_of(desk.ledger, "clicks").line is None


def test_workers_wait_for_whole_shards_and_are_woken_when_they_are_there() -> None:
    desk = Desk(a_stream(0, 0))
    desk.ledger, _ = grown(desk.ledger, "clicks", 0, 15)
    desk.ledger, _ = grown(desk.ledger, "clicks", 1, 5)
    assert places(desk, "a", 4) == [(0, 0, 10)]
    assert desk.ask("a", 1, completed=(1,)).verdict is Verdict.WAIT
    desk.ledger, woken = grown(desk.ledger, "clicks", 0, 19)
    assert woken == ()
    desk.ledger, woken = grown(desk.ledger, "clicks", 1, 10)
    assert woken == (Wake(Owner("a"), "clicks"),)
    assert places(desk, "a", 4) == [(1, 0, 10)]
    assert grown(desk.ledger, "clicks", 1, 3) == (desk.ledger, ())


def test_a_closed_stream_ends_with_a_short_shard() -> None:
    desk = Desk(a_stream(0, 50))
    desk.ledger, _ = grown(desk.ledger, "clicks", 0, 0)
    desk.ledger, _ = grown(desk.ledger, "clicks", 1, 50)
    assert desk.ask("a").verdict is Verdict.WAIT
    desk.ledger, woken = closed(desk.ledger, "clicks", 0, 13)
    assert woken
    desk.ledger, _ = closed(desk.ledger, "clicks", 1, 50)
    assert places(desk, "a", 1) == [(0, 0, 10)]
    assert places(desk, "b", 1) == [(0, 10, 13)]
    desk.ask("a", 0, completed=(1,))
    assert desk.ask("b", 1, completed=(2,)).verdict is Verdict.END
    assert is_complete(desk.ledger)
    account = account_of(desk.ledger, "clicks")
    assert (account.done, account.line) == ((((0, 13),), ()), 13)


def test_shards_leased_beyond_the_end_are_cut_or_vanish() -> None:
    desk = Desk(a_stream(0))
    desk.ask("a", 1), desk.ask("b", 1), desk.ask("c", 1), desk.ask("d", 1)
    desk.lose("d", charged=False)
    desk.ledger, _ = closed(desk.ledger, "clicks", 0, 14)
    assert [x.attempt for x in desk.ask("c", 1, completed=(3,)).refused] == [3]
    assert desk.ask("a", 1, completed=(1,)).verdict is Verdict.WAIT
    assert desk.ask("b", 1, completed=(2,)).verdict is Verdict.END
    assert account_of(desk.ledger, "clicks").done == (((0, 14),),)


def test_a_stream_cannot_end_before_what_is_trained() -> None:
    desk = Desk(a_stream(0))
    desk.ask("a", 3, progress=())
    desk.ask("a", 0, completed=(1,), progress=((2, 4),))
    with pytest.raises(BadInput, match="dataset clicks: partition 0 must be closed at 14 or later"):
        closed(desk.ledger, "clicks", 0, 13)
    desk.ledger, _ = closed(desk.ledger, "clicks", 0, 14)
    desk.lose("a")
    assert is_complete(desk.ledger)
    assert closed(desk.ledger, "clicks", 0, 14) == (desk.ledger, ())
    with pytest.raises(BadInput, match="is closed at 14, and cannot be closed at 15"):
        closed(desk.ledger, "clicks", 0, 15)


def test_words_about_what_is_no_partition_are_refused() -> None:
    desk = Desk(a_stream(5))
    with pytest.raises(BadInput, match=r"partition must be in 0\.\.0, got 1"):
        grown(desk.ledger, "clicks", 1, 10)
    with pytest.raises(BadInput, match="partition 0 must end at 5 or later, for there it begins; got 4"):
        closed(desk.ledger, "clicks", 0, 4)
    with pytest.raises(BadInput, match="only a stream grows or is closed, this is a range dataset"):
        grown(registered(Ledger(), a_dataset()), "train", 0, 10)


def test_a_restore_rolls_the_reading_back_but_not_what_exists() -> None:
    desk = Desk(a_stream(0))
    desk.ask("a", 3)
    desk.ask("a", 0, completed=(1,), progress=((2, 3),))
    mark = checkpoint(desk.ledger)
    desk.ask("a", 0, completed=(2,))
    desk.ledger, _ = closed(desk.ledger, "clicks", 0, 22)
    desk.ledger, _ = restored(desk.ledger, mark)
    assert account_of(desk.ledger, "clicks").done == (((0, 13),),)
    leases = desk.ask("a", 9).leases
    assert [(x.start, x.stop, x.done) for x in leases] == [(10, 20, 3), (20, 22, 0)]


@given(
    st.lists(st.tuples(st.integers(0, 20), st.integers(0, 40)), min_size=1, max_size=4),
    st.integers(1, 9),
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 4), st.booleans()), max_size=25),
)
def test_every_offset_of_a_closed_stream_is_trained_once(
    partitions: list[tuple[int, int]], shard: int, moves: list[tuple[str, int, bool]]
) -> None:
    """Free reading with losses, then the end becomes known, wherever the readers are."""
    desk = Desk(a_stream(*(first for first, _ in partitions), shard_size=shard))
    for partition, (first, length) in enumerate(partitions):
        desk.ledger, _ = grown(desk.ledger, "clicks", partition, first + length)
    for owner, want, dies in moves:
        held = tuple(desk.ledger.dynamic["clicks"].held.get(Owner(owner), ()))
        desk.ask(owner, want, completed=held[:1], progress=tuple((a, 1) for a in held[1:]))
        if dies:
            desk.lose(owner, charged=False)
    for partition, (first, length) in enumerate(partitions):
        desk.ledger, _ = closed(desk.ledger, "clicks", partition, first + length)
    for owner in "abc":
        desk.lose(owner, charged=False)
    for _ in range(200):
        held = tuple(desk.ledger.dynamic["clicks"].held.get(Owner("z"), ()))
        if desk.ask("z", 8, completed=held).verdict is Verdict.END:
            break
    assert is_complete(desk.ledger)
    expected = tuple(((first, first + length),) if length else () for first, length in partitions)
    assert account_of(desk.ledger, "clicks").done == expected
