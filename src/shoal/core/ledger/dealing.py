"""Dealing: a world that trains in lockstep shares shards out among its own seats, by arithmetic.

A *seat* is one micro-batch of a step. Each has a shard open and takes its next records in every step. All members run
this same function on the same `Standing`, so all know what everybody trains in a step and how many records the step
has; nothing is asked for and nothing is agreed on. The standing *after* a step becomes the members' own when the step
is committed, together with the model: a step that is given up leaves no trace, and whoever has the model knows exactly
what it has seen. The master is told where the world stands (`ledger.stood`); it leases nothing of such a dataset.

    seats    0: shard 7, 30 done   1: shard 4, 90 done   2: none
    todo     shard 5, 12 done                            left by a larger world, or by a checkpoint: first in line
    cursor   8                                           the first shard that nobody has begun

Nobody runs dry before the epoch does: when no shard is left to begin, a seat without one reads on in the shard that has
most left. So only the last step of an epoch is short, and only there may a seat get nothing.
"""

from dataclasses import dataclass, replace

from shoal.core.errors import BadInput
from shoal.core.ledger.datasets import DatasetSpec
from shoal.core.ledger.lanes import Lane, bounds, lanes_of, shards_in
from shoal.core.ledger.rewind import DynamicCheckpoint, LaneMark, OpenShard

Hand = tuple[tuple[int, int], ...]
"""What one seat trains in a step: stretches of the epoch's line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What the model of a world has seen of a dataset, and who reads where. Made by `opened` and `standing_at`."""

    spec: DatasetSpec
    epoch: int
    lane: Lane
    seats: tuple[OpenShard | None, ...] = ()
    todo: tuple[OpenShard, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Deal:
    """One step's records."""

    epoch: int
    hands: tuple[Hand, ...]
    after: Standing
    """Where the world stands once the step is committed."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """How many records each seat has."""
        return tuple(sum(stop - start for start, stop in hand) for hand in self.hands)


def opened(spec: DatasetSpec) -> Standing:
    if not spec.together:
        raise BadInput(f"dataset {spec.name} is leased by the master: it is not dealt inside a world")
    return _begun(spec, 0)


def dealt(standing: Standing, *, seats: int, size: int) -> Deal | None:
    """The next step for so many seats of up to `size` records; None: everything is trained."""
    if seats < 1 or size < 1:
        raise BadInput(f"dataset {standing.spec.name}: a step needs seats and records, got {seats} of {size}")
    if _is_over(standing):
        if standing.epoch + 1 == standing.spec.epochs:
            return None
        standing = _begun(standing.spec, standing.epoch + 1)
    table = _Table(_seated(standing, seats), size)
    for seat in range(seats):
        table.read_own(seat)
    for seat in range(seats):
        table.help_out(seat)
    return Deal(epoch=standing.epoch, hands=tuple(map(tuple, table.hands)), after=table.standing())


def mark_of(standing: Standing) -> DynamicCheckpoint:
    """The standing as the ledger keeps it: without seats, which are another world's anyway."""
    lane = standing.lane
    return DynamicCheckpoint(
        spec=standing.spec,
        epoch=standing.epoch,
        lanes=(LaneMark(lane.cursor, lane.until, lane.closed),),
        open_shards=(*(shard for shard in standing.seats if shard is not None), *standing.todo),
        attempts=0,
        turn=0,
    )


def standing_at(mark: DynamicCheckpoint) -> Standing:
    """The standing that a mark was made of, with nobody seated."""
    fresh = _begun(mark.spec, mark.epoch)
    return replace(fresh, lane=replace(fresh.lane, cursor=mark.lanes[0].cursor), todo=mark.open_shards)


def _begun(spec: DatasetSpec, epoch: int) -> Standing:
    (lane,) = lanes_of(spec, epoch)
    return Standing(spec=spec, epoch=epoch, lane=lane)


def _is_over(standing: Standing) -> bool:
    nothing_open = not standing.todo and not any(standing.seats)
    return nothing_open and standing.lane.cursor == shards_in(standing.spec, standing.lane)


def _seated(standing: Standing, seats: int) -> Standing:
    """Shards of seats that are no more go to the front of the line; seats that are new begin without one."""
    left = (shard for shard in standing.seats[seats:] if shard is not None)
    kept = standing.seats[:seats]
    return replace(standing, seats=(*kept, *[None] * (seats - len(kept))), todo=(*left, *standing.todo))


class _Table:
    """One step being dealt."""

    def __init__(self, standing: Standing, size: int) -> None:
        self._before = standing
        self._wanted = [size] * len(standing.seats)
        self._seats = list(standing.seats)
        self._todo = list(standing.todo)
        self._cursor = standing.lane.cursor
        end = shards_in(standing.spec, standing.lane)
        assert end is not None, "only a bounded dataset is dealt"
        self._end = end
        self.hands: list[list[tuple[int, int]]] = [[] for _ in standing.seats]

    def read_own(self, seat: int) -> None:
        """Read on in the seat's shard, and begin the next ones, until the hand is full or no shard is left."""
        while self._wanted[seat]:
            if self._seats[seat] is None:
                self._seats[seat] = self._next_shard()
            if self._seats[seat] is None:
                return
            self._read(seat, seat)

    def help_out(self, seat: int) -> None:
        """Fill a hand from the shards of others: no shard is left to begin."""
        while self._wanted[seat]:
            most, where = max((self._left(s), -s) for s in range(len(self._seats)))
            if not most:
                return
            self._read(seat, -where)

    def standing(self) -> Standing:
        lane = replace(self._before.lane, cursor=self._cursor)
        return replace(self._before, lane=lane, seats=tuple(self._seats), todo=tuple(self._todo))

    def _read(self, seat: int, where: int) -> None:
        """Records of the shard that lies at seat `where`, for `seat`."""
        shard = self._seats[where]
        assert shard is not None
        start, stop = self._bounds(shard)
        first = start + shard.done
        last = min(first + self._wanted[seat], stop)
        self._wanted[seat] -= last - first
        self.hands[seat].append((first, last))
        self._seats[where] = None if last == stop else OpenShard(shard.partition, shard.shard, last - start)

    def _next_shard(self) -> OpenShard | None:
        if self._todo:
            return self._todo.pop(0)
        if self._cursor == self._end:
            return None
        self._cursor += 1
        return OpenShard(0, self._cursor - 1, 0)

    def _left(self, seat: int) -> int:
        shard = self._seats[seat]
        if shard is None:
            return 0
        start, stop = self._bounds(shard)
        return stop - start - shard.done

    def _bounds(self, shard: OpenShard) -> tuple[int, int]:
        return bounds(self._before.spec, self._before.lane, shard.shard)
