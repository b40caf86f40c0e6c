"""A training process's data: shards to train, one after the other, and the reports about them.

    for shard in job.shards("train"):
        for index in shard:
            train(index)

A record is trained when the loop asks for the next one; a shard is complete when the loop asks for the next shard. Both
are reported as it goes, so that another worker resumes where this one stood. Shards are fetched ahead: while one is
trained the next is on its way, and its completion travels with the wish for more.

A shard that was given to somebody else because this process was silent about it for too long ends early: what comes
of it here counts no more. Nothing here knows a framework.
"""

import struct
import threading
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime

import msgspec

from shoal.core import ledger as ledgers
from shoal.core.errors import BadInput
from shoal.core.ledger import Ask, Checkpoint, DatasetSpec, Kind, Lease, Ledger, Owner, Progress, Verdict, records
from shoal.core.ledger.dealing import Standing, mark_of
from shoal.core.rounds import Extent
from shoal.wire.local import (
    DataAnswer,
    DatasetNamed,
    DatasetUnusable,
    DataWord,
    LedgerMark,
    LedgerPut,
    LedgerWanted,
    ShardsGiven,
    ShardsSaid,
    StreamSaid,
    WorldStands,
)

PREFETCH = 2
"""Shards that a process holds: the one it trains and the next."""
REPORT_SECONDS = 0.25
"""Progress inside a shard is told at most so often."""
_MAGIC = b"shoal-data-1"
_HEAD = struct.Struct(f">{len(_MAGIC)}sI")
"""What a checkpoint of the data begins with: what it is, and the CRC-32 of the rest."""


class Shard:
    """Some records of one epoch, for this process alone. Iterate it, or take `records()` and say `trained`."""

    def __init__(self, data: "Data", spec: DatasetSpec, lease: Lease) -> None:
        self._data = data
        self._spec = spec
        self.lease = lease
        self.is_lost = False
        """It was given to another worker: what is trained of it from now on does not count."""
        self.done = lease.done
        """Records of it that are trained, counted from its beginning; also by whoever had it before."""
        self.reported = lease.done

    def __repr__(self) -> str:
        return f"<shard {self.number} of {self._spec.name}, epoch {self.epoch}: {self.done} of {self.size} trained>"

    @property
    def dataset(self) -> str:
        return self._spec.name

    @property
    def number(self) -> int:
        return self.lease.shard

    @property
    def epoch(self) -> int:
        return self.lease.epoch

    @property
    def partition(self) -> int:
        """Of a stream."""
        return self.lease.partition

    @property
    def size(self) -> int:
        return self.lease.stop - self.lease.start

    def __len__(self) -> int:
        """How many records are left to train."""
        return self.size - self.done

    def records(self) -> Iterator[int]:
        """The records that are left to train; `trained` says how far they are. Offsets, of a stream."""
        span = (self.lease.start + self.done, self.lease.stop)
        return records(self._spec, self.lease.epoch, [span])

    def trained(self, count: int) -> None:
        """So many more records of it are trained."""
        if not 0 <= count <= self.size - self.done:
            raise ValueError(f"{self!r}: {count} more are said to be trained")
        self.done += count
        self._data.records += count
        self._data.progressed(self._spec.name)

    def __iter__(self) -> Iterator[int]:
        for index in self.records():
            if self.is_lost:
                return
            yield index
            self.trained(1)


class _Queue:
    """What a process holds of one dataset."""

    def __init__(self) -> None:
        self.leases: deque[Lease] = deque()
        """Not begun."""
        self.open: dict[int, Shard] = {}
        """Begun, by attempt."""
        self.epoch: int | None = None
        self.prefetch = 0
        self.ended = False
        self.problem: str | None = None
        self.reported_at = 0.0


