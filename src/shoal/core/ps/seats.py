"""From what a plan asks for, or what the platform gives, to who sits on which rank. Pure arithmetic; nobody is
launched here."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from shoal.core.nodes import Node, NodeId
from shoal.core.plans import NodeResource
from shoal.core.ps.values import Goal, PSManager
from shoal.core.resources import overlaid


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    rank: int
    node: NodeId | None
    """Who takes it; None: a node that is to be launched with `resource`."""
    resource: NodeResource
    avoid: frozenset[str] = frozenset()
    """Hosts on which it should not be."""


def seats_for(goal: Goal, held: Mapping[int, Node], spare: Iterable[Node]) -> tuple[Seat, ...]:
    """The seats that the goal asks for, given who holds which rank and who is there besides.

    Who holds a rank keeps it unless it is to have something else, or to be somewhere else: then a new node takes the
    rank over. Victims and then the highest ranks are given up first; new ranks are the lowest free ones.
    """
    ranks = _ranks(goal, held)
    free = list(spare)
    seats = []
    for rank in ranks:
        holder = held.get(rank)
        avoid: frozenset[str] = frozenset()
        if holder is None:
            resource = goal.resource
        else:
            resource = overlaid(holder.resource, goal.resources.get(holder.id))
            if resource == holder.resource and holder.id not in goal.moves:
                seats.append(Seat(rank=rank, node=holder.id, resource=resource))
                continue
            avoid = _avoided(holder, goal)
        found = next((n for n in free if (n.seat, n.resource) == (rank, resource) and avoid <= n.avoid_hosts), None)
        seats.append(Seat(rank=rank, node=None if found is None else found.id, resource=resource, avoid=avoid))
    return tuple(seats)


def _avoided(holder: Node, goal: Goal) -> frozenset[str]:
    here = frozenset({holder.host}) if holder.id in goal.moves and holder.host is not None else frozenset[str]()
    return holder.avoid_hosts | here


def _ranks(goal: Goal, held: Mapping[int, Node]) -> list[int]:
    by_worth = sorted(held, key=lambda rank: (held[rank].id in goal.victims, rank))
    kept = by_worth[: goal.count]
    free = (rank for rank in range(goal.count + len(held)) if rank not in held)
    return sorted([*kept, *(next(free) for _ in range(goal.count - len(kept)))])


# Where the platform launches servers -----------------------------------------------------------------------------


def given_seats(m: PSManager) -> dict[int, NodeId]:
    """Who sits on which rank, of the servers that the platform has launched.

    Who holds a rank keeps it, unless the platform has launched another in its place. Of more ranks than the goal has,
    those of victims and then the highest are given up."""
    held = {} if m.current is None else {server.rank: server.node for server in m.current.servers}
    there = _staying(m)
    seats = {node.seat: node.id for node in there}  # of several the youngest
    names = {node.id for node in there}
    for rank, holder in held.items():
        if holder in names:
            seats[rank] = _last_successor(m, holder, names)
    by_worth = sorted(seats, key=lambda rank: (seats[rank] in m.goal.victims, rank not in held, rank))
    return {rank: seats[rank] for rank in sorted(by_worth[: m.goal.count])}


def superfluous(m: PSManager, needed: frozenset[NodeId]) -> list[NodeId]:
    """Servers that the platform may end: others have their ranks, or there are more ranks than it gives. One that waits
    for its turn stays, and so does one that the job could not use: the platform wants it there."""
    if m.granted is None or m.rests:
        return []
    if m.settings.servers_join:  # only those go that have to
        return sorted(m.granted.victims & m.nodes.keys() - needed - m.removing)
    there = _staying(m)
    waiting = frozenset(m.successors.values())
    ranks = {node.seat for node in there if node.id in needed}
    found = []
    for node in sorted(there, key=lambda node: (node.seat, node.number)):
        if node.id in needed or (node.id in waiting and node.seat in ranks):
            continue
        if node.seat in ranks or (m.granted.most is not None and len(ranks) >= m.granted.most):
            found.append(node.id)
        else:
            ranks.add(node.seat)
    return found


def ranks_given(m: PSManager) -> int:
    """How many ranks the platform has launched servers for, and wants there."""
    there = len({node.seat for node in _staying(m)})
    return there if m.granted is None or m.granted.most is None else min(m.granted.most, there)


def _staying(m: PSManager) -> list[Node]:
    """The oldest first."""
    return sorted((node for name, node in m.nodes.items() if name not in m.removing), key=lambda node: node.number)


def _last_successor(m: PSManager, node: NodeId, names: Collection[NodeId]) -> NodeId:
    while (following := m.successors.get(node)) is not None and following in names:
        node = following
    return node
