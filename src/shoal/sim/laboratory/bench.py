"""One job's life under one policy, in steps of half a minute.

The bench starts what the policy first wants, lets the job train by its surface, samples it with noise, and asks the
policy at every step with the facts that a master would have. A plan takes the nodes' time to start, in which the job
goes on as it is and pays for both; then comes the pause, then what was asked for. A node that needs more memory than
it has ends, and the job with it until somebody gives it more.
"""

import random
from dataclasses import dataclass, field, replace
from typing import Protocol

from shoal.core.facts import (
    JobFacts,
    NodeFacts,
    NodeSample,
    OomEvent,
    ResizeCost,
    RoleFacts,
    SpeedSample,
)
from shoal.core.nodes import Role
from shoal.core.plans import NodeResource, ResourcePlan
from shoal.sim.laboratory.surface import Held, LabJob

TICK = 30.0
KEPT = 30
"""Samples of a node."""
QUIET, PATIENT = 900.0, 300.0
"""Seconds after which a job that was not changed is looked at less often, and how often then."""
RESTART = 60.0
"""Seconds until nodes that ran out of memory are back."""
LONGEST = 20.0
"""How many times the oracle's time a job may take before it counts as lost."""
NOTHING = Held(workers=0, worker_cpu=1.0, worker_memory=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a job runs: what can be given to its nodes there, and what they tell."""

    each: float | None = None
    """Cores that every node has because its host lets it: nodes are given neither cores nor memory, and never run out
    of it. None: they are given what is planned."""
    tells_waits: bool = True
    """Whether workers of parameter servers can tell computing from waiting. TensorFlow's cannot."""
    checks_hosts: bool = False
    """A plan with a node that no host has room for is not granted. False: who plans knows the hosts."""


class Sizer(Protocol):
    """Who sizes one job."""

    watches: bool
    """False: it decides once, at the start, and nothing needs to be measured for it."""

    def look(self, facts: JobFacts) -> ResourcePlan | None:
        """What is to be changed; None: nothing. Asked first with nothing running and nothing known."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The job from one change to the next."""

    at: float
    held: Held
    algorithm: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """What became of a job."""

    job: LabJob
    seconds: float
    finished: bool
    steps: tuple[Step, ...]
    """The first one is what it started with."""
    replaced: int
    """Slow nodes that were replaced."""
    ooms: tuple[OomEvent, ...]
    cost: float
    """Units: an hour of what is held."""
    core_seconds: float
    core_seconds_used: float
    memory_seconds: float
    memory_seconds_used: float
    speeds: tuple[tuple[float, float], ...] = ()
    """(time, samples per second), as they were."""

    @property
    def repeated_ooms(self) -> int:
        """Roles that ran out of memory again after they had been given more."""
        roles = [event.role for event in self.ooms]
        return len(roles) - len(set(roles))

    def held_after(self, changes: int) -> Held:
        """What it held when so many changes had been made, or at its end."""
        return self.steps[min(changes, len(self.steps) - 1)].held


@dataclass(slots=True)
class _World:
    """All that changes."""

    held: Held = NOTHING
    now: float = 0.0
    done: float = 0.0
    target: Held | None = None
    ready_at: float = 0.0
    paused_until: float = 0.0
    changed_at: float | None = None
    dead: bool = False
    slow: float = 1.0
    slow_began: bool = False
    speeds: list[SpeedSample] = field(default_factory=list)
    samples: dict[str, list[NodeSample]] = field(default_factory=dict)
    since: dict[str, float] = field(default_factory=dict)
    ooms: list[OomEvent] = field(default_factory=list)
    resizes: list[ResizeCost] = field(default_factory=list)


class Bench:
    def __init__(
        self, job: LabJob, sizer: Sizer, *, seed: int, most_seconds: float, place: Place | None = None
    ) -> None:
        self._job, self._sizer, self._place = job, sizer, place or Place()
        self._chance = random.Random(f"{seed}/{job.name}")
        self._most = most_seconds
        self._world = _World()
        self._steps: list[Step] = []
        self._replaced = 0
        self._next = 0.0
        self._told = 0
        self._cost = 0.0
        self._cores = [0.0, 0.0]
        self._memory = [0.0, 0.0]
        self._track: list[tuple[float, float]] = []

    def run(self) -> Life:
        world, job = self._world, self._job
        first = self._sizer.look(self._facts())
        if first is not None:
            self._adopt(_applied(NOTHING, first, job, self._place), first)
        while world.done < job.work and world.now < self._most and world.held.workers:
            self._tick()
        return Life(
            job=job,
            seconds=world.now,
            finished=world.done >= job.work,
            steps=tuple(self._steps),
            replaced=self._replaced,
            ooms=tuple(world.ooms),
            cost=self._cost,
            core_seconds=self._cores[0],
            core_seconds_used=self._cores[1],
            memory_seconds=self._memory[0],
            memory_seconds_used=self._memory[1],
            speeds=tuple(self._track),
        )

    def _tick(self) -> None:
        world, job = self._world, self._job
        if world.target is not None and world.now >= world.ready_at:
            self._arrive(world.target)
        self._slow_down()
        speed = 0.0 if world.dead else job.speed(world.held, world.slow)
        idle = min(TICK, max(0.0, world.paused_until - world.now))
        ends = speed > 0.0 and world.done + speed * (TICK - idle) >= job.work
        trained = (job.work - world.done) / speed if ends else TICK - idle
        world.done = job.work if ends else world.done + speed * trained
        world.now += idle + trained
        self._account(speed, idle, trained)
        if ends:
            return
        if speed and not idle and self._sizer.watches:
            self._sample(speed)
        self._run_out()
        if self._sizer.watches and (world.now >= self._next or world.ooms[self._told :]):
            self._look()

    def _look(self) -> None:
        """As often as a master would, less often once the job has been left alone for long."""
        world = self._world
        self._told = len(world.ooms)
        quiet = world.now - (world.changed_at or 0.0)
        self._next = world.now + (TICK if quiet < QUIET else PATIENT)
        plan = self._sizer.look(self._facts())
        if plan is not None:
            self._begin(plan)

    # Changes ---------------------------------------------------------------------------------------------------

    def _begin(self, plan: ResourcePlan) -> None:
        world, job = self._world, self._job
        if plan.replace_nodes:
            self._replaced += 1
            world.slow = 1.0
            for name in plan.replace_nodes:
                world.samples[name] = []
                world.since[name] = world.now
            world.paused_until = world.now + job.pause_seconds
            world.changed_at = world.paused_until
            return
        target = _applied(world.held, plan, job, self._place)
        if target == world.held or not self._has_room(target):
            return
        self._steps.append(Step(at=world.now, held=target, algorithm=plan.algorithm or "", reason=plan.reason))
        world.target = target
        world.ready_at = world.now + (RESTART if world.dead else job.start_seconds)

    def _has_room(self, target: Held) -> bool:
        limits = self._job.limits
        cores = max(target.worker_cpu, target.first_cpu or 0.0, *target.ps_cpu, 0.0)
        memory = max(target.worker_memory, target.ps_memory)
        return not self._place.checks_hosts or (cores <= limits.node_cpu and memory <= limits.node_memory)

    def _arrive(self, target: Held) -> None:
        world, job = self._world, self._job
        ps_changed = (target.ps, target.ps_cpu) != (world.held.ps, world.held.ps_cpu)
        if not world.dead:
            world.resizes.append(ResizeCost(at=world.now, seconds=job.pause_seconds, ps_changed=ps_changed))
        world.paused_until = world.now + job.pause_seconds
        world.changed_at = world.paused_until
        straggler = job.straggler
        if straggler is not None and target.workers <= straggler.worker:
            world.slow = 1.0
        world.held, world.target, world.dead = target, None, False
        self._keep_nodes()

    def _adopt(self, held: Held, plan: ResourcePlan) -> None:
        world = self._world
        self._steps.append(Step(at=0.0, held=held, algorithm=plan.algorithm or "", reason=plan.reason))
        world.held = held
        world.paused_until = self._job.start_seconds
        world.changed_at = self._job.start_seconds
        self._keep_nodes()

    def _keep_nodes(self) -> None:
        """Nodes that are new begin their samples; those that are gone take theirs with them."""
        world = self._world
        names = set(_names(world.held))
        world.samples = {name: world.samples.get(name, []) for name in names}
        world.since = {name: world.since.get(name, world.now) for name in names}

    def _slow_down(self) -> None:
        world, straggler = self._world, self._job.straggler
        if straggler is None or world.slow_began or world.done < straggler.progress * self._job.work:
            return
        if world.held.workers > straggler.worker:
            world.slow, world.slow_began = straggler.factor, True

    # Measurements ----------------------------------------------------------------------------------------------

    def _account(self, speed: float, idle: float, trained: float) -> None:
        world, job = self._world, self._job
        held, seconds = world.held, idle + trained
        both = held.cost if world.target is None else max(held.cost, world.target.cost)
        self._cost += both * seconds / 3_600.0
        self._cores[0] += held.cores * seconds
        self._memory[0] += held.memory * seconds
        if speed:
            steps = speed / job.batch
            self._cores[1] += trained * steps * (job.compute + (job.second if job.is_ps else 0.0))
        if speed and self._place.each is None:
            progress = world.done / job.work
            used = held.workers * job.worker_needs(progress)
            self._memory[1] += seconds * (used + (held.ps * job.ps_needs(held.ps, progress) if held.ps else 0.0))
        shown = speed if trained else 0.0
        if not self._track or self._track[-1][1] != shown:
            self._track.append((world.now - seconds, shown))

    def _noisy(self, value: float, part: float = 1.0) -> float:
        return value * self._chance.lognormvariate(0.0, self._job.noise * part)

    def _sample(self, speed: float) -> None:
        world, job = self._world, self._job
        held = world.held
        usual = job.step_seconds(held)
        common = usual if job.is_ps else job.step_seconds(held, world.slow)
        factor = self._noisy(1.0)
        used = [self._noisy(job.second * held.workers * share / usual, 0.5) for share in job.shares(held.ps)]
        worker_used = self._noisy(job.work_of(held.workers) / common, 0.5)
        given = self._place.each is None
        world.speeds.append(
            SpeedSample(
                at=world.now,
                step_seconds=common * factor,
                samples_per_second=speed / factor,
                workers=held.workers,
                ps=held.ps,
                worker_cpu=held.worker_cpu if given else None,
                ps_cpu=_group_cpu(held) if held.ps and given else None,
                worker_cpu_used=worker_used,
                ps_cpu_used=sum(used) / held.ps if held.ps else None,
                ps_busiest=max(u / c for u, c in zip(used, held.ps_cpu, strict=True)) if held.ps and given else None,
            )
        )
        progress = world.done / job.work
        slow = job.straggler.worker if job.straggler is not None and world.slow > 1.0 else None
        for number in range(held.workers):
            cores = held.first_cpu if number == 0 and held.first_cpu is not None else held.worker_cpu
            computing = job.work_of(held.workers) / min(cores, job.parallel)
            own = computing * (world.slow if number == slow else 1.0)
            if job.is_ps and not self._place.tells_waits:
                own += usual - computing
            memory = self._warm(f"worker-{number}", job.worker_needs(progress))
            self._add(f"worker-{number}", worker_used, memory, own * (1.0 + job.noise * (self._chance.random() - 0.5)))
        for number, cpu in enumerate(used):
            self._add(f"ps-{number}", cpu, self._warm(f"ps-{number}", job.ps_needs(held.ps, progress)), None)

    def _warm(self, name: str, memory: float) -> float:
        """Nodes fill their memory in their first two minutes."""
        age = self._world.now - self._world.since[name]
        return memory * min(1.0, 0.5 + age / 240.0) * (1.0 - 0.02 * self._chance.random())

    def _add(self, name: str, cpu: float, memory: float, step_seconds: float | None) -> None:
        kept = self._world.samples[name]
        kept.append(NodeSample(self._world.now, cpu, memory, step_seconds))
        if len(kept) > KEPT:
            del kept[1 : KEPT // 2 : 2]

    def _run_out(self) -> None:
        world, job = self._world, self._job
        if world.dead or world.now < world.paused_until or self._place.each is not None:
            return
        progress = world.done / job.work
        short = {
            Role.WORKER: job.worker_needs(progress) > world.held.worker_memory,
            Role.PS: world.held.ps > 0 and job.ps_needs(world.held.ps, progress) > world.held.ps_memory,
        }
        for role, is_short in short.items():
            if is_short:
                memory = world.held.worker_memory if role is Role.WORKER else world.held.ps_memory
                servers = world.held.ps if role is Role.PS else None
                lost = f"{role}-0.{len(world.ooms)}"  # names are not used again
                world.ooms.append(OomEvent(node=lost, role=role, at=world.now, memory=memory, count=servers))
                world.dead, world.target = True, None
                return

    # What a master would know ----------------------------------------------------------------------------------

    def _facts(self) -> JobFacts:
        world, job = self._world, self._job
        held = world.held
        group = _group_cpu(held)
        fixed = self._place.each is not None
        workers, servers = NodeResource(), NodeResource()
        if held.workers and not fixed:
            workers = NodeResource(cpu=held.worker_cpu, memory=held.worker_memory or None)
        if held.ps and not fixed:
            servers = NodeResource(cpu=group, memory=held.ps_memory or None)
        usual = RoleFacts(count=0, min=1, cpu_pinned=fixed, memory_pinned=fixed)
        roles = {Role.WORKER: replace(usual, count=held.workers, resource=workers, max=job.max_workers)}
        if job.is_ps:
            roles[Role.PS] = replace(usual, count=held.ps, resource=servers, max=job.max_ps)
        return JobFacts(
            job=job.name,
            strategy=job.strategy,
            now=world.now,
            roles=roles,
            nodes=tuple(self._node(name, workers, servers) for name in _names(held)),
            speeds=tuple(world.speeds),
            ooms=tuple(world.ooms),
            resizes=tuple(world.resizes),
            remaining_samples=job.work - world.done if job.knows_end else None,
            global_batch=job.global_batch,
            changed_at=world.changed_at,
            in_change=world.target is not None or world.dead or world.now < world.paused_until,
        )

    def _node(self, name: str, workers: NodeResource, servers: NodeResource) -> NodeFacts:
        world = self._world
        if self._place.each is not None:
            role, resource = (Role.WORKER, workers) if name.startswith("worker") else (Role.PS, servers)
        elif name.startswith("worker"):
            role, first = Role.WORKER, world.held.first_cpu if name == "worker-0" else None
            resource = workers if first is None else replace(workers, cpu=first)
        else:
            role, cpu = Role.PS, world.held.ps_cpu[int(name[3:])]
            resource = servers if cpu == servers.cpu else replace(servers, cpu=cpu)
        return NodeFacts(
            name=name, role=role, resource=resource, since=world.since[name], samples=tuple(world.samples[name])
        )


def _names(held: Held) -> list[str]:
    return [f"worker-{n}" for n in range(held.workers)] + [f"ps-{n}" for n in range(held.ps)]


def _group_cpu(held: Held) -> float:
    """What most parameter servers have."""
    return sorted(held.ps_cpu)[(held.ps - 1) // 2] if held.ps else 1.0


def _applied(held: Held, plan: ResourcePlan, job: LabJob, place: Place) -> Held:
    """What the job has when the plan is carried out."""
    named = plan.node_resources
    worker = plan.node_group_resources.get(Role.WORKER.value)
    if worker is not None:
        held = replace(
            held,
            workers=worker.count,
            worker_cpu=place.each or worker.node_resource.cpu or held.worker_cpu,
            worker_memory=worker.node_resource.memory or held.worker_memory,
            first_cpu=None,
        )
    first = named.get("worker-0")
    if first is not None:
        held = replace(held, first_cpu=None if first.cpu == held.worker_cpu else first.cpu)
    servers = plan.node_group_resources.get(Role.PS.value) if job.is_ps else None
    if servers is not None:
        group = place.each or servers.node_resource.cpu or _group_cpu(held)
        held = replace(
            held,
            ps=servers.count,
            ps_cpu=(group,) * servers.count,
            ps_memory=servers.node_resource.memory or held.ps_memory,
        )
    own = {int(name[3:]): each.cpu for name, each in named.items() if name.startswith("ps-")}
    if own:
        cores = tuple(own.get(number) or cpu for number, cpu in enumerate(held.ps_cpu))
        held = replace(held, ps_cpu=cores)
    return held
