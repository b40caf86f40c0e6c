"""What a simulation found: the one value that tables, JSON files and plots are made from.

A `Report` holds runs. A run is one policy on one workload with one seed: what became of each job, how full the cluster
was over time, and the handful of numbers that people compare (`Measures`). An experiment adds its own numbers to a run
(`extra`) and its own verdicts to the report (`Check`); whoever shows a report shows them without knowing what they
mean. Every simulator of ours makes a `Report`; none prints.

Times are seconds since the start of the simulation. Everything here is a plain value: the same runs give the same
JSON, to the byte.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any


@dataclass(frozen=True, slots=True)
class Series:
    """A step function: from `times[i]` until the next time the value is `values[i]`."""

    times: tuple[float, ...] = ()
    values: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if len(self.times) != len(self.values):
            raise ValueError(f"a series has as many values as times, got {len(self.values)} and {len(self.times)}")

    def mean(self, start: float, end: float) -> float:
        """The time-weighted mean between two moments; before its first time a series is 0."""
        if end <= start:
            return 0.0
        total = 0.0
        for number, (at, value) in enumerate(zip(self.times, self.values, strict=True)):
            until = self.times[number + 1] if number + 1 < len(self.times) else end
            total += value * max(0.0, min(until, end) - max(at, start))
        return total / (end - start)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOutcome:
    """What became of one job."""

    name: str
    submitted: float
    started: float | None = None
    """When it first held its whole gang; None: never."""
    finished: float | None = None
    """None: it had not ended when the run did."""
    moves: int = 0
    """How often what it holds was changed while it ran: grown, shrunk, moved or suspended."""
    gpu_seconds: float = 0.0
    """What it held, integrated over time; CPU-only clusters count their members."""
    waits_for: str = ""
    """Of a job that never started: what it waited for at the end, in the policy's words."""
    application: str = ""
    allocation: Series = Series()
    """How many members it had, over time."""

    @property
    def completion_seconds(self) -> float | None:
        """From submission to end: the JCT."""
        return None if self.finished is None else self.finished - self.submitted

    @property
    def wait_seconds(self) -> float | None:
        return None if self.started is None else self.started - self.submitted


