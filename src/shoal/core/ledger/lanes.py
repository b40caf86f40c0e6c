"""Lanes: lines of shards that are handed out from their beginning.

A bounded dataset has one lane, the line of the epoch under way; a stream has one for each partition.
"""

from dataclasses import dataclass

from shoal.core.ledger.datasets import DatasetSpec, Kind
from shoal.core.ledger.order import order_of, shard_bounds


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """One line of shards, handed out from its beginning."""

    first: int
    """The first position or offset."""
    until: int | None
    """Where the records end that are known to exist; None: a stream of which nobody has said."""
    closed: bool
    """There will never be more than `until`."""
    short_at: int | None = None
    """Which shard is the short one, if another than the last can be."""
    cursor: int = 0
    """The first shard that was never leased."""


def lanes_of(spec: DatasetSpec, epoch: int) -> tuple[Lane, ...]:
    if spec.kind is Kind.STREAM:
        return tuple(Lane(first=first, until=None, closed=False) for first in spec.partitions)
    order = order_of(spec, epoch)
    return (Lane(first=0, until=order.length, closed=True, short_at=order.short_at),)


def shards_in(spec: DatasetSpec, lane: Lane) -> int | None:
    """How many shards of a lane can be leased; None: no end. A short one only when there will be no more records."""
    if lane.until is None:
        return None
    full, short = divmod(lane.until - lane.first, spec.shard)
    return full + (1 if short and lane.closed else 0)


def bounds(spec: DatasetSpec, lane: Lane, shard: int) -> tuple[int, int]:
    """The positions (or offsets) of a shard: from, up to."""
    size = spec.shard
    if lane.short_at is not None and lane.until is not None:
        return shard_bounds(shard, size=size, short=lane.until % size, short_at=lane.short_at)
    start = lane.first + shard * size
    stop = start + size
    return start, min(stop, lane.until) if lane.closed and lane.until is not None else stop
