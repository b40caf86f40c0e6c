"""The table of elastic-job §3: each cause, what happens, who pays."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.exits import ExitCause
from shoal.core.nodes import NodeId
from shoal.core.recovery import (
    Budget,
    EndMember,
    FailJob,
    Failure,
    RecoverySettings,
    RelaunchNode,
    RestartProcesses,
    decide_recovery,
    raised_memory,
)

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SETTINGS = RecoverySettings()
FRESH = Budget(limit=3)
SPENT = Budget(limit=3, charges=(NOW, NOW, NOW))
NONE = Budget(limit=0)


def a_failure(cause: ExitCause, **more: object) -> Failure:
    base = Failure(node=NodeId("worker-1"), cause=cause, detail="rank 1 ended", node_lost=False, critical=True)
    return replace(base, **more)  # type: ignore[arg-type]


def decided(failure: Failure, budget: Budget = FRESH, *, without_progress: int = 0):
    return decide_recovery(failure, budget, without_progress=without_progress, now=NOW, settings=SETTINGS)


@pytest.mark.parametrize(
    ("failure", "budget", "expected"),
    [
        pytest.param(a_failure(ExitCause.USER_ERROR), FRESH, RestartProcesses, id="crash-is-retried"),
        pytest.param(a_failure(ExitCause.USER_ERROR), SPENT, FailJob, id="crash-loop-stops"),
        pytest.param(a_failure(ExitCause.USER_ERROR), NONE, FailJob, id="zero-restarts-means-zero"),
        pytest.param(a_failure(ExitCause.USER_ERROR, critical=False), SPENT, EndMember, id="job-goes-on-without-it"),
        pytest.param(a_failure(ExitCause.KILLED), SPENT, RestartProcesses, id="a-kill-is-free"),
        pytest.param(a_failure(ExitCause.KILLED, node_lost=True), SPENT, RelaunchNode, id="a-lost-node-is-replaced"),
        pytest.param(a_failure(ExitCause.GONE, node_lost=True), NONE, RelaunchNode, id="gone-is-free"),
        pytest.param(a_failure(ExitCause.HANG), FRESH, RestartProcesses, id="a-hang-is-restarted"),
        pytest.param(a_failure(ExitCause.HANG), SPENT, FailJob, id="a-hang-is-charged"),
        pytest.param(a_failure(ExitCause.HARDWARE), SPENT, RelaunchNode, id="hardware-goes-elsewhere"),
        pytest.param(a_failure(ExitCause.DO_NOT_RESTART), FRESH, FailJob, id="76-fails-the-job"),
        pytest.param(a_failure(ExitCause.LEFT), FRESH, EndMember, id="77-ends-the-member"),
        pytest.param(a_failure(ExitCause.OOM, memory=1024), FRESH, RelaunchNode, id="oom-gets-memory"),
        pytest.param(a_failure(ExitCause.OOM), FRESH, RestartProcesses, id="oom-without-a-limit-restarts"),
        pytest.param(a_failure(ExitCause.OOM, memory=1024, memory_limit=1024), FRESH, FailJob, id="oom-at-the-limit"),
        pytest.param(
            a_failure(ExitCause.OOM, memory=1024, memory_limit=1024, can_share=True),
            FRESH,
            RelaunchNode,
            id="oom-at-the-limit-and-others-may-share",
        ),
        pytest.param(
            a_failure(ExitCause.GONE, node_lost=True, can_replace=False), FRESH, EndMember, id="cannot-be-replaced"
        ),
    ],
)
def test_recovery(failure: Failure, budget: Budget, expected: type) -> None:
    decision = decided(failure, budget)
    assert isinstance(decision, expected)
    assert "worker-1" in decision.reason


@pytest.mark.parametrize("cause", list(ExitCause))
def test_only_what_the_user_caused_is_charged(cause: ExitCause) -> None:
    decision = decided(a_failure(cause, memory=1024))
    paid = {ExitCause.USER_ERROR, ExitCause.OOM, ExitCause.HANG}
    if isinstance(decision, RestartProcesses | RelaunchNode):
        assert decision.charged == (cause in paid)


def test_hardware_faults_avoid_the_host() -> None:
    decision = decided(a_failure(ExitCause.HARDWARE, host="h1"))
    assert isinstance(decision, RelaunchNode)
    assert decision.avoid == {"h1"}


def test_three_charged_recoveries_without_a_step_fail_the_job_with_budget_left() -> None:
    assert isinstance(decided(a_failure(ExitCause.USER_ERROR), Budget(limit=100), without_progress=3), FailJob)
    assert not isinstance(decided(a_failure(ExitCause.USER_ERROR), Budget(limit=100), without_progress=2), FailJob)
    assert isinstance(decided(a_failure(ExitCause.KILLED), Budget(limit=100), without_progress=3), RestartProcesses)


def test_a_kill_loop_is_charged_after_the_free_losses() -> None:
    budget = FRESH
    for _ in range(SETTINGS.free_losses):
        decision = decided(a_failure(ExitCause.KILLED), budget)
        assert isinstance(decision, RestartProcesses)
        assert not decision.charged
        budget = budget.lost(NOW, SETTINGS)
    decision = decided(a_failure(ExitCause.KILLED), budget)
    assert isinstance(decision, RestartProcesses)
    assert decision.charged
    later = decide_recovery(
        a_failure(ExitCause.KILLED), budget, without_progress=0, now=NOW + SETTINGS.free_window, settings=SETTINGS
    )
    assert isinstance(later, RestartProcesses)
    assert not later.charged


def test_a_charge_is_forgiven_after_an_hour_of_progress() -> None:
    charged = FRESH.charged(NOW)
    assert charged.forgiven(NOW + timedelta(minutes=59), SETTINGS).used == 1
    assert charged.forgiven(NOW + timedelta(minutes=60), SETTINGS).used == 0


@given(memory=st.integers(1, 10**7), limit=st.none() | st.integers(1, 10**7))
def test_memory_after_oom_is_twice_as_much_and_stays_within_the_limit(memory: int, limit: int | None) -> None:
    more = raised_memory(memory, limit)
    if more is None:
        assert limit is not None
        assert limit <= memory
    else:
        assert more > memory
        assert 2 * memory <= more < 2 * memory + 64 or more == limit
        assert limit is None or more <= limit


@given(
    cause=st.sampled_from(ExitCause),
    used=st.integers(0, 5),
    limit=st.integers(0, 5),
    flags=st.tuples(st.booleans(), st.booleans(), st.booleans()),
    without_progress=st.integers(0, 5),
)
def test_every_failure_has_a_decision_with_a_reason_and_asking_twice_changes_nothing(
    cause: ExitCause, used: int, limit: int, flags: tuple[bool, bool, bool], without_progress: int
) -> None:
    lost, critical, replaceable = flags
    failure = a_failure(cause, node_lost=lost, critical=critical, can_replace=replaceable)
    budget = Budget(limit=limit, charges=(NOW,) * used)
    first = decided(failure, budget, without_progress=without_progress)
    assert first == decided(failure, budget, without_progress=without_progress)
    assert first.reason
    if isinstance(first, RestartProcesses | RelaunchNode) and first.charged:
        assert used < limit
