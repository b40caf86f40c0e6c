"""A job's figures for people and programs: the values behind `/stats`, `shoal top` and `status.training.figures`.

Plain data, made from the job's state and its `Statistics`. "Now" is the mean of the last seconds, so that a figure
does not jump with each heartbeat; a figure that is older than `STALE` is not shown: None is "not known".
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from math import isfinite

from shoal.core.history import History, Level, Quantity, Timeline
from shoal.core.job.looks import training_nodes
from shoal.core.job.values import Job
from shoal.core.nodes import Node
from shoal.core.statistics import Book, Statistics
from shoal.core.view import JobPhase
from shoal.core.world import WorldMember

RECENT = 10.0
"""Seconds that "now" is the mean of."""
STALE = 120.0
"""Seconds after which what was measured last tells nothing of now: steps may be long, heartbeats are not."""
SPARK = 40
"""Points of the small pictures: as many buckets of the level that is asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One level of a history: columns of the same length. None: not measured in that bucket."""

    seconds: int
    """How wide a bucket is."""
    at: tuple[datetime, ...]
    """Where each begins; the last one may be still open."""
    mean: dict[str, tuple[float | None, ...]]
    max: dict[str, tuple[float | None, ...]]
    last: dict[str, tuple[float | None, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFigures:
    node: str
    role: str
    ranks: tuple[int, ...]
    """Of its processes in the world; empty: it is in none."""
    status: str
    host: str | None = None
    heard: datetime | None = None
    cpu: float | None = None
    """Cores, of the whole process tree."""
    cpu_limit: float | None = None
    memory_bytes: float | None = None
    memory_limit: float | None = None
    gpu: float | None = None
    """GPUs that are busy, of `gpus`."""
    gpus: int = 0
    gpu_memory_bytes: float | None = None
    gpu_memory_total: float | None = None
    samples_per_second: float | None = None
    steps_per_second: float | None = None
    step_seconds: float | None = None
    work_seconds: float | None = None
    recent_cpu: tuple[float | None, ...] = ()
    """The last minutes, the newest last; None: not measured."""
    history: tuple[Series, ...] = ()
    """Only when it was asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFigures:
    job: str
    phase: JobPhase
    at: datetime
    step: int | None
    samples: int | None
    world_size: int
    samples_per_second: float | None = None
    steps_per_second: float | None = None
    step_seconds: float | None = None
    cpu: float | None = None
    memory_bytes: float | None = None
    gpu: float | None = None
    recent_speed: tuple[float | None, ...] = ()
    """Samples a second in the last minutes, or steps where samples are not counted; the newest last."""
    nodes: tuple[NodeFigures, ...] = ()
    history: tuple[Series, ...] = field(default=())


def figures(
    job: Job,
    statistics: Statistics,
    now: datetime,
    *,
    with_history: bool = True,
    with_sparks: bool = True,
    histories_of: Collection[str] = (),
) -> JobFigures:
    """The job as it is, with its history; with small pictures; with the histories of these nodes."""
    at = statistics.timeline.at(now)
    asked = _now(statistics.job, at)
    committed = job.rendezvous.committed
    members = {member.node: member for member in committed.members} if committed is not None else {}
    has_samples = any(Quantity.SAMPLES in (*level.columns, *level.open) for level in statistics.job.levels)
    speed = Quantity.SAMPLES if has_samples else Quantity.STEPS
    live = [node for node in job.nodes.values() if node.is_live]
    nodes = (
        _node(node, members.get(node.id), statistics, at, with_history=node.id in histories_of, with_spark=with_sparks)
        for node in live
    )
    return JobFigures(
        job=job.spec.name,
        phase=job.phase,
        at=now,
        step=job.gain.step,
        samples=job.gain.samples,
        world_size=committed.size if committed is not None else training_nodes(job),
        samples_per_second=asked(Quantity.SAMPLES),
        steps_per_second=asked(Quantity.STEPS),
        step_seconds=asked(Quantity.STEP),
        cpu=asked(Quantity.CPU),
        memory_bytes=asked(Quantity.MEMORY),
        gpu=asked(Quantity.GPU),
        recent_speed=_spark(statistics.job.levels[0], speed, at) if with_sparks else (),
        nodes=tuple(nodes),
        history=series(statistics.job, statistics.timeline) if with_history else (),
    )


def _node(
    node: Node, member: WorldMember | None, statistics: Statistics, at: float, *, with_history: bool, with_spark: bool
) -> NodeFigures:
    book = statistics.nodes.get(node.id, Book())
    asked = _now(book.history, at)
    return NodeFigures(
        node=node.id,
        role=node.role,
        ranks=() if member is None else tuple(range(member.base_rank, member.base_rank + member.slots)),
        status=node.status,
        host=node.host,
        heard=statistics.timeline.wall(book.at) if book.at else None,
        cpu=asked(Quantity.CPU),
        cpu_limit=book.cpu_limit,
        memory_bytes=asked(Quantity.MEMORY),
        memory_limit=book.memory_limit,
        gpu=asked(Quantity.GPU),
        gpus=book.gpus,
        gpu_memory_bytes=asked(Quantity.GPU_MEMORY),
        gpu_memory_total=book.gpu_memory_total,
        samples_per_second=asked(Quantity.SAMPLES),
        steps_per_second=asked(Quantity.STEPS),
        step_seconds=asked(Quantity.STEP),
        work_seconds=asked(Quantity.WORK),
        recent_cpu=_spark(book.history.levels[0], Quantity.CPU, at) if with_spark else (),
        history=series(book.history, statistics.timeline) if with_history else (),
    )


def _now(history: History, at: float) -> Callable[[Quantity], float | None]:
    def asked(quantity: Quantity) -> float | None:
        recent = history.recent(quantity, at, RECENT)
        if recent is not None:
            return recent
        return next(
            (point.last for level in history.levels for point in level.points(quantity, since=at - STALE)[-1:]), None
        )

    return asked


def _spark(level: Level, quantity: Quantity, at: float) -> tuple[float | None, ...]:
    width = level.width.seconds
    newest = int(at // width)
    points = level.points(quantity, since=(newest - SPARK) * width)
    known = {int(point.at // width): point.mean for point in points}
    found = tuple(known.get(number) for number in range(newest - SPARK + 1, newest + 1))
    return found if any(value is not None for value in found) else ()


def series(history: History, timeline: Timeline) -> tuple[Series, ...]:
    """All of a history, the finest level first."""
    return tuple(_series(level, timeline) for level in history.levels)


def _series(level: Level, timeline: Timeline) -> Series:
    numbers = list(level.numbers)
    if level.open and level.number is not None:
        numbers.append(level.number)

    def column(quantity: Quantity, part: str) -> tuple[float | None, ...]:
        known = level.columns.get(quantity)
        closed = [None] * len(level.numbers) if known is None else [_known(each) for each in getattr(known, part)]
        if not level.open:
            return tuple(closed)
        amount = level.open.get(quantity)
        return (*closed, None if amount is None else getattr(amount, part))

    measured = [quantity for quantity in Quantity if quantity in level.columns or quantity in level.open]
    parts: Mapping[str, dict[str, tuple[float | None, ...]]] = {
        part: {quantity.value: column(quantity, part) for quantity in measured} for part in ("mean", "max", "last")
    }
    return Series(
        seconds=level.width.seconds,
        at=tuple(timeline.wall(number * level.width.seconds) for number in numbers),
        mean=parts["mean"],
        max=parts["max"],
        last=parts["last"],
    )


def _known(value: float) -> float | None:
    return value if isfinite(value) else None
