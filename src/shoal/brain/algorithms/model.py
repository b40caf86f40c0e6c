"""A job's speed as a formula, fitted to what was measured.

    parameter servers:  T = a1·m/λw + a2·w/(p·λp) + a3·w/p + a4
    all-reduce:         T = a1·m/λw + a2·(n-1)/n  + a3·log2 n + a4

T is the seconds of a worker's step, m the samples in it, w or n the workers, p the parameter servers, λ the cores of
one. All a are at least zero, so the fit is by non-negative least squares, of relative errors.

Step times alone need many sizes to tell computing from waiting. What nodes *use* tells it at once: a worker that used
1.5 cores during steps of 2 seconds computed for 3 core-seconds in each, which is a1·m; the parameter servers' use gives
a2 likewise. These are further equations of the same fit. One thing use cannot tell is how many cores a worker can keep
busy at all; that number is chosen as the one with which the formula fits best.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from shoal.brain.algorithms.nnls import nnls
from shoal.brain.algorithms.points import Point, points_of
from shoal.core.facts import JobFacts, OptimizerSettings
from shoal.core.optimizing import ALL_BUSY, Canary

if TYPE_CHECKING:
    import numpy as np

MISSING = "needs numpy to fit the job's speed: pip install 'shoal[optimizer]'"
PARALLEL = (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 12.0, 16.0, math.inf)
"""How many cores a worker may be able to keep busy."""
BETTER = 0.85
"""A smaller number of cores is believed when it leaves less than this part of the error."""
BELIEVED = 0.75
"""Cores that no worker ever had count for this part: nobody knows whether it could use them. Half of them would be the
safe bet; but a size that is too large is seen and taken back, one that is too small is never found out."""
OLD_WEIGHT = 0.7
"""Of a size that is not the newest; jobs change while they train."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """The fitted formula."""

    is_ps: bool
    compute: float
    """a1: core-seconds of a worker for one sample."""
    second: float
    """a2: core-seconds of parameter servers for one worker's step; or seconds of the ring."""
    third: float
    fixed: float
    parallel: float
    """Cores that a worker can keep busy; infinite: more than it ever had."""
    tried: float
    """The most cores that a worker ever had."""
    batch: float
    """Samples in one worker's step, at the newest size."""
    global_batch: int | None
    error: float
    """Root mean square of the relative errors of step times."""
    sizes: int
    """That it was fitted to."""
    samples: int

    @property
    def confidence(self) -> float:
        """0 to 1: more sizes and smaller errors are better; one size tells nothing about another."""
        return (1.0 - 1.0 / (1.0 + self.sizes)) * max(0.0, 1.0 - 4.0 * self.error)

    @property
    def words(self) -> str:
        names = ("workers", "PS cores", "PS network") if self.is_ps else ("workers", "ring", "rounds")
        sizes = "1 size" if self.sizes == 1 else f"{self.sizes} sizes"
        return (
            f"confidence {self.confidence:.2f}: fitted to {self.samples} samples of {sizes} with {self.error:.1%} "
            f"error ({names[0]} {self.compute * self.batch:.3g} core s, {names[1]} {self.second:.3g}, {names[2]} "
            f"{self.third:.3g}, fixed {self.fixed:.3g} s a step)"
        )

    def step_seconds(self, workers: "Any", worker_cpu: "Any", ps: "Any", ps_cpu: "Any") -> "Any":
        """Numbers or arrays alike."""
        import numpy as np

        batch = self.batch if self.global_batch is None else self.global_batch / workers
        beyond = np.maximum(worker_cpu - self.tried, 0.0) * (1.0 - BELIEVED)
        time = self.compute * batch / np.minimum(worker_cpu - beyond, self.parallel) + self.fixed
        if self.is_ps:
            return time + self.second * workers / (ps * ps_cpu) + self.third * workers / ps
        return time + self.second * (workers - 1) / workers + self.third * np.log2(workers)

    def speed(self, workers: "Any", worker_cpu: "Any", ps: "Any" = 1, ps_cpu: "Any" = 1.0) -> "Any":
        batch = self.batch if self.global_batch is None else self.global_batch / workers
        return workers * batch / self.step_seconds(workers, worker_cpu, ps, ps_cpu)


