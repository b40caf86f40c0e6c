"""Phase A: what has to be done whatever the jobs deserve.

In this order: jobs above their maximum come down; namespaces above their quota do; service Pods get hosts (`services`);
jobs that were admitted and miss Pods get them placed again (a host was lost, a Pod was evicted), or go back into the
queue when that takes too long; trainers that were promised and have no room any more are taken back, and so are those
that Kubernetes finds no host for; and when more is asked for than may be in use, jobs give back.

A planned host is only a wish: Kubernetes gives a Pod any host that has room when it tries it. So Pods that are made
before their own room is free take that of others; after a while of this, growth waits for the gang that is short.

None of this looks at freezing windows. Nothing here takes a running job below its least size, except for services.
"""

from dataclasses import dataclass

import numpy as np

from shoal.scheduler.budgets import COUNTED
from shoal.scheduler.columns import Shape
from shoal.scheduler.decisions import Code, Reason
from shoal.scheduler.gangs import Pools, best_way, first_fit, trainers_of
from shoal.scheduler.planning import Draft, Round
from shoal.scheduler.reasons import amount, count, quantity
from shoal.scheduler.rows import NOTHING, Part, ServicePod
from shoal.scheduler.services import serve
from shoal.scheduler.victims import Terms, make_room
from shoal.scheduler.view import NOWHERE

