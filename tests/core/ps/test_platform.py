"""Servers that the platform launches by itself: the new one is ready, everybody acknowledges, then the old one is
released. The platform here is a small operator: it gives, adds, replaces beside, and ends only who was released."""

from collections.abc import Callable
from datetime import timedelta

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule
from tests.core.ps.cast import Cast, a_plan
from tests.core.ps.test_manager_machine import MOST_TURNS, PSMachine

from shoal.core.nodes import Node, NodeId, NodeStatus, Role
from shoal.core.plans import ResourcePlan
from shoal.core.ps import manager, platform
from shoal.core.ps.manager import Turned
from shoal.core.ps.values import Granted, Phase
from shoal.core.ps.words import ToTrainer

MOST_WORDS = 3_000


class GivenCast(Cast):
    """A cast whose servers an operator launches: plans go to it, and the manager hears what it does."""

    def __init__(self, *, servers: int = 2, most: int = 4, **settings: object) -> None:
        self.wanted = servers
        self.seats: dict[NodeId, int] = {}
        """Of members that the operator has added and not ended."""
        self.moves: dict[NodeId, NodeId] = {}
        """Of members that are to be replaced: by whom."""
        self.victims: frozenset[NodeId] = frozenset()
        self.next_id = 0
        super().__init__(servers=servers, most=most, platform_launches=True, **settings)
        self.operate()

    def after(self, turned: Turned) -> None:
        super().after(turned)
        for node in self.m.nodes.values():
            self.seats.setdefault(node.id, node.seat)  # ordered by the manager: obeyed
            self.next_id = max(self.next_id, node.number + 1)

    def gone(self, node: NodeId) -> None:
        was_released = node in self.leaving
        self.seats.pop(node, None)
        super().gone(node)
        if was_released:
            self.operate()

    def come(self, node: NodeId) -> None:
        super().come(node)
        self.operate()

    def plan(self, plan: ResourcePlan, victims: frozenset[NodeId] = frozenset()) -> None:
        group = plan.node_group_resources.get(Role.PS)
        if group is not None and 1 <= group.count <= self.m.settings.max_servers:
            self.wanted, self.victims = group.count, victims
        for name in plan.node_resources:
            node = NodeId(name)
            if node in self.seats and node in self.servers and node not in {*self.moves, *self.leaving}:
                self.moves[node] = self.add(self.seats[node], replaces=node)
        self.operate()

    def operate(self) -> None:
        """Add what is missing; say what is given."""
        self.moves = {old: new for old, new in self.moves.items() if {old, new} <= self.seats.keys() - self.leaving}
        taken = {seat for node, seat in self.seats.items() if node not in self.leaving}
        free = [seat for seat in range(len(taken) + self.wanted) if seat not in taken]
        for seat in free[: max(0, self.wanted - len(taken))]:
            self.add(seat)
        self.grant()

    def settle(self, watch: Callable[[ToTrainer], object] | None = None) -> None:
        for _ in range(MOST_WORDS):
            if self.failed is not None or not (self.one_node() or self.one_word(watch)):
                return
        raise AssertionError("they never come to rest: " + "; ".join(self.said[-8:]))

    def add(self, seat: int, *, replaces: NodeId | None = None) -> NodeId:
        number = self.next_id
        self.next_id += 1
        node = Node(role=Role.PS, number=number, seat=seat, since=self.now, reason="the platform added it")
        node = node.moved(NodeStatus.PENDING, now=self.now, reason="the platform added it")
        self.seats[node.id] = seat
        self.coming.add(node.id)
        said = {} if replaces is None else {node.id: replaces}
        for _ in range(2):
            self.after(platform.servers_announced(self.m, [node], replaces=said, now=self.now))
        return node.id

    def grant(self) -> None:
        starting = [new for new in self.moves.values() if new in self.coming]
        leaving = frozenset(old for old, new in self.moves.items() if new not in self.coming)
        count, live = self.wanted + len(starting), len(self.seats.keys() - self.leaving)
        granted = Granted(most=count if live > count else None, victims=self.victims | leaving)
        self.after(platform.servers_granted(self.m, granted, now=self.now))


