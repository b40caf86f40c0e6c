"""The default policy: the cluster is shared in proportion to weights, over time.

The job with the least service for its weight comes first: service so far, and what its size would take over the
horizon.
"""

from shoal.scheduler.decisions import Decisions
from shoal.scheduler.keys import cfs_keys
from shoal.scheduler.phases import plan_round
from shoal.scheduler.rows import Seconds
from shoal.scheduler.settings import SchedulerSettings
from shoal.scheduler.snapshot import Snapshot


def plan(snapshot: Snapshot, now: Seconds, settings: SchedulerSettings) -> Decisions:
    return plan_round(snapshot, now, settings, cfs_keys)
