"""What was measured, by size: the samples of one size become one point.

The median over a size's newest samples stands for it. It does not mind a few intervals with a slow node or a
checkpoint in them, and it makes one decision cost the same whether a job reports ten samples or ten thousand.
"""

from dataclasses import dataclass
from statistics import median

from shoal.core.facts import JobFacts, OptimizerSettings, SpeedSample

LEAST_SKEW, MOST_SKEW = 0.2, 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One size of the job, and how it trained with it."""

    workers: int
    ps: int
    worker_cpu: float | None
    ps_cpu: float | None
    step_seconds: float
    speed: float
    """Samples per second of the whole job."""
    batch: float
    """Samples in one worker's step."""
    worker_seconds: float | None
    """Core-seconds that a worker uses in a step."""
    ps_seconds: float | None
    """Core-seconds that all parameter servers together use for one worker's step."""
    ps_skew: float
    """By how much the busiest parameter server is busier than one with the mean load and the usual cores; below 1 where
    those with more load have more cores."""
    samples: int
    newest: float


def points_of(facts: JobFacts, settings: OptimizerSettings) -> list[Point]:
    """Those with enough samples, the newest size last. Facts must be clean."""
    found: dict[tuple[int, int, float | None, float | None], list[SpeedSample]] = {}
    most = settings.max_samples
    for sample in reversed(facts.speeds):
        key = (sample.workers, sample.ps, sample.worker_cpu, sample.ps_cpu)
        group = found.get(key)
        if group is None:
            found[key] = [sample]
        elif len(group) < most:
            group.append(sample)
    groups = [group for group in found.values() if len(group) >= min(3, settings.min_samples)]
    return sorted((_point(group) for group in groups), key=lambda point: point.newest)


def current_point(facts: JobFacts, settings: OptimizerSettings) -> Point | None:
    """The size that the job has now, from samples since its last change; None: too few of them."""
    since = -1e18 if facts.changed_at is None else facts.changed_at + settings.settle
    recent: list[SpeedSample] = []
    for sample in reversed(facts.speeds):
        if sample.at < since or len(recent) == settings.max_samples:
            break
        if recent and (sample.workers, sample.ps) != (recent[0].workers, recent[0].ps):
            break
        recent.append(sample)
    return _point(recent) if len(recent) >= settings.min_samples else None


def _point(group: list[SpeedSample]) -> Point:
    first = group[0]
    step, speed = median(s.step_seconds for s in group), median(s.samples_per_second for s in group)
    used = [s.worker_cpu_used for s in group if s.worker_cpu_used is not None]
    ps_used = [s.ps_cpu_used for s in group if s.ps_cpu_used is not None]
    busiest = [s.ps_busiest for s in group if s.ps_busiest is not None]
    ps_mean = median(ps_used) if ps_used else None
    return Point(
        workers=first.workers,
        ps=first.ps,
        worker_cpu=first.worker_cpu,
        ps_cpu=first.ps_cpu,
        step_seconds=step,
        speed=speed,
        batch=speed * step / first.workers,
        worker_seconds=median(used) * step if used else None,
        ps_seconds=ps_mean * first.ps * step / first.workers if ps_mean is not None else None,
        ps_skew=_skew(median(busiest), first.ps_cpu, ps_mean) if busiest and ps_mean and first.ps_cpu else 1.0,
        samples=len(group),
        newest=first.at,
    )


def _skew(busiest: float, cpu: float, used: float) -> float:
    return min(max(busiest * cpu / used, LEAST_SKEW), MOST_SKEW)
