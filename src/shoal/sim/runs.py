"""Many runs, one report: every policy on every workload with every seed."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from shoal.core.errors import BadInput
from shoal.scheduler.decisions import Wait
from shoal.scheduler.settings import SchedulerSettings
from shoal.sim.described import plain, policies_lines, seeds_text, times_text, workload_lines, workload_value
from shoal.sim.engine import Simulation
from shoal.sim.policies import BASELINES, check_policy, scheduler_named
from shoal.sim.report import Report, Run
from shoal.sim.scheduling import PolicyScheduler
from shoal.sim.workload import SimSettings, Workload

Tell = Callable[[str, int, int, float], None]
"""What is being run, jobs that have ended, jobs in all, and the simulated time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to run."""

    policies: tuple[str, ...]
    seeds: tuple[int, ...] = (0,)
    settings: SimSettings = field(default_factory=SimSettings)
    scheduler: SchedulerSettings = field(default_factory=SchedulerSettings)

    def __post_init__(self) -> None:
        for name in self.policies:
            check_policy(name)
        if not self.policies:
            raise BadInput("no policy was named")
        if len(set(self.policies)) < len(self.policies):
            raise BadInput(f"a policy was named twice: {', '.join(self.policies)}")


def simulate(
    title: str, workloads: Callable[[int], Iterable[Workload]], plan: Plan, tell: Tell | None = None
) -> Report:
    """`workloads` makes them for a seed: those that are read from files are the same for all."""
    runs: list[Run] = []
    seen: dict[str, Workload] = {}
    for seed in plan.seeds:
        for workload in workloads(seed):
            seen.setdefault(workload.name, workload)
            for policy in plan.policies:
                runs.append(run_one(workload, policy, plan, seed=seed, tell=tell))
    return Report(
        title=title,
        runs=tuple(runs),
        settings=described(plan, list(seen.values())),
        ground=tuple(ground(plan, list(seen.values()))),
        notes=tuple(never_started(runs)),
    )


def run_one(workload: Workload, policy: str, plan: Plan, *, seed: int = 0, tell: Tell | None = None) -> Run:
    label = f"{workload.name} under {policy}"
    scheduler = scheduler_named(policy, plan.scheduler)

    def told(ended: int, jobs: int, now: float) -> None:
        assert tell is not None
        tell(label, ended, jobs, now)

    simulation = Simulation(workload, scheduler, plan.settings, seed=seed)
    run = simulation.run(None if tell is None else told)
    return _with_waits(run, scheduler.waits) if isinstance(scheduler, PolicyScheduler) else run


def _with_waits(run: Run, waits: Sequence[Wait]) -> Run:
    reasons = {wait.key.name: wait.reason.text for wait in waits}
    jobs = (
        replace(job, waits_for=reasons[job.name]) if job.started is None and job.name in reasons else job
        for job in run.jobs
    )
    return replace(run, jobs=tuple(jobs))


def described(plan: Plan, workloads: Sequence[Workload]) -> Mapping[str, object]:
    """What was run, for programs."""
    return {
        "policies": list(plan.policies),
        "seeds": list(plan.seeds),
        "simulation": plain(plan.settings),
        "workloads": [workload_value(workload) for workload in workloads],
        "settings of policies": {name: plain(settings) for name, settings in settings_of(plan).items()},
    }


def ground(plan: Plan, workloads: Sequence[Workload]) -> Iterator[str]:
    """What was run, for people."""
    yield from workload_lines(workloads)
    yield f"{seeds_text(plan.seeds)}; {times_text(plan.settings)}"
    yield from policies_lines(settings_of(plan))


def settings_of(plan: Plan) -> dict[str, SchedulerSettings | None]:
    """By policy. The simulator's own baselines have none."""
    return {name: None if name in BASELINES else replace(plan.scheduler, policy=name) for name in plan.policies}


def never_started(runs: Sequence[Run]) -> Iterable[str]:
    for run in runs:
        idle = [job for job in run.jobs if job.started is None]
        if idle:
            told = [f"{job.name}: {job.waits_for}" if job.waits_for else job.name for job in idle[:3]]
            names = "; ".join(told) + ("; ..." if len(idle) > 3 else "")
            yield f"{run.workload} under {run.policy}: {len(idle)} of {len(run.jobs)} jobs never started ({names})"
