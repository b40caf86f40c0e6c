"""`cold_start`: a safe beginning for a job of which nothing is known.

One worker (or the least number that the job can run with) and one parameter server: what they measure costs little.
They have a few cores, and more memory than most jobs need, because a job that starts with too little of it does not
start at all. What lies idle is reclaimed with the first change that follows.
"""

from shoal.brain.algorithms.proposing import Wanted, proposed
from shoal.core.facts import JobFacts, Limits, OptimizerSettings
from shoal.core.nodes import Role
from shoal.core.optimizing import History
from shoal.core.plans import ResourcePlan

NAME = "cold_start"


def cold_start(facts: JobFacts, history: History, limits: Limits, settings: OptimizerSettings) -> ResourcePlan:
    cpu = min(settings.start_cpu, limits.node_cpu)
    memory = min(settings.start_memory, limits.node_memory)
    roles = [role for role in (Role.WORKER, Role.PS) if role in facts.roles]
    nodes = sum(max(1, facts.roles[role].min) for role in roles)
    if limits.cpu is not None and nodes:
        cpu = min(cpu, limits.cpu / nodes)
    if limits.memory is not None and nodes:
        memory = min(memory, int(limits.memory / nodes) // 64 * 64)
    wanted = {role: Wanted(count=max(1, facts.roles[role].min), cpu=_down(cpu), memory=memory) for role in roles}
    counts = " and ".join(f"{each.count} {role}" for role, each in wanted.items())
    reason = f"nothing is known of the job: {counts} with {_down(cpu):g} cores and {memory} MiB each show what it needs"
    return proposed(NAME, facts, limits, settings, wanted, reason=reason)


def _down(cpu: float) -> float:
    return int(cpu * 10) / 10