class Data:
    """All datasets of this process. `send` passes a word on to the agent; `received` is called with its answers, by the
    link's thread."""

    def __init__(self, send: Callable[[DataWord], None]) -> None:
        self._send = send
        self._changed = threading.Condition()
        self._specs: dict[str, DatasetSpec] = {}
        self._queues: dict[str, _Queue] = {}
        self._stands: dict[str, tuple[int, int, Standing]] = {}
        """Where the world stands that this process speaks for, as far as it was not told."""
        self._asking = threading.Lock()
        self._marks: deque[LedgerMark] = deque()
        self._restores = 0
        self.records = 0
        """How many records of its shards this process has trained in its life."""

    def register(self, spec: DatasetSpec) -> None:
        """Use this dataset. Every worker says the same words; others are refused, here or by the master."""
        known = self._specs.setdefault(spec.name, spec)
        if known != spec:
            ledgers.registered(ledgers.registered(Ledger(), known), spec)  # raises, with what is different
        with self._changed:
            self._queues.setdefault(spec.name, _Queue())
        self._send(DatasetNamed(spec=spec))

    def spec(self, name: str) -> DatasetSpec:
        if name not in self._specs:
            known = ", ".join(sorted(self._specs)) or "none"
            raise BadInput(f"dataset {name} is not registered; registered: {known}")
        return self._specs[name]

    # One after the other ----------------------------------------------------------------------------------

    def shards(self, name: str, *, epoch: int | None = None, prefetch: int = PREFETCH) -> Iterator[Shard]:
        """Shards of a dataset until all of it is trained, by whomever. `epoch`: only of this one."""
        self.want(name, epoch=epoch, prefetch=prefetch)
        while (shard := self.take(name)) is not None:
            try:
                yield shard
            except GeneratorExit:
                self.put_back(shard)
                raise
            if shard.done < shard.size and not shard.is_lost:
                self.put_back(shard)
                raise RuntimeError(f"{shard!r}, and the next one is asked for: train all of it first")
            self.close(shard)

    # As one likes -----------------------------------------------------------------------------------------

    def want(self, name: str, *, epoch: int | None = None, prefetch: int = PREFETCH) -> None:
        """Begin to fetch shards, so many ahead."""
        spec = self.spec(name)
        if spec.is_ordered:
            raise BadInput(f"dataset {name} has a fixed global batch: its records follow from the step")
        if spec.together:
            raise BadInput(f"dataset {name} is dealt inside a world: its records follow from where that stands")
        if prefetch < 1:
            raise BadInput(f"dataset {name}: prefetch must be at least 1, got {prefetch}")
        with self._changed:
            queue = self._queues[name]
            queue.epoch, queue.prefetch, queue.ended = epoch, prefetch, False
        self._say(name)

    def take(self, name: str, *, wait: bool = True) -> Shard | None:
        """The next shard; None: there will be none, or without `wait`, there is none now (`has_ended` tells)."""
        with self._changed:
            queue = self._queues[name]
            if wait:
                self._changed.wait_for(lambda: queue.leases or queue.ended or queue.problem is not None)
            if queue.problem is not None:
                raise BadInput(queue.problem)
            if not queue.leases:
                return None
            lease = queue.leases.popleft()
            shard = queue.open[lease.attempt] = Shard(self, self._specs[name], lease)
            several = len(queue.open) > 1
        if several:
            self._say(name)  # one more is in use, so one more is to be fetched
        return shard

    def has_ended(self, name: str) -> bool:
        with self._changed:
            return self._queues[name].ended

    def close(self, shard: Shard) -> None:
        """All of it is trained, or it was lost."""
        with self._changed:
            self._queues[shard.dataset].open.pop(shard.lease.attempt, None)
        self._say(shard.dataset, completed=() if shard.is_lost else (shard.lease.attempt,))

    def put_back(self, shard: Shard) -> None:
        """The loop was left inside a shard: it goes on there if it is entered again."""
        with self._changed:
            queue = self._queues[shard.dataset]
            queue.open.pop(shard.lease.attempt, None)
            if not shard.is_lost:
                queue.leases.appendleft(replace(shard.lease, done=shard.done))
        self._say(shard.dataset, progress=(Progress(shard.lease.attempt, shard.done),))

    def progressed(self, name: str) -> None:
        """Some record was trained; tell of it now and then."""
        if time.monotonic() - self._queues[name].reported_at >= REPORT_SECONDS:
            self._say(name)

    def flush(self) -> None:
        """Tell all progress that was not told. Also called by the link's thread, for a loop that takes its time."""
        for name, queue in list(self._queues.items()):
            with self._changed:
                news = any(shard.done != shard.reported for shard in queue.open.values())
            if news:
                self._say(name)
        with self._changed:
            stands, self._stands = self._stands, {}
        for generation, step, standing in stands.values():
            self._send(WorldStands(generation=generation, step=step, mark=mark_of(standing)))

    # Streams ----------------------------------------------------------------------------------------------

    def grow(self, name: str, partition: int, upto: int) -> None:
        """Records of a stream's partition exist up to this offset (not included). Whoever waits for them is woken."""
        self._send(StreamSaid(extent=self._extent(name, partition, upto, closed=False)))

    def end(self, name: str, partition: int, at: int) -> None:
        """A stream's partition ends at this offset (not included), for good."""
        self._send(StreamSaid(extent=self._extent(name, partition, at, closed=True)))

    def _extent(self, name: str, partition: int, offset: int, *, closed: bool) -> Extent:
        spec = self.spec(name)
        if spec.kind is not Kind.STREAM:
            raise BadInput(f"dataset {name}: only a stream grows or is closed, this is a {spec.kind} dataset")
        if not 0 <= partition < len(spec.partitions):
            raise BadInput(f"dataset {name}: partition must be in 0..{len(spec.partitions) - 1}, got {partition}")
        if offset < spec.partitions[partition]:
            first = spec.partitions[partition]
            raise BadInput(f"dataset {name}: partition {partition} begins at {first} and cannot end at {offset}")
        return Extent(dataset=name, partition=partition, until=offset, closed=closed)

    # In a world -------------------------------------------------------------------------------------------

    def stands(self, standing: Standing, *, generation: int, step: int) -> None:
        """The world that this process speaks for has committed this step. It is told with the next `flush`."""
        with self._changed:
            self._stands[standing.spec.name] = (generation, step, standing)

    # With the model's checkpoint --------------------------------------------------------------------------

    def checkpoint(self) -> bytes:
        """What is trained of all datasets by now, by everybody's reports: a small value that goes with the model's
        checkpoint."""
        self.flush()
        mark = self._ask_ledger(LedgerWanted()).mark
        assert mark is not None
        return packed(mark)

    def restore(self, saved: bytes) -> None:
        """The model was restored: go on where the ledger stood when `checkpoint` gave this. What the model has not seen
        is trained again, what it has seen is not; all workers' shards from before are void."""
        mark = unpacked(saved)
        self._restores += 1
        problem = self._ask_ledger(LedgerPut(number=self._restores, mark=mark)).problem
        if problem is not None:
            raise BadInput(problem)

    def forget(self) -> None:
        """Somebody else has put the ledger back to where the model is now: all shards that this process holds are from
        before that. They are void, and others are asked for.

        They are named once more, as far as was reported: the ledger refuses what it has taken back, and so the agent
        learns that they are void, too."""
        with self._changed:
            void = {name: _held(queue) for name, queue in self._queues.items() if queue.prefetch}
            self._drop_all()
            for name in void:
                self._queues[name].ended = False
        for name, held in void.items():
            self._say(name, progress=held)

    def _ask_ledger(self, question: LedgerWanted | LedgerPut) -> LedgerMark:
        with self._asking:
            self._send(question)
            with self._changed:
                self._changed.wait_for(lambda: self._marks)
                return self._marks.popleft()

    # Words ------------------------------------------------------------------------------------------------

    def received(self, answer: DataAnswer) -> None:
        with self._changed:
            if isinstance(answer, LedgerMark):
                if answer.mark is None and answer.problem is None:
                    self._drop_all()
                self._marks.append(answer)
                self._changed.notify_all()
                return
            queue = self._queues.setdefault(answer.dataset, _Queue())
            match answer:
                case DatasetUnusable(reason=reason):
                    queue.problem = reason
                case ShardsGiven():
                    queue.leases.extend(answer.leases)
                    self._drop(queue, frozenset(answer.lost))
                    queue.ended = queue.ended or (answer.ended and answer.epoch == queue.epoch)
            self._changed.notify_all()

    def _drop_all(self) -> None:
        """The ledger was restored. Whatever came before this word is from before that, also what was on its way when it
        was asked for."""
        for queue in self._queues.values():
            self._drop(queue, frozenset((*queue.open, *(lease.attempt for lease in queue.leases))))

    def _drop(self, queue: _Queue, lost: frozenset[int]) -> None:
        if lost:
            queue.leases = deque(lease for lease in queue.leases if lease.attempt not in lost)
        for attempt in lost & queue.open.keys():
            queue.open[attempt].is_lost = True

    def _say(self, name: str, *, completed: tuple[int, ...] = (), progress: tuple[Progress, ...] = ()) -> None:
        with self._changed:
            queue = self._queues[name]
            for shard in queue.open.values():
                if not shard.is_lost and shard.done != shard.reported:
                    shard.reported = shard.done
                    progress += (Progress(shard.lease.attempt, shard.done),)
            queue.reported_at = time.monotonic()
            word = ShardsSaid(
                dataset=name,
                epoch=queue.epoch,
                completed=completed,
                progress=progress,
                want=queue.prefetch + max(0, len(queue.open) - 1),
            )
        self._send(word)


