"""Making room for a Pod: whose trainers go, and from which host.

Only trainers above a job's least size are ever taken here, the donor with the largest key first, from the host where
the Pod, and those like it that come after it, leave the least room unused. One victim is better than several, and
several are always on one host. A victim is taken only where it frees something that is missing there, so a CPU-only
job never shrinks for want of devices; but where it borrows a GPU host it is the first to go for a Pod with devices.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from shoal.scheduler.planning import Released, Round
from shoal.scheduler.rows import NOTHING, Room
from shoal.scheduler.scores import score
from shoal.scheduler.view import NOWHERE, Search

Taken = tuple[int, int, list[Released]]
"""A donor, its size before, and what it released."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """From whom room may be taken."""

    above: float = float("-inf")
    """Only from jobs whose key is larger than this."""
    frozen_last: bool = False
    never: int | None = None
    """The job that the room is for."""

    def donors(self, plan: Round) -> Iterator[int]:
        """In the order in which they give."""
        order = plan.donors(frozen_last=self.frozen_last)
        for job in order:
            if plan.key(job) > self.above:
                if job != self.never:
                    yield job
            elif not self.frozen_last:
                return

    def can_give(self, plan: Round, job: int) -> int:
        """How many trainers the job can give in whole units before its key says stop."""
        n, to = plan.n[job], plan.n[job]
        while to > plan.least[job] and plan.keys.key(job, to) > self.above:
            to = max(plan.least[job], to - 1 if plan.unit[job] == 1 else (to - 1) // plan.unit[job] * plan.unit[job])
        return n - to


def make_room(plan: Round, search: Search, terms: Terms, alike: int = 0) -> tuple[int, list[Taken]]:
    """Clear room for one Pod; so many like it are to come. Returns the position and what was taken, or NOWHERE and
    nothing."""
    found = None
    if search.gpu:
        found = _one_victim(plan, search, terms, alike, borrowers_only=True)
    found = found or _one_victim(plan, search, terms, alike, borrowers_only=False)
    if found is not None:
        job, position = found
        return position, [_take(plan, job, position)]
    return _several_victims(plan, search, terms)


def undo(plan: Round, taken: list[Taken]) -> None:
    for job, before, released in reversed(taken):
        plan.restore(job, before, released)


def _take(plan: Round, job: int, position: int) -> Taken:
    before = plan.n[job]
    return job, before, plan.release(job, plan.lower(job), at=position)


def _one_victim(
    plan: Round, search: Search, terms: Terms, alike: int, *, borrowers_only: bool
) -> tuple[int, int] | None:
    view = plan.view
    for job in terms.donors(plan):
        each = plan.rows[job].each
        if borrowers_only and each.gpu:
            continue
        step = plan.n[job] - plan.lower(job)
        best: tuple[float, int] | None = None
        for position, count in plan.places(job):
            if borrowers_only and not view.has_gpu[position]:
                continue
            times = min(step, count)
            if view.is_in(search.pools, position) and view.fits_with(search, position, each, times):
                found = (_spare(plan, search, position, NOTHING.plus(each, times), alike), position)
                best = found if best is None or found < best else best
        if best is not None:
            return job, best[1]
    return None


def _spare(plan: Round, search: Search, position: int, more: Room, alike: int) -> float:
    """What would be left over there when the Pod and those like it have come, as a score."""
    free = plan.view.free(position).plus(more)
    fit = min((has // wants for has, wants in zip(free, search.each, strict=True) if wants), default=1)
    return score(free.minus(search.each, min(fit, alike + 1)), plan.view.capacity, plan.settings)


def _several_victims(plan: Round, search: Search, terms: Terms) -> tuple[int, list[Taken]]:
    """On the host where the fewest have to go."""
    holders: dict[int, list[tuple[int, int]]] = {}
    for job in terms.donors(plan):
        can_give = terms.can_give(plan, job)
        for position, count in plan.places(job):
            holders.setdefault(position, []).append((job, min(count, can_give)))
    best: tuple[int, int] | None = None
    for position, there in holders.items():
        if not plan.view.is_in(search.pools, position):
            continue
        victims = _count_victims(plan, search, position, there)
        if victims is not None and (best is None or (victims, position) < best):
            best = (victims, position)
    if best is None:
        return NOWHERE, []
    position = best[1]
    taken: list[Taken] = []
    for job, count in holders[position]:
        left = count
        while left > 0 and not plan.view.fits(search, position) and plan.n[job] > plan.least[job]:
            if not _helps(plan, search, position, plan.rows[job].each):
                break
            before = plan.n[job]
            taken.append(_take(plan, job, position))
            left -= before - plan.n[job]
    if not plan.view.fits(search, position):
        undo(plan, taken)
        return NOWHERE, []
    return position, taken


def _count_victims(plan: Round, search: Search, position: int, there: list[tuple[int, int]]) -> int | None:
    """How many trainers have to go until the Pod fits; None when all of them are not enough."""
    view = plan.view
    more, victims = Room(), 0
    for job, count in there:
        each = plan.rows[job].each
        for _ in range(count):
            if not _helps(plan, search, position, each, more):
                break
            more = more.plus(each)
            victims += 1
            if view.fits_with(search, position, more):
                return victims
    return None


def _helps(plan: Round, search: Search, position: int, each: Room, more: Room = Room()) -> bool:  # noqa: B008
    """Whether one of these frees something that is missing there."""
    free = plan.view.free(position).plus(more)
    cores = search.cpu + search.floor * max(0, free.gpu) if plan.view.has_gpu[position] else search.cpu
    missing = (free.cpu < cores, free.memory < search.memory, free.gpu < search.gpu, free.pods < search.pods)
    return any(lacks and amount > 0 for lacks, amount in zip(missing, each, strict=True))
