"""One node as a value: its training processes, the world it is in, and what follows from each event. Pure.

The functions below take the node and something that happened (the master said, a process said, a process ended,
a signal came) and return the next node and what must be done. `shell` does it and chooses nothing.

A node runs in one of two ways, and every node starts as the first:

- **plain**: the processes know nothing of us. The agent itself is ready, acknowledges, and starts the processes at
  the commit; when the world ends it stops them and is ready again.
- **SDK** (`sdk`): the processes attach and speak for themselves. The agent merges what they say (the node is ready
  when all are, acknowledges when all do) and passes on what the master says. A node becomes one when all its
  processes have said that they wait for a world, or when the master says that the job's processes do.

A third kind (`on_word`) has processes that know nothing of us and are started and stopped when the agent, which speaks
for them, says so (`launched`, `halted`): no worlds, and nothing is started by itself.

What never happens: a message under an earlier incarnation; a process started beside one that still runs; two
acknowledgements of one generation; anything after the end.
"""

import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import assert_never

from shoal.core.exits import EXIT_DO_NOT_RESTART, EXIT_JOB_FAILED, EXIT_LEFT, ProcessExit, describe
from shoal.core.nodes import NodeId
from shoal.core.ps.words import Word
from shoal.core.world import Break, World
from shoal.wire.local import (
    Attach,
    CheckpointsWanted,
    DatasetNamed,
    FromAgentLocal,
    FromProcess,
    LedgerPut,
    LedgerWanted,
    LocalAck,
    LocalFinished,
    LocalPeerClosed,
    LocalReady,
    LocalResized,
    LocalStoreSet,
    Report,
    Saved,
    ShardsSaid,
    SlotsWanted,
    SlotWanted,
    StreamSaid,
    WorldStands,
)
from shoal.wire.messages import (
    PLAIN_STORE,
    Ack,
    Commit,
    DataAnswers,
    DataKept,
    DataWakes,
    DumpStacks,
    Exited,
    Finished,
    FromAgent,
    FromMaster,
    Going,
    Interrupt,
    Kill,
    Leave,
    Left,
    Pause,
    PeerClosed,
    Prepare,
    Progress,
    PSTold,
    Ready,
    Refuse,
    Release,
    Resized,
    Restart,
    Stop,
    StorePush,
    StoreSet,
    Succeeded,
    Welcome,
)

_EXIT_TERMINATED = 128 + signal.SIGTERM


class Phase(StrEnum):
    """Where one training process is."""

    IDLE = "idle"
    """Not started, or stopped by us to be started in another world."""
    RUNNING = "running"
    DONE = "done"
    """Ended with exit code 0."""
    FAILED = "failed"
    """Ended otherwise; the master was told and says what follows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """One training process, by local rank. `generation` is the committed world it is in (SDK); 0: none."""

    phase: Phase = Phase.IDLE
    pid: int | None = None
    attached: bool = False
    ready: bool = False
    step: int | None = None
    ack: Mapping[str, bytes] | None = None
    """Its part of the pending generation's store; None: not acknowledged."""
    generation: int = 0
    finished: int = 0
    """The generation in which its training function came to the end; 0: it did not."""
    report: Report | None = None
    exit: Exited | None = None
    """How it ended last, as the master was or will be told."""


