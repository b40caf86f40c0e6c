"""From a job's statistics to the facts that optimizers decide from. Pure.

Speeds are buckets of half a minute, and older ones of ten minutes; a bucket in which the number of workers or parameter
servers changed, or what they were granted, tells of neither state and is left out. So is one that is not over yet. Of a
node the newest buckets are half minutes, older ones ten minutes; where there are many nodes there are fewer of each, so
that one decision never looks at more than `MOST_SAMPLES`.

Times are the statistics' own (`Timeline`): they never go back, whatever the clock did. Memory is MiB here.
"""

from collections.abc import Mapping
from datetime import datetime

from shoal.api.elasticjob import Strategy
from shoal.core.exits import ExitCause
from shoal.core.facts import (
    JobFacts,
    NodeExit,
    NodeFacts,
    NodeSample,
    OomEvent,
    ResizeCost,
    RoleFacts,
    SpeedSample,
)
from shoal.core.history import Level, Point, Quantity
from shoal.core.job.values import Job
from shoal.core.nodes import Node, Role
from shoal.core.statistics import WORKERS, Statistics
from shoal.core.view import JobPhase

MOST_SAMPLES = 10_000
"""Of nodes, in all."""
FEWEST, MOST = 10, 60
"""Of one node."""
MIB = 1024 * 1024
_CONSTANT = (Quantity.WORKERS, Quantity.PS, Quantity.WORKER_GRANT, Quantity.PS_GRANT)
"""What must not have changed within a bucket."""


def facts_of(
    job: Job,
    statistics: Statistics,
    now: datetime,
    *,
    strategy: Strategy,
    roles: Mapping[Role, RoleFacts],
    remaining_samples: float | None = None,
    global_batch: int | None = None,
) -> JobFacts:
    """All that is known of the job. `roles`: what it has and what is the user's to say, by whoever knows its spec."""
    live = [node for node in job.nodes.values() if node.is_live]
    gone = [node for node in job.nodes.values() if node.exit_cause is not None]
    each = min(MOST, max(FEWEST, MOST_SAMPLES // max(1, len(live))))

    present = statistics.timeline.at(now)

    def seconds(at: datetime) -> float:
        return at.timestamp() + statistics.timeline.offset

    return JobFacts(
        job=job.spec.name,
        strategy=strategy,
        now=present,
        roles=roles,
        nodes=tuple(
            NodeFacts(
                name=node.id,
                role=node.role,
                resource=node.resource,
                since=seconds(node.since),
                samples=node_samples(statistics, node, present, each),
                host=node.host,
            )
            for node in live
        ),
        speeds=speeds(statistics, present),
        ooms=tuple(
            OomEvent(node=node.id, role=node.role, at=seconds(node.since), memory=memory)
            for node in gone
            if node.exit_cause is ExitCause.OOM and (memory := _memory_of(statistics, node)) is not None
        ),
        exits=tuple(
            NodeExit(node=node.id, role=node.role, at=seconds(node.since), cause=node.exit_cause)
            for node in gone
            if node.exit_cause is not None
        ),
        resizes=tuple(
            ResizeCost(at=seconds(resize.at), seconds=resize.pause)
            for resize in job.resizes
            if resize.before and resize.reported
        ),
        remaining_samples=remaining_samples,
        global_batch=global_batch,
        node_unit=job.spec.node_unit,
        changed_at=seconds(job.resizes[-1].at) if job.resizes else None,
        in_change=job.phase is not JobPhase.RUNNING or len([n for n in live if n.role in WORKERS]) != job.target,
    )


def _memory_of(statistics: Statistics, node: Node) -> int | None:
    """MiB that it was granted, or else what its agent said it may use."""
    if node.resource.memory is not None:
        return node.resource.memory
    book = statistics.nodes.get(node.id)
    return None if book is None or not book.memory_limit else max(1, int(book.memory_limit / MIB))


# The job -------------------------------------------------------------------------------------------------


def speeds(statistics: Statistics, now: float) -> tuple[SpeedSample, ...]:
    """How fast the job was, and with what; the oldest first."""
    half_minutes, older = statistics.job.levels[1], statistics.job.levels[2]
    newest = _speeds(half_minutes, now)
    first = newest[0].at if newest else float("inf")
    return (*(sample for sample in _speeds(older, now) if sample.at < first - half_minutes.width.seconds), *newest)


def _speeds(level: Level, now: float) -> list[SpeedSample]:
    table = {quantity: {point.at: point for point in _over(level, quantity, now)} for quantity in Quantity}
    found = []
    for at, speed in table[Quantity.SAMPLES].items():
        step, workers = table[Quantity.STEP].get(at), table[Quantity.WORKERS].get(at)
        if step is None or workers is None or not _is_constant(table, at):
            continue

        def mean(quantity: Quantity, at: float = at) -> float | None:
            point = table[quantity].get(at)
            return None if point is None else point.mean

        found.append(
            SpeedSample(
                at=at + level.width.seconds,
                step_seconds=step.mean,
                samples_per_second=speed.mean,
                workers=round(workers.last),
                ps=round(mean(Quantity.PS) or 0),
                worker_cpu=mean(Quantity.WORKER_GRANT),
                ps_cpu=mean(Quantity.PS_GRANT),
                worker_cpu_used=mean(Quantity.WORKER_CPU),
                ps_cpu_used=mean(Quantity.PS_CPU),
                ps_busiest=mean(Quantity.PS_BUSIEST),
            )
        )
    return found


def _is_constant(table: Mapping[Quantity, Mapping[float, Point]], at: float) -> bool:
    points = [point for quantity in _CONSTANT if (point := table[quantity].get(at)) is not None]
    return all(point.max - point.mean <= 1e-3 * point.max for point in points)


def _over(level: Level, quantity: Quantity, now: float) -> list[Point]:
    """The buckets that are over: half a bucket weighs as much as a whole one, and ends in the future."""
    return [point for point in level.points(quantity) if point.at + level.width.seconds <= now]


# One node ------------------------------------------------------------------------------------------------


def node_samples(statistics: Statistics, node: Node, now: float, most: int = MOST) -> tuple[NodeSample, ...]:
    """What it used, the oldest first: at most so many."""
    book = statistics.nodes.get(node.id)
    if book is None:
        return ()
    half_minutes, older = book.history.levels[1], book.history.levels[2]
    newest = _samples(half_minutes, now)[-(most - most // 3) :]
    first = newest[0].at - half_minutes.width.seconds if newest else float("inf")
    before = [sample for sample in _samples(older, now) if sample.at <= first]
    return (*before[len(newest) - most :], *newest) if len(newest) < most else tuple(newest[-most:])


def _samples(level: Level, now: float) -> list[NodeSample]:
    memory = {point.at: point.max for point in _over(level, Quantity.MEMORY, now)}
    work = {point.at: point.mean for point in _over(level, Quantity.WORK, now)}
    return [
        NodeSample(
            at=point.at + level.width.seconds,
            cpu=point.mean,
            memory=memory[point.at] / MIB,
            step_seconds=work.get(point.at),
        )
        for point in _over(level, Quantity.CPU, now)
        if point.at in memory
    ]
