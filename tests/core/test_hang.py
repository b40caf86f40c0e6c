"""Hangs are found, the culprit is named, and a slow but honest job is left alone."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.hang import (
    GiveWorldUp,
    HangFacts,
    HangSettings,
    KillCulprits,
    ProcessProgress,
    WarnOfHang,
    decide_hang,
    hang_timeout,
)
from shoal.core.nodes import NodeId

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SETTINGS = HangSettings(timeout=timedelta(seconds=10))


def a_process(number: int, *, collectives: int = 7, stopped: bool = False, busy: str | None = None) -> ProcessProgress:
    return ProcessProgress(
        node=NodeId(f"worker-{number}"),
        local_rank=0,
        stopped=stopped,
        collectives=collectives,
        busy=busy,
        in_world=True,
    )


def facts(*processes: ProcessProgress, waited: float = 11, steps: int = 100, **more: object) -> HangFacts:
    made = HangFacts(
        steps_done=steps,
        step_seconds=(0.1,) * 10,
        last_gain=NOW - timedelta(seconds=waited),
        leaving_world=False,
        warned=False,
        processes=processes,
    )
    return replace(made, **more)  # type: ignore[arg-type]


def test_a_stopped_process_is_the_culprit() -> None:
    action = decide_hang(facts(a_process(0), a_process(1, stopped=True)), now=NOW, settings=SETTINGS)
    assert isinstance(action, KillCulprits)
    assert action.culprits == (("worker-1", 0),)


def test_the_process_that_entered_the_fewest_collectives_is_the_culprit() -> None:
    action = decide_hang(facts(a_process(0), a_process(1, collectives=6)), now=NOW, settings=SETTINGS)
    assert isinstance(action, KillCulprits)
    assert action.culprits == (("worker-1", 0),)


def test_without_a_culprit_it_warns_once_and_acts_five_times_later() -> None:
    alike = (a_process(0), a_process(1))
    assert isinstance(decide_hang(facts(*alike), now=NOW, settings=SETTINGS), WarnOfHang)
    assert decide_hang(facts(*alike, warned=True), now=NOW, settings=SETTINGS) is None
    assert isinstance(decide_hang(facts(*alike, warned=True, waited=50), now=NOW, settings=SETTINGS), GiveWorldUp)


def test_whoever_stays_in_a_world_that_was_given_up_is_killed() -> None:
    out = replace(a_process(0), in_world=False)
    action = decide_hang(facts(out, a_process(1), leaving_world=True), now=NOW, settings=SETTINGS)
    assert isinstance(action, KillCulprits)
    assert action.culprits == (("worker-1", 0),)


@pytest.mark.parametrize(
    "calm",
    [
        pytest.param(facts(a_process(0), a_process(1, stopped=True), waited=9), id="not-long-enough"),
        pytest.param(facts(a_process(0), a_process(1, stopped=True), steps=19), id="before-twenty-steps"),
        pytest.param(facts(a_process(0, busy="eval"), a_process(1, collectives=6)), id="somebody-evaluates"),
        pytest.param(facts(), id="nobody-there"),
    ],
)
def test_no_hang(calm: HangFacts) -> None:
    assert decide_hang(calm, now=NOW, settings=SETTINGS) is None


@given(st.lists(st.floats(0.001, 1000), max_size=20))
def test_the_automatic_time_out_is_ten_median_steps_and_at_least_a_minute(seconds: list[float]) -> None:
    limit = hang_timeout(seconds, HangSettings())
    assert limit >= timedelta(seconds=60)
    if seconds:
        middle = sorted(seconds)[len(seconds) // 2]
        assert limit <= max(timedelta(seconds=60), timedelta(seconds=10 * middle + 0.001))