class After(StrEnum):
    """Why a plain node's processes are being stopped."""

    REJOIN = "rejoin"
    """For another world: the node is ready again when they have ended."""
    RESTART = "restart"
    """One of them failed; the master says when the node may start again."""
    HALT = "halt"
    """Until they are told to start again (`on_word`)."""
    RENEW = "renew"
    """Likewise, and in another incarnation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """The node ends when its processes have: with this exit code, this line, and this last message."""

    code: int
    line: str
    goodbye: FromAgent | None = None
    tells_exits: bool = False
    """The master does not know that the node ends, so it hears of each process that does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """Made by `Node(slots=...)`, changed only by the functions below."""

    name: str
    incarnation: int = 1
    slots: tuple[Slot, ...]
    plain_grace: float
    joined: bool = False
    """It came by itself: when it is told to end, nobody starts another in its place."""
    on_word: bool = False
    serves: bool = False
    """It holds what others need: when it is told to end it asks to be let go, and stays until it is."""
    going: bool = False
    """It has asked."""
    sdk: bool = False
    welcomed: bool = False
    pending: World | None = None
    prepared: int = 0
    """The highest generation it was ever told of: nothing older counts."""
    acked: Ack | None = None
    """What was said about `pending`."""
    world: World | None = None
    breaking: Break | None = None
    """The processes were told to come out of `world`, and how."""
    stopping: After | None = None
    ending: Ending | None = None
    ended: bool = False
    signals: int = 0

    @property
    def generation(self) -> int:
        return 0 if self.world is None else self.world.generation

    @property
    def is_waiting(self) -> bool:
        """The node waits for a world: all its processes do, or it has none to stop (plain)."""
        if self.ending is not None or self.stopping is not None or not self.welcomed:
            return False
        if self.sdk:
            return all(slot.ready for slot in self.slots)
        return all(slot.phase is Phase.IDLE for slot in self.slots)

    def report(self, local_rank: int) -> Report | None:
        """What the process last said of the world it is in; what it said in an earlier one tells nothing of this."""
        report = self.slots[local_rank].report
        return report if report is not None and report.generation == self.generation else None

    def rank(self, local_rank: int) -> int | None:
        """The process's rank in the committed world, if there is one."""
        member = None if self.world is None else self.world.member(NodeId(self.name))
        return None if member is None else member.base_rank + local_rank


def a_node(
    *,
    name: str,
    incarnation: int,
    slots: int,
    plain_grace: float,
    joined: bool = False,
    on_word: bool = False,
    serves: bool = False,
) -> Node:
    return Node(
        name=name,
        incarnation=incarnation,
        slots=(Slot(),) * slots,
        plain_grace=plain_grace,
        joined=joined,
        on_word=on_word,
        serves=serves,
    )


# What must be done ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Send:
    """To the master."""

    message: FromAgent


@dataclass(frozen=True, slots=True)
class Tell:
    """To these processes."""

    message: FromAgentLocal
    to: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StartProcesses:
    """`world` None: they wait for one by themselves. Answered by `started` or `ended` for each."""

    local_ranks: tuple[int, ...]
    world: World | None
    store: Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class StopProcesses:
    """SIGTERM, and SIGKILL after the grace period (0: at once). Answered by `ended` for each."""

    local_ranks: tuple[int, ...]
    grace_seconds: float


