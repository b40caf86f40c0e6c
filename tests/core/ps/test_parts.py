"""How variables are cut, whatever their shape."""

from hypothesis import given
from hypothesis import strategies as st

from shoal.core.ps.parts import SMALLEST_PART_BYTES, grouped, parts_of

shapes = st.lists(st.integers(1, 5000), max_size=3)


@given(shapes, st.sampled_from([1, 2, 4, 8]), st.integers(1, 64))
def test_a_variable_is_cut_into_no_more_parts_than_allowed_and_none_is_empty_or_tiny(
    shape: list[int], itemsize: int, most: int
) -> None:
    parts = parts_of(shape, itemsize, most)
    nbytes = itemsize
    for length in shape:
        nbytes *= length
    assert 1 <= parts <= most
    assert parts == 1 or (parts <= shape[0] and nbytes // parts >= SMALLEST_PART_BYTES)


@given(st.integers(1, 64))
def test_a_large_table_is_cut_into_as_many_parts_as_allowed(most: int) -> None:
    assert parts_of([1_000_000, 16], 4, most) == most


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 10**9)), min_size=1, max_size=30))
def test_partitions_hold_every_byte_once(given: list[tuple[int, int]]) -> None:
    leaders = {f"v{n}": f"v{min(n, leader)}" for n, (leader, _) in enumerate(given)}
    nbytes = {f"v{n}": size for n, (_, size) in enumerate(given)}
    partitions = grouped(leaders, nbytes)
    assert sum(p.nbytes for p in partitions) == sum(nbytes.values())
    assert [p.name for p in partitions] == sorted(set(leaders.values()))
