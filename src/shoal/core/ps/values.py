"""The values of the PS manager: what was asked, who is there, what is changing, what can be done about it.

A *change* brings the job from one version of its PS cluster to the next (or saves the model, which needs the same
pause). Its phases, who moves it on, and what it becomes when that takes too long:

| phase     | waits for                                          | too long: resize, save | start, roll-back     |
| --------- | -------------------------------------------------- | ---------------------- | -------------------- |
| LAUNCHING | the servers of the next version                    | abandoned              | the job fails        |
| PREPARING | every trainer's `PreparedPS`, while it trains on   | abandoned              | restart the silent   |
| DRAINING  | every `Drained` of those who train                 | abandoned              | restart the silent   |
| MOVING    | the chief's `Moved`; then the version is committed | abandoned              | restart the chief    |
| SAVING    | the chief's `SavedPS`                              | abandoned              | (none)               |
| RESUMING  | every `Resumed`; then old servers are removed      | restart the silent     | restart the silent   |

A chief that cannot restore or initialise may have met a server that is gone, which nobody knows yet: it tries again for
as long as it takes to find that out.

What never happens: a step between drain and transfer, a version with a server that is not there or lacks its state, the
end of a server that a trainer may still use, two changes at once.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum

from shoal.core.ledger import Checkpoint
from shoal.core.nodes import Node, NodeId, Role
from shoal.core.plans import NodeResource, ScalePlan
from shoal.core.ps.cluster import Partition, PSCheckpoint, PSCluster
from shoal.core.ps.words import ToTrainer

KEPT_CHECKPOINTS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class PSSettings:
    """How many servers there may be, and how patient the manager is."""

    min_servers: int = 1
    max_servers: int
    checkpoint_dir: str | None = None
    """A path that outlives every node; None: nothing is saved, and a job that loses a server is over."""
    fleeting: str = ""
    """Why what is saved there is gone with a node, if it is: nobody goes back to that."""
    launch_timeout: timedelta = timedelta(minutes=15)
    """As long as a job waits for nodes that it needs: a cluster may have to make room first."""
    prepare_timeout: timedelta = timedelta(seconds=120)
    """A graph is built in seconds; a large one on a busy machine in a minute. Nobody stands still meanwhile."""
    drain_timeout: timedelta = timedelta(seconds=60)
    """The longest step that is waited for. The others stand still meanwhile."""
    move_timeout: timedelta = timedelta(minutes=5)
    """About 100 GB at what one network connection carries."""
    save_timeout: timedelta = timedelta(minutes=5)
    resume_timeout: timedelta = timedelta(seconds=60)
    unreachable_after: timedelta = timedelta(seconds=10)
    """How long a server may be out of some trainer's reach while nobody knows that it is gone. As long as a silent
    node is waited for. Then it is ended, if all or most say so; if others make steps, it is the trainer that is."""
    doubt_timeout: timedelta = timedelta(seconds=60)
    """How long it may be while the others neither say so nor make steps: theirs may be long, or they may wait for the
    same server and get no error."""
    restore_patience: timedelta = timedelta(seconds=62)
    """How long a chief that cannot restore or initialise tries again: a server may be gone that nobody misses yet, and
    after a change of masters that takes longest to find out."""
    max_missed: int = 3
    """A trainer that did not stand still so often in a row is started again: nothing can be saved with it there."""
    max_attempts: int = 3
    """How often a resize is tried when somebody whom it needs dies in the middle."""
    platform_launches: bool = False
    """The platform launches servers by itself and announces them; see `platform`."""
    servers_join: bool = False
    """And it does not say which, nor in whose place: they join one by one, and tell when they have to go."""
    come_timeout: timedelta = timedelta(minutes=2)
    """How long all stand still for one that should join in the place of a lost server, before those that are there go
    on without it: there may be fewer from now on, and who joins later is used then."""
    retry_after: timedelta = timedelta(minutes=5)
    """How long after a change was given up the same is tried again, where the platform wants it: it does not ask
    twice. A worker that does not answer is replaced by then."""

    def __post_init__(self) -> None:
        if not 1 <= self.min_servers <= self.max_servers:
            raise ValueError(
                f"parameter servers must satisfy 1 <= min <= max, got {self.min_servers}:{self.max_servers}"
            )
        if self.max_attempts < 1:
            raise ValueError(f"a change must be tried at least once, got {self.max_attempts} attempts")


# What is known ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """What the last plan asked for, or what is, when that could not be had."""

    count: int
    resource: NodeResource = field(default_factory=NodeResource)
    """Of servers that are launched from now on."""
    resources: Mapping[NodeId, NodeResource] = field(default_factory=dict)
    """Of servers that should have something else than they have."""
    victims: frozenset[NodeId] = frozenset()
    """Who should go first, should anybody have to."""
    moves: frozenset[NodeId] = frozenset()
    """Servers that should have what they have, on another host."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Granted:
    """Which servers a platform wants there that launches them by itself."""

    most: int | None = None
    """There are more, and the others have to go; None: all may stay. 0: the job rests."""
    victims: frozenset[NodeId] = frozenset()
    """Who should go first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A server process that can be reached."""

    address: str
    incarnation: int
    """A process that was started again has lost what it held."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trainer:
    node: NodeId
    incarnation: int
    role: Role
    seniority: int
    told: int | None = None
    """The version it was last told to prepare."""
    prepared: int | None = None
    """The newest version for which it has said that it is prepared."""
    active: int | None = None
    """The version on which it may be training; None: it has not been told to begin."""
    resumed: bool = False
    """It has said that it uses no other version than the active one."""
    halted: int | None = None
    """The barrier at which it was told to stand still; None: it may train."""
    drained: bool = False
    """It has said that it stands still at that barrier."""
    missed: int = 0
    """How many pauses in a row were given up because it did not stand still."""
    unreachable: tuple[int, datetime] | None = None
    """The rank of a server that it cannot reach, and since when."""
    doubted: datetime | None = None
    """When it was last asked what others say of that server, and they said nothing."""


class Kind(StrEnum):
    START = "start"
    """The first version."""
    RESIZE = "resize"
    """More servers, fewer, or others."""
    ROLLBACK = "rollback"
    """A server was lost with what it held: the last checkpoint is restored."""
    SAVE = "save"
    """A pause for a checkpoint; the version stays."""


class Phase(StrEnum):
    LAUNCHING = "launching"
    PREPARING = "preparing"
    DRAINING = "draining"
    MOVING = "moving"
    SAVING = "saving"
    RESUMING = "resuming"


MOVES: Mapping[Phase, frozenset[Phase]] = {
    Phase.LAUNCHING: frozenset({Phase.PREPARING}),
    Phase.PREPARING: frozenset({Phase.DRAINING, Phase.LAUNCHING}),
    Phase.DRAINING: frozenset({Phase.MOVING, Phase.SAVING, Phase.LAUNCHING}),
    Phase.MOVING: frozenset({Phase.RESUMING, Phase.LAUNCHING}),
    Phase.SAVING: frozenset({Phase.RESUMING}),
    Phase.RESUMING: frozenset(),
}
"""Back to LAUNCHING: somebody whom the version needed is gone, and the next try has another number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    kind: Kind
    phase: Phase
    since: datetime
    """When the phase began."""
    reason: str
    goal: Goal
    """As it was when the change began: a later one waits for its end."""
    seats: Mapping[int, NodeId] = field(default_factory=dict)
    """The servers of the next version, by rank."""
    cluster: PSCluster | None = None
    """The next version, once its servers are there."""
    attempt: int = 1
    move: int = 0
    """How often the state of this version was asked to be moved."""
    barrier: int | None = None
    fuzzy: bool = False
    """A save for which nobody stands still."""
    old: frozenset[NodeId] = frozenset()
    """Servers of the version before, which somebody may still use."""
    awaiting: frozenset[NodeId] = frozenset()
    """Trainers that have to say `Resumed`."""
    failing: tuple[datetime, datetime | None] | None = None
    """Since when the chief could not bring this version's state to its servers, and when it is told to try again; None:
    it was."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PSManager:
    """All that is known about a job's parameter servers. Made by `new_manager`, changed only by the functions of
    `shoal.core.ps.manager`. A plain value: the journal keeps it as it is."""

    settings: PSSettings
    goal: Goal
    nodes: Mapping[NodeId, Node] = field(default_factory=dict)
    """The servers' nodes that are launched, live, or being removed."""
    removing: frozenset[NodeId] = frozenset()
    """Those of them whose end the platform was asked for and has not confirmed."""
    servers: Mapping[NodeId, Server] = field(default_factory=dict)
    trainers: Mapping[NodeId, Trainer] = field(default_factory=dict)
    chief: NodeId | None = None
    partitions: tuple[Partition, ...] = ()
    """The model, as the first trainer has named it."""
    current: PSCluster | None = None
    """The committed version: the only one on which anybody trains."""
    change: Change | None = None
    checkpoints: tuple[PSCheckpoint, ...] = ()
    """The newest last."""
    save_wanted: str | None = None
    fuzzy_wanted: bool = False
    """Nobody need stand still for it."""
    unsaved: str | None = None
    """Why the checkpoint that the chief wanted last is not there; None: it is, or none was wanted."""
    failed: str | None = None
    """Why the job cannot go on."""
    version: int = 0
    """The highest ever used."""
    barrier: int = 0
    """The highest ever used."""
    next_number: int = 0
    next_seniority: int = 0
    granted: Granted | None = None
    """What the platform said last, if it launches servers; None: nothing yet."""
    successors: Mapping[NodeId, NodeId] = field(default_factory=dict)
    """Of servers in whose place the platform has launched another: which."""
    retry_at: datetime | None = None
    """When what the platform wants is tried again; None: nothing was given up."""
    unsure: frozenset[NodeId] = frozenset()
    """Where servers join by themselves: those that are out of touch. Whether they are there is known soon, and until
    then nobody is told of another version: who has just joined may have come in the place of one that is gone."""

    @property
    def rests(self) -> bool:
        """The platform ends all servers, and nobody trains: nothing follows from their end."""
        return self.granted is not None and self.granted.most == 0

    @property
    def is_unsure(self) -> bool:
        """Whether a server of the current version may be gone."""
        return self.current is not None and not self.unsure.isdisjoint(self.current.nodes)

    @property
    def next_training_ps_cluster(self) -> PSCluster | None:
        """The version that workers are to be on next: the one being changed to, or the current one."""
        if self.change is not None and self.change.cluster is not None:
            return self.change.cluster
        return self.current

    @property
    def pre_dropped(self) -> frozenset[NodeId]:
        """Servers that are to go, and stay until everybody has acknowledged a version without them."""
        if self.change is None or self.change.kind is Kind.SAVE:
            return frozenset()
        held = self.change.old | (self.current.nodes if self.current is not None else frozenset())
        return frozenset(held & self.nodes.keys()) - frozenset(self.change.seats.values()) - self.removing


# What can be done ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Tell:
    """Say this to these trainers. One that is not connected hears it when it comes back."""

    to: tuple[NodeId, ...]
    word: ToTrainer


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    plan: ScalePlan


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartTrainer:
    """It does not answer, and the others wait: start its processes again. What it says until then counts no more."""

    node: NodeId
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RefuseTrainer:
    """It cannot be in this job, and starting it again would not help."""

    node: NodeId
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RollBackLedger:
    """The model stands where this mark was made: so must the ledger. In the same record as the version."""

    mark: Checkpoint
    """What is not in it stands at its beginning."""
    step: int = 0
    """Of the model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointKept:
    """There is a new checkpoint: evaluators may score it."""

    checkpoint: PSCheckpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class Say:
    """A decision, for people."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FailJob:
    reason: str


Effect = Tell | Scale | RestartTrainer | RefuseTrainer | RollBackLedger | CheckpointKept | Say | FailJob