def fitted(facts: JobFacts, settings: OptimizerSettings, canary: Canary | None = None) -> Model | str:
    """The model of clean facts, or why there is none."""
    return fitted_to(points_of(facts, settings), facts, settings, canary)


def fitted_to(
    points: Sequence[Point], facts: JobFacts, settings: OptimizerSettings, canary: Canary | None
) -> Model | str:
    points = [point for point in points if _is_whole(point, facts.is_ps)]
    if not points:
        return f"no size of the job has {min(3, settings.min_samples)} good samples of its speed yet"
    try:
        import numpy as np
    except ImportError:
        return MISSING
    best: tuple[float, Any, float] | None = None
    most = max(point.worker_cpu or 1.0 for point in points)
    for parallel in _parallels(points, most, canary):
        rows, wanted = _equations(np, points, parallel, facts.is_ps)
        solution, error = nnls(rows, wanted)
        if best is None or error < best[0] * BETTER - 1e-9:
            best = (error, solution, parallel)
    assert best is not None
    _, (compute, second, third, fixed), parallel = best
    newest = points[-1]
    model = Model(
        is_ps=facts.is_ps,
        compute=float(compute),
        second=float(second),
        third=float(third),
        fixed=max(float(fixed), 1e-9),
        parallel=parallel,
        tried=max(most, canary.tried if canary is not None else 0.0),
        batch=newest.batch,
        global_batch=facts.global_batch,
        error=0.0,
        sizes=len(points),
        samples=sum(point.samples for point in points),
    )
    return _with_error(model, points)


def _with_error(model: Model, points: Sequence[Point]) -> Model:
    errors = [
        (float(model.step_seconds(p.workers, p.worker_cpu or 1.0, p.ps or 1, p.ps_cpu or 1.0)) / p.step_seconds) - 1.0
        for p in points
    ]
    return replace(model, error=math.sqrt(sum(each * each for each in errors) / len(errors)))


def _parallels(points: Sequence[Point], most: float, canary: Canary | None) -> list[float]:
    """How many cores a worker may be able to keep busy, the most first."""
    if canary is not None and canary.has_shown_all:
        return [canary.busy]
    used = max((point.worker_seconds or 0.0) / point.step_seconds for point in points)
    least = max(used * ALL_BUSY, canary.tried if canary is not None else 0.0)
    return [math.inf, *(each for each in reversed(PARALLEL[:-1]) if least <= each <= most)]


def _is_whole(point: Point, is_ps: bool) -> bool:
    return not is_ps or point.ps >= 1


def _equations(np: "Any", points: Sequence[Point], parallel: float, is_ps: bool) -> "tuple[np.ndarray, np.ndarray]":
    """One for each size's step time, and one for each thing that its nodes used; all divided by the step time."""
    rows, wanted = [], []
    for number, point in enumerate(points):
        weight = (1.0 if number == len(points) - 1 else OLD_WEIGHT) / point.step_seconds
        cores = point.worker_cpu or 1.0
        busy = min(cores, parallel)
        worker = point.batch / busy
        if is_ps:
            servers = point.ps * (point.ps_cpu or 1.0)
            others = (point.workers * point.ps_skew / servers, point.workers / point.ps)
        else:
            others = ((point.workers - 1) / point.workers, math.log2(point.workers))
        rows.append([weight * worker, weight * others[0], weight * others[1], weight])
        wanted.append(1.0 * weight * point.step_seconds)
        if point.worker_seconds is not None and point.worker_cpu is not None:
            rows.append([weight * worker, 0.0, 0.0, 0.0])
            wanted.append(weight * point.worker_seconds / busy)
        if is_ps and point.ps_seconds is not None and point.ps_cpu is not None:
            rows.append([0.0, weight * others[0], 0.0, 0.0])
            wanted.append(weight * point.ps_seconds * others[0])
    return np.array(rows), np.array(wanted)
