"""The best size by a model: every combination of counts and cores that is allowed and within reach, weighed.

What is weighed is speed per cost, `speed / cost ** marginal_speedup`. With the exponent at 0.5 more resources are worth
it while one per cent of them brings half a per cent of speed: the marginal speed-up per worker is half of linear there.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from shoal.brain.algorithms.model import Model
from shoal.core.facts import JobFacts, Limits, OptimizerSettings, cpu_limit
from shoal.core.nodes import Role
from shoal.core.optimizing import Canary

CORES = (0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 5.0, 6.0, 7.0, 8.0, 10.0, 12.0, 14.0, 16.0, 20.0, 24.0, 28.0, 32.0)
"""Per node; beyond them twice as many at a time."""
EVERY_COUNT = 40
"""Up to here every count is tried, beyond it a tenth more each time."""
MIB_IN_GIB = 1024.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """What the job could have."""

    workers: int
    worker_cpu: float
    ps: int = 0
    ps_cpu: float = 0.0
    """For the mean load; those with more load have more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Weighed:
    """A size and what it promises."""

    size: Size
    speed: float
    cost: float
    score: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Memories:
    """MiB for each node; of parameter servers as many as there are now hold."""

    worker: float
    ps: float = 0.0
    ps_count: int = 1


def weigh(model: Model, size: Size, memories: Memories, settings: OptimizerSettings, gpus: int = 0) -> Weighed:
    speed = float(model.speed(size.workers, size.worker_cpu, max(1, size.ps), size.ps_cpu or 1.0))
    cost = size_cost(size, memories, settings, gpus)
    return Weighed(size=size, speed=speed, cost=cost, score=speed / cost**settings.marginal_speedup)


def size_cost(size: Size, memories: Memories, settings: OptimizerSettings, gpus: int = 0) -> float:
    return float(_cost(size.workers, size.worker_cpu, size.ps, size.ps_cpu, memories, settings, gpus))


def best_size(
    model: Model,
    facts: JobFacts,
    limits: Limits,
    settings: OptimizerSettings,
    memories: Memories,
    *,
    measured: Sequence[Size],
    canary: Canary | None = None,
    skew: float = 1.0,
) -> Weighed | None:
    """The best of all that is allowed; None: nothing is.

    `measured` and `canary`: sizes that the job and a worker have had, which bound the reach of the model. `skew`: how
    many times the mean's cores the busiest parameter server needs.
    """
    import numpy as np

    axes = _axes(facts, limits, settings, measured, canary)
    if axes is None:
        return None
    workers, worker_cpu, ps, ps_cpu = np.meshgrid(*(np.array(axis) for axis in axes), indexing="ij", sparse=True)
    speed = model.speed(workers, worker_cpu, np.maximum(ps, 1), np.maximum(ps_cpu, 1e-3))
    gpus = facts.workers.resource.gpu_num or 0
    cost = _cost(workers, worker_cpu, ps, ps_cpu, memories, settings, gpus)
    score = speed / cost**settings.marginal_speedup
    score = np.where(_allowed(np, workers, worker_cpu, ps, ps_cpu, memories, facts, limits, skew), score, -math.inf)
    at = np.unravel_index(int(np.argmax(score)), score.shape)
    if not math.isfinite(float(score[at])):
        return None
    chosen = Size(workers=int(axes[0][at[0]]), worker_cpu=axes[1][at[1]], ps=int(axes[2][at[2]]), ps_cpu=axes[3][at[3]])
    return weigh(model, chosen, memories, settings, gpus)


def _cost(
    workers: Any, worker_cpu: Any, ps: Any, ps_cpu: Any, memories: Memories, settings: OptimizerSettings, gpus: int
) -> Any:
    per_mib = settings.cost_per_gib / MIB_IN_GIB
    held = memories.ps * memories.ps_count
    worker = worker_cpu * settings.cost_per_core + memories.worker * per_mib + gpus * settings.cost_per_gpu
    return workers * worker + ps * ps_cpu * settings.cost_per_core + held * per_mib


