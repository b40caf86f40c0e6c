"""The link between a training process and its agent: a Unix socket, length-prefixed msgpack.

The agent makes one socket per node (mode 0600, its path in `SHOAL_AGENT_SOCKET`), and each of its training
processes attaches once. The training side is synchronous: one background thread reads and sends the periodic
report; everything else is sent by the caller. Nothing is imported here but the standard library and msgspec.

What a process may say, and in which order: `Attach` once, then any number of rounds of
`LocalReady` → (agent: `Prepare`) → `LocalAck` → (agent: `Commit`) → reports → `LocalFinished` or, after `Pause` or
`Interrupt`, `LocalReady` again. A `Prepare` may be superseded by another before its `Commit`.

Checkpoints, at any time: `SlotWanted` is answered by `SlotGiven` or `SlotRefused`, `SlotsWanted` by `SlotsMade`,
`CheckpointsWanted` by `Checkpoints`; `Saved` is not answered. One question at a time.

Data, at any time: `DatasetNamed`, `ShardsSaid`, `StreamSaid` and `WorldStands`; the agent sends `ShardsGiven` whenever
there is something to give, or `DatasetUnusable`. `LedgerWanted` and `LedgerPut` are answered by `LedgerMark`.

Parameter servers: the words of `shoal.core.ps.words`, which the agent passes on as they are.
"""

import math
import os
import socket
import struct
import threading
import time
from collections.abc import Callable

import msgspec

from shoal.core.errors import Disconnected, ProtocolError, Refused
from shoal.core.ledger import Checkpoint, DatasetSpec, DynamicCheckpoint, Lease
from shoal.core.ledger import Progress as ShardProgress
from shoal.core.nodes import Trained
from shoal.core.ps.words import FromNode, ToNode
from shoal.core.rounds import Extent
from shoal.wire.codec import Decoder, encode
from shoal.wire.messages import (
    MAX_COMMAND,
    MAX_MESSAGE,
    Commit,
    Interrupt,
    Message,
    Pause,
    Prepare,
    Refuse,
    Release,
    StorePush,
)

LOCAL_PROTOCOL = 3
"""Grows as `PROTOCOL` does."""
SOCKET_VARIABLE = "SHOAL_AGENT_SOCKET"
ROLE_VARIABLE = "SHOAL_ROLE"
SPARE_VARIABLE = "SHOAL_SPARE_PIPE"
"""In a process that was started before it is needed: the pipe at which it waits."""
CHECKPOINT_DIR_VARIABLE = "SHOAL_CHECKPOINT_DIR"
CHECKPOINT_SECONDS_VARIABLE = "SHOAL_CHECKPOINT_SECONDS"
CHECKPOINT_FUZZY_VARIABLE = "SHOAL_CHECKPOINT_FUZZY"
"""1, or not there."""
CHECKPOINT_KEEP_VARIABLE = "SHOAL_CHECKPOINT_KEEP"

SERVING = "serving"
"""What a parameter server is `busy` with: it has nothing else to tell, and tells that all the time. `collectives`
counts how often it has."""

HEADER = struct.Struct("!I")


# From the training process -------------------------------------------------------------------------------


class Attach(Message, frozen=True, kw_only=True):
    """The first message. `local_rank` says which of the node's processes this is."""

    protocol: int
    local_rank: int
    pid: int


class LocalReady(Message, frozen=True, kw_only=True):
    """This process stands still and waits for a world; `step` is the last step it committed."""

    step: int | None


class LocalAck(Message, frozen=True, kw_only=True):
    generation: int
    store: dict[str, bytes]


class LocalStoreSet(Message, frozen=True, kw_only=True):
    generation: int
    key: str
    value: bytes


class LocalFinished(Message, frozen=True, kw_only=True):
    generation: int


class LocalPeerClosed(Message, frozen=True, kw_only=True):
    generation: int
    detail: str


class Report(Message, frozen=True, kw_only=True):
    """Where this process is. Sent by the background thread when it changed, so that it flows while training blocks."""

    generation: int
    rank: int
    step: int | None
    collectives: int
    busy: str | None
    samples: int | None = None
    """Of the whole job, by the steps that are committed."""
    metrics: dict[str, float] = msgspec.field(default_factory=dict)
    trained: Trained | None = None
    """What this process did itself; None: it does not count."""


class LocalResized(Message, frozen=True, kw_only=True):
    """As `messages.Resized`, from one process."""

    generation: int
    rank: int
    drain: float
    rendezvous: float
    restore: float
    first_step: float
    lost_steps: int


