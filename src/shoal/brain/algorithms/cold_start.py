"""`cold_start`: a safe beginning for a job of which nothing is known.

One worker (or the least number that the job can run with) and one parameter server: what they measure costs little.
They have a few cores, and more memory than most jobs need, because a job that starts with too little of it does not
start at all. What lies idle is reclaimed with the first change that follows. What the user has given to nodes they
keep.
"""

from shoal.brain.algorithms.proposing import Sizes, Wanted, proposed
from shoal.core.facts import JobFacts, Limits, OptimizerSettings
from shoal.core.nodes import Role
from shoal.core.optimizing import History
from shoal.core.plans import ResourcePlan

NAME = "cold_start"


def cold_start(facts: JobFacts, history: History, limits: Limits, settings: OptimizerSettings) -> ResourcePlan:
    roles = [role for role in (Role.WORKER, Role.PS) if role in facts.roles]
    counts = {role: _count(facts, role, settings) for role in roles}
    nodes = sum(counts.values())
    wanted = {}
    for role in roles:
        has = facts.roles[role].resource
        cpu = has.cpu if has.cpu is not None else _cpu(limits, settings, nodes)
        memory = has.memory if has.memory is not None else _memory(limits, settings, nodes)
        wanted[role] = Wanted(count=counts[role], cpu=cpu, memory=memory)
    return proposed(NAME, facts, limits, settings, wanted, reason=_why)


def _why(sizes: Sizes) -> str:
    told = [f"{size.count} {role} with {_words(size.cpu, size.memory)}" for role, size in sizes.items()]
    return f"nothing is known of the job: {', '.join(told)} show what it needs"


def _count(facts: JobFacts, role: Role, settings: OptimizerSettings) -> int:
    known = facts.roles[role]
    if role is not Role.WORKER:
        return max(1, known.min)
    unit = max(1, facts.node_unit)
    return max(1, known.min, min(-(-settings.start_workers // unit) * unit, known.max))


def _cpu(limits: Limits, settings: OptimizerSettings, nodes: int) -> float | None:
    if settings.start_cpu is None:
        return None
    cpu = min(settings.start_cpu, limits.node_cpu)
    return _down(cpu if limits.cpu is None else min(cpu, limits.cpu / nodes))


def _memory(limits: Limits, settings: OptimizerSettings, nodes: int) -> int | None:
    if settings.start_memory is None:
        return None
    memory = min(settings.start_memory, limits.node_memory)
    return memory if limits.memory is None else min(memory, int(limits.memory / nodes) // 64 * 64)


def _down(cpu: float) -> float:
    return int(cpu * 10) / 10


def _words(cpu: float | None, memory: int | None) -> str:
    amounts = [] if cpu is None else [f"{cpu:g} cores"]
    amounts += [] if memory is None else [f"{memory} MiB"]
    return f"{' and '.join(amounts)} each" if amounts else "what their hosts have"
