"""A worker whose job went back to a checkpoint holds nothing from before."""

from datetime import UTC, datetime, timedelta

from shoal.core.ledger import Lease
from shoal.trainer.data import Data
from shoal.trainer.job import dataset_spec
from shoal.wire.local import DataWord, ShardsGiven, ShardsSaid


def a_lease(number: int) -> Lease:
    return Lease(
        shard=number,
        epoch=0,
        start=10 * number,
        stop=10 * number + 10,
        attempt=number,
        partition=0,
        done=0,
        failures=0,
        deadline=datetime.now(UTC) + timedelta(hours=1),
    )


def test_what_is_held_is_void_and_others_are_asked_for() -> None:
    said: list[DataWord] = []
    data = Data(said.append)
    data.register(dataset_spec("train", size=100, shard_size=10))
    data.want("train")
    data.received(ShardsGiven(dataset="train", leases=(a_lease(0), a_lease(1)), ended=True))
    begun = data.take("train")
    assert begun is not None

    data.forget()

    assert begun.is_lost
    assert data.take("train", wait=False) is None  # the one that was fetched ahead
    assert not data.has_ended("train")
    assert isinstance(said[-1], ShardsSaid)
    assert said[-1].want > 0
    data.close(begun)
    assert said[-1].completed == ()