def _held(queue: _Queue) -> tuple[Progress, ...]:
    """All that a process holds of a dataset, as far as it has said."""
    begun = [Progress(attempt, shard.reported) for attempt, shard in queue.open.items() if not shard.is_lost]
    return (*begun, *(Progress(lease.attempt, lease.done) for lease in queue.leases))


def packed(mark: Checkpoint) -> bytes:
    """What `checkpoint` gives: a mark, and proof against damage where people keep it."""
    body = msgspec.msgpack.encode(mark)
    return _HEAD.pack(_MAGIC, zlib.crc32(body)) + body


def unpacked(saved: bytes) -> Checkpoint:
    """Raises `BadInput` for anything but what `packed` gave."""
    no_mark = f"these {len(saved)} bytes are no checkpoint of a ledger"
    if len(saved) < _HEAD.size or not saved.startswith(_MAGIC):
        raise BadInput(f"{no_mark}: give restore() what checkpoint() gave")
    _, crc = _HEAD.unpack_from(saved)
    if zlib.crc32(saved[_HEAD.size :]) != crc:
        raise BadInput(f"{no_mark}: they are damaged")
    try:
        return msgspec.msgpack.decode(saved[_HEAD.size :], type=Checkpoint)
    except msgspec.MsgspecError as exc:
        raise BadInput(f"{no_mark}: {exc}") from exc


