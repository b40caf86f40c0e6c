"""A simulated job that sizes itself: the real core, the real statistics and the real optimizer on a virtual clock.

What a master does besides deciding is done here as `shoal.master` does it: agents' words go into a `Watch`, its figures
into the job's records, and every interval the optimizer is asked. A master that dies takes its statistics with it; the
next one goes on with what was recorded.

The job trains a fixed global batch. A step of n workers takes `work / n` seconds to compute, and a ring of n as long as
`ring` says for each doubling: so there is a best number of workers, which `Surface.best` tells.
"""

import math
import random
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from shoal.core.facts import OptimizerSettings, counts_only
from shoal.core.job.values import (
    Event,
    HeartbeatSeen,
    Job,
    JobSettings,
    JobSpec,
    ScaleAsked,
    SelfSizing,
    StepGained,
)
from shoal.core.optimizing import Outcome
from shoal.core.sizing import answered, look_at
from shoal.core.stages import JobResourceOptimizer
from shoal.master.sizer import local_optimizer
from shoal.master.watch import Watch
from shoal.sim.cluster import Cluster, Crash
from shoal.sim.training import Pace
from shoal.wire.messages import FromAgent, Heartbeat, Progress

SAMPLES = 256
"""In a step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surface(Pace):
    """How long a step takes, in seconds."""

    work: float = 6.0
    ring: float = 0.25
    noise: float = 0.03

    def step(self, size: int, chance: random.Random) -> int:
        return int(1e6 * self.step_seconds(size) * chance.lognormvariate(0.0, self.noise))

    def step_seconds(self, size: int) -> float:
        return self.work / size + self.ring * math.log2(size)

    def score(self, size: int, settings: OptimizerSettings) -> float:
        """Speed per cost; workers that are given nothing cost the same each."""
        return 1.0 / self.step_seconds(size) / float(size**settings.marginal_speedup)

    def best(self, sizes: Iterable[int], settings: OptimizerSettings) -> int:
        return max(sizes, key=lambda size: self.score(size, settings))


@dataclass(frozen=True, slots=True, kw_only=True)
class SizedLife:
    """What became of a job."""

    sizes: tuple[tuple[float, int], ...]
    """(seconds, nodes asked for), at each change."""
    outcomes: tuple[Outcome, ...]
    changes: int
    failovers: int
    job: Job

    @property
    def size(self) -> int:
        return self.sizes[-1][1]


class SizedCluster(Cluster):
    """One job that sizes itself. Made by `live`."""

    def __init__(self, spec: JobSpec, settings: JobSettings, *, nodes: int, surface: Surface, seed: int) -> None:
        self.watch = Watch(settings.optimizer.sample)
        self.sizes: list[tuple[float, int]] = []
        self._looked = -math.inf
        super().__init__(spec, settings, nodes=nodes, total=10**9, chance=random.Random(seed))
        self.pace = surface

    def happen(self, event: Event) -> None:
        message = _said(event)
        if message is not None and not self.down:
            self.watch.heard(event.node, message, self.clock.now())  # type: ignore[union-attr]
        super().happen(event)
        if not self.sizes or self.sizes[-1][1] != self.job.target:
            self.sizes.append((self.clock.micros / 1e6, self.job.target))

    def _take_over(self) -> None:
        super()._take_over()
        if not self.down:
            self.watch = Watch(self.job.settings.optimizer.sample)
            self.watch.taken_on(self.job)

    def _tick(self) -> None:
        super()._tick()
        if self.down or self.over:
            return
        now = self.clock.now()
        self.watch.ticked(self.job, now)
        kept = self.watch.due(self.job, now, pace=timedelta(0))
        if kept is not None:
            self.keep_statistics(kept)
        if self.clock.micros / 1e6 - self._looked >= self.job.settings.sizing_interval.total_seconds():
            self._looked = self.clock.micros / 1e6
            self._look(now)

    def _look(self, now: datetime) -> None:
        look = look_at(self.job, self.watch.statistics, now)
        if look is not None:
            optimizer = JobResourceOptimizer(local_optimizer(look.job.spec), look.job.settings.optimizer)
            self.happen(answered(look, optimizer))


def _said(event: Event) -> FromAgent | None:
    """What the agent said that the event was made of."""
    match event:
        case HeartbeatSeen(incarnation=incarnation, processes=processes):
            return Heartbeat(incarnation=incarnation, processes=processes)
        case StepGained(incarnation=incarnation, generation=generation, step=step):
            return Progress(
                incarnation=incarnation, generation=generation, step=step, samples=step * SAMPLES, metrics={}
            )
        case _:
            return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Strike:
    """At this second the master dies, or somebody asks for so many nodes."""

    at: float
    what: Crash | int


def live(
    seed: int,
    *,
    surface: Surface | None = None,
    nodes: int = 1,
    most: int = 8,
    seconds: float = 2_400.0,
    strikes: Iterable[Strike] = (),
    settings: OptimizerSettings | None = None,
) -> SizedLife:
    """So many seconds of a job that begins with `nodes` of at most `most`."""
    optimizer = settings or counts_only()
    spec = JobSpec(name="sized", uid="sized", min_nodes=1, max_nodes=most, sizing=SelfSizing())
    cluster = SizedCluster(spec, JobSettings(optimizer=optimizer), nodes=nodes, surface=surface or Surface(), seed=seed)
    due = sorted(strikes, key=lambda strike: strike.at)
    while cluster.clock.micros < seconds * 1e6 and not cluster.over and cluster.clock.step():
        while due and cluster.clock.micros >= due[0].at * 1e6:
            what = due.pop(0).what
            if isinstance(what, Crash):
                cluster.losses += 1
                cluster.crash_master(what)
            else:
                cluster.happen(ScaleAsked(count=what, who="shoal scale"))
    state = cluster.job.sizing.optimizer
    return SizedLife(
        sizes=tuple(cluster.sizes),
        outcomes=state.outcomes,
        changes=state.changes,
        failovers=cluster.failovers,
        job=cluster.job,
    )
