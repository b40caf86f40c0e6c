"""The values of one job: what was asked, what is known, what can happen, what can be done about it."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum

from shoal.core.exits import ProcessExit
from shoal.core.facts import Limits, OptimizerSettings
from shoal.core.hang import HangSettings
from shoal.core.ledger import Ledger, Owner, Wake
from shoal.core.ledger.intervals import Ranges
from shoal.core.nodes import Node, NodeId, ProcessSeen, Role
from shoal.core.plans import NodeGroupResource, NodeResource, ResourcePlan, ScalePlan
from shoal.core.ps.evaluation import Evaluation
from shoal.core.ps.values import PSManager
from shoal.core.ps.words import FromNode, ToNode
from shoal.core.recovery import Budget, RecoverySettings
from shoal.core.rounds import Round, RoundAnswer
from shoal.core.saving import CheckpointSpec
from shoal.core.stages import OptimizerState
from shoal.core.view import DecisionView, JobPhase, PSChangeView, ResizeView
from shoal.core.world import Notice, Rendezvous

KEPT_DECISIONS = 200
KEPT_RESIZES = 200
KEPT_SPEED = 64
KEPT_CHANGES = 200


# What was asked ------------------------------------------------------------------------------------------


class Strategy(StrEnum):
    ALLREDUCE = "allreduce"
    """Workers form worlds and train in step."""
    PS = "ps"
    """Workers train by themselves on a model that parameter servers hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PSSpec:
    """What a job has that trains with parameter servers, besides its workers."""

    min_servers: int = 1
    max_servers: int
    servers: int | None = None
    """How many it begins with; None: the minimum."""
    chief: bool = False
    """One node is launched to be the chief; else the senior worker is."""
    evaluator: bool = False
    """One node scores every checkpoint."""
    checkpoint_dir: str | None = None
    """A path that all nodes see and that outlives them; None: a server that is lost ends the job."""
    fleeting: str = ""
    """Why that path does not outlive its nodes, if it does not: a server that is lost ends the job then too."""
    joins: bool = False
    """Servers join by themselves, as many as somebody else starts, and tell when they have to go."""

    def __post_init__(self) -> None:
        if not 1 <= self.min_servers <= self.first <= self.max_servers:
            raise ValueError(
                "parameter servers must satisfy 1 <= min <= first <= max, "
                f"got {self.min_servers}:{self.max_servers}, {self.first} at first"
            )

    @property
    def first(self) -> int:
        return self.min_servers if self.servers is None else self.servers


