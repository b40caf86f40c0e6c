"""Worlds: tables for what was once wrong or is easily got wrong, and a machine that tries everything else."""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from shoal.core import world as machine
from shoal.core.nodes import NodeId
from shoal.core.world import (
    Break,
    Commit,
    Dismiss,
    Interrupt,
    Member,
    Notice,
    Pause,
    Prepare,
    Release,
    Rendezvous,
    Standing,
    Step,
    World,
    WorldSettings,
)

T0 = datetime(2030, 1, 1, tzinfo=UTC)
LAST_CALL = timedelta(seconds=3)


class Table:
    """A rendezvous driven by hand: nodes are single letters in incarnation 1 unless said otherwise."""

    def __init__(self, *, low: int = 1, high: int = 4, unit: int = 1) -> None:
        self.r = Rendezvous(settings=WorldSettings(min_nodes=low, max_nodes=high, node_unit=unit, last_call=LAST_CALL))
        self.now = T0
        self.notices: tuple[Notice, ...] = ()

    def _took(self, step: Step) -> tuple[Notice, ...]:
        self.r, self.notices = step
        return self.notices

    def expect(self, nodes: str, *, awaited: bool = True, incarnation: int = 1) -> tuple[Notice, ...]:
        for node in nodes:
            self._took(machine.expect(self.r, NodeId(node), incarnation, awaited=awaited, now=self.now))
        return self.notices

    def ready(self, nodes: str, *steps: int | None, incarnation: int = 1) -> tuple[Notice, ...]:
        for node in nodes:
            self._took(
                machine.ready(
                    self.r, NodeId(node), incarnation, address=f"{node}:1", steps=steps or (None,), now=self.now
                )
            )
        return self.notices

    def ack(self, nodes: str, *, incarnation: int = 1, generation: int | None = None) -> tuple[Notice, ...]:
        for node in nodes:
            at = self.r.generation if generation is None else generation
            store = {f"{at}/{node}": node.encode()}
            self._took(machine.acked(self.r, NodeId(node), incarnation, at, store=store, now=self.now))
        return self.notices

    def train(self, nodes: str, *steps: int | None) -> None:
        """Bring these nodes into a committed world."""
        self.expect(nodes)
        self.ready(nodes, *steps)
        self.ack(nodes)
        assert self.ranks() == nodes

    def lost(self, node: str) -> tuple[Notice, ...]:
        return self._took(machine.lost(self.r, NodeId(node), now=self.now, reason=f"{node} is gone"))

    def dropped(self, node: str, incarnation: int, *, awaited: bool = False) -> tuple[Notice, ...]:
        return self._took(
            machine.dropped(self.r, NodeId(node), incarnation, awaited=awaited, now=self.now, reason="exit 1")
        )

    def leave(self, nodes: str) -> tuple[Notice, ...]:
        return self._took(machine.leave(self.r, [NodeId(n) for n in nodes], now=self.now))

    def completed(self, node: str) -> tuple[Notice, ...]:
        return self._took(machine.completed(self.r, NodeId(node), now=self.now))

    def finished(self, nodes: str) -> tuple[Notice, ...]:
        for node in nodes:
            at = self.r.committed.generation if self.r.committed else 0
            self._took(machine.finished(self.r, NodeId(node), 1, at, now=self.now))
        return self.notices

    def broken(self, generation: int | None = None) -> tuple[Notice, ...]:
        at = self.r.generation if generation is None else generation
        return self._took(machine.broken(self.r, at, now=self.now, reason="connection closed"))

    def tick(self, seconds: float) -> tuple[Notice, ...]:
        self.now += timedelta(seconds=seconds)
        return self._took(machine.ticked(self.r, now=self.now))

    def ranks(self) -> str:
        return "".join(m.node for m in self.r.committed.members) if self.r.committed else ""

    def standing(self, node: str) -> Standing | None:
        member = self.r.members.get(NodeId(node))
        return member.standing if member else None


# Forming -------------------------------------------------------------------------------------------------


def test_a_round_closes_at_once_when_everybody_expected_is_here() -> None:
    t = Table(low=2)
    t.expect("abc")
    assert t.ready("ab") == ()
    [prepare] = t.ready("c")
    assert isinstance(prepare, Prepare)
    assert [(m.node, m.base_rank, m.address) for m in prepare.world.members] == [
        ("a", 0, "a:1"),
        ("b", 1, "b:1"),
        ("c", 2, "c:1"),
    ]
    assert prepare.world.transfer
    assert prepare.world.step is None
    assert t.ack("ab") == ()
    [commit] = t.ack("c")
    assert isinstance(commit, Commit)
    assert commit.store == {"1/a": b"a", "1/b": b"b", "1/c": b"c"}
    assert t.r.running is commit.world


