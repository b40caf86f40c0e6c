"""A round of `cfs` or `fulfillment`: the same machine with another key.

A round has four phases, each in a module of its own: what has to be done (`mandatory`), who may start (`admit`), who
grows into free room (`fill`), and, when none of these had anything to do, who hands a trainer to whom (`fairness`).
While something mandatory has no host yet, jobs that matter less do not start, and nobody grows.
"""

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


def plan_round(snapshot: Snapshot, now: Seconds, settings: SchedulerSettings, ruler: Ruler) -> Decisions:
    plan = Round(snapshot, now, settings, ruler)
    unplaced = do_mandatory(plan)
    admit(plan, unplaced)
    if not unplaced.holds_up_growth:
        fill(plan)
        if not any(True for _ in plan.changes()):
            rebalance(plan)
    return Decisions(
        changes=tuple(plan.changes()),
        waits=tuple(plan.waits),
        nominations=tuple(plan.nominations),
        min_v=plan.keys.min_v,
        steps=plan.steps,
    )
