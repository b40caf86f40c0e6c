"""A worker whose job went back to a checkpoint holds nothing from before."""

from datetime import UTC, datetime, timedelta

from tests.core.ledger.builders import NOW, a_dataset

from shoal.agent.shards import Desk
from shoal.core import ledger as ledgers
from shoal.core.ledger import Checkpoint, Lease, Ledger
from shoal.core.rounds import Given, RoundAnswer, owner_of
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


def test_the_agent_learns_that_what_was_forgotten_is_void_and_asks_for_more() -> None:
    """Through a real desk and a real ledger that was put back by somebody else."""
    spec, owner, desk = a_dataset(40, 10), owner_of("worker-0", 0, 1, "a"), Desk()
    book = ledgers.registered(Ledger(), spec)
    data = Data(lambda word: desk.said(owner, word))

    def exchange() -> None:
        nonlocal book
        while (round := desk.next_round()) is not None:
            given = []
            for ask in round.asks:
                book, said = ledgers.exchange(book, ask, NOW)
                given.append(
                    Given(
                        owner=owner, dataset=ask.dataset, verdict=said.verdict, leases=said.leases, refused=said.refused
                    )
                )
            desk.answered(RoundAnswer(number=round.number, given=tuple(given)))
            for _, letter in desk.letters():
                data.received(letter)

    data.register(spec)
    data.want(spec.name, prefetch=2)
    exchange()
    shard = data.take(spec.name, wait=False)
    assert shard is not None
    book, _ = ledgers.restored(book, Checkpoint())
    data.forget()
    exchange()
    assert shard.is_lost
    again = [data.take(spec.name, wait=False) for _ in range(2)]
    assert [s.lease.start for s in again if s is not None] == [0, 10]
