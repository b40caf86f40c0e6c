"""When another master is started, when the job has had enough of them, and what people are told."""

from datetime import UTC, datetime, timedelta

import pytest

from shoal.cli.master import EXIT_HOPELESS, EXIT_SUPERSEDED
from shoal.cli.supervisor import QUICK_DEATHS, Ended, fresh, give_up
from shoal.core.view import DecisionView

KILLED, CRASHED = -9, 1


def ended(code: int, *, seconds: float = 100.0, served: bool = True, said: str | None = None) -> Ended:
    return Ended(code=code, seconds=seconds, last_line=said, served=served)


@pytest.mark.parametrize("code", [KILLED, CRASHED, EXIT_SUPERSEDED, 0])
def test_a_master_that_dies_is_replaced(code: int) -> None:
    assert give_up(ended(code), quick_deaths=0, trouble=None) is None


def test_a_master_that_says_that_it_is_hopeless_is_believed() -> None:
    why = give_up(ended(EXIT_HOPELESS, said="the state is gone"), quick_deaths=0, trouble=None)
    assert why == "the state is gone"


def test_a_master_whose_state_was_not_kept_cannot_be_replaced() -> None:
    why = give_up(ended(KILLED), quick_deaths=0, trouble="No space left on device")
    assert why is not None
    assert "SIGKILL" in why
    assert "No space left on device" in why


def test_masters_that_cannot_live_are_given_up() -> None:
    last = ended(CRASHED, seconds=0.1, said="ImportError: no module named aiohttp")
    assert give_up(last, quick_deaths=QUICK_DEATHS - 1, trouble=None) is None
    why = give_up(last, quick_deaths=QUICK_DEATHS, trouble=None)
    assert why is not None
    assert why.endswith("ImportError: no module named aiohttp")


@pytest.mark.parametrize(
    ("how", "is_quick"),
    [
        pytest.param(ended(KILLED, seconds=1, served=True), False, id="killed-at-work"),
        pytest.param(ended(KILLED, seconds=1, served=False), True, id="killed-before-it-served"),
        pytest.param(ended(CRASHED, seconds=1, served=True), True, id="crashed-at-once"),
        pytest.param(ended(CRASHED, seconds=60, served=True), False, id="crashed-after-a-while"),
    ],
)
def test_what_counts_as_a_quick_death(how: Ended, is_quick: bool) -> None:
    assert how.is_quick is is_quick


def test_only_decisions_that_were_not_told_are_fresh() -> None:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    one, two, three = (DecisionView(at=at, reason=word) for word in ("one", "two", "three"))
    assert list(fresh((one, two, three), None)) == [one, two, three]
    assert list(fresh((one, two, three), two)) == [three]
    assert list(fresh((two, one, two), two)) == []
    assert list(fresh((two, three), one)) == [two, three]


def test_after_a_takeover_nothing_is_told_twice_though_the_last_word_was_not_recorded() -> None:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    one, last, two = (DecisionView(at=at + timedelta(seconds=n), reason=str(n)) for n in range(3))
    assert list(fresh((one, two), last)) == [two]
