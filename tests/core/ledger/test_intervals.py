"""Range sets against plain sets."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from shoal.core.ledger.intervals import Ranges, merged, minus, total

RANGES = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)))


def numbers(ranges: Ranges) -> set[int]:
    return {n for start, stop in ranges for n in range(start, stop)}


@given(RANGES)
def test_merged_is_the_union_in_its_one_form(ranges: list[tuple[int, int]]) -> None:
    out = merged(ranges)
    assert numbers(out) == {n for start, stop in ranges for n in range(start, stop)}
    assert total(out) == len(numbers(out))
    assert all(start < stop for start, stop in out)
    assert all(a[1] < b[0] for a, b in itertools.pairwise(out))


@given(RANGES, RANGES)
def test_minus_leaves_what_is_not_in_the_holes(ranges: list[tuple[int, int]], holes: list[tuple[int, int]]) -> None:
    out = minus(merged(ranges), merged(holes))
    assert numbers(out) == numbers(merged(ranges)) - numbers(merged(holes))
    assert out == merged(out)
