"""What a job looks like from outside: the values behind `/state`, `shoal ps` and the live view.

Plain data with nothing to decide; `shoal.core.job.view` makes it from the master's state.
"""

from collections.abc import Mapping
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
    role: str = "worker"


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
class PSChangeView:
    """One change of the parameter servers, or a pause for a checkpoint, and how long each of its phases took, in
    seconds as the master saw them."""

    kind: str
    """`start`, `resize`, `rollback` or `save`."""
    reason: str
    at: datetime
    """When it began."""
    before: int
    """Servers before; 0: there were none."""
    after: int
    """Servers after, or wanted while it is under way."""
    version: int | None = None
    """That it leads to; None: it has no number yet, or nothing changes but that something is saved."""
    phase: str | None
    """What it does now; None: it is over."""
    outcome: str | None = None
    """`done` or `abandoned`; None: it is under way."""
    launch: float = 0.0
    prepare: float = 0.0
    """Workers train on while servers are launched and the next version is prepared, unless a server was lost."""
    drain: float = 0.0
    move: float = 0.0
    """Or save."""
    go: float = 0.0

    @property
    def pause(self) -> float:
        """Seconds in which some worker stood still for it, at most."""
        stood = self.drain + self.move + self.go
        return stood + self.launch + self.prepare if self.kind == "rollback" else stood


@dataclass(frozen=True, slots=True, kw_only=True)
class ServersView:
    """The parameter servers of a job."""

    version: int
    """The one that trains; 0: none yet."""
    servers: int
    """Of that version."""
    goal: int
    """How many are asked for."""
    min_servers: int
    max_servers: int
    chief: str | None
    partitions: int
    nbytes: int
    """Of the model with its optimizer's slots."""
    addresses: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    """In the order of ranks, as the addresses."""
    changes: tuple[PSChangeView, ...] = ()
    """The newest last; bounded."""
    checkpoint: str | None = None
    """The path of the newest."""
    checkpoint_step: int | None = None
    scores: tuple[tuple[int, dict[str, float]], ...] = ()
    """(step, metrics) of the newest that the evaluator has found; bounded."""
    unscored: int = 0
    """Checkpoints that wait for the evaluator."""


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
class OutcomeView:
    """What came of one change that the job's optimizer made. Speeds in samples per second."""

    algorithm: str
    before: float
    measured: float
    predicted: float | None
    prediction_error: float | None
    """As a part of what was measured; positive: it promised too much."""
    gain: float
    """Of speed per cost: 0.1 is ten per cent better."""
    rolled_back: bool


def says_how_many(who: str, role: str) -> str:
    """`ScalePlan more says how many workers there are`"""
    return f"{who} says how many {'parameter servers' if role == 'ps' else f'{role}s'} there are"


def says_what_each_has(who: str, role: str) -> str:
    """`ScalePlan large says what each worker has`"""
    return f"{who} says what each {'parameter server' if role == 'ps' else role} has"


@dataclass(frozen=True, slots=True, kw_only=True)
class SizingView:
    """How a job that sizes itself stands."""

    stage: str
    reason: str
    """Why it has the size that it has: what the optimizer said last."""
    pins: Mapping[str, str]
    """By role, who says how many there are; of the others the optimizer does."""
    changes: int
    pending: str | None
    """The algorithm whose change is under way or not judged yet."""
    predicted: float | None
    """Samples per second that it promises."""
    outcomes: tuple[OutcomeView, ...] = ()
    """The newest last."""
    distrusted: tuple[str, ...] = ()
    """Algorithms that made this job worse, and are not asked again."""
    given: Mapping[str, str] = field(default_factory=dict)
    """By role, who says what each has, besides the job's spec."""
    confidence: float | None = None
    """From 0 to 1, how far the last fit of the job's speed can be trusted; None: there was none yet."""


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
    sizing: SizingView | None = None
    """None: it has the size that somebody asks for."""
    strategy: str = "allreduce"
    roles: dict[str, int] = field(default_factory=dict)
    """How many nodes run, by role."""
    servers: ServersView | None = None
    """None: the job has no parameter servers."""
