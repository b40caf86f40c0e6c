"""What is known of one TrainingJob at one moment: everything a decision may look at, read once, as values."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from shoal.api.scheduling import SchedulingStatus
from shoal.api.trainingjob import Phase, TrainingRole
from shoal.api.trainingspec import TrainingSpec
from shoal.core.pods import Trouble
from shoal.core.workloads import TrainingPod, Workload
from shoal.operator.allowances import Allowance
from shoal.operator.snapshot import Condition, Key


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleRecord:
    at: datetime
    before: int
    after: int
    reason: str = ""
    role: TrainingRole = TrainingRole.TRAINER


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleCounts:
    """How many Pods of a role are in which state."""

    target: int = 0
    pending: int = 0
    running: int = 0
    succeeded: int = 0
    failed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingMemory:
    """What the operator remembers of a job, in the job's own status: nothing is kept anywhere else."""

    scheduling: SchedulingStatus | None = None
    """The scheduler's last word, as it is written; None: it has not spoken yet."""
    victims: tuple[str, ...] = ()
    """Trainers that the scheduler has named to go, and that are still there."""
    form: str | None = None
    """Of which spec the job's fixed objects were made, and are there."""
    trainer_uid: str | None = None
    """Of the batch Job, once it was seen."""
    trainer_failed: int = 0
    """How many of its Pods had failed when it was last looked at."""
    earlier_failures: int = 0
    """Failures of Jobs before it: a job that is suspended gets another one."""
    records: tuple[ScaleRecord, ...] = ()
    start_time: datetime | None = None
    finish_time: datetime | None = None

    @property
    def target(self) -> int:
        return (self.scheduling.target if self.scheduling else None) or 0

    @property
    def servers(self) -> int | None:
        """Parameter servers by the same word; None: as the job asks."""
        return self.scheduling.servers if self.scheduling else None

    @property
    def failures(self) -> int:
        return self.earlier_failures + self.trainer_failed


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingStatus:
    memory: TrainingMemory = TrainingMemory()
    phase: Phase = Phase.PENDING
    reason: str = ""
    conditions: Mapping[str, Condition] = field(default_factory=dict)
    counts: Mapping[TrainingRole, RoleCounts] = field(default_factory=dict)
    observed_generation: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSeen:
    """A TrainingJob as it was read."""

    key: Key
    uid: str
    generation: int
    created_at: datetime
    spec: TrainingSpec | None
    """What it means; None when it cannot be read, and `invalid` says why."""
    invalid: str = ""
    deleting: bool = False
    version: str = ""
    status: TrainingStatus = TrainingStatus()

    @property
    def name(self) -> str:
        return self.key.name

    @property
    def memory(self) -> TrainingMemory:
        return self.status.memory

    @property
    def is_over(self) -> bool:
        return self.memory.finish_time is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSnapshot:
    job: TrainingSeen
    workloads: tuple[Workload, ...] = ()
    """Those that the job owns."""
    pods: tuple[TrainingPod, ...] = ()
    """Those of all its workloads, also of one that is gone already."""
    allowance: Allowance | None = None
    """What the scheduler allows it; None: it has not decided since this operator leads."""
    troubles: tuple[Trouble, ...] = ()
    prepared: str | None = None
    """The form of the fixed objects that this process has made and not yet recorded."""

    def workload(self, role: TrainingRole) -> Workload | None:
        return next((each for each in self.workloads if each.role is role), None)

    def pods_of(self, role: TrainingRole) -> list[TrainingPod]:
        return [pod for pod in self.pods if pod.role is role]

    @property
    def ending_trainers(self) -> int:
        """Trainers of a Job that is gone, whose containers may still run: a Job is deleted before its Pods. Until they
        have ended no other Job may be made, or two sets of trainers would write to the same places."""
        job = self.workload(TrainingRole.TRAINER)
        old = [pod for pod in self.pods_of(TrainingRole.TRAINER) if pod.owner and (job is None or pod.owner != job.uid)]
        return sum(not pod.is_over for pod in old)
