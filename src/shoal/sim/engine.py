"""A cluster under a scheduler, event by event, on a virtual clock.

What happens: jobs arrive; rounds come, at fixed times and when something has changed; Pods find a host, start, are told
to go and are gone; worlds of members form, pause for a change, train and end; hosts fail and come back; services
follow their day. The scheduler sees none of this but through a `View`, and changes nothing but through acts.

A job trains while enough of its Pods are ready: at least its minimum, or all it asked for under a rigid policy. When
the members of its world change, it stands still for a while; the Pods that leave hold their room for their grace.

Everything depends on the workload, the settings and the seed, and on nothing else.
"""

import random
from collections.abc import Callable, Iterable
from typing import assert_never

from shoal.scheduler.rows import Leaving, Room
from shoal.sim.clock import VirtualClock
from shoal.sim.recorder import Gauge, jain, measure
from shoal.sim.report import JobOutcome, Run, Series
from shoal.sim.scheduling import Act, Relocate, Resize, Scheduler, View
from shoal.sim.services import Service
from shoal.sim.state import Hosts, Pod, PodState, SimJob
from shoal.sim.workload import SimSettings, Workload

SECOND = 1_000_000
FOREVER = 10**18
STALLED_ROUNDS = 1_000
"""When nothing runs, nothing arrives and so many rounds in a row changed nothing, nothing ever will."""
MOST_ALLOCATIONS = 10_000
"""With more jobs than this, what each of them held over time is not kept."""

Tell = Callable[[int, int, float], None]
"""Jobs that have ended, jobs in all, and the simulated time."""


