"""One torchrun node as a member of the job: what it has been told, and what it says. Pure.

    OUT ──next_rendezvous──▶ WAITING ──prepare, ack, commit──▶ TRAINING ──next_rendezvous──▶ WAITING …

While it trains, `change` says why the world must be left; torchrun's agent then stops its processes and asks for the
next rendezvous. `over` is final. Every function takes the member and returns the next one and the messages to send.
"""

from dataclasses import dataclass, replace
from enum import StrEnum

from shoal.core.exits import EXIT_DO_NOT_RESTART
from shoal.core.nodes import NodeId
from shoal.core.world import World
from shoal.wire.messages import (
    PLAIN_STORE,
    Ack,
    Commit,
    Exited,
    FromAgent,
    FromMaster,
    Interrupt,
    Leave,
    Left,
    Pause,
    PeerClosed,
    Prepare,
    Ready,
    Refuse,
    Restart,
    Stop,
    Succeeded,
    Welcome,
)

PEERS = "torchrun/peers"
"""The key under which it says where the other torchruns reach it (`rendezvous_peers`)."""
_ERROR_LIMIT = 8000


class Stage(StrEnum):
    OUT = "out"
    """In no world, and has asked for none."""
    WAITING = "waiting"
    """Has said that it is ready."""
    TRAINING = "training"
    """In the committed world."""


class Ending(StrEnum):
    CLOSED = "closed"
    """The job is over, or does not want this node."""
    DRAINED = "drained"
    """The job was scaled down and this node has to go; nothing is wrong."""
    UNREACHABLE = "unreachable"
    """There has been no master for too long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Over:
    how: Ending
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Formed:
    """A committed world, and where its store is."""

    world: World
    rank: int
    """Of this node among the nodes."""
    store: str
    peers: str | None = None
    """None: group rank 0 is not a torchrun."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    slots: int
    node: NodeId | None = None
    """None: the master has not given it a name yet."""
    incarnation: int = 1
    stage: Stage = Stage.OUT
    pending: World | None = None
    formed: Formed | None = None
    """The last world it was in."""
    change: str | None = None
    """Why the world in which it trains must be left."""
    over: Over | None = None

    @property
    def generation(self) -> int:
        """Of the world in which it trains; 0: none."""
        return self.formed.world.generation if self.formed is not None and self.stage is Stage.TRAINING else 0


Step = tuple[Member, tuple[FromAgent, ...]]


def asked(m: Member) -> Step:
    """torchrun's agent has stopped its processes and wants a world."""
    told: tuple[FromAgent, ...] = ()
    if m.stage is Stage.TRAINING and m.change is None:
        # Nobody asked for it: processes of this node failed. As a rule because a peer did, and then the master
        # need not wait until it can tell a lost node from a slow one.
        detail = "a training process ended"
        told = (PeerClosed(incarnation=m.incarnation, generation=m.generation, detail=detail),)
    m = replace(m, stage=Stage.WAITING, pending=None, change=None)
    return m, (*told, _ready(m))


def welcomed(m: Member, welcome: Welcome) -> Step:
    """A handshake succeeded, the first one or one after a lost connection. What was said before may be lost."""
    if welcome.sdk:
        return _with_sdk(m), ()
    m = replace(m, node=NodeId(welcome.node), incarnation=welcome.incarnation)
    return m, (_ready(m),) if m.stage is Stage.WAITING else ()


def told(m: Member, message: FromMaster) -> Step:
    match message:
        case Prepare(world=world) if m.stage is Stage.WAITING:
            m = replace(m, pending=world)
            return m, () if is_host(m) else (_ack(m, world, {}),)
        case Commit() if m.pending is not None and m.pending.generation == message.generation:
            return _committed(m, m.pending, message), ()
        case Pause() | Interrupt() if message.generation == m.generation:
            return replace(m, change=m.change or message.reason), ()
        case Restart(sdk=True):
            return _with_sdk(m), ()
        case Restart():
            return replace(m, incarnation=message.incarnation, change=message.reason), ()
        case Leave():
            return ended(m, Ending.DRAINED, message.reason), ()
        case Stop() | Refuse():
            return ended(m, Ending.CLOSED, message.reason), ()
        case _:
            return m, ()  # of an earlier generation, or for processes that use the SDK


def is_host(m: Member) -> bool:
    """It has group rank 0 in the world being prepared, so it hosts the store and acknowledges with its address."""
    return m.pending is not None and m.pending.members[0].node == m.node


def opened(m: Member, generation: int, *, store: str, peers: str) -> Step:
    """What group rank 0 hosts for the generation is there."""
    if m.pending is None or m.pending.generation != generation:
        return m, ()
    return m, (_ack(m, m.pending, {PLAIN_STORE: store.encode(), PEERS: peers.encode()}),)


def peer_lost(m: Member, generation: int) -> Step:
    """A connection to another torchrun of the world ended without a word."""
    if m.generation != generation:
        return m, ()
    detail = "another node's connection closed"
    return m, (PeerClosed(incarnation=m.incarnation, generation=generation, detail=detail),)


def ended(m: Member, how: Ending, reason: str) -> Member:
    """The first ending counts."""
    return m if m.over is not None else replace(m, over=Over(how=how, reason=reason))


def last_words(m: Member, error: str | None, *, pid: int, uptime_seconds: float) -> tuple[FromAgent, ...]:
    """What a node says when torchrun ends, all its processes being gone. `error` None: they have succeeded.

    A node that fails has used all of torchrun's restarts; as with torchrun's own backends that fails the job.
    """
    if m.node is None:
        return ()
    if m.over is not None or m.stage is not Stage.TRAINING:
        return (Left(incarnation=m.incarnation),)
    if error is None:
        return (Succeeded(incarnation=m.incarnation),)
    return (
        Exited(
            incarnation=m.incarnation,
            local_rank=0,
            pid=pid,
            code=EXIT_DO_NOT_RESTART,
            oom=False,
            error=error[-_ERROR_LIMIT:],
            uptime_seconds=uptime_seconds,
        ),
    )


def _committed(m: Member, world: World, commit: Commit) -> Member:
    rank = next(i for i, member in enumerate(world.members) if member.node == m.node)
    store = commit.store.get(PLAIN_STORE)
    if store is None:
        return ended(m, Ending.CLOSED, f"{world.members[0].node} did not say where the world's store is")
    peers = commit.store.get(PEERS)
    formed = Formed(world=world, rank=rank, store=store.decode(), peers=None if peers is None else peers.decode())
    return replace(m, stage=Stage.TRAINING, pending=None, formed=formed, change=None)


def _with_sdk(m: Member) -> Member:
    reason = "this job's processes use the SDK, which torchrun cannot serve: join it with `shoal run --join`"
    return ended(m, Ending.CLOSED, reason)


def _ready(m: Member) -> Ready:
    return Ready(incarnation=m.incarnation, steps=(None,) * m.slots, sdk=False)


def _ack(m: Member, world: World, store: dict[str, bytes]) -> Ack:
    return Ack(incarnation=m.incarnation, generation=world.generation, store=store)
