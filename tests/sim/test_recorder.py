"""Integrals and curves of a run, and the numbers made from them."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.sim.recorder import MOST_POINTS, Gauge, jain, measure, quantile
from shoal.sim.report import JobOutcome, Report, Run, Series, mean_extra, mean_measures, to_json

STEPS = st.lists(st.tuples(st.integers(1, 100), st.integers(0, 50)), min_size=1, max_size=50)


def gauge_of(steps: list[tuple[int, int]]) -> tuple[Gauge, float]:
    gauge, now = Gauge(), 0.0
    for wait, value in steps:
        now += wait
        gauge.set(now, value)
    return gauge, now


@given(STEPS)
def test_the_integral_is_that_of_the_curve(steps: list[tuple[int, int]]) -> None:
    gauge, now = gauge_of(steps)
    assert gauge.series().mean(0.0, now + 10) * (now + 10) == pytest.approx(gauge.integral(now + 10))


@given(STEPS, st.floats(0, 1))
def test_the_integral_up_to_a_moment_that_is_past_is_that_of_the_curve_until_then(
    steps: list[tuple[int, int]], part: float
) -> None:
    gauge, now = gauge_of(steps)
    then = now * part
    assert gauge.integral(then) == pytest.approx(gauge.series().mean(0.0, then) * then, abs=1e-6)


@given(st.integers(0, 100))
@settings(max_examples=5)
def test_a_long_curve_is_thinned_without_changing_its_area(seed: int) -> None:
    gauge, now = gauge_of([(1 + (seed + at * 7) % 5, (at * at + seed) % 17 + at % 2) for at in range(3 * MOST_POINTS)])
    series = gauge.series()
    assert len(series.times) <= MOST_POINTS + 1
    assert series.mean(0.0, now) * now == pytest.approx(gauge.integral(now), rel=1e-4)


@given(st.lists(st.integers(0, 1_000), min_size=1, max_size=30).filter(any))
def test_jain_is_between_one_for_all_and_one_for_equals(values: list[int]) -> None:
    index = jain(values)
    if index is not None:
        assert 1 / len(values) - 1e-9 <= index <= 1 + 1e-9
    assert jain([values[0] or 1.0] * len(values)) == pytest.approx(1.0)


def test_jain_of_nothing_is_unknown() -> None:
    assert jain([0.0, 0.0]) is None


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=50).map(sorted), st.floats(0, 1))
def test_a_quantile_lies_between_its_neighbours(values: list[int], part: float) -> None:
    found = quantile(values, part)
    assert found is not None
    assert values[0] <= found <= values[-1]
    assert quantile(values, 0.0) == values[0]
    assert quantile(values, 1.0) == values[-1]


def job(name: str, submitted: float, started: float | None, finished: float | None, moves: int = 0) -> JobOutcome:
    return JobOutcome(name=name, submitted=submitted, started=started, finished=finished, moves=moves)


def run_of(policy: str, *jobs: JobOutcome, **extra: float) -> Run:
    measures = measure(jobs, utilisation=0.5, effective_utilisation=0.4, jain=0.9)
    return Run(policy=policy, workload="w", seed=0, measures=measures, jobs=jobs, extra=extra)


def test_the_numbers_of_a_run() -> None:
    found = run_of("p", job("a", 10, 20, 110, 2), job("b", 30, 70, 330)).measures
    assert (found.jct_mean, found.jct_median, found.makespan, found.wait_mean) == (200, 200, 320, 25)
    assert (found.jobs, found.finished, found.gangs_started, found.moves_per_job) == (2, 2, 2, 1.0)


def test_a_job_that_did_not_end_leaves_the_makespan_open() -> None:
    found = run_of("p", job("a", 10, 20, 110), job("b", 30, None, None)).measures
    assert (found.jct_mean, found.makespan, found.finished, found.gangs_started) == (100, None, 1, 1)


def test_means_over_runs_do_not_flatter() -> None:
    whole, none = run_of("p", job("a", 0, 1, 9)), run_of("p", job("a", 0, None, None))
    assert mean_measures([whole, whole]).jct_mean == 9
    assert mean_measures([whole, none]).jct_mean is None
    assert mean_extra([run_of("p", x=1.0), run_of("p", x=2.0)]) == {"x": 1.5}
    assert mean_extra([run_of("p", x=1.0), run_of("p")]) == {}


def test_a_report_is_the_same_json_each_time_and_can_be_read_back() -> None:
    import json

    report = Report(title="t", runs=(run_of("p", job("a", 0, 1, 9)), run_of("q", job("a", 0, 2, 8))))
    assert report.policies == ("p", "q")
    read = json.loads(to_json(report))
    assert to_json(report) == to_json(report)
    assert [each["jct_mean"] for each in read["policies"]] == [9, 8]
    assert read["jobs"][0]["job"] == "a"
    assert "jobs" not in json.loads(to_json(report, jobs=False))


def test_a_series_has_as_many_values_as_times() -> None:
    with pytest.raises(ValueError, match="as many values as times"):
        Series((1.0,), ())
