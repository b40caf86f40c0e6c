"""A round of `cfs` or `fulfillment`: the same machine with another key.

A round has four phases, each in a module of its own: what has to be done (`mandatory`), who may start (`admit`), who
grows into free room (`fill`), and, when none of these had anything to do, who hands a trainer to whom (`fairness`).
While something mandatory has no host yet, jobs that matter less do not start, and nobody grows. While a gang that was
started should have its hosts and has not, nobody grows into room that others are still leaving: the new Pods would not
wait for it, and take what is kept for the gang.
"""

from collections.abc import Callable

from shoal.scheduler.admit import admit
from shoal.scheduler.decisions import Decisions
from shoal.scheduler.fairness import rebalance
from shoal.scheduler.fill import fill
from shoal.scheduler.keys import Ruler
from shoal.scheduler.mandatory import do_mandatory
from shoal.scheduler.planning import Round
from shoal.scheduler.rows import Seconds
from shoal.scheduler.settings import SchedulerSettings
from shoal.scheduler.snapshot import Snapshot
from shoal.scheduler.view import View


def plan_round(
    snapshot: Snapshot,
    now: Seconds,
    settings: SchedulerSettings,
    ruler: Ruler,
    *,
    fill: Callable[[Round], None] = fill,
    view: type[View] = View,
) -> Decisions:
    """Decide once. Another `fill` or `view` must come to the same result by another way."""
    plan = Round(snapshot, now, settings, ruler, view=view)
    unplaced = do_mandatory(plan)
    admit(plan, unplaced)
    if not unplaced.holds_up_growth:
        if unplaced.is_overdue:
            plan.view.keep_what_is_leaving()
        fill(plan)
        if not plan.has_changes() and not unplaced.is_overdue:
            rebalance(plan)
    return Decisions(
        changes=tuple(plan.changes()),
        waits=tuple(plan.waits),
        nominations=tuple(plan.nominations),
        min_v=plan.keys.min_v,
        steps=plan.steps,
    )