def a_cast(servers: int = 2, trainers: int = 2, **settings: object) -> GivenCast:
    cast = GivenCast(servers=servers, **settings)
    for _ in range(trainers):
        cast.join()
    cast.settle()
    assert names(cast) == [f"ps-{n}" for n in range(servers)]
    return cast


def names(cast: Cast) -> list[str]:
    """The servers of the current version, in order of rank."""
    assert cast.m.current is not None
    return [server.node for server in cast.m.current.servers]


def until(cast: Cast, phase: Phase) -> None:
    while cast.m.change is None or cast.m.change.phase is not phase:
        assert cast.one_node() or cast.one_word()


def test_a_job_starts_with_all_servers_that_it_is_given():
    cast = GivenCast(servers=3)
    cast.join()
    cast.come(NodeId("ps-0"))
    cast.settle_words()
    assert cast.m.current is None
    cast.settle()
    assert names(cast) == ["ps-0", "ps-1", "ps-2"]


def test_one_more_is_used_when_it_is_ready_and_nobody_else_is_launched():
    cast = a_cast()
    cast.plan(a_plan(3))
    assert cast.coming == {"ps-2"}
    cast.settle()
    assert names(cast) == ["ps-0", "ps-1", "ps-2"]


def test_the_old_server_is_released_when_everybody_has_acknowledged_the_new_one():
    cast = a_cast()
    cast.plan(a_plan(cpu={"ps-0": 8.0}))
    assert cast.coming == {"ps-2"}
    until(cast, Phase.RESUMING)
    assert names(cast) == ["ps-2", "ps-1"]
    assert "ps-0" not in cast.leaving
    while "ps-0" not in cast.leaving:
        assert cast.m.change is not None
        assert cast.m.change.awaiting
        assert cast.one_word()
    cast.settle()
    assert set(cast.servers) == {"ps-1", "ps-2"}


def test_of_fewer_servers_the_victim_goes_after_its_partitions_were_moved():
    cast = a_cast(servers=3)
    cast.plan(a_plan(2), victims=frozenset({NodeId("ps-0")}))
    until(cast, Phase.MOVING)
    assert not cast.leaving
    cast.settle()
    assert names(cast) == ["ps-1", "ps-2"]
    assert set(cast.servers) == {"ps-1", "ps-2"}


def test_a_change_that_is_given_up_releases_the_replacement_and_keeps_the_old_server():
    cast = a_cast()
    cast.plan(a_plan(cpu={"ps-0": 8.0}))
    until(cast, Phase.PREPARING)
    cast.wait_for_deadline()
    assert cast.leaving == {"ps-2"}
    cast.settle()
    assert names(cast) == ["ps-0", "ps-1"]
    assert set(cast.servers) == {"ps-0", "ps-1"}


def test_one_more_that_could_not_be_used_stays_where_the_platform_wants_it_and_goes_when_it_does_not():
    cast = a_cast()
    cast.plan(a_plan(3))
    until(cast, Phase.PREPARING)
    cast.wait_for_deadline()
    cast.settle()
    assert names(cast) == ["ps-0", "ps-1"]
    assert set(cast.servers) == {"ps-0", "ps-1", "ps-2"}
    cast.grant()
    assert cast.m.change is None  # said again, it is nothing new
    cast.wait_for_deadline()
    assert cast.m.change is not None  # after a while it is tried again
    until(cast, Phase.PREPARING)
    cast.wait_for_deadline()
    cast.plan(a_plan(2))
    cast.settle()
    assert set(cast.servers) == {"ps-0", "ps-1"}


def test_a_replacement_that_the_platform_takes_back_ends_the_change_and_no_other_is_ordered():
    cast = a_cast()
    cast.plan(a_plan(cpu={"ps-0": 8.0}))
    assert cast.m.change is not None
    cast.gone(NodeId("ps-2"))
    cast.settle()
    assert cast.m.change is None
    assert names(cast) == ["ps-0", "ps-1"]
    assert set(cast.m.nodes) == {"ps-0", "ps-1"}


