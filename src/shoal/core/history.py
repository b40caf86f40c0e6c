"""What was measured, over time: each quantity in buckets of several widths, so many of each and no more.

    every    2 s  ▮▮▮▮▮▮▮▮▮▮▮▮▮▮▮▮   the last minutes, as they were
    every   30 s  ▮ ▮ ▮ ▮ ▮ ▮ ▮ ▮    the last hours
    every 10 min  ▮   ▮   ▮   ▮      the last days

A measurement goes into the open bucket of the finest level. A bucket that is over is merged into the level above it,
so a wide bucket holds exactly what the narrow ones of its time held: the mean by weight, the largest, the last. Levels
keep buckets in which something was measured; time in which nothing was costs nothing and pushes nothing out.

Numbers come from elsewhere and may be anything: what is not finite, or below zero, is not taken. Time comes from a
clock that may have been set: see `Timeline`. A `History` is a mutable value with one owner; it reads nothing by itself.
"""

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from itertools import pairwise
from math import inf, isfinite, nan

LONGEST_STEP = 86400.0
"""Seconds. A clock that goes ahead by more was set, or nobody was there to look: no time counts as passed."""
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
LAST = 253_402_300_799.0
"""Seconds of the epoch: there is no later date."""
LARGEST = 1e18
"""Nothing that we measure is larger, so what is was not measured."""


class Quantity(StrEnum):
    """What is measured. Of a node, and (summed, or as the job tells it) of the job."""

    CPU = "cpu"
    """Cores that are used."""
    MEMORY = "memory_bytes"
    GPU = "gpu"
    """GPUs that are busy: 1.5 is one all the time and one half of it."""
    GPU_MEMORY = "gpu_memory_bytes"
    SAMPLES = "samples_per_second"
    STEPS = "steps_per_second"
    STEP = "step_seconds"
    """From one step's end to the next one's."""
    WORK = "work_seconds"
    """The part of a step in which the process did not wait for others: who is slow has more of it."""
    WORKERS = "workers"
    """Of the job: nodes whose training processes are in the world."""
    WORKER_CPU = "worker_cpu"
    """Of the job, here and below by role: cores that a node uses, the mean over them; a chief is a worker."""
    WORKER_GRANT = "worker_cpu_granted"
    """Cores that a node was given, the median over them."""
    PS = "ps"
    """How many parameter servers there are."""
    PS_CPU = "ps_cpu"
    PS_GRANT = "ps_cpu_granted"
    PS_BUSIEST = "ps_busiest"
    """The largest part of its own grant that one of them uses."""


Measured = tuple[Quantity, float, float]
"""With its value and its weight."""


@dataclass(frozen=True, slots=True)
class Width:
    """One level: how wide its buckets are, and how many are kept."""

    seconds: int
    count: int


FEW = (Width(2, 150), Width(30, 120), Width(600, 144))
"""For each node: 5 minutes, an hour, a day. About 28 KB for the five quantities of a node without GPU."""
MANY = (Width(2, 300), Width(30, 240), Width(600, 432))
"""For the job: 10 minutes, 2 hours, 3 days."""


def sampled(widths: tuple[Width, Width, Width], seconds: int) -> tuple[Width, Width, Width]:
    """The same levels with other buckets in the middle: as many, so they reach back less far if they are shorter."""
    finest, middle, widest = widths
    return (finest, Width(seconds, middle.count), widest)


def sane(value: float | None) -> float | None:
    """The number if it can be one that was measured; None: it cannot."""
    return float(value) if value is not None and 0.0 <= value <= LARGEST else None


@dataclass(slots=True)
class Timeline:
    """Time that only goes on, from a clock that may be set.

    While the clock behaves this is its time. When it falls back, or leaps ahead by more than a day, no time has passed:
    the history goes on where it stood, and `wall` still tells what the clock would say.
    """

    offset: float = 0.0
    seen: float | None = None
    """What the clock said last."""

    def at(self, now: datetime) -> float:
        wall = now.timestamp()
        if self.seen is not None and not 0.0 <= wall - self.seen <= LONGEST_STEP:
            self.offset += self.seen - wall
        self.seen = wall
        return wall + self.offset

    def wall(self, at: float) -> datetime:
        """When that was, by the clock as it is now."""
        return EPOCH + timedelta(seconds=min(max(at - self.offset, 0.0), LAST))


@dataclass(slots=True)
class Amount:
    """What is known of one quantity in one bucket."""

    weight: float = 0.0
    total: float = 0.0
    """Of value times weight."""
    max: float = 0.0
    last: float = nan

    def add(self, value: float, weight: float) -> None:
        self.weight += weight
        self.total += value * weight
        self.max = max(self.max, value)
        self.last = value

    def merge(self, later: "Amount") -> None:
        self.weight += later.weight
        self.total += later.total
        self.max = max(self.max, later.max)
        self.last = later.last

    @property
    def mean(self) -> float:
        """Never above what was measured, whatever rounding does."""
        mean = self.total / self.weight
        return mean if mean < self.max else self.max


@dataclass(slots=True)
class Column:
    """One quantity in the closed buckets of a level; NaN: it was not measured in that one."""

    mean: "array[float]" = field(default_factory=lambda: array("f"))
    max: "array[float]" = field(default_factory=lambda: array("f"))
    last: "array[float]" = field(default_factory=lambda: array("f"))

    def append(self, mean: float, greatest: float, last: float) -> None:
        self.mean.append(mean)
        self.max.append(greatest)
        self.last.append(last)

    def cut(self, rows: int) -> None:
        """Forget the oldest rows."""
        for part in (self.mean, self.max, self.last):
            del part[:rows]


