"""Every record is trained and counted once, whatever is lost between a process and the ledger."""

from datetime import timedelta

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.data.chain import Chain

from shoal.core import ledger as ledgers
from shoal.core.ledger import DatasetSpec, LeaseSettings, Shuffle


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


def test_without_trouble_nothing_is_trained_twice() -> None:
    chain = Chain(0, a_spec(60, 7, 2))
    chain.finish()
    assert set(chain.trained.values()) == {1}
