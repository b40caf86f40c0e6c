"""The laboratory: its formula, its oracle, and what the optimizer makes of jobs it does not know."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.core.facts import OptimizerSettings
from shoal.core.nodes import Role
from shoal.sim.laboratory import oracle, policies
from shoal.sim.laboratory.bench import Bench
from shoal.sim.laboratory.experiment import Case, cases, judged, run_laboratory
from shoal.sim.laboratory.surface import GIB, Held, LabJob, Straggler, random_jobs

SETTINGS = OptimizerSettings()


def a_case(wanted, **changes) -> Case:
    """The first random job that is as wanted, changed."""
    job = next(job for job in random_jobs(100, 0) if wanted(job))
    job = replace(job, straggler=None, growth=0.0, noise=0.02, **changes)
    best = oracle.best(job, SETTINGS.marginal_speedup)
    return Case(job=replace(job, work=job.speed(best) * 5_400.0), best=best, hours=1.5)


def live(case: Case, maker=None):
    return judged(case, maker or policies.shoal(SETTINGS), SETTINGS, 0)


@settings(max_examples=30, deadline=None)
@given(number=st.integers(0, 99), data=st.data())
def test_no_size_that_is_allowed_is_better_than_the_oracles(number: int, data: st.DataObject) -> None:
    job = random_jobs(100, 1)[number]
    best = oracle.best(job, 0.5)
    cores = st.floats(0.5, 16.0).map(lambda cpu: round(cpu * 2) / 2)
    ps = data.draw(st.integers(1, job.max_ps)) if job.is_ps else 0
    even = data.draw(cores)
    other = Held(
        workers=data.draw(st.integers(1, job.max_workers)),
        worker_cpu=data.draw(cores),
        worker_memory=best.worker_memory,
        ps=ps,
        ps_cpu=(even,) * ps,
        ps_memory=int(job.ps_needs(ps, 1.0)) if ps else 0,
    )
    if job.limits.cpu is None or other.cores <= job.limits.cpu:
        assert job.score(other, 0.5) <= job.score(best, 0.5) * 1.001


def test_a_job_without_any_configuration_comes_near_the_oracle_in_few_changes() -> None:
    found = [live(case) for case in cases(8, 3, SETTINGS)]
    assert sum(each.near >= 0.95 for each in found) >= 7
    assert all(each.life.finished for each in found)
    assert all(each.life.repeated_ooms == 0 for each in found)


def test_a_hot_parameter_server_gets_its_share_of_cores() -> None:
    result = live(a_case(lambda job: job.is_ps, skew=2.2, ps_state=4.0 * GIB, worker_memory=4.0 * GIB))
    held = result.life.steps[-1].held
    assert held.ps == 1 or held.ps_cpu[0] > 1.3 * held.ps_cpu[-1]
    assert result.final > 0.9


def test_a_job_that_runs_out_of_memory_does_so_once() -> None:
    result = live(a_case(lambda job: not job.is_ps, worker_memory=20.0 * GIB))
    assert [event.role for event in result.life.ooms] == [Role.WORKER]
    assert result.life.finished


def test_memory_that_grows_is_raised_before_it_is_too_little() -> None:
    case = a_case(lambda job: not job.is_ps, worker_memory=6.0 * GIB, knows_end=False)
    result = live(replace(case, job=replace(case.job, growth=12.0 * GIB)))
    assert result.life.ooms == ()
    assert "avoid_oom" in [step.algorithm for step in result.life.steps]


def test_a_slow_worker_is_replaced() -> None:
    case = a_case(lambda job: not job.is_ps and job.max_workers >= 16)
    slow = replace(case.job, straggler=Straggler(progress=0.5, worker=1, factor=3.0))
    result = live(replace(case, job=slow))
    assert result.life.replaced == 1
    assert result.slower < 1.6


def test_a_job_whose_memory_nobody_raises_is_lost() -> None:
    case = a_case(lambda job: not job.is_ps)
    small = replace(case.best, worker_memory=case.best.worker_memory // 2)
    life = Bench(case.job, policies.StaticSizer(small, "too small"), seed=0, most_seconds=3_600.0).run()
    assert not life.finished


@pytest.mark.parametrize("maker", [policies.over, policies.under, policies.unbalanced, policies.dlrover])
def test_other_policies_finish_their_jobs_too(maker) -> None:
    for case in cases(4, 0, SETTINGS):
        result = live(case, maker)
        assert result.life.finished
        assert result.final <= 1.05


def test_the_same_seed_gives_the_same_report() -> None:
    assert run_laboratory((5,), jobs=2) == run_laboratory((5,), jobs=2)


def test_every_job_of_the_laboratory_has_a_size_that_is_allowed() -> None:
    for job in random_jobs(50, 9):
        assert _is_allowed(job, oracle.best(job, 0.5))


def _is_allowed(job: LabJob, held: Held) -> bool:
    return (
        1 <= held.workers <= job.max_workers
        and (job.limits.cpu is None or held.cores <= job.limits.cpu + 1e-6)
        and max((held.worker_cpu, *held.ps_cpu)) <= job.limits.node_cpu + 1e-6
        and held.worker_memory <= job.limits.node_memory
    )


@pytest.mark.slow
def test_two_hundred_jobs_keep_what_is_promised() -> None:
    report = run_laboratory()
    assert [check for check in report.checks if not check.holds] == []
    by_policy = {run.policy: run.extra for run in report.runs}
    time = "job time, mean multiple of the oracle's"
    assert by_policy["shoal"][time] < min(by_policy[name][time] for name in ("2x under", "unbalanced"))
