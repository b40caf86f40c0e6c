"""What follows when a server has lost its state, or a trainer is gone."""

from collections.abc import Mapping
from typing import TypeVar

from shoal.core.nodes import NodeId
from shoal.core.ps.steps import abandon, again, reseat, roll_back
from shoal.core.ps.turn import Turn
from shoal.core.ps.values import Kind, Phase, PSManager

V = TypeVar("V")


def state_lost(turn: Turn, node: NodeId, reason: str) -> None:
    """What a server held is gone. If anybody needs it, all go back; if only the next version named it, that is tried
    again."""
    m = turn.m
    rolling = m.change is not None and m.change.kind is Kind.ROLLBACK
    if m.current is not None and node in m.current.nodes and (not rolling or is_committed(m)):
        roll_back(turn, reason)
    elif m.change is not None and node in m.change.seats.values() and m.change.phase is not Phase.RESUMING:
        again(turn, reason)


def is_committed(m: PSManager) -> bool:
    return m.change is not None and m.change.phase is Phase.RESUMING


def reseated(turn: Turn, lost: NodeId, reason: str, avoid: frozenset[str]) -> None:
    change = turn.m.change
    if turn.m.failed is not None or change is None:
        return
    for rank, node in change.seats.items():
        if node == lost:
            reseat(turn, lost, rank, f"{reason}: another takes rank {rank}", avoid)


def trainer_left(turn: Turn, node: NodeId, reason: str) -> None:
    """Nobody waits for it any longer. What only the chief could end is tried again by another, or given up."""
    was_chief, change = node == turn.m.chief, turn.m.change
    turn.forget((node,))
    if change is None or turn.m.failed is not None or not was_chief:
        return
    if change.phase is Phase.MOVING:
        again(turn, f"{node}, which was moving the state, is gone ({reason})")
    elif change.phase is Phase.SAVING:
        abandon(turn, f"{node}, which was saving it, is gone ({reason})")


def without(mapping: Mapping[NodeId, V], node: NodeId) -> dict[NodeId, V]:
    return {name: value for name, value in mapping.items() if name != node}
