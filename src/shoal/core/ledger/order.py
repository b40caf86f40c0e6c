"""The line: the order in which one epoch's records are trained, and the bijection between its places and the records.

All accounts of the ledger are kept in *positions* on the line, 0 for what is trained first. Shard i is the i-th stretch
of the line, so what has been handed out is (but for what is in flight) a prefix, and the state of a dataset of 10⁹
records is a few numbers. Only a reader asks which *record* a position is.

    shuffle          position p, in shard i           record
    none             p                                p
    samples          p                                permutation of all records (p)
    shards           start(i) + offset                shard_size · permutation of shards (i) + offset
    within-shards    start(i) + offset                shard_size · … (i) + permutation of that shard (offset)

Shards keep their borders in the dataset whatever the epoch, so they can be laid along files. The one that is shorter
than the others is moved like them; the shards behind it begin so much earlier.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from shoal.core.ledger.datasets import DatasetSpec, Shuffle
from shoal.core.ledger.permutation import Permutation, derive

_SHARDS, _SAMPLES, _WITHIN = 1, 2, 3  # what a derived seed is for


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """The line of one epoch of a bounded dataset. Made by `order_of`."""

    records: int
    """How many records the dataset has. The line is shorter when an incomplete shard is left out."""
    shard: int
    shards: int
    short_at: int
    """Which shard of the line is the short one, if there is one."""
    seed: int
    shards_order: Permutation | None
    samples_order: Permutation | None
    within: bool

    @property
    def length(self) -> int:
        return min(self.records, self.shards * self.shard)

    def bounds(self, shard: int) -> tuple[int, int]:
        """The positions of a shard: from, up to."""
        return shard_bounds(shard, size=self.shard, short=self.length % self.shard, short_at=self.short_at)

    def shard_at(self, position: int) -> int:
        short = self.length % self.shard
        if short and position >= self.short_at * self.shard + short:
            position += self.shard - short
        return position // self.shard

    def trained(self, start: int, stop: int) -> Iterator[int]:
        """The records at positions start..stop-1, in the order in which they are trained."""
        if not 0 <= start <= stop <= self.length:
            raise IndexError(f"positions {start}..{stop} are not on a line of {self.length} records")
        if self.samples_order is not None:
            yield from self.samples_order.span(start, stop)
        elif self.shards_order is None:
            yield from range(start, stop)
        else:
            yield from self._by_shards(self.shards_order, start, stop)

    def _by_shards(self, shards_order: Permutation, start: int, stop: int) -> Iterator[int]:
        while start < stop:
            shard = self.shard_at(start)
            begin, end = self.bounds(shard)
            number = shards_order(shard)
            offsets = range(start - begin, min(end, stop) - begin)
            if self.within:
                order = Permutation(end - begin, derive(self.seed, _WITHIN, number))
                yield from (number * self.shard + offset for offset in order.span(offsets.start, offsets.stop))
            else:
                yield from range(number * self.shard + offsets.start, number * self.shard + offsets.stop)
            start = min(end, stop)


def order_of(spec: DatasetSpec, epoch: int) -> Order:
    """The line of this epoch: another one each epoch, the same one for the same seed."""
    seed = derive(spec.seed, epoch)
    full, short = divmod(spec.records, spec.shard)
    leaves_out = spec.drop_last and not spec.is_ordered  # the ordered mode leaves a batch out, not a shard
    shards = full + (1 if short and not leaves_out else 0)
    moved = spec.shuffle in (Shuffle.SHARDS, Shuffle.WITHIN_SHARDS)
    shards_order = Permutation(shards, derive(seed, _SHARDS)) if moved else None
    shuffled = spec.shuffle is Shuffle.SAMPLES
    return Order(
        records=spec.records,
        shard=spec.shard,
        shards=shards,
        short_at=shards_order.inverse(shards - 1) if shards_order is not None else shards - 1,
        seed=seed,
        shards_order=shards_order,
        samples_order=Permutation(spec.records, derive(seed, _SAMPLES)) if shuffled else None,
        within=spec.shuffle is Shuffle.WITHIN_SHARDS,
    )


def shard_bounds(shard: int, *, size: int, short: int, short_at: int) -> tuple[int, int]:
    """The positions of a shard on a line whose shards have `size` records, but for one at `short_at` if `short` > 0."""
    start = shard * size
    if not short or shard < short_at:
        return start, start + size
    if shard == short_at:
        return start, start + short
    return start - size + short, start + short
