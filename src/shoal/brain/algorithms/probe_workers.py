"""`probe_workers`: a few workers, so that it can be told how they get in each other's way.

With one worker, waiting for parameter servers or for the ring looks like any other part of a step. With two to four it
can be told apart, and the load of a parameter server can be divided by workers. Workers that do not use all their
cores get half of them, and the first one gets four times as many as it had, as a canary: its step times tell how many
cores workers could use, at the price of a few of them for a few minutes.
"""

from shoal.brain.algorithms.memory import needed_memory
from shoal.brain.algorithms.points import current_point
from shoal.brain.algorithms.proposing import Wanted, nothing, proposed
from shoal.core.cleaning import cleaned
from shoal.core.facts import JobFacts, Limits, OptimizerSettings
from shoal.core.nodes import Role
from shoal.core.optimizing import History
from shoal.core.plans import ResourcePlan

NAME = "probe_workers"
BUSY = 0.8
"""A worker that uses more than this part of its cores on average needs them all."""
CANARY = 4.0
"""How many times its cores the first worker gets."""


def probe_workers(facts: JobFacts, history: History, limits: Limits, settings: OptimizerSettings) -> ResourcePlan:
    facts, note = cleaned(facts)
    here = current_point(facts, settings)
    if here is None:
        why = f"fewer than {settings.min_samples} good samples of the first worker's speed"
        return nothing(NAME, f"{why}; {note}" if note else why)
    known = facts.workers
    unit = max(1, facts.node_unit)
    count = min(max(known.count, -(-settings.probe_workers // unit) * unit), max(known.max, 1))
    cpu, busy = known.resource.cpu, None
    if cpu is not None and here.worker_seconds is not None:
        busy = here.worker_seconds / here.step_seconds / cpu
        cpu = cpu if busy > BUSY else max(cpu / 2.0, settings.floor_cpu)
    most = min((known.resource.cpu or settings.start_cpu) * CANARY, limits.node_cpu)
    if limits.cpu is not None and cpu is not None:
        servers = facts.roles.get(Role.PS)
        left = limits.cpu - (servers.count * (servers.resource.cpu or 0.0) if servers else 0.0)
        cpu = min(cpu, max(settings.floor_cpu, int(left / count * 10) / 10))
        most = min(most, left - (count - 1) * cpu)
    told = (
        f", each with {cpu:g} cores because {busy:.0%} of {known.resource.cpu:g} were used" if busy is not None else ""
    )
    reason = (
        f"{known.count} workers take {here.step_seconds:.3g} s a step; {count} show what each further one costs{told}"
    )
    memory = needed_memory(facts, Role.WORKER, settings)
    wanted = {Role.WORKER: Wanted(count=count, cpu=cpu, memory=memory)}
    first = next((node.name for node in facts.nodes if node.role is Role.WORKER), None)
    canary = {first: Wanted(cpu=most)} if first and cpu is not None and count > 1 and most > cpu else {}
    return proposed(NAME, facts, limits, settings, wanted, nodes=canary, reason=reason)
