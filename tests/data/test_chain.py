"""Every record is trained and counted once, whatever is lost between a process and the ledger."""

from datetime import timedelta

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.data.chain import Chain

from shoal.core import ledger as ledgers
from shoal.core.ledger import DatasetSpec, Kind, LeaseSettings, Shuffle


def a_spec(size: int, shard: int, epochs: int) -> DatasetSpec:
    return DatasetSpec(
        name="train",
        size=size,
        shard_size=min(shard, size),
        epochs=epochs,
        shuffle=Shuffle.SAMPLES,
        leases=LeaseSettings(time=timedelta(seconds=2), max_attempts=1000),
    )


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 60), st.integers(1, 9), st.integers(1, 3), st.integers(0, 250))
def test_everything_is_trained_and_counted_once_whatever_is_lost(
    seed: int, size: int, shard: int, epochs: int, steps: int
) -> None:
    chain = Chain(seed, a_spec(size, shard, epochs))
    for _ in range(steps):
        chain.step()
    chain.finish()
    book = chain.story.job.ledger
    assert ledgers.is_complete(book)
    assert set(chain.trained) == {(epoch, position) for epoch in range(epochs) for position in range(size)}
    account = ledgers.account_of(book, "train")
    assert (account.epoch, account.done) == (epochs - 1, (((0, size),),))


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 2**32),
    st.lists(st.tuples(st.integers(0, 20), st.integers(0, 30)), min_size=1, max_size=3),
    st.integers(1, 9),
    st.integers(0, 250),
)
def test_a_stream_that_grows_is_trained_and_counted_once_whatever_is_lost(
    seed: int, partitions: list[tuple[int, int]], shard: int, steps: int
) -> None:
    ends = tuple(first + length for first, length in partitions)
    spec = DatasetSpec(
        name="clicks",
        kind=Kind.STREAM,
        partitions=tuple(first for first, _ in partitions),
        shard_size=shard,
        leases=LeaseSettings(time=timedelta(seconds=2), max_attempts=1000),
    )
    chain = Chain(seed, spec, ends=ends)
    for _ in range(steps):
        chain.step()
    chain.finish()
    assert ledgers.is_complete(chain.story.job.ledger)
    expected = tuple(((first, end),) if first < end else () for (first, _), end in zip(partitions, ends, strict=True))
    assert ledgers.account_of(chain.story.job.ledger, "clicks").done == expected
    assert set(chain.trained) == {(p, o) for p, spans in enumerate(expected) for a, b in spans for o in range(a, b)}


def test_without_trouble_nothing_is_trained_twice() -> None:
    chain = Chain(0, a_spec(60, 7, 2))
    chain.finish()
    assert set(chain.trained.values()) == {1}
