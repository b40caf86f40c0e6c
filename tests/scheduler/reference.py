"""The policy in the plainest form: a heap for the order of steps, one step at a time, and for every Pod a look
at every host. The real one has to give every job the same."""

from heapq import heapify, heappop, heapreplace

from shoal.scheduler.decisions import Decisions
from shoal.scheduler.fill import grow
from shoal.scheduler.keys import Ruler, cfs_keys
from shoal.scheduler.phases import plan_round
from shoal.scheduler.planning import Round
from shoal.scheduler.rows import Seconds
from shoal.scheduler.settings import SchedulerSettings
from shoal.scheduler.snapshot import Snapshot
from shoal.scheduler.view import NOWHERE, Search, View


class PlainView(View):
    def first_fit(self, search: Search) -> int:
        for position in range(len(self.names)):
            if self.is_in(search.pools, position) and self.fits(search, position):
                return position
        return NOWHERE


def plain_fill(plan: Round) -> None:
    heap = [
        (plan.keys.key(job, plan.higher(job)), plan.keys.rank[job], job)
        for job in range(len(plan.n))
        if 0 < plan.n[job] < plan.most[job] and not plan.frozen[job] and may_take(plan, job)
    ]
    heapify(heap)
    while heap:
        _, rank, job = heap[0]
        has_grown = grow(plan, job)
        plan.steps += not has_grown
        if has_grown and plan.higher(job) <= plan.most[job]:
            heapreplace(heap, (plan.keys.key(job, plan.higher(job)), rank, job))
        else:
            heappop(heap)


def may_take(plan: Round, job: int) -> bool:
    each, draft = plan.rows[job].each, plan.drafts.get(job)
    return each.cpu >= each.gpu * plan.settings.cpu_per_gpu and (draft is None or not draft.gave)


def plan_plainly(snapshot: Snapshot, now: Seconds, settings: SchedulerSettings, ruler: Ruler = cfs_keys) -> Decisions:
    return plan_round(snapshot, now, settings, ruler, fill=plain_fill, view=PlainView)
