"""A small cluster that does what a policy decides, through the production actuation code.

Pods start at once where the decision put them. Trainers that are told to end keep their room for the grace.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from shoal.scheduler import actuation
from shoal.scheduler.actuation import Standing
from shoal.scheduler.decisions import Action, Change, Decisions
from shoal.scheduler.policies import Policy, policy
from shoal.scheduler.rows import Host, Job, JobKey, Leaving, Quota, Room, ServicePod
from shoal.scheduler.scores import footprint
from shoal.scheduler.settings import SchedulerSettings
from shoal.scheduler.snapshot import Snapshot

GIB = 2**30


def a_host(name: str, cores: float = 32, gib: float = 256, gpus: int = 0, pods: int = 0, **more: object) -> Host:
    return Host(name=name, capacity=room(cores, gib, gpus, pods), **more)  # type: ignore[arg-type]


def hosts(count: int, cores: float = 32, gib: float = 256, gpus: int = 0, **more: object) -> list[Host]:
    return [a_host(f"host-{number:04}", cores, gib, gpus, **more) for number in range(count)]


def room(cores: float = 0, gib: float = 0, gpus: int = 0, pods: int = 0) -> Room:
    return Room(int(cores * 1_000), int(gib * GIB), gpus, pods)


def a_job(
    name: str, least: int = 1, most: int = 1, *, each: Room | None = None, namespace: str = "team", **more: object
) -> Job:
    """A job of one-core trainers, unless told otherwise."""
    return Job(key=JobKey(namespace, name), min=least, max=most, each=each or room(1, 1), **more)  # type: ignore[arg-type]


def a_service(name: str, cores: float = 1, gib: float = 1, gpus: int = 0, pods: int = 0, **more: object) -> ServicePod:
    return ServicePod(namespace="web", name=name, each=room(cores, gib, gpus, pods), **more)  # type: ignore[arg-type]


@dataclass
class Has:
    """What a job's Pods have."""

    trainers: Counter[str] = field(default_factory=Counter)
    unbound: list[float] = field(default_factory=list)
    """Since when each trainer that Kubernetes finds no host for is there."""
    fixed: dict[str, Room] = field(default_factory=dict)


