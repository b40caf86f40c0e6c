"""`fifo`: jobs start in the order in which they came, each with all it asked for. Nobody overtakes, nobody is resized.

A job that could not start even in the empty cluster, or is above its quota, holds nobody up.
"""

from shoal.scheduler.decisions import Decisions
from shoal.scheduler.rigid import plan_rigid
from shoal.scheduler.rows import Seconds
from shoal.scheduler.settings import SchedulerSettings
from shoal.scheduler.snapshot import Snapshot


def plan(snapshot: Snapshot, now: Seconds, settings: SchedulerSettings) -> Decisions:
    return plan_rigid(snapshot, overtaking=False, gang=True)