@dataclass(frozen=True, slots=True, kw_only=True)
class Measures:
    """The numbers that policies are compared by. None: it cannot be said, as the mean JCT when no job ended."""

    jobs: int
    finished: int
    jct_mean: float | None
    jct_median: float | None
    jct_p99: float | None
    makespan: float | None
    """From the first submission to the last end; None while a job has not ended."""
    wait_mean: float | None
    """From submission to the first whole gang, of the jobs that started."""
    utilisation: float
    """The part of the cluster that is held by Pods, time-weighted, 0 to 1."""
    effective_utilisation: float
    """The part that is held by jobs that train: whole gangs, started, not in the middle of a restart."""
    jain: float | None
    """Jain's fairness index of what the jobs in the system hold, time-weighted; a job that waits counts as 0."""
    moves_per_job: float
    gangs_started: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One policy on one workload with one seed."""

    policy: str
    workload: str
    seed: int
    measures: Measures
    jobs: tuple[JobOutcome, ...] = ()
    capacity: float = 0.0
    """GPUs of the cluster, or cores where there are none: what `utilisation` is a part of."""
    utilisation: Series = Series()
    effective: Series = Series()
    events: int = 0
    rounds: int = 0
    simulated_seconds: float = 0.0
    extra: Mapping[str, float] = field(default_factory=dict)
    """Numbers of one experiment, by what a table's column should be called."""
    curves: Mapping[str, Series] = field(default_factory=dict)
    """Further things over time that are worth a plot, as the Pods of an online service."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A promise about the numbers, and whether they keep it."""

    text: str
    holds: bool
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    title: str
    runs: tuple[Run, ...]
    settings: Mapping[str, object] = field(default_factory=dict)
    """What the runs were made with, so that they can be made again."""
    ground: tuple[str, ...] = ()
    """The same in lines for people, as far as it is not as usual."""
    checks: tuple[Check, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def policies(self) -> tuple[str, ...]:
        """In the order of the runs."""
        return tuple(dict.fromkeys(run.policy for run in self.runs))

    @property
    def workloads(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(run.workload for run in self.runs))

    def of(self, policy: str, workload: str | None = None) -> tuple[Run, ...]:
        """The runs of a policy, on all workloads or on one."""
        return tuple(r for r in self.runs if r.policy == policy and workload in (None, r.workload))


# Numbers of several runs -------------------------------------------------------------------------------------------


def mean_measures(runs: Sequence[Run]) -> Measures:
    """The mean of each number over runs, each run counting once; counts are added up."""
    if not runs:
        raise ValueError("there is no mean of no runs")
    counts = {name: sum(getattr(run.measures, name) for run in runs) for name in ("jobs", "finished", "gangs_started")}
    means: dict[str, Any] = {
        each.name: _mean(getattr(run.measures, each.name) for run in runs)
        for each in fields(Measures)
        if each.name not in counts
    }
    return replace(runs[0].measures, **counts, **means)


def mean_extra(runs: Sequence[Run]) -> dict[str, float]:
    names = dict.fromkeys(name for run in runs for name in run.extra)
    means = {name: _mean(run.extra.get(name) for run in runs) for name in names}
    return {name: mean for name, mean in means.items() if mean is not None}


def _mean(values: Iterable[float | None]) -> float | None:
    """Of all of them, or None: a mean over those that happen to be known would flatter."""
    known = list(values)
    if not known or any(value is None for value in known):
        return None
    return math.fsum(value for value in known if value is not None) / len(known)


# JSON --------------------------------------------------------------------------------------------------------------


def to_json(report: Report, *, jobs: bool = True) -> str:
    """The report as JSON, one line per run and job so that two of them can be compared by `diff`."""
    lines = [
        "{",
        f' "title": {_compact(report.title)},',
        f' "settings": {_compact(dict(report.settings))},',
        f' "ground": {_list(report.ground)},',
        f' "checks": {_list(map(_check_value, report.checks))},',
        f' "notes": {_list(report.notes)},',
        f' "policies": {_list(_policy_value(report, policy) for policy in report.policies)},',
        f' "runs": {_list(_run_value(run) for run in report.runs)}' + ("," if jobs else ""),
    ]
    if jobs:
        lines.append(f' "jobs": {_list(_job_value(run, job) for run in report.runs for job in run.jobs)}')
    return "\n".join([*lines, "}"]) + "\n"


def _policy_value(report: Report, policy: str) -> dict[str, object]:
    runs = report.of(policy)
    return {"policy": policy, "runs": len(runs), **_measures_value(mean_measures(runs)), "extra": mean_extra(runs)}


def _run_value(run: Run) -> dict[str, object]:
    return {
        "policy": run.policy,
        "workload": run.workload,
        "seed": run.seed,
        "capacity": run.capacity,
        **_measures_value(run.measures),
        "events": run.events,
        "rounds": run.rounds,
        "simulated_seconds": run.simulated_seconds,
        "extra": dict(run.extra),
        "utilisation_over_time": _series_value(run.utilisation),
        "effective_over_time": _series_value(run.effective),
        "curves": {name: _series_value(curve) for name, curve in run.curves.items()},
    }


def _job_value(run: Run, job: JobOutcome) -> dict[str, object]:
    return {
        "policy": run.policy,
        "workload": run.workload,
        "seed": run.seed,
        "job": job.name,
        "application": job.application,
        "submitted": job.submitted,
        "started": job.started,
        "finished": job.finished,
        "jct": job.completion_seconds,
        "moves": job.moves,
        "gpu_seconds": job.gpu_seconds,
        "waits_for": job.waits_for,
        "allocation": _series_value(job.allocation),
    }


def _measures_value(measures: Measures) -> dict[str, object]:
    return {each.name: getattr(measures, each.name) for each in fields(Measures)}


def _series_value(series: Series) -> list[list[float]]:
    return [list(pair) for pair in zip(series.times, series.values, strict=True)]


def _check_value(check: Check) -> dict[str, object]:
    return {"text": check.text, "holds": check.holds, "detail": check.detail}


def _list(values: Iterable[object]) -> str:
    lines = [f"  {_compact(value)}" for value in values]
    return "[\n" + ",\n".join(lines) + "\n ]" if lines else "[]"


def _compact(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False)
