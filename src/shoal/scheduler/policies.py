"""What a policy is, and the policies by name."""

from typing import Protocol

from shoal.scheduler.decisions import Decisions
from shoal.scheduler.rows import Seconds
from shoal.scheduler.settings import SchedulerSettings
from shoal.scheduler.snapshot import Snapshot


class Policy(Protocol):
    def __call__(self, snapshot: Snapshot, now: Seconds, settings: SchedulerSettings) -> Decisions:
        """Decide once. The same arguments give the same decisions; nothing is kept between calls."""
        ...
