"""The line of an epoch: every record once, shards whole, another order each epoch."""

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.ledger.builders import a_dataset, an_ordered_dataset

from shoal.core.ledger import DatasetSpec, Shuffle, order_of


@st.composite
def specs(draw: st.DrawFn, **fixed: Any) -> DatasetSpec:
    size = draw(st.integers(1, 80))
    shard = draw(st.integers(1, size))
    choices = {"shuffle": draw(st.sampled_from(Shuffle)), "seed": draw(st.integers(0, 2**63 - 1))}
    return a_dataset(size, shard, **{**choices, **fixed})


@given(specs(), st.integers(0, 5))
def test_the_line_has_every_record_once(spec: DatasetSpec, epoch: int) -> None:
    order = order_of(spec, epoch)
    assert order.length == spec.records
    assert sorted(order.trained(0, order.length)) == list(range(spec.records))


@given(specs(), st.integers(0, 5))
def test_shards_tile_the_line(spec: DatasetSpec, epoch: int) -> None:
    order = order_of(spec, epoch)
    bounds = [order.bounds(i) for i in range(order.shards)]
    assert bounds[0][0] == 0
    assert bounds[-1][1] == order.length
    assert all(a[1] == b[0] for a, b in itertools.pairwise(bounds))
    assert all(order.shard_at(p) == i for i, (start, stop) in enumerate(bounds) for p in range(start, stop))


@given(specs(), st.integers(0, 5), st.data())
def test_a_stretch_of_the_line_is_that_stretch_of_the_whole(spec: DatasetSpec, epoch: int, data: st.DataObject) -> None:
    order = order_of(spec, epoch)
    start = data.draw(st.integers(0, order.length))
    stop = data.draw(st.integers(start, order.length))
    assert list(order.trained(start, stop)) == list(order.trained(0, order.length))[start:stop]


@pytest.mark.parametrize("shuffle", [Shuffle.SHARDS, Shuffle.WITHIN_SHARDS])
@given(st.integers(1, 80), st.integers(1, 20), st.integers(0, 1000))
def test_shards_keep_their_borders_in_the_dataset(shuffle: Shuffle, size: int, shard: int, seed: int) -> None:
    spec = a_dataset(size, min(size, shard), shuffle=shuffle, seed=seed)
    order = order_of(spec, 0)
    shards = [list(order.trained(*order.bounds(i))) for i in range(order.shards)]
    assert all(sorted(s) == list(range(min(s), min(s) + len(s))) and min(s) % spec.shard == 0 for s in shards)
    if shuffle is Shuffle.SHARDS:
        assert all(s == sorted(s) for s in shards)


@given(specs(drop_last=True), st.integers(0, 5))
def test_drop_last_leaves_less_than_a_shard_out(spec: DatasetSpec, epoch: int) -> None:
    order = order_of(spec, epoch)
    trained = list(order.trained(0, order.length))
    assert len(trained) == len(set(trained)) == spec.records // spec.shard * spec.shard
    assert set(trained) <= set(range(spec.records))


@pytest.mark.parametrize("shuffle", [Shuffle.SHARDS, Shuffle.WITHIN_SHARDS, Shuffle.SAMPLES])
def test_epochs_and_seeds_have_orders_of_their_own(shuffle: Shuffle) -> None:
    lines = {
        (seed, epoch): tuple(order_of(a_dataset(1000, 10, shuffle=shuffle, seed=seed), epoch).trained(0, 1000))
        for seed in (0, 1)
        for epoch in (0, 1)
    }
    assert len(set(lines.values())) == 4
    assert tuple(range(1000)) not in lines.values()


def test_the_short_shard_comes_anywhere() -> None:
    spec = a_dataset(21, 5, shuffle=Shuffle.SHARDS)
    assert {order_of(spec, epoch).short_at for epoch in range(60)} == {0, 1, 2, 3, 4}


def test_the_order_of_a_dataset_never_changes() -> None:
    """As for the permutation: do not update the numbers, undo the change."""
    lines = {
        shuffle: list(order_of(a_dataset(11, 3, shuffle=shuffle, seed=5), 2).trained(0, 11)) for shuffle in Shuffle
    }
    assert lines == {
        Shuffle.NONE: [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10],
        Shuffle.SHARDS: [0, 1, 2, 9, 10, 3, 4, 5, 6, 7, 8],
        Shuffle.WITHIN_SHARDS: [0, 1, 2, 9, 10, 3, 4, 5, 8, 6, 7],
        Shuffle.SAMPLES: [1, 9, 4, 0, 8, 6, 5, 2, 7, 3, 10],
    }


def test_the_ordered_mode_needs_no_shards() -> None:
    order = order_of(an_ordered_dataset(10, 2, 2, shuffle=Shuffle.SAMPLES), 0)
    assert sorted(order.trained(0, 10)) == list(range(10))


def test_positions_beyond_the_line_are_refused() -> None:
    with pytest.raises(IndexError, match="not on a line of 10"):
        list(order_of(a_dataset(10, 2), 0).trained(5, 11))
