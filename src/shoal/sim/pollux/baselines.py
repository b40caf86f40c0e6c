"""The two policies whose completion times are published: Tiresias, and Optimus with an oracle.

They exist to show that the simulation is right, and as baselines. Both know more about jobs than a scheduler in
production does, so they are no policies of `shoal.scheduler`.

Both place GPUs alike: from the emptiest host first, the lowest number among equals.
"""

from collections.abc import Iterable, Mapping, Sequence

from shoal.core.errors import BadInput
from shoal.sim.models import Placement
from shoal.sim.pollux.jobs import Training, split_batch
from shoal.sim.scheduling import Allocation, Placeable

DEMOTE_GPU_SECONDS = 57_600
"""16 GPU hours, after which Tiresias lets others go first."""


class Tiresias:
    """Fixed sizes; two queues, in the order of arrival. Who has had much goes to the second queue, for good. Each round
    both are walked in order and whoever fits runs, so that small jobs overtake large ones."""

    def __init__(self) -> None:
        self._first: list[str] = []
        self._second: list[str] = []
        self._running_since: dict[str, float] = {}
        self._ran: dict[str, float] = {}

    def __call__(
        self, now: float, jobs: Mapping[str, Placeable], before: Allocation, hosts: Sequence[int]
    ) -> Allocation:
        self._note_time(now, jobs)
        runs: Allocation = {}
        starts: list[str] = []
        free = sum(hosts)
        for name in (*self._first, *self._second):
            size = jobs[name].spec.size
            if size > free:
                self._running_since.pop(name, None)
                continue
            free -= size
            self._running_since.setdefault(name, now)
            if before.get(name):
                runs[name] = before[name]
            else:
                starts.append(name)
        left = _free(hosts, runs.values())
        for name in starts:
            runs[name] = _take_emptiest(left, jobs[name].spec.size)
        return runs

    def _note_time(self, now: float, jobs: Mapping[str, Placeable]) -> None:
        for name, since in self._running_since.items():
            self._ran[name] = self._ran.get(name, 0) + now - since
            self._running_since[name] = now
        self._running_since = {name: since for name, since in self._running_since.items() if name in jobs}
        known = {*self._first, *self._second}
        waiting = [*(name for name in self._first if name in jobs), *(name for name in jobs if name not in known)]
        demoted = [name for name in waiting if self._ran.get(name, 0) * jobs[name].spec.size >= DEMOTE_GPU_SECONDS]
        self._first = [name for name in waiting if name not in demoted]
        self._second = [*(name for name in self._second if name in jobs), *demoted]


class Optimus:
    """Elastic sizes at a fixed batch: one GPU for everybody, then each further one to the job whose remaining time it
    shortens most, by true step times and true remaining steps. Restarts are not thought of, so there are many."""

    def __init__(self) -> None:
        self._seconds: dict[tuple[str, int, int], float] = {}

    def __call__(
        self, now: float, jobs: Mapping[str, Placeable], before: Allocation, hosts: Sequence[int]
    ) -> Allocation:
        measured = {name: _measured(name, job) for name, job in jobs.items()}
        counts = self._counts(measured, sum(hosts), max(hosts))
        kept = {name: before[name] for name, count in counts.items() if count and len(before.get(name, ())) == count}
        left = _free(hosts, kept.values())
        for name in sorted((name for name in counts if counts[name] and name not in kept), key=counts.__getitem__):
            kept[name] = _take_emptiest(left, counts[name])
        return kept

    def _counts(self, jobs: Mapping[str, Training], free: int, per_host: int) -> dict[str, int]:
        counts: dict[str, int] = {}
        gains: dict[str, float] = {}
        for name, job in jobs.items():
            counts[name] = min(1, free)
            gains[name] = self._gain(job, 1, per_host) if free else 0.0
            free -= counts[name]
        while free > 0 and gains:
            name = max(gains, key=gains.__getitem__)  # the earlier of equals
            if gains[name] <= 0:
                break
            counts[name] += 1
            gains[name] = self._gain(jobs[name], counts[name], per_host)
            free -= 1
        return counts

    def _gain(self, job: Training, gpus: int, per_host: int) -> float:
        """Seconds that one GPU more would save."""
        if gpus >= most_gpus(job):
            return 0.0
        return (self._step(job, gpus, per_host) - self._step(job, gpus + 1, per_host)) * job.remaining_steps()

    def _step(self, job: Training, gpus: int, per_host: int) -> float:
        key = (job.application.name, job.ask.batch, gpus)
        if key not in self._seconds:
            split = split_batch(job.application, job.ask.batch, gpus)
            accumulation = max(1, split.accumulation) if gpus == 1 else split.accumulation
            self._seconds[key] = job.application.step_seconds(packed(gpus, per_host), split.local_batch, accumulation)
        return self._seconds[key]


def _measured(name: str, job: Placeable) -> Training:
    if not isinstance(job.model, Training):
        raise BadInput(f"optimus has to know true step times, and job {name} has no measured profile")
    return job.model


def most_gpus(job: Training) -> int:
    """More would leave less than the smallest local batch to each."""
    limit = job.ask.batch // job.application.limits.min_local
    own = job.application.limits.adaptive_max_gpus
    return limit if own is None else min(limit, own)


def packed(gpus: int, per_host: int) -> Placement:
    """Full hosts first."""
    full, rest = divmod(gpus, per_host)
    return (per_host,) * full + ((rest,) if rest else ())


def _free(hosts: Sequence[int], taken: Iterable[Sequence[int]]) -> list[int]:
    left = list(hosts)
    for each in taken:
        for host in each:
            left[host] -= 1
    return left


def _take_emptiest(left: list[int], count: int) -> tuple[int, ...]:
    taken: list[int] = []
    while len(taken) < count:
        host = max(range(len(left)), key=left.__getitem__)
        here = min(left[host], count - len(taken))
        if here <= 0:
            break  # a host was lost, or a service came: the rest has to wait
        taken += [host] * here
        left[host] -= here
    return tuple(taken)
