"""Who schedules in a simulation: the production policies through the production actuation, or a baseline.

`PolicyScheduler` does what the operator's loop does: rows and standings in, a policy's decisions out, each turned into
hosts for new Pods and named victims by `shoal.scheduler.actuation`. Only the standings live in a dictionary instead of
the jobs' status. `PlacingScheduler` runs a baseline that says for every job where all of it should be.

Both answer with acts and change nothing themselves; the engine carries them out.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from shoal.scheduler.actuation import Standing, TrainerPod, advance, arrive, carry_out, most_of, name_victims
from shoal.scheduler.board import Board
from shoal.scheduler.decisions import Action, Change, Wait
from shoal.scheduler.policies import Policy
from shoal.scheduler.rows import NOTHING, Host, Job, JobKey, Leaving, Room, ServicePod
from shoal.scheduler.settings import SchedulerSettings
from shoal.sim.models import Model
from shoal.sim.state import Hosts, PodState, SimJob
from shoal.sim.workload import JobSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Resize:
    """A job may have so many trainers from now on."""

    job: str
    target: int
    hosts: tuple[int, ...] = ()
    """Where additional ones should go."""
    victims: tuple[str, ...] = ()
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Relocate:
    """A job has exactly these trainers from now on, in this order."""

    job: str
    hosts: tuple[int, ...]


Act = Resize | Relocate


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What a scheduler may look at."""

    now: float
    jobs: Mapping[str, SimJob]
    """Those in the system, by submission."""
    changed: frozenset[str]
    """Of those, the jobs to which something happened since the last round."""
    hosts: Hosts
    leaving: Mapping[int, Sequence[Leaving]]
    """By host: Pods that were told to go."""
    others: Mapping[int, Room]
    """By host: what services have."""
    services: Sequence[ServicePod]
    """Service Pods without a host."""


class Scheduler(Protocol):
    name: str
    is_rigid: bool
    """Its jobs train with all they asked for, or not at all."""
    sees_progress: bool
    """It looks into the models of jobs, which have to be up to date for that."""

    def round(self, view: View) -> Sequence[Act]: ...


# The production policies -------------------------------------------------------------------------------------------


class PolicyScheduler:
    sees_progress = False

    def __init__(self, name: str, policy: Policy, settings: SchedulerSettings, *, is_rigid: bool) -> None:
        self.name = name
        self.is_rigid = is_rigid
        self.waits: tuple[Wait, ...] = ()
        """Who waits, and for what, as of the last round."""
        self._policy = policy
        self._settings = settings
        self._board = Board()
        self._standings: dict[str, Standing] = {}
        self._rows: dict[str, Job] = {}
        self._hosts: dict[int, Host] = {}
        self._open: list[bool] = []
        self._used: set[int] = set()
        """Hosts that others have a part of, or that somebody is leaving."""
        self._capacity = Room()
        """Of open hosts."""
        self._services: set[tuple[str, str]] = set()
        self._min_v = 0.0
        self._rests = False
        """As long as nothing happens, there is nothing to decide."""

    def round(self, view: View) -> Sequence[Act]:
        if self._rests and self._is_as_before(view):
            self._pass_time(view.now)
            return []
        self._observe(view)
        decisions = self._policy(self._board.snapshot(self._min_v), view.now, self._settings)
        self._min_v = decisions.min_v
        self.waits = decisions.waits
        acts = [act for change in decisions.changes if (act := self._act(change, view)) is not None]
        self._rests = not acts and not self._services and not self._used and self._has_decided_for_good()
        return acts

    # Rounds without anything to decide: most of those of a long trace

    def _has_decided_for_good(self) -> bool:
        """Rigid policies look at no clock. Others do to say who is next; where all have all they can use, nobody is."""
        if any(standing.settling or standing.held_until for standing in self._standings.values()):
            return False
        return self.is_rigid or all(row.target >= row.max for row in self._rows.values())

    def _is_as_before(self, view: View) -> bool:
        quiet = not view.changed and not view.services and not view.leaving and not view.others
        return quiet and len(view.jobs) == len(self._rows) and view.hosts.open == self._open

    def _pass_time(self, now: float) -> None:
        """The one thing that a policy without anything to decide would find: the least of what any job has had."""
        if not self.is_rigid and self._standings:
            least = min(standing.attained.now(now) for standing in self._standings.values())
            self._min_v = max(self._min_v, least)

    # What has changed

    def _observe(self, view: View) -> None:
        """Bring rows and standings up to date. Nothing is made anew for what has not changed."""
        for name in [name for name in self._rows if name not in view.jobs]:
            self._board.drop_job(self._rows.pop(name).key)
            del self._standings[name]
        self._observe_hosts(view)
        for name, job in view.jobs.items():
            self._observe_job(name, job, name in view.changed, self._capacity, view.now)
        waiting = {(pod.namespace, pod.name) for pod in view.services}
        for namespace, name in self._services - waiting:
            self._board.drop_service(namespace, name)
        for pod in view.services:
            self._board.put_service(pod)
        self._services = waiting

    def _observe_hosts(self, view: View) -> None:
        used = {*view.others, *view.leaving}
        if view.hosts.open == self._open:
            for at in sorted(used | self._used):
                self._observe_host(at, view.hosts.names[at], view)
        else:
            self._open = list(view.hosts.open)
            for at, name in enumerate(view.hosts.names):
                self._observe_host(at, name, view)
            self._capacity = Room()
            for host in self._hosts.values():
                self._capacity = self._capacity.plus(host.capacity) if host.open else self._capacity
        self._used = used

    def _observe_host(self, at: int, name: str, view: View) -> None:
        row = self._hosts.get(at) or Host(name=name, capacity=view.hosts.capacity[at])
        others, leaving, is_open = view.others.get(at, NOTHING), tuple(view.leaving.get(at, ())), view.hosts.open[at]
        if at not in self._hosts or (row.others, row.leaving, row.open) != (others, leaving, is_open):
            self._hosts[at] = replace(row, others=others, leaving=leaving, open=is_open)
            self._board.put_host(self._hosts[at])

    def _observe_job(self, name: str, job: SimJob, changed: bool, capacity: Room, now: float) -> None:
        row = self._rows.get(name)
        if row is None:
            row = _new_row(job.spec)
            self._stand(name, row, arrive(row, None, self._min_v, capacity, now, self._settings))
            return  # it has no Pods yet
        standing = self._standings[name]
        if changed or standing.settling or standing.held_until:
            row = _observed(row, job, standing)
            running = Room().plus(job.spec.each, row.running)
            standing = advance(standing, row, running, capacity, now, self._settings)
            self._stand(name, replace(row, max=most_of(standing, job.spec.max)), standing)

    def _stand(self, name: str, row: Job, standing: Standing) -> None:
        self._standings[name] = standing
        self._rows[name] = _with_standing(row, standing)
        self._board.put_job(self._rows[name])

    def _act(self, change: Change, view: View) -> Act | None:
        name = change.key.name
        standing = carry_out(self._standings[name], change, view.now, asked=view.jobs[name].spec.max)
        if standing is None:
            return None
        self._stand(name, self._rows[name], standing)
        job = view.jobs[name]
        if change.action is Action.SUSPEND:
            return Resize(
                job=name, target=0, victims=tuple(pod.name for pod in job.staying()), reason=change.reason.text
            )
        victims = name_victims(change, _trainer_pods(job, view.hosts)) if change.action is Action.SHRINK else ()
        hosts = [view.hosts.index[host] for host, count in sorted(change.hosts.items()) for _ in range(count)]
        return Resize(job=name, target=change.target, hosts=tuple(hosts), victims=victims, reason=change.reason.text)


