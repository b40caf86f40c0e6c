"""Phase D: when nothing else is to do, trainers move from jobs that have had more than their share to others.

A move takes one step from the job with the largest key and gives one to the job with the smallest, on the host where it
was taken. It is made only if the giver still has the larger key afterwards: no move turns the order of two jobs around,
so no two jobs hand a trainer back and forth. Jobs in their freezing window neither give nor take.
"""

from shoal.scheduler.budgets import allows, difference
from shoal.scheduler.decisions import Code, Reason
from shoal.scheduler.fill import place_step, record_step
from shoal.scheduler.planning import Round
from shoal.scheduler.units import Order
from shoal.scheduler.victims import undo

PART_OF_TRAINERS = 10
"""A tenth of all trainers may move in one round, if that is more than `max_moves`."""


def rebalance(plan: Round) -> None:
    takers, givers = _takers(plan), _givers(plan)
    hopeless: set[tuple[int, str]] = set()
    left = max(plan.settings.max_moves, sum(plan.n) // PART_OF_TRAINERS)
    while left > 0 and _move_one(plan, takers, givers, hopeless):
        left -= 1


def _takers(plan: Round) -> Order[int]:
    """By the key they would have with one step more."""
    jobs = plan.columns.jobs
    enough = (jobs["cpu"] >= plan.settings.cpu_per_gpu * jobs["gpu"]).tolist()
    able = (job for job, n in enumerate(plan.n) if 0 < n < plan.most[job] and enough[job] and not plan.frozen[job])
    return Order(((plan.keys.key(job, plan.higher(job)), plan.keys.rank[job]), job) for job in able)


def _givers(plan: Round) -> Order[int]:
    """By the key they have."""
    able = (job for job, n in enumerate(plan.n) if n > plan.least[job] and not plan.frozen[job])
    return Order(((plan.key(job), plan.keys.rank[job]), job) for job in able)


def _move_one(plan: Round, takers: Order[int], givers: Order[int], hopeless: set[tuple[int, str]]) -> bool:
    """Make the best move there is. `hopeless` are the shapes (and namespaces) for which none was found: jobs of the
    same kind that deserve less would not find one either."""
    margin = plan.settings.fairness_margin
    last = givers.last()
    for taker in takers:
        wanted = plan.keys.key(taker, plan.higher(taker)) + margin
        if last is None or plan.key(last) <= wanted:
            return False
        kind = (int(plan.columns.jobs["shape"][taker]), plan.rows[taker].key.namespace)
        if kind in hopeless or plan.higher(taker) > plan.most[taker]:
            continue
        for giver in reversed(givers):
            if plan.key(giver) <= wanted:
                break
            if giver != taker and plan.keys.key(giver, plan.lower(giver)) > wanted and _move(plan, giver, taker):
                _update(plan, takers, givers, giver, taker)
                return True
        hopeless.add(kind)
    return False


def _update(plan: Round, takers: Order[int], givers: Order[int], giver: int, taker: int) -> None:
    """Who gave gives again but takes no more in this round, and the other way round."""
    takers.drop(giver)
    givers.drop(taker)
    if plan.n[giver] > plan.least[giver]:
        givers.put(giver, (plan.key(giver), plan.keys.rank[giver]))
    else:
        givers.drop(giver)
    if plan.higher(taker) <= plan.most[taker]:
        takers.put(taker, (plan.keys.key(taker, plan.higher(taker)), plan.keys.rank[taker]))
    else:
        takers.drop(taker)


def _move(plan: Round, giver: int, taker: int) -> bool:
    """Take a step from one and give a step to the other, if it fits where it was taken."""
    row, after = plan.rows[taker], plan.higher(taker)
    if not plan.quotas.allows(row, plan.n[taker], after):
        return False
    more, _ = difference(row, plan.n[taker], after)
    each, step = plan.rows[giver].each, plan.n[giver] - plan.lower(giver)
    if not allows(plan.limits.grow, plan.view.used.minus(each, step), more):
        return False
    search = plan.search(taker)
    for position, number in sorted(plan.places(giver)):
        is_possible = plan.view.is_in(search.pools, position)
        if not is_possible or not plan.view.fits_with(search, position, each, min(step, number)):
            continue
        before = plan.n[giver]
        released = plan.release(giver, plan.lower(giver), at=position)
        placed = place_step(plan, taker, after)
        if placed is not None:
            _tell(plan, giver, before, taker, after)
            record_step(plan, plan.draft(taker), placed)
            return True
        undo(plan, [(giver, before, released)])
    return False


def _tell(plan: Round, giver: int, before: int, taker: int, after: int) -> None:
    gives, gets = plan.draft(giver), plan.resize(taker, after)
    keys = f"{plan.keys.key(giver, before):.4g} against {plan.keys.key(taker, after):.4g}"
    gives.gave = True
    if gives.reason is None:
        gives.reason = Reason(code=Code.FAIRNESS, text=f"it has had more than {gets.job.key}: key {keys}")
        gives.beneficiary = str(gets.job.key)
    if gets.reason is None:
        gets.reason = Reason(code=Code.FAIRNESS, text=f"it has had less than {gives.job.key}: key {keys}")
