"""Where jobs of one shape should end: nothing is lost, nobody leaves its range, and who deserves more has more."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from shoal.scheduler.even import NEAR, Alike
from shoal.scheduler.keys import Keys


def some_keys(bases: list[float], slopes: list[float]) -> Keys:
    count = len(bases)
    return Keys(
        base=bases,
        slope=slopes,
        shift=[0] * count,
        bent={},
        rank=list(range(count)),
        waiting=bases,
        service=np.array(bases),
        min_v=0.0,
        weight=np.ones(count, dtype=np.int64),
    )


def ends(
    n: list[int], least: int = 1, most: int = 100, bases: list[float] | None = None
) -> tuple[list[int], list[int]]:
    keys = some_keys(bases or [0.0] * len(n), [1.0] * len(n))
    return Alike(range(len(n)), keys, n, [least] * len(n), [most] * len(n)).ends()


def test_the_rich_give_to_the_poor_until_all_are_near_each_other() -> None:
    keeps, gets = ends([30, 2, 2, 2])
    assert keeps[0] == 9 + 9 // NEAR
    assert gets[1:] == [8, 8, 8]


def test_who_is_near_enough_keeps_what_it_has() -> None:
    keeps, _ = ends([11, 10, 9, 10])
    assert min(keeps) >= 11


def test_nobody_is_left_with_next_to_nothing_for_the_sake_of_calm() -> None:
    """All others are near even, but one has nearly nothing."""
    keeps, gets = ends([11] * 10 + [1])
    assert min(keeps) == 10
    assert gets[-1] >= 8


def test_a_job_that_has_had_more_so_far_ends_with_less() -> None:
    keeps, gets = ends([40, 2, 2], bases=[10.0, 0.0, 0.0])
    assert keeps[0] < gets[1]


@given(
    st.lists(st.tuples(st.integers(1, 60), st.floats(0, 50), st.floats(0.1, 10)), min_size=2, max_size=30),
    st.integers(1, 5),
    st.integers(5, 80),
)
def test_no_more_is_got_than_given_and_all_stay_in_their_range(
    jobs: list[tuple[int, float, float]], least: int, most: int
) -> None:
    n = [min(max(have, least), most) for have, _, _ in jobs]
    keys = some_keys([base for _, base, _ in jobs], [slope for _, _, slope in jobs])
    keeps, gets = Alike(range(len(n)), keys, n, [least] * len(n), [most] * len(n)).ends()
    given_up = sum(max(0, have - keep) for have, keep in zip(n, keeps, strict=True))
    got = sum(max(0, get - have) for have, get in zip(n, gets, strict=True))
    assert got <= given_up
    assert all(least <= get <= most for get in gets)
    assert all(keep >= least for keep in keeps)