class Simulation:
    def __init__(self, workload: Workload, scheduler: Scheduler, settings: SimSettings, *, seed: int = 0) -> None:
        self.clock = VirtualClock()
        self.hosts = Hosts(workload.hosts)
        self.rounds = 0
        self._workload = workload
        self._scheduler = scheduler
        self._settings = settings
        self._seed = seed
        self._capacity = workload.capacity
        self._all = workload.jobs
        self._outcomes: list[JobOutcome | None] = [None] * len(workload.jobs)
        self._arrived = 0
        self._present: dict[str, SimJob] = {}
        self._changed: set[str] = set()
        self._pending: dict[str, tuple[SimJob, Pod]] = {}
        self._leaving: dict[int, dict[str, Leaving]] = {}
        self._ended = 0
        self._round_at: int | None = None
        self._last_round = -FOREVER
        self._stalled = 0
        self._stopped = False
        self._busy_until = 0.0
        self._finished_unseen: list[SimJob] = []
        self._services = [Service(spec) for spec in workload.services]
        self._held = Gauge()
        self._effective = Gauge()
        self._jain = Gauge()
        self._missing = Gauge()
        self._held_by_services = 0.0

    # The run -------------------------------------------------------------------------------------------------------

    def run(self, tell: Tell | None = None) -> Run:
        if self._all:
            self._arrive_later()
        for service in self._services:
            self._look_at_service(service)
        if self._settings.host_mtbf is not None:
            for host in range(len(self.hosts.capacity)):
                self._fail_later(host, random.Random(f"{self._seed}:{host}"))
        if self._settings.until is not None:
            self._at(self._settings.until, self._stop)
        while self._ended < len(self._all) and not self._is_stalled and not self._stopped and self.clock.step():
            if tell is not None and not self.clock.events % 256:
                tell(self._ended, len(self._all), self.now)
        if tell is not None:
            tell(self._ended, len(self._all), self.now)
        return self._report()

    def _stop(self) -> None:
        self._stopped = True

    @property
    def now(self) -> float:
        return self.clock.micros / SECOND

    def _at(self, seconds: float, event: Callable[[], None]) -> None:
        self.clock.at(round(seconds * SECOND), event)

    @property
    def _is_stalled(self) -> bool:
        """Jobs that will never start are no reason to go on."""
        return self._stalled > STALLED_ROUNDS and self._arrived == len(self._all)

    # Jobs come -----------------------------------------------------------------------------------------------------

    def _arrive_later(self) -> None:
        if self._arrived < len(self._all):
            self._at(self._all[self._arrived].submitted, self._arrive)

    def _arrive(self) -> None:
        if self._take_arrivals():
            self._wake()
        self._arrive_later()

    def _take_arrivals(self) -> bool:
        before = self._arrived
        if before == 0:
            self._held.forget(self.now)  # what services held before the first job is no part of the run
            self._missing.forget(self.now)
        while self._arrived < len(self._all) and self._all[self._arrived].submitted <= self.now:
            spec = self._all[self._arrived]
            self._present[spec.name] = SimJob(spec, spec.model(), self._arrived)
            self._changed.add(spec.name)
            self._arrived += 1
        return self._arrived > before

    # Rounds --------------------------------------------------------------------------------------------------------

    def _wake(self) -> None:
        """Something has changed: a round as soon as one may be, or at the next fixed time."""
        settings = self._settings
        interval = round(settings.interval * SECOND)
        at = (self.clock.micros // interval + 1) * interval
        if not settings.reacts and self.clock.micros % interval == 0 and self._last_round < self.clock.micros:
            at = self.clock.micros
        if settings.reacts:
            at = max(self.clock.micros, self._last_round + round(settings.spacing * SECOND))
        self._round_by(at)

    def _round_by(self, at: int) -> None:
        if self._round_at is None or at < self._round_at:
            self._round_at = at
            self.clock.at(at, lambda: self._round() if self._round_at == at else None)

    def _round(self) -> None:
        self._round_at, self._last_round = None, self.clock.micros
        self.rounds += 1
        self._take_arrivals()
        if self._scheduler.sees_progress or not self._settings.reacts:
            for job in list(self._present.values()):
                self._settle(job)
        for job in self._finished_unseen:
            self._release(job)
        self._finished_unseen.clear()
        acts = self._scheduler.round(self._view()) if self._present else []
        self._changed.clear()
        self._carry_out(acts)
        self._note_fairness()
        idle = not acts and not self._pending and not any(job.world for job in self._present.values())
        self._stalled = self._stalled + 1 if idle else 0
        self._busy_until = self._busy_until if idle else self.now
        if self._present:
            interval = round(self._settings.interval * SECOND)
            self._round_by((self.clock.micros // interval + 1) * interval)

    def _view(self) -> View:
        return View(
            now=self.now,
            jobs=self._present,
            changed=frozenset(self._changed),
            hosts=self.hosts,
            leaving={host: tuple(pods.values()) for host, pods in self._leaving.items() if pods},
            others=self._taken_by_services(),
            services=[pod for service in self._services for pod in service.homeless()],
        )

    def _carry_out(self, acts: Iterable[Act]) -> None:
        """First what gives room, then what takes it."""
        touched: dict[str, SimJob] = {}
        grow: list[tuple[SimJob, tuple[int, ...], int]] = []
        for act in acts:
            job = touched[act.job] = self._present[act.job]
            if job.target > 0:
                job.moves += 1
            match act:
                case Resize():
                    job.target = act.target
                    for name in act.victims:
                        self._tell_to_go(job, job.pods[name])
                    grow.append((job, act.hosts, act.target))
                case Relocate():
                    job.target = len(act.hosts)
                    for pod in list(job.pods.values()):
                        self._remove(job, pod)
                    grow.append((job, act.hosts, job.target))
                case _:
                    assert_never(act)
        for job, hosts, target in grow:
            self._make(job, hosts, target)
        self._bind()
        for job in touched.values():
            self._refresh(job)
        self._note_interference()

    # Pods come and go ----------------------------------------------------------------------------------------------

    def _make(self, job: SimJob, hosts: tuple[int, ...], target: int) -> None:
        """New Pods up to the target, with the hosts that were planned for them."""
        short = target - sum(1 for _ in job.staying())
        for number in range(max(0, short)):
            name = f"{job.spec.name}-{job.made}"
            wanted = hosts[number] if number < len(hosts) else None
            pod = job.pods[name] = Pod(name, job.spec.each, job.made, wanted=wanted, since=self.now)
            job.made += 1
            self._pending[name] = (job, pod)
            self._changed.add(job.spec.name)

    def _bind(self) -> None:
        """Give hosts to Pods that have none, services first."""
        for service in self._services:
            service.bind(self.hosts)
        self._note_services()
        for job, pod in list(self._pending.values()):
            host = self.hosts.choose(pod.each, pod.wanted)
            if host is None:
                continue
            del self._pending[pod.name]
            pod.host, pod.state = host, PodState.STARTING
            self.hosts.take(host, pod.each)
            self._hold(job, +1)
            if self._settings.pod_start > 0:
                self._at(self.now + self._settings.pod_start, self._starter(job, pod))
            else:
                pod.state = PodState.READY

    def _starter(self, job: SimJob, pod: Pod) -> Callable[[], None]:
        def start() -> None:
            if pod.state is PodState.STARTING:
                pod.state = PodState.READY
                self._refresh(job)
                self._note_interference()

        return start

    def _tell_to_go(self, job: SimJob, pod: Pod) -> None:
        if pod.host is None or self._settings.grace == 0:
            self._remove(job, pod)
            return
        pod.state = PodState.LEAVING
        pod.until = self.now + self._settings.grace
        self._leaving.setdefault(pod.host, {})[pod.name] = Leaving(room=pod.each, until=pod.until)
        self._changed.add(job.spec.name)

        def gone() -> None:
            if pod.name in job.pods:
                self._remove(job, pod)
                self._bind()
                self._wake()

        self._at(pod.until, gone)

    def _remove(self, job: SimJob, pod: Pod) -> None:
        del job.pods[pod.name]
        self._pending.pop(pod.name, None)
        self._changed.add(job.spec.name)
        if pod.host is not None:
            self._leaving.get(pod.host, {}).pop(pod.name, None)
            self.hosts.give_back(pod.host, pod.each)
            self._hold(job, -1)
            pod.host = None

    # Worlds --------------------------------------------------------------------------------------------------------

    def _refresh(self, job: SimJob) -> None:
        """Form the world of the Pods that are ready now, if it is another one than before."""
        self._settle(job)
        if job.finished is not None:
            return
        self._changed.add(job.spec.name)
        ready = sorted((pod for pod in job.pods.values() if pod.state is PodState.READY), key=lambda pod: pod.ordinal)
        need = job.target if self._scheduler.is_rigid else min(job.spec.min, max(job.target, 1))
        if job.started is None:
            need = job.target  # it starts as it was admitted
        enough = bool(ready) and len(ready) >= need
        world = tuple(pod.host for pod in ready if pod.host is not None) if enough else ()
        if world == job.world:
            return
        was_training = bool(job.world)
        job.enter(world)
        if world:
            if job.started is None:
                job.started = self.now
            pause = self._settings.resize if was_training else self._settings.startup
            job.blocked_until = self.now + pause
            self._expect(job)
        self._note_effective(job)

    def _expect(self, job: SimJob) -> None:
        """Be there when the world begins to make progress, and when it ends."""
        generation = job.generation

        def begin() -> None:
            if job.generation == generation:
                self._note_effective(job)

        def end() -> None:
            if job.generation != generation or job.finished is not None:
                return
            if not self._settings.reacts:  # nobody sees it before the next round
                self._count_effective(job, 0.0)
                return
            self._settle(job)
            if job.finished is None:  # a rounding error short of what was foreseen
                self._finish(job, self.now)

        if job.blocked_until > self.now:
            self._at(job.blocked_until, begin)
        start = max(self.now, job.blocked_until)
        self._at(start + job.model.seconds_left(job.placement, job.slowdown), end)

    def _settle(self, job: SimJob) -> None:
        """Bring its progress up to now."""
        start = max(job.settled, job.blocked_until)
        job.settled = self.now
        if not job.world or job.finished is not None or self.now <= start:
            return
        job.model.advance(start, self.now - start, job.placement, job.slowdown)
        job.trained += self.now - start
        if job.model.finished is not None:
            self._finish(job, job.model.finished)

    def _finish(self, job: SimJob, at: float) -> None:
        job.finished = at
        self._ended += 1
        self._note_effective(job)
        if self._settings.reacts:
            self._release(job)
            self._bind()
            self._wake()
        else:
            self._finished_unseen.append(job)

    def _release(self, job: SimJob) -> None:
        """Its processes have ended by themselves: no grace."""
        for pod in list(job.pods.values()):
            self._remove(job, pod)
        job.enter(())
        self._outcomes[job.order] = self._outcome(job)
        del self._present[job.spec.name]
        self._changed.discard(job.spec.name)

    def _note_interference(self) -> None:
        """Jobs on several hosts disturb each other where they share one."""
        if self._settings.interference == 0:
            return
        spread = [job for job in self._present.values() if len(job.placement) > 1]
        crowd: dict[int, int] = {}
        for job in spread:
            for host in set(job.world):
                crowd[host] = crowd.get(host, 0) + 1
        for job in list(self._present.values()):
            is_disturbed = len(job.placement) > 1 and any(crowd[host] > 1 for host in job.world)
            slowdown = self._settings.interference if is_disturbed else 0.0
            if slowdown != job.slowdown:
                self._settle(job)
                job.slowdown = slowdown
                if job.world and job.finished is None:
                    job.generation += 1
                    self._expect(job)

    # Hosts fail ----------------------------------------------------------------------------------------------------

    def _fail_later(self, host: int, chance: random.Random) -> None:
        assert self._settings.host_mtbf is not None
        delay = chance.expovariate(1.0 / self._settings.host_mtbf)
        self._at(self.now + delay, lambda: self._fail(host, chance))

    def _fail(self, host: int, chance: random.Random) -> None:
        self.hosts.open[host] = False
        for job in list(self._present.values()):
            lost = [pod for pod in job.pods.values() if pod.host == host]
            if lost and job.finished is None:
                self._lose(job, lost)
        for service in self._services:
            service.lose(host, self.hosts, self.now)
        self._bind()
        self._wake()

        def repair() -> None:
            self.hosts.open[host] = True
            self._bind()
            self._wake()
            self._fail_later(host, chance)

        self._at(self.now + self._settings.host_repair, repair)

    def _lose(self, job: SimJob, lost: list[Pod]) -> None:
        """Survivors have everything; if there are none, the last checkpoint has to do."""
        self._settle(job)
        if job.finished is not None:
            return
        placement = job.placement
        for pod in lost:
            self._remove(job, pod)
        if placement and not any(pod.state is PodState.READY for pod in job.pods.values()):
            job.model.rewind(job.trained % self._settings.checkpoint, placement)
        self._make(job, (), job.target)
        self._refresh(job)

    # Services ------------------------------------------------------------------------------------------------------

    def _look_at_service(self, service: Service) -> None:
        if service.follow(self.hosts, self.now):
            self._bind()
            self._wake()
        self._at(self.now + self._settings.service_step, lambda: self._look_at_service(service))

    def _taken_by_services(self) -> dict[int, Room]:
        taken: dict[int, Room] = {}
        for service in self._services:
            for host, room in service.taken().items():
                taken[host] = taken.get(host, Room()).plus(room)
        return taken

    def _note_services(self) -> None:
        if not self._services:
            return
        held = sum(self._share(pod.each) for service in self._services for pod in service.pods if pod.host is not None)
        self._held.add(self.now, held - self._held_by_services)
        self._held_by_services = held
        self._missing.set(self.now, sum(len(service.homeless()) for service in self._services))

    # What is written down ------------------------------------------------------------------------------------------

    def _share(self, each: Room) -> float:
        """GPUs, or cores where the cluster has none."""
        return float(each.gpu) if self._capacity.gpu else each.cpu / 1_000

    def _hold(self, job: SimJob, pods: int) -> None:
        self._held.add(self.now, pods * self._share(job.spec.each))
        job.held.add(self.now, pods)

    def _note_effective(self, job: SimJob) -> None:
        trains = job.world and job.finished is None and self.now >= job.blocked_until
        self._count_effective(job, len(job.world) * self._share(job.spec.each) if trains else 0.0)

    def _count_effective(self, job: SimJob, value: float) -> None:
        self._effective.add(self.now, value - job.effective)
        job.effective = value

    def _note_fairness(self) -> None:
        """Of those in the system: what each holds beside an equal share, or beside all it could use if that is less."""
        if not self._present:
            return
        share = self._share(self._capacity) / len(self._present)
        parts = []
        for job in self._present.values():
            each = self._share(job.spec.each)
            parts.append(job.held.value * each / min(share, job.spec.max * each or share))
        self._jain.set(self.now, jain(parts) or 0.0)

    def _report(self) -> Run:
        if self._finished_unseen:
            for job in self._finished_unseen:
                self._release(job)
        for job in list(self._present.values()):
            self._outcomes[job.order] = self._outcome(job)
        outcomes = tuple(
            JobOutcome(name=spec.name, submitted=spec.submitted, application=spec.application) if had is None else had
            for spec, had in zip(self._all, self._outcomes, strict=True)
        )
        start = self._all[0].submitted if self._all else 0.0
        end = self._busy_until if self._is_stalled else self.now
        span, whole = max(end - start, 1e-9), self._share(self._capacity)
        measures = measure(
            outcomes,
            utilisation=self._held.integral(end) / span / whole,
            effective_utilisation=self._effective.integral(end) / span / whole,
            jain=self._jain.integral(end) / span if outcomes else None,
        )
        return Run(
            policy=self._scheduler.name,
            workload=self._workload.name,
            seed=self._seed,
            measures=measures,
            jobs=outcomes,
            capacity=whole,
            utilisation=self._held.series(whole),
            effective=self._effective.series(whole),
            events=self.clock.events,
            rounds=self.rounds,
            simulated_seconds=end,
            extra={"service Pods missing": self._missing.integral(end) / span} if self._services else {},
        )

    def _outcome(self, job: SimJob) -> JobOutcome:
        return JobOutcome(
            name=job.spec.name,
            submitted=job.spec.submitted,
            started=job.started,
            finished=job.finished,
            moves=job.moves,
            gpu_seconds=job.held.integral(self.now) * self._share(job.spec.each),
            application=job.spec.application,
            allocation=job.held.series() if len(self._all) <= MOST_ALLOCATIONS else Series(),
        )
