"""The agent's desk: words about streams and worlds are said until a round that carried them was answered."""

from tests.core.ledger.builders import a_dataset

from shoal.agent.shards import Desk
from shoal.core.ledger.dealing import dealt, mark_of, opened
from shoal.core.rounds import Extent, Round, RoundAnswer, owner_of
from shoal.wire.local import StreamSaid, WorldStands

OWNER = owner_of("worker-0", 0, 1)


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
