"""A Pod, with what decisions about a job look at and nothing else.

The Kubernetes platform makes these values from what the API server says; the operator decides on them. Both speak of
Pods in these words, and neither needs to know the other.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from shoal.api.elasticjob import Role
from shoal.api.resources import Resource

_NOTHING_SAID = Resource()


class PodPhase(StrEnum):
    PENDING = "Pending"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    UNKNOWN = "Unknown"
    """Its host does not answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """Why something does not get on, in a word to alert on and in a sentence with the words of whoever refused: a Pod
    that cannot run, or what the API server answered when we last tried to act for a job."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PodSeen:
    """One Pod of a job, as the API server shows it."""

    name: str
    uid: str
    role: Role | None
    """None: it is a master."""
    id: int
    """Of a master: its term."""
    rank: int = 0
    phase: PodPhase = PodPhase.PENDING
    ready: bool = False
    deleting: bool = False
    created_at: datetime
    exit_code: int | None = None
    oom_killed: bool = False
    reason: str = ""
    host: str = ""
    host_down: datetime | None = None
    """Since when nobody hears of its host; None: somebody does, or nobody can tell."""
    resource: Resource = _NOTHING_SAID
    trouble: Trouble | None = None
    """Why it does not get to run."""
    resize_waits: str = ""
    """Why its host has not given it what `resource` says since it was changed; empty: it has, or will at once."""
    is_resizing: bool = False
    """Its host has neither given it what the server has agreed to nor said why not."""
    makes_pods: bool = False
    """Of a master: it creates and deletes its job's Pods itself."""

    @property
    def is_over(self) -> bool:
        return self.phase in (PodPhase.SUCCEEDED, PodPhase.FAILED)

    def has_lost_host(self, grace: timedelta, now: datetime) -> bool:
        """Whether its host has been silent for so long that nothing is to be hoped for: it may never end."""
        return not self.is_over and self.host_down is not None and now - self.host_down >= grace

    @property
    def is_running(self) -> bool:
        return self.phase is PodPhase.RUNNING and not self.deleting
