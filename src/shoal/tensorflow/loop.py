"""The training loop around a user's model, which lives through changes of the parameter servers.

Each worker takes shards of the dataset, one after the other, and trains them in batches; a record counts when its step
is done. Between steps the worker attends to what the coordinator says (`member`). A step that fails because a server is
gone is done again when there are servers again, unless its shard was given back meanwhile.

When all is trained the chief sees to a last checkpoint, and tries for a while when it cannot be written: it is the
finished model. If it never can, that is an error, and training has not come to a good end. A server that is lost before
that takes everybody back: then there is something to train again, and whoever is still here does so.
"""

import itertools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from shoal.core.errors import BadInput, ShoalError
from shoal.core.ledger import Kind
from shoal.tensorflow.coordinator import Coordinator
from shoal.tensorflow.generation import ServersLost, Step
from shoal.tensorflow.graphs import ModelFunction, draw, signature_of
from shoal.tensorflow.member import Leaving, Member
from shoal.tensorflow.pauses import Pause
from shoal.trainer.data import PREFETCH, Data, Shard
from shoal.trainer.meter import Meter

PARTS = 8
IDLE_SECONDS = 0.05
"""How long a worker listens before it looks again for a shard, when others have them all."""

ASK_AGAIN_SECONDS = 10.0
"""How long the chief waits for the order to save before it asks again."""

LONGEST_PAUSE_SECONDS = 16.0
"""Between two tries to write the last checkpoint. The first pause is one second, each next one twice as long."""

Load = Callable[[Sequence[int]], Any]
"""A batch by its record numbers: an array, or a tuple or dict of arrays, whose first axis are the records."""


