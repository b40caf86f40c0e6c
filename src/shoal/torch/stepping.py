"""One training step on one member: its micro-batches, the reduction, the update. And how a step is given up.

    begin ──▶ micro-batches ──▶ synchronize ──▶ commit
      ▲            │                 │
      └────────────┴── WorldChanged ─┘   nothing written yet: buffers put back, the step is done again

All waiting is in `synchronize`. Once it has returned, this member holds the complete gradients and may update; from the
first parameter write to the end of `commit` nothing waits and nothing raises for a change of world.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from shoal.core.batch import block, sample_range, weights
from shoal.torch.group import Group
from shoal.torch.norms import Norms
from shoal.torch.reducer import Reducer
from shoal.torch.tally import Tally, Totals
from shoal.trainer.keyed import stream_seed


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """One logical micro-batch of a step: the same samples and the same random streams whoever computes it."""

    step: int
    index: int
    """0..N-1 within the step."""
    samples: range
    """The numbers of its samples, counted from the job's beginning; empty without `micro_batch_size`."""
    weight: float
    """What it counts in the step: 1/N, or its part of the step's records where those were given."""
    _tally: Tally = field(repr=False)

    def record(self, **metrics: Tensor | float) -> None:
        """Note metrics of this micro-batch; `state.metrics` has their means after the commit."""
        self._tally.record(self.index, metrics)


class Stepper:
    """The mechanics of steps in one world. Made anew for each world; gradients and hooks are kept by its parts."""

    def __init__(
        self,
        *,
        group: Group,
        micro_batches: int,
        micro_batch_size: int | None,
        seed: int,
        metrics: tuple[str, ...],
        reducer: Reducer,
        norms: Norms,
        buffers: "Buffers",
    ) -> None:
        self.group = group
        self.micro_batches = micro_batches
        self._size = micro_batch_size
        self._seed = seed
        self._block = block(micro_batches, group.size, group.rank)
        self._reducer = reducer
        self._norms = norms
        self._buffers = buffers
        self._tally = Tally(params=len(reducer.params), metrics=metrics, micro_batches=micro_batches, norms=norms)
        reducer.reserve(self._tally.length)
        self.under_way = False
        """A step was begun and neither committed nor given up."""
        self.totals: Totals | None = None
        """What all members said in this step; None before `synchronize`."""
        self.pause_agreed = False
        self._due = self._run = 0
        """How many micro-batches this member has in the step, and how many of them were handed out."""
        self._sizes: Sequence[int] | None = None
        self._weights: tuple[float, ...] | None = None
        self.samples = 0
        """How many samples this member has computed in the step."""
        self.waited = 0.0
        """Seconds of the step in which it waited for the others."""

    def begin(self, sizes: Sequence[int] | None = None) -> None:
        """`sizes`: how many records each micro-batch of the step has, if that is not the same for all."""
        self._buffers.save()
        self._sizes, self._weights = sizes, None if sizes is None else weights(sizes)
        self._reducer.begin(self.group, weight=1.0 / self.micro_batches)
        self._tally.begin()
        self.totals = None
        self._due, self._run = sum(1 for index in self._block if self._weight(index)), 0
        self.samples, self.waited = 0, 0.0
        self.under_way = True

    def run(self, step: int, first: int) -> Iterator[MicroBatch]:
        """`first`: how many micro-batches the job has done before this step."""
        last = max((p for p, index in enumerate(self._block) if self._weight(index)), default=None)
        for position, index in enumerate(self._block):
            weight = self._weight(index)
            if weight:
                seed_streams(stream_seed(self._seed, step, index))
                self._reducer.weigh(weight)
            if position == last:
                self._reducer.expect_last()
            with self._norms.micro_batch(position):
                if weight:
                    self._run += 1
                    samples = self._samples(first, index)
                    self.samples += len(samples)
                    yield MicroBatch(step, index, samples, weight, self._tally)

    def check_run(self, step: int) -> None:
        """Raises when micro-batches were left out: the mean would be wrong, and their records count as trained."""
        if self._run < self._due:
            raise RuntimeError(
                f"{self._run} of this worker's {self._due} micro-batches of step {step} were run: "
                "run all of them before commit(), or take the step back with state.restore()"
            )

    def synchronize(self) -> Totals:
        if self.totals is None:
            began = time.monotonic()
            self._reducer.flush(self._fill_tail)
            self.group.drain()
            self.waited = time.monotonic() - began
            self.totals = self._tally.read(self._reducer.tail, self._weights)
            self._reducer.drop(self.totals.unused)
        return self.totals

    def commit(self) -> None:
        """The step is applied: bring in the normalisation statistics and close it."""
        assert self.totals is not None
        if self._norms.width:
            self._norms.apply(self.totals.norms)
        self.pause_agreed = self.totals.pause
        self.under_way = False

    def give_up(self) -> None:
        """Undo what forward and backward changed."""
        self._buffers.put_back()
        if self.group.is_busy:
            self._reducer.renew()
        else:
            self._reducer.zero()
        self.under_way = False

    def _fill_tail(self, tail: Tensor) -> None:
        self._tally.fill(tail, pause=self.group.is_pausing, used=self._reducer.used, block=self._block)

    def _weight(self, index: int) -> float:
        return 1.0 / self.micro_batches if self._weights is None else self._weights[index]

    def _samples(self, first: int, index: int) -> range:
        """Those of the micro-batch `index` of a step that begins with the job's micro-batch `first`."""
        if self._size is None:
            return range(0)
        whole = sample_range(0, first + index, micro_batches=1, size=self._size)
        return whole if self._sizes is None else whole[: self._sizes[index]]


class Buffers:
    """A model's buffers other than BatchNorm's, as they were when the step began.

    Only those that changed since they were last saved are copied: a constant mask costs nothing.
    """

    def __init__(self, model: nn.Module, norms: Norms) -> None:
        self._all = [
            (module, name)
            for module in model.modules()
            for name, buffer in module._buffers.items()
            if buffer is not None and not norms.owns(buffer)
        ]
        self._saved: list[tuple[Tensor, int, Tensor]] = []

    def tensors(self) -> list[Tensor]:
        return [buffer for module, name in self._all if (buffer := module._buffers[name]) is not None]

    def save(self) -> None:
        for i, (module, name) in enumerate(self._all):
            buffer = module._buffers[name]
            assert buffer is not None
            if i == len(self._saved):
                self._saved.append((buffer, buffer._version, buffer.detach().clone()))
            elif self._saved[i][0] is not buffer or self._saved[i][1] != buffer._version:
                self._saved[i] = (buffer, buffer._version, buffer.detach().clone())

    def put_back(self) -> None:
        with torch.no_grad():
            for i, ((module, name), (buffer, version, copy)) in enumerate(
                zip(self._all, list(self._saved), strict=False)
            ):
                if module._buffers[name] is not buffer or buffer._version != version:
                    module._buffers[name] = buffer
                    buffer.copy_(copy)
                    self._saved[i] = (buffer, buffer._version, copy)


def seed_streams(seed: int) -> None:
    """Seed torch's default streams. Not `torch.manual_seed`, which visits every accelerator there could be."""
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.manual_seed(seed)