def test_an_incomplete_round_waits_for_the_last_call_and_then_no_longer_for_who_missed_it() -> None:
    t = Table(low=2)
    t.expect("abc")
    t.ready("a")
    assert machine.deadline(t.r) is None, "one of two cannot start a world, so nobody needs to be woken"
    t.ready("b")
    assert machine.deadline(t.r) == t.now + LAST_CALL
    assert t.tick(2.9) == ()
    [prepare] = t.tick(0.1)
    assert isinstance(prepare, Prepare)
    t.ack("ab")
    t.broken()
    t.ready("a", 7)
    [again] = t.ready("b", 7)
    assert isinstance(again, Prepare), "c had its last call; this round does not wait for it"


def test_the_last_call_counts_from_the_break_and_not_from_an_arrival_long_ago() -> None:
    t = Table(low=1, high=2)
    t.train("ab")
    t.expect("c")
    t.ready("c")  # a spare: the world is full
    t.now += timedelta(hours=1)
    t.dropped("a", 2, awaited=True)
    t.lost("b")
    assert t.r.pending is None
    assert machine.deadline(t.r) == t.now + LAST_CALL


@pytest.mark.parametrize(
    ("low", "high", "unit", "available", "size"),
    [
        pytest.param(1, 4, 1, 0, None, id="nobody"),
        pytest.param(2, 4, 1, 1, None, id="below-min"),
        pytest.param(2, 4, 1, 3, 3, id="all"),
        pytest.param(2, 4, 1, 9, 4, id="never-above-max"),
        pytest.param(1, 6, 4, 3, None, id="less-than-one-unit"),
        pytest.param(1, 6, 4, 6, 4, id="whole-units-only"),
        pytest.param(3, 6, 2, 3, None, id="the-unit-below-min"),
        pytest.param(3, 6, 2, 4, 4, id="the-unit-above-min"),
    ],
)
def test_largest_size(low: int, high: int, unit: int, available: int, size: int | None) -> None:
    assert WorldSettings(min_nodes=low, max_nodes=high, node_unit=unit).largest_size(available) == size


@pytest.mark.parametrize(("low", "high", "unit"), [(0, 4, 1), (5, 4, 1), (1, 4, 0), (1, 3, 4), (5, 7, 4)])
def test_settings_that_allow_no_world_are_refused(low: int, high: int, unit: int) -> None:
    with pytest.raises(ValueError, match=r"node"):
        WorldSettings(min_nodes=low, max_nodes=high, node_unit=unit)


def test_several_processes_on_a_node_have_consecutive_ranks_and_the_source_is_the_one_with_the_state() -> None:
    t = Table(low=2, high=2)
    t.expect("ab")
    t.ready("a", 4, 5)
    [prepare] = t.ready("b", 5, 6, 6)
    assert isinstance(prepare, Prepare)
    world = prepare.world
    assert [(m.node, m.base_rank, m.slots) for m in world.members] == [("b", 0, 3), ("a", 3, 2)]
    assert (world.source, world.step, world.transfer, world.size) == (1, 6, True, 5)


@pytest.mark.parametrize(
    ("steps", "sent"),
    [((6,), False), ((6, 6), False), ((6, 5), True), ((6, None), True), ((None,), True)],
)
def test_only_state_that_everybody_has_is_not_sent(steps: tuple[int | None, ...], sent: bool) -> None:
    t = Table(low=2, high=2)
    t.expect("ab")
    t.ready("a", 6, 6)
    [prepare] = t.ready("b", *steps)
    assert isinstance(prepare, Prepare)
    assert prepare.world.transfer == sent


def test_a_generation_given_up_is_never_used_again_nor_what_was_stored_for_it() -> None:
    t = Table()
    t.train("abc")
    t.broken()
    t.ready("abc", 4)
    t.ack("a")
    [again] = t.lost("b")
    assert isinstance(again, Prepare)
    assert again.world.generation == 3
    t.ack("a")
    [commit] = t.ack("c")
    assert isinstance(commit, Commit)
    assert commit.store == {"3/a": b"a", "3/c": b"c"}


