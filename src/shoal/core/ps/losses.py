"""What follows when a server has lost its state, or a trainer is gone."""

from collections.abc import Mapping
from dataclasses import replace
from typing import TypeVar

from shoal.core.nodes import NodeId, NodeStatus
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


def taken_back(turn: Turn, node: NodeId) -> bool:
    """Whether this is one that the platform had launched in another's place and that never came up: then the platform
    itself decides what follows. A change that waited for it ends, and nobody has noticed."""
    m, change = turn.m, turn.m.change
    if not m.settings.platform_launches or m.nodes[node].status is not NodeStatus.PENDING:
        return False
    if node not in m.successors.values():
        return False
    if change is not None and node in change.seats.values():
        if change.kind is not Kind.RESIZE or change.phase is not Phase.LAUNCHING:
            return False
        turn.say(f"given up before anybody noticed: {change.reason}, because {node} did not come up")
        turn.m = replace(m, change=None)
    turn.m = replace(turn.m, successors={old: new for old, new in m.successors.items() if new != node})
    return True


def refilled(turn: Turn, lost: NodeId, reason: str, avoid: frozenset[str]) -> None:
    """Where the platform launches servers it waits for our word before it fills the place of a lost one, also of one
    that no version names yet."""
    m = turn.m
    if not m.settings.platform_launches or m.settings.servers_join or m.failed is not None:
        return
    old = m.nodes[lost]
    later = [n for n, node in m.nodes.items() if (node.seat, n in m.removing) == (old.seat, False) and n != lost]
    younger = [n for n in later if m.nodes[n].number > old.number]
    new = younger[0] if younger else turn.launch([(old.seat, old.resource, avoid | old.avoid_hosts)], reason)[0]
    following = {before: new for before, after in turn.m.successors.items() if after == lost}
    turn.m = replace(turn.m, successors={**turn.m.successors, **following})


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