def _allowed(
    np: Any,
    workers: Any,
    worker_cpu: Any,
    ps: Any,
    ps_cpu: Any,
    memories: Memories,
    facts: JobFacts,
    limits: Limits,
    skew: float,
) -> Any:
    cpu, memory = room(facts, limits)
    held = memories.ps * memories.ps_count
    fits = workers * worker_cpu + ps * ps_cpu <= cpu + 1e-9
    fits = fits & ((ps < 2) | (ps_cpu * skew <= _most_ps_cpu(facts, limits) + 1e-9))
    return fits & (workers * memories.worker + held <= memory)


def _most_ps_cpu(facts: JobFacts, limits: Limits) -> float:
    known = facts.roles.get(Role.PS)
    return limits.node_cpu if known is None else cpu_limit(known, limits)


def room(facts: JobFacts, limits: Limits) -> tuple[float, float]:
    """Cores and MiB that workers and parameter servers may have together."""
    ours = (Role.WORKER, Role.PS)
    has_cpu = sum(known.count * (known.resource.cpu or 0.0) for role, known in facts.roles.items() if role in ours)
    has_memory = sum(known.count * (known.resource.memory or 0) for role, known in facts.roles.items() if role in ours)
    others_cpu = sum(k.count * (k.resource.cpu or 0.0) for role, k in facts.roles.items() if role not in ours)
    others_memory = sum(k.count * (k.resource.memory or 0) for role, k in facts.roles.items() if role not in ours)
    cpu = math.inf if limits.cpu is None else limits.cpu - others_cpu
    memory = math.inf if limits.memory is None else limits.memory - others_memory
    if limits.free_cpu is not None:
        cpu = min(cpu, has_cpu + max(0.0, limits.free_cpu))
    if limits.free_memory is not None:
        memory = min(memory, has_memory + max(0, limits.free_memory))
    return cpu, memory


Axes = tuple[list[float], list[float], list[float], list[float]]


def _axes(
    facts: JobFacts, limits: Limits, settings: OptimizerSettings, measured: Sequence[Size], canary: Canary | None
) -> Axes | None:
    """The values to try of workers, their cores, parameter servers, their cores."""
    workers = _counts(facts, Role.WORKER, [size.workers for size in measured], settings)
    had = [size.worker_cpu for size in measured] + ([canary.tried] if canary is not None else [])
    worker_cpu = _cores(facts, Role.WORKER, had, limits, settings)
    if not facts.is_ps:
        axes = (workers, worker_cpu, [0.0], [0.0])
    else:
        ps = _counts(facts, Role.PS, [size.ps for size in measured], settings)
        ps_cpu = _cores(facts, Role.PS, [size.ps_cpu for size in measured], limits, settings)
        axes = (workers, worker_cpu, ps, ps_cpu)
    return axes if all(axes) else None


def _counts(facts: JobFacts, role: Role, measured: Sequence[int], settings: OptimizerSettings) -> list[float]:
    known = facts.roles[role]
    if known.count_pinned:
        return [float(max(1, known.count))]
    if not facts.is_ps and len(set(measured)) == 1:
        # What a ring costs looks like any other part of a step: a fit to one number says nothing about others.
        return [float(measured[0])]
    unit = max(1, facts.node_unit) if role is Role.WORKER else 1
    most = min(known.max, max(1, int(max(measured, default=1) * settings.reach)))
    least = max(1, known.min)
    most = max(most, least)
    found, count = [], -(-least // unit) * unit
    while count <= most:
        found.append(float(count))
        count += unit if count < EVERY_COUNT * unit else max(unit, count // 10 // unit * unit)
    return found or [float(max(1, known.count))]


def _cores(
    facts: JobFacts, role: Role, measured: Sequence[float], limits: Limits, settings: OptimizerSettings
) -> list[float]:
    known = facts.roles[role]
    if known.resource.cpu is None or known.cpu_pinned:
        return [known.resource.cpu or 1.0]
    seen = [cpu for cpu in measured if cpu > 0.0] or [known.resource.cpu]
    low = max(settings.floor_cpu, min(seen) / settings.cpu_reach)
    most = cpu_limit(known, limits)
    high = min(most, max(seen) * settings.cpu_reach)
    steps = list(CORES)
    while steps[-1] < high:
        steps.append(steps[-1] * 2.0)
    return [cpu for cpu in steps if low - 1e-9 <= cpu <= high + 1e-9] or [min(known.resource.cpu, most)]
