"""Phase B: waiting jobs start, as gangs.

A gang is all that a job cannot start without, and it starts when all of it has hosts at once, never in part. Jobs are
tried in the order of the queue: those that have waited for `max_wait` first, then by key. A gang that is short of room
takes surplus from jobs with larger keys than its own, and after `max_wait` from any job above its least size. If even
that is not enough and it has waited for `reserve_after`, room is kept for the first such job (of each set of pools that
trainers may be in): those behind it may use only what it cannot.

During this phase room only becomes scarcer, so a gang like one that failed is not tried again.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from shoal.scheduler.columns import Bools
from shoal.scheduler.decisions import Code, Reason, Wait
from shoal.scheduler.gangs import (
    Placement,
    Pools,
    Way,
    first_fit,
    hardest_first,
    place_all,
    record,
    servers_of,
    take_away,
    trainers_of,
    ways,
)
from shoal.scheduler.mandatory import Unplaced
from shoal.scheduler.planning import Round
from shoal.scheduler.reasons import amount, count
from shoal.scheduler.rows import Part, Room
from shoal.scheduler.scores import footprint
from shoal.scheduler.victims import Taken, Terms, make_room, undo
from shoal.scheduler.view import NOWHERE

GangShape = tuple[tuple[Room, int, Pools], ...]


@dataclass(slots=True, kw_only=True)
class Queue:
    """What was found out on the way along the queue."""

    failed: dict[GangShape, float]
    """Gangs for which there was no room, with the key down to which donors were asked."""
    kept_for: dict[Pools, int]
    """For which job of each set of pools, of those that trainers may be in, room is kept."""
    never: list[tuple[int, Reason]]
    """Jobs that cannot start as they are."""
    waiting: list[tuple[int, Reason]]

    def is_known_to_fail(self, parts: list[Part], above: float) -> bool:
        return bool(self.failed) and self.failed.get(_gang_shape(parts), float("inf")) <= above

    def note_failure(self, parts: list[Part], above: float) -> None:
        self.failed[_gang_shape(parts)] = above


def _gang_shape(parts: list[Part]) -> GangShape:
    return tuple((part.each, part.count, part.pools) for part in parts)


def admit(plan: Round, unplaced: Unplaced) -> None:
    """Start what can start; all others wait, each with a reason and a place."""
    queue = Queue(failed={}, kept_for={}, never=[], waiting=[])
    for job, is_promoted in _in_order(plan):
        refusal = _refusal(plan, job)
        if refusal is not None:
            queue.never.append((job, refusal))
        elif unplaced.holds_up(plan, job):
            queue.waiting.append((job, Reason(code=Code.QUEUED, text=unplaced.describe(plan))))
        else:
            reason = _try(plan, queue, job, is_promoted=is_promoted)
            if reason is not None:
                queue.waiting.append((job, reason))
    _tell_waits(plan, queue)


def _in_order(plan: Round) -> Iterator[tuple[int, bool]]:
    """Waiting jobs in the order of the queue, and whether each has waited for `max_wait`."""
    jobs, keys = plan.columns.jobs, plan.keys
    waiting = np.flatnonzero(jobs["target"] == 0).tolist()
    promoted = (plan.now - jobs["waiting_since"] >= plan.settings.max_wait).tolist()
    for job in sorted(waiting, key=lambda job: (not promoted[job], keys.waiting[job], keys.rank[job])):
        yield job, promoted[job]


def _refusal(plan: Round, job: int) -> Reason | None:
    """Why the job can never start as it is."""
    row, least = plan.rows[job], plan.least[job]
    if row.each.gpu and row.each.cpu < plan.settings.cpu_per_gpu * row.each.gpu:
        wanted = plan.settings.cpu_per_gpu * row.each.gpu / 1_000
        need = f"{count(row.each.gpu, 'GPU')} {'needs' if row.each.gpu == 1 else 'need'} at least {wanted:g} cores"
        text = f"a trainer asks for {amount(row.each)}; {need}"
        return Reason(code=Code.CPU_PER_GPU, text=text)
    if not plan.quotas.ever_allows(row, least):
        text = f"its gang of {amount(footprint(row, least))} is above the whole quota of {row.key.namespace}"
        return Reason(code=Code.OVER_QUOTA, text=text)
    return None


def _try(plan: Round, queue: Queue, job: int, *, is_promoted: bool) -> Reason | None:
    """Start the job, or say why it waits."""
    row, least = plan.rows[job], plan.least[job]
    if not plan.quotas.allows(row, 0, least):
        plan.steps += 1
        return Reason(code=Code.QUOTA, text=f"quota of {row.key.namespace}: {plan.quotas.describe(row, least)}")
    parts = gang_parts(plan, job)
    above = float("-inf") if is_promoted else plan.keys.waiting[job]
    if not queue.is_known_to_fail(parts, above):
        if _start(plan, job, parts, Terms(above=above, frozen_last=True), is_promoted=is_promoted):
            return None
        queue.note_failure(parts, above)
    plan.steps += 1
    if plan.settings.optimistic_cpu and not any(part.each.gpu for part in parts):
        _start_anyway(plan, job, parts)
        return None
    return _wait(plan, queue, job, parts)


def gang_parts(plan: Round, job: int) -> list[Part]:
    """What it cannot start without, the largest Pods first: they are the hardest to place."""
    row, least = plan.rows[job], plan.least[job]
    parts = [part for part in row.fixed if part.count]
    if row.servers is not None and row.servers.beside(least):
        parts.append(servers_of(row, row.servers.beside(least)))
    parts.append(trainers_of(row, least))
    if len(parts) > 1:
        parts.sort(key=lambda part: (part.each.gpu, part.each.cpu, part.each.memory), reverse=True)
    return parts


# Starting ---------------------------------------------------------------------------------------------------


def _start(plan: Round, job: int, parts: list[Part], terms: Terms, *, is_promoted: bool) -> bool:
    placement = place_all(plan, job, parts)
    taken: list[Taken] = []
    if placement is None or not _within_use(plan):
        if placement is not None:
            take_away(plan, placement)
        placement, taken = _make_room(plan, job, parts, terms)
    if placement is None:
        return False
    for donor in dict.fromkeys(donor for donor, _, _ in taken):
        plan.gives(donor, _why_it_gives(plan, job, donor, is_promoted=is_promoted), str(plan.rows[job].key))
    _record(plan, job, placement, freed=sum(number for _, _, released in taken for _, number in released))
    return True


def _within_use(plan: Round) -> bool:
    return plan.limits.reclaim.holds(plan.view.used)


def _make_room(plan: Round, job: int, parts: list[Part], terms: Terms) -> tuple[Placement | None, list[Taken]]:
    """Hosts for all Pods, with victims where there is no room; or nothing at all."""
    for way in ways(plan, parts) if _could_be_enough(plan, parts, terms) else ():
        placement, taken = _make_room_this_way(plan, job, way, terms)
        if placement is not None:
            return placement, taken
    return None, []


def _make_room_this_way(plan: Round, job: int, way: Way, terms: Terms) -> tuple[Placement | None, list[Taken]]:
    placement: Placement = []
    taken: list[Taken] = []
    for part, sets in way:
        search = plan.search_for(part, job, part.pools)
        for missing in range(part.count, 0, -1):
            position = first_fit(plan, job, part, sets)
            if position == NOWHERE:
                position, victims = make_room(plan, search, terms, alike=missing - 1)
                taken += victims
            if position == NOWHERE:
                return _give_up(plan, placement, taken)
            plan.view.take(position, part.each)
            placement.append((part, position, 1))
    return (placement, taken) if _within_use(plan) else _give_up(plan, placement, taken)


def _give_up(plan: Round, placement: Placement, taken: list[Taken]) -> tuple[None, list[Taken]]:
    take_away(plan, placement)
    undo(plan, taken)
    return None, []


def _could_be_enough(plan: Round, parts: list[Part], terms: Terms) -> bool:
    """Whether free room and surplus together are as much as the gang, wherever they are."""
    need = Room()
    for part in parts:
        need = need.plus(part.each, part.count)
    have = plan.view.capacity.minus(plan.view.used)
    if have.holds(need):
        return True
    for donor in terms.donors(plan):
        have = have.plus(plan.rows[donor].each, terms.can_give(plan, donor))
        if have.holds(need):
            return True
    return False


def _why_it_gives(plan: Round, job: int, donor: int, *, is_promoted: bool) -> Reason:
    key = plan.rows[job].key
    if is_promoted:
        return Reason(code=Code.MAKE_ROOM, text=f"{key} has waited for {_waited(plan, job):.0f} s")
    text = f"{key} is to start: its key {plan.keys.waiting[job]:.4g} is less than {plan.key(donor):.4g}"
    return Reason(code=Code.MAKE_ROOM, text=text)


def _waited(plan: Round, job: int) -> float:
    since = plan.rows[job].waiting_since
    return 0.0 if since is None else plan.now - since


def _record(plan: Round, job: int, placement: Placement, *, freed: int) -> None:
    draft = plan.resize(job, plan.least[job])
    record(plan, draft, placement)
    pods = sum(number for _, _, number in placement)
    hosts = len({position for _, position, _ in placement})
    made = f"; {count(freed, 'trainer')} of others make room" if freed else ""
    text = f"its gang of {count(pods, 'Pod')} fits on {count(hosts, 'host')}{made}"
    draft.reason = Reason(code=Code.ADMITTED, text=text)


def _start_anyway(plan: Round, job: int, parts: list[Part]) -> None:
    """As the first design document has it for jobs without devices: start, and let the Pods wait for hosts."""
    placement: Placement = []
    for part in hardest_first(parts):
        search = plan.search_for(part, job, part.pools)
        for _ in range(part.count):
            position = plan.view.first_fit(search)
            if position == NOWHERE:
                break
            plan.view.take(position, part.each)
            placement.append((part, position, 1))
    _record(plan, job, placement, freed=0)
    missing = sum(part.count for part in parts) - len(placement)
    draft = plan.draft(job)
    draft.reason = Reason(
        code=Code.ADMITTED, text=f"it starts although {count(missing, 'Pod')} of its gang have no room"
    )


# Waiting ----------------------------------------------------------------------------------------------------


def _wait(plan: Round, queue: Queue, job: int, parts: list[Part]) -> Reason:
    row = plan.rows[job]
    need = amount(footprint(row, plan.least[job]))
    if not any(_fits_empty(plan, way) for way in ways(plan, parts)):
        text = f"its gang of {need} would not fit into the empty cluster of {amount(plan.view.capacity)}"
        return Reason(code=Code.TOO_LARGE, text=text)
    waited = _waited(plan, job)
    if waited >= plan.settings.reserve_after and row.pools not in queue.kept_for and _keep_room(plan, parts):
        queue.kept_for[row.pools] = job
        text = f"its gang of {need} has waited {waited:.0f} s for room; what becomes free is kept for it"
        return Reason(code=Code.RESERVED, text=text)
    left = amount(_positive(plan.view.capacity.minus(plan.view.used)))
    return Reason(code=Code.NO_ROOM, text=f"its gang of {need} does not fit on the hosts; {left} are free in all")


def _positive(room: Room) -> Room:
    return Room(*(max(0, amount) for amount in room))


def _fits_empty(plan: Round, way: Way) -> bool:
    """Whether the gang would fit if nothing else ran at all. Pods of a part are spread as thickly as they go."""
    free = [column.copy() for column in plan.view.capacities]
    inside = _insides(plan, way)
    for part, sets in way:
        left = part.count
        for pools in sets:
            slots = np.where(inside[pools], left, 0)
            for column, each in zip(free, part.each, strict=True):
                if each:
                    slots = np.minimum(slots, np.maximum(column, 0) // each)
            before = np.minimum(np.cumsum(slots) - slots, left)
            used = np.minimum(slots, left - before)
            left -= int(used.sum())
            for column, each in zip(free, part.each, strict=True):
                column -= used * each
        if left:
            return False
    return True


def _insides(plan: Round, way: Way) -> dict[Pools, Bools]:
    """Which hosts are in each of its sets of pools."""
    return {pools: plan.view.in_pools(pools) for pools in {pools for _, sets in way for pools in sets}}


def _keep_room(plan: Round, parts: list[Part]) -> bool:
    """Keep the hosts that are nearest to having room for the gang. False: services are in the way everywhere."""
    found = (_nearest(plan, way) for way in ways(plan, parts))
    kept = next((hosts for hosts in found if hosts is not None), None)
    for part, position in kept or ():
        plan.view.keep(position, part.each)
    return kept is not None


def _nearest(plan: Round, way: Way) -> list[tuple[Part, int]] | None:
    """For each Pod the host that is nearest to having room for it. None: services are in the way everywhere."""
    view = plan.view
    free, bare = list(view.live()), [column.copy() for column in view.bare]
    inside = _insides(plan, way)
    scores = plan.settings.scores
    prices = [scores.core / 1_000, scores.gibibyte / 2**30, scores.gpu, scores.pod]
    kept: list[tuple[Part, int]] = []
    for part, sets in way:
        for _ in range(part.count):
            enough, missing = np.ones(len(view.names), dtype=np.bool_), np.zeros(len(view.names))
            for column, room, each, price in zip(free, bare, part.each, prices, strict=True):
                if each:
                    enough &= room >= each
                    missing += np.maximum(0, each - column) * price
            able = next((able for pools in sets if (able := enough & inside[pools]).any()), None)
            if able is None:
                return None
            position = int(np.argmin(np.where(able, missing, np.inf)))
            for column, room, each in zip(free, bare, part.each, strict=True):
                column[position] -= each
                room[position] -= each
            kept.append((part, position))
    return kept


def _tell_waits(plan: Round, queue: Queue) -> None:
    """Places in the queue; jobs that can never start come last."""
    hopeless = [entry for entry in queue.waiting if entry[1].code is Code.TOO_LARGE]
    able = [entry for entry in queue.waiting if entry[1].code is not Code.TOO_LARGE]
    for place, (job, reason) in enumerate([*able, *hopeless, *queue.never], start=1):
        starts = place <= min(len(able), plan.settings.max_starting_masters)
        plan.waits.append(Wait(key=plan.rows[job].key, place=place, reason=reason, starts_master=starts))
