"""The books of a run: who held what, how much of it trained, how evenly it was shared; at the end, the `Run`."""

from collections.abc import Collection

from shoal.scheduler.rows import Room
from shoal.sim.recorder import Gauge, jain, measure
from shoal.sim.report import JobOutcome, Run, Series
from shoal.sim.services import Service
from shoal.sim.state import SimJob
from shoal.sim.workload import Workload

MOST_ALLOCATIONS = 10_000
"""With more jobs than this, what each of them held over time is not kept."""


class Books:
    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        self._capacity = workload.capacity
        self._outcomes: list[JobOutcome | None] = [None] * len(workload.jobs)
        self._held = Gauge()
        self._effective = Gauge()
        self._jain = Gauge()
        self._sharing = Gauge()
        """1 while there are jobs in the system."""
        self._missing = Gauge()
        self._held_by_services = 0.0

    def open(self, now: float) -> None:
        """What services held before the first job is no part of the run."""
        self._held.forget(now)
        self._missing.forget(now)

    def hold(self, job: SimJob, pods: int, now: float) -> None:
        """So many more Pods of the job have a host."""
        self._held.add(now, pods * self._share(job.spec.each))
        job.held.add(now, pods)

    def train(self, job: SimJob, members: int, now: float) -> None:
        """So many members of the job make progress from now on."""
        value = members * self._share(job.spec.each)
        self._effective.add(now, value - job.effective)
        job.effective = value

    def share(self, jobs: Collection[SimJob], now: float) -> None:
        """Of those in the system: what each holds beside an equal share, or beside all it could use if that is less."""
        self._sharing.set(now, 1.0 if jobs else 0.0)
        if not jobs:
            self._jain.set(now, 0.0)
            return
        equal = self._share(self._capacity) / len(jobs)
        parts = []
        for job in jobs:
            each = self._share(job.spec.each)
            parts.append(job.held.value * each / min(equal, job.spec.max * each or equal))
        self._jain.set(now, jain(parts) or 0.0)

    def serve(self, services: Collection[Service], now: float) -> None:
        held = sum(self._share(pod.each) for service in services for pod in service.pods if pod.host is not None)
        self._held.add(now, held - self._held_by_services)
        self._held_by_services = held
        self._missing.set(now, sum(len(service.homeless()) for service in services))

    def close_job(self, job: SimJob, now: float) -> None:
        """Nothing more happens to it."""
        self._outcomes[job.order] = JobOutcome(
            name=job.spec.name,
            submitted=job.spec.submitted,
            started=job.started,
            finished=job.finished,
            moves=job.moves,
            gpu_seconds=job.held.integral(now) * self._share(job.spec.each),
            application=job.spec.application,
            allocation=job.held.series() if len(self._outcomes) <= MOST_ALLOCATIONS else Series(),
        )

    def close(self, policy: str, seed: int, end: float, *, events: int, rounds: int) -> Run:
        specs = self._workload.jobs
        outcomes = tuple(
            JobOutcome(name=spec.name, submitted=spec.submitted, application=spec.application) if had is None else had
            for spec, had in zip(specs, self._outcomes, strict=True)
        )
        span = end - (specs[0].submitted if specs else 0.0)

        def mean(gauge: Gauge) -> float:
            """From the first submission on; 0 if the run was over by then."""
            return gauge.integral(end) / span if span > 0 else 0.0

        whole = self._share(self._capacity)
        shared = self._sharing.integral(end)
        missing = {"service Pods missing": mean(self._missing)} if self._workload.services else {}
        return Run(
            policy=policy,
            workload=self._workload.name,
            seed=seed,
            measures=measure(
                outcomes,
                utilisation=mean(self._held) / whole,
                effective_utilisation=mean(self._effective) / whole,
                jain=self._jain.integral(end) / shared if shared > 0 else None,
            ),
            jobs=outcomes,
            capacity=whole,
            utilisation=self._held.series(whole),
            effective=self._effective.series(whole),
            events=events,
            rounds=rounds,
            simulated_seconds=end,
            extra=missing,
        )

    def _share(self, each: Room) -> float:
        """GPUs, or cores where the cluster has none."""
        return float(each.gpu) if self._capacity.gpu else each.cpu / 1_000
