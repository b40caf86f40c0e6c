"""What places keep that nobody takes: more memory after an OOM, another resource after a migration.

A member has it while it is there and hands it to its replacement. When a job is scaled down or suspended the place
keeps it, and whoever takes it next gets it: no job runs out of the same memory twice.
"""

from collections.abc import Mapping
from dataclasses import replace

from shoal.api.elasticjob import Role
from shoal.api.resources import Resource
from shoal.operator.asks import ROLES, Asks
from shoal.operator.crew import Crew
from shoal.operator.memory import Memory

Seats = Mapping[tuple[Role, int], Resource]
"""By role and rank."""


def left_behind(before: Memory, crew: Crew) -> dict[tuple[Role, int], Resource]:
    """What places have beyond their role's that nobody takes now."""
    given = (member for member in sorted(before.members, key=lambda member: member.id) if member.has_seat)
    known = {**before.seats, **{(each.role, each.rank): each.resource for each in given}}
    taken = {(member.role, member.rank) for role in ROLES for member in crew.seats(role)}
    return {seat: resource for seat, resource in known.items() if seat not in taken and not resource.is_silent}


def coming_back(seats: Seats, asks: Asks) -> dict[tuple[Role, int], Resource]:
    """What those get who take them."""
    return {(role, rank): own(kept, asks.roles[role].resource) for (role, rank), kept in seats.items()}


def own(kept: Resource, role: Resource) -> Resource:
    """What of a place's own counts beside its role's now. Memory is kept because there was too little: not when the
    role has more by now."""
    less = kept.memory is not None and role.memory is not None and kept.memory <= role.memory
    return replace(kept, memory=None) if less else kept
