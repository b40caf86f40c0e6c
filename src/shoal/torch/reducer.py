"""Gradients: collected in flat buckets, summed over the members while backward still runs.

Parameters are put into buckets in reverse order of registration, about the order in which backward finishes them. In
the last micro-batch a hook moves each finished gradient into its bucket, weighted with 1/N, and from then on `grad` is
a view into the bucket. A full bucket is launched, always in the same order on every member. What backward did not reach
is launched by `flush`, so that all members make the same collectives whatever they computed.

The last bucket is never launched before `flush`, and has a *tail*: room for the few numbers that a step has to sum
besides gradients. Backward completes that bucket last anyhow, so a step costs no collective more than its gradients.
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
_EXACT = (torch.float32, torch.float64)
"""Types that can carry a tail; after other gradients it travels by itself."""


class _Bucket:
    """One flat buffer: the gradients of some parameters, and maybe a tail."""

    def __init__(self, params: Sequence[Parameter], indices: Sequence[int], like: Tensor) -> None:
        self.params = list(params)
        self.indices = list(indices)
        self._like = like
        self.waiting = 0
        self.renew(tail=0)

    def renew(self, *, tail: int) -> None:
        sizes = [p.numel() for p in self.params]
        self.buffer = torch.zeros(sum(sizes) + tail, dtype=self._like.dtype, device=self._like.device)
        *parts, self.tail = torch.split(self.buffer, [*sizes, tail])
        self.views = [part.view(p.shape) for part, p in zip(parts, self.params, strict=True)]


class Reducer:
    """Owns the gradients of `params` while a step runs: `begin`, then backward, then `flush`."""

    def __init__(
        self,
        params: Iterable[Parameter],
        *,
        device: torch.device,
        overlap: bool = True,
        first_bucket_bytes: int = FIRST_BUCKET_BYTES,
        bucket_bytes: int = BUCKET_BYTES,
    ) -> None:
        everything = list(params)
        self.params = [p for p in everything if p.requires_grad]
        self._frozen = [p for p in everything if not p.requires_grad]
        self._overlap = overlap
        self._buckets = _buckets(self.params, first_bucket_bytes, bucket_bytes, device)
        self._next = 0
        self._last_micro_batch = False
        self._group: Group | None = None
        self._weight = 1.0
        self.used = bytearray(len(self.params))
        """Which parameters got a gradient in this step, here."""
        self._placed = bytearray(len(self.params))
        """Which gradients stand in their bucket."""
        self._hooks: list[Any] = [
            param.register_post_accumulate_grad_hook(self._hook(bucket, index, view))  # type: ignore[no-untyped-call]
            for bucket in self._buckets
            for view, (index, param) in enumerate(zip(bucket.indices, bucket.params, strict=True))
        ]

    @property
    def is_stale(self) -> bool:
        """A parameter that was frozen takes part now: the buckets have to be made anew."""
        return any(p.requires_grad for p in self._frozen)

    @property
    def tail(self) -> Tensor:
        return self._buckets[-1].tail

    def reserve(self, tail: int) -> None:
        """Make the tail this long."""
        if self.tail.numel() != tail:
            self._buckets[-1].renew(tail=tail)

    def begin(self, group: Group, *, weight: float) -> None:
        """`weight`: what one micro-batch counts."""
        self._group = group
        self._weight = weight
        self._next = 0
        self._last_micro_batch = False
        self.used = bytearray(len(self.params))
        self._placed = bytearray(len(self.params))
        for param in self.params:
            param.grad = None
        for bucket in self._buckets:
            bucket.waiting = len(bucket.params)

    def weigh(self, weight: float) -> None:
        """The micro-batch that follows counts so much. What is there already is brought into the same measure."""
        if weight == self._weight:
            return
        with torch.no_grad():
            for param in self.params:
                if param.grad is not None:
                    param.grad.mul_(self._weight / weight)
        self._weight = weight

    def expect_last(self) -> None:
        """The micro-batch that follows is this member's last one: its backward completes the gradients."""
        self._last_micro_batch = self._overlap

    def flush(self, fill_tail: Callable[[Tensor], None]) -> None:
        """Launch what backward has not, last the bucket with the tail. Afterwards every gradient is a view."""
        self._last_micro_batch = False
        for bucket in self._buckets[self._next :]:
            for position, index in enumerate(bucket.indices):
                if not self._placed[index]:
                    self._place(bucket, position, index)
            if bucket is self._buckets[-1]:
                fill_tail(bucket.tail)
            self._launch(bucket)

    def drop(self, unused: Sequence[int]) -> None:
        """Parameters that no member used get no gradient, so that the optimizer skips them."""
        for index in unused:
            self.params[index].grad = None

    def renew(self) -> None:
        """Leave the buffers to collectives that were given up: they may still write into them, and the next step must
        not see it."""
        for bucket in self._buckets:
            bucket.renew(tail=bucket.tail.numel())

    def zero(self) -> None:
        for param in self.params:
            param.grad = None

    def close(self) -> None:
        for hook in self._hooks:
            hook.remove()

    def _hook(self, bucket: _Bucket, index: int, position: int) -> Callable[[Tensor], None]:
        def accumulated(_: Tensor) -> None:
            self.used[index] = 1
            if not self._last_micro_batch:
                return
            if self._placed[index]:
                raise RuntimeError(
                    "a gradient changed after it was complete: call backward() once per micro-batch, "
                    "or make State(..., overlap=False)"
                )
            self._place(bucket, position, index)
            bucket.waiting -= 1
            if bucket.waiting == 0:
                self._launch_full()

        return accumulated

    def _place(self, bucket: _Bucket, position: int, index: int) -> None:
        param, view = bucket.params[position], bucket.views[position]
        self._placed[index] = 1
        if param.grad is None:
            view.zero_()
        else:
            torch.mul(param.grad, self._weight, out=view)
        param.grad = view

    def _launch_full(self) -> None:
        """Launch in order: a full bucket waits for those before it, so that all members launch alike."""
        while self._next < len(self._buckets) - 1 and self._buckets[self._next].waiting == 0:
            self._launch(self._buckets[self._next])

    def _launch(self, bucket: _Bucket) -> None:
        assert self._group is not None
        self._next += 1
        self._group.start(bucket.buffer)


def _buckets(params: Sequence[Parameter], first_bytes: int, next_bytes: int, device: torch.device) -> list[_Bucket]:
    """From the last parameter to the first, one type and device each, up to the size wanted; the last has the tail."""
    done: list[list[int]] = []
    filling: dict[tuple[torch.dtype, torch.device], list[int]] = {}
    for index in reversed(range(len(params))):
        param = params[index]
        part = filling.setdefault((param.dtype, param.device), [])
        part.append(index)
        if sum(params[i].numel() * params[i].element_size() for i in part) >= (next_bytes if done else first_bytes):
            done.append(filling.pop((param.dtype, param.device)))
    done += filling.values()
    buckets = [_Bucket([params[i] for i in part], part, like=params[part[0]]) for part in done]
    if not buckets or buckets[-1].buffer.dtype not in _EXACT:
        buckets.append(_Bucket([], [], like=torch.empty(0, dtype=torch.float64, device=device)))
    return buckets
