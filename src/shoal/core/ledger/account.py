"""The account: which records of which epoch are trained, exactly once each, as ranges. For audits and for people.

Ranges are positions on the epoch's line (offsets of a stream). `records` says which records those are.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from shoal.core.ledger.datasets import DatasetSpec, Kind
from shoal.core.ledger.dynamic import DynamicDataset
from shoal.core.ledger.intervals import Ranges, merged, minus, total
from shoal.core.ledger.lanes import bounds
from shoal.core.ledger.order import order_of
from shoal.core.ledger.ordered import OrderedDataset, step_slice, steps_per_epoch, total_steps


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """What of a dataset is trained."""

    dataset: str
    epoch: int
    """The epoch (of an evaluation: the round) under way, or the last one. Training epochs before it are complete."""
    done: tuple[Ranges, ...]
    """What of this epoch is trained: of each partition of a stream, otherwise one entry."""
    line: int | None
    """How many records this epoch has, without those that `drop_last` leaves out; None: a stream, no end is known."""

    @property
    def count(self) -> int:
        """How many records of this epoch are trained."""
        return sum(total(ranges) for ranges in self.done)


def of_dataset(dataset: DynamicDataset | OrderedDataset) -> Account:
    match dataset:
        case OrderedDataset():
            return _of_ordered(dataset)
        case DynamicDataset():
            return _of_dynamic(dataset)


def records(spec: DatasetSpec, epoch: int, ranges: Iterable[tuple[int, int]]) -> Iterator[int]:
    """The records at these positions, in the order in which they are trained. A stream's offsets are its records."""
    if spec.kind is Kind.STREAM:
        for start, stop in ranges:
            yield from range(start, stop)
        return
    order = order_of(spec, epoch)
    for start, stop in ranges:
        yield from order.trained(start, stop)


def _of_ordered(dataset: OrderedDataset) -> Account:
    spec, end = dataset.spec, total_steps(dataset.spec)
    per_epoch = steps_per_epoch(spec)
    epoch, steps = divmod(dataset.steps, per_epoch)
    if dataset.steps == end:
        epoch, steps = epoch - 1, per_epoch
    first = epoch * per_epoch
    stop = step_slice(spec, first + steps - 1).stop if steps else 0
    line = step_slice(spec, first + per_epoch - 1).stop
    return Account(dataset=spec.name, epoch=epoch, done=(merged([(0, stop)]),), line=line)


def _of_dynamic(d: DynamicDataset) -> Account:
    """All below the cursor, without what is not done of the shards in flight and in TODO."""
    missing: list[list[tuple[int, int]]] = [[] for _ in d.lanes]
    for leases in d.held.values():
        for lease in leases.values():
            missing[lease.partition].append((lease.start + lease.done, lease.stop))
    for shard in d.returned:
        start, stop = bounds(d.spec, d.lanes[shard.partition], shard.shard)
        missing[shard.partition].append((start + shard.done, stop))
    done = []
    for partition, lane in enumerate(d.lanes):
        stop = bounds(d.spec, lane, lane.cursor - 1)[1] if lane.cursor else lane.first
        done.append(minus(merged([(lane.first, stop)]), merged(missing[partition])))
    ends = [lane.until - lane.first if lane.closed and lane.until is not None else None for lane in d.lanes]
    line = None if None in ends else sum(end for end in ends if end is not None)
    return Account(dataset=d.spec.name, epoch=d.epoch, done=tuple(done), line=line)
