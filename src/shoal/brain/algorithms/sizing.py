"""The best size of a job as a plan: what `size_ps` and `scale_workers` share.

Both look at the whole job, because neither number means anything alone: workers need parameter servers that keep up
with them, and memory can be put right at no cost when nodes are started anyway. They differ in when they are asked and
in what a change must promise.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from shoal.brain.algorithms.memory import needed_memory
from shoal.brain.algorithms.model import Model, fitted_to
from shoal.brain.algorithms.points import Point, current_point, points_of
from shoal.brain.algorithms.proposing import Wanted, nothing, proposed
from shoal.brain.algorithms.search import Memories, Size, Weighed, best_size, size_cost, weigh
from shoal.core.facts import JobFacts, Limits, OptimizerSettings
from shoal.core.nodes import Role
from shoal.core.optimizing import History, Kind
from shoal.core.plans import ResourcePlan
from shoal.core.stages import kind_of

LEAST_SHARE = 0.2
"""Of the mean's cores, for parameter servers that have little to do beside a hot one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What the job has and what it could have, weighed by one model."""

    model: Model
    now: Weighed
    best: Weighed
    here: Point
    fewest: int
    """Workers that the job was measured with."""

    @property
    def gain(self) -> float:
        """Of speed per cost."""
        return self.best.score / self.now.score - 1.0


def find(facts: JobFacts, history: History, limits: Limits, settings: OptimizerSettings) -> Found | str:
    """The best size within reach, or why nothing can be said. Facts must be clean."""
    if facts.is_ps and Role.PS not in facts.roles:
        return "the job has no parameter servers yet"
    here = current_point(facts, settings)
    if here is None:
        return f"fewer than {settings.min_samples} good samples of the job's speed since its last change"
    points = points_of(facts, settings)
    model = fitted_to(points, facts, settings, history.canary)
    if isinstance(model, str):
        return model
    had = [size_of(point) for point in points]
    memories = memories_of(facts, settings)
    if cost_of(facts, settings, memories) <= 0:
        return "the job has no nodes at the moment"
    best = best_size(
        model, facts, limits, settings, memories, measured=had, canary=history.canary, skew=load_skew(facts)
    )
    if best is None:
        return "no size of the job is within its limits"
    now, fewest = _now(model, facts, here, memories, settings), min(point.workers for point in points)
    return Found(model=model, now=now, best=best, here=here, fewest=fewest)


def _now(model: Model, facts: JobFacts, here: Point, memories: Memories, settings: OptimizerSettings) -> Weighed:
    """What the job has, weighed by the same model, at the cost of what each node really has."""
    speed = weigh(model, size_of(here), memories, settings).speed
    cost = cost_of(facts, settings, memories)
    return Weighed(size=size_of(here), speed=speed, cost=cost, score=speed / cost**settings.marginal_speedup)


def cost_of(facts: JobFacts, settings: OptimizerSettings, memories: Memories) -> float:
    """Of what the job holds, with memory as it should be: too much of it is no reason to change counts."""
    known = facts.roles.get(Role.PS)
    has = Size(
        workers=facts.workers.count,
        worker_cpu=_mean_cpu(facts, Role.WORKER),
        ps=known.count if known else 0,
        ps_cpu=_mean_cpu(facts, Role.PS) if known else 0.0,
    )
    return size_cost(has, memories, settings, facts.workers.resource.gpu_num or 0)


def _mean_cpu(facts: JobFacts, role: Role) -> float:
    """Over nodes, of which some have cores of their own."""
    cores = [node.resource.cpu for node in facts.nodes if node.role is role and node.resource.cpu is not None]
    return sum(cores) / len(cores) if cores else facts.roles[role].resource.cpu or 1.0


def doubts(model: Model, history: History, settings: OptimizerSettings) -> list[str]:
    """Why the fit is not to be trusted alone; empty: nothing speaks against it."""
    errors = [error for each in history.outcomes if (error := each.prediction_error) is not None][-1:]
    told = [f"the last prediction was {error:+.0%} off" for error in errors if abs(error) > settings.error_bound]
    if model.error > settings.error_bound:
        told.append(f"the fit is {model.error:.0%} off from what was measured")
    return [f"{' and '.join(told)}: the fit is not to be trusted alone"] if told else []


