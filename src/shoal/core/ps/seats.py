"""From what a plan asks for to who sits on which rank. Pure arithmetic; nobody is launched here."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from shoal.core.nodes import Node, NodeId
from shoal.core.plans import NodeResource
from shoal.core.ps.values import Goal
from shoal.core.resources import overlaid


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    rank: int
    node: NodeId | None
    """Who takes it; None: a node that is to be launched with `resource`."""
    resource: NodeResource


def seats_for(goal: Goal, held: Mapping[int, Node], spare: Iterable[Node]) -> tuple[Seat, ...]:
    """The seats that the goal asks for, given who holds which rank and who is there besides.

    Who holds a rank keeps it unless it is to have something else: then a new node takes the rank over. Victims and then
    the highest ranks are given up first; new ranks are the lowest free ones.
    """
    ranks = _ranks(goal, held)
    free = list(spare)
    seats = []
    for rank in ranks:
        holder = held.get(rank)
        if holder is None:
            resource = goal.resource
        else:
            resource = overlaid(holder.resource, goal.resources.get(holder.id))
            if resource == holder.resource:
                seats.append(Seat(rank=rank, node=holder.id, resource=resource))
                continue
        found = next((node for node in free if node.seat == rank and node.resource == resource), None)
        seats.append(Seat(rank=rank, node=None if found is None else found.id, resource=resource))
    return tuple(seats)


def _ranks(goal: Goal, held: Mapping[int, Node]) -> list[int]:
    by_worth = sorted(held, key=lambda rank: (held[rank].id in goal.victims, rank))
    kept = by_worth[: goal.count]
    free = (rank for rank in range(goal.count + len(held)) if rank not in held)
    return sorted([*kept, *(next(free) for _ in range(goal.count - len(kept)))])
