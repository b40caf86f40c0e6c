"""A simulated Kubernetes with a scheduler of ours on it: observe, decide, act, as the operator does it.

Each round the Pods become a `Snapshot`, a policy decides on it, and the decisions are carried out by the same
functions that the operator uses (`shoal.scheduler.actuation`): targets are compared before they are changed, victims
are named and told to end before the number is lowered, new Pods prefer the hosts that were planned for them.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from shoal.scheduler.actuation import (
    Standing,
    TrainerPod,
    advance,
    arrive,
    carry_out,
    most_of,
    name_victims,
    preference,
)
from shoal.scheduler.decisions import Action, Change, Decisions
from shoal.scheduler.policies import Policy
from shoal.scheduler.rows import NOTHING, Host, Job, JobKey, Leaving, Part, Room, ServicePod
from shoal.scheduler.settings import SchedulerSettings
from shoal.scheduler.snapshot import Snapshot
from shoal.sim.kube import Kube, Phase, Pod, PodSet

TRAINER = "trainer"
TRAINING_PRIORITY = -1
"""Of the Pods of training jobs: below everything that does not say what it is."""
MOMENT = 1e-5
"""Two times that differ by less are the same."""


@dataclass(slots=True, eq=False, kw_only=True)
class Training:
    """A job, what is remembered of it, and its Pods."""

    row: Job
    """As its owner wrote it."""
    standing: Standing
    trainers: PodSet
    fixed: Mapping[str, PodSet]
    parts: Mapping[str, Part] = field(default_factory=dict)

    def sets(self) -> Iterable[PodSet]:
        yield self.trainers
        yield from self.fixed.values()

    def pods(self) -> Iterable[Pod]:
        for pods in self.sets():
            yield from pods.pods.values()


class Operated:
    """A cluster, the jobs that were given to it, and the policy that shares it."""

    def __init__(self, kube: Kube, policy: Policy, settings: SchedulerSettings) -> None:
        self.kube = kube
        self.jobs: dict[JobKey, Training] = {}
        self.services: list[PodSet] = []
        """Pods that are not ours."""
        self.rounds = 0
        self.problems: list[str] = []
        self.changes = 0
        self._policy = policy
        self._settings = settings
        self._min_v = 0.0
        self._capacity = _sum(kube.capacity)
        self._round_at: float | None = None
        self._last_round = float("-inf")

    # what people do -----------------------------------------------------------------------------------------------

    def submit(self, job: Job, *, grace: float, started_with: int | None = None) -> Training:
        """Give a job to the scheduler; or, with a number, start that many trainers at once and let the scheduler find
        them there."""
        now = self.kube.now
        owner = job.key.name
        training = Training(
            row=job,
            standing=arrive(job, None, self._min_v, self._capacity, now, self._settings),
            trainers=PodSet(owner=owner, role=TRAINER, each=job.each, grace=grace, priority=TRAINING_PRIORITY),
            fixed={
                part.role: PodSet(owner=owner, role=part.role, each=part.each, priority=TRAINING_PRIORITY)
                for part in job.fixed
            },
            parts={part.role: part for part in job.fixed},
        )
        self.jobs[job.key] = training
        if started_with is not None:
            training.standing = replace(training.standing, target=started_with, waiting_since=None)
            self._make_fixed(training, {})
            self.kube.scale(training.trainers, started_with)
        return training

    # when ---------------------------------------------------------------------------------------------------------

    def every(self, first: float) -> None:
        """Rounds from `first` on, at the interval of the settings."""

        def tick() -> None:
            self.kube.after(self._settings.interval, tick)
            self.round()

        self.kube.after(first, tick)

    def wake(self) -> None:
        """Something happened that a round should look at: soon, and once for all that happens together."""
        if self._round_at is None:
            self._round_at = max(self.kube.now, self._last_round + self._settings.spacing)
            self.kube.after(self._round_at - self.kube.now, self.round)

    # a round ------------------------------------------------------------------------------------------------------

    def round(self) -> None:
        now = self.kube.now
        self._round_at = None
        if now < self._last_round + self._settings.spacing - MOMENT:
            return
        self._last_round = now
        self.rounds += 1
        decisions = self._policy(self.observe(now), now, self._settings)
        self._carry_out(decisions, now)

    def observe(self, now: float) -> Snapshot:
        """What there is."""
        leaving: dict[int, list[Leaving]] = {}
        others = [NOTHING] * len(self.kube.names)
        services = []
        for pod in self._pods():
            if pod.host is not None and pod.ends is not None:
                leaving.setdefault(pod.host, []).append(Leaving(room=pod.of.each, until=pod.ends))
        for pods in self.services:
            for pod in pods.staying():
                if pod.host is not None:
                    others[pod.host] = others[pod.host].plus(pods.each)
                elif pod.tried is not None:
                    services.append(ServicePod(namespace=pods.owner, name=pod.name, each=pods.each, since=pod.created))
        hosts = [
            Host(name=name, capacity=capacity, others=room, leaving=tuple(leaving.get(index, ())))
            for index, (name, capacity, room) in enumerate(
                zip(self.kube.names, self.kube.capacity, others, strict=True)
            )
        ]
        rows = [self._row(training, now) for training in self.jobs.values()]
        return Snapshot.of(hosts, rows, services, min_v=self._min_v)

    def _pods(self) -> Iterable[Pod]:
        for training in self.jobs.values():
            yield from training.pods()
        for pods in self.services:
            yield from pods.pods.values()

    def _row(self, training: Training, now: float) -> Job:
        names = self.kube.names
        staying = training.trainers.staying()
        bound = Counter(names[pod.host] for pod in staying if pod.host is not None)
        running = sum(pod.runs for pod in staying)
        away = sum(pod.is_leaving for pod in training.trainers.pods.values())
        fixed_placed: dict[str, Room] = {}
        missing = []
        ready = True
        for role, pods in training.fixed.items():
            there = pods.staying()
            for pod in there:
                if pod.host is not None:
                    fixed_placed[names[pod.host]] = fixed_placed.get(names[pod.host], NOTHING).plus(pods.each)
            waiting = sum(pod.host is None for pod in there)
            if waiting:
                missing.append(Part(role=role, each=pods.each, count=waiting))
            ready = ready and all(pod.runs for pod in there)
        target = training.standing.target
        row = replace(
            training.row,
            target=target,
            placed=dict(bound),
            fixed_placed=fixed_placed,
            fixed_pending=tuple(missing),
            max=most_of(training.standing, training.row.max),
            pending=len(staying) - sum(bound.values()),
            unbound_since=tuple(sorted(pod.created for pod in staying if pod.host is None)),
            running=running,
            leaving=away,
            resizing=running != target or away > 0 or not ready,
        )
        in_use = NOTHING
        for pod in training.pods():
            if pod.runs:
                in_use = in_use.plus(pod.of.each)
        standing = advance(training.standing, row, in_use, self._capacity, now, self._settings)
        training.standing = standing
        return replace(
            row,
            attained=standing.attained,
            waiting_since=standing.waiting_since,
            frozen_until=standing.frozen_until,
            short_since=standing.short_since,
        )

    # acting -------------------------------------------------------------------------------------------------------

    def _carry_out(self, decisions: Decisions, now: float) -> None:
        self._min_v = max(self._min_v, decisions.min_v)
        self.problems += [problem for problem in decisions.problems if problem not in self.problems]
        for change in decisions.changes:
            training = self.jobs[change.key]
            standing = carry_out(training.standing, change, now, asked=training.row.max)
            if standing is None:
                continue
            training.standing = standing
            self.changes += 1
            self._change(training, change)

    def _change(self, training: Training, change: Change) -> None:
        match change.action:
            case Action.ADMIT:
                self._make_fixed(training, change.fixed_hosts)
                self.kube.prefer(training.trainers, preference(change.hosts))
                self.kube.scale(training.trainers, change.target)
            case Action.GROW:  # the template of a batch Job is fixed: later trainers prefer the hosts of the first
                self.kube.scale(training.trainers, change.target)
            case Action.SHRINK:
                self._let_go(training, change)
                self.kube.scale(training.trainers, change.target)
            case Action.SUSPEND:
                for pods in training.sets():
                    self.kube.scale(pods, 0)

    def _make_fixed(self, training: Training, hosts: Mapping[str, Mapping[str, int]]) -> None:
        for role, pods in training.fixed.items():
            self.kube.prefer(pods, preference(hosts.get(role, {})))
            self.kube.scale(pods, training.parts[role].count)

    def _let_go(self, training: Training, change: Change) -> None:
        """Victims are told to end before the number is lowered, or the Job controller would choose its own."""
        if not change.victims:
            return
        by_name = {pod.name: pod for pod in training.trainers.staying()}
        pods = [
            TrainerPod(
                name=pod.name,
                host=None if pod.host is None else self.kube.names[pod.host],
                ready=pod.phase is Phase.RUNNING,
                seniority=seniority,
            )
            for seniority, pod in enumerate(by_name.values())
        ]
        for name in name_victims(change, pods):
            self.kube.delete(by_name[name])


def _sum(rooms: Iterable[Room]) -> Room:
    total = NOTHING
    for room in rooms:
        total = total.plus(room)
    return total
