"""What others have published of systems like this, and what the laboratory has beside it.

Their figures are of real jobs as users had configured them, on clusters of theirs; ours are of formulas. Only the
direction and the rough size can be compared.

Hot parameter servers: jobs of which one server has more to do than the others, with twice the workers and half the
servers that would be best. They are left alone, or go on under the optimizer from there, as in a cluster.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from shoal.core.facts import JobFacts, OptimizerSettings
from shoal.core.optimizing import Stage
from shoal.core.plans import ResourcePlan
from shoal.core.stages import OptimizerState
from shoal.master.sizer import local_optimizer
from shoal.platforms.kubernetes.platform import optimizer_settings
from shoal.sim.laboratory import oracle, policies, production
from shoal.sim.laboratory.bench import LONGEST, Bench, Sizer
from shoal.sim.laboratory.policies import ShoalSizer, StaticSizer
from shoal.sim.laboratory.surface import Held, LabJob, random_jobs
from shoal.sim.report import Run

STATIC = ("2x over", "2x under", "unbalanced")
MINUTES, HOUR = 60.0, 3_600.0
TIME = "job time, mean multiple of the oracle's"
MEMORY = "memory used of granted, %"


def beside_published(ours: Run, static: Mapping[str, Run]) -> tuple[str, ...]:
    """`ours` against the configurations of people."""
    told = ", ".join(f"{_less(ours.extra[TIME], run.extra[TIME])} to {name}" for name, run in static.items())
    mean = fmean(run.extra[TIME] for run in static.values())
    finished = fmean(run.measures.finished / run.measures.jobs for run in static.values())
    return (
        f"job time of {ours.policy}: {told}, {_less(ours.extra[TIME], mean)} to their mean (DLRover-RM: -31 %)",
        f"cores in use: {_points(_use(ours), fmean(map(_use, static.values())))} to that mean (DLRover-RM: +15 points)",
        f"memory in use: {_points(ours.extra[MEMORY], fmean(run.extra[MEMORY] for run in static.values()))} "
        "(DLRover-RM: +20 points; static jobs here were given what they need and a fifth more)",
        f"jobs that finish: {_points(100.0 * ours.measures.finished / ours.measures.jobs, 100.0 * finished)} "
        "(DLRover-RM: +6 points; static jobs here were given enough memory)",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class HotServers:
    """Minutes of each job."""

    alone: tuple[float, ...]
    relieved: tuple[float, ...]

    @property
    def words(self) -> str:
        if not self.alone:
            return "no job has a hot parameter server"
        gained = max(one / other for one, other in zip(self.alone, self.relieved, strict=True))
        return (
            f"{len(self.alone)} jobs with too few parameter servers, one of them hot: {fmean(self.alone):.0f} minutes "
            f"left alone, {fmean(self.relieved):.0f} with the optimizer, the best of them {gained:.1f} times as fast "
            "(DLRover: one job 33 -> 21 minutes; DeepRec: one job 30 -> 100 steps/s)"
        )


def hot_servers(jobs: int, seed: int, settings: OptimizerSettings) -> HotServers:
    """How long jobs with a hot parameter server take with and without relief."""
    alone, relieved = [], []
    for job in (production.limited(job) for job in random_jobs(jobs, seed) if job.skew > 1.0):
        job = replace(job, straggler=None)
        best = oracle.best(job, settings.marginal_speedup)
        given = policies.unbalanced_size(job, best)
        job = replace(job, work=job.speed(best) * HOUR)
        alone.append(_minutes(job, StaticSizer(given, "left alone")))
        relieved.append(_minutes(job, _Relieved(job, given)))
    return HotServers(alone=tuple(alone), relieved=tuple(relieved))


def _minutes(job: LabJob, sizer: Sizer) -> float:
    bench = Bench(job, sizer, seed=0, most_seconds=LONGEST * HOUR, place=production.IN_A_CLUSTER)
    return bench.run().seconds / MINUTES


class _Relieved:
    """Shoal, from the moment on at which the job has the size that somebody gave it."""

    watches = True

    def __init__(self, job: LabJob, even: Held) -> None:
        spec = production.job_in_a_cluster(job)
        assert spec.sizing is not None
        state = OptimizerState(stage=Stage.RUNNING, reason="the job has a size already")
        self._first = StaticSizer(even, "as it was given")
        self._sizer = ShoalSizer(spec.sizing.limits, optimizer_settings(spec), local_optimizer(spec), state)

    def look(self, facts: JobFacts) -> ResourcePlan | None:
        return self._sizer.look(facts) if facts.workers.count else self._first.look(facts)


def _less(ours: float, theirs: float) -> str:
    return f"{100.0 * (ours / theirs - 1.0):+.0f} %"


def _points(ours: float, theirs: float) -> str:
    return f"{ours - theirs:+.0f} points"


def _use(run: Run) -> float:
    return 100.0 * (run.measures.utilisation or 0.0)


def of_runs(runs: Sequence[Run], policy: str) -> tuple[str, ...]:
    """For one seed's runs."""
    by_policy = {run.policy: run for run in runs}
    return beside_published(by_policy[policy], {name: by_policy[name] for name in STATIC})