@dataclass(repr=False)
class World:
    hosts: dict[str, Host]
    jobs: dict[JobKey, Job]
    settings: SchedulerSettings = field(default_factory=SchedulerSettings)
    services: list[ServicePod] = field(default_factory=list)
    quotas: Mapping[str, Quota] = field(default_factory=dict)
    grace: float = 0.0
    now: float = 0.0
    min_v: float = 0.0
    standing: dict[JobKey, Standing] = field(default_factory=dict)
    has: dict[JobKey, Has] = field(default_factory=dict)
    log: list[tuple[float, Change]] = field(default_factory=list)
    binds: dict[JobKey, int] = field(default_factory=dict)
    """Of some jobs: how many trainers find hosts, whatever room there is."""
    capacity: Room = Room()  # noqa: RUF009

    def __repr__(self) -> str:
        whole = (
            f"World(hosts={list(self.hosts.values())}, jobs={self.rows()}, services={self.services}, now={self.now})"
        )
        return whole[:20_000]  # more is refused where warnings are errors, and would hide what failed

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """How Hypothesis writes it: without this it has its own way with dataclasses."""
        printer.text(repr(self))

    @classmethod
    def of(cls, hosts: Iterable[Host], jobs: Iterable[Job], **more: object) -> "World":
        world = cls(hosts={host.name: host for host in hosts}, jobs={}, **more)  # type: ignore[arg-type]
        for host in world.hosts.values():
            world.capacity = world.capacity.plus(host.capacity)
        for job in jobs:
            world.arrive(job)
        return world

    def arrive(self, job: Job) -> None:
        self.jobs[job.key] = job
        self.has[job.key] = Has()
        self.standing[job.key] = actuation.arrive(job, None, self.min_v, self.capacity, self.now, self.settings)

    def finish(self, key: JobKey) -> None:
        del self.jobs[key], self.has[key], self.standing[key]

    def row(self, key: JobKey) -> Job:
        job, has, standing = self.jobs[key], self.has[key], self.standing[key]
        return replace(
            job,
            max=actuation.most_of(standing, job.max),
            target=standing.target,
            placed={name: count for name, count in has.trainers.items() if count},
            pending=max(0, standing.target - has.trainers.total()),
            unbound_since=tuple(sorted(has.unbound)),
            running=has.trainers.total(),
            fixed_placed=dict(has.fixed),
            attained=standing.attained,
            waiting_since=standing.waiting_since,
            frozen_until=standing.frozen_until,
            short_since=standing.short_since,
            asked=standing.asked,
            resizing=bool(has.unbound),
        )

    def rows(self) -> list[Job]:
        return [self.row(key) for key in self.jobs]

    def snapshot(self) -> Snapshot:
        return Snapshot.of(self.hosts.values(), self.rows(), self.services, self.quotas, self.min_v)

    # Time ----------------------------------------------------------------------------------------------

    def round(self, name_or_policy: str | Policy = "cfs") -> Decisions:
        """Decide, and carry out."""
        chosen = policy(name_or_policy) if isinstance(name_or_policy, str) else name_or_policy
        decisions = chosen(self.snapshot(), self.now, self.settings)
        self.carry_out(decisions)
        return decisions

    def wait(self, seconds: float) -> None:
        self.now += seconds
        for name, host in self.hosts.items():
            left = tuple(leaving for leaving in host.leaving if leaving.until > self.now)
            if len(left) != len(host.leaving):
                self.hosts[name] = replace(host, leaving=left)
        self._settle()

    def _settle(self) -> None:
        for key, standing in self.standing.items():
            trainers, job = self.has[key].trainers.total(), self.jobs[key]
            running = footprint(job, trainers) if trainers else Room()
            row = self.row(key)
            self.standing[key] = actuation.advance(standing, row, running, self.capacity, self.now, self.settings)

    def carry_out(self, decisions: Decisions) -> None:
        self.min_v = decisions.min_v
        for change in decisions.changes:
            most = self.jobs[change.key].max
            standing = actuation.carry_out(self.standing[change.key], change, self.now, asked=most)
            assert standing is not None, f"{change} was decided on something else"
            self.standing[change.key] = standing
            self._move_pods(change)
            self.log.append((self.now, change))
        self._settle()

    def _move_pods(self, change: Change) -> None:
        job, has = self.jobs[change.key], self.has[change.key]
        if change.action is Action.SUSPEND:
            for name, count in has.trainers.items():
                self._leave(name, Room().plus(job.each, count))
            for name, fixed in has.fixed.items():
                self._leave(name, fixed)
            self.has[change.key] = Has()
            return
        for name, count in change.victims.items():
            has.trainers[name] -= count
            self._leave(name, Room().plus(job.each, count))
        for _ in range(change.before - change.target - sum(change.victims.values())):
            if has.unbound:
                has.unbound.remove(max(has.unbound))
        for name, count in change.hosts.items():
            bound = min(count, max(0, self.binds.get(change.key, change.target) - has.trainers.total()))
            has.trainers[name] += bound
            has.unbound += [self.now] * (count - bound)
        each = {part.role: part.each for part in job.fixed}
        if job.servers is not None:
            each |= {"pserver": job.servers.each, "ps": job.servers.each}
        for role, places in change.fixed_hosts.items():
            for name, count in places.items():
                has.fixed[name] = has.fixed.get(name, Room()).plus(each[role], count)

    def _leave(self, name: str, what: Room) -> None:
        if self.grace and any(what):
            host = self.hosts[name]
            leaving = Leaving(room=what, until=self.now + self.grace)
            self.hosts[name] = replace(host, leaving=(*host.leaving, leaving))

    def bind_services(self, decisions: Decisions) -> None:
        """Nominated service Pods start where there is room by now."""
        for nomination in decisions.nominations:
            pod = next(p for p in self.services if (p.namespace, p.name) == (nomination.namespace, nomination.name))
            if nomination.host is not None and self.free(nomination.host).holds(pod.each):
                host = self.hosts[nomination.host]
                self.hosts[host.name] = replace(host, others=host.others.plus(pod.each))
                self.services.remove(pod)

    # Questions -----------------------------------------------------------------------------------------

    def free(self, name: str, *, with_leaving: bool = True) -> Room:
        host = self.hosts[name]
        left = host.capacity.minus(host.others)
        for key, has in self.has.items():
            left = left.minus(self.jobs[key].each, has.trainers[name]).minus(has.fixed.get(name, Room()))
        for leaving in host.leaving if with_leaving else ():
            left = left.minus(leaving.room)
        return left

    def target(self, name: str, namespace: str = "team") -> int:
        return self.standing[JobKey(namespace, name)].target

    def targets(self) -> dict[str, int]:
        return {key.name: standing.target for key, standing in self.standing.items()}


def reasons(decisions: Decisions) -> Sequence[str]:
    return [str(change.reason.code) for change in decisions.changes] + [str(w.reason.code) for w in decisions.waits]