SURELY_ROOM = 3
"""Times `reserve_after`: Kubernetes tries a Pod again at least once a minute, so one that is without a host for longer,
although room is kept for it, waits for something that is not known here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unplaced:
    """What is still without a host after phase A, and who has to wait for it."""

    service: ServicePod | None = None
    gang: int | None = None
    """The heaviest admitted job that misses a part of its gang."""
    is_overdue: bool = False
    """There is room for a gang, and has been for so long that somebody else must be taking it."""

    @property
    def holds_up_growth(self) -> bool:
        return self.service is not None or self.gang is not None

    def holds_up(self, plan: Round, job: int) -> bool:
        """Whether the admission of this job has to wait."""
        if self.service is not None:
            return True
        return self.gang is not None and bool(plan.keys.weight[job] < plan.keys.weight[self.gang])

    def describe(self, plan: Round) -> str:
        if self.service is not None:
            return f"service Pod {self.service.namespace}/{self.service.name} has no host yet"
        assert self.gang is not None
        return f"{plan.rows[self.gang].key} misses a part of its gang"


def do_mandatory(plan: Round) -> Unplaced:
    lower_to_max(plan)
    keep_quotas(plan)
    service = serve(plan)
    gang = place_gangs(plan)
    place_promised(plan)
    relieve_pressure(plan)
    return Unplaced(service=service, gang=gang, is_overdue=_has_overdue(plan))


def lower_to_max(plan: Round) -> None:
    jobs = plan.columns.jobs
    for job in np.flatnonzero(jobs["target"] > jobs["most"]).tolist():
        most = plan.most[job]
        plan.gives(job, Reason(code=Code.ABOVE_MAX, text=f"it may have {most} now"), "its own new maximum")
        plan.release(job, most)


def keep_quotas(plan: Round) -> None:
    """Surplus goes until the quota is kept. What jobs cannot do without stays: as with Kubernetes' own quotas, a
    limit that is lowered ends nothing that runs."""
    for namespace in sorted(plan.snapshot.quotas):
        exceeded = plan.quotas.exceeded(namespace)
        while exceeded:
            job = _donor_in(plan, namespace, exceeded)
            if job is None:
                break
            text = f"namespace {namespace} has more than its quota of {' and '.join(exceeded)}"
            plan.gives(job, Reason(code=Code.QUOTA, text=text), f"the quota of {namespace}")
            plan.release(job, plan.lower(job))
            exceeded = plan.quotas.exceeded(namespace)


def _donor_in(plan: Round, namespace: str, exceeded: tuple[str, ...]) -> int | None:
    for job in plan.donors(frozen_last=False):
        row = plan.rows[job]
        holds = "pods" in exceeded or any(getattr(row.each, kind) for kind in exceeded)
        if row.key.namespace == namespace and holds:
            return job
    return None


# Pods without a host ----------------------------------------------------------------------------------------


def _without_host(plan: Round) -> list[int]:
    """Admitted jobs with Pods that have no host, the heaviest first, then by key."""
    jobs = plan.columns.jobs
    found = np.flatnonzero((jobs["target"] > 0) & ((jobs["pending"] > 0) | jobs["misses_fixed"])).tolist()
    left = [job for job in found if plan.n[job] > 0]
    return sorted(left, key=lambda job: (-int(plan.keys.weight[job]), plan.key(job), plan.keys.rank[job]))


def place_gangs(plan: Round) -> int | None:
    """Hosts for what admitted jobs cannot run without. Returns the heaviest that still misses something."""
    short: int | None = None
    for job in _without_host(plan):
        if _is_given_up(plan, job):
            continue
        if not _place_gang(plan, job) and short is None:
            short = job
    return short


def _place_gang(plan: Round, job: int) -> bool:
    draft = plan.draft(job)
    missing = max(0, min(_promised(plan, draft), plan.least[job] - sum(draft.placed.values())))
    parts = [*draft.job.fixed_pending, trainers_of(draft.job, missing)]
    is_whole = True
    for part, sets in best_way(plan, job, parts):
        for missing in range(part.count, 0, -1):
            position = _place_or_clear(plan, job, part, sets, alike=missing - 1)
            if position == NOWHERE:
                is_whole = _goes_back(plan, job, part) or _is_optimistic(plan, job)
                break
            plan.view.take(position, part.each)
            if part.role:
                draft.planned_fixed[position] = draft.planned_fixed.get(position, NOTHING).plus(part.each)
            else:
                draft.planned[position] = draft.planned.get(position, 0) + 1
        if plan.n[job] == 0 or not is_whole:
            break
    return is_whole


def _promised(plan: Round, draft: Draft) -> int:
    """Trainers that it may have and that have no host."""
    return min(draft.job.pending, max(0, draft.target - sum(draft.placed.values())))


def _place_or_clear(plan: Round, job: int, part: Part, sets: tuple[Pools, ...], alike: int) -> int:
    position = first_fit(plan, job, part, sets)
    if position != NOWHERE or _is_optimistic(plan, job):
        return position
    position, taken = make_room(plan, plan.search_for(part, job, part.pools), Terms(never=job), alike)
    for donor in dict.fromkeys(donor for donor, _, _ in taken):
        text = f"{plan.rows[job].key} misses a Pod of its gang: {amount(part.each)} on {plan.view.names[position]}"
        plan.gives(donor, Reason(code=Code.MAKE_ROOM, text=text), str(plan.rows[job].key))
    return position


def _goes_back(plan: Round, job: int, part: Part) -> bool:
    """No host could ever take the Pod, or none has for long: then the job goes back into the queue, where room may be
    kept for it, instead of holding up everybody. Not at once where others have the room: they may be on their way out,
    and a job that is put back can lose what only its processes hold."""
    asked, shape, short = amount(part.each), Shape(part.each, part.pools), _short_for(plan, job)
    if not plan.view.fits_empty(shape):
        text = f"its hosts are gone, and no open host has {asked} at all"
    elif short < plan.settings.reserve_after:
        return False
    elif not plan.view.fits_bare(shape):
        text = f"no open host has had {asked} for {short:.0f} s, even without training"
    elif not _is_optimistic(plan, job):
        text = f"a part of its gang has had no host for {short:.0f} s, and nobody can give {asked} on one"
    else:
        return False
    _put_back(plan, job, text)
    return True


def _is_given_up(plan: Round, job: int) -> bool:
    """There seems to be room for its gang, and yet Kubernetes has not found it for as long as anybody has to wait: a
    port, a volume or a rule that is not known here keeps its Pods from their hosts."""
    short = _short_for(plan, job)
    if short < plan.settings.max_wait or _is_optimistic(plan, job):
        return False
    _put_back(plan, job, f"a part of its gang has had no host for {short:.0f} s, whatever room there was")
    return True


def _has_overdue(plan: Round) -> bool:
    """Whether a gang has been without a part of its hosts for `reserve_after`, so that its room should be defended; but
    not for so long that it seems to wait for something else than room."""
    after = plan.settings.reserve_after
    return any(
        after <= _short_for(plan, job) < SURELY_ROOM * after and not _is_optimistic(plan, job)
        for job in _without_host(plan)
    )


def _short_for(plan: Round, job: int) -> float:
    since = plan.rows[job].short_since
    return 0.0 if since is None else plan.now - since


def _put_back(plan: Round, job: int, text: str) -> None:
    plan.gives(job, Reason(code=Code.NO_ROOM, text=text), "the jobs that wait")
    plan.suspend(job)


def _is_optimistic(plan: Round, job: int) -> bool:
    """It was started although it did not fit: nobody makes room for it and nobody waits for it."""
    return plan.settings.optimistic_cpu and plan.rows[job].each.gpu == 0


def place_promised(plan: Round) -> None:
    """Hosts for trainers above the least size that were decided before; what has no room any more is taken back, and
    what has had room for long and found no host in it."""
    for job in _without_host(plan):
        draft = plan.draft(job)
        left = _promised(plan, draft) - sum(draft.planned.values())
        left -= _give_up_unbound(plan, job, left)
        search = plan.search(job)
        while left > 0:
            position = plan.view.first_fit(search)
            if position == NOWHERE:
                break
            plan.view.take(position, draft.job.each)
            draft.planned[position] = draft.planned.get(position, 0) + 1
            left -= 1
        if left > 0 and plan.n[job] > plan.least[job]:
            text = f"no host has room any more for {count(left, 'trainer')} that were to come"
            plan.gives(job, Reason(code=Code.NO_ROOM, text=text), "the Pods that have the room")
            _take_back(plan, job, left)


def _give_up_unbound(plan: Round, job: int, unplaced: int) -> int:
    """Take back what Kubernetes has found no host for, for as long as anybody has to wait: a port, a volume or a rule
    that is not known here keeps these Pods from the room that is kept for them. The same job is not given it again at
    once, or nobody else would ever have it. Returns how many of those without a host are taken back."""
    patience = plan.settings.max_wait
    old = sum(plan.now - since >= patience for since in plan.rows[job].unbound_since)
    old = min(old, unplaced, plan.n[job] - plan.least[job])
    if old <= 0:
        return 0
    text = (
        f"Kubernetes has found no host for {count(old, 'trainer')} of it in {patience:.0f} s, whatever room there was; "
        "the events of those Pods say why, as a port, a volume or a rule of their template; "
        f"it is given no more for {patience:.0f} s"
    )
    plan.gives(job, Reason(code=Code.UNSCHEDULABLE, text=text), "the jobs that can use the room")
    plan.draft(job).holds_for = patience
    given_up = min(unplaced, plan.n[job] - _down_by(plan, job, old))
    _take_back(plan, job, given_up)
    return given_up


def _down_by(plan: Round, job: int, number: int) -> int:
    """The size that has so many trainers fewer, in whole units."""
    to = plan.n[job]
    while to > plan.least[job] and plan.n[job] - to < number:
        to = max(plan.least[job], to - 1 if plan.unit[job] == 1 else (to - 1) // plan.unit[job] * plan.unit[job])
    return to


def _take_back(plan: Round, job: int, unplaced: int) -> None:
    to = _down_by(plan, job, unplaced)
    excess = plan.n[job] - to - unplaced
    draft = plan.resize(job, plan.n[job] - unplaced) if excess >= 0 else plan.resize(job, to)
    if excess > 0:
        plan.release(draft.index, to)


# Pressure ---------------------------------------------------------------------------------------------------


def relieve_pressure(plan: Round) -> None:
    """Surplus goes while more is asked for than may be in use."""
    for resource in COUNTED:
        relieve(plan, resource, getattr(plan.limits.reclaim, resource), Terms(), "the limit on what may be in use")


def relieve(plan: Round, resource: str, most: int, terms: Terms, beneficiary: str) -> bool:
    """Take from donors that hold the resource until no more than `most` of it is in use."""
    while getattr(plan.view.used, resource) > most:
        used = getattr(plan.view.used, resource)
        holders = (job for job in terms.donors(plan) if getattr(plan.rows[job].each, resource))
        found = next(((job, at) for job in holders for at, _ in plan.places(job)), None)
        if found is None:
            return False
        donor, position = found
        asked, allowed = quantity(resource, used), quantity(resource, most)
        text = f"{asked} are asked for and {allowed} may be in use; key {plan.key(donor):.4g}"
        plan.gives(donor, Reason(code=Code.PRESSURE, text=text), beneficiary)
        plan.release(donor, plan.lower(donor), at=position)
    return True
