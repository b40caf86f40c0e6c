"""`run`: the training loop around a user's model, which lives through changes of the parameter servers.

Each worker takes shards of the dataset, one after the other, and trains them in batches; a record counts when its step
is done. Between steps the worker attends to what the coordinator says (`member`). A step that fails because a server is
gone is done again when there are servers again, unless its shard was given back meanwhile.
"""

import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from shoal.core.errors import BadInput
from shoal.core.ledger import Kind
from shoal.tensorflow.alone import Alone
from shoal.tensorflow.coordinator import Coordinator
from shoal.tensorflow.generation import ServersLost, Step
from shoal.tensorflow.graphs import ModelFunction, lay_out, signature_of
from shoal.tensorflow.member import Member
from shoal.tensorflow.servers import boot
from shoal.trainer.data import PREFETCH, Data, Shard
from shoal.trainer.job import join
from shoal.wire.local import SOCKET_VARIABLE

PARTS = 8
IDLE_SECONDS = 0.05
"""How long a worker listens before it looks again for a shard, when others have them all."""

Load = Callable[[Sequence[int]], Any]
"""A batch by its record numbers: an array, or a tuple or dict of arrays, whose first axis are the records."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoints:
    """When the chief asks for a checkpoint."""

    directory: str | None = None
    """None: none are made, so the loss of a parameter server is the end of the model."""
    seconds: float = 600.0
    keep: int = 3


def run(
    model: ModelFunction,
    load: Load,
    *,
    batch_size: int,
    dataset: str = "train",
    parts: int = PARTS,
    on_step: Callable[[Step], None] = lambda _: None,
    **data: Any,
) -> None:
    """Train until every record of the dataset is trained, by whomever.

    `model` builds the graph from a batch of placeholders and returns a `Model`; `load` makes a batch of record numbers.
    `parts` is into how many parts a large variable is cut: at least as many as there will be parameter servers, and the
    same for the life of the model. `data` are the words of `Job.dataset`: `size`, `shard_size`, `epochs`, `shuffle`, …
    """
    if SOCKET_VARIABLE in os.environ:
        raise BadInput("shoal.tensorflow trains alone only as yet: start the script with python, not with shoal run")
    job = join()
    job.dataset(dataset, **data)
    server = boot()
    train(
        model,
        load,
        name=dataset,
        batch_size=batch_size,
        parts=parts,
        on_step=on_step,
        data=job.data,
        server=server,
        coordinator=Alone(server.address),
        worker=None,
    )


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
    leave: threading.Event | None = None,
) -> Member:
    """The loop itself, for any coordinator. It ends when all is trained, or after the step in which `leave` is set."""
    if batch_size < 1 or parts < 1:
        raise BadInput(f"batch_size and parts must be at least 1, got {batch_size} and {parts}")
    if data.spec(name).kind is not Kind.RANGE:
        raise BadInput(f"dataset {name}: shoal.tensorflow.run trains range datasets, this is a {data.spec(name).kind}")
    example = load([0])
    signature = signature_of(example)
    member = Member(
        server,
        worker,
        model,
        signature,
        lay_out(model, signature, parts=parts),
        coordinator=coordinator,
        data=data,
        batch=example,
        keep=checkpoints.keep,
    )
    member.name_model()
    member.attend()
    _Loop(member, data, name, load, batch_size, on_step, checkpoints, leave or threading.Event()).run()
    return member


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
    asked_at: float = 0.0

    def run(self) -> None:
        self.asked_at = time.monotonic()
        for shard in self._shards():
            for records in _batches(shard.records(), self.batch_size):
                if not self._trained(self.load(records), shard):
                    break  # it is somebody else's now
                shard.trained(len(records))
                if self.leave.is_set():
                    self.data.put_back(shard)
                    return
                self._ask_for_a_checkpoint()
        if self.member.is_chief and self.checkpoints.directory is not None:
            self._last_checkpoint()

    def _shards(self) -> Iterator[Shard]:
        self.data.want(self.name, prefetch=PREFETCH)
        while True:
            self.member.attend()
            shard = self.data.take(self.name, wait=False)
            if shard is not None:
                yield shard
                self.data.close(shard)
            elif self.data.has_ended(self.name) or self.leave.is_set():
                return
            else:
                self.member.attend(idle=IDLE_SECONDS)

    def _trained(self, batch: Any, shard: Shard) -> bool:
        """Train one batch, however often it takes; False: its shard was lost before that."""
        while True:
            self.member.attend()
            if shard.is_lost:
                return False
            try:
                self.on_step(self.member.train(batch))
            except ServersLost:
                continue
            return True

    def _ask_for_a_checkpoint(self) -> None:
        if self.checkpoints.directory is None or not self.member.is_chief:
            return
        if time.monotonic() - self.asked_at >= self.checkpoints.seconds:
            self.asked_at = time.monotonic()
            self.member.ask_to_save(f"{self.checkpoints.seconds:g} s since the last one")

    def _last_checkpoint(self) -> None:
        saves = self.member.saves
        while self.member.saves == saves:
            self.member.ask_to_save("end")  # again, if a change came between
            self.member.listen()


def _batches(records: Iterator[int], size: int) -> Iterator[list[int]]:
    while batch := list(itertools.islice(records, size)):
        yield batch