@dataclass(frozen=True, slots=True, kw_only=True)
class SelfSizing:
    """The job sizes itself: within its `min_nodes` and `max_nodes`, and within these."""

    limits: Limits = field(default_factory=Limits)
    resource: NodeResource = field(default_factory=NodeResource)
    """What the user gives each worker, and nobody else changes: but for memory, after a worker ran out of it. What is
    not said is the optimizer's to choose."""
    ps_resource: NodeResource = field(default_factory=NodeResource)
    """The same of each parameter server."""

    def given(self, role: str) -> NodeResource:
        """What the user gives each node of a role that is sized."""
        return self.ps_resource if role == Role.PS else self.resource


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
    called: str = "ej"
    """On such a platform: the short name of its kind, as `kubectl` knows it."""
    fills_grant: bool = False
    """On such a platform: it says only how many, and the job launches them. So it is where masters make the Pods."""
    memory_limit: int | None = None
    """MiB all nodes may have together at most; None: not limited."""
    global_batch: int | None = None
    """Micro-batches in a step where the script does not say; None: as many as there can be training processes."""
    checkpoint: CheckpointSpec = field(default_factory=CheckpointSpec)
    sizing: SelfSizing | None = None
    """None: it has the size that somebody asks for."""
    ps: PSSpec | None = None
    """None: the job has no parameter servers."""

    def __post_init__(self) -> None:
        if self.ps is not None and self.nproc != 1:
            raise ValueError(f"nodes of a job with parameter servers have one process each, got {self.nproc}")

    @property
    def strategy(self) -> Strategy:
        return Strategy.ALLREDUCE if self.ps is None else Strategy.PS

    def memory_limit_of(self, role: Role) -> int | None:
        """MiB one node of a role may have at most: what all may have together, shared by the fewest of its role that
        can train. More than that no node can ever get. None: not limited."""
        if self.memory_limit is None:
            return None
        servers = 1 if self.ps is None else self.ps.min_servers
        fewest = {Role.WORKER: self.min_nodes, Role.PS: servers}.get(role, 1)
        return max(1, self.memory_limit // max(1, fewest))

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
    stopped_after: timedelta = timedelta(seconds=3)
    """How long a parameter server may be stopped (SIGSTOP) before it is killed. As long as its agent waits, which kills
    it first unless it is stopped itself."""
    sizing_interval: timedelta = timedelta(seconds=30)
    """How often a job that sizes itself is looked at. As long as one sample of its speed takes: looking more often
    would show nothing new."""
    optimizer: OptimizerSettings = field(default_factory=OptimizerSettings)

    def sized_every(self, seconds: int) -> "JobSettings":
        """The same, of a job that is looked at so often, with samples that take as long."""
        return replace(self, sizing_interval=timedelta(seconds=seconds), optimizer=self.optimizer.paced(seconds))

    def __post_init__(self) -> None:
        if self.sizing_interval <= timedelta(0):
            raise ValueError(f"sizing_interval must be above 0, got {self.sizing_interval}")
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
    still_since: datetime | None = None
    """Of one that trains with parameter servers: since when it has data, may train, and has made no step; None: it is
    not so, or it has just made one. A new master begins to count anew."""


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


@dataclass(frozen=True, slots=True)
class Given:
    """What somebody gives each node of a role. The optimizer plans what is not said, and nothing else of it."""

    by: str
    resource: NodeResource

    @property
    def is_planned(self) -> bool:
        """Whether there is something in it that the optimizer would plan."""
        return self.resource.cpu is not None or self.resource.memory is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizing:
    """What a job remembers of its own sizing; nothing happens to it in a job that does not size itself."""

    optimizer: OptimizerState = field(default_factory=OptimizerState)
    asked: Mapping[str, NodeGroupResource] = field(default_factory=dict)
    """By role, what the optimizer last asked of a platform that says itself what the job has."""
    moves: Mapping[str, NodeResource] = field(default_factory=dict)
    """By node, what it is to have as a plan says that is not judged yet: the platform is asked to replace it."""
    singled: frozenset[tuple[str, int]] = frozenset()
    """The seats, (role, seat), to which a plan once gave something else than to the others of their role."""
    pins: Mapping[str, str] = field(default_factory=dict)
    """By role, who said how many nodes there are to be, and so took that from the optimizer."""
    given: Mapping[str, Given] = field(default_factory=dict)
    """By role, who said what each node is to have, where somebody besides the job's spec does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Everything the master knows about its job. Changed only by `handle`."""

    spec: JobSpec
    settings: JobSettings
    target: int
    """How many nodes are asked for."""
    target_since: datetime | None = None
    """When that was last changed; None: when it began."""
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
    sizing: Sizing = field(default_factory=Sizing)
    servers: PSManager | None = None
    """The job's parameter servers; None: it has none, and trains in worlds."""
    evaluation: Evaluation = field(default_factory=Evaluation)
    scores_awaited: datetime | None = None
    """Training is over, and since then nothing was scored; None: it is not."""
    changes: tuple[PSChangeView, ...] = ()
    """Of the parameter servers: what they were, and how long each phase took. The newest last."""
    wanted: Mapping[Role, NodeResource] = field(default_factory=dict)
    """What nodes have that are launched from now on, by role; parameter servers know it themselves."""
    successors: Mapping[NodeId, NodeId] = field(default_factory=dict)
    """Of each node that is to have something else, who takes its seat."""
    stopped: Mapping[NodeId, datetime] = field(default_factory=dict)
    """Of a job with parameter servers: whose process does not run, by the kernel's word, and since when."""
    held: tuple[Wake, ...] = ()
    """Who asked for data while it had to stand still."""
    purses: Mapping[str, Budget] = field(default_factory=dict)
    """Like `budgets`, of the roles that are not workers: by role and seat, `ps-0`."""

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
class NodeGoing:
    """It was told to end, and waits to be let go. Said again, it changes nothing."""

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
class WordSaid:
    """A process of a job with parameter servers says something about them."""

    node: NodeId
    incarnation: int
    word: FromNode


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleAsked:
    """Checked by `refusal` before. A count of 0 suspends the job."""

    count: int
    who: str
    victims: frozenset[NodeId] = frozenset()
    """Who should go first, should anybody have to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanAsked:
    """An optimizer or a user wants other nodes. Checked by `plan_refusal` before."""

    plan: ResourcePlan
    who: str
    victims: frozenset[NodeId] = frozenset()
    """Who should go first, should anybody have to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Announced:
    """A node that the platform says exists, or will in a moment."""

    node: NodeId
    seat: int
    resource: NodeResource = field(default_factory=NodeResource)
    replaces: NodeId | None = None
    """In whose place it was added."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServersGranted:
    """A platform that adds nodes by itself says how many parameter servers it wants there."""

    count: int
    are_too_many: bool
    """There are more than that, and the others have to go."""
    victims: frozenset[NodeId] = frozenset()
    """Who should go first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodesAnnounced:
    """What exists on a platform that adds nodes by itself. Said again, it changes nothing."""

    nodes: tuple[Announced, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecChanged:
    """The user asks for something else now; see `respecify`. Said again, it changes nothing."""

    spec: JobSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Sized:
    """The optimizer has looked at the job."""

    state: OptimizerState
    plan: ResourcePlan | None
    """None: nothing is to be changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CountPinned:
    """Somebody besides the optimizer says how many nodes of a role there are to be; None: nobody does any more. Said
    again, it changes nothing."""

    role: Role
    by: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourcePinned:
    """Somebody besides the job's spec and the optimizer says what each node of a role has; None: nobody does any more.
    Said again, it changes nothing."""

    role: Role
    given: Given | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StopAsked:
    reason: str
    grace: timedelta | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticked:
    """Time passed; see `deadline`."""

    late: timedelta = timedelta(0)
    """How much later than it was due: this process was stopped or starved, and nobody can be blamed for the silence."""
    are_words_held: bool = False
    """What was to be said about parameter servers waits for the store (`waits_for_record`): nobody is late with an
    answer."""


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
    | NodeGoing
    | StepGained
    | ResizeTold
    | DataAsked
    | WordSaid
)

Event = (
    NodeEvent
    | NodesAnnounced
    | ServersGranted
    | ScaleAsked
    | PlanAsked
    | SpecChanged
    | Sized
    | CountPinned
    | ResourcePinned
    | StopAsked
    | Ticked
)


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
    has_failed: bool = False
    """The job has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataAnswered:
    answer: RoundAnswer


@dataclass(frozen=True, slots=True, kw_only=True)
class DataWoken:
    """Processes of this node that waited for data can go on."""

    wakes: tuple[Wake, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SayWord:
    """To the node's process, as it is."""

    word: ToNode


Command = Notice | RestartNode | KillProcesses | DumpStacks | LeaveNode | StopNode | DataAnswered | DataWoken | SayWord


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