def test_a_lost_server_is_ordered_again_and_its_replacement_beside_it_is_used_first():
    cast = a_cast()
    cast.gone(NodeId("ps-1"))
    assert cast.coming == {"ps-2"}
    cast.settle()
    assert names(cast) == ["ps-0", "ps-2"]
    cast.plan(a_plan(cpu={"ps-0": 8.0}))
    cast.gone(NodeId("ps-0"))
    assert cast.coming == {"ps-3"}
    cast.settle()
    assert names(cast) == ["ps-3", "ps-2"]


@pytest.mark.parametrize("directory", ["/ckpt", None], ids=["from-its-checkpoint", "or-not-at-all"])
def test_a_job_that_rested_goes_on_with_other_servers(directory: str | None):
    cast = a_cast(directory=directory)
    if directory is not None:
        cast.save()
        cast.settle()
    cast.after(platform.servers_granted(cast.m, Granted(most=0), now=cast.now))
    for trainer in list(cast.trainers):
        cast.die(trainer)
    for server in list(cast.servers):
        cast.gone(server)
    assert cast.m.failed is None
    assert not cast.coming
    cast.restart_master()
    cast.operate()
    cast.join()
    cast.settle()
    if directory is None:
        assert "there is no checkpoint path" in str(cast.failed)
    else:
        assert names(cast) == ["ps-2", "ps-3"]


def test_how_many_there_are_is_not_a_plans_to_say():
    cast = a_cast()
    _, effects = manager.planned(cast.m, a_plan(3), now=cast.now)
    assert "the platform's to say" in str(effects)


@pytest.mark.parametrize("name", ["ps-7", "worker-0"])
def test_a_replacement_for_nobody_fills_a_rank_of_its_own(name: str):
    cast = a_cast()
    cast.wanted = 3
    cast.add(2, replaces=NodeId(name))
    cast.grant()
    cast.settle()
    assert names(cast) == ["ps-0", "ps-1", "ps-2"]


class GivenMachine(PSMachine):
    """Everything that happens to a PS manager, with plans that an operator carries out."""

    @initialize(
        servers=st.integers(1, 3),
        trainers=st.integers(0, 3),
        attempts=st.integers(1, 3),
        calm=st.sampled_from([True, True, False]),
    )
    def begin(self, servers: int, trainers: int, attempts: int, calm: bool) -> None:
        self.cast = GivenCast(servers=servers, most=4, max_attempts=attempts)
        for _ in range(trainers):
            self.cast.join()
        if calm:
            self.cast.settle()

    @precondition(lambda self: self.cast.servers)
    @rule(data=st.data(), phase=st.sampled_from([Phase.PREPARING, Phase.MOVING, Phase.RESUMING]))
    def a_move_comes_so_far(self, data: st.DataObject, phase: Phase) -> None:
        self.cast.settle()
        self.cast.plan(a_plan(cpu={self.one_of(data, self.cast.servers or ["ps-0"]): 2.0}))
        self.a_change_comes_so_far(phase)

    def teardown(self) -> None:
        if not hasattr(self, "cast"):
            return
        cast = self.cast
        assert isinstance(cast, GivenCast)
        for node in self.down():
            cast.up_again(node)
        if not any(not t.mute for t in cast.trainers.values()):
            cast.join()
        for _ in range(MOST_TURNS):
            cast.settle()
            mute = any(t.mute for t in cast.trainers.values())  # with it every change is given up, and tried again
            if cast.failed is not None or (mute and cast.m.change is None) or not cast.wait_for_deadline():
                break
        if cast.failed is not None:
            assert "could not be restored" in cast.failed or "did not come up" in cast.failed
            return
        m = cast.m
        assert m.change is None, f"{m.change.kind} hangs in {m.change.phase}"
        assert m.current is not None
        assert m.current.nodes <= set(m.nodes) == set(cast.servers)
        if not mute:
            assert len({node.seat for node in m.nodes.values()}) == len(m.nodes) == cast.wanted
        for trainer in cast.trainers.values():
            if not trainer.mute:
                assert (trainer.running, trainer.version) == (True, m.current.version)
                cast.step(trainer.node)


TestGivenServers = GivenMachine.TestCase
TestGivenServers.settings = settings(max_examples=60, stateful_step_count=40, deadline=timedelta(seconds=20))