class SlotWanted(Message, frozen=True, kw_only=True):
    """This process wants to save its state now and needs shared memory for it."""

    nbytes: int


class SlotsWanted(Message, frozen=True, kw_only=True):
    """This process will save states of this size: have memory ready."""

    nbytes: int


class Saved(Message, frozen=True, kw_only=True):
    """The slot that was given holds a complete image."""

    slot: int
    step: int
    nbytes: int


class CheckpointsWanted(Message, frozen=True, kw_only=True):
    """Nobody has state: what is there to restore?"""


class DatasetNamed(Message, frozen=True, kw_only=True):
    """This process will use this dataset. Every process says so; the words must agree."""

    spec: DatasetSpec


class ShardsSaid(Message, frozen=True, kw_only=True):
    """What this process has trained of a dataset since it last said so, and how many shards it wants to hold."""

    dataset: str
    epoch: int | None = None
    """Only shards of this epoch; None: of whichever it is."""
    completed: tuple[int, ...] = ()
    progress: tuple[ShardProgress, ...] = ()
    want: int = 0
    """In all, with the one it is at. The agent sees to it that there are so many, until the end."""


class LedgerWanted(Message, frozen=True, kw_only=True):
    """What is trained by now, of all datasets? Goes with the model's checkpoint. Answered by `LedgerMark`."""


class LedgerPut(Message, frozen=True, kw_only=True):
    """The model was restored: the ledger shall stand where it did then. Answered by `LedgerMark`."""

    number: int
    """Counted by this process."""
    mark: Checkpoint


class StreamSaid(Message, frozen=True, kw_only=True):
    """A stream has grown, or ends. Any process may say so, and say it again."""

    extent: Extent


class WorldStands(Message, frozen=True, kw_only=True):
    """Of a dataset that the members of a world deal by themselves: what the committed steps have seen."""

    generation: int
    step: int
    mark: DynamicCheckpoint


DataWord = DatasetNamed | ShardsSaid | StreamSaid | WorldStands | LedgerWanted | LedgerPut
"""What a process says about its data. It never changes where the node stands in its world."""

CheckpointWord = SlotWanted | SlotsWanted | Saved | CheckpointsWanted
"""What a process says about checkpoints. It never changes where the node stands in its world."""

FromProcess = (
    Attach
    | LocalReady
    | LocalAck
    | LocalStoreSet
    | LocalFinished
    | LocalPeerClosed
    | Report
    | LocalResized
    | SlotWanted
    | SlotsWanted
    | Saved
    | CheckpointsWanted
    | DatasetNamed
    | ShardsSaid
    | StreamSaid
    | WorldStands
    | LedgerWanted
    | LedgerPut
    | FromNode
)


# From the agent ------------------------------------------------------------------------------------------


class Attached(Message, frozen=True, kw_only=True):
    """The answer to `Attach`."""

    job: str
    node: str
    incarnation: int
    address: str
    """The address to bind to, and where peers reach this node."""
    max_workers: int
    resumed: bool = False
    """The job goes on from an earlier life: a checkpoint of it must be continued as it was trained."""


class SlotGiven(Message, frozen=True, kw_only=True):
    """Fill this one, then say `Saved`."""

    slot: int
    path: str


class SlotRefused(Message, frozen=True, kw_only=True):
    """There is no shared memory for this save."""

    reason: str
    directory: str | None
    """Write it there yourself; None: leave it this time."""
    keep: int
    """How many checkpoints to leave there."""


class SlotsMade(Message, frozen=True, kw_only=True):
    """All segments that a save may go to: map them ahead of time."""

    paths: tuple[str, ...]


class MemoryCopy(msgspec.Struct, frozen=True, kw_only=True):
    """A complete image in the agent's memory."""

    path: str
    step: int


class Checkpoints(Message, frozen=True, kw_only=True):
    """What there is to restore from on this node, the newest first, and where there may be more."""

    memory: tuple[MemoryCopy, ...]
    directory: str | None


class ShardsGiven(Message, frozen=True, kw_only=True):
    """Shards to train, after those that are there already."""

    dataset: str
    leases: tuple[Lease, ...] = ()
    lost: tuple[int, ...] = ()
    """Attempts that are not this process's any more: stop training them."""
    ended: bool = False
    """There will be none: all is trained."""
    epoch: int | None = None
    """For which the process had asked."""


