"""The messages between an agent and its master: one closed union for each direction.

Every message from an agent after `Hello` carries the incarnation it speaks for; the master refuses what an
earlier one says. `Prepare`, `Commit`, `StorePush`, `Pause`, `Interrupt` and `Release` are passed on to the
training processes as they are (see `local`).
"""

from typing import Annotated

import msgspec

from shoal.core.ledger import MAX_TERM, Wake
from shoal.core.nodes import NodeSeen, ProcessSeen
from shoal.core.ps.words import FromNode, ToNode
from shoal.core.rounds import Round, RoundAnswer
from shoal.core.saving import CheckpointSpec
from shoal.core.world import World

PROTOCOL = 3
"""Grows when a message changes in a way that an older peer would misread, or not read at all: it takes no field that it
does not know."""

PLAIN_STORE = "plain/store"
"""The key in a generation's bootstrap store under which plain scripts find their TCPStore: `host:port`."""

MAX_MESSAGE = 4 * 1024 * 1024
"""Bytes that are read of one message from an agent or a training process."""

MAX_COMMAND = 128 * 1024 * 1024
"""Bytes that are read of one message from the master. A commit carries every member's addresses, and gloo's are about
150 + 8 n bytes each in a world of n: 8 MB for 1,000 processes."""


Term = Annotated[int, msgspec.Meta(ge=0, lt=MAX_TERM)]
"""A master's term, as a peer has heard of it. A master takes one above it, so not any number is believed."""


Count = Annotated[int, msgspec.Meta(ge=0, lt=2**53)]
"""A generation or an incarnation that a peer was told of. A master counts on from it, so not any number is believed."""


class Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag=True):
    """The base of all messages. The class name is the tag."""


# From the agent ------------------------------------------------------------------------------------------


class Hello(Message, frozen=True, kw_only=True, omit_defaults=True):
    """The first message of a connection. `node` None: a node that joins by itself and wants a name."""

    protocol: int
    job: str
    node: str | None
    incarnation: Count
    """Higher than the master knows, if the one before could not write down that it restarted the processes."""
    host: str
    address: str
    """Where peers can reach this node's training processes."""
    slots: int
    pid: int
    generation: Count = 0
    """The committed world it is in; 0: none. Not 0 when it reconnects."""
    prepared: Count = 0
    """The newest generation it was ever told of: it takes no part in one that is not newer."""
    sdk: bool = False
    term: Term = 0
    """The highest term of a master it has spoken to; a master with a lower one has been superseded."""
    role: str = ""
    """Of one that wants a name: `ps`; empty: it is a worker."""


