"""The agent's desk: words about streams and worlds are said until they are written down."""

from tests.core.ledger.builders import a_dataset

from shoal.agent.shards import Desk
from shoal.core.ledger import Checkpoint
from shoal.core.ledger.dealing import dealt, mark_of, opened
from shoal.core.rounds import DatasetRefusal, Extent, Round, RoundAnswer, owner_of
from shoal.wire.local import LedgerPut, ShardsSaid, StreamSaid, WorldStands

OWNER = owner_of("worker-0", 0, 1, "a")


def grew(partition: int, until: int, *, closed: bool = False) -> StreamSaid:
    return StreamSaid(extent=Extent(dataset="clicks", partition=partition, until=until, closed=closed))


def sent(desk: Desk) -> Round:
    round = desk.next_round()
    assert round is not None
    return round


def extents(round: Round) -> list[tuple[int, int, bool]]:
    return [(e.partition, e.until, e.closed) for e in round.extents]


def test_of_a_streams_growth_only_the_furthest_word_is_said_and_every_end() -> None:
    desk = Desk()
    for word in (grew(0, 10), grew(1, 5), grew(0, 30), grew(0, 20), grew(0, 40, closed=True), grew(0, 41, closed=True)):
        desk.said(OWNER, word)
    assert extents(sent(desk)) == [(1, 5, False), (0, 30, False), (0, 40, True), (0, 41, True)]


def test_words_that_nobody_answered_are_said_again_to_the_next_master() -> None:
    desk = Desk()
    desk.said(OWNER, grew(0, 10))
    first = sent(desk)
    desk.said(OWNER, grew(0, 20))
    desk.reconnected()
    second = sent(desk)
    assert extents(second) == [(0, 20, False)]
    desk.answered(RoundAnswer(number=first.number))  # of the connection that is no more
    assert not desk.is_quiet
    desk.answered(RoundAnswer(number=second.number))
    assert desk.is_quiet
    assert desk.next_round() is None


def test_of_where_a_world_stands_the_last_word_counts_and_outlives_its_process() -> None:
    desk, standing = Desk(), opened(a_dataset(20, 5, together=True))
    desk.said(OWNER, WorldStands(generation=1, step=0, mark=mark_of(standing)))
    first = sent(desk)
    for step in (1, 2):
        deal = dealt(standing, seats=1, size=5)
        assert deal is not None
        standing = deal.after
        desk.said(OWNER, WorldStands(generation=1, step=step, mark=mark_of(standing)))
    desk.departed(OWNER, charged=False, reason="it ended")
    assert desk.next_round() is None  # one round at a time
    desk.answered(RoundAnswer(number=first.number))
    second = sent(desk)
    assert [(stand.step, stand.mark) for stand in second.stands] == [(2, mark_of(standing))]
    desk.answered(RoundAnswer(number=second.number))
    assert desk.is_quiet


def test_the_first_round_after_a_handshake_says_who_there_is_even_if_that_is_nobody() -> None:
    desk = Desk()
    desk.reconnected()
    round = sent(desk)
    assert (round.roll_call, round.holding) == (True, ())
    desk.answered(RoundAnswer(number=round.number))
    assert desk.next_round() is None


def test_the_end_of_a_process_waits_for_its_own_words_and_not_for_what_others_go_on_to_say() -> None:
    desk, heard = Desk(), list[str]()
    busy = owner_of("worker-0", 1, 2, "a")
    wish = ShardsSaid(dataset="train", epoch=None, completed=(), progress=(), want=1)
    desk.said(busy, wish)
    first = sent(desk)
    desk.said(OWNER, wish)
    desk.departed(OWNER, charged=False, reason="it ended")
    desk.when_heard(lambda: heard.append("all of it"))
    desk.said(busy, wish)
    desk.answered(RoundAnswer(number=first.number))
    assert not heard  # its last words were not in that one
    second = sent(desk)
    assert OWNER in {gone.owner for gone in second.departed}
    desk.said(busy, wish)
    desk.answered(RoundAnswer(number=second.number))
    assert not desk.is_quiet
    assert heard == ["all of it"]


