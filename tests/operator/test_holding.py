"""What the server refused is tried again ever later, each part for itself."""

from datetime import datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st
from tests.operator.builders import NOW

from shoal.core.pods import Trouble
from shoal.operator.holding import Holding


class Clock:
    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> datetime:
        return self.now


def a_trouble(reason: str = "QuotaExceeded") -> Trouble:
    return Trouble(reason=reason, message=f"{reason}!")


@given(st.integers(1, 40))
def test_each_refusal_waits_longer_up_to_two_minutes(times: int) -> None:
    clock = Clock()
    holding = Holding(clock)
    waits = []
    for _ in range(times):
        holding.refused("u", "members", [a_trouble()])
        assert holding.is_held("u", "members")
        (wait,) = holding.retries("u")
        waits.append(wait)
        clock.now += wait
        assert not holding.is_held("u", "members")
    assert waits == sorted(waits)
    assert waits[0] == timedelta(seconds=2)
    assert max(waits) <= timedelta(minutes=2)


def test_what_is_held_back_holds_up_no_other_part_and_no_other_job() -> None:
    holding = Holding(Clock())
    holding.refused("u", "members", [a_trouble()])
    assert not holding.is_held("u", "master")
    assert not holding.is_held("v", "members")
    holding.done("u", "members")
    holding.done("u", "never-refused")
    assert holding.troubles("u") == ()
    assert holding.retries("u") == []


def test_troubles_are_told_once_and_in_the_order_of_their_parts() -> None:
    holding = Holding(Clock(), order=("prepare", "members"))
    holding.refused("u", "other", [a_trouble("Forbidden")])
    holding.refused("u", "members", [a_trouble("QuotaExceeded"), a_trouble("Forbidden")])
    holding.refused("u", "prepare", [a_trouble("NameConflict")])
    assert [each.reason for each in holding.troubles("u")] == ["NameConflict", "QuotaExceeded", "Forbidden"]
    holding.forget("u")
    assert holding.troubles("u") == ()
