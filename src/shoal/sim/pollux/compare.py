"""Two experiments on the published workloads: that the simulation is right, and what our policies are worth there."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from shoal.core.errors import BadInput
from shoal.sim.pollux.profiles import Application, load_applications
from shoal.sim.pollux.workloads import published_files, workload_of
from shoal.sim.report import Check, Report, Run, mean_measures
from shoal.sim.runs import Plan, Tell, described, ground, run_one
from shoal.sim.traces import Assumed, read_trace
from shoal.sim.workload import ON_POLLUX_GROUND, SimSettings, Workload

LOADS = ("0.5", "1.0", "1.5")
BASELINES = ("fifo", "static")
"""What an elastic policy has to be no worse than."""
PUBLISHED = ("tiresias", "optimus")


def pollux_folder(folder: Path) -> Path:
    """The folder itself or the one inside it, whichever holds the measurements."""
    for each in (folder, folder / "pollux-osdi21"):
        if (each / "applications.json").exists():
            return each
    raise BadInput(f"{folder} holds no Pollux traces: wanted a pollux-osdi21 folder with applications.json")


def published_workloads(folder: Path, load: str, applications: Mapping[str, Application]) -> list[Workload]:
    return [
        workload_of(f"{path.stem} x{load}", read_trace(path, Assumed()).asks, applications)
        for path in published_files(folder, load)
    ]


def published_times(folder: Path, policy: str, load: str) -> Mapping[str, Mapping[str, float]]:
    """Completion times by workload and job."""
    path = folder / "published" / "results-jobload" / f"{policy}-{load}.json"
    try:
        times: Mapping[str, Mapping[str, float]] = json.loads(path.read_text())["jcts"]
    except (OSError, ValueError, KeyError) as exc:
        raise BadInput(f"{path} is not readable: {exc}") from exc
    return times


def replay(
    folder: Path,
    loads: Sequence[str] = ("1.0",),
    tell: Tell | None = None,
    *,
    most: int | None = None,
    times: SimSettings = ON_POLLUX_GROUND,
) -> Report:
    """Run Tiresias and Optimus and hold every completion time against the published one. `most`: only so many
    workloads of each load."""
    plan = Plan(policies=PUBLISHED, settings=times)
    applications = load_applications(folder)
    runs: list[Run] = []
    checks: list[Check] = []
    seen: list[Workload] = []
    for load in loads:
        workloads = published_workloads(folder, load, applications)[:most]
        seen += workloads
        for policy in PUBLISHED:
            mine = [run_one(workload, policy, plan, tell=tell) for workload in workloads]
            checks.append(_compared(policy, load, mine, published_times(folder, policy, load)))
            runs += mine
    return Report(
        title="Pollux's workloads: published completion times, replayed",
        runs=tuple(runs),
        settings={**described(plan, seen), "loads": list(loads)},
        ground=tuple(ground(plan, seen)),
        checks=tuple(checks),
    )


def _compared(policy: str, load: str, runs: Sequence[Run], published: Mapping[str, Mapping[str, float]]) -> Check:
    off = [
        f"{run.workload} {job.name}: {job.completion_seconds} s, published {wanted:g} s"
        for run in runs
        for job in run.jobs
        if (wanted := published[run.workload.partition(" ")[0]][job.name]) != job.completion_seconds
    ]
    jobs = sum(len(run.jobs) for run in runs)
    same = f"{jobs - len(off):,} of {jobs:,} completion times are the published ones to the second"
    return Check(text=f"{policy} at load {load}: {same}", holds=not off, detail="; ".join(off[:5]))


def compare(folder: Path, policies: Sequence[str], loads: Sequence[str] = LOADS, tell: Tell | None = None) -> Report:
    """Our policies on the published workloads, held against the rigid ones and against Pollux itself."""
    names = tuple(dict.fromkeys((*policies, *BASELINES)))
    plan = Plan(policies=names, settings=ON_POLLUX_GROUND)
    applications = load_applications(folder)
    runs: list[Run] = []
    checks: list[Check] = []
    notes: list[str] = []
    seen: list[Workload] = []
    for load in loads:
        workloads = published_workloads(folder, load, applications)
        seen += workloads
        mine = [run_one(workload, policy, plan, tell=tell) for workload in workloads for policy in names]
        runs += mine
        elastic = [name for name in policies if name not in BASELINES]
        for policy in elastic:
            checks += [_no_worse(policy, baseline, load, mine) for baseline in BASELINES]
            notes += _worse_workloads(policy, mine)
            notes.append(_beside_pollux(folder, policy, load, mine))
    return Report(
        title="Pollux's workloads: mean completion times under our policies",
        runs=tuple(runs),
        settings={**described(plan, seen), "loads": list(loads)},
        ground=tuple(ground(plan, seen)),
        checks=tuple(checks),
        notes=tuple(notes),
    )


def mean_completion(policy: str, runs: Sequence[Run]) -> float | None:
    return mean_measures([run for run in runs if run.policy == policy]).jct_mean


def _no_worse(policy: str, baseline: str, load: str, runs: Sequence[Run]) -> Check:
    ours, theirs = mean_completion(policy, runs), mean_completion(baseline, runs)
    text = f"load {load}: mean completion time of {policy} no worse than of {baseline}"
    if ours is None or theirs is None:
        return Check(text=text, holds=False, detail="not all jobs ended")
    return Check(text=text, holds=ours <= theirs, detail=f"{ours:,.0f} s and {theirs:,.0f} s")


def _worse_workloads(policy: str, runs: Sequence[Run]) -> list[str]:
    """Every single workload on which the policy is worse than a baseline."""
    found = []
    times = {(run.policy, run.workload): run.measures.jct_mean for run in runs}
    for baseline in BASELINES:
        for workload in dict.fromkeys(run.workload for run in runs):
            ours, theirs = times[policy, workload], times[baseline, workload]
            if ours is not None and theirs is not None and ours > theirs:
                found.append(f"worse: {workload}: {policy} {ours:,.0f} s, {baseline} {theirs:,.0f} s")
    return found


def _beside_pollux(folder: Path, policy: str, load: str, runs: Sequence[Run]) -> str:
    published = published_times(folder, "pollux", load)
    means = [sum(times.values()) / len(times) for times in published.values()]
    pollux = sum(means) / len(means)
    ours = mean_completion(policy, runs)
    if ours is None:
        return f"load {load}: not all jobs ended under {policy}; Pollux's published mean is {pollux:,.0f} s"
    return (
        f"load {load}: {policy} {ours:,.0f} s is {ours / pollux:.2f} times Pollux's published mean of {pollux:,.0f} s "
        f"(Pollux also chooses batch sizes)"
    )
