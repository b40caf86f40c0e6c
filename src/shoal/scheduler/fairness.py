"""Phase D: when nothing else is to do, trainers move from jobs that have had more than their share to others.

A move takes one step from the job with the largest key and gives one to the job with the smallest, on the host where it
was taken. It is made only if the giver still has the larger key afterwards: no move turns the order of two jobs around,
so no two jobs hand a trainer back and forth. Jobs in their freezing window neither give nor take.

The moves of a round are limited. Jobs whose trainers are alike go first, each to where it should end (`even`), so that
it is resized once and not in every round; then any two jobs are compared. What a move leaves over, because the trainer
that went was larger than the one that came, is given away before anybody else has to give.
"""

from collections.abc import Mapping

from shoal.scheduler.budgets import allows, difference
from shoal.scheduler.decisions import Code, Reason
from shoal.scheduler.even import Alike
from shoal.scheduler.fill import grow, place_step
from shoal.scheduler.gangs import record
from shoal.scheduler.planning import Round
from shoal.scheduler.rows import NOTHING
from shoal.scheduler.units import Order
from shoal.scheduler.victims import undo

PART_OF_TRAINERS = 10
"""A tenth of all trainers may move in one round, if that is more than `max_moves`."""


def rebalance(plan: Round) -> None:
    left = max(plan.settings.max_moves, sum(plan.n) // PART_OF_TRAINERS)
    left -= _even_out(plan, left)
    takers, givers = _takers(plan), _givers(plan)
    hopeless: set[tuple[int, str]] = set()
    while left > 0 and _move_one(plan, takers, givers, hopeless):
        left -= 1


# Jobs whose trainers are alike ------------------------------------------------------------------------------


def _even_out(plan: Round, most: int) -> int:
    """Even out jobs of one shape after the other. Returns the number of moves."""
    made = 0
    shapes: dict[int, list[int]] = {}
    for job, shape in enumerate(plan.columns.jobs["shape"].tolist()):
        if plan.n[job] > 0 and _can_trade(plan, job):
            shapes.setdefault(shape, []).append(job)
    for jobs in shapes.values():
        if len(jobs) > 1 and made < most:
            made += _even_out_alike(plan, jobs, most - made)
    return made


def _can_trade(plan: Round, job: int) -> bool:
    """With every job of its shape: no quota is in the way, and its key is a straight line that rises."""
    is_straight = job not in plan.keys.bent and plan.keys.slope[job] > 0
    return is_straight and plan.rows[job].key.namespace not in plan.quotas


def _even_out_alike(plan: Round, jobs: list[int], most: int) -> int:
    able = [job for job in jobs if not plan.frozen[job]]
    if not _could_trade(plan, able):
        return 0
    keeps, gets = (
        dict(zip(jobs, sizes, strict=True)) for sizes in Alike(jobs, plan.keys, plan.n, plan.least, plan.most).ends()
    )
    givers = [job for job in able if plan.n[job] > plan.least[job] and plan.lower(job) >= keeps[job]]
    givers.sort(key=lambda job: (-plan.key(job), -plan.keys.rank[job]))
    takers = [job for job in able if plan.higher(job) <= gets[job]]
    takers.sort(key=lambda job: (plan.keys.key(job, plan.higher(job)), plan.keys.rank[job]))
    to_give = sum(plan.n[job] - max(keeps[job], plan.least[job]) for job in givers)
    more_will_come = len(able) < len(jobs)
    made = 0
    for taker in takers:
        if more_will_come and 2 * (to_give - made) < gets[taker] - plan.n[taker]:
            continue  # a small part of it now would freeze it, and keep it from the rest
        made += _serve(plan, taker, gets[taker], givers, keeps, most - made)
    return made


def _could_trade(plan: Round, jobs: list[int]) -> bool:
    """Whether any step from one to another keeps their order: mostly none does, and there is nothing to work out."""
    gives = [plan.keys.key(job, plan.lower(job)) for job in jobs if plan.n[job] > plan.least[job]]
    takes = [plan.keys.key(job, plan.higher(job)) for job in jobs if plan.higher(job) <= plan.most[job]]
    return bool(gives and takes) and max(gives) > min(takes) + plan.settings.fairness_margin


def _serve(plan: Round, taker: int, gets: int, givers: list[int], keeps: Mapping[int, int], most: int) -> int:
    """Move trainers to one job, from one giver after the other. Returns how many."""
    made = 0
    while made < most and givers and plan.higher(taker) <= gets:
        giver = givers[0]
        if grow(plan, taker):  # an earlier move has left more than its taker needed: nobody has to give
            made += 1
        elif plan.lower(giver) < keeps[giver] or plan.n[giver] <= plan.least[giver]:
            givers.pop(0)
        elif not _keeps_order(plan, giver, taker) or not _move(plan, giver, taker):
            break
        else:
            made += 1
    return made


def _keeps_order(plan: Round, giver: int, taker: int) -> bool:
    """A step from one to the other does not turn their order around."""
    wanted = plan.keys.key(taker, plan.higher(taker)) + plan.settings.fairness_margin
    return plan.keys.key(giver, plan.lower(giver)) > wanted


# Any two jobs -----------------------------------------------------------------------------------------------


def _takers(plan: Round) -> Order[int]:
    """By the key they would have with one step more."""
    jobs = plan.columns.jobs
    enough = (jobs["cpu"] >= plan.settings.cpu_per_gpu * jobs["gpu"]).tolist()
    gave = {job for job, draft in plan.drafts.items() if draft.gave}
    able = (
        job
        for job, n in enumerate(plan.n)
        if 0 < n < plan.most[job] and enough[job] and not plan.frozen[job] and job not in gave
    )
    return Order(((plan.keys.key(job, plan.higher(job)), plan.keys.rank[job]), job) for job in able)


def _givers(plan: Round) -> Order[int]:
    """By the key they have."""
    targets = plan.columns.jobs["target"].tolist()
    able = (job for job, n in enumerate(plan.n) if plan.least[job] < n <= targets[job] and not plan.frozen[job])
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
        if grow(plan, taker):  # into what an earlier move has left over
            _update(plan, takers, givers, None, taker)
            return True
        for giver in reversed(givers):
            if plan.key(giver) <= wanted:
                break
            if giver == taker or _are_alike(plan, giver, taker):
                continue
            if _keeps_order(plan, giver, taker) and _move(plan, giver, taker):
                _update(plan, takers, givers, giver, taker)
                return True
        hopeless.add(kind)
    return False


def _are_alike(plan: Round, one: int, other: int) -> bool:
    """They are even already, or will be when others are not frozen any more."""
    shape = plan.columns.jobs["shape"]
    return bool(shape[one] == shape[other]) and _can_trade(plan, one) and _can_trade(plan, other)


def _update(plan: Round, takers: Order[int], givers: Order[int], giver: int | None, taker: int) -> None:
    """Who gave gives again but takes no more in this round, and the other way round."""
    givers.drop(taker)
    if giver is not None:
        takers.drop(giver)
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
    freed = NOTHING.plus(each, step)
    if not freed.holds(more) and not allows(plan.limits.grow, plan.view.used.minus(freed), more):
        return False  # what is used may be above the limit already: a gang may start up to where jobs have to shrink
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
            record(plan, plan.draft(taker), placed)
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