class Alone:
    """The agent and the master of a process that trains alone: a ledger of its own."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        """A stream may grow in another thread than the one that trains."""
        self._ledger = Ledger()
        self._asked: dict[str, ShardsSaid] = {}
        self._held: dict[str, set[int]] = {}
        self._owner = Owner("alone.0@0")
        self.data = Data(self._said)

    def _said(self, word: DataWord) -> None:
        with self._lock:
            self._hear(word)

    def _hear(self, word: DataWord) -> None:
        match word:
            case DatasetNamed(spec=spec):
                self._ledger = ledgers.registered(self._ledger, spec)
            case ShardsSaid():
                self._exchange(word)
            case StreamSaid(extent=extent):
                self._extend(extent)
            case WorldStands(generation=generation, step=step, mark=mark):
                self._ledger = ledgers.stood(self._ledger, mark, generation=generation, step=step)
            case LedgerWanted():
                self.data.received(LedgerMark(mark=ledgers.checkpoint(self._ledger)))
            case LedgerPut(mark=mark):
                self._ledger, _ = ledgers.restored(self._ledger, mark)
                for held in self._held.values():
                    held.clear()
                self.data.received(LedgerMark())

    def _extend(self, extent: Extent) -> None:
        extend = ledgers.closed if extent.closed else ledgers.grown
        self._ledger, woken = extend(self._ledger, extent.dataset, extent.partition, extent.until)
        for wake in woken:
            self._exchange(msgspec.structs.replace(self._asked[wake.dataset], completed=(), progress=()))

    def _exchange(self, word: ShardsSaid) -> None:
        self._asked[word.dataset] = word
        held = self._held.setdefault(word.dataset, set())
        held.difference_update(word.completed)
        ask = Ask(
            owner=self._owner,
            dataset=word.dataset,
            completed=word.completed,
            progress=word.progress,
            want=max(0, word.want - len(held)),
            epoch=word.epoch,
        )
        self._ledger, answer = ledgers.exchange(self._ledger, ask, datetime.now(UTC))
        held.update(lease.attempt for lease in answer.leases)
        ended = answer.verdict is Verdict.END
        if answer.leases or ended:
            self.data.received(ShardsGiven(dataset=word.dataset, leases=answer.leases, ended=ended, epoch=word.epoch))