def test_leftovers_of_a_unit_are_those_with_the_oldest_state_and_then_the_youngest() -> None:
    t = Table(low=2, high=4, unit=2)
    t.expect("abcde")
    for node, step in zip("abcde", (3, 5, 5, None, 5), strict=True):
        t.ready(node, step)
    assert t.r.pending is not None
    assert "".join(m.node for m in t.r.pending.members) == "bace"
    assert t.standing("d") is Standing.READY


# Ending a world ------------------------------------------------------------------------------------------


def test_a_join_pauses_and_a_loss_interrupts() -> None:
    t = Table()
    t.train("ab")
    t.expect("c", awaited=False)
    assert t.ready("c") == (Pause(1, (NodeId("a"), NodeId("b")), "c to join"),)
    assert t.lost("b") == (Interrupt(1, (NodeId("a"),), "b is gone"),)
    [prepare] = t.ready("a", 9)
    assert isinstance(prepare, Prepare)
    assert [m.node for m in prepare.world.members] == ["a", "c"]


def test_a_restarting_process_is_not_waited_for_unless_it_is_awaited() -> None:
    for awaited in (False, True):
        t = Table()
        t.train("ab")
        t.dropped("b", 2, awaited=awaited)
        t.ready("a", 3)
        assert (t.r.pending is None) == awaited
        assert (machine.deadline(t.r) is not None) == awaited


def test_a_leaver_goes_when_all_have_come_out() -> None:
    t = Table()
    t.train("abc")
    [pause] = t.leave("b")
    assert isinstance(pause, Pause)
    assert t.ready("a", 8) == ()
    assert t.ready("b", 8) == (), "c may still be in the last collective with it"
    prepare, dismiss = t.ready("c", 8)
    assert isinstance(prepare, Prepare)
    assert dismiss == Dismiss(NodeId("b"))
    assert not prepare.world.transfer


def test_a_leaver_that_paused_without_a_step_waits_for_the_others_too() -> None:
    t = Table()
    t.train("abc", 8)
    t.leave("b")
    assert t.ready("b", 8) == ()
    assert t.standing("b") is Standing.READY


def test_a_leaver_that_alone_has_the_newest_state_hands_it_on_first() -> None:
    t = Table()
    t.train("ab")
    t.leave("b")
    t.broken()
    t.ready("a", 4)
    [prepare] = t.ready("b", 5)
    assert isinstance(prepare, Prepare)
    assert [m.node for m in prepare.world.members] == ["b", "a"]
    commit, pause = t.ack("ab")
    assert isinstance(commit, Commit)
    assert isinstance(pause, Pause)
    t.ready("a", 5)
    _, dismiss = t.ready("b", 5)
    assert dismiss == Dismiss(NodeId("b"))


def test_a_world_that_would_be_too_small_keeps_its_leaver_until_somebody_joins() -> None:
    t = Table(low=2)
    t.train("ab")
    assert t.leave("b") == ()
    t.expect("c", awaited=False)
    [pause] = t.ready("c")
    assert isinstance(pause, Pause)


def test_the_only_seat_is_not_paused_for_a_hand_over_that_has_no_room() -> None:
    """With max 1 the leaver and its successor are never in one world: pausing would go on for ever."""
    t = Table(low=1, high=1)
    t.train("a")
    t.expect("b", awaited=False)
    t.ready("b")
    assert t.leave("a") == ()
    assert t.r.running is not None


def test_a_full_world_of_leavers_hands_on_when_there_is_room() -> None:
    t = Table(low=1, high=2)
    t.train("a")
    t.expect("b", awaited=False)
    t.leave("a")
    [pause] = t.ready("b")
    assert isinstance(pause, Pause)
    [prepare] = t.ready("a", 3)
    assert isinstance(prepare, Prepare)
    assert [m.node for m in prepare.world.members] == ["a", "b"]


def test_the_clock_wakes_a_round_that_only_a_leaver_completes() -> None:
    t = Table(low=2)
    t.expect("abc")
    t.ready("a", 4)
    t.ready("b", 5)
    t.leave("b")
    assert t.standing("b") is Standing.READY
    assert machine.deadline(t.r) == t.now + LAST_CALL
    [prepare] = t.tick(3)
    assert isinstance(prepare, Prepare)