def key_of(spec: JobSpec) -> JobKey:
    return JobKey(spec.namespace, spec.name)


def _new_row(spec: JobSpec) -> Job:
    return Job(
        key=key_of(spec),
        priority=spec.priority,
        created=spec.submitted,
        min=spec.min,
        max=spec.max,
        size=spec.size,
        each=spec.each,
    )


def _observed(row: Job, job: SimJob, standing: Standing) -> Job:
    placed: dict[int, int] = {}
    running = leaving = 0
    for pod in job.pods.values():
        if pod.state is PodState.LEAVING:
            leaving += 1
            continue
        running += pod.state is PodState.READY
        if pod.host is not None:
            placed[pod.host] = placed.get(pod.host, 0) + 1
    return replace(
        row,
        placed={f"host-{host:04d}": count for host, count in sorted(placed.items())},
        pending=max(0, standing.target - sum(placed.values())),
        unbound_since=tuple(sorted(pod.since for pod in job.staying() if pod.host is None)),
        running=running,
        leaving=leaving,
        resizing=running < standing.target or leaving > 0,
    )


def _with_standing(row: Job, standing: Standing) -> Job:
    return replace(
        row,
        target=standing.target,
        attained=standing.attained,
        waiting_since=standing.waiting_since,
        frozen_until=standing.frozen_until,
    )


def _trainer_pods(job: SimJob, hosts: Hosts) -> list[TrainerPod]:
    return [
        TrainerPod(
            name=pod.name,
            host=None if pod.host is None else hosts.names[pod.host],
            ready=pod.state is PodState.READY,
            seniority=pod.ordinal,
        )
        for pod in job.staying()
    ]


# Baselines of the simulator ----------------------------------------------------------------------------------------


class Placeable(Protocol):
    """What a baseline may know of a job: everything."""

    @property
    def spec(self) -> JobSpec: ...
    @property
    def model(self) -> Model: ...


Allocation = dict[str, tuple[int, ...]]
"""The host of each trainer, by job."""


class Placer(Protocol):
    def __call__(
        self, now: float, jobs: Mapping[str, Placeable], before: Allocation, hosts: Sequence[int]
    ) -> Allocation:
        """Say where each job's trainers are to be, on hosts with so many GPUs."""
        ...


class PlacingScheduler:
    is_rigid = False
    sees_progress = True

    def __init__(self, name: str, place: Placer) -> None:
        self.name = name
        self._place = place
        self._before: Allocation = {}

    def round(self, view: View) -> Sequence[Act]:
        hosts = view.hosts
        before = {
            name: places
            for name, places in self._before.items()
            if name in view.jobs and all(hosts.open[host] for host in places)
        }
        gpus = [
            each.gpu - view.others.get(at, NOTHING).gpu if hosts.open[at] else 0
            for at, each in enumerate(hosts.capacity)
        ]
        self._before = self._place(view.now, view.jobs, before, gpus)
        return [
            Relocate(job=name, hosts=self._before.get(name, ()))
            for name, job in view.jobs.items()
            if self._before.get(name, ()) != before.get(name, ()) or (job.pods and name not in self._before)
        ]
