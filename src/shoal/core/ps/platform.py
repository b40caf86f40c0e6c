"""Servers on a platform that launches them by itself, as the operator does on Kubernetes.

It says which there are (`servers_announced`), one perhaps in the place of another, and whether that is too many
(`servers_granted`). The manager launches nobody but for servers that were lost. It uses what it is given as soon as all
of it is ready: prepares, drains, moves, waits for everybody's acknowledgement. Then it asks for the removal of those
that no version names any more, which is what the platform waits for: it ends no server before.

Where servers join by themselves, as those of a TrainingJob do, nobody says which there are. Who joins takes the rank of
one that was lost, or another; who has to go says so, and is a victim; and of one that is out of touch it is soon known
whether it is gone (`server_unsure`). Of a lost one that had to go it is known that nobody follows (`not_followed`).
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime

from shoal.core.nodes import Node, NodeId
from shoal.core.ps.steps import aim, do_without, settle
from shoal.core.ps.turn import Turn
from shoal.core.ps.values import Effect, Granted, PSManager

Turned = tuple[PSManager, tuple[Effect, ...]]


def servers_granted(m: PSManager, granted: Granted, *, now: datetime) -> Turned:
    """The platform has said whom it wants there. Nobody at all: the job rests, and whoever lets it rest ends them. Said
    again it changes nothing."""
    if m.failed is not None or granted == m.granted:
        return m, ()
    turn = Turn(replace(m, granted=granted), now)
    if granted.most != 0:
        aim(turn)
    settle(turn)
    return turn.m, tuple(turn.effects)


def servers_announced(
    m: PSManager, nodes: Iterable[Node], *, replaces: Mapping[NodeId, NodeId], now: datetime
) -> Turned:
    """The platform has launched these nodes, some in the place of others. Those that are known change nothing."""
    new = {node.id: node for node in nodes if node.id not in m.nodes}
    if m.failed is not None or not new:
        return m, ()
    following = max(node.number + 1 for node in new.values())
    succeeding = {
        old: node
        for node in sorted(new)
        if (old := replaces.get(node)) in m.nodes and old is not None and m.nodes[old].seat == new[node].seat
    }
    m = replace(
        m,
        nodes={**m.nodes, **new},
        next_number=max(m.next_number, following),
        successors={**m.successors, **succeeding},
    )
    turn = Turn(m, now)
    aim(turn)
    settle(turn)
    return turn.m, tuple(turn.effects)


def server_unsure(m: PSManager, node: NodeId, *, is_unsure: bool, now: datetime) -> Turned:
    """A server is out of touch, or back."""
    unsure = m.unsure | {node} if is_unsure else m.unsure - {node}
    if not m.settings.servers_join or m.failed is not None or node not in m.nodes or unsure == m.unsure:
        return m, ()
    turn = Turn(replace(m, unsure=unsure), now)
    settle(turn)
    return turn.m, tuple(turn.effects)


def servers_dismissed(m: PSManager, reason: str, *, now: datetime) -> Turned:
    """All have to go, and there is nobody for whom they would have to stay: the job rests. Who joins later begins where
    the last checkpoint was made."""
    if m.failed is not None:
        return m, ()
    turn = Turn(replace(m, granted=Granted(most=0), change=None, save_wanted=None), now)
    turn.remove(sorted(m.nodes.keys() - m.removing), reason)
    settle(turn)
    return turn.m, tuple(turn.effects)


def not_followed(m: PSManager, nodes: Iterable[NodeId], *, reason: str, now: datetime) -> Turned:
    """Nobody will join as these."""
    absent = frozenset(nodes) & m.nodes.keys()
    if m.failed is not None or m.change is None or not absent:
        return m, ()
    turn = Turn(m, now)
    do_without(turn, sorted(absent), reason)
    settle(turn)
    return turn.m, tuple(turn.effects)