def test_losing_one_who_has_paused_frees_those_who_wait_for_it() -> None:
    t = Table()
    t.train("abc")
    t.expect("d", awaited=False)
    t.ready("d")
    t.ready("a", 5)
    assert t.lost("a") == (Interrupt(1, (NodeId("b"), NodeId("c")), "a is gone"),)


def test_a_broken_connection_during_a_pause_interrupts() -> None:
    t = Table()
    t.train("ab")
    t.expect("c", awaited=False)
    t.ready("c")
    [interrupt] = t.broken()
    assert isinstance(interrupt, Interrupt)
    assert t.broken() == ()


def test_a_member_that_asks_for_a_new_world_interrupts_the_others_only() -> None:
    t = Table()
    t.train("ab")
    assert t.ready("b", 0) == (Interrupt(1, (NodeId("a"),), "b asks for a new world"),)


def test_a_generation_given_up_leaves_no_world_running() -> None:
    t = Table(low=2)
    t.train("ab")
    t.expect("c")
    t.ready("c")
    t.ready("ab", 1)
    t.lost("c")
    assert t.r.pending is not None
    t.lost("b")
    assert t.r.pending is None
    assert t.r.running is None


def test_a_leaver_that_restarts_is_still_leaving() -> None:
    t = Table(low=2)
    t.train("ab")
    t.leave("b")
    notices = t.expect("b", incarnation=2)
    assert Dismiss(NodeId("b")) in notices
    assert t.standing("b") is None


def test_a_world_of_agents_gives_way_without_an_interrupt() -> None:
    t = Table(low=2)
    t.train("ab")
    t.r, notices = machine.superseded(t.r, now=t.now)
    assert notices == ()
    assert t.r.running is None
    assert t.ready("a", None) == ()
    [prepare] = t.ready("b", None)
    assert isinstance(prepare, Prepare)


# The end -------------------------------------------------------------------------------------------------


def test_all_finished_releases_once() -> None:
    t = Table()
    t.train("ab")
    assert t.finished("a") == ()
    assert t.finished("b") == (Release(1, (NodeId("a"), NodeId("b"))),)
    assert t.finished("b") == ()


def test_finishing_after_a_pause_was_asked_for_still_ends() -> None:
    t = Table()
    t.train("ab")
    t.expect("c", awaited=False)
    assert isinstance(t.ready("c")[0], Pause)
    assert t.finished("ab") == (Release(1, (NodeId("a"), NodeId("b"))),)
    assert t.r.breaking is None


def test_finished_members_rejoin_those_who_paused() -> None:
    t = Table()
    t.train("ab")
    t.leave("b")
    t.ready("a", 9)
    [interrupt] = t.finished("b")
    assert isinstance(interrupt, Interrupt)
    assert interrupt.to == (NodeId("b"),)


def test_nobody_joins_a_world_that_is_finishing() -> None:
    t = Table()
    t.train("ab")
    t.finished("a")
    t.expect("c", awaited=False)
    assert t.ready("c") == ()


@pytest.mark.parametrize(
    "after",
    [
        pytest.param(lambda t: t.broken(), id="connections-close-as-members-return"),
        pytest.param(lambda t: t.lost("b"), id="lost"),
        pytest.param(lambda t: t.dropped("b", 2), id="dropped"),
        pytest.param(lambda t: t.completed("b"), id="completed"),
        pytest.param(lambda t: t.tick(60), id="time"),
    ],
)
def test_released_members_are_not_disturbed(after: Callable[[Table], tuple[Notice, ...]]) -> None:
    t = Table()
    t.train("abc")
    t.finished("abc")
    assert after(t) == ()
    assert t.r.released


def test_after_the_release_leavers_may_go_whatever_they_hold() -> None:
    t = Table(low=1, high=1)
    t.train("a", 3)
    t.expect("b", awaited=False)
    t.ready("b", 2)
    t.leave("b")
    assert t.standing("b") is None
    t.expect("c", awaited=False)
    t.ready("c", 9)
    t.leave("c")
    assert t.standing("c") is Standing.READY
    assert Dismiss(NodeId("c")) in t.finished("a")


