"""The few numbers that every step sums over the members besides gradients: one vector, the last bucket's tail.

It carries whether somebody was asked to pause, which parameters got a gradient, and per micro-batch the recorded
metrics and BatchNorm statistics. Each row of a micro-batch is filled by the one member that computed it and zero
elsewhere, so its sum is exact in the vector's type and the same on every member.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from shoal.torch.norms import Norms


@dataclass(frozen=True, slots=True)
class Totals:
    """What all members together said in one step."""

    pause: bool
    unused: tuple[int, ...]
    """Parameters that nobody used."""
    metrics: Mapping[str, float]
    """Means over the micro-batches in which they were recorded, by their weights, summed in logical order."""
    norms: Tensor
    """One row of BatchNorm statistics per micro-batch."""


class Tally:
    """What the vector of one world looks like, and what this member has to put into it."""

    def __init__(self, *, params: int, metrics: Sequence[str], micro_batches: int, norms: Norms) -> None:
        self._params = params
        self._metrics = {name: i for i, name in enumerate(metrics)}
        self._micro_batches = micro_batches
        self._norms = norms
        self._head = 1 + params + 2 * micro_batches * len(self._metrics)
        self.length = self._head + micro_batches * norms.width
        self._recorded: dict[tuple[int, int], Tensor | float] = {}

    def begin(self) -> None:
        self._recorded.clear()

    def record(self, micro_batch: int, metrics: Mapping[str, Tensor | float]) -> None:
        for name, value in metrics.items():
            if name not in self._metrics:
                known = ", ".join(repr(n) for n in (*self._metrics, name))
                raise ValueError(f"metric {name!r} was not declared: make State(..., metrics=({known},))")
            number = value.detach() if isinstance(value, Tensor) else value
            self._recorded[micro_batch, self._metrics[name]] = number

    def fill(self, vector: Tensor, *, pause: bool, used: bytearray, block: range) -> None:
        """Write what this member has to say."""
        columns = len(self._metrics)
        values = [0.0] * (self._micro_batches * columns)
        counts = [0.0] * (self._micro_batches * columns)
        for (micro_batch, column), value in self._recorded.items():
            values[micro_batch * columns + column] = float(value)
            counts[micro_batch * columns + column] = 1.0
        head = [1.0 if pause else 0.0, *used, *values, *counts]
        vector[: self._head] = torch.tensor(head, dtype=vector.dtype)
        if self._norms.width:
            table = self._table(vector).zero_()
            if block:
                self._norms.write(table[block.start : block.stop])

    def read(self, vector: Tensor, weights: Sequence[float] | None = None) -> Totals:
        """`weights`: what each micro-batch counts; None: all the same."""
        head = vector[: self._head].tolist()
        used, numbers = head[1 : 1 + self._params], head[1 + self._params :]
        values, counts = numbers[: len(numbers) // 2], numbers[len(numbers) // 2 :]
        columns = len(self._metrics)
        metrics: dict[str, float] = {}
        for name, column in self._metrics.items():
            said, here = values[column::columns], counts[column::columns]
            if weights is not None:
                said = [value * weight for value, weight in zip(said, weights, strict=True)]
                here = [count * weight for count, weight in zip(here, weights, strict=True)]
            if total := sum(here):
                metrics[name] = sum(said) / total
        unused = tuple(i for i, u in enumerate(used) if not u) if 0.0 in used else ()
        return Totals(pause=head[0] > 0, unused=unused, metrics=metrics, norms=self._table(vector))

    def _table(self, vector: Tensor) -> Tensor:
        return vector[self._head :].view(self._micro_batches, self._norms.width)
