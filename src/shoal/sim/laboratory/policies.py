"""Who sizes a job in the laboratory: Shoal's optimizer, people who guessed, and DLRover's published rules.

People: twice the oracle's size (twice the counts, and where the job may not have so many workers, more cores for each),
half of it, and unbalanced (twice the workers with half the parameter servers; in all-reduce half the workers with twice
the cores). They were given enough memory, so that only the size is compared.

DLRover, as its local optimizer decides in its public source, in our words: start with one worker and one parameter
server of 16 cores and 16 GiB; then give workers the cores they use on average and half as much memory again; have as
many workers as bring the busiest parameter server to 90 % of its cores; have as many parameter servers as the job's cpu
limit has room for when it is divided the way the load is; give hot ones (90 %) cores as if the limit were used up;
after running out of memory double it. Where it can be read either way we took the better one: workers keep the cores
they were first given. It does not size all-reduce jobs: these have as many workers as the user allowed.
"""

import math
from collections.abc import Callable
from dataclasses import replace

from shoal.brain.algorithms.local import LocalOptimizer
from shoal.core.facts import JobFacts, Limits, NodeFacts, OptimizerSettings
from shoal.core.nodes import Role
from shoal.core.plans import NodeGroupResource, NodeResource, ResourcePlan
from shoal.core.stages import JobResourceOptimizer, OptimizerState
from shoal.sim.laboratory.bench import Sizer
from shoal.sim.laboratory.surface import Held, LabJob

EVERY = 60.0
"""Seconds between two looks of DLRover's rules once the job has settled, and until it has."""
SAMPLES = 5
HOT = 0.9
UNLIMITED_CORES = 256.0
"""What DLRover takes for the job's limit when the user names none."""

Maker = Callable[[LabJob, Held], Sizer]
"""Makes who sizes a job, given the oracle's size for it."""


class ShoalSizer:
    """The optimizer of production, over its own statistics."""

    watches = True

    def __init__(
        self,
        limits: Limits,
        settings: OptimizerSettings,
        optimizer: LocalOptimizer | None = None,
        state: OptimizerState | None = None,
    ) -> None:
        self._walk = JobResourceOptimizer(optimizer or LocalOptimizer(), settings)
        self._limits = limits
        self.state = state or OptimizerState()

    def look(self, facts: JobFacts) -> ResourcePlan | None:
        turn = self._walk.turn(self.state, facts, self._limits)
        self.state = turn.state
        return turn.plan


class StaticSizer:
    """One size from beginning to end."""

    watches = False

    def __init__(self, held: Held, name: str) -> None:
        self._held, self._name = held, name

    def look(self, facts: JobFacts) -> ResourcePlan | None:
        if facts.workers.count:
            return None
        held = self._held
        groups = {
            Role.WORKER.value: NodeGroupResource(
                count=held.workers, node_resource=NodeResource(cpu=held.worker_cpu, memory=held.worker_memory or None)
            )
        }
        if held.ps:
            groups[Role.PS.value] = NodeGroupResource(
                count=held.ps, node_resource=NodeResource(cpu=min(held.ps_cpu), memory=held.ps_memory or None)
            )
        nodes = {
            f"ps-{number}": NodeResource(cpu=cpu) for number, cpu in enumerate(held.ps_cpu) if cpu != min(held.ps_cpu)
        }
        return ResourcePlan(node_group_resources=groups, node_resources=nodes, reason="as given", algorithm=self._name)


def oracle(job: LabJob, best: Held) -> Sizer:
    return StaticSizer(best, "oracle")


def over(job: LabJob, best: Held) -> Sizer:
    return StaticSizer(_scaled(job, best, workers=2.0, ps=2.0), "2x over")


def under(job: LabJob, best: Held) -> Sizer:
    return StaticSizer(_scaled(job, best, workers=0.5, ps=0.5), "2x under")


def unbalanced(job: LabJob, best: Held) -> Sizer:
    return StaticSizer(unbalanced_size(job, best), "unbalanced")


def unbalanced_size(job: LabJob, best: Held) -> Held:
    if job.is_ps:
        return _scaled(job, best, workers=2.0, ps=0.5)
    cores = min(best.worker_cpu * 2.0, job.limits.node_cpu)
    return replace(_scaled(job, best, workers=0.5, ps=1.0), worker_cpu=cores)


def shoal(settings: OptimizerSettings) -> Maker:
    return lambda job, best: ShoalSizer(job.limits, settings)


def dlrover(job: LabJob, best: Held) -> Sizer:
    return DlroverSizer(job)


def _scaled(job: LabJob, best: Held, *, workers: float, ps: float) -> Held:
    """People give all parameter servers the same cores."""
    most = job.limits.cpu or math.inf
    servers = max(1, min(job.max_ps, math.ceil(best.ps * ps))) if job.is_ps else 0
    even = sum(best.ps_cpu) / best.ps if best.ps else 0.0
    count = max(1, min(job.max_workers, math.ceil(best.workers * workers)))
    cores = best.worker_cpu
    if workers > 1.0 and ps >= 1.0 and count < 2 * best.workers:
        cores = min(job.limits.node_cpu, best.worker_cpu * workers * best.workers / count)
    while count > 1 and count * cores + servers * even > most:
        count -= 1
    memory = math.ceil(job.ps_needs(servers, 1.0) * 1.2) if servers else 0
    return Held(
        workers=count,
        worker_cpu=cores,
        worker_memory=math.ceil(best.worker_memory * 1.2),
        ps=servers,
        ps_cpu=(even,) * servers,
        ps_memory=memory,
    )