# Duplicates and late messages ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "late",
    [
        pytest.param(lambda t: t.ack("ab", generation=1), id="ack-of-an-old-generation"),
        pytest.param(lambda t: t.ack("b", incarnation=1), id="ack-of-an-old-incarnation"),
        pytest.param(lambda t: t.ready("b", 99, incarnation=1), id="ready-of-an-old-incarnation"),
        pytest.param(lambda t: t.ready("b", 99, incarnation=3), id="ready-of-an-incarnation-not-announced"),
        pytest.param(lambda t: t.ready("z", 99), id="ready-of-a-stranger"),
        pytest.param(lambda t: t.finished("a"), id="finished-outside-a-world"),
        pytest.param(lambda t: t.broken(1), id="an-old-world-breaks"),
        pytest.param(lambda t: t.dropped("b", 2), id="dropped-again"),
        pytest.param(lambda t: t.expect("b", incarnation=2), id="expected-again"),
        pytest.param(lambda t: t.expect("b", incarnation=1), id="an-old-incarnation-expected"),
        pytest.param(lambda t: t.lost("z"), id="a-stranger-lost"),
        pytest.param(lambda t: t.completed("z"), id="a-stranger-completed"),
        pytest.param(lambda t: t.leave("z"), id="a-stranger-leaves"),
    ],
)
def test_late_messages_change_nothing(late: Callable[[Table], tuple[Notice, ...]]) -> None:
    t = Table()
    t.train("ab")
    t.dropped("b", 2)
    t.ready("b", incarnation=2)
    t.ready("a", 5)
    before = t.r
    assert before.pending is not None
    assert before.members[NodeId("b")].standing is Standing.PREPARED
    assert late(t) == ()
    assert t.r == before


# Any order of anything -----------------------------------------------------------------------------------

NODES = tuple(NodeId(n) for n in "abcdefg")
nodes = st.sampled_from(NODES)
process_steps = st.lists(st.none() | st.integers(0, 6), min_size=1, max_size=3).map(tuple)
mostly_now = st.sampled_from([0, 0, 0, 0, -1, -2, 1])
"""How far a message's incarnation or generation is off."""