@dataclass(frozen=True, slots=True)
class Point:
    """One bucket of a series, as it is read."""

    at: float
    """Where the bucket begins, in the history's own time."""
    mean: float
    max: float
    last: float


class Level:
    """Buckets of one width."""

    def __init__(self, width: Width, above: "Level | None") -> None:
        self.width = width
        self.numbers = array("q")
        """Of the closed buckets, in order: how many of this width lie before it."""
        self.columns: dict[Quantity, Column] = {}
        self.number: int | None = None
        """Of the open bucket."""
        self.open: dict[Quantity, Amount] = {}
        self._above = above

    def add(self, at: float, measured: Iterable[Measured]) -> None:
        self._reach(at)
        known = self.open
        for quantity, value, weight in measured:
            amount = known.get(quantity)
            if amount is None:
                known[quantity] = Amount(weight, value * weight, value, value)
            else:
                amount.add(value, weight)

    def _merge(self, at: float, amounts: Mapping[Quantity, Amount]) -> None:
        """Take over what a narrower level has closed."""
        self._reach(at)
        for quantity, amount in amounts.items():
            known = self.open.get(quantity)
            if known is None:
                self.open[quantity] = amount
            else:
                known.merge(amount)

    def _reach(self, at: float) -> None:
        """Close the open bucket if that time is not its own."""
        number = int(at // self.width.seconds)
        if self.number is None or number > self.number:
            if self.open:
                self._close()
            self.number = number

    def _close(self) -> None:
        assert self.number is not None
        before = len(self.numbers)
        self.numbers.append(self.number)
        for quantity, amount in self.open.items():
            column = self.columns.get(quantity)
            if column is None:
                unknown = array("f", [nan]) * before
                column = self.columns[quantity] = Column(unknown[:], unknown[:], unknown)
            column.append(amount.mean, amount.max, amount.last)
        if len(self.columns) > len(self.open):
            for quantity, column in self.columns.items():
                if quantity not in self.open:
                    column.append(nan, nan, nan)
        if self._above is not None:
            self._above._merge(self.number * self.width.seconds, self.open)
        self.open = {}
        self.cut(self.width.count)

    def cut(self, rows: int) -> None:
        """Keep at most so many of the newest closed buckets."""
        excess = len(self.numbers) - rows
        if excess > 0:
            del self.numbers[:excess]
            for column in self.columns.values():
                column.cut(excess)

    def reopen(self) -> None:
        """Let the newest closed bucket be the open one again: it was written down before it was over."""
        self.number = self.numbers.pop()
        for quantity, column in self.columns.items():
            mean, greatest, last = column.mean.pop(), column.max.pop(), column.last.pop()
            if isfinite(mean):
                self.open[quantity] = Amount(1.0, mean, greatest, last)

    def points(self, quantity: Quantity, *, since: float = -inf) -> list[Point]:
        """The buckets in which it was measured and that end after `since`, the open one too."""
        width = self.width.seconds
        found = []
        column = self.columns.get(quantity)
        if column is not None:
            for row in range(len(self.numbers) - 1, -1, -1):
                at = self.numbers[row] * width
                if at + width <= since:
                    break
                if isfinite(column.mean[row]):
                    found.append(Point(at, column.mean[row], column.max[row], column.last[row]))
            found.reverse()
        amount = self.open.get(quantity)
        if amount is not None and self.number is not None and (self.number + 1) * width > since:
            found.append(Point(self.number * width, amount.mean, amount.max, amount.last))
        return found


class History:
    """The levels of one node, or of the job."""

    def __init__(self, widths: Sequence[Width] = FEW) -> None:
        if not widths or any(low.seconds >= high.seconds for low, high in pairwise(widths)):
            raise ValueError(f"levels must be given from narrow to wide, got {widths}")
        levels: list[Level] = []
        for width in reversed(widths):
            levels.append(Level(width, levels[-1] if levels else None))
        self.levels = tuple(reversed(levels))

    def add(self, at: float, quantity: Quantity, value: float | None, weight: float = 1.0) -> None:
        """Take a measurement; `at` in the owner's `Timeline`. What cannot be one is left out."""
        self.add_all(at, ((quantity, value, weight),))

    def add_all(self, at: float, said: Iterable[tuple[Quantity, float | None, float]]) -> None:
        """Take measurements of one moment: quantity, value, weight."""
        measured = [
            (quantity, value, weight)
            for quantity, value, weight in said
            if value is not None and 0.0 <= value <= LARGEST and 0.0 < weight <= LARGEST
        ]
        if measured:
            self.levels[0].add(at, measured)

    def recent(self, quantity: Quantity, now: float, seconds: float) -> float | None:
        """Its mean in the last so many seconds, to a bucket; None: it was not measured then."""
        level = next(
            (each for each in self.levels if each.width.seconds * each.width.count >= seconds), self.levels[-1]
        )
        points = level.points(quantity, since=now - seconds)
        return sum(point.mean for point in points) / len(points) if points else None

    def latest(self, quantity: Quantity) -> float | None:
        """What was measured last, however long ago."""
        for level in self.levels:
            amount = level.open.get(quantity)
            if amount is not None:
                return amount.last
            column = level.columns.get(quantity)
            for value in reversed(column.last) if column is not None else ():
                if isfinite(value):
                    return value
        return None

    def fresh(self, quantity: Quantity, since: float) -> float | None:
        """What was measured last, if that was not before, to a narrow bucket."""
        points = self.levels[0].points(quantity, since=since)
        return points[-1].last if points else None

    def peak(self, quantity: Quantity) -> float | None:
        """The most that was ever measured, as far as the history goes."""
        points = (point.max for level in self.levels for point in level.points(quantity))
        return max(points, default=None)