class NotSaved(ShoalError):
    """All is trained, and the model could not be saved; the text says where and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoints:
    """When the chief asks for a checkpoint."""

    directory: str | None = None
    """None: none are made, so the loss of a parameter server is the end of the model."""
    seconds: float = 600.0
    keep: int = 3
    fuzzy: bool = False
    """Only the chief stands still for one, but for the last."""
    patience: float = 120.0
    """How long the last one is tried, in seconds from the first failure."""


def train(
    model: ModelFunction,
    load: Load,
    *,
    name: str,
    batch_size: int,
    parts: int,
    data: Data,
    server: Any,
    coordinator: Coordinator,
    worker: int | None,
    checkpoints: Checkpoints = Checkpoints(),  # noqa: B008  frozen
    on_step: Callable[[Step], None] = lambda _: None,
    on_pause: Callable[[Pause], None] = lambda _: None,
    leave: threading.Event | None = None,
    meter: Meter | None = None,
    joined: Callable[[Member], None] = lambda _: None,
) -> bool:
    """The loop itself, for any coordinator. True: all is trained; False: `leave` was set, and the step in hand was the
    last. `joined` is called with the member before it says its first word. Raises `NotSaved`."""
    if batch_size < 1 or parts < 1:
        raise BadInput(f"batch_size and parts must be at least 1, got {batch_size} and {parts}")
    if data.spec(name).kind is not Kind.RANGE:
        raise BadInput(f"dataset {name}: shoal.tensorflow.run trains range datasets, this is a {data.spec(name).kind}")
    example = load([0])
    leave = leave or threading.Event()
    member = Member(
        server,
        worker,
        draw(model, signature_of(example), parts=parts),
        coordinator=coordinator,
        data=data,
        batch=example,
        keep=checkpoints.keep,
        leave=leave,
        on_pause=on_pause,
    )
    joined(member)
    member.name_model()
    try:
        member.attend()
        return _Loop(member, data, name, load, batch_size, on_step, checkpoints, leave, meter or Meter()).run()
    except Leaving:
        return False


@dataclass(slots=True)
class _Loop:
    member: Member
    data: Data
    name: str
    load: Load
    batch_size: int
    on_step: Callable[[Step], None]
    checkpoints: Checkpoints
    leave: threading.Event
    meter: Meter
    asked_at: float = 0.0

    def run(self) -> bool:
        self.asked_at = time.monotonic()
        while True:
            for shard in self._shards():
                self._train(shard)
            if self.leave.is_set():
                return False
            if self._is_saved():
                return True

    def _train(self, shard: Shard) -> None:
        for records in _batches(shard.records(), self.batch_size):
            if not self._trained(self.load(records), shard):
                return  # it is somebody else's now
            shard.trained(len(records))
            self.meter.committed(samples=len(records), waited=0.0)
            if self.leave.is_set():
                return
            self._ask_for_a_checkpoint()

    def _shards(self) -> Iterator[Shard]:
        self.data.want(self.name, prefetch=PREFETCH)
        while True:
            self.member.attend()
            shard = self.data.take(self.name, wait=False)
            if shard is not None:
                yield shard
                if shard.done < shard.size and not shard.is_lost:
                    self.data.put_back(shard)
                    return  # told to leave
                self.data.close(shard)
            elif self.data.has_ended(self.name) or self.leave.is_set():
                return
            else:
                self.meter.stop()
                self.member.attend(idle=IDLE_SECONDS)

    def _trained(self, batch: Any, shard: Shard) -> bool:
        """Train one batch, however often it takes; False: its shard was lost before that."""
        while True:
            self._attend()
            if shard.is_lost:
                return False
            self.meter.begin()
            try:
                self.on_step(self.member.train(batch))
            except ServersLost:
                continue
            return True

    def _attend(self) -> None:
        """What it stands still for is no part of a step."""
        began = time.monotonic()
        self.member.attend()
        self.meter.rested(time.monotonic() - began)

    def _ask_for_a_checkpoint(self) -> None:
        if self.checkpoints.directory is None or not self.member.is_chief:
            return
        if time.monotonic() - self.asked_at >= self.checkpoints.seconds:
            self.asked_at = time.monotonic()
            self.member.ask_to_save(f"{self.checkpoints.seconds:g} s since the last one", fuzzy=self.checkpoints.fuzzy)

    def _is_saved(self) -> bool:
        """The chief waits for the last checkpoint, and for the word to go on after it; False: there is something to
        train again. Raises `NotSaved`."""
        member, saves = self.member, self.member.saves
        tries = _Tries(began=time.monotonic(), known=member.failed_saves)
        while member.is_chief and self.checkpoints.directory is not None:
            if member.saves > saves and member.may_train:
                return True
            tries.failed(member.failed_saves, now=time.monotonic())
            if tries.lasted >= self.checkpoints.patience and member.may_train:
                raise NotSaved(
                    f"all is trained, but the model could not be saved in {self.checkpoints.directory}, "
                    f"tried {tries.count} times in {tries.lasted:.0f} s: {member.why_not_saved}"
                )
            pause = tries.pause(now=time.monotonic())
            if member.saves == saves and not pause:
                member.ask_to_save("end")  # again, if a change came between or nobody answered
            member.listen(wait=pause or ASK_AGAIN_SECONDS)
            if not self.data.has_ended(self.name):
                return False
        return True


@dataclass(slots=True)
class _Tries:
    """Failed tries to write the last checkpoint."""

    began: float
    known: int
    """Failures that were counted already."""
    count: int = 0
    at: float = 0.0
    """The last one."""

    def failed(self, total: int, *, now: float) -> None:
        if total <= self.known:
            return
        self.began = now if self.count == 0 else self.began
        self.count, self.known, self.at = self.count + total - self.known, total, now

    @property
    def lasted(self) -> float:
        return 0.0 if self.count == 0 else self.at - self.began

    def pause(self, *, now: float) -> float:
        """For how long nothing is tried now."""
        if self.count == 0:
            return 0.0
        return max(0.0, self.at + min(2.0 ** min(self.count - 1, 10), LONGEST_PAUSE_SECONDS) - now)


def _batches(records: Iterator[int], size: int) -> Iterator[list[int]]:
    while batch := list(itertools.islice(records, size)):
        yield batch
