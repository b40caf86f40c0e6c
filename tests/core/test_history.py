"""Histories: bounded, exact when merged, and not to be spoiled by numbers or clocks."""

from datetime import UTC, datetime, timedelta
from math import inf, isclose, isfinite, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.history import LARGEST, LONGEST_STEP, History, Quantity, Timeline, Width, sane

T0 = datetime(2026, 11, 1, tzinfo=UTC)
CPU = Quantity.CPU
LEVELS = (Width(2, 5), Width(6, 5), Width(60, 5))
anything = st.one_of(st.floats(), st.integers(min_value=-(2**80), max_value=2**80), st.none())
measured = st.floats(min_value=0, max_value=1e6, width=32)
steps = st.lists(st.tuples(st.floats(min_value=0, max_value=40), measured, st.floats(0.01, 100)), max_size=60)


def all_points(history: History) -> list[tuple[float, float, float, float]]:
    return [(p.at, p.mean, p.max, p.last) for level in history.levels for q in Quantity for p in level.points(q)]


@given(st.lists(st.tuples(st.floats(0, 1e9), anything, anything), max_size=50))
def test_whatever_comes_in_only_numbers_that_can_be_measured_come_out(said: list[tuple[float, float, float]]) -> None:
    history = History(LEVELS)
    for at, value, weight in sorted(said, key=lambda each: each[0]):
        history.add(at, CPU, value, 1.0 if weight is None else weight)
    for _, mean, greatest, last in all_points(history):
        assert all(isfinite(value) and 0 <= value <= LARGEST * 1.001 for value in (mean, greatest, last))
        assert mean <= greatest * 1.0001


@given(steps)
def test_a_level_never_holds_more_buckets_than_it_may(said: list[tuple[float, float, float]]) -> None:
    history, at = History(LEVELS), 0.0
    for wait, value, weight in said:
        at += wait
        history.add(at, CPU, value, weight)
        history.add(at, Quantity.MEMORY if value > 10 else Quantity.STEP, value, weight)
        for level in history.levels:
            assert len(level.numbers) <= level.width.count
            assert all(len(column.mean) == len(level.numbers) for column in level.columns.values())
            assert list(level.numbers) == sorted(set(level.numbers))


@given(steps)
def test_wide_buckets_hold_exactly_what_the_narrow_ones_held(said: list[tuple[float, float, float]]) -> None:
    wide = Width(64, 1000)
    history, at = History((Width(2, 1000), Width(8, 1000), wide)), 0.0
    expected: dict[int, list[tuple[float, float]]] = {}
    for wait, value, weight in said:
        at += wait
        history.add(at, CPU, value, weight)
        expected.setdefault(int(at // 64), []).append((value, weight))
    history.add(at + 1000, CPU, 1.0)  # so that every bucket of before is closed
    history.add(at + 2000, CPU, 1.0)
    found = {int(point.at // 64): point for point in history.levels[2].points(CPU)}
    for number, values in expected.items():
        point = found[number]
        mean = sum(value * weight for value, weight in values) / sum(weight for _, weight in values)
        assert isclose(point.mean, mean, rel_tol=1e-4, abs_tol=1e-30)
        assert isclose(point.max, max(value for value, _ in values), rel_tol=1e-6)
        assert isclose(point.last, values[-1][0], rel_tol=1e-6)


@given(st.lists(st.floats(min_value=-1e9, max_value=1e9), max_size=40))
def test_a_history_never_goes_back_whatever_its_clock_does(jumps: list[float]) -> None:
    timeline, wall, before = Timeline(), 0.0, None
    for jump in jumps:
        wall = min(max(wall + jump, -1e9), 1e9)
        at = timeline.at(T0 + timedelta(seconds=wall))
        assert before is None or -1e-3 <= at - before <= LONGEST_STEP + 1e-3
        assert abs((timeline.wall(at) - (T0 + timedelta(seconds=wall))).total_seconds()) < 1e-2
        before = at


def test_a_clock_that_was_set_back_costs_no_measurement() -> None:
    history, timeline = History(LEVELS), Timeline()
    for second in range(4):
        history.add(timeline.at(T0 + timedelta(seconds=2 * second)), CPU, 1.0)
    for second in range(4):
        history.add(timeline.at(T0 - timedelta(days=30) + timedelta(seconds=2 * second)), CPU, 2.0)
    points = history.levels[0].points(CPU)
    assert [point.mean for point in points] == [1.0, 1.0, 1.0, 1.5, 2.0, 2.0, 2.0][-len(points) :]
    assert (history.latest(CPU), history.peak(CPU)) == (2.0, 2.0)


def test_a_clock_that_leaps_ahead_and_returns_pushes_nothing_out() -> None:
    history, timeline = History(LEVELS), Timeline()
    walls = [T0, T0 + timedelta(seconds=2), T0 + timedelta(days=9000), T0 + timedelta(seconds=4)]
    for value, wall in enumerate(walls):
        history.add(timeline.at(wall), CPU, float(value))
    points = history.levels[0].points(CPU)
    assert points[0].mean == 0.0
    assert points[-1].at - points[0].at <= 6


def test_a_long_silence_pushes_nothing_out() -> None:
    history = History(LEVELS)
    history.add(0.0, CPU, 1.0)
    history.add(80_000.0, CPU, 2.0)
    assert [point.mean for point in history.levels[0].points(CPU)] == [1.0, 2.0]
    assert history.recent(CPU, 80_001.0, 10.0) == 2.0
    assert history.recent(CPU, 90_000.0, 10.0) is None


@pytest.mark.parametrize("value", [nan, inf, -inf, -0.001, LARGEST * 2, None, 10**30])
def test_what_was_not_measured_is_not_taken(value: float | None) -> None:
    history = History(LEVELS)
    assert sane(value) is None
    history.add(0.0, CPU, value)
    history.add(0.0, CPU, 1.0, nan)
    history.add(0.0, CPU, 1.0, 0.0)
    assert history.latest(CPU) is None
    assert not all_points(history)


def test_levels_are_given_from_narrow_to_wide() -> None:
    with pytest.raises(ValueError, match="narrow to wide"):
        History((Width(30, 5), Width(2, 5)))