class DatasetUnusable(Message, frozen=True, kw_only=True):
    """The dataset cannot be used in the way that this process asked for."""

    dataset: str
    reason: str


class LedgerMark(Message, frozen=True, kw_only=True):
    """What is trained by now, or that the ledger stands where it was put."""

    mark: Checkpoint | None = None
    problem: str | None = None
    """Why it could not be put there."""


DataAnswer = ShardsGiven | DatasetUnusable | LedgerMark

CheckpointAnswer = SlotGiven | SlotRefused | SlotsMade | Checkpoints

FromAgentLocal = (
    Attached
    | Refuse
    | Prepare
    | Commit
    | StorePush
    | Pause
    | Interrupt
    | Release
    | SlotGiven
    | SlotRefused
    | SlotsMade
    | Checkpoints
    | ShardsGiven
    | DatasetUnusable
    | LedgerMark
    | ToNode
)

process_decoder: Decoder[FromProcess] = Decoder(FromProcess, limit=MAX_MESSAGE)
agent_decoder: Decoder[FromAgentLocal] = Decoder(FromAgentLocal, limit=MAX_COMMAND)


def frame(message: msgspec.Struct) -> bytes:
    """One message with its length in front."""
    body = encode(message)
    return HEADER.pack(len(body)) + body


class LocalLink:
    """The training process's end.

    `handle` is called in the background thread for every message from the agent after `Attached`; it must not
    block. `report` is asked about twice a second what to send (None: nothing). `closed` is called once when the
    agent is gone.
    """

    def __init__(
        self,
        path: str,
        *,
        local_rank: int,
        handle: Callable[[FromAgentLocal], None],
        report: Callable[[], Report | None],
        closed: Callable[[], None],
        report_seconds: float = 0.5,
    ) -> None:
        self._handle = handle
        self._report = report
        self._closed = closed
        self._send_lock = threading.Lock()
        self._buffer = bytearray()
        self._report_due = math.inf
        self._closing = False
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.connect(path)
        except OSError as exc:
            self._socket.close()
            raise Disconnected(f"no agent at {path}: {exc}") from exc
        self.send(Attach(protocol=LOCAL_PROTOCOL, local_rank=local_rank, pid=os.getpid()))
        first = self._receive()
        if isinstance(first, Refuse):
            raise Refused(first.reason)
        if not isinstance(first, Attached):
            raise ProtocolError(f"agent at {path}: wanted Attached, got {type(first).__name__}")
        self.attached = first
        self._report_seconds = report_seconds
        self._report_due = time.monotonic() + report_seconds
        self._socket.settimeout(report_seconds)
        self._thread = threading.Thread(target=self._run, name="shoal-link", daemon=True)
        self._thread.start()

    def send(self, message: msgspec.Struct) -> None:
        """Send one message. Raises `Disconnected` when the agent is gone."""
        data = frame(message)
        with self._send_lock:
            try:
                # sendall() shares the reader's time-out, so a partial write must be continued by hand.
                view = memoryview(data)
                while view:
                    try:
                        view = view[self._socket.send(view) :]
                    except TimeoutError:
                        continue
            except OSError as exc:
                raise Disconnected(f"the agent closed its socket: {exc}") from exc

    def close(self) -> None:
        self._closing = True
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # already closed by the other side

    def _run(self) -> None:
        try:
            while True:
                self._handle(self._receive())
        except (Disconnected, ProtocolError):
            if not self._closing:
                self._closed()
        finally:
            self._socket.close()

    def _receive(self) -> FromAgentLocal:
        header = self._read(HEADER.size)
        (length,) = HEADER.unpack(header)
        if length > MAX_COMMAND:
            raise ProtocolError(f"message of {length} bytes, at most {MAX_COMMAND} are read")
        return agent_decoder.decode(self._read(length))

    def _read(self, count: int) -> bytes:
        while len(self._buffer) < count:
            try:
                data = self._socket.recv(65536)
            except TimeoutError:
                self._send_report()
                continue
            except OSError as exc:
                raise Disconnected(f"the agent's socket failed: {exc}") from exc
            if not data:
                raise Disconnected("the agent closed its socket")
            self._buffer += data
            if time.monotonic() >= self._report_due:
                self._send_report()  # the agent may say so much that no silence is long enough
        taken = bytes(self._buffer[:count])
        del self._buffer[:count]
        return taken

    def _send_report(self) -> None:
        self._report_due = time.monotonic() + self._report_seconds
        report = self._report()
        if report is not None:
            self.send(report)