class GpuSeen(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU of a node at one moment, as the driver sees it."""

    gpu: str
    """As in `CUDA_VISIBLE_DEVICES`."""
    busy: float
    """Part of the last sample's time in which something ran on it, 0..1."""
    memory_bytes: int
    memory_total: int


class Heartbeat(Message, frozen=True, kw_only=True):
    incarnation: int
    processes: tuple[ProcessSeen, ...]
    gpus: tuple[GpuSeen, ...] = ()
    """Those of the node; none without NVML."""
    node: NodeSeen = NodeSeen()


class Ready(Message, frozen=True, kw_only=True):
    """All training processes of the node wait for a world (SDK), or the node is free to start them (plain)."""

    incarnation: int
    steps: tuple[int | None, ...]
    """The committed step of each process; None: no state yet."""
    sdk: bool


class Ack(Message, frozen=True, kw_only=True):
    """The generation is prepared on this node. `store`: its part of the bootstrap store."""

    incarnation: int
    generation: int
    store: dict[str, bytes]


class StoreSet(Message, frozen=True, kw_only=True):
    """A key for the bootstrap store of a committed generation (NCCL exchanges its id after the commit)."""

    incarnation: int
    generation: int
    key: str
    value: bytes


class Finished(Message, frozen=True, kw_only=True):
    """The training functions of all processes of the node are through."""

    incarnation: int
    generation: int


class PeerClosed(Message, frozen=True, kw_only=True):
    """A training process saw the connection to some peer of its world end."""

    incarnation: int
    generation: int
    detail: str


class Progress(Message, frozen=True, kw_only=True):
    """Rank 0's word on how training goes; at most a few a second."""

    incarnation: int
    generation: int
    step: int
    samples: int | None
    metrics: dict[str, float]


class Resized(Message, frozen=True, kw_only=True):
    """One process is training again after a change of world, and what it cost it, in seconds."""

    incarnation: int
    generation: int
    rank: int
    drain: float
    """From the notice to standing still."""
    rendezvous: float
    """From standing still to the new group."""
    restore: float
    """Taking over the source's state."""
    first_step: float
    """The first step in the new world."""
    lost_steps: int
    """Steps begun and given up: 0 or 1."""


class Exited(Message, frozen=True, kw_only=True):
    """A training process ended."""

    incarnation: int
    local_rank: int
    pid: int
    code: int
    """As the shell counts: 128 + n for signal n."""
    oom: bool
    error: str | None
    uptime_seconds: float


class Succeeded(Message, frozen=True, kw_only=True):
    """All training processes of the node ended with exit code 0; the agent ends too."""

    incarnation: int


class Left(Message, frozen=True, kw_only=True):
    """The node did what `Leave` asked for and ends."""

    incarnation: int


class Going(Message, frozen=True, kw_only=True):
    """A parameter server that joined by itself was told to end, and stays until it is told to leave."""

    incarnation: int


class DataRound(Message, frozen=True, kw_only=True):
    """All that the node's processes have to say about their data; answered by `DataAnswers`."""

    round: Round


class PSSaid(Message, frozen=True, kw_only=True):
    """A process of this node says something about parameter servers."""

    incarnation: int
    word: FromNode


FromAgent = (
    Hello
    | Heartbeat
    | Ready
    | Ack
    | StoreSet
    | Finished
    | PeerClosed
    | Progress
    | Resized
    | Exited
    | Succeeded
    | Left
    | Going
    | DataRound
    | PSSaid
)


# From the master -----------------------------------------------------------------------------------------


class Welcome(Message, frozen=True, kw_only=True):
    protocol: int
    job: str
    node: str
    incarnation: int
    sdk: bool
    """The job's processes are known to use the SDK: start them at once, they wait for a world by themselves."""
    max_workers: int
    """How many micro-batches a step has where the script does not say: the most training processes the job can have,
    unless its owner asks for another number."""
    heartbeat_seconds: float
    max_restarts: int
    command: tuple[str, ...] = ()
    """What the job runs; for a node that joined without a command of its own."""
    term: int = 0
    """The master's. An agent that has spoken to one with a higher term does not listen to this one."""
    checkpoint: CheckpointSpec = CheckpointSpec()
    """What becomes of saved states; an agent that was told another directory at its start uses that one."""
    resumed: bool = False
    """The job goes on from an earlier life: what it trained with then must not change."""


class Refuse(Message, frozen=True, kw_only=True):
    """The master does not want this agent. It must stop its processes and end; trying again cannot help."""

    reason: str


class Prepare(Message, frozen=True, kw_only=True):
    world: World


class Commit(Message, frozen=True, kw_only=True):
    generation: int
    store: dict[str, bytes]


class StorePush(Message, frozen=True, kw_only=True):
    generation: int
    store: dict[str, bytes]


class Pause(Message, frozen=True, kw_only=True):
    """Come out of the world at the next step boundary that all members share."""

    generation: int
    reason: str


class Interrupt(Message, frozen=True, kw_only=True):
    """Come out of the world now: a member is gone, the collective under way will not end."""

    generation: int
    reason: str


class Release(Message, frozen=True, kw_only=True):
    """All members have finished: training functions return."""

    generation: int


class Restart(Message, frozen=True, kw_only=True):
    """Start the node's dead processes again, as this incarnation. Live ones stay (SDK) or are replaced (plain)."""

    incarnation: int
    sdk: bool = False
    """The job is known to use the SDK: start the processes at once, do not wait for a world."""
    reason: str


class Kill(Message, frozen=True, kw_only=True):
    """Kill these training processes (they hang); their exits are then reported as usual."""

    incarnation: int
    local_ranks: tuple[int, ...]
    dump_first: bool
    """Ask them for their stacks on stderr first."""
    reason: str


class DumpStacks(Message, frozen=True, kw_only=True):
    """Ask these training processes for their stacks on stderr; all of the node if none is named."""

    incarnation: int
    local_ranks: tuple[int, ...]


class Leave(Message, frozen=True, kw_only=True):
    """Drained: stop the processes within the grace period, say `Left`, end."""

    reason: str
    grace_seconds: float


class Stop(Message, frozen=True, kw_only=True, omit_defaults=True):
    """The job is over: stop the processes within the grace period and end."""

    reason: str
    grace_seconds: float
    has_failed: bool = False
    """The job has: whoever started a node that joined by itself learns it from how that ends."""


class DataAnswers(Message, frozen=True, kw_only=True):
    answer: RoundAnswer
    is_kept: bool = True
    """What the round said is written down; otherwise `DataKept` says so later, and until then another master may have
    to be told again."""


class DataKept(Message, frozen=True, kw_only=True):
    """What the agent has said in its rounds up to this one is written down."""

    number: int
    is_written: bool = True
    """False: it is not, and has not been for so long that nobody who is about to end need wait for it any more. It is
    said again to another master, as long as there is somebody to say it."""


class DataWakes(Message, frozen=True, kw_only=True):
    """These waited for data and can go on: ask again for them."""

    wakes: tuple[Wake, ...]


class PSTold(Message, frozen=True, kw_only=True):
    """To the processes of this node that have spoken about parameter servers."""

    word: ToNode


FromMaster = (
    Welcome
    | Refuse
    | Prepare
    | Commit
    | StorePush
    | Pause
    | Interrupt
    | Release
    | Restart
    | Kill
    | DumpStacks
    | Leave
    | Stop
    | DataAnswers
    | DataKept
    | DataWakes
    | PSTold
)
