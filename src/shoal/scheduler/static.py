"""`static`: every job has a fixed size and starts as soon as it fits; smaller ones overtake. Nobody is resized.

With `settings.gang` off jobs start whether they fit or not, and their Pods wait for hosts one by one: what a cluster
does that has no scheduler for jobs.
"""

from shoal.scheduler.decisions import Decisions
from shoal.scheduler.rigid import plan_rigid
from shoal.scheduler.rows import Seconds
from shoal.scheduler.settings import SchedulerSettings
from shoal.scheduler.snapshot import Snapshot


def plan(snapshot: Snapshot, now: Seconds, settings: SchedulerSettings) -> Decisions:
    return plan_rigid(snapshot, overtaking=True, gang=settings.gang)
