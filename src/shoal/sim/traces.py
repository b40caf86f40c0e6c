"""Traces: CSV files of jobs, and what each kind of them can tell.

Three kinds are known, told apart by their header:

- a **plain** trace of one's own: `submit`, `size` and `duration`, and whatever of the other columns it has;
- a **Philly-style** trace: `timestamp`, `duration`, `num_gpus`, and maybe `cluster`;
- a **Pollux-style** workload: `name`, `time`, `application`, `num_replicas`, `batch_size`, for which the measured
  profiles are needed.

A file is read once and checked line by line: the first wrong value is named with its line, and so is one that no
cluster has. Text is UTF-8, with or without the mark that spreadsheets begin it with. A `.gz` is read as it is.
"""

import csv
import gzip
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, TypeVar

from shoal.core.errors import BadInput
from shoal.scheduler.rows import Priority, Room
from shoal.sim.models import ScalingSpec
from shoal.sim.pollux.jobs import Ask
from shoal.sim.workload import GIBIBYTE, TRAINER, JobSpec

if TYPE_CHECKING:
    import _csv

PLAIN = ("submit", "size", "duration")
PLAIN_OPTIONAL = (
    "name", "min", "max", "gpu", "cpu", "memory", "priority", "namespace", "efficiency", "application",
)  # fmt: skip
PHILLY = ("timestamp", "duration", "num_gpus")
PHILLY_OPTIONAL = ("cluster", "gpu_time")
POLLUX = ("name", "time", "application", "num_replicas", "batch_size")

LONGEST = 1_000_000_000
"""Seconds, for a submission or a duration: thirty years."""
LARGEST = 1_000_000
"""Trainers of a job, and devices, cores or GiB of a trainer."""
EFFICIENCIES = (0.5, 1.0)
"""Below, a job would be slower with more trainers; above, faster than that they all work."""
PRIORITIES = {priority.lower(): priority for priority in Priority}

