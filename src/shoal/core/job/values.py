"""The values of one job: what was asked, what is known, what can happen, what can be done about it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from shoal.core.exits import ProcessExit
from shoal.core.hang import HangSettings
from shoal.core.ledger import Ledger, Owner, Wake
from shoal.core.ledger.intervals import Ranges
from shoal.core.nodes import Node, NodeId, ProcessSeen, Role
from shoal.core.plans import NodeResource, ScalePlan
from shoal.core.recovery import Budget, RecoverySettings
from shoal.core.rounds import Round, RoundAnswer
from shoal.core.saving import CheckpointSpec
from shoal.core.view import DecisionView, JobPhase, ResizeView
from shoal.core.world import Notice, Rendezvous

KEPT_DECISIONS = 200
KEPT_RESIZES = 200
KEPT_SPEED = 64


# What was asked ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """What the user asked for."""

    name: str
    uid: str
    min_nodes: int
    max_nodes: int
    nproc: int = 1
    """Training processes per node."""
    node_unit: int = 1
    max_restarts: int = 3
    """Charged restarts per seat; 0 means none."""
    command: tuple[str, ...] = ()
    platform_grows: bool = False
    """How many nodes the job has is the platform's to say. It adds them by itself and announces them; the job asks it
    only for replacements. So it is on Kubernetes, where the operator makes the Pods."""
    fills_grant: bool = False
    """On such a platform: it says only how many, and the job launches them. So it is where masters make the Pods."""
    memory_limit: int | None = None
    """MiB one node may have at most; None: not limited."""
    global_batch: int | None = None
    """Micro-batches in a step where the script does not say; None: as many as there can be training processes."""
    checkpoint: CheckpointSpec = field(default_factory=CheckpointSpec)

    @property
    def micro_batches(self) -> int:
        """How many a step has, however many processes there are, unless the script says another number."""
        return self.max_nodes * self.nproc if self.global_batch is None else self.global_batch


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSettings:
    """How patient the master is. One frozen tree, built once and passed down."""

    heartbeat: timedelta = timedelta(seconds=2)
    suspect_after: timedelta = timedelta(seconds=10)
    """How long a node may be silent or disconnected before it counts as gone. Five heartbeats: a machine that swaps
    or a link that stalls is not dead."""
    suspect_after_restart: timedelta = timedelta(seconds=60)
    """How long the nodes have to come back to a master that took over. As long as an agent looks for its master."""
    last_call: timedelta = timedelta(seconds=3)
    broken_after: timedelta = timedelta(seconds=1)
    """How long a world may stand still after members reported a closed connection while nobody is known to be gone."""
    early_window: timedelta = timedelta(seconds=2)
    """How long the first error before the first step is held back, to see whether every rank has it."""
    early_plain: timedelta = timedelta(seconds=5)
    """A process of a plain script, which reports no steps, counts as before its first one when it died younger."""
    explained_after: timedelta = timedelta(seconds=5)
    """How long a platform that adds nodes by itself has to say how one ended that is gone. The kubelet tells within a
    second or two; only the replacement waits for it."""
    pending_timeout: timedelta = timedelta(minutes=15)
    """How long the job may have fewer nodes than its minimum."""
    grace: timedelta = timedelta(seconds=15)
    """From SIGTERM to SIGKILL, for processes that are stopped on purpose."""
    end_slack: timedelta = timedelta(seconds=5)
    """How much longer than the grace period the end of a job may take before everything is killed."""
    recovery: RecoverySettings = field(default_factory=RecoverySettings)
    hang: HangSettings = field(default_factory=HangSettings)

    def __post_init__(self) -> None:
        if self.suspect_after <= self.heartbeat:
            raise ValueError(
                f"suspect_after ({self.suspect_after}) must be longer than the heartbeat ({self.heartbeat})"
            )


# What is known -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What was last heard of a live node's agent."""

    connected: bool
    at: datetime
    pid: int | None = None
    address: str = ""
    suspect_until: datetime | None = None
    """Its socket closed; when this has passed it is gone."""
    unheard: bool = False
    """It has not come back since another master took over: nobody knows whether it is there."""
    processes: tuple[ProcessSeen, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """Training's progress."""

    step: int | None = None
    """The highest step reported so far."""
    samples: int | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    at: datetime
    """When a step was last gained; until then when the job started. Also set when a world begins or ends."""
    speed: tuple[tuple[datetime, int], ...] = ()
    """(time, step) of recent reports in this world."""
    step_seconds: tuple[float, ...] = ()
    steps_seen: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlyErrors:
    """User errors before the first step, held back to see whether every rank has the same one."""

    until: datetime
    exits: tuple[tuple[NodeId, int, ProcessExit], ...]
    """(node, local rank, how it ended), in the order in which they came."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reuniting:
    """A master has taken over whose records may be older than what agents were told: until everybody has said what it
    holds, no shard is leased, for it may be in somebody's hands, or trained."""

    missing: frozenset[NodeId]
    """Who has not been heard yet."""
    waiting: tuple[Wake, ...] = ()
    """Who asked meanwhile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unexplained:
    """A node that is gone, of which the platform has not said how it ended."""

    until: datetime
    """Then it is replaced all the same."""
    detail: str
    uptime: timedelta
    fallout: bool
    newcomer: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Everything the master knows about its job. Changed only by `handle`."""

    spec: JobSpec
    settings: JobSettings
    target: int
    """How many nodes are asked for."""
    phase: JobPhase
    reason: str
    started: datetime
    ended: datetime | None = None
    ending: JobPhase | None = None
    """How the job will have ended when its nodes have gone."""
    end_by: datetime | None = None
    nodes: Mapping[NodeId, Node] = field(default_factory=dict)
    seen: Mapping[NodeId, Seen] = field(default_factory=dict)
    """Of live nodes whose agent registered."""
    rendezvous: Rendezvous
    places: frozenset[NodeId] = frozenset()
    """Nodes that are expected to join by themselves and have not; kept for the first world only."""
    next_number: int = 0
    sdk: bool = False
    budgets: Mapping[int, Budget] = field(default_factory=dict)
    """By seat."""
    without_progress: int = 0
    fallen: int | None = None
    """The generation that a failure has ended: what else fails in it is fallout and not charged again."""
    gain: Gain
    early: EarlyErrors | None = None
    peer_closed: datetime | None = None
    """When a member of the running world first reported a closed connection."""
    short_since: datetime | None = None
    """Since when the job has had fewer nodes than its minimum."""
    hanging: frozenset[tuple[NodeId, int, int]] = frozenset()
    """(node, incarnation, local rank) of processes that were told to die because they hang."""
    hang_warned: int | None = None
    """The generation for which a hang without culprit was reported."""
    why: str = "the job starts"
    """Why the next world is being formed."""
    continuing: frozenset[NodeId] = frozenset()
    """The members of the committed world that came straight from the one before: only for them was it a pause."""
    resizes: tuple[ResizeView, ...] = ()
    decisions: tuple[DecisionView, ...] = ()
    error: str | None = None
    ledger: Ledger = field(default_factory=Ledger)
    """What is trained of which dataset, and who trains what now."""
    reunion: Reuniting | None = None
    unexplained: Mapping[NodeId, Unexplained] = field(default_factory=dict)
    restored: Mapping[Owner, int] = field(default_factory=dict)
    """Of each process that restored a checkpoint and may not know yet that it did, the last time, by its own count."""
    forgotten: Mapping[Role, Ranges] = field(default_factory=dict)
    """The numbers of nodes that ended long ago and are not among `nodes` any more."""
    forgotten_restarts: int = 0
    """How many restarts those were."""
    resumed: int = 0
    """How many times all of it was gone and it was begun again from its records."""
    statistics: bytes = b""
    """What the job used and how fast it was, as the master last wrote it down: `shoal.core.statistics_kept`."""

    @property
    def is_suspended(self) -> bool:
        """It is to have no nodes for a while: those it had were drained, and nothing follows from their absence."""
        return self.target == 0


# What can happen -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentJoined:
    """An agent shook hands; `admit` has answered it."""

    node: NodeId
    incarnation: int
    generation: int
    pid: int
    host: str
    address: str
    prepared: int = 0
    """The newest generation that it was ever told of."""
    sdk: bool = False
    """Its processes are known to use the SDK."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentDisconnected:
    node: NodeId


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeExited:
    """The platform says that the node ended."""

    node: NodeId
    exit: ProcessExit


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatSeen:
    node: NodeId
    incarnation: int
    processes: tuple[ProcessSeen, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReady:
    node: NodeId
    incarnation: int
    steps: tuple[int | None, ...]
    sdk: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeAcked:
    node: NodeId
    incarnation: int
    generation: int
    store: Mapping[str, bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFinished:
    node: NodeId
    incarnation: int
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerLost:
    """A member saw a connection to some peer of its world end."""

    node: NodeId
    incarnation: int
    generation: int
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessExited:
    node: NodeId
    incarnation: int
    local_rank: int
    exit: ProcessExit


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSucceeded:
    node: NodeId
    incarnation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLeft:
    node: NodeId


@dataclass(frozen=True, slots=True, kw_only=True)
class StepGained:
    node: NodeId
    incarnation: int
    generation: int
    step: int
    samples: int | None
    metrics: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResizeTold:
    node: NodeId
    generation: int
    drain: float
    rendezvous: float
    restore: float
    first_step: float
    lost_steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DataAsked:
    """A node's processes report on their data, and want more."""

    node: NodeId
    round: Round


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleAsked:
    """Checked by `refusal` before. A count of 0 suspends the job."""

    count: int
    who: str
    victims: frozenset[NodeId] = frozenset()
    """Who should go first, should anybody have to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Announced:
    """A node that the platform says exists, or will in a moment."""

    node: NodeId
    seat: int
    resource: NodeResource = field(default_factory=NodeResource)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodesAnnounced:
    """What exists on a platform that adds nodes by itself. Said again, it changes nothing."""

    nodes: tuple[Announced, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecChanged:
    """The user asks for something else now; see `respecify`. Said again, it changes nothing."""

    spec: JobSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class StopAsked:
    reason: str
    grace: timedelta | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticked:
    """Time passed; see `deadline`."""

    late: timedelta = timedelta(0)
    """How much later than it was due: this process was stopped or starved, and nobody can be blamed for the silence."""


NodeEvent = (
    AgentJoined
    | AgentDisconnected
    | NodeExited
    | HeartbeatSeen
    | NodeReady
    | NodeAcked
    | NodeFinished
    | PeerLost
    | ProcessExited
    | NodeSucceeded
    | NodeLeft
    | StepGained
    | ResizeTold
    | DataAsked
)

Event = NodeEvent | NodesAnnounced | ScaleAsked | SpecChanged | StopAsked | Ticked


# What can be done ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartNode:
    incarnation: int
    sdk: bool
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KillProcesses:
    incarnation: int
    local_ranks: tuple[int, ...]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DumpStacks:
    incarnation: int
    local_ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveNode:
    reason: str
    grace: timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class StopNode:
    reason: str
    grace: timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class DataAnswered:
    answer: RoundAnswer


@dataclass(frozen=True, slots=True, kw_only=True)
class DataWoken:
    """Processes of this node that waited for data can go on."""

    wakes: tuple[Wake, ...]


Command = Notice | RestartNode | KillProcesses | DumpStacks | LeaveNode | StopNode | DataAnswered | DataWoken


@dataclass(frozen=True, slots=True, kw_only=True)
class Tell:
    """Send the same command to these nodes. One that is not connected hears it when it comes back."""

    to: tuple[NodeId, ...]
    what: Command


@dataclass(frozen=True, slots=True, kw_only=True)
class Fence:
    """Close the node's connection and let it in no more."""

    node: NodeId
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    plan: ScalePlan


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """The job is over: whatever still runs may be killed."""


Effect = Tell | Fence | Scale | End
