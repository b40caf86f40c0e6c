"""`probe_workers`: a few workers, so that it can be told how they get in each other's way.

With one worker, waiting for parameter servers or for the ring looks like any other part of a step. With two to four it
can be told apart, and the load of a parameter server can be divided by workers. Workers that do not use all their
cores get half of them, and the first one gets four times as many as it had, as a canary: its step times tell how many
cores workers could use, at the price of a few of them for a few minutes. Memory that the job's limit does not leave for
so many is shared by them, if those that are there use little of theirs.

Where workers must be alike all of them show it: those that keep all their cores busy while they compute get four times
as many, the others as many as they keep busy. With parameter servers waiting looks like computing: workers that use
most of their cores on average get twice as many, the others half.

A job that begins with more than a few, or with all that it may have, is looked at with half of them: what a step waits
for looks like any other part of it as long as there is one size to look at.
"""

from shoal.brain.algorithms.memory import needed_memory
from shoal.brain.algorithms.points import current_point
from shoal.brain.algorithms.proposing import Wanted, nothing, proposed
from shoal.core.cleaning import cleaned
from shoal.core.facts import JobFacts, Limits, OptimizerSettings, cpu_limit
from shoal.core.nodes import Role
from shoal.core.optimizing import Canary, History
from shoal.core.plans import ResourcePlan
from shoal.core.recovery import MEMORY_STEP

NAME = "probe_workers"
BUSY = 0.8
"""A worker that uses more than this part of its cores on average needs them all."""
MOSTLY = 0.6
"""One that uses more than this part, and nobody can tell from its waiting how many it uses while it computes, may be
able to use more."""
CANARY = 4.0
"""How many times its cores the first worker gets, or all of them."""


def probe_workers(facts: JobFacts, history: History, limits: Limits, settings: OptimizerSettings) -> ResourcePlan:
    facts, note = cleaned(facts)
    here = current_point(facts, settings)
    if here is None:
        why = f"fewer than {settings.min_samples} good samples of the first worker's speed"
        return nothing(NAME, f"{why}; {note}" if note else why)
    known = facts.workers
    count = _count(facts, settings)
    cpu, busy = known.resource.cpu, None
    if cpu is not None and here.worker_seconds is not None:
        busy = here.worker_seconds / here.step_seconds / cpu
        cpu = max(_cores(cpu, busy, history.canary, settings), settings.floor_cpu)
    most = min((known.resource.cpu or settings.start_cpu or 1.0) * CANARY, cpu_limit(known, limits))
    if limits.cpu is not None and cpu is not None:
        servers = facts.roles.get(Role.PS)
        left = limits.cpu - (servers.count * (servers.resource.cpu or 0.0) if servers else 0.0)
        cpu = min(cpu, max(settings.floor_cpu, int(left / count * 10) / 10))
        most = min(most, left - (count - 1) * cpu)
    told = (
        f", each with {cpu:g} cores because {_use(busy, known.resource.cpu or 0.0, history.canary)}"
        if busy is not None
        else ""
    )
    shows = "further one costs" if count > known.count else "of them brings"
    now = "1 worker takes" if known.count == 1 else f"{known.count} workers take"
    reason = f"{now} {here.step_seconds:.3g} s a step; {count} show what each {shows}{told}"
    memory = needed_memory(facts, Role.WORKER, settings) or _shared_memory(facts, limits, settings, count)
    wanted = {Role.WORKER: Wanted(count=count, cpu=cpu, memory=memory)}
    first = next((node.name for node in facts.nodes if node.role is Role.WORKER), None)
    may = settings.canary and first is not None and cpu is not None and count > 1 and most > cpu
    canary = {first: Wanted(cpu=most)} if first is not None and may else {}
    return proposed(NAME, facts, limits, settings, wanted, nodes=canary, reason=reason)


def _cores(cpu: float, busy: float, shown: Canary | None, settings: OptimizerSettings) -> float:
    """Of all but a canary. `busy`: the part of their cores that workers use on average."""
    if settings.canary:
        return cpu if busy > BUSY else cpu / 2.0
    if shown is None:
        return cpu * 2.0 if busy > MOSTLY else cpu / 2.0
    return cpu * CANARY if not shown.has_shown_all else round(2.0 * shown.busy) / 2.0


def _use(busy: float, cpu: float, shown: Canary | None) -> str:
    told = f"{busy:.0%} of {cpu:g} were used"
    return told if shown is None else f"{told}, {shown.busy:.2g} while they computed"


def _shared_memory(facts: JobFacts, limits: Limits, settings: OptimizerSettings, count: int) -> int | None:
    """What so many workers may have of the job's memory, where they cannot all have what the first ones have and those
    have used much less of it; None: it stays. Nobody has watched it for long, so the margin is a double one."""
    known, servers = facts.workers, facts.roles.get(Role.PS)
    if limits.memory is None or known.resource.memory is None:
        return None
    left = limits.memory - (servers.count * (servers.resource.memory or 0) if servers else 0)
    each = left // count // MEMORY_STEP * MEMORY_STEP
    used = [sample.memory for node in facts.nodes if node.role is Role.WORKER for sample in node.samples]
    if each >= known.resource.memory or not used:
        return None
    enough = max(used) * (1.0 + 2.0 * settings.memory_margin)
    return each if each >= max(enough, settings.floor_memory) else None


def _count(facts: JobFacts, settings: OptimizerSettings) -> int:
    """A few workers; of a job that has always had at least as many, half of them: one size alone tells nothing."""
    known, unit = facts.workers, max(1, facts.node_unit)
    few = min(-(-settings.probe_workers // unit) * unit, max(known.max, 1))
    if known.count_pinned:
        return max(1, known.count)
    if known.count < few:
        return few
    if len({(sample.workers, sample.ps) for sample in facts.speeds}) > 1:
        return known.count
    return max(known.min, known.count // 2 // unit * unit, 1)