Row = Mapping[str, str]
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumed:
    """What is taken for granted of jobs whose trace does not say it."""

    min: int = 1
    growth: float = 2.0
    """The most trainers, as a multiple of what was asked for."""
    efficiency: float = 0.9
    """How much of a doubling of trainers is gained."""
    limit: int | None = None
    """Only so many jobs, the first ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """What a file held: jobs whose speed is assumed, or asks for measured models."""

    jobs: tuple[JobSpec, ...] = ()
    asks: tuple[Ask, ...] = ()
    ignored: tuple[str, ...] = ()
    """Columns that mean nothing to us."""


def names_of(paths: Sequence[Path]) -> list[str]:
    """What the workloads of these files are called: as the file, and as the whole path where two files are called the
    same. Raises `BadInput` for a file that is named twice."""
    seen: set[Path] = set()
    for path in paths:
        if path.resolve() in seen:
            raise BadInput(f"{path} was named twice")
        seen.add(path.resolve())
    short = [path.name.removesuffix(".gz").removesuffix(".csv") or path.name for path in paths]
    return [str(path) if short.count(name) > 1 else name for path, name in zip(paths, short, strict=True)]


def read_trace(path: Path, assumed: Assumed) -> Trace:
    """Raises `BadInput`."""
    try:
        with _opened(path) as file:
            return _read(path, file, assumed)
    except (OSError, EOFError, gzip.BadGzipFile, UnicodeDecodeError, csv.Error) as exc:
        raise BadInput(f"{path} is not readable as a trace: {exc}") from exc


@contextmanager
def _opened(path: Path) -> Iterator[IO[str]]:
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8-sig", newline="") as file:
        yield file


def _read(path: Path, file: IO[str], assumed: Assumed) -> Trace:
    reader = csv.reader(file)
    columns = [name.strip() for name in next(reader, [])]
    _check_columns(path, columns)
    lines = _lines(path, columns, reader)
    if set(POLLUX) <= set(columns):
        asks = _in_order(_each(path, lines, _ask), lambda ask: ask.submitted, assumed.limit)
        _check_names(path, [ask.name for ask in asks])
        return Trace(asks=asks, ignored=_ignored(columns, POLLUX))
    if set(PHILLY) <= set(columns):
        jobs = _from_zero(_each(path, lines, partial(_philly_job, assumed=assumed)), assumed.limit)
        return Trace(jobs=jobs, ignored=_ignored(columns, (*PHILLY, *PHILLY_OPTIONAL)))
    missing = [name for name in PLAIN if name not in columns]
    if missing:
        raise BadInput(
            f"{path}: a trace needs the columns {', '.join(PLAIN)}; {', '.join(missing)} "
            f"{'is' if len(missing) == 1 else 'are'} missing (it has {', '.join(filter(None, columns)) or 'none'})"
        )
    specs = _each(path, lines, partial(_plain_job, assumed=assumed))
    jobs = _in_order(specs, lambda job: job.submitted, assumed.limit)
    _check_names(path, [job.name for job in jobs])
    return Trace(jobs=jobs, ignored=_ignored(columns, (*PLAIN, *PLAIN_OPTIONAL)))


def _check_columns(path: Path, columns: Sequence[str]) -> None:
    twice = [name for name in dict.fromkeys(columns) if name and columns.count(name) > 1]
    if twice:
        raise BadInput(f"{path}, line 1: there is more than one column {', '.join(twice)}")


def _lines(path: Path, columns: Sequence[str], reader: "_csv.Reader") -> Iterator[tuple[int, Row]]:
    """The records, each with the line it begins on: quoted values may go over several."""
    begins = reader.line_num + 1
    for values in reader:
        number, begins = begins, reader.line_num + 1
        if not values:
            continue
        if len(values) != len(columns):
            raise BadInput(f"{path}, line {number}: {len(values)} values for {len(columns)} columns")
        yield number, dict(zip(columns, values, strict=True))


def _each(path: Path, lines: Iterator[tuple[int, Row]], make: Callable[[int, Row], T]) -> list[T]:
    """One job for each line; whatever is wrong with one is told with its line."""
    made = []
    for number, row in lines:
        try:
            made.append(make(number, row))
        except _Wrong as exc:
            raise BadInput(f"{path}, line {number}: {exc}") from None
    if not made:
        raise BadInput(f"{path} has a header and no jobs")
    return made


def _in_order(jobs: list[T], key: Callable[[T], float], limit: int | None) -> tuple[T, ...]:
    return tuple(sorted(jobs, key=key)[:limit])


def _ignored(columns: Sequence[str], known: Sequence[str]) -> tuple[str, ...]:
    return tuple(name for name in columns if name and name not in known)


def _check_names(path: Path, names: Sequence[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise BadInput(f"{path}: two jobs are called {name!r}")
        seen.add(name)


# Kinds of lines ----------------------------------------------------------------------------------------------------


def _plain_job(number: int, row: Row, assumed: Assumed) -> JobSpec:
    size = _whole(row, "size", at_least=1)
    least = _whole(row, "min", at_least=1) if row.get("min") else min(assumed.min, size)
    most = _whole(row, "max", at_least=1) if row.get("max") else _grown(size, assumed)
    if not least <= most:
        raise _Wrong(f"min has to be at most max, got {least} and {most}")
    duration = _number(row, "duration", above=True)
    efficiency = _efficiency(row) if row.get("efficiency") else assumed.efficiency
    return JobSpec(
        name=row.get("name") or f"job-{number - 1}",
        submitted=_number(row, "submit"),
        model=ScalingSpec(duration, size, efficiency),
        size=size,
        min=least,
        max=most,
        each=_room(row),
        namespace=row.get("namespace") or "default",
        priority=_priority(row),
        application=row.get("application", ""),
    )


def _grown(size: int, assumed: Assumed) -> int:
    return max(size, min(LARGEST, math.floor(size * assumed.growth)))


def _efficiency(row: Row) -> float:
    low, high = EFFICIENCIES
    value = _number(row, "efficiency")
    if not low <= value <= high:
        raise _Wrong(f"efficiency wants a number of at least {low:g} and at most {high:g}, got {row['efficiency']}")
    return value


def _room(row: Row) -> Room:
    cpu = round(_number(row, "cpu", at_most=LARGEST) * 1_000) if row.get("cpu") else TRAINER.cpu
    memory = round(_number(row, "memory", at_most=LARGEST) * GIBIBYTE) if row.get("memory") else TRAINER.memory
    gpu = _whole(row, "gpu", at_least=0) if row.get("gpu") else TRAINER.gpu
    return Room(cpu=cpu, memory=memory, gpu=gpu)


def _priority(row: Row) -> Priority:
    text = row.get("priority")
    if not text:
        return Priority.NORMAL
    try:
        return PRIORITIES[text.lower()]
    except KeyError:
        raise _Wrong(f"priority wants one of {', '.join(Priority)}, got {text!r}") from None


def _philly_job(number: int, row: Row, assumed: Assumed) -> JobSpec:
    size = _whole(row, "num_gpus", at_least=1)
    duration = _number(row, "duration", above=True)
    return JobSpec(
        name=f"job-{number - 1}",
        submitted=_moment(row),
        model=ScalingSpec(duration, size, assumed.efficiency),
        size=size,
        min=min(assumed.min, size),
        max=_grown(size, assumed),
        namespace=row.get("cluster") or "default",
    )


def _moment(row: Row) -> float:
    text = row["timestamp"]
    try:
        moment = datetime.fromisoformat(text)
        return (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        raise _Wrong(f"timestamp wants a date and a time (2017-10-09 07:01:55), got {text!r}") from None


def _from_zero(jobs: list[JobSpec], limit: int | None) -> tuple[JobSpec, ...]:
    """Times since the first job."""
    ordered = _in_order(jobs, lambda job: job.submitted, limit)
    return tuple(replace(job, submitted=job.submitted - ordered[0].submitted) for job in ordered)


def _ask(number: int, row: Row) -> Ask:
    return Ask(
        name=row["name"],
        submitted=_whole(row, "time", at_least=0, at_most=LONGEST),
        application=row["application"],
        gpus=_whole(row, "num_replicas", at_least=1),
        batch=_whole(row, "batch_size", at_least=1),
    )


# Values ------------------------------------------------------------------------------------------------------------


class _Wrong(Exception):
    """What is wrong with a value; the line is added further up."""


def _number(row: Row, column: str, *, above: bool = False, at_most: int = LONGEST) -> float:
    text = row[column]
    try:
        value = float(text)
    except ValueError:
        raise _Wrong(f"{column} wants a number, got {text!r}") from None
    if not math.isfinite(value) or value < 0 or (above and value == 0):
        raise _Wrong(f"{column} wants a number {'above' if above else 'of at least'} 0, got {text}")
    if value > at_most:
        raise _Wrong(f"{column} wants a number of at most {at_most}, got {text}")
    return value


def _whole(row: Row, column: str, *, at_least: int, at_most: int = LARGEST) -> int:
    text = row[column]
    try:
        value = int(text)
    except ValueError:
        raise _Wrong(f"{column} wants a whole number, got {text!r}") from None
    if value < at_least:
        raise _Wrong(f"{column} wants a whole number of at least {at_least}, got {value}")
    if value > at_most:
        raise _Wrong(f"{column} wants a whole number of at most {at_most}, got {value}")
    return value