def planned(
    algorithm: str, facts: JobFacts, limits: Limits, settings: OptimizerSettings, found: Found, why: str
) -> ResourcePlan:
    """The best size, with memory put right on the way and hot parameter servers given their share of cores."""
    size = found.best.size
    wanted = {Role.WORKER: Wanted(count=size.workers, cpu=_cpu(facts, Role.WORKER, size.worker_cpu),
                                  memory=needed_memory(facts, Role.WORKER, settings))}  # fmt: skip
    nodes: Mapping[str, Wanted] = {}
    if facts.is_ps:
        memory = needed_memory(facts, Role.PS, settings, count=size.ps)
        even = _cpu(facts, Role.PS, size.ps_cpu)
        rest, nodes = shares(facts, settings, even, size.ps) if even is not None else (None, {})
        wanted[Role.PS] = Wanted(count=size.ps, cpu=rest, memory=memory)
    confidence = found.model.confidence
    plan = proposed(
        algorithm,
        facts,
        limits,
        settings,
        wanted,
        nodes=nodes,
        reason=why,
        predicted=found.best.speed,
        confidence=confidence,
    )
    if not plan.is_empty and kind_of(plan, facts) is Kind.MEMORY:
        left = f"the limits leave the job at {sizes_in_words(facts, found.now.size)}; {why}"
        return nothing(algorithm, left, confidence)
    return plan


def size_of(point: Point) -> Size:
    """The size that a point tells of, with the cores of parameter servers as if they were shared out by load."""
    even = (point.ps_cpu or 1.0) / point.ps_skew
    return Size(workers=point.workers, worker_cpu=point.worker_cpu or 1.0, ps=point.ps, ps_cpu=even)


def memories_of(facts: JobFacts, settings: OptimizerSettings) -> Memories:
    def one(role: Role) -> float:
        known = facts.roles[role]
        found = None if known.memory_pinned else needed_memory(facts, role, settings)
        return float(found if found is not None else known.resource.memory or settings.start_memory or 0)

    if not facts.is_ps:
        return Memories(worker=one(Role.WORKER))
    return Memories(worker=one(Role.WORKER), ps=one(Role.PS), ps_count=facts.roles[Role.PS].count)


def loads(facts: JobFacts) -> dict[str, float]:
    """Cores that each parameter server uses: the mean of its newer samples since the last change."""
    since = facts.changed_at if facts.changed_at is not None else -1e18
    found = {}
    for node in facts.nodes:
        if node.role is Role.PS:
            recent = [sample.cpu for sample in node.samples[-10:] if sample.at > since]
            if recent:
                found[node.name] = sum(recent) / len(recent)
    return found


def load_skew(facts: JobFacts) -> float:
    """How many times the mean's load the busiest parameter server has."""
    used = loads(facts)
    mean = sum(used.values()) / len(used) if used else 0.0
    return max(used.values()) / mean if mean > 0.0 else 1.0


def shares(facts: JobFacts, settings: OptimizerSettings, cpu: float, count: int) -> tuple[float, Mapping[str, Wanted]]:
    """`cpu` is what the mean load needs: what most parameter servers get, and those that have much more to do."""
    used = loads(facts)
    mean = sum(used.values()) / len(used) if used else 0.0
    if count < 2 or len(used) < 2 or mean <= 0.0:
        return cpu, {}
    hot = {name: load for name, load in sorted(used.items()) if load >= settings.skewed * mean}
    if not hot:
        return cpu, {}
    theirs = sum(load / mean for load in hot.values())
    rest = (count - theirs) / (count - len(hot)) if count > len(hot) else 1.0
    most = {name: Wanted(cpu=_tenths(cpu * load / mean)) for name, load in hot.items()}
    return _tenths(cpu * min(1.0, max(LEAST_SHARE, rest))), most


def _tenths(cpu: float) -> float:
    """Rounded down: together they have no more than was weighed."""
    return max(0.1, math.floor(cpu * 10.0 + 1e-9) / 10.0)


def sizes_in_words(facts: JobFacts, size: Size) -> str:
    workers = "1 worker" if size.workers == 1 else f"{size.workers} workers"
    if facts.workers.resource.cpu is not None:
        workers += f" x {size.worker_cpu:g} cores"
    return f"{workers}, {size.ps} PS x {size.ps_cpu:g} cores" if facts.is_ps else workers


def _cpu(facts: JobFacts, role: Role, cpu: float) -> float | None:
    return None if facts.roles[role].resource.cpu is None else cpu


def declined(algorithm: str, note: str, why: str, confidence: float | None = None) -> ResourcePlan:
    return nothing(algorithm, f"{why}; {note}" if note else why, confidence)
