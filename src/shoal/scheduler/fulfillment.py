"""The first design document's policy: every job as far between its minimum and its maximum as the others.

Nothing is remembered of the past: the job that is nearest to its minimum comes first, the one that is nearest to its
maximum gives first. Otherwise it is `cfs`, with gangs, hosts, quotas and services.
"""

from shoal.scheduler.decisions import Decisions
from shoal.scheduler.keys import fulfillment_keys
from shoal.scheduler.phases import plan_round
from shoal.scheduler.rows import Seconds
from shoal.scheduler.settings import SchedulerSettings
from shoal.scheduler.snapshot import Snapshot


def plan(snapshot: Snapshot, now: Seconds, settings: SchedulerSettings) -> Decisions:
    return plan_round(snapshot, now, settings, fulfillment_keys)
