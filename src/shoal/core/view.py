"""What a job looks like from outside: the values behind `/state`, `shoal ps` and the live view.

Plain data with nothing to decide; `shoal.core.job.view` makes it from the master's state.
"""

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum


class JobPhase(StrEnum):
    STARTING = "starting"
    """No world has been committed yet."""
    RUNNING = "running"
    """A world trains."""
    RESIZING = "resizing"
    """Between two worlds."""
    STOPPING = "stopping"
    """Somebody asked for the end; processes have their grace period."""
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"
    """Ended because somebody asked for it."""


ENDED = frozenset({JobPhase.SUCCEEDED, JobPhase.FAILED, JobPhase.STOPPED})


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessView:
    local_rank: int
    pid: int
    rank: int | None
    step: int | None
    cpu: float
    memory_bytes: int
    busy: str | None
    stopped: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeView:
    node: str
    status: str
    standing: str | None
    """Where it stands between worlds (`expected`, `ready`, `active`, …); None: not a member."""
    incarnation: int
    host: str | None
    pid: int | None
    """The agent's."""
    connected: bool
    reason: str
    processes: tuple[ProcessView, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ResizeView:
    """One change of world and what it cost, in seconds. Each phase is the slowest member's."""

    generation: int
    at: datetime
    reason: str
    before: int
    """Training processes in the world before; 0 for the first."""
    after: int
    drain: float = 0.0
    rendezvous: float = 0.0
    restore: float = 0.0
    first_step: float = 0.0
    lost_steps: int = 0
    continuing: int = 0
    """How many of the processes came straight from the world before: those for whom this was a pause."""
    reported: int = 0
    """How many of them have told their figures (plain scripts tell none)."""

    @property
    def pause(self) -> float:
        """Seconds without training: all but the first step, which is training again."""
        return self.drain + self.rendezvous + self.restore


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionView:
    at: datetime
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetView:
    """The ledger's account of one dataset."""

    name: str
    epoch: int
    """The one under way, or the last."""
    done: int
    """Records of this epoch that are trained, each counted once."""
    records: int | None
    """How many the epoch has; None: a stream, no end is known."""
    leased: int
    """Shards in somebody's hands."""
    waiting: int
    """Processes that wait for a shard."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobView:
    name: str
    uid: str
    phase: JobPhase
    reason: str
    sdk: bool
    """Training processes use the SDK: they live through a change of world."""
    target: int
    min_nodes: int
    max_nodes: int
    nproc: int
    started: datetime
    ended: datetime | None
    exit_code: int | None
    generation: int
    world_size: int
    """Training processes in the committed world."""
    step: int | None
    samples: int | None
    steps_per_second: float | None
    metrics: dict[str, float] = field(default_factory=dict)
    nodes: tuple[NodeView, ...] = ()
    resizes: tuple[ResizeView, ...] = ()
    decisions: tuple[DecisionView, ...] = ()
    """The newest last; bounded."""
    error: str | None = None
    """The last traceback of a training process that failed."""
    data: tuple[DatasetView, ...] = ()
    restarts: int = 0
    """Of processes and of nodes, in all; also of nodes that are long gone and not listed any more."""
