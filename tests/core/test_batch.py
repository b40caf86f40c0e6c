"""The fixed global batch: whoever is there, a step is the same micro-batches on the same samples."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.batch import block, sample_range, share, weights

sizes = st.tuples(st.integers(1, 200), st.integers(1, 64))


@given(sizes)
def test_blocks_tile_the_step_in_rank_order(size: tuple[int, int]) -> None:
    micro_batches, workers = size
    done = [b for rank in range(workers) for b in block(micro_batches, workers, rank)]
    assert done == list(range(micro_batches))


@given(sizes)
def test_shares_add_up_differ_by_at_most_one_and_never_grow_with_the_rank(size: tuple[int, int]) -> None:
    micro_batches, workers = size
    shares = [share(micro_batches, workers, rank) for rank in range(workers)]
    assert sum(shares) == micro_batches
    assert max(shares) - min(shares) <= 1
    assert shares == sorted(shares, reverse=True)
    assert shares == [len(block(micro_batches, workers, rank)) for rank in range(workers)]


@pytest.mark.parametrize(
    ("micro_batches", "workers", "shares"),
    [(4, 4, [1, 1, 1, 1]), (4, 3, [2, 1, 1]), (4, 1, [4]), (8, 3, [3, 3, 2]), (1, 2, [1, 0])],
)
def test_shares_of_the_specification(micro_batches: int, workers: int, shares: list[int]) -> None:
    assert [share(micro_batches, workers, rank) for rank in range(workers)] == shares


@given(st.integers(1, 6), st.integers(1, 12), st.integers(1, 9), st.integers(1, 8), st.integers(1, 8))
def test_samples_are_the_same_whoever_computes_them(steps: int, n: int, size: int, before: int, after: int) -> None:
    """A run resized after its first step sees every sample once, in the same order."""
    seen = [
        sample
        for step in range(steps)
        for workers in [before if step == 0 else after]
        for rank in range(workers)
        for micro_batch in block(n, workers, rank)
        for sample in sample_range(step, micro_batch, micro_batches=n, size=size)
    ]
    assert seen == list(range(steps * n * size))


@pytest.mark.parametrize(
    ("micro_batches", "workers", "rank"), [(0, 1, 0), (-1, 1, 0), (4, 0, 0), (4, 2, 2), (4, 2, -1)]
)
def test_a_share_of_nothing_is_refused_with_what_was_asked(micro_batches: int, workers: int, rank: int) -> None:
    for function in (share, block):
        with pytest.raises(ValueError, match=f"micro_batches={micro_batches}, workers={workers}, rank={rank}"):
            function(micro_batches, workers, rank)


@given(st.lists(st.integers(0, 50), min_size=1, max_size=12).filter(any))
def test_a_short_steps_mean_is_over_its_records(records: list[int]) -> None:
    """Each micro-batch's mean, times its weight, adds up to the mean of all records."""
    step = [[float(number * (index + 1)) for number in range(size)] for index, size in enumerate(records)]
    whole = [value for batch in step for value in batch]
    means = [sum(batch) / len(batch) if batch else 0.0 for batch in step]
    mean = sum(mean * weight for mean, weight in zip(means, weights(records), strict=True))
    assert mean == pytest.approx(sum(whole) / len(whole))


@given(st.integers(1, 64), st.integers(1, 1000))
def test_in_a_full_step_all_weigh_exactly_the_same(micro_batches: int, size: int) -> None:
    assert weights([size] * micro_batches) == (1.0 / micro_batches,) * micro_batches


@pytest.mark.parametrize("records", [[0, 0], [3, -1], [-1]])
def test_a_step_without_records_is_refused(records: list[int]) -> None:
    with pytest.raises(ValueError, match="a step needs records in its micro-batches"):
        weights(records)