def test_last_words_wait_behind_a_restore_that_goes_first() -> None:
    desk, heard = Desk(), list[str]()
    other = owner_of("worker-0", 1, 2, "a")
    desk.said(OWNER, ShardsSaid(dataset="train", epoch=None, completed=(), progress=(), want=1))
    desk.departed(OWNER, charged=False, reason="it ended")
    desk.said(other, LedgerPut(number=1, mark=Checkpoint()))
    desk.when_heard(lambda: heard.append("all of it"))
    first = sent(desk)
    assert (len(first.restores), first.asks, first.departed) == (1, (), ())
    desk.answered(RoundAnswer(number=first.number))
    assert not heard
    second = sent(desk)
    assert (len(second.asks), len(second.departed)) == (1, 1)
    desk.answered(RoundAnswer(number=second.number))
    assert heard == ["all of it"]


def test_how_far_streams_go_is_said_again_until_it_is_written_down() -> None:
    desk = Desk()
    for word in (grew(0, 10), grew(0, 40, closed=True), grew(1, 5)):
        desk.said(OWNER, word)
    first = sent(desk)
    desk.answered(RoundAnswer(number=first.number), is_kept=False)
    desk.said(OWNER, grew(1, 7))
    second = sent(desk)
    assert extents(second) == [(1, 7, False)]
    desk.answered(RoundAnswer(number=second.number), is_kept=False)
    assert not desk.is_quiet
    desk.reconnected()  # to a master that knows nothing of it
    third = sent(desk)
    assert extents(third) == [(0, 10, False), (0, 40, True), (1, 7, False)]
    desk.answered(RoundAnswer(number=third.number), is_kept=False)
    desk.kept(third.number)
    assert desk.is_quiet
    desk.reconnected()
    assert extents(sent(desk)) == []


def test_where_a_world_stands_is_said_again_until_it_is_written_down_and_only_the_last_word_of_it() -> None:
    desk, standing = Desk(), opened(a_dataset(20, 5, together=True))
    for step in (0, 1):
        desk.said(OWNER, WorldStands(generation=1, step=step, mark=mark_of(standing)))
        round = sent(desk)
        desk.answered(RoundAnswer(number=round.number), is_kept=False)
    assert not desk.is_quiet
    desk.departed(OWNER, charged=False, reason="it ended")
    assert [gone.owner for gone in sent(desk).departed] == [OWNER]  # so that it is written down now
    desk.reconnected()
    again = sent(desk)
    assert [stand.step for stand in again.stands] == [1]
    desk.answered(RoundAnswer(number=again.number))
    assert desk.is_quiet


def test_a_refused_end_of_a_stream_is_not_said_to_the_next_master() -> None:
    desk = Desk()
    desk.said(OWNER, grew(0, 40, closed=True))
    round = sent(desk)
    refusal = DatasetRefusal(dataset="clicks", reason="it is closed at 30")
    desk.answered(RoundAnswer(number=round.number, unusable=(refusal,)), is_kept=False)
    desk.reconnected()
    assert extents(sent(desk)) == []


def test_who_is_let_go_without_being_written_down_is_told_of_to_another_master_all_the_same() -> None:
    desk, heard = Desk(), list[str]()
    desk.said(OWNER, grew(0, 40, closed=True))
    desk.departed(OWNER, charged=False, reason="it ended")
    desk.when_heard(lambda: heard.append("the process"))
    round = sent(desk)
    desk.answered(RoundAnswer(number=round.number), is_kept=False)
    assert heard == []
    desk.let_go(round.number)
    desk.when_heard(lambda: heard.append("the agent"))
    assert heard == ["the process", "the agent"]
    desk.reconnected()
    again = sent(desk)
    assert (extents(again), [gone.owner for gone in again.departed]) == ([(0, 40, True)], [OWNER])