class DlroverSizer:
    """DLRover's rules."""

    watches = True

    def __init__(self, job: LabJob) -> None:
        self._limit = job.limits.cpu or UNLIMITED_CORES
        self._node_cpu, self._node_memory = job.limits.node_cpu, job.limits.node_memory
        self._stage = 0
        self._next = 0.0
        self._ooms = 0

    def look(self, facts: JobFacts) -> ResourcePlan | None:
        if not facts.workers.count:
            return self._create(facts)
        if len(facts.ooms) > self._ooms:
            self._ooms = len(facts.ooms)
            return self._double(facts)
        fresh = [s for s in facts.speeds[-SAMPLES:] if facts.changed_at is None or s.at > facts.changed_at]
        if facts.in_change or not facts.is_ps or len(fresh) < SAMPLES or facts.now < self._next:
            return None
        self._next = facts.now + EVERY
        self._stage += 1
        if self._stage == 2:
            return self._servers(facts)
        return (self._hot(facts) if self._stage > 2 else None) or self._workers(facts)

    def _create(self, facts: JobFacts) -> ResourcePlan:
        node = NodeResource(cpu=min(16.0, self._node_cpu), memory=min(16_384, self._node_memory))
        if facts.is_ps:
            groups = {role.value: NodeGroupResource(count=1, node_resource=node) for role in (Role.WORKER, Role.PS)}
        else:
            count = max(1, min(facts.workers.max, int(self._limit / (node.cpu or 1.0))))
            groups = {Role.WORKER.value: NodeGroupResource(count=count, node_resource=node)}
        return ResourcePlan(node_group_resources=groups, reason="initial size", algorithm="dlrover")

    def _double(self, facts: JobFacts) -> ResourcePlan:
        event = facts.ooms[-1]
        known = facts.roles[event.role]
        memory = min(event.memory * 2, self._node_memory)
        node = replace(known.resource, memory=memory)
        group = NodeGroupResource(count=known.count, node_resource=node)
        return ResourcePlan(node_group_resources={event.role.value: group}, reason="doubled", algorithm="dlrover")

    def _servers(self, facts: JobFacts) -> ResourcePlan:
        servers, workers = _nodes(facts, Role.PS), _nodes(facts, Role.WORKER)
        worker_cpu = sum(map(_used, workers)) / len(workers)
        ps_cpu = sum(map(_used, servers)) / len(workers)
        cores = facts.roles[Role.PS].resource.cpu or 1.0
        total = self._limit - self._limit / (ps_cpu + worker_cpu) * worker_cpu
        count = min(max(1, math.ceil(total / cores)), facts.roles[Role.PS].max)
        node = NodeResource(cpu=cores, memory=min(int(max(map(_memory, servers)) * 1.2), self._node_memory))
        groups = {Role.PS.value: NodeGroupResource(count=count, node_resource=node)}
        return ResourcePlan(node_group_resources=groups, reason="parameter servers", algorithm="dlrover")

    def _workers(self, facts: JobFacts) -> ResourcePlan:
        servers, workers = _nodes(facts, Role.PS), _nodes(facts, Role.WORKER)
        busiest = max(_used(node) / (node.resource.cpu or 1.0) for node in servers)
        count = len(workers)
        if busiest < HOT:
            count = int(count * HOT / busiest)
        cores = facts.workers.resource.cpu or 1.0
        memory = facts.workers.resource.memory or self._node_memory
        if self._stage == 1:
            cores = max(0.1, round(sum(map(_used, workers)) / len(workers), 1))
            memory = min(int(max(map(_memory, workers)) * 1.5), self._node_memory)
        left = self._limit - sum(node.resource.cpu or 0.0 for node in servers)
        count = max(1, min(count, int(left / cores), facts.workers.max))
        group = NodeGroupResource(count=count, node_resource=NodeResource(cpu=cores, memory=memory))
        return ResourcePlan(
            node_group_resources={Role.WORKER.value: group}, reason="workers by PS load", algorithm="dlrover"
        )

    def _hot(self, facts: JobFacts) -> ResourcePlan | None:
        servers, workers = _nodes(facts, Role.PS), _nodes(facts, Role.WORKER)
        hot = [node for node in servers if _used(node) / (node.resource.cpu or 1.0) >= HOT]
        if not hot:
            return None
        each = (sum(map(_used, servers)) + sum(map(_used, workers))) / len(workers)
        factor = max(1.0, int(self._limit / each) / len(workers))
        factor = min([factor, *(self._node_cpu / _used(node) for node in hot)])
        nodes = {
            node.name: replace(node.resource, cpu=min(round(_used(node) * factor, 1), self._node_cpu))
            for node in servers
            if _used(node) * factor > (node.resource.cpu or 1.0)
        }
        return (
            ResourcePlan(node_resources=nodes, reason="hot parameter servers", algorithm="dlrover") if nodes else None
        )


def _nodes(facts: JobFacts, role: Role) -> list[NodeFacts]:
    return [node for node in facts.nodes if node.role is role and node.samples]


def _used(node: NodeFacts) -> float:
    recent = node.samples[-SAMPLES:]
    return sum(sample.cpu for sample in recent) / len(recent)


def _memory(node: NodeFacts) -> float:
    return max(sample.memory for sample in node.samples[-SAMPLES:])
