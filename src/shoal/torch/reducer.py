"""Gradients: accumulated in flat buckets, summed over the members while backward still runs.

Parameters are put into buckets in reverse order of registration, about the order in which backward finishes them, and
each `grad` is a view into its bucket: nothing is copied. In the last micro-batch a hook counts down each bucket; a full
one is launched, always in the same order on every member. What backward did not reach is launched by `flush`, so that
all members make the same collectives whatever they computed. The sum is divided by the number of micro-batches once.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from shoal.torch.group import Group

FIRST_BUCKET_BYTES = 1 << 20
"""Small, so that the first all-reduce starts early in backward."""
BUCKET_BYTES = 25 << 20


class _Bucket:
    """One flat buffer and the gradients that live in it."""

    def __init__(self, params: Sequence[Parameter]) -> None:
        self.params = list(params)
        self.waiting = 0
        self.launched = False
        self.renew()

    def renew(self) -> None:
        sizes = [p.numel() for p in self.params]
        self.buffer = torch.zeros(sum(sizes), dtype=self.params[0].dtype, device=self.params[0].device)
        parts = torch.split(self.buffer, sizes)
        self.views = [part.view(p.shape) for part, p in zip(parts, self.params, strict=True)]
        for param, view in zip(self.params, self.views, strict=True):
            param.grad = view

    def begin(self) -> None:
        self.buffer.zero_()
        self.waiting = len(self.params)
        self.launched = False
        for param, view in zip(self.params, self.views, strict=True):
            if param.grad is not view:
                param.grad = view


class Reducer:
    """Owns the gradients of `params`. One `begin` … `flush` … `average` per step; `close` gives them back."""

    def __init__(
        self,
        params: Iterable[Parameter],
        *,
        overlap: bool = True,
        first_bucket_bytes: int = FIRST_BUCKET_BYTES,
        bucket_bytes: int = BUCKET_BYTES,
    ) -> None:
        everything = list(params)
        self.params = [p for p in everything if p.requires_grad]
        self._frozen = [p for p in everything if not p.requires_grad]
        self._overlap = overlap
        self._buckets = [_Bucket(part) for part in _parts(self.params, first_bucket_bytes, bucket_bytes)]
        self._next = 0
        self._last_micro_batch = False
        self._group: Group | None = None
        self.used = bytearray(len(self.params))
        """Which parameters got a gradient in this step, here."""
        number = {id(p): i for i, p in enumerate(self.params)}
        self._hooks: list[Any] = [
            param.register_post_accumulate_grad_hook(self._hook(bucket, number[id(param)]))  # type: ignore[no-untyped-call]
            for bucket in self._buckets
            for param in bucket.params
        ]

    @property
    def is_stale(self) -> bool:
        """A parameter that was frozen takes part now: the buckets have to be made anew."""
        return any(p.requires_grad for p in self._frozen)

    def begin(self, group: Group) -> None:
        self._group = group
        self._next = 0
        self._last_micro_batch = False
        self.used = bytearray(len(self.params))
        for bucket in self._buckets:
            bucket.begin()

    def expect_last(self) -> None:
        """The micro-batch that follows is this member's last one: its backward completes the gradients."""
        self._last_micro_batch = self._overlap

    def flush(self) -> None:
        """Launch what backward has not."""
        self._last_micro_batch = False
        for bucket in self._buckets[self._next :]:
            self._launch(bucket)

    def average(self, micro_batches: int, unused: Sequence[int]) -> None:
        """Turn sums into means. Parameters that no member used get no gradient, so that the optimizer skips them."""
        if micro_batches > 1:
            for bucket in self._buckets:
                bucket.buffer.mul_(1.0 / micro_batches)
        for index in unused:
            self.params[index].grad = None

    def renew(self) -> None:
        """Leave the buffers to collectives that were given up: they may still write into them, and the next step must
        not see it."""
        for bucket in self._buckets:
            bucket.renew()

    def zero(self) -> None:
        for bucket in self._buckets:
            bucket.buffer.zero_()

    def close(self) -> None:
        for hook in self._hooks:
            hook.remove()

    def _hook(self, bucket: _Bucket, index: int) -> Callable[[Tensor], None]:
        def accumulated(_: Tensor) -> None:
            self.used[index] = 1
            if self._last_micro_batch:
                if bucket.launched:
                    raise RuntimeError(
                        "a gradient changed after it had been sent to the other workers: call backward() once per "
                        "micro-batch, or make State(..., overlap=False)"
                    )
                bucket.waiting -= 1
                if bucket.waiting == 0:
                    self._launch_full()

        return accumulated

    def _launch_full(self) -> None:
        """Launch in order: a full bucket waits for those before it, so that all members launch alike."""
        while self._next < len(self._buckets) and self._buckets[self._next].waiting <= 0:
            self._launch(self._buckets[self._next])

    def _launch(self, bucket: _Bucket) -> None:
        assert self._group is not None
        bucket.launched = True
        self._next += 1
        self._group.start(bucket.buffer)


def _parts(params: Sequence[Parameter], first_bytes: int, next_bytes: int) -> list[list[Parameter]]:
    """Split into buckets: from the last parameter to the first, one type and device each, up to the size wanted."""
    done: list[list[Parameter]] = []
    filling: dict[tuple[torch.dtype, torch.device], list[Parameter]] = {}
    for param in reversed(params):
        key = (param.dtype, param.device)
        part = filling.setdefault(key, [])
        part.append(param)
        if sum(p.numel() * p.element_size() for p in part) >= (next_bytes if done else first_bytes):
            done.append(filling.pop(key))
    return done + list(filling.values())
