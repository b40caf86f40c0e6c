"""BatchNorm: running statistics that do not depend on who computes which micro-batch.

Within a micro-batch a layer normalises with that micro-batch's own statistics, as in PyTorch. Its running statistics
are not touched meanwhile: around each forward call they are replaced by accumulators that start at zero, so that after
the micro-batch these hold exactly what it would have added. The step's small all-reduce brings every micro-batch's
accumulators to every member, and at the commit all apply them in logical order: r ← (1-m)^c · r + a after c calls
(cumulative average, momentum None: r ← (n·r + c·a) / (n+c) with n batches seen before).
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

_BUFFERS = ("running_mean", "running_var", "num_batches_tracked")


class Norms:
    """The BatchNorm layers of a model that keep running statistics. `width` numbers per micro-batch describe them."""

    def __init__(self, model: nn.Module) -> None:
        self._layers: list[_BatchNorm] = []
        self.width = 0
        self._slots: list[list[_Slot]] = []
        self._current: list[_Slot] | None = None
        self._hooks: list[Any] = []
        for module in model.modules():
            if isinstance(module, _BatchNorm) and module.running_mean is not None and module.running_var is not None:
                index = len(self._layers)
                self._layers.append(module)
                self.width += module.running_mean.numel() * 2 + 1
                self._hooks.append(module.register_forward_pre_hook(lambda m, _, i=index: self._before(m, i)))
                self._hooks.append(
                    module.register_forward_hook(lambda m, _, __, i=index: self._after(m, i), always_call=True)
                )

    def owns(self, buffer: Tensor) -> bool:
        return any(buffer is layer._buffers[name] for layer in self._layers for name in _BUFFERS)

    @contextmanager
    def micro_batch(self, position: int) -> Iterator[None]:
        """Statistics made inside belong to this member's micro-batch number `position` of the step."""
        if not self._layers:
            yield
            return
        while len(self._slots) <= position:
            self._slots.append([_Slot(layer) for layer in self._layers])
        self._current = self._slots[position]
        for slot in self._current:
            slot.clear()
        try:
            yield
        finally:
            self._current = None

    def write(self, rows: Tensor) -> None:
        """Put this member's micro-batches, one row each, into the table."""
        for row, slots in zip(rows, self._slots, strict=False):
            row.copy_(torch.cat([part for slot in slots for part in slot.parts()]))

    def apply(self, table: Tensor) -> None:
        """Bring the running statistics up to date from all micro-batches of the step, in logical order."""
        with torch.no_grad():
            start = 0
            for layer in self._layers:
                width = layer.running_mean.numel()  # type: ignore[union-attr]
                _apply(layer, table[:, start : start + 2 * width + 1])
                start += 2 * width + 1

    def close(self) -> None:
        for hook in self._hooks:
            hook.remove()

    def _before(self, layer: nn.Module, index: int) -> None:
        if self._current is not None and layer.training and layer.track_running_stats:
            self._current[index].put_in(layer)

    def _after(self, layer: nn.Module, index: int) -> None:
        if self._current is not None:
            self._current[index].take_out(layer)


class _Slot:
    """Accumulators of one layer in one micro-batch."""

    def __init__(self, layer: _BatchNorm) -> None:
        assert layer.running_mean is not None
        assert layer.running_var is not None
        self._accumulators: dict[str, Tensor | None] = {
            "running_mean": torch.zeros_like(layer.running_mean),
            "running_var": torch.zeros_like(layer.running_var),
            "num_batches_tracked": torch.zeros((), dtype=torch.long, device=layer.running_mean.device),
        }
        self._put_aside: dict[str, Tensor | None] | None = None

    def clear(self) -> None:
        for accumulator in self._accumulators.values():
            assert accumulator is not None
            accumulator.zero_()

    def put_in(self, layer: nn.Module) -> None:
        self._put_aside = {name: layer._buffers[name] for name in _BUFFERS}
        layer._buffers.update(self._accumulators)

    def take_out(self, layer: nn.Module) -> None:
        if self._put_aside is not None:
            layer._buffers.update(self._put_aside)
            self._put_aside = None

    def parts(self) -> Sequence[Tensor]:
        a = self._accumulators
        mean, var, count = (a[name] for name in _BUFFERS)
        assert mean is not None
        assert var is not None
        assert count is not None
        return mean.double(), var.double(), count.double().reshape(1)


def _apply(layer: _BatchNorm, rows: Tensor) -> None:
    mean, var, tracked = layer.running_mean, layer.running_var, layer.num_batches_tracked
    assert mean is not None
    assert var is not None
    width = mean.numel()
    counts = [int(c) for c in rows[:, -1].tolist()]
    seen = int(tracked) if tracked is not None else 0
    for row, count in zip(rows.to(mean.dtype), counts, strict=True):
        if count == 0:
            continue
        if layer.momentum is None:
            keep, take = seen / (seen + count), count / (seen + count)
        else:
            keep, take = (1.0 - layer.momentum) ** count, 1.0
        mean.mul_(keep).add_(row[:width], alpha=take)
        var.mul_(keep).add_(row[width : 2 * width], alpha=take)
        seen += count
    if tracked is not None:
        tracked.fill_(seen)
