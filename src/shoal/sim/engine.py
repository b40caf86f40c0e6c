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
from shoal.sim.books import Books
from shoal.sim.clock import VirtualClock
from shoal.sim.report import Run
from shoal.sim.scheduling import Act, Relocate, Resize, Scheduler, View
from shoal.sim.services import Service
from shoal.sim.state import Hosts, Pod, PodState, SimJob
from shoal.sim.workload import SimSettings, Workload

SECOND = 1_000_000
FOREVER = 10**18
QUIET_SECONDS, QUIET_ROUNDS, REPAIRS = 3_600.0, 100, 10
"""When nothing runs, nothing arrives and nothing was decided for so long, nothing ever will be: an hour and so many
rounds, a whole day of every service, and the time of so many repairs where hosts fail."""

Tell = Callable[[int, int, float], None]
"""Jobs that have ended, jobs in all, and the simulated time."""


def _patience(workload: Workload, settings: SimSettings) -> float:
    """For how long the last jobs may wait before they are given up."""
    day = max((service.period for service in workload.services), default=0.0)
    repairs = REPAIRS * settings.host_repair if settings.host_mtbf is not None else 0.0
    return max(QUIET_SECONDS, QUIET_ROUNDS * settings.interval) + day + repairs


class Simulation:
    def __init__(self, workload: Workload, scheduler: Scheduler, settings: SimSettings, *, seed: int = 0) -> None:
        self.clock = VirtualClock()
        self.hosts = Hosts(workload.hosts)
        self.rounds = 0
        self._scheduler = scheduler
        self._settings = settings
        self._seed = seed
        self._all = workload.jobs
        self._arrived = 0
        self._present: dict[str, SimJob] = {}
        self._changed: set[str] = set()
        self._pending: dict[str, tuple[SimJob, Pod]] = {}
        self._leaving: dict[int, dict[str, Leaving]] = {}
        self._ended = 0
        self._round_at: int | None = None
        self._last_round = -FOREVER
        self._stopped = False
        self._busy_until = 0.0
        """When something last ran or was decided; before that, when the first job came."""
        self._patience = _patience(workload, settings)
        self._finished_unseen: list[SimJob] = []
        self._services = [Service(spec) for spec in workload.services]
        self._books = Books(workload)

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
        return self._close()

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
        return self._arrived == len(self._all) and self._last_round / SECOND - self._busy_until > self._patience

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
            self._books.open(self.now)
            self._busy_until = self.now
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
        self._books.share(self._present.values(), self.now)
        idle = not acts and not self._pending and not any(job.world for job in self._present.values())
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
        if self._services:
            self._books.serve(self._services, self.now)
        for job, pod in list(self._pending.values()):
            host = self.hosts.choose(pod.each, pod.wanted)
            if host is None:
                continue
            del self._pending[pod.name]
            pod.host, pod.state = host, PodState.STARTING
            self.hosts.take(host, pod.each)
            self._books.hold(job, +1, self.now)
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
            self._books.hold(job, -1, self.now)
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
        self._note_training(job)

    def _expect(self, job: SimJob) -> None:
        """Be there when the world begins to make progress, and when it ends."""
        generation = job.generation

        def begin() -> None:
            if job.generation == generation:
                self._note_training(job)

        def end() -> None:
            if job.generation != generation or job.finished is not None:
                return
            if not self._settings.reacts:  # nobody sees it before the next round
                self._books.train(job, 0, self.now)
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
        self._note_training(job)
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
        self._books.close_job(job, self.now)
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

    # What is written down ------------------------------------------------------------------------------------------

    def _note_training(self, job: SimJob) -> None:
        trains = job.finished is None and self.now >= job.blocked_until
        self._books.train(job, len(job.world) if trains else 0, self.now)

    def _close(self) -> Run:
        for job in self._finished_unseen:
            self._release(job)
        for job in self._present.values():
            self._books.close_job(job, self.now)
        end = self._busy_until if self._is_stalled else self.now
        return self._books.close(self._scheduler.name, self._seed, end, events=self.clock.events, rounds=self.rounds)
