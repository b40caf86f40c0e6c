"""Checkpoints of the dynamic mode: what the model has seen at this moment, in a few bytes.

A checkpoint names, for each lane, the cursor, and the shards below it that are not complete with the records of each
that are. What somebody held is TODO again after a restore, behind its reported records. Leases are not in it: one from
before the restore was trained into a model that is gone, so its report must not count, and its attempt lies below the
restored ledger's `floor`. Nor are failures: each life of a job tries a shard `max_attempts` times. How far a stream
goes is no state of the model: what is known of that is kept.
"""

from dataclasses import dataclass, replace

from shoal.core.errors import BadInput
from shoal.core.ledger.datasets import DatasetSpec, Kind
from shoal.core.ledger.dynamic import DynamicDataset, settled
from shoal.core.ledger.lanes import Lane, bounds, lanes_of, shards_in
from shoal.core.ledger.leases import MAX_ATTEMPT, Returned, Wake
from shoal.core.ledger.streams import closed, grown


@dataclass(frozen=True, slots=True)
class LaneMark:
    cursor: int
    until: int | None
    closed: bool


@dataclass(frozen=True, slots=True)
class OpenShard:
    partition: int
    shard: int
    done: int
    """Records of it that the model has seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DynamicCheckpoint:
    spec: DatasetSpec
    epoch: int
    lanes: tuple[LaneMark, ...]
    open_shards: tuple[OpenShard, ...]
    """Shards below the cursors that are not complete, in the order in which they are leased again."""
    attempts: int
    turn: int


def checkpoint(d: DynamicDataset) -> DynamicCheckpoint:
    leases = sorted((lease.attempt, lease) for mine in d.held.values() for lease in mine.values())
    in_flight = tuple(
        OpenShard(lease.partition, lease.shard, lease.done)
        for _, lease in leases
        if lease.done < lease.stop - lease.start
    )
    return DynamicCheckpoint(
        spec=d.spec,
        epoch=d.epoch,
        lanes=tuple(LaneMark(lane.cursor, lane.until, lane.closed) for lane in d.lanes),
        open_shards=(*in_flight, *(OpenShard(back.partition, back.shard, back.done) for back in d.returned)),
        attempts=d.attempts,
        turn=d.turn,
    )


_MAX_NUMBER = 1 << 62
"""No epoch or offset is beyond it, so that what follows can be written down wherever it is kept."""


def check(mark: DynamicCheckpoint) -> None:
    """Raises `BadInput` for a mark that no ledger has made: they come over the wire and out of files."""
    spec, fresh = mark.spec, () if mark.spec.is_ordered or mark.epoch < 0 else lanes_of(mark.spec, mark.epoch)
    wrong = BadInput(f"dataset {spec.name}: what is said to be trained of epoch {mark.epoch} cannot be")
    if not fresh or len(fresh) != len(mark.lanes) or (spec.epochs is not None and mark.epoch >= spec.epochs):
        raise wrong
    if not (0 <= mark.attempts <= MAX_ATTEMPT and 0 <= mark.turn < len(fresh) and mark.epoch < _MAX_NUMBER):
        raise wrong
    lanes = [_at(lane, m) for lane, m in zip(fresh, mark.lanes, strict=True)]
    for lane, first in zip(lanes, fresh, strict=True):
        end = shards_in(spec, lane) if lane.closed else None
        bounded = spec.kind is not Kind.STREAM
        if (bounded and (lane.until, lane.closed) != (first.until, first.closed)) or lane.cursor < 0:
            raise wrong
        if bounds(spec, lane, lane.cursor)[1] > _MAX_NUMBER or (lane.until or 0) > _MAX_NUMBER:
            raise wrong
        if (lane.until is not None and lane.until < lane.first) or (end is not None and lane.cursor > end):
            raise wrong
    for shard in mark.open_shards:
        if not (0 <= shard.partition < len(lanes) and 0 <= shard.shard < lanes[shard.partition].cursor):
            raise wrong
        start, stop = bounds(spec, lanes[shard.partition], shard.shard)
        if not 0 <= shard.done < stop - start:
            raise wrong
    if len({(shard.partition, shard.shard) for shard in mark.open_shards}) != len(mark.open_shards):
        raise wrong


def restored(d: DynamicDataset, mark: DynamicCheckpoint) -> tuple[DynamicDataset, tuple[Wake, ...]]:
    """Stand where the checkpoint was taken. Whoever waits is woken; whoever holds a lease learns when it reports."""
    lanes = tuple(_at(lane, m) for lane, m in zip(lanes_of(d.spec, mark.epoch), mark.lanes, strict=True))
    attempts = max(d.attempts, mark.attempts)
    fresh = DynamicDataset(
        spec=d.spec,
        epoch=mark.epoch,
        lanes=lanes,
        returned=tuple(Returned(shard.partition, shard.shard, shard.done, 0) for shard in mark.open_shards),
        attempts=attempts,
        floor=attempts,
        turn=mark.turn,
        stood=d.stood,
    )
    fresh, _ = settled(_as_far_as(fresh, d))
    return fresh, tuple(Wake(owner, d.spec.name) for owner in d.waiting)


def restarted(d: DynamicDataset) -> tuple[DynamicDataset, tuple[Wake, ...]]:
    """Stand at the beginning: what a checkpoint means for a dataset that was not there when it was taken."""
    lanes = lanes_of(d.spec, 0)
    marks = tuple(LaneMark(lane.cursor, lane.until, lane.closed) for lane in lanes)
    start = DynamicCheckpoint(spec=d.spec, epoch=0, lanes=marks, open_shards=(), attempts=0, turn=0)
    return restored(d, start)


def _as_far_as(fresh: DynamicDataset, known: DynamicDataset) -> DynamicDataset:
    """Extend the streams of a restored dataset to where they are known to go."""
    if fresh.spec.kind is not Kind.STREAM:
        return fresh
    for partition, lane in enumerate(known.lanes):
        if lane.until is not None:
            extend = closed if lane.closed else grown
            fresh, _ = extend(fresh, partition, lane.until)
    return fresh


def _at(lane: Lane, mark: LaneMark) -> Lane:
    return replace(lane, cursor=mark.cursor, until=mark.until, closed=mark.closed)
