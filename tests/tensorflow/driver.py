"""A small coordinator over real processes: it says the words of `shoal.core.ps.words` and waits for the answers.

It knows nothing of resources, time-outs or restarts, which are the master's. Each trainer is a process with a pipe; a
thread reads each pipe. The shard ledger is the real one.
"""

import functools
import itertools
import multiprocessing
import os
import queue
import signal
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from tests.tensorflow.nodes import PS, context, start_ps

from shoal.core import ledger as ledgers
from shoal.core.ledger import Ask, Ledger, Owner, Verdict
from shoal.core.nodes import NodeId
from shoal.core.ps.cluster import Fresh, FromCheckpoint, LiveCopy, PSCheckpoint, PSCluster, PSServer, Source, Transfer
from shoal.core.ps.placement import placed
from shoal.core.ps.words import (
    Abandon,
    Drain,
    Drained,
    FromTrainer,
    Go,
    ModelNamed,
    Move,
    Moved,
    MoveFailed,
    PreparedPS,
    PreparePS,
    Resumed,
    Save,
    SavedPS,
    SaveFailed,
    SaveWanted,
    Settled,
    ToTrainer,
)
from shoal.wire.local import DatasetNamed, LedgerMark, LedgerWanted, ShardsGiven, ShardsSaid

W = TypeVar("W")
PATIENCE = 280.0


# In the trainer's process ---------------------------------------------------------------------------------------


class PipeCoordinator:
    """The trainer's end."""

    def __init__(self, node: str, pipe: Connection) -> None:
        from shoal.trainer.data import Data

        self.node = node
        self._pipe, self._lock = pipe, threading.Lock()
        self._words: queue.SimpleQueue[ToTrainer] = queue.SimpleQueue()
        self.data = Data(self.say)
        threading.Thread(target=self._read, daemon=True).start()

    def say(self, word: Any) -> None:
        with self._lock:
            self._pipe.send(word)

    def hear(self, *, wait: float | None) -> ToTrainer | None:
        try:
            return self._words.get(block=wait != 0, timeout=wait or None)
        except queue.Empty:
            return None

    def _read(self) -> None:
        while True:
            try:
                word = self._pipe.recv()
            except (EOFError, OSError):
                os._exit(1)  # whoever coordinates is gone
            if isinstance(word, ShardsGiven | LedgerMark):
                self.data.received(word)
            else:
                self._words.put(word)


@dataclass(frozen=True)
class Stepped:
    """A trainer's report about one step."""

    step: int
    loss: float


@dataclass(frozen=True)
class Ended:
    """A trainer came to the end of its loop."""

    error: str | None = None


@dataclass(frozen=True, kw_only=True)
class Work:
    """What trainers do."""

    model: Callable[..., Any]
    """Makes the model function; of a module, so that it can be sent."""
    load: Callable[..., Any]
    size: int
    shard_size: int
    batch_size: int = 16
    parts: int = 6
    checkpoint_seconds: float = 3600.0
    patience: float = 120.0
    fuzzy: bool = False


def _be_trainer(node: str, pipe: Connection, work: Work, directory: str | None) -> None:
    import tensorflow.compat.v1 as tf

    from shoal.tensorflow.loop import Checkpoints, NotSaved, train
    from shoal.tensorflow.servers import boot
    from shoal.trainer.job import dataset_spec

    tf.get_logger().setLevel("ERROR")
    coordinator = PipeCoordinator(node, pipe)
    coordinator.data.register(dataset_spec("train", size=work.size, shard_size=work.shard_size))
    leave = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: leave.set())
    checkpoints = Checkpoints(
        directory=directory,
        seconds=work.checkpoint_seconds,
        keep=2,
        patience=work.patience,
        fuzzy=work.fuzzy,
    )
    training = functools.partial(
        train,
        work.model(),
        work.load,
        name="train",
        batch_size=work.batch_size,
        parts=work.parts,
        data=coordinator.data,
        server=boot(),
        coordinator=coordinator,
        worker=int(node.rpartition("-")[2]),
        checkpoints=checkpoints,
        on_step=lambda step: coordinator.say(Stepped(step.step, step.loss)),
        leave=leave,
    )
    try:
        training()
    except NotSaved as exc:
        coordinator.say(Ended(error=str(exc)))
    else:
        coordinator.say(Ended())
    os._exit(0)


