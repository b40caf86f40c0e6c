"""The laboratory's table: random jobs under each policy, beside the oracle.

Each job has one to three hours of work at the oracle's size. `shoal` starts from no configuration at all. Shares and
ratios are against the oracle: its size for speed per cost after five changes, its cost for what was spent over the
whole life of the job, its time for how long that took.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, median

from shoal.core.facts import OptimizerSettings
from shoal.sim.laboratory import oracle, policies, production
from shoal.sim.laboratory.anchors import hot_servers, of_runs
from shoal.sim.laboratory.bench import LONGEST, Bench, Life, Place
from shoal.sim.laboratory.policies import Maker
from shoal.sim.laboratory.surface import Held, LabJob, random_jobs
from shoal.sim.report import Check, JobOutcome, Measures, Report, Run, Series
from shoal.sim.runs import Tell

JOBS = 200
CHANGES = 5
NEAR = 0.95
"""The part of the oracle's speed per cost that counts as reached."""
WANTED_NEAR, WANTED_SPENT = 0.90, 1.2
HOURS = (1.0, 3.0)
CLUSTER, CANARY = "shoal, cluster", "no product: a canary"
"""Nobody can run the latter, for no platform gives one worker other cores than its role: it tells what that would be
worth."""
PICTURED = 3
"""Jobs of each strategy whose life has a picture."""
HOUR = 3_600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A job, and the best that can be had for it."""

    job: LabJob
    best: Held
    hours: float

    @property
    def seconds(self) -> float:
        return self.hours * HOUR


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """One life against the oracle."""

    case: Case
    life: Life
    near: float
    """Speed per cost after at most five changes, as a part of the best."""
    final: float
    spent: float
    held: float
    """Cost of what it held at the end, as a part of the oracle's."""
    slower: float
    """How many times the oracle's time it took."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A row of the table: who sizes jobs, and where. It is judged against an oracle that is as free as it is there."""

    maker: Maker
    place: Place = field(default_factory=Place)
    job: Callable[[LabJob], LabJob] | None = None
    """The job as it is there; None: as it is."""
    is_promised: bool = False
    """What the command checks holds for it."""


def cases(count: int, seed: int, settings: OptimizerSettings, entry: Entry | None = None) -> list[Case]:
    found = []
    place = entry.place if entry is not None else Place()
    for job in random_jobs(count, seed):
        job = entry.job(job) if entry is not None and entry.job is not None else job
        best = oracle.best(job, settings.marginal_speedup, each=place.each)
        hours = random.Random(f"{seed}/{job.name}/hours").uniform(*HOURS)
        found.append(Case(job=replace(job, work=job.speed(best) * hours * HOUR), best=best, hours=hours))
    return found


def judged(case: Case, maker: Maker, settings: OptimizerSettings, seed: int, place: Place | None = None) -> Judged:
    bench = Bench(case.job, maker(case.job, case.best), seed=seed, most_seconds=LONGEST * case.seconds, place=place)
    life = bench.run()
    exponent = settings.marginal_speedup
    best = case.job.score(case.best, exponent)
    return Judged(
        case=case,
        life=life,
        near=case.job.score(life.held_after(CHANGES), exponent) / best,
        final=case.job.score(life.steps[-1].held, exponent) / best,
        spent=life.cost / (case.best.cost * case.hours),
        held=life.steps[-1].held.cost / case.best.cost,
        slower=life.seconds / case.seconds,
    )


def entries(settings: OptimizerSettings) -> Mapping[str, Entry]:
    return {
        "oracle": Entry(maker=policies.oracle),
        CLUSTER: Entry(
            maker=production.in_a_cluster, place=production.IN_A_CLUSTER, job=production.limited, is_promised=True
        ),
        "shoal, cluster without limits": Entry(
            maker=production.in_a_cluster, place=production.COUNTED, job=production.counted
        ),
        "shoal, one machine": Entry(
            maker=production.on_one_machine, place=production.COUNTED, job=production.on_one_host
        ),
        CANARY: Entry(maker=policies.shoal(settings)),
        "dlrover rules": Entry(maker=policies.dlrover),
        "2x over": Entry(maker=policies.over),
        "2x under": Entry(maker=policies.under),
        "unbalanced": Entry(maker=policies.unbalanced),
    }


