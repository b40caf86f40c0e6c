"""`trim_idle`: what was never used goes back.

Memory: when the job was watched long enough and much of it lay idle all the time. Cores: `scale_workers` sees to them;
where it is not trusted any more, cores are reclaimed only if the fitted model says that nobody would notice. What a
node used on average says little, as a worker that waits half of its time needs all of its cores in the other half.
There is a floor, and what is left is far enough above what is used that the next look does not give it back.
"""

from shoal.brain.algorithms.memory import largest, needed_memory, trend
from shoal.brain.algorithms.proposing import Wanted, nothing, proposed
from shoal.brain.algorithms.search import CORES
from shoal.brain.algorithms.sizing import Found, find
from shoal.core.cleaning import cleaned
from shoal.core.facts import JobFacts, Limits, OptimizerSettings
from shoal.core.nodes import Role
from shoal.core.optimizing import History
from shoal.core.plans import ResourcePlan

NAME = "trim_idle"
UNNOTICED = 0.01
"""The part of the speed that reclaiming cores may cost."""


def trim_idle(facts: JobFacts, history: History, limits: Limits, settings: OptimizerSettings) -> ResourcePlan:
    facts, note = cleaned(facts)
    wanted: dict[Role, Wanted] = {}
    told = []
    found = find(facts, history, limits, settings) if "scale_workers" in history.distrusted else "sizing sees to cores"
    for role in (Role.WORKER, Role.PS):
        known = facts.roles.get(role)
        if known is None:
            continue
        memory = _memory(facts, role, settings)
        cpu = _cpu(facts, settings, found) if role is Role.WORKER and not isinstance(found, str) else None
        if memory is not None:
            told.append(f"each {role} needs {memory} of its {known.resource.memory} MiB")
        if cpu is not None:
            told.append(f"each {role} is as fast with {cpu:g} of its {known.resource.cpu:g} cores")
        if memory is not None or cpu is not None:
            wanted[role] = Wanted(cpu=cpu, memory=memory)
    if not wanted:
        why = f"nothing that was watched for {settings.trim_after:.0f} s has {settings.trim:.0%} of it idle"
        return nothing(NAME, f"{why}; {note}" if note else why)
    return proposed(NAME, facts, limits, settings, wanted, reason="; ".join(told))


def _memory(facts: JobFacts, role: Role, settings: OptimizerSettings) -> int | None:
    has = None if facts.roles[role].memory_pinned else facts.roles[role].resource.memory
    trends = [trend(node, facts, settings) for node in largest(facts, role)]
    watched = bool(trends) and all(each is not None and each.watched >= settings.trim_after for each in trends)
    need = needed_memory(facts, role, settings)
    if has is None or need is None or not watched:
        return None
    return need if need <= has * (1.0 - settings.trim) else None


def _cpu(facts: JobFacts, settings: OptimizerSettings, found: Found) -> float | None:
    """Fewer cores for workers that are as fast with them, at a size that was measured often enough to know."""
    has = facts.workers.resource.cpu
    model, size = found.model, found.now.size
    if has is None or facts.workers.cpu_pinned or model.sizes < 3:
        return None
    now = float(model.speed(size.workers, has, max(1, size.ps), size.ps_cpu or 1.0))
    for cpu in CORES:
        if settings.floor_cpu <= cpu <= has * (1.0 - settings.trim):
            speed = float(model.speed(size.workers, cpu, max(1, size.ps), size.ps_cpu or 1.0))
            if speed >= now * (1.0 - UNNOTICED):
                return cpu
    return None
