"""Who is told what: news at once, words now and then, and everybody in the end."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from shoal.operator.allowances import Allowance
from shoal.operator.scheduling.round import Held
from shoal.operator.scheduling.telling import A_SECOND, AT_ONCE, RETELL, Telling, tell
from shoal.scheduler.actuation import Standing
from shoal.scheduler.rows import JobKey

KEYS = [JobKey("default", f"job-{number}") for number in range(120)]
allowances = st.builds(
    lambda target, place, reason: Allowance(standing=Standing(target=target), place=place, reason=reason),
    st.integers(0, 1),
    st.one_of(st.none(), st.integers(1, 120)),
    st.sampled_from(("no room", "no devices")),
)
rounds = st.lists(
    st.tuples(st.sampled_from((0.2, 1.0, 5.0, 60.0)), st.dictionaries(st.sampled_from(KEYS[:6]), allowances)),
    max_size=12,
)


def held(allowances: dict[JobKey, Allowance]) -> dict[JobKey, Held]:
    return {key: Held(uid="u", allowance=each) for key, each in allowances.items()}


@given(rounds)
def test_what_changes_a_jobs_pods_is_told_at_once_and_nothing_is_told_twice(
    story: list[tuple[float, dict[JobKey, Allowance]]],
) -> None:
    telling, now = Telling(), 1_000.0
    for seconds, allowed in story:
        now += seconds
        before, telling = telling, tell(telling, held(allowed), everybody=False, now=now)
        assert telling.told.keys() == allowed.keys()
        for key, allowance in allowed.items():
            told = telling.told[key].allowance
            assert told.standing == allowance.standing
            if key in telling.due:
                assert told == allowance
                assert key not in before.told or before.told[key].allowance != allowance


@given(st.integers(1, 120), st.sampled_from((0.5, 1.0, 5.0)))
def test_words_for_a_whole_queue_come_a_few_a_second_and_reach_everybody(waiting: int, spacing: float) -> None:
    places = {key: Allowance(standing=Standing(), place=number + 1) for number, key in enumerate(KEYS[:waiting])}
    now = 1_000.0
    telling = tell(Telling(), held(places), everybody=False, now=now)
    assert len(telling.due) == waiting
    moved = {key: replace(each, place=(each.place or 0) + 1) for key, each in places.items()}
    told: list[JobKey] = []
    for _ in range(int((RETELL + waiting / A_SECOND) / spacing) + 3):
        now += spacing
        telling = tell(telling, held(moved), everybody=False, now=now)
        assert len(telling.due) <= AT_ONCE
        told += telling.due
    assert sorted(told) == sorted(moved)
    assert set(told[: min(waiting, 20)]) == set(KEYS[: min(waiting, 20)]), "the first in the queue come first"


def test_after_trouble_everybody_is_told() -> None:
    allowed = held({key: Allowance(standing=Standing(target=2)) for key in KEYS})
    telling = tell(Telling(), allowed, everybody=False, now=1.0)
    assert not tell(telling, allowed, everybody=False, now=2.0).due
    assert set(tell(telling, allowed, everybody=True, now=2.0).due) == set(KEYS)