class AnyOrder(RuleBasedStateMachine):
    """Throws every event at the machine in any order, true or not, and looks after each one."""

    def __init__(self) -> None:
        super().__init__()
        self.r = Rendezvous(settings=WorldSettings(min_nodes=1, max_nodes=1))
        self.now = T0
        self.highest = 0
        self.last_world: World | None = None
        self.incarnations: dict[NodeId, int] = {}
        self.gone: set[NodeId] = set()
        self.releases = 0
        self.restarting: NodeId | None = None
        self.back: NodeId | None = None
        self.word: tuple[NodeId, tuple[int | None, ...]] | None = None

    @initialize(low=st.integers(1, 3), more=st.integers(0, 4), unit=st.integers(1, 3))
    def start(self, low: int, more: int, unit: int) -> None:
        high = max(low + more, (low + unit - 1) // unit * unit)
        self.r = Rendezvous(settings=WorldSettings(min_nodes=low, max_nodes=high, node_unit=unit, last_call=LAST_CALL))

    # What happens

    @rule(node=nodes, awaited=st.booleans(), newer=st.integers(-1, 1))
    def expect(self, node: NodeId, awaited: bool, newer: int) -> None:
        if node in self.gone:
            return  # names are never used twice
        incarnation = max(1, self.incarnations.get(node, 1) + newer)
        self.incarnations[node] = max(self.incarnations.get(node, 0), incarnation)
        self.restarting = node
        self.happened(machine.expect(self.r, node, incarnation, awaited=awaited, now=self.now))
        if node in self.r.members:  # a leaver that restarts is dismissed, and its name is gone
            self.twice(lambda r: machine.expect(r, node, incarnation, awaited=awaited, now=self.now))

    @rule(count=st.integers(1, 5), steps=process_steps)
    def arrive(self, count: int, steps: tuple[int | None, ...]) -> None:
        """Several nodes that are on their way become ready: gets the machine into worlds often."""
        waiting = [m for m in self.r.members.values() if m.standing is Standing.EXPECTED]
        for member in waiting[:count]:
            self.say_ready(member.node, member.incarnation, steps)

    @rule(node=nodes, off=mostly_now, steps=process_steps)
    def ready(self, node: NodeId, off: int, steps: tuple[int | None, ...]) -> None:
        self.say_ready(node, self.incarnations.get(node, 1) + off, steps)

    @rule(steps=st.lists(st.integers(0, 6), min_size=1, max_size=3))
    def come_out(self, steps: list[int]) -> None:
        """Members of a world that ends say ready, with steps that may differ."""
        if self.r.breaking is not None:
            for i, m in enumerate(list(self.r.members.values())):
                if m.standing is Standing.ACTIVE:
                    self.say_ready(m.node, m.incarnation, (steps[i % len(steps)],) * m.slots)

    @rule(node=nodes, off=mostly_now, older=mostly_now)
    def ack(self, node: NodeId, off: int, older: int) -> None:
        self.say_ack(node, self.incarnations.get(node, 1) + off, self.r.generation + older)

    @rule(count=st.integers(1, 7))
    def acks(self, count: int) -> None:
        pending = self.r.pending
        for member in pending.members[:count] if pending else ():
            self.say_ack(member.node, member.incarnation, pending.generation)

    @rule(node=nodes)
    def lost(self, node: NodeId) -> None:
        self.gone.add(node)
        self.twice(lambda r: machine.lost(r, node, now=self.now, reason="gone"))

    @rule(node=nodes, awaited=st.booleans(), newer=st.integers(0, 1))
    def dropped(self, node: NodeId, awaited: bool, newer: int) -> None:
        incarnation = self.incarnations.get(node, 1) + newer
        if node in self.r.members:
            self.incarnations[node] = incarnation
        self.restarting = node
        self.twice(lambda r: machine.dropped(r, node, incarnation, awaited=awaited, now=self.now, reason="exit 1"))

    @rule(some=st.lists(nodes, max_size=3))
    def leave(self, some: list[NodeId]) -> None:
        self.twice(lambda r: machine.leave(r, some, now=self.now))

    @rule(node=nodes)
    def completed(self, node: NodeId) -> None:
        self.gone.add(node)
        self.twice(lambda r: machine.completed(r, node, now=self.now))

    @rule(node=nodes, off=mostly_now, older=mostly_now)
    def finished(self, node: NodeId, off: int, older: int) -> None:
        incarnation, generation = self.incarnations.get(node, 1) + off, self.r.generation + older
        self.twice(lambda r: machine.finished(r, node, incarnation, generation, now=self.now))

    @precondition(lambda self: self.r.breaking is Break.PAUSE)
    @rule(but=st.integers(0, 2))
    def most_finish(self, but: int) -> None:
        """The last step is done while a pause is on its way."""
        active = [m for m in self.r.members.values() if m.standing is Standing.ACTIVE]
        assert self.r.committed is not None
        generation = self.r.committed.generation
        for m in active[but:]:
            self.happened(machine.finished(self.r, m.node, m.incarnation, generation, now=self.now))
        if not but and active:
            assert self.r.released or self.r.breaking is Break.INTERRUPT, "all have finished and nobody is told"

    @rule(older=mostly_now)
    def broken(self, older: int) -> None:
        generation = self.r.generation + older
        self.twice(lambda r: machine.broken(r, generation, now=self.now, reason="closed"))

    @rule()
    def superseded(self) -> None:
        self.twice(lambda r: machine.superseded(r, now=self.now))

    @rule(some=st.sets(nodes))
    def taken_over(self, some: set[NodeId]) -> None:
        """Another master knows only what was written down; these ran then."""
        self.r = machine.taken_over(self.r, some)

    @rule(node=nodes, generation=mostly_now, prepared=mostly_now)
    def returned(self, node: NodeId, generation: int, prepared: int) -> None:
        self.come_back(node, max(0, self.r.generation + generation), max(0, self.r.generation + prepared))

    @rule(seconds=st.sampled_from([0.0, 0.5, 2.5, 3.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)
        self.twice(lambda r: machine.ticked(r, now=self.now))

    @precondition(lambda self: not self.r.released)
    @rule()
    def dust_settles(self) -> None:
        """Everybody alive does what it is asked to do. There must be one world then, as large as can be."""
        for _ in range(60):
            if not self.somebody_moves():
                break
        else:
            raise AssertionError(f"the dust does not settle: {self.r}")
        if self.r.released:
            return
        staying = sum(1 for m in self.r.members.values() if not m.leaving)
        size = self.r.settings.largest_size(staying)
        running = self.r.running
        if running is None:
            assert size is None, f"{staying} members could be a world of {size}, and are none"
            return
        active = [m for m in self.r.members.values() if m.standing is Standing.ACTIVE]
        if any(m.finished for m in active) or len(active) < len(running.members):
            return  # a world that is ending, or that some have completed, is left alone
        assert size is None or len(active) >= size
        if any(m.leaving for m in active):
            assert size is None or (len(active) == 1 and self.r.settings.max_nodes == 1)

    # What follows

    def say_ready(self, node: NodeId, incarnation: int, steps: tuple[int | None, ...]) -> None:
        step = machine.ready(self.r, node, incarnation, address=f"{node}:1", steps=steps, now=self.now)
        if not self.is_current(node, incarnation):
            assert step == (self.r, ()), "a late ready changes nothing"
        else:
            self.word = (node, steps)  # whatever it held before, this is what it holds now
        self.happened(step)

    def come_back(self, node: NodeId, generation: int, prepared: int) -> None:
        self.back = node
        self.happened(machine.returned(self.r, node, generation=generation, prepared=prepared, now=self.now))
        assert node not in self.r.strays
        assert self.r.generation >= max(generation, prepared), "what somebody has heard of is not used again"
        self.highest = max(self.highest, generation, prepared)

    def say_ack(self, node: NodeId, incarnation: int, generation: int) -> None:
        store = {f"{generation}/{node}": b"x"}
        pending = self.r.pending
        if not self.is_current(node, incarnation) or pending is None or generation != pending.generation:
            late = machine.acked(self.r, node, incarnation, generation, store=store, now=self.now)
            assert late == (self.r, ()), "a late ack changes nothing"
        self.twice(lambda r: machine.acked(r, node, incarnation, generation, store=store, now=self.now))

    def is_current(self, node: NodeId, incarnation: int) -> bool:
        member = self.r.members.get(node)
        return member is not None and member.incarnation == incarnation

    def somebody_moves(self) -> bool:
        for node in sorted(self.r.strays):
            self.come_back(node, 0, 0)
            return True
        for m in list(self.r.members.values()):
            if m.standing is Standing.PREPARED:
                assert self.r.pending is not None
                self.say_ack(m.node, m.incarnation, self.r.pending.generation)
                return True
            if m.standing is Standing.EXPECTED:
                self.say_ready(m.node, m.incarnation, (None,))
                return True
            if m.standing is Standing.ACTIVE and self.r.breaking is not None and not self.pauses_no_more(m):
                committed = self.r.committed
                assert committed is not None
                at = max(m.step or 0, committed.step or 0)
                self.say_ready(m.node, m.incarnation, (at,) * m.slots)
                return True
        due = machine.deadline(self.r)
        if due is not None:
            self.now = max(self.now, due)
            self.happened(machine.ticked(self.r, now=self.now))
            assert self.r.pending is not None, "the deadline came and nothing followed"
            return True
        return False

    def pauses_no_more(self, m: Member) -> bool:
        return m.finished and self.r.breaking is Break.PAUSE

    def twice(self, event: Callable[[Rendezvous], Step]) -> None:
        """It happens; and were it told a second time, nothing more would."""
        self.happened(event(self.r))
        again, notices = event(self.r)
        assert notices == ()
        assert again == self.r

    def happened(self, step: Step) -> None:
        before = self.r
        self.r, notices = step
        for notice in notices:
            self.look_at(notice, before)
        self.restarting = self.word = self.back = None

    def look_at(self, notice: Notice, before: Rendezvous) -> None:
        if before.released:
            assert isinstance(notice, Dismiss), "after the release nobody is told anything but to go"
        match notice:
            case Prepare(world=world):
                self.look_at_world(world)
            case Commit(world=world, store=store):
                assert world == before.pending
                assert {f"{world.generation}/{m.node}" for m in world.members} == set(store)
                assert before.committed is None or before.committed.generation < world.generation
            case Interrupt(to=to) if to == (self.back,):
                assert self.r.members[to[0]].standing in (Standing.EXPECTED, Standing.ACTIVE), (
                    "it will ask for the next"
                )
            case Pause(generation=generation, to=to) | Interrupt(generation=generation, to=to):
                assert self.r.committed is not None
                assert generation == self.r.committed.generation
                assert to
                assert set(to) <= {m.node for m in self.r.committed.members}
                assert set(to) <= set(self.r.members)
                assert len(set(to)) == len(to)
            case Release(generation=generation, to=to):
                assert self.r.committed is not None
                assert generation == self.r.committed.generation
                assert all(self.r.members[n].finished for n in to)
                assert set(to) == {m.node for m in self.r.members.values() if m.standing is Standing.ACTIVE}
                self.releases += 1
                assert self.releases == 1
            case Dismiss(node=node):
                assert node not in self.r.members
                self.gone.add(node)
                was = before.members[node]
                if self.word is not None and self.word[0] == node:
                    was = replace(was, steps=self.word[1])
                if node == self.restarting:
                    return  # what its processes held is gone with them
                kept = [m.step for m in self.r.members.values() if m.step is not None]
                in_hand = was.standing is Standing.READY and was.step is not None and not self.r.released
                assert not in_hand or any(step >= was.step for step in kept if was.step is not None)

    def look_at_world(self, world: World) -> None:
        assert world.generation > self.highest, "a generation is never used twice"
        assert not self.r.strays, "who has not come back may be in a world that nobody knows of"
        self.highest = world.generation
        assert world.generation == self.r.generation
        limits = self.r.settings
        assert limits.min_nodes <= len(world.members) <= limits.max_nodes
        assert len(world.members) % limits.node_unit == 0
        assert [r for m in world.members for r in range(m.base_rank, m.base_rank + m.slots)] == list(range(world.size))
        assert len({m.node for m in world.members}) == len(world.members)
        known = [self.r.members[m.node] for m in world.members]
        assert [m.incarnation for m in known] == [m.incarnation for m in world.members]
        assert [m.incarnation for m in known] == [self.incarnations[m.node] for m in known]

        waiting = [m for m in self.r.members.values() if m.standing is Standing.READY]
        newest = max((m.step for m in (*known, *waiting) if m.step is not None), default=None)
        assert world.step == newest, "the newest state of all who wait counts"
        assert known[0].steps[world.source] == world.step
        assert known[0].seniority == min(m.seniority for m in known if m.step == newest)
        assert world.transfer == (newest is None or {s for m in known for s in m.steps} != {newest})
        others = [m.seniority for m in known[1:]]
        assert others == sorted(others)
        leaving = [m for m in known if m.leaving]
        assert all(m is known[0] for m in leaving), "only the one that hands its state on stays"

        if self.last_world is not None:
            old = [(m.node, m.incarnation) for m in self.last_world.members[1:]]
            new = [(m.node, m.incarnation) for m in world.members[1:]]
            assert [m for m in old if m in new] == [m for m in new if m in old], "survivors keep their order"
        self.last_world = world

    @invariant()
    def counts_are_true(self) -> None:
        members = self.r.members.values()
        assert self.r.unsettled == sum(m.is_awaited for m in members)
        assert self.r.unfinished == sum(m.is_unfinished for m in members)
        assert self.r.leaving == sum(m.leaving for m in members)
        pending = {m.node for m in self.r.pending.members} if self.r.pending else set()
        assert pending == {m.node for m in members if m.standing in (Standing.PREPARED, Standing.ACKED)}
        assert self.r.unacked == sum(m.standing is Standing.PREPARED for m in members)
        assert self.r.pending is None or self.r.unacked, "a generation that all acknowledged is committed"

    @invariant()
    def there_is_one_world_at_a_time(self) -> None:
        active = {m.node: m.incarnation for m in self.r.members.values() if m.standing is Standing.ACTIVE}
        if active:
            assert self.r.pending is None
            assert self.r.committed is not None
            assert active.items() <= {m.node: m.incarnation for m in self.r.committed.members}.items()
        if self.r.running is not None:
            assert active
        assert self.r.pending is None or self.r.pending.generation <= self.r.generation == self.highest
        seniorities = [m.seniority for m in self.r.members.values() if m.seniority is not None]
        assert len(set(seniorities)) == len(seniorities)

    @invariant()
    def the_deadline_is_true(self) -> None:
        due = machine.deadline(self.r)
        far = self.now + timedelta(days=1)
        if due is None:
            assert machine.ticked(self.r, now=far) == (self.r, ()), "nobody would have woken it for this"
        elif due > self.now:
            early = due - timedelta(microseconds=1)
            assert machine.ticked(self.r, now=early) == (self.r, ())


AnyOrder.TestCase.settings = settings(
    max_examples=200,
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestAnyOrder = AnyOrder.TestCase


def test_the_rendezvous_is_a_value() -> None:
    """Nothing is changed in place: an earlier value can be gone back to."""
    t = Table()
    t.train("ab")
    before, copy = t.r, replace(t.r)
    t.lost("a")
    t.ready("b", 3)
    assert before == copy
