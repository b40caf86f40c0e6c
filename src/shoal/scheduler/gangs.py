"""Several Pods of one job at once: hosts for all of them, or for none.

They are placed part by part, each Pod on the first host that fits, so it matters which part comes first: Pods that can
go anywhere must not take the room of those that cannot. Parts with the fewest pools go first, then those with devices.
Where pools of different parts overlap, that may still be wrong, and a second way is tried: each part first goes to the
hosts that no other part may have.
"""

from collections.abc import Iterable
from math import inf

from shoal.scheduler.planning import Draft, Round, servers_role
from shoal.scheduler.rows import Job, Part
from shoal.scheduler.view import NOWHERE

TRAINERS = ""
"""The role under which trainers stand among the parts of a job."""
Placement = list[tuple[Part, int, int]]
"""How many Pods of a part go to the host at a position: part, position, number."""
Pools = frozenset[str] | None
Way = list[tuple[Part, tuple[Pools, ...]]]
"""The parts in an order, and for each the sets of pools in which its hosts are looked for, one after the other."""


def trainers_of(job: Job, count: int) -> Part:
    return Part(role=TRAINERS, each=job.each, count=count, pools=job.pools)


def servers_of(job: Job, count: int) -> Part:
    assert job.servers is not None
    return Part(role=servers_role(job), each=job.servers.each, count=count, pools=job.servers.pools)


def hardest_first(parts: Iterable[Part]) -> list[Part]:
    """Those that can go to the fewest hosts first; all others stay in their order."""
    return sorted(parts, key=lambda part: (inf if part.pools is None else len(part.pools), -part.each.gpu))


def ways(plan: Round, parts: list[Part]) -> tuple[Way, ...]:
    """The ways in which they are worth placing. One, in their own order, unless they have different pools."""
    if len({part.pools for part in parts}) == 1:
        return ([(part, (part.pools,)) for part in parts],)
    first = hardest_first(parts)
    return [(part, (part.pools,)) for part in first], [
        (part, (_alone(plan, part, first), part.pools)) for part in first
    ]


def _alone(plan: Round, part: Part, parts: list[Part]) -> frozenset[str]:
    """The pools in which no other part may be."""
    every = plan.view.pools
    own = every if part.pools is None else part.pools
    others = (every if each.pools is None else each.pools for each in parts if each.pools != part.pools)
    return own.difference(*others)


def best_way(plan: Round, job: int, parts: list[Part]) -> Way:
    """The first way in which all of them find room as it is; else simply the first."""
    found = ways(plan, hardest_first(parts))
    for way in found if len(found) > 1 else ():
        placement = _place(plan, job, way, growing=False)
        if placement is not None:
            take_away(plan, placement)
            return way
    return found[0]


def first_fit(plan: Round, job: int, part: Part, sets: tuple[Pools, ...]) -> int:
    """The first host with room for one more of the gang, in the first of these sets of pools that has one."""
    for pools in sets:
        position = plan.view.first_fit(plan.search_for(part, job, pools))
        if position != NOWHERE:
            return position
    return NOWHERE


def place_all(plan: Round, job: int, parts: list[Part], *, growing: bool = False) -> Placement | None:
    """Hosts for all Pods, or for none. `growing`: the job has its gang, and these come beyond it."""
    for way in ways(plan, parts):
        placement = _place(plan, job, way, growing=growing)
        if placement is not None:
            return placement
    return None


def _place(plan: Round, job: int, way: Way, *, growing: bool) -> Placement | None:
    view = plan.view
    placement: Placement = []
    for part, sets in way:
        left = part.count
        for pools in sets:
            search = plan.search_for(part, job, pools, leaves_cores=growing and part.role == TRAINERS)
            while left > 0 and (position := view.first_fit(search)) != NOWHERE:
                number = view.how_many(search, position, left)
                view.take(position, part.each, number)
                placement.append((part, position, number))
                left -= number
        if left > 0:
            take_away(plan, placement)
            return None
    return placement


def take_away(plan: Round, placement: Placement) -> None:
    for part, position, number in placement:
        plan.view.give(position, part.each, number)


def record(plan: Round, draft: Draft, placement: Placement) -> None:
    """These Pods go there, by a decision of this round."""
    names = plan.view.names
    for part, position, number in placement:
        if part.role == TRAINERS:
            draft.hosts[position] = draft.hosts.get(position, 0) + number
        else:
            there = draft.fixed_hosts.setdefault(part.role, {})
            there[names[position]] = there.get(names[position], 0) + number
