"""Nodes that ended long ago and that nothing refers to are forgotten: a job may lose nodes for months.

What is left of them is their numbers, as ranges, so that a platform that still tells of one does not make it a member
again, and how many restarts they were. Names stay used up (`Job.next_number`), and budgets go by seat.
"""

from collections.abc import Iterable
from dataclasses import replace
from datetime import timedelta

from shoal.core.job.turn import Turn
from shoal.core.job.values import Job
from shoal.core.ledger.intervals import merged
from shoal.core.nodes import Node, NodeId, NodeStatus, parsed

KEPT_ENDED = 256
"""So many ended nodes are always remembered, for people."""
FORGET_AFTER = timedelta(minutes=10)
"""An ended node is remembered for so long in any case: until the platform has surely removed what is left of it."""
AT_ONCE = 64
"""Fewer are not worth a record."""


def forget(turn: Turn) -> None:
    job = turn.job
    if len(job.nodes) < KEPT_ENDED + AT_ONCE:
        return
    gone = [node for node in _forgettable(job) if turn.now - node.since >= FORGET_AFTER]
    if len(gone) < AT_ONCE:
        return
    names = {node.id for node in gone}
    ranges = dict(job.forgotten)
    for role in dict.fromkeys(node.role for node in gone):
        numbers = ((node.number, node.number + 1) for node in gone if node.role is role)
        ranges[role] = merged((*ranges.get(role, ()), *numbers))
    turn.job = replace(
        job,
        nodes={name: node for name, node in job.nodes.items() if name not in names},
        forgotten=ranges,
        forgotten_restarts=job.forgotten_restarts + restarts_of(gone),
    )


def _forgettable(job: Job) -> list[Node]:
    """The ended nodes that nothing refers to, but for the last ones: so one that ended well is left, if there is any,
    to tell that the job's work was done and not lost."""
    needed = _referred(job)
    ended = sorted(
        (node for node in job.nodes.values() if not node.is_live), key=lambda node: (node.since, node.number)
    )
    well = [node.id for node in ended if node.status is NodeStatus.SUCCEEDED]
    needed.update(well[-1:])
    return [node for node in ended[:-KEPT_ENDED] if node.id not in needed]


def _referred(job: Job) -> set[NodeId]:
    """Who is in a world or stands before one, is held for an answer, or is waited for."""
    r = job.rendezvous
    worlds = (member.node for world in (r.committed, r.pending) if world is not None for member in world.members)
    early = () if job.early is None else (node for node, _, _ in job.early.exits)
    reunion = () if job.reunion is None else job.reunion.missing
    return {
        *worlds,
        *r.members,
        *early,
        *reunion,
        *job.unexplained,
        *job.seen,
        *job.places,
        *job.successors,
        *job.successors.values(),
    }


def is_forgotten(job: Job, node: NodeId) -> bool:
    """Whether it was of the job, and ended long ago."""
    name = parsed(node)
    if name is None:
        return False
    role, number = name
    return any(start <= number < stop for start, stop in job.forgotten.get(role, ()))


def restarts_of(nodes: Iterable[Node]) -> int:
    """How many times processes were started again on these nodes, or the nodes themselves had to be replaced."""
    return sum(node.incarnation - 1 + (node.status is NodeStatus.FAILED) for node in nodes)
