"""What is known of one job at one moment: everything a decision may look at, read once, as values.

The platform's adapter makes them (`Cluster.snapshot`); nothing here can reach the API server. Pods in a snapshot are
the job's own, by the uid of their owner: an object of the same name with another owner is never seen as ours.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from shoal.api.elasticjob import Role
from shoal.api.jobspec import JobSpec
from shoal.api.resources import Resource
from shoal.api.scheduling import SchedulingStatus
from shoal.core.pods import PodSeen, Trouble
from shoal.operator.allowances import Allowance
from shoal.operator.memory import SILENT, Memory


@dataclass(frozen=True, slots=True, order=True)
class Key:
    """One job's place: what wakes the operator names it, and work is queued by it."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class TrainingPhase(StrEnum):
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    """It is about to be over, one way or another: its processes have their time to end."""
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"


OVER = frozenset({TrainingPhase.SUCCEEDED, TrainingPhase.FAILED, TrainingPhase.STOPPED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """The master's report."""

    phase: str
    reason: str = ""
    decision: str | None = None
    decided_at: datetime | None = None
    world: int | None = None
    term: int | None = None
    """Whose report it is: an earlier master's is no longer anybody's word."""

    @property
    def is_over(self) -> bool:
        return self.phase in OVER

    @property
    def is_ending(self) -> bool:
        return self.phase == TrainingPhase.STOPPING


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    type: str
    status: str
    reason: str
    message: str
    since: datetime
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleCounts:
    """How many Pods of a role's members are in which state."""

    pending: int = 0
    running: int = 0
    succeeded: int = 0
    failed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStatus:
    """What the operator writes of a job: all of its status but the master's report."""

    memory: Memory = field(default_factory=Memory)
    conditions: Mapping[str, Condition] = field(default_factory=dict)
    counts: Mapping[Role, RoleCounts] = field(default_factory=dict)
    observed_generation: int | None = None
    decision: str | None = None
    decided_at: datetime | None = None
    world: int | None = None
    restarts: int = 0
    scheduling: SchedulingStatus | None = None
    """What the scheduler decided last, and remembers of the job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSeen:
    key: Key
    uid: str
    generation: int
    created_at: datetime
    spec: JobSpec | None
    """What it means; None when it cannot be read, and `invalid` says why."""
    invalid: str = ""
    deleting: bool = False
    version: str = ""
    """Of the object as it was read: what is written on the strength of it is void if that is no longer the newest."""
    status: JobStatus = field(default_factory=JobStatus)
    training: Training | None = None

    @property
    def name(self) -> str:
        return self.key.name

    @property
    def memory(self) -> Memory:
        return self.status.memory

    @property
    def is_over(self) -> bool:
        return self.memory.finish_time is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Trim:
    """Something that was asked for and not given."""

    what: str
    asked: str = ""
    got: str = ""
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """What became of one entry of a plan that is carried out once."""

    entry: str
    pod: str | None = None
    outcome: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodReport:
    """One member, as the master is told of it."""

    name: str
    uid: str | None = None
    role: Role
    id: int
    rank: int
    phase: str
    exit_code: int | None = None
    oom_killed: bool = False
    reason: str = ""
    host: str = ""
    resource: Resource = SILENT
    replaces: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanStatus:
    """What the operator writes of a plan."""

    conditions: Mapping[str, Condition] = field(default_factory=dict)
    observed_generation: int | None = None
    trims: tuple[Trim, ...] = ()
    done: tuple[Done, ...] = ()
    started_at: datetime | None = None
    finished_at: datetime | None = None
    pods: tuple[PodReport, ...] = ()


class PlanKind(StrEnum):
    SCALE_PLAN = "ScalePlan"
    JOB_RESOURCE = "JobResource"


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleAsk:
    replicas: int | None = None
    resource: Resource = SILENT


@dataclass(frozen=True, slots=True, kw_only=True)
class PodOrder:
    """One entry of `createPods`."""

    name: str
    role: Role
    id: int
    rank: int | None = None
    resource: Resource = SILENT
    avoid_hosts: tuple[str, ...] = ()
    replaces: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveOrder:
    """One entry of `migratePods` or `resource_updation`."""

    name: str
    resource: Resource = SILENT


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSeen:
    """A ScalePlan or a JobResource that names this job."""

    kind: PlanKind
    name: str
    uid: str
    generation: int
    created_at: datetime
    auto: bool = False
    """The master's own plan, `<job>-auto`."""
    roles: Mapping[Role, RoleAsk] = field(default_factory=dict)
    create: tuple[PodOrder, ...] = ()
    remove: tuple[str, ...] = ()
    migrate: tuple[MoveOrder, ...] = ()
    refused: str | None = None
    """Why it can never be for this job, whatever the job does."""
    invalid: str | None = None
    version: str = ""
    status: PlanStatus = field(default_factory=PlanStatus)

    @property
    def ask(self) -> str:
        return f"{self.kind}/{self.name}"

    @property
    def pins(self) -> bool:
        """Whether it asks for a count or a resource of a role: then it matters when it was changed."""
        return bool(self.roles or self.create or self.remove)

    @property
    def title(self) -> str:
        return f"{self.kind} {self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedResize:
    """What the server would not give a running Pod."""

    resources: Mapping[str, Any]
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    job: JobSeen
    plans: tuple[PlanSeen, ...] = ()
    pods: tuple[PodSeen, ...] = ()
    """Of members and of masters."""
    has_auto_plan: bool = False
    can_resize: bool = False
    """The server changes what a running Pod has."""
    refused_resizes: Mapping[str, RefusedResize] = field(default_factory=dict)
    """By the uids of Pods."""
    troubles: tuple[Trouble, ...] = ()
    prepared: str | None = None
    """The form of the fixed objects that this process has made and not yet recorded."""
    made: Mapping[str, str] = field(default_factory=dict)
    """Names and uids of Pods that this process has made: one of them that is not there has come and gone."""
    leads_since: datetime | None = None
    """Since when this process decides: before that it may be that nobody did, and nothing could happen. None: for
    ever."""
    is_scheduled: bool = False
    """A scheduler arbitrates between jobs; without one everything that is asked for is granted."""
    allowance: Allowance | None = None
    """What it allows. None: it has not decided yet, so the job keeps what it has and grows by nothing."""
