"""Statistics as bytes, for the journal: the coarse series, in a size that never grows beyond `BUDGET`.

The finest level is left out: it is full again in minutes. Of the others the newest buckets are kept, the job's first;
what room is left is shared by the nodes that live alike, so a job of thousands keeps little of each; what they leave is
for those that live no more. A value is two bytes, a part of the largest in its column. Bytes that are no statistics of
this release give an empty history: nobody's training depends on it.
"""

import struct
from array import array
from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import isfinite, nan

import msgspec

from shoal.core.history import Column, History, Level, Quantity
from shoal.core.nodes import NodeId
from shoal.core.statistics import SAMPLE, Book, Statistics

FORMAT = 1
BUDGET = 32 * 1024
"""Bytes. A Secret has room for 256 KiB of a job's state, and a journal gets them once a minute."""
JOB_PART = 0.5
_STEPS = 65534
_LEAST = 1e-30
"""Nothing that we measure is smaller: it is as good as nothing, and parts of it are no numbers."""
_UNKNOWN = 65535
_OVERHEAD = 48
"""Bytes of a node, besides its rows."""


class KeptColumn(msgspec.Struct, frozen=True, array_like=True):
    quantity: str
    largest: float
    mean: bytes
    max: bytes


class KeptLevel(msgspec.Struct, frozen=True, array_like=True):
    seconds: int
    first: int
    gaps: tuple[int, ...]
    """From one bucket's number to the next one's."""
    columns: tuple[KeptColumn, ...]


KeptNode = tuple[str, float, tuple[KeptLevel, ...]]
"""Its name, when it was last heard, and its levels."""


class Kept(msgspec.Struct, frozen=True, array_like=True):
    format: int
    offset: float
    seen: float | None
    job: tuple[KeptLevel, ...]
    nodes: tuple[KeptNode, ...]


_decoder: msgspec.msgpack.Decoder[Kept] = msgspec.msgpack.Decoder(Kept)


