"""Jobs with a known surface, and two hundred of them at random.

Step times follow the formulas of the optimizer's model, with three things on top that the model does not know: workers
that cannot keep more than so many cores busy, parameter servers of which one holds more than its share, and a slow
drift with the number of workers. Samples are noisy.
"""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from shoal.api.elasticjob import Strategy
from shoal.core.facts import Limits

GIB = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What a job has. Memory in MiB."""

    workers: int
    worker_cpu: float
    worker_memory: int
    first_cpu: float | None = None
    """Of the first worker, if it has others than the rest."""
    ps: int = 0
    ps_cpu: tuple[float, ...] = ()
    """Of each."""
    ps_memory: int = 0

    @property
    def cores(self) -> float:
        odd = self.first_cpu - self.worker_cpu if self.first_cpu is not None else 0.0
        return self.workers * self.worker_cpu + odd + sum(self.ps_cpu)

    @property
    def memory(self) -> int:
        return self.workers * self.worker_memory + self.ps * self.ps_memory

    @property
    def cost(self) -> float:
        """In an hour: 10 for a core, 1 for a GiB, as the scheduler counts."""
        return 10.0 * self.cores + self.memory / GIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Straggler:
    """A worker whose host becomes slow."""

    progress: float
    """Of the job, when it begins."""
    worker: int
    factor: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LabJob:
    name: str
    strategy: Strategy
    batch: int
    global_batch: int | None
    """Samples in a step whatever the number of workers is; None: each worker adds its own batch."""
    compute: float
    """Core-seconds for one worker's own batch."""
    second: float
    """PS: core-seconds of parameter servers for a worker's step. All-reduce: seconds of the ring."""
    third: float
    """PS: seconds of a worker's traffic with one parameter server. All-reduce: seconds for each doubling."""
    fixed: float
    parallel: float
    """Cores that a worker can keep busy."""
    drift: float
    """The part by which steps are longer with 32 workers than the formula says."""
    skew: float
    """How many times its share the first parameter server holds."""
    worker_memory: float
    ps_state: float
    """MiB that all parameter servers hold together, at the start."""
    growth: float
    """MiB more at the end: of the parameter servers' state, or of each worker in all-reduce."""
    noise: float
    max_workers: int
    max_ps: int
    limits: Limits
    start_seconds: float
    """Until a new node trains."""
    pause_seconds: float
    """Without training, for each change."""
    straggler: Straggler | None
    knows_end: bool
    """Whether anybody knows how much work there is."""
    work: float = 0.0
    """Samples."""

    @property
    def is_ps(self) -> bool:
        return self.strategy is Strategy.PARAMETER_SERVER

    def shares(self, ps: int) -> tuple[float, ...]:
        """Of the state and the load, by parameter server."""
        if ps < 2:
            return (1.0,) * ps
        hot = min(0.9, self.skew / ps)
        return (hot, *((1.0 - hot) / (ps - 1),) * (ps - 1))

    def step_seconds(self, held: Held, slow: float = 1.0) -> float:
        """Of a worker; `slow`: how many times longer it computes than usual."""
        time = slow * self.work_of(held.workers) / min(held.worker_cpu, self.parallel) + self.fixed
        if self.is_ps:
            busiest = max(share / cpu for share, cpu in zip(self.shares(held.ps), held.ps_cpu, strict=True))
            time += self.second * held.workers * busiest + self.third * held.workers / held.ps
        else:
            time += self.second * (held.workers - 1) / held.workers + self.third * math.log2(held.workers)
        return float(time * (1.0 + self.drift * spread(held.workers)))

    def speed(self, held: Held, slow: float = 1.0) -> float:
        """Samples per second, with one worker slower than the others."""
        usual = self.step_seconds(held)
        if slow == 1.0:
            return float(self.samples(held.workers) / usual)
        slowed = self.step_seconds(held, slow)
        if self.is_ps:
            return self.batch * ((held.workers - 1) / usual + 1.0 / slowed)
        return float(self.samples(held.workers) / slowed)

    def samples(self, workers: Any) -> Any:
        """In a step of all workers."""
        return workers * self.batch if self.global_batch is None else self.global_batch

    def work_of(self, workers: Any) -> Any:
        """Core-seconds of one worker in a step."""
        return self.compute * self.samples(workers) / (workers * self.batch)

    def worker_needs(self, progress: float) -> float:
        return self.worker_memory + (0.0 if self.is_ps else self.growth * progress)

    def ps_needs(self, ps: int, progress: float) -> float:
        """Of one: memory is spread evenly, load is not."""
        return PS_BASE + (self.ps_state + self.growth * progress) / ps

    def score(self, held: Held, exponent: float) -> float:
        """Speed per cost, as it is."""
        return float(self.speed(held) / held.cost**exponent)


PS_BASE = 0.4 * GIB


def spread(workers: Any) -> Any:
    """Where between 1 and 32 a number of workers is; numbers or arrays alike."""
    return (workers - 1) / 31.0


def random_jobs(count: int, seed: int) -> Sequence[LabJob]:
    return [random_job(number, random.Random(f"{seed}/{number}")) for number in range(count)]


def random_job(number: int, chance: random.Random) -> LabJob:
    """Half of them with parameter servers, a quarter with a fixed global batch.

    `work` is set by who knows how fast the job can be.
    """
    is_ps = chance.random() < 0.5
    is_fixed = not is_ps and chance.random() < 0.5
    batch = chance.choice((32, 64, 128, 256, 512))
    compute = _log(chance, 0.2, 8.0)
    wall = compute / 4.0
    grows = chance.random() < 0.3
    return LabJob(
        name=f"{'ps' if is_ps else 'ring'}-{number}",
        strategy=Strategy.PARAMETER_SERVER if is_ps else Strategy.ALLREDUCE,
        batch=batch,
        global_batch=batch * chance.choice((4, 8, 16)) if is_fixed else None,
        compute=compute,
        second=compute * _log(chance, 0.02, 0.6) if is_ps else wall * _log(chance, 0.02, 1.0),
        third=wall * _log(chance, 0.01, 0.5) if is_ps else wall * _log(chance, 0.02, 1.0),
        fixed=wall * _log(chance, 0.02, 0.5),
        parallel=chance.choice((2.0, 4.0, 8.0, 16.0)),
        drift=chance.uniform(-0.03, 0.06),
        skew=chance.uniform(1.6, 2.6) if is_ps and chance.random() < 0.3 else 1.0,
        worker_memory=_log(chance, 1.0, 24.0) * GIB,
        ps_state=_log(chance, 0.5, 24.0) * GIB if is_ps else 0.0,
        growth=_log(chance, 1.0, 12.0) * GIB if grows else 0.0,
        noise=chance.uniform(0.01, 0.06),
        max_workers=chance.choice((16, 32, 48)),
        max_ps=8,
        limits=Limits(cpu=chance.choice((None, 64.0, 128.0, 256.0)), node_cpu=16.0, node_memory=64 * GIB),
        start_seconds=chance.uniform(20.0, 90.0),
        pause_seconds=chance.uniform(1.0, 30.0),
        straggler=_straggler(chance) if chance.random() < 0.25 else None,
        knows_end=chance.random() < 0.7,
    )


def _straggler(chance: random.Random) -> Straggler:
    return Straggler(progress=chance.uniform(0.1, 0.8), worker=chance.randrange(3), factor=chance.uniform(2.5, 4.0))


def _log(chance: random.Random, low: float, high: float) -> float:
    return math.exp(chance.uniform(math.log(low), math.log(high)))