@dataclass(frozen=True, slots=True)
class KillProcesses:
    """They hang. `dump`: those which write their stacks on request, so ask first."""

    local_ranks: tuple[int, ...]
    dump: tuple[int, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class DumpProcesses:
    local_ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class OpenStore:
    """Listen for the plain world's store. Answered by `store_opened`."""

    world: World


@dataclass(frozen=True, slots=True)
class WarmStore:
    """This node hosts the store if group rank 0 is lost: have it imported by then."""


@dataclass(frozen=True, slots=True)
class CloseStore:
    """The processes use the SDK: there will be no plain store."""


@dataclass(frozen=True, slots=True)
class Halted:
    """Processes that were to stop have stopped."""


@dataclass(frozen=True, slots=True)
class Renewed:
    """The node has another incarnation, and processes that wait for a word to start."""


@dataclass(frozen=True, slots=True)
class End:
    """Nothing of the node runs any more. The goodbye comes after all that was printed: the master may end us for it."""

    code: int
    line: str
    goodbye: FromAgent | None = None


Effect = (
    Send
    | Tell
    | StartProcesses
    | StopProcesses
    | KillProcesses
    | DumpProcesses
    | OpenStore
    | WarmStore
    | CloseStore
    | Halted
    | Renewed
    | End
)
Step = tuple[Node, tuple[Effect, ...]]


# The master said -----------------------------------------------------------------------------------------


def told(n: Node, message: FromMaster) -> Step:
    """Something from the master."""
    if n.ending is not None and not isinstance(message, Leave | Stop):
        return n, ()
    match message:
        case Welcome():
            return welcomed(n, message)
        case Prepare(world=world):
            return _prepared(n, world)
        case Commit():
            return _committed(n, message)
        case Pause():
            return _broken(n, message, Break.PAUSE)
        case Interrupt():
            return _broken(n, message, Break.INTERRUPT)
        case StorePush(generation=generation) | Release(generation=generation):
            return n, _tell(n, message, lambda slot: slot.generation == generation)
        case Restart():
            return _restarted(replace(n, sdk=n.sdk or message.sdk), message.incarnation, message.reason)
        case Kill(incarnation=incarnation) if incarnation == n.incarnation:
            ranks = _among(message.local_ranks, _running(n))
            dump = _among(ranks, _which(n, lambda slot: slot.attached)) if message.dump_first else ()
            return n, (KillProcesses(ranks, dump, message.reason),) if ranks else ()
        case DumpStacks(incarnation=incarnation) if incarnation == n.incarnation:
            wanted = message.local_ranks or tuple(range(len(n.slots)))
            ranks = _among(wanted, _which(n, lambda slot: slot.attached))
            return n, (DumpProcesses(ranks),) if ranks else ()
        case Kill() | DumpStacks():
            return n, ()  # about processes that are no more
        case Leave(reason=reason, grace_seconds=grace):
            left = Left(incarnation=n.incarnation)
            return _end(n, Ending(code=0, line=f"leaves: {reason}", goodbye=left), grace)
        case Stop(reason=reason, grace_seconds=grace, has_failed=has_failed):
            code = EXIT_JOB_FAILED if has_failed and n.joined else 0
            return _end(n, Ending(code=code, line=f"stops: {reason}"), grace)
        case DataAnswers() | DataKept() | DataWakes():
            return n, ()  # the shards' business
        case PSTold():
            return n, ()  # passed on as it is
        case Refuse(reason=reason):
            return _end(n, Ending(code=EXIT_DO_NOT_RESTART, line=f"the master refuses this node: {reason}"), 0.0)
        case _:
            assert_never(message)


def welcomed(n: Node, welcome: Welcome) -> Step:
    """The handshake is done, for the first time or again."""
    if n.ending is not None:
        return n, ()
    again = n.welcomed
    n = replace(n, welcomed=True, name=welcome.node, sdk=n.sdk or welcome.sdk)
    if not again:
        n = replace(n, incarnation=welcome.incarnation)
    elif welcome.incarnation > n.incarnation:  # the order to restart was lost with the old connection
        return _restarted(n, welcome.incarnation, "the master expects the next incarnation")
    n, effects = _start_if_idle(n)
    asks = (Send(Going(incarnation=n.incarnation)),) if n.going else ()
    return n, (*(effects or standing(n)), *asks)


def standing(n: Node) -> tuple[Effect, ...]:
    """What the master must know of a node it has lost sight of: said after every handshake, whatever was said before.

    What the *node* has missed meanwhile, the master tells it: it heard in the handshake which world the node is in.
    """
    if n.ending is not None:
        return ()
    failed = tuple(Send(slot.exit) for slot in n.slots if slot.phase is Phase.FAILED and slot.exit is not None)
    if failed:
        return failed
    if n.pending is not None:
        return () if n.acked is None else (Send(n.acked),)
    if n.is_waiting:
        return (Send(_ready(n)),)
    if _all_finished(n):
        return (Send(Finished(incarnation=n.incarnation, generation=n.generation)),)
    return ()


def _prepared(n: Node, world: World) -> Step:
    member = world.member(NodeId(n.name))
    if member is None or member.incarnation != n.incarnation or world.generation <= n.prepared:
        return n, ()
    n = _without_acks(replace(n, pending=world, prepared=world.generation))
    if any(slot.phase is Phase.RUNNING for slot in n.slots):
        return n, _tell(n, Prepare(world=world), lambda slot: True)
    if world.members[0].node == n.name:
        return n, (OpenStore(world),)
    return _acknowledged(n, world.generation, {})


def store_opened(n: Node, generation: int, address: str) -> Step:
    """The agent listens at `address` for the store of a plain world: group rank 0 can acknowledge."""
    if n.ending is not None or n.acked is not None or n.pending is None or n.pending.generation != generation:
        return n, ()
    if _running(n):
        return n, ()  # they speak for themselves by now
    return _acknowledged(n, generation, {PLAIN_STORE: address.encode()})


def _committed(n: Node, commit: Commit) -> Step:
    world = n.pending
    if world is None or world.generation != commit.generation:
        return n, ()
    n = replace(n, world=world, pending=None, acked=None, breaking=None)
    if any(slot.phase is Phase.RUNNING for slot in n.slots):
        effects = _tell(n, commit, lambda slot: slot.ready)
        return replace(n, slots=tuple(_in_world(slot, world) for slot in n.slots)), effects
    n, effects = _start(n, tuple(range(len(n.slots))), world=world, store=commit.store)
    second = len(world.members) > 1 and world.members[1].node == n.name
    return n, (*effects, WarmStore()) if second and not n.sdk else effects


def _in_world(slot: Slot, world: World) -> Slot:
    return replace(slot, ready=False, ack=None, finished=0, generation=world.generation) if slot.ready else slot


def _broken(n: Node, message: Pause | Interrupt, how: Break) -> Step:
    if message.generation > n.generation:
        # We never heard of its commit, so nobody is in it: it is enough to wait for the next.
        n = _without_acks(replace(n, pending=None))
        return n, (Send(_ready(n)),) if n.is_waiting else ()
    if message.generation < n.generation or n.breaking in (how, Break.INTERRUPT):
        return n, ()
    n = replace(n, breaking=how)
    if not n.sdk and (n.is_waiting or n.stopping is not None):
        return n, ()  # out of it already
    if n.sdk:
        return n, _tell(n, message, lambda slot: slot.generation == message.generation)
    return _stop_plain(n, After.REJOIN)


def _restarted(n: Node, incarnation: int, reason: str) -> Step:
    if incarnation <= n.incarnation:
        return _start_if_idle(n)  # the same one: we are told that the job uses the SDK
    effects: tuple[Effect, ...] = ()
    if n.sdk and n.world is not None and n.breaking is not Break.INTERRUPT:
        effects = _tell_interrupt(n, n.world, reason)
    n = _without_acks(replace(n, incarnation=incarnation, pending=None, world=None, breaking=None))
    if n.on_word:
        running, asked = _running(n), n.stopping is not None
        n, effects = _rejoin_if_stopped(replace(n, stopping=After.RENEW))
        return n, effects if asked or not running else (StopProcesses(running, n.plain_grace),)
    if not n.sdk:
        return _stop_plain(n, After.REJOIN)
    dead = _which(n, lambda slot: slot.phase is not Phase.RUNNING)
    n, more = _start(n, dead, world=None, store={}) if dead else _ready_if_all(n)
    return n, effects + more


# A process said ------------------------------------------------------------------------------------------


def attached(n: Node, local_rank: int) -> Step:
    return _with(n, local_rank, attached=True), ()


def detached(n: Node, local_rank: int) -> Step:
    """Its connection is gone; the process itself may live."""
    return _with(n, local_rank, attached=False, ready=False, ack=None, generation=0), ()


def said(n: Node, local_rank: int, message: FromProcess) -> Step:
    """Something from a process that has attached."""
    if n.ending is not None or not n.slots[local_rank].attached:
        return n, ()
    match message:
        case LocalReady(step=step):
            return _local_ready(n, local_rank, step)
        case LocalAck(generation=generation, store=store):
            return _local_ack(n, local_rank, generation, store)
        case LocalFinished(generation=generation):
            n = _with(n, local_rank, finished=generation)
            done = Finished(incarnation=n.incarnation, generation=generation)
            return n, (Send(done),) if generation == n.generation and _all_finished(n) else ()
        case LocalStoreSet(generation=generation, key=key, value=value):
            entry = StoreSet(incarnation=n.incarnation, generation=generation, key=key, value=value)
            return n, (Send(entry),)
        case LocalPeerClosed(generation=generation, detail=detail):
            return n, (Send(PeerClosed(incarnation=n.incarnation, generation=generation, detail=detail)),)
        case LocalResized():
            return n, (Send(_resized(n, message)),)
        case Report():
            return _reported(n, local_rank, message)
        case Attach():
            return n, ()  # said once, answered at the socket
        case SlotWanted() | SlotsWanted() | Saved() | CheckpointsWanted():
            return n, ()  # the saver's business
        case DatasetNamed() | ShardsSaid() | StreamSaid() | WorldStands() | LedgerWanted() | LedgerPut():
            return n, ()  # the shards' business
        case Word():
            return n, ()  # passed on as it is
        case _:
            assert_never(message)


def _local_ready(n: Node, local_rank: int, step: int | None) -> Step:
    alone = n.world is not None and n.slots[local_rank].generation == n.generation and n.breaking is None
    n = _with(n, local_rank, ready=True, step=step, ack=None, finished=0, generation=0)
    n, effects = _ready_if_all(n)
    if effects or not alone:
        return n, effects
    # It came out of a world that the others of this node are still in. They will not get far without it.
    detail = f"local rank {local_rank} came out of the world by itself"
    closed = PeerClosed(incarnation=n.incarnation, generation=n.generation, detail=detail)
    return n, (Send(closed),)


def _local_ack(n: Node, local_rank: int, generation: int, store: Mapping[str, bytes]) -> Step:
    if n.pending is None or n.pending.generation != generation or n.slots[local_rank].ack is not None:
        return n, ()
    n = _with(n, local_rank, ack=store)
    merged: dict[str, bytes] = {}
    for slot in n.slots:
        if slot.ack is None:
            return n, ()
        merged.update(slot.ack)
    return _acknowledged(n, generation, merged)


def _reported(n: Node, local_rank: int, report: Report) -> Step:
    n = _with(n, local_rank, report=report)
    if report.rank != 0 or report.step is None or report.generation != n.generation:
        return n, ()
    progress = Progress(
        incarnation=n.incarnation,
        generation=report.generation,
        step=report.step,
        samples=report.samples,
        metrics=report.metrics,
    )
    return n, (Send(progress),)


def _resized(n: Node, message: LocalResized) -> Resized:
    return Resized(
        incarnation=n.incarnation,
        generation=message.generation,
        rank=message.rank,
        drain=message.drain,
        rendezvous=message.rendezvous,
        restore=message.restore,
        first_step=message.first_step,
        lost_steps=message.lost_steps,
    )


# A process started, a process ended ----------------------------------------------------------------------


def started(n: Node, local_rank: int, pid: int) -> Step:
    return _with(n, local_rank, pid=pid), ()


def ended(n: Node, local_rank: int, exit: ProcessExit) -> Step:
    """A training process is gone, and with it all that it had started."""
    told_master = Exited(
        incarnation=n.incarnation,
        local_rank=local_rank,
        pid=n.slots[local_rank].pid or 0,
        code=_EXIT_TERMINATED if _was_terminated(n, exit) else exit.code,
        oom=exit.oom,
        error=exit.error,
        uptime_seconds=exit.uptime_seconds,
    )
    phase = Phase.DONE if exit.code == 0 else Phase.FAILED
    if n.stopping is not None and n.ending is None:
        phase = Phase.IDLE  # we stopped it: how it took that is nobody's concern
    slots = list(n.slots)
    slots[local_rank] = Slot(phase=phase, exit=told_master)
    n = replace(n, slots=tuple(slots))
    if n.ending is not None:
        effects: tuple[Effect, ...] = (Send(told_master),) if n.ending.tells_exits and exit.code else ()
        n, last = _end_if_over(n)
        return n, effects + last
    if n.stopping is not None:
        return _rejoin_if_stopped(n)
    if phase is Phase.DONE:
        if any(slot.phase is not Phase.DONE for slot in n.slots):
            return n, ()
        return _end(n, Ending(code=0, line="succeeded", goodbye=Succeeded(incarnation=n.incarnation)), 0.0)
    return _failed(n, local_rank, exit, told_master)


def _was_terminated(n: Node, exit: ProcessExit) -> bool:
    """It left because we passed on a signal to end: the master has let nobody go, and must not believe that it had."""
    return exit.code == EXIT_LEFT and n.ending is not None and n.ending.tells_exits


def _failed(n: Node, local_rank: int, exit: ProcessExit, told_master: Exited) -> Step:
    effects: tuple[Effect, ...] = (Send(told_master),)
    if not n.sdk:
        n, more = _stop_plain(n, After.RESTART)
        return n, effects + more
    if n.world is None or n.breaking is Break.INTERRUPT:
        return n, effects
    # The master takes the node out of the world as a whole; its other processes need not wait to hear that.
    reason = f"{n.name}: local rank {local_rank} ended with {describe(exit)}"
    effects += _tell_interrupt(n, n.world, reason)
    return replace(n, breaking=Break.INTERRUPT), effects


# Somebody speaks for the processes -----------------------------------------------------------------------


def launched(n: Node) -> Step:
    """Start them, unless they run."""
    if n.ending is not None or n.stopping is not None or _running(n):
        return n, ()
    return _start(n, tuple(range(len(n.slots))), world=None, store={})


def halted(n: Node) -> Step:
    """Stop them until they are launched again."""
    if n.ending is not None or n.stopping is not None:
        return n, ()
    running = _running(n)
    if not running:
        return n, (Halted(),)
    return replace(n, stopping=After.HALT), (StopProcesses(running, n.plain_grace),)


# The agent itself ----------------------------------------------------------------------------------------


def signalled(n: Node, number: int, name: str, *, grace: float) -> Step:
    """The agent got a signal that ends it. A second one ends it at once.

    A node that joined by itself leaves by itself: that is said when its processes have ended. But a parameter server
    stays until the others have taken over what it holds. One that was started for the job is a loss, and the master
    hears of each process that ends.
    """
    n = replace(n, signals=n.signals + 1)
    if n.serves and n.joined and n.welcomed and n.ending is None and not n.going:
        return replace(n, going=True), (Send(Going(incarnation=n.incarnation)),)
    if n.ending is not None:
        return n, (StopProcesses(_running(n), 0.0),) if n.signals > 1 and _running(n) and not n.ended else ()
    left = Left(incarnation=n.incarnation) if n.joined and n.welcomed else None
    ending = Ending(code=128 + number, line=f"ends: got {name}", goodbye=left, tells_exits=not n.joined)
    return _end(n, ending, grace)


def cut_off(n: Node, *, code: int, reason: str, grace: float) -> Step:
    """There is no master any more, or it does not want this node."""
    return _end(n, Ending(code=code, line=reason), grace)


def overdue(n: Node) -> Step:
    """Processes that are being stopped do not go away, not even by SIGKILL."""
    if n.ending is None or n.ended:
        return n, ()
    stuck = ", ".join(str(n.slots[rank].pid) for rank in _running(n))
    line = f"{n.ending.line}; the kernel keeps {stuck}"
    return replace(n, ended=True), (End(n.ending.code or 1, line, n.ending.goodbye),)


# How the next state follows ------------------------------------------------------------------------------


def _start(n: Node, ranks: tuple[int, ...], *, world: World | None, store: Mapping[str, bytes]) -> Step:
    slots = tuple(Slot(phase=Phase.RUNNING) if rank in ranks else slot for rank, slot in enumerate(n.slots))
    return replace(n, slots=slots), (StartProcesses(ranks, world, store),)


def _start_if_idle(n: Node) -> Step:
    """Processes that wait for a world by themselves need not wait to be started."""
    if not n.sdk or n.on_word or n.ending is not None or any(slot.phase is not Phase.IDLE for slot in n.slots):
        return n, ()
    n = _without_acks(replace(n, pending=None))
    return _start(n, tuple(range(len(n.slots))), world=None, store={})


def _stop_plain(n: Node, after: After) -> Step:
    running = _running(n)
    asked = n.stopping is not None
    n, effects = _rejoin_if_stopped(replace(n, stopping=after))
    return n, effects if asked or not running else (StopProcesses(running, n.plain_grace),)


def _rejoin_if_stopped(n: Node) -> Step:
    if _running(n) or n.stopping is After.RESTART or n.stopping is None:
        return n, ()
    if n.stopping in (After.HALT, After.RENEW):
        news: Effect = Halted() if n.stopping is After.HALT else Renewed()
        return replace(n, stopping=None, slots=(Slot(),) * len(n.slots)), (news,)
    n = replace(n, stopping=None, pending=None, acked=None, slots=(Slot(),) * len(n.slots))
    n, effects = _start_if_idle(n)  # it was learnt meanwhile that they use the SDK
    return n, effects or (Send(_ready(n)),)


def _ready_if_all(n: Node) -> Step:
    if not all(slot.ready for slot in n.slots) or n.stopping is not None or not n.welcomed:
        return n, ()
    news: tuple[Effect, ...] = () if n.sdk else (CloseStore(),)
    n = _without_acks(replace(n, sdk=True, pending=None))
    return n, (*news, Send(_ready(n)))


def _acknowledged(n: Node, generation: int, store: dict[str, bytes]) -> Step:
    ack = Ack(incarnation=n.incarnation, generation=generation, store=store)
    return replace(n, acked=ack), (Send(ack),)


def _without_acks(n: Node) -> Node:
    return replace(n, acked=None, slots=tuple(replace(slot, ack=None) for slot in n.slots))


def _ready(n: Node) -> Ready:
    steps = tuple(slot.step if n.sdk else None for slot in n.slots)
    return Ready(incarnation=n.incarnation, steps=steps, sdk=n.sdk)


def _all_finished(n: Node) -> bool:
    return n.generation > 0 and all(slot.finished == n.generation for slot in n.slots)


def _end(n: Node, ending: Ending, grace: float) -> Step:
    """End the node. Asked again while it ends, only the time left changes."""
    if n.ended:
        return n, ()
    running = _running(n)
    n, effects = _end_if_over(replace(n, ending=n.ending or ending))
    return n, (StopProcesses(running, grace),) if running else effects


def _end_if_over(n: Node) -> Step:
    if n.ending is None or n.ended or _running(n):
        return n, ()
    left = any(slot.exit is not None and slot.exit.code == EXIT_LEFT for slot in n.slots)
    code = EXIT_LEFT if left and n.ending.code == 0 else n.ending.code
    return replace(n, ended=True), (End(code, n.ending.line, n.ending.goodbye),)


def _tell_interrupt(n: Node, world: World, reason: str) -> tuple[Effect, ...]:
    message = Interrupt(generation=world.generation, reason=reason)
    return _tell(n, message, lambda slot: slot.generation == world.generation)


def _tell(n: Node, message: FromAgentLocal, whom: Callable[[Slot], bool]) -> tuple[Effect, ...]:
    to = _which(n, lambda slot: slot.attached and whom(slot))
    return (Tell(message, to),) if to else ()


def _running(n: Node) -> tuple[int, ...]:
    return _which(n, lambda slot: slot.phase is Phase.RUNNING)


def _which(n: Node, whom: Callable[[Slot], bool]) -> tuple[int, ...]:
    return tuple(rank for rank, slot in enumerate(n.slots) if whom(slot))


def _among(ranks: tuple[int, ...], allowed: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(rank for rank in allowed if rank in ranks)


def _with(n: Node, local_rank: int, **changes: object) -> Node:
    slots = list(n.slots)
    slots[local_rank] = replace(slots[local_rank], **changes)  # type: ignore[arg-type]
    return replace(n, slots=tuple(slots))