def packed(statistics: Statistics, *, budget: int = BUDGET) -> bytes:
    """At most `budget` bytes; empty when there is room for nothing."""
    job = _packed_history(statistics.job, int(budget * JOB_PART))
    left = budget - len(msgspec.msgpack.encode(job)) - 2 * _OVERHEAD
    books = statistics.nodes.items()
    live = _packed_nodes([(name, book) for name, book in books if name not in statistics.dead], left)
    left -= sum(len(msgspec.msgpack.encode(node)) for node in live)
    nodes = [*_packed_nodes([(name, book) for name, book in books if name in statistics.dead], left), *live]
    timeline = statistics.timeline
    data = _encoded(timeline.offset, timeline.seen, job, nodes)
    while len(data) > budget and (nodes or job):
        # Names may be long, and numbers of buckets far apart: less of it then, the dead and the longest silent first.
        if nodes:
            nodes = nodes[1 + len(nodes) // 2 :]
        else:
            job = job[1:]
        data = _encoded(timeline.offset, timeline.seen, job, nodes)
    return data if len(data) <= budget else b""


def unpacked(data: bytes, sample: int = SAMPLE) -> Statistics:
    """What `packed` was given, without its finest level; empty when that cannot be told, or its samples took longer or
    shorter."""
    if not data:
        return Statistics(sample)
    try:
        kept = _decoder.decode(data)
        if kept.format != FORMAT:
            return Statistics(sample)
        statistics = Statistics(sample)
        statistics.timeline.offset, statistics.timeline.seen = kept.offset, kept.seen
        now = kept.offset + (kept.seen or 0.0)
        _fill(statistics.job, kept.job, now)
        for name, at, levels in kept.nodes:
            book = statistics.new_book(at)
            _fill(book.history, levels, now)
            statistics.nodes[NodeId(name)] = book
    except (msgspec.MsgspecError, ValueError, OverflowError, struct.error):
        return Statistics(sample)
    return statistics


def _encoded(
    offset: float,
    seen: float | None,
    job: tuple[KeptLevel, ...],
    nodes: Sequence[KeptNode],
) -> bytes:
    return msgspec.msgpack.encode(Kept(FORMAT, offset, seen, job, tuple(nodes)))


def _packed_nodes(books: Sequence[tuple[NodeId, Book]], budget: int) -> list[KeptNode]:
    share = budget // max(1, len(books)) - _OVERHEAD
    packed_books = ((name, book.at, _packed_history(book.history, share)) for name, book in books)
    return [(name, at, levels) for name, at, levels in packed_books if levels]


def _packed_history(history: History, budget: int) -> tuple[KeptLevel, ...]:
    """The newest buckets of every level but the finest, in about so many bytes."""
    levels = history.levels[1:]
    found = []
    for number, level in enumerate(levels):
        room = budget // (len(levels) - number)
        quantities = len({*level.columns, *level.open})
        rows = (room - 8 - 24 * quantities) // max(1, 4 * quantities + 2)
        if quantities and rows > 0:
            kept = _packed_level(level, rows)
            found.append(kept)
            budget -= len(msgspec.msgpack.encode(kept))
    return tuple(found)


def _packed_level(level: Level, rows: int) -> KeptLevel:
    numbers = list(level.numbers)
    columns = {quantity: (list(column.mean), list(column.max)) for quantity, column in level.columns.items()}
    if level.open and level.number is not None:
        for quantity in level.open:
            columns.setdefault(quantity, ([nan] * len(numbers), [nan] * len(numbers)))
        for quantity, (means, greatest) in columns.items():
            amount = level.open.get(quantity)
            means.append(nan if amount is None else amount.mean)
            greatest.append(nan if amount is None else amount.max)
        numbers.append(level.number)
    numbers = numbers[-rows:]
    return KeptLevel(
        seconds=level.width.seconds,
        first=numbers[0],
        gaps=tuple(after - before for before, after in pairwise(numbers)),
        columns=tuple(_packed_column(name, means[-rows:], tops[-rows:]) for name, (means, tops) in columns.items()),
    )


def _packed_column(quantity: Quantity, mean: list[float], greatest: list[float]) -> KeptColumn:
    largest = max((value for value in (*mean, *greatest) if isfinite(value)), default=0.0)
    largest = largest if largest >= _LEAST else 0.0
    return KeptColumn(quantity, largest, _small(mean, largest), _small(greatest, largest))


def _small(values: list[float], largest: float) -> bytes:
    scale = _STEPS / largest if largest > 0 else 0.0
    parts = (min(_STEPS, round(value * scale)) if isfinite(value) else _UNKNOWN for value in values)
    return struct.pack(f"<{len(values)}H", *parts)


def _fill(history: History, levels: tuple[KeptLevel, ...], now: float) -> None:
    for kept in levels:
        level = next((each for each in history.levels[1:] if each.width.seconds == kept.seconds), None)
        if level is None or level.numbers or any(gap <= 0 for gap in kept.gaps):
            raise ValueError("not a level of this release")
        numbers = [kept.first]
        for gap in kept.gaps:
            numbers.append(numbers[-1] + gap)
        if not numbers[-1] * kept.seconds <= now:
            raise ValueError("buckets that have not begun")
        level.numbers = array("q", numbers)
        for column in kept.columns:
            level.columns[Quantity(column.quantity)] = _column(column, len(numbers))
        level.reopen()
        level.cut(level.width.count)


def _column(kept: KeptColumn, rows: int) -> Column:
    if not isfinite(kept.largest) or kept.largest < 0:
        raise ValueError("not a column of this release")
    mean = array("f", _large(kept.mean, rows, kept.largest))
    return Column(mean, array("f", _large(kept.max, rows, kept.largest)), mean[:])


def _large(data: bytes, rows: int, largest: float) -> Iterator[float]:
    for part in struct.unpack(f"<{rows}H", data):
        yield nan if part == _UNKNOWN else part / _STEPS * largest
