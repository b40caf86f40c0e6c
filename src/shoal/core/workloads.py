"""ReplicaSets, StatefulSets and batch Jobs, and the Pods they make: what decisions about a TrainingJob look at.

Kubernetes' own controllers make these Pods. We say how many there should be, and read how many there are.
"""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from shoal.api.trainingjob import TrainingRole
from shoal.core.pods import PodPhase, Trouble


class WorkloadKind(StrEnum):
    REPLICA_SET = "ReplicaSet"
    STATEFUL_SET = "StatefulSet"
    JOB = "Job"


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One object that makes Pods, as the API server shows it."""

    kind: WorkloadKind
    name: str
    uid: str
    generation: int = 0
    """Counts what was ever asked of it: a number that was decided on one is not written over the next."""
    role: TrainingRole
    wanted: int
    """Replicas; of a Job, its parallelism."""
    form: str = ""
    """Of which spec it was made."""
    deleting: bool = False
    succeeded: int = 0
    failed: int = 0
    """Pods that ended so. Those that were evicted or lost with their host are not counted as failed."""
    is_complete: bool = False
    failure: str | None = None
    """Of a Job: why Kubernetes gave it up; None: it has not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingPod:
    """One Pod of a TrainingJob."""

    name: str
    uid: str
    role: TrainingRole
    owner: str
    """The uid of what made it."""
    phase: PodPhase = PodPhase.PENDING
    ready: bool = False
    deleting: bool = False
    ends: datetime | None = None
    """When its grace is over, if it was told to end."""
    created_at: datetime
    host: str = ""
    exit_code: int | None = None
    oom_killed: bool = False
    reason: str = ""
    trouble: Trouble | None = None

    @property
    def is_over(self) -> bool:
        return self.phase in (PodPhase.SUCCEEDED, PodPhase.FAILED)

    @property
    def is_running(self) -> bool:
        return self.phase is PodPhase.RUNNING and not self.deleting

    @property
    def is_live(self) -> bool:
        """Runs, or is on its way to: what Kubernetes counts as active."""
        return not self.is_over and not self.deleting