def run_laboratory(
    seeds: Sequence[int] = (0,),
    *,
    jobs: int = JOBS,
    settings: OptimizerSettings | None = None,
    tell: Tell | None = None,
) -> Report:
    settings = settings or OptimizerSettings()
    runs: list[Run] = []
    checks: list[Check] = []
    notes: list[str] = []
    for seed in seeds:
        for name, entry in entries(settings).items():
            results = []
            found = cases(jobs, seed, settings, entry)
            for number, case in enumerate(found):
                if tell is not None:
                    tell(name, number, len(found), 0.0)
                results.append(judged(case, entry.maker, settings, seed, entry.place))
            runs.append(_run(name, seed, results))
            if entry.is_promised:
                checks += _checks(name, results, seed)
        notes += [f"seed {seed}: {note}" for note in of_runs([run for run in runs if run.seed == seed], CLUSTER)]
        notes.append(f"seed {seed}: {hot_servers(jobs, seed, settings).words}")
    title = f"{jobs} random jobs whose speed is known, from no configuration"
    described = {"seeds": list(seeds), "jobs": jobs, "marginal_speedup": settings.marginal_speedup}
    return Report(title=title, runs=tuple(runs), settings=described, checks=tuple(checks), notes=tuple(notes))


def _checks(name: str, results: Sequence[Judged], seed: int) -> list[Check]:
    near = fmean(each.near >= NEAR for each in results)
    spent, held = fmean(each.spent for each in results), fmean(each.held for each in results)
    repeated = sum(each.life.repeated_ooms for each in results)
    lost = sum(not each.life.finished for each in results)
    return [
        Check(
            text=f"{name}, seed {seed}: {WANTED_NEAR:.0%} of jobs reach {NEAR:.0%} of the best speed per cost within "
            f"{CHANGES} changes",
            holds=near >= WANTED_NEAR,
            detail=f"{near:.1%}, the median job {median(each.near for each in results):.1%}",
        ),
        Check(
            text=f"{name}, seed {seed}: they spend at most {WANTED_SPENT:g} times the oracle's resources",
            holds=spent <= WANTED_SPENT,
            detail=f"{spent:.2f} over their lives, {held:.2f} at their end",
        ),
        Check(
            text=f"{name}, seed {seed}: no role runs out of memory twice, and no job is lost",
            holds=repeated == 0 and lost == 0,
            detail=f"{sum(len(each.life.ooms) for each in results)} out of memory, {repeated} again, {lost} lost",
        ),
    ]


def _run(name: str, seed: int, results: Sequence[Judged]) -> Run:
    lives = [each.life for each in results]
    times = sorted(life.seconds for life in lives)
    finished = sum(life.finished for life in lives)
    whole = finished == len(lives)
    cores = sum(life.core_seconds for life in lives)
    used = sum(life.core_seconds_used for life in lives)
    training = [life.core_seconds_used / max(life.core_seconds, 1e-9) for life in lives]
    return Run(
        policy=name,
        workload="laboratory",
        seed=seed,
        measures=Measures(
            jobs=len(lives),
            finished=finished,
            jct_mean=fmean(times) if whole else None,
            jct_median=median(times) if whole else None,
            jct_p99=times[int(0.99 * (len(times) - 1))] if whole else None,
            makespan=None,
            wait_mean=None,
            utilisation=used / max(cores, 1e-9),
            effective_utilisation=fmean(training),
            jain=None,
            moves_per_job=fmean(len(life.steps) - 1 for life in lives),
            gangs_started=len(lives),
        ),
        jobs=tuple(_outcome(each) for each in results),
        extra=_extra(results),
    )


def _extra(results: Sequence[Judged]) -> dict[str, float]:
    memory = sum(each.life.memory_seconds_used for each in results)
    granted = sum(each.life.memory_seconds for each in results)
    return {
        f"jobs at {NEAR:.0%} of the best within {CHANGES} changes, %": 100.0 * fmean(e.near >= NEAR for e in results),
        "speed per cost within 5 changes, median % of the best": 100.0 * median(e.near for e in results),
        "speed per cost at the end, mean % of the best": 100.0 * fmean(e.final for e in results),
        "job time, mean multiple of the oracle's": fmean(e.slower for e in results),
        "resources spent, mean multiple of the oracle's": fmean(e.spent for e in results),
        "resources held at the end, mean multiple": fmean(e.held for e in results),
        "changes, mean": fmean(len(e.life.steps) - 1 for e in results),
        "slow nodes replaced": float(sum(e.life.replaced for e in results)),
        "out of memory": float(sum(len(e.life.ooms) for e in results)),
        "out of memory again": float(sum(e.life.repeated_ooms for e in results)),
        "memory used of granted, %": 100.0 * memory / max(granted, 1e-9),
    }


def _outcome(each: Judged) -> JobOutcome:
    life = each.life
    return JobOutcome(
        name=life.job.name,
        submitted=0.0,
        started=0.0,
        finished=life.seconds if life.finished else None,
        moves=len(life.steps) - 1,
        gpu_seconds=life.core_seconds,
        application=life.job.strategy.value,
        allocation=Series(
            times=tuple(step.at for step in life.steps), values=tuple(float(step.held.workers) for step in life.steps)
        ),
    )
