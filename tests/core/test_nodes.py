"""Nodes: one table of moves, one door."""

from datetime import UTC, datetime
from itertools import product

import pytest

from shoal.core.errors import InvalidMove
from shoal.core.nodes import LIVE, MOVES, Node, NodeId, NodeStatus, Role, node_id

BORN = datetime(2030, 1, 1, tzinfo=UTC)
LATER = datetime(2030, 1, 2, tzinfo=UTC)

NEW, ASKED, RUNS, WELL, BADLY, GONE = NodeStatus
ALLOWED = {
    (NEW, ASKED),
    (NEW, GONE),
    (ASKED, RUNS),
    (ASKED, BADLY),
    (ASKED, GONE),
    (RUNS, WELL),
    (RUNS, BADLY),
    (RUNS, GONE),
}


def a_node(status: NodeStatus) -> Node:
    return Node(role=Role.WORKER, number=3, seat=1, status=status, since=BORN, reason="it was asked for")


@pytest.mark.parametrize(
    ("before", "to"), [pytest.param(a, b, id=f"{a}-{b}") for a, b in product(NodeStatus, repeat=2)]
)
def test_moves(before: NodeStatus, to: NodeStatus) -> None:
    node = a_node(before)
    if (before, to) in ALLOWED:
        moved = node.moved(to, now=LATER, reason="so")
        assert (moved.status, moved.since, moved.reason) == (to, LATER, "so")
        assert (moved.id, moved.seat, moved.incarnation) == (node.id, node.seat, node.incarnation)
    else:
        with pytest.raises(InvalidMove, match=f"worker-3: {before} -> {to}: so"):
            node.moved(to, now=LATER, reason="so")


def test_every_status_has_its_row_and_only_live_ones_move() -> None:
    assert set(MOVES) == set(NodeStatus)
    assert {status for status, to in MOVES.items() if to} == LIVE
    assert {status for status in NodeStatus if a_node(status).is_live} == LIVE


def test_names_say_role_and_number() -> None:
    assert node_id(Role.PS, 0) == NodeId("ps-0")
    assert a_node(RUNS).id == "worker-3"