# Where the test runs --------------------------------------------------------------------------------------------


@dataclass
class Trainer:
    node: str
    process: Any
    pipe: Connection

    def say(self, word: Any) -> None:
        try:
            self.pipe.send(word)
        except OSError:
            pass  # it is dead, and whoever waits for its answer finds out


@dataclass
class Pause:
    """What a change cost, in seconds: from the word to stand still until the last trainer said that it goes on, and
    until each had done a step."""

    drain: float
    move: float
    resume: float
    first_step: float

    @property
    def total(self) -> float:
        return self.drain + self.move + self.resume + self.first_step


@dataclass
class Recovery:
    """What it cost to go on from a checkpoint, in seconds, from when the loss was known."""

    drain: float
    prepare: float
    restore: float
    resume: float
    first_step: float


@dataclass
class Job:
    work: Work
    directory: Path | None = None
    servers: dict[int, PS] = field(default_factory=dict)
    """By task, which is also the rank."""
    trainers: dict[str, Trainer] = field(default_factory=dict)
    cluster: PSCluster | None = None
    ledger: Ledger = field(default_factory=Ledger)
    checkpoints: list[PSCheckpoint] = field(default_factory=list)
    heard: list[tuple[float, str, Any]] = field(default_factory=list)
    """Everything that trainers said, in order, with the time."""
    versions: int = 0
    barriers: int = 0

    def __post_init__(self) -> None:
        self._changed = threading.Condition()
        self._asked: dict[str, ShardsSaid] = {}
        self._held: dict[str, set[int]] = {}

    # Processes ----------------------------------------------------------------------------------------------------

    def add_servers(self, *tasks: int) -> None:
        self.servers.update(zip(tasks, start_ps(len(tasks)), strict=True))

    def start_trainer(self, node: str, *, fresh: bool = False) -> None:
        """`fresh`: in a new interpreter, as a restart would be."""
        start = multiprocessing.get_context("spawn") if fresh else context
        with self._changed:  # whoever had this name before holds nothing any more
            self.ledger, _ = ledgers.lost(self.ledger, _owner(node), charged=False, reason="started again")
            self._held.pop(node, None)
        ours, theirs = context.Pipe()
        directory = None if self.directory is None else str(self.directory)
        process = start.Process(target=_be_trainer, args=(node, theirs, self.work, directory), daemon=True)
        process.start()
        theirs.close()
        trainer = self.trainers[node] = Trainer(node, process, ours)
        threading.Thread(target=self._read, args=(trainer,), daemon=True).start()

    def end(self) -> None:
        for trainer in self.trainers.values():
            trainer.process.kill()
        for server in self.servers.values():
            server.kill()

    @property
    def chief(self) -> str:
        return min(self.trainers)

    # Changes ------------------------------------------------------------------------------------------------------

    def begin(self, *nodes: str, tasks: Sequence[int] = (), source: Source | None = None, fresh: bool = False) -> None:
        """Start trainers and let them train on these servers, or on all there are."""
        begun = len(self.heard)
        for node in nodes:
            self.start_trainer(node, fresh=fresh)
        for node in nodes:
            self.wait(ModelNamed, node, since=begun)
        first = self._next_cluster(tasks or sorted(self.servers), source or Fresh())
        self._prepare(first)
        self._move(first, first.source)
        self._go(first)

    def join(self, node: str) -> None:
        """One more trainer, for the version that trains."""
        begun = len(self.heard)
        self.start_trainer(node)
        self.wait(ModelNamed, node, since=begun)
        assert self.cluster is not None
        begun = len(self.heard)
        self.trainers[node].say(PreparePS(cluster=self.cluster, chief=self.chief))
        self.wait(PreparedPS, node, since=begun)
        self.trainers[node].say(Go(version=self.cluster.version, chief=self.chief))
        self.wait(Resumed, node, since=begun)

    def change(self, *tasks: int, transfer: Transfer | None = None) -> tuple[Moved, Pause]:
        """Train on these servers from now on."""
        assert self.cluster is not None
        new = self._next_cluster(tasks, LiveCopy(self.cluster.version))
        self._prepare(new)
        began = time.monotonic()
        self.drain()
        drained = time.monotonic()
        moved = self._move(new, transfer or new.source)
        there = time.monotonic()
        since = len(self.heard)
        self._go(new)
        gone = time.monotonic()
        self.wait_for_steps(since)
        stepped = time.monotonic()
        self.say(Settled(version=new.version))
        return moved, Pause(drained - began, there - drained, gone - there, stepped - gone)

    def recover(self, *tasks: int) -> Recovery:
        """Go on from the last checkpoint on these servers: model and ledger. All have done a step then."""
        times = [time.monotonic()]
        self.drain()
        times.append(time.monotonic())
        last = self.checkpoints[-1]
        self.ledger, _ = ledgers.restored(self.ledger, last.mark)
        for held in self._held.values():
            held.clear()
        new = self._next_cluster(tasks, FromCheckpoint(last.path, last.step))
        self._prepare(new)
        times.append(time.monotonic())
        self._move(new, new.source)
        times.append(time.monotonic())
        since = len(self.heard)
        self._go(new)
        times.append(time.monotonic())
        self.wait_for_steps(since)
        times.append(time.monotonic())
        return Recovery(*(after - before for before, after in itertools.pairwise(times)))

    def try_in_vain(self, *tasks: int) -> None:
        """Prepare a change, let everybody stand still, and give it up."""
        assert self.cluster is not None
        new = self._next_cluster(tasks, LiveCopy(self.cluster.version))
        self._prepare(new)
        self.drain()
        self.say(Abandon(version=new.version, reason="only a try"))
        self._go(self.cluster)

    def save(self, *, fuzzy: bool = False) -> SavedPS | SaveFailed:
        """A checkpoint while everybody stands still, or nobody."""
        assert self.cluster is not None
        assert self.directory is not None
        if fuzzy:
            self.barriers += 1
        else:
            self.drain()
        since = len(self.heard)
        path = str(self.directory / f"ckpt-{self.barriers}-v{self.cluster.version}-{self.chief}")
        mark = ledgers.checkpoint(self.ledger)
        word = Save(version=self.cluster.version, barrier=self.barriers, path=path, mark=mark, fuzzy=fuzzy)
        self.trainers[self.chief].say(word)
        saved: SavedPS | SaveFailed = self.wait((SavedPS, SaveFailed), self.chief, since=since)
        if isinstance(saved, SavedPS):
            self.checkpoints.append(saved.checkpoint)
        if not fuzzy:
            self._go(self.cluster)
        return saved

    def drain(self) -> None:
        self.barriers += 1
        since = len(self.heard)
        version = 0 if self.cluster is None else self.cluster.version
        self.say(Drain(version=version, barrier=self.barriers, reason="test"))
        self._wait_all(Drained, since)

    def _next_cluster(self, tasks: Iterable[int], source: Source) -> PSCluster:
        partitions = next(word.partitions for _, _, word in self.heard if isinstance(word, ModelNamed))
        before = (
            {} if self.cluster is None else dict(zip((p.name for p in partitions), self.cluster.placement, strict=True))
        )
        self.versions += 1
        return PSCluster(
            version=self.versions,
            servers=tuple(
                PSServer(rank=task, node=NodeId(f"ps-{task}"), address=self.servers[task].address)
                for task in sorted(tasks)
            ),
            partitions=partitions,
            placement=placed(partitions, sorted(tasks), before),
            source=source,
        )

    def _prepare(self, cluster: PSCluster) -> None:
        since = len(self.heard)
        self.say(PreparePS(cluster=cluster, chief=self.chief))
        self._wait_all(PreparedPS, since)

    def _move(self, cluster: PSCluster, transfer: Transfer) -> Moved:
        since = len(self.heard)
        self.trainers[self.chief].say(Move(version=cluster.version, attempt=1, transfer=transfer))
        answer = self.wait((Moved, MoveFailed), self.chief, since=since)
        assert isinstance(answer, Moved), answer
        return answer

    def _go(self, cluster: PSCluster) -> None:
        since = len(self.heard)
        self.cluster = cluster
        self.say(Go(version=cluster.version, chief=self.chief))
        self._wait_all(Resumed, since)

    # Words --------------------------------------------------------------------------------------------------------

    def say(self, word: ToTrainer) -> None:
        for trainer in self.trainers.values():
            trainer.say(word)

    def wait(self, kind: Any, node: str, *, since: int = 0, count: int = 1) -> Any:
        """What this trainer has said of this kind, after so many words that were heard before."""

        def found() -> list[Any]:
            return [word for _, who, word in self.heard[since:] if who == node and isinstance(word, kind)]

        with self._changed:
            assert self._changed.wait_for(lambda: len(found()) >= count, PATIENCE), f"{node} did not say {kind}"
            return found()[count - 1]

    def wait_for(self, word: FromTrainer, node: str) -> None:
        """This trainer has said exactly this."""
        with self._changed:
            assert self._changed.wait_for(lambda: any(said[1:] == (node, word) for said in self.heard), PATIENCE), word

    def wait_for_steps(self, since: int | None = None, count: int = 1) -> None:
        """Every trainer has done so many more steps."""
        since = len(self.heard) if since is None else since
        self._wait_all(Stepped, since, count)

    def wait_for_the_end(self, *, unwritable: Path | None = None) -> None:
        """All trainers end, the chief last, and with a checkpoint if there is a directory for it. `unwritable`: where
        that is tried first."""
        chief = self.chief
        for node in sorted(self.trainers.keys() - {chief}):
            self.wait(Ended, node)
            del self.trainers[node]
        if self.directory is not None:
            places = [self.directory] if unwritable is None else [unwritable, self.directory]
            for count, self.directory in enumerate(places, start=1):
                assert self.wait(SaveWanted, chief, count=count).reason == "end"
                self.save()
        assert self.wait(Ended, chief) == Ended()

    def steps(self) -> list[Stepped]:
        return [word for _, _, word in self.heard if isinstance(word, Stepped)]

    def _wait_all(self, kind: Any, since: int, count: int = 1) -> None:
        for node in list(self.trainers):
            self.wait(kind, node, since=since, count=count)

    def _read(self, trainer: Trainer) -> None:
        while True:
            try:
                word = trainer.pipe.recv()
            except (EOFError, OSError):
                return
            with self._changed:
                match word:
                    case DatasetNamed(spec=spec):
                        self.ledger = ledgers.registered(self.ledger, spec)
                    case ShardsSaid():
                        self._asked[trainer.node] = word
                        self._exchange(trainer.node, word)
                    case LedgerWanted():
                        trainer.say(LedgerMark(mark=ledgers.checkpoint(self.ledger)))
                    case _:
                        self.heard.append((time.monotonic(), trainer.node, word))
                        self._heard(trainer.node, word)
                self._changed.notify_all()

    def _heard(self, node: str, word: Any) -> None:
        """For coordinators that act on what they hear."""

    def _exchange(self, node: str, word: ShardsSaid) -> None:
        """As an agent and the master do it between them."""
        held = self._held.setdefault(node, set())
        held.difference_update(word.completed)
        ask = Ask(
            owner=_owner(node),
            dataset=word.dataset,
            completed=word.completed,
            progress=word.progress,
            want=max(0, word.want - len(held)),
            epoch=word.epoch,
        )
        self.ledger, answer = ledgers.exchange(self.ledger, ask, datetime.now(UTC))
        held.update(lease.attempt for lease in answer.leases)
        ended = answer.verdict is Verdict.END
        if answer.leases or ended:
            self.trainers[node].say(
                ShardsGiven(dataset=word.dataset, leases=answer.leases, ended=ended, epoch=word.epoch)
            )
        for wake in answer.woken:
            other = wake.owner.partition(".")[0]
            again = msgspec.structs.replace(self._asked[other], completed=(), progress=())
            self._exchange(other, again)


def _owner(node: str) -> Owner:
    return Owner(f"{node}.0@1")
