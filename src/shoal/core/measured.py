"""From a job's statistics to the facts that optimizers decide from. Pure.

Speeds are buckets of half a minute (`OptimizerSettings.sample`), and older ones of ten minutes; a bucket in which the
number of workers or parameter servers changed, or what they were granted, tells of neither state and is left out. So is
one that is not over yet. Of a node the newest buckets are as short, older ones ten minutes; where there are many nodes
there are fewer of each, so that one decision never looks at more than `MOST_SAMPLES`.

Times are the statistics' own (`Timeline`): they never go back, whatever the clock did. Memory is MiB here.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

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
from shoal.core.job.looks import who_trains
from shoal.core.job.values import Job
from shoal.core.nodes import Node, NodeStatus, Role
from shoal.core.statistics import WORKERS, Statistics
from shoal.core.view import JobPhase, PSChangeView

MOST_SAMPLES = 10_000
"""Of nodes, in all."""
FEWEST, MOST = 10, 60
"""Of one node."""
LATE = 5.0
"""How many times as long as a platform may take to grant a worker it may take to train."""
MIB = 1024 * 1024
RESIZE, SAVE, DONE = "resize", "save", "done"
"""Kinds of changes of parameter servers, and how one may end: `PSChangeView`."""
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
    measured = speeds(statistics, present)

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
                seat=node.seat,
            )
            for node in live
            if node.role is not Role.PS or not node.is_released  # who was let go serves nobody any more
        ),
        speeds=measured,
        ooms=tuple(
            OomEvent(
                node=node.id,
                role=node.role,
                at=seconds(node.since),
                memory=memory,
                count=_servers_at(job, node.since) if node.role is Role.PS else None,
            )
            for node in gone
            if node.exit_cause is ExitCause.OOM and (memory := _memory_of(statistics, node)) is not None
        ),
        exits=tuple(
            NodeExit(node=node.id, role=node.role, at=seconds(node.since), cause=node.exit_cause)
            for node in gone
            if node.exit_cause is not None
        ),
        resizes=(
            *(
                ResizeCost(at=seconds(resize.at), seconds=resize.pause)
                for resize in job.resizes
                if resize.before and resize.reported
            ),
            *(
                ResizeCost(at=seconds(change.at), seconds=change.pause, ps_changed=True)
                for change in job.changes
                if change.kind == RESIZE and change.outcome == DONE
            ),
        ),
        remaining_samples=remaining_samples,
        global_batch=global_batch,
        node_unit=job.spec.node_unit,
        changed_at=max((*map(seconds, _changed_at(job, live)), *_of_others(job, measured)), default=None),
        in_change=_is_in_change(job, live, now),
    )


def _changed_at(job: Job, live: Sequence[Node]) -> list[datetime]:
    """When what the job has became what it is: with its last world; or with its parameter servers, and with those who
    came to them, which no world tells of."""
    found = [resize.at for resize in job.resizes[-1:]]
    if job.spec.ps is not None:
        found += [change.at + _took(change) for change in job.changes if change.kind != SAVE and change.outcome == DONE]
        found += [node.since for node in live if node.status is NodeStatus.RUNNING]
    return found


def _of_others(job: Job, measured: Sequence[SpeedSample]) -> list[float]:
    """When there were more workers on the parameter servers, or fewer: one may run for minutes before it trains."""
    if job.spec.ps is None:
        return []
    training = len(who_trains(job))
    return [sample.at for sample in measured if sample.workers != training]


def _took(change: PSChangeView) -> timedelta:
    return timedelta(seconds=change.launch + change.prepare + change.drain + change.move + change.go)


def _is_in_change(job: Job, live: Sequence[Node], now: datetime) -> bool:
    if job.phase is not JobPhase.RUNNING or job.successors:
        return True
    if any(change.outcome is None and change.kind != SAVE for change in job.changes):
        return True
    wanted, unit = _workers_wanted(job), job.spec.node_unit
    workers = [node for node in live if node.role in WORKERS]
    if len(workers) > wanted:
        return True
    # Who is there may still load an image or its modules, and who is not there may still be made: what is measured
    # meanwhile tells of fewer. Who takes much longer may never come, and the job is what trains.
    training, patience = who_trains(job), LATE * job.settings.optimizer.granted_within
    awaited = [node.since for node in workers if node.id not in training]
    if len(workers) < wanted:
        awaited.append(_short_since(job))
    late = (abs((now - since).total_seconds()) for since in awaited)
    return len(training) < wanted // unit * unit and (not training or min(late, default=0.0) < patience)


def _short_since(job: Job) -> datetime:
    """Since when a worker is missing of which the platform has said nothing: since the job was to have it, or since
    another one came or went."""
    moved = (node.since for node in job.nodes.values() if node.role in WORKERS)
    return max(job.target_since or job.started, *moved, job.started)


def _workers_wanted(job: Job) -> int:
    """The chief that was launched as one is a worker more than were asked for."""
    return job.target + (1 if job.spec.ps is not None and job.spec.ps.chief else 0)


def _servers_at(job: Job, at: datetime) -> int | None:
    """How many parameter servers held the state then; None: there were none yet."""
    changes = [change for change in job.changes if change.kind != SAVE]
    led_to = [change.after for change in changes if change.outcome == DONE and change.at + _took(change) <= at]
    if led_to:
        return led_to[-1]
    followed = next((change.before for change in changes if change.before), None)  # the first of those that are kept
    if followed is None and job.servers is not None and job.servers.current is not None:
        return len(job.servers.current.servers)
    return followed


def _memory_of(statistics: Statistics, node: Node) -> int | None:
    """MiB that it was granted, or else what its agent said it may use."""
    if node.resource.memory is not None:
        return node.resource.memory
    book = statistics.nodes.get(node.id)
    return None if book is None or not book.memory_limit else max(1, int(book.memory_limit / MIB))


# The job -------------------------------------------------------------------------------------------------


def speeds(statistics: Statistics, now: float) -> tuple[SpeedSample, ...]:
    """How fast the job was, and with what; the oldest first."""
    fine, older = statistics.job.levels[1], statistics.job.levels[2]
    newest = _speeds(fine, now)
    first = newest[0].at if newest else float("inf")
    return (*(sample for sample in _speeds(older, now) if sample.at < first - fine.width.seconds), *newest)


def _speeds(level: Level, now: float) -> list[SpeedSample]:
    table = {quantity: {point.at: point for point in _over(level, quantity, now)} for quantity in Quantity}
    found = []
    # Who counts no samples has steps that are as large whoever makes them.
    for at, speed in (table[Quantity.SAMPLES] or table[Quantity.STEPS]).items():
        step, workers = table[Quantity.STEP].get(at), table[Quantity.WORKERS].get(at)
        if workers is None or speed.mean <= 0.0 or not _is_constant(table, at):
            continue

        def mean(quantity: Quantity, at: float = at) -> float | None:
            point = table[quantity].get(at)
            return None if point is None else point.mean

        found.append(
            SpeedSample(
                at=at + level.width.seconds,
                step_seconds=_step_seconds(step, speed, workers.last, has_servers=bool(mean(Quantity.PS))),
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


def _step_seconds(step: Point | None, speed: Point, workers: float, *, has_servers: bool) -> float:
    """Of one worker. With parameter servers the job's steps are those of all workers together; who counts no steps
    makes one of each sample."""
    if step is None:
        return workers / speed.mean
    return step.mean * workers if has_servers else step.mean


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
    fine, older = book.history.levels[1], book.history.levels[2]
    newest = _samples(fine, now)[-(most - most // 3) :]
    first = newest[0].at - fine.width.seconds if newest else float("inf")
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
