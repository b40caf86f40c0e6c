"""Data for PyTorch: a fixed order that does not depend on the workers, shards dealt in the elastic world, and shards
for workers on their own.

**ordered**, for `elastic.run` with a fixed global batch. Micro-batch b of step s is always the same records, whoever
computes it; a step that is given up is done again with the same ones, and the ledger counts steps, so each counts once.

    @elastic.run
    def train(state: elastic.State) -> None:
        data = elastic.ordered(state, "train", size=len(dataset), epochs=3, shuffle="samples", seed=7)
        for batches in data.steps(dataset, num_workers=2):
            for micro, (x, y) in batches:
                ...
            state.commit()

**sharded**, for `elastic.run` when records are best read shard by shard, or the batch follows the world. Each
micro-batch of a step reads on in a shard of its own; all members work out alike who reads what, so a member that dies
takes nothing along, and one that finds nothing in the last step of an epoch still takes part in it.

    @elastic.run
    def train(state: elastic.State) -> None:
        data = elastic.sharded(state, "train", size=len(dataset), shard_size=1000, epochs=3, shuffle="within-shards")
        for batches in data.steps(dataset, num_workers=2):
            for micro, (x, y) in batches:
                ...
            state.commit()

**ShardLoader**, for workers that make no collectives (`shoal.trainer.join`): a `DataLoader` fed with the shards that
this worker has leased. The main process fetches them and hands indices to the loader's workers, which know nothing of
it; so they may be any number, forked or spawned. A batch counts as trained when the loop asks for the next one.

    for x, y in ShardLoader(job.data, "train", dataset, batch_size=32, num_workers=2):
        ...
"""

from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import Any

from torch.utils.data import DataLoader, Dataset

from shoal.core.batch import block
from shoal.core.errors import BadInput
from shoal.core.ledger import DatasetSpec, micro_batch, records, total_steps
from shoal.core.ledger.dealing import Deal, Standing, dealt
from shoal.torch.state import State
from shoal.torch.stepping import MicroBatch
from shoal.trainer.data import PREFETCH, Data
from shoal.trainer.feed import Feed
from shoal.trainer.job import dataset_spec

# The ordered mode ----------------------------------------------------------------------------------------


def ordered(
    state: State,
    name: str,
    *,
    size: int,
    epochs: int | None = 1,
    shuffle: str = "samples",
    seed: int = 0,
    shard_size: int | None = None,
    drop_last: bool = False,
) -> "OrderedData":
    """A dataset whose order is fixed. Called inside the training function, each time it is entered.

    The last step of an epoch is short when the global batch does not divide the dataset; its gradient is the mean over
    the records that it has. With `drop_last` these are left out instead: other ones each epoch, if the order is
    shuffled.
    """
    spec = dataset_spec(
        name,
        size=size,
        epochs=epochs,
        shuffle=shuffle,
        seed=seed,
        shard_size=shard_size,
        drop_last=drop_last,
        batch=state.global_batch,
    )
    state.data.register(spec)
    return OrderedData(state, spec)


class OrderedData:
    def __init__(self, state: State, spec: DatasetSpec) -> None:
        self._state = state
        self._spec = spec

    @property
    def total_steps(self) -> int | None:
        """How many steps all epochs have; None: no end."""
        return total_steps(self._spec)

    def indices(self, micro: MicroBatch) -> list[int]:
        """The records of a micro-batch."""
        return self._indices(micro.step, micro.index)

    def sizes(self, step: int) -> list[int] | None:
        """How many records each micro-batch of a step has, for `state.micro_batches`; None: all are whole."""
        batch = self._state.global_batch
        sizes = [len(micro_batch(self._spec, step, number)) for number in range(batch.micro_batches)]
        return None if sum(sizes) == batch.size else sizes

    def epoch_of(self, step: int) -> int:
        return micro_batch(self._spec, step, 0).epoch

    def steps(
        self, dataset: Dataset[Any], *, num_workers: int = 0, **loader: Any
    ) -> Iterator[Iterator[tuple[MicroBatch, Any]]]:
        """For each step from `state.step` on, this worker's micro-batches with their data, loaded ahead.

        Further keywords go to the `DataLoader`. What it has loaded when the world changes is discarded.
        """
        batches = _Ahead(self, self._state.step)
        source = iter(DataLoader(dataset, batch_sampler=batches, num_workers=num_workers, **loader))
        while self.total_steps is None or self._state.step < self.total_steps:
            before = self._state.step
            yield _with_data(self._state.micro_batches(self.sizes(before)), source)
            if self._state.step == before:
                raise RuntimeError(f"step {before} was not committed: call state.commit() after its micro-batches")

    def _indices(self, step: int, number: int) -> list[int]:
        stretch = micro_batch(self._spec, step, number)
        return list(records(self._spec, stretch.epoch, [(stretch.start, stretch.stop)]))

    def block(self) -> range:
        """Which micro-batches of a step are this worker's."""
        assert self._spec.batch is not None
        return block(self._spec.batch.micro_batches, self._state.size, self._state.rank)


class _Ahead:
    """The batches of this worker from a step on, as long as the world is the same."""

    def __init__(self, data: OrderedData, step: int) -> None:
        self._data = data
        self._step = step

    def __iter__(self) -> Iterator[list[int]]:
        step, end, mine = self._step, self._data.total_steps, self._data.block()
        while end is None or step < end:
            for number in mine:
                if indices := self._data._indices(step, number):
                    yield indices
            step += 1


# Shards dealt in the world -------------------------------------------------------------------------------


def sharded(
    state: State,
    name: str,
    *,
    size: int,
    shard_size: int,
    epochs: int | None = 1,
    shuffle: str = "samples",
    seed: int = 0,
    drop_last: bool = False,
) -> "ShardedData":
    """A dataset that the world's members read shard by shard. Called inside the training function, each time it is
    entered: it goes on where the state stands. It is part of the state, also in checkpoints.

    A micro-batch takes up to `micro_batch_size` records of the shard that it reads. In the last step of an epoch there
    may be fewer, or none: gradients weigh by the records that were there. With `drop_last` the incomplete last shard of
    an epoch is left out.
    """
    spec = dataset_spec(
        name,
        size=size,
        epochs=epochs,
        shuffle=shuffle,
        seed=seed,
        shard_size=shard_size,
        drop_last=drop_last,
        together=True,
    )
    _ = state.micro_batch_size  # if there is none, say so now
    state.attach(spec)
    return ShardedData(state, spec)


class ShardedData:
    def __init__(self, state: State, spec: DatasetSpec) -> None:
        self._state = state
        self._spec = spec
        self._deal: Deal | None = None

    @property
    def epoch(self) -> int | None:
        """Of the step under way; None before the first."""
        return None if self._deal is None else self._deal.epoch

    def indices(self, micro: MicroBatch) -> list[int]:
        """The records of a micro-batch of the step under way."""
        assert self._deal is not None
        return self._indices(self._deal, micro.index)

    def steps(
        self, dataset: Dataset[Any], *, num_workers: int = 0, **loader: Any
    ) -> Iterator[Iterator[tuple[MicroBatch, Any]]]:
        """For each step, this worker's micro-batches with their data, loaded ahead; none, if there is nothing for it.

        Further keywords go to the `DataLoader`. What it has loaded when the world changes is discarded.
        """
        state, name = self._state, self._spec.name
        ahead = _DealsAhead(self, state.standing(name))
        source = iter(DataLoader(dataset, batch_sampler=ahead, num_workers=num_workers, **loader))
        while (deal := state.deal(name)) is not None:
            self._deal, before = deal, state.step
            yield _with_data(state.micro_batches(deal.sizes), source)
            if state.step == before:
                raise RuntimeError(f"step {before} was not committed: call state.commit() after its micro-batches")

    def _indices(self, deal: Deal, number: int) -> list[int]:
        return list(records(self._spec, deal.epoch, deal.hands[number]))


class _DealsAhead:
    """The batches of this worker from a standing on, as long as the world is the same."""

    def __init__(self, data: ShardedData, standing: Standing) -> None:
        self._data, self._standing = data, standing
        state = data._state
        self._seats, self._size = state.micro_batches_in_step, state.micro_batch_size
        self._mine = block(self._seats, state.size, state.rank)

    def __iter__(self) -> Iterator[list[int]]:
        standing = self._standing
        while (deal := dealt(standing, seats=self._seats, size=self._size)) is not None:
            for number in self._mine:
                if deal.hands[number]:
                    yield self._data._indices(deal, number)
            standing = deal.after


def _with_data(batches: Iterator[MicroBatch], source: Iterator[Any]) -> Iterator[tuple[MicroBatch, Any]]:
    for micro in batches:
        yield micro, next(source)


# Shards --------------------------------------------------------------------------------------------------


class ShardLoader:
    """Batches of a dataset, from the shards that this worker leases. Further keywords go to the `DataLoader`."""

    def __init__(
        self,
        data: Data,
        name: str,
        dataset: Dataset[Any],
        *,
        batch_size: int,
        epoch: int | None = None,
        prefetch_shards: int = PREFETCH,
        num_workers: int = 0,
        **loader: Any,
    ) -> None:
        if batch_size < 1:
            raise BadInput(f"dataset {name}: batch_size must be at least 1, got {batch_size}")
        self._feed = Feed(data, name, epoch=epoch, prefetch=prefetch_shards)
        self._batches = _LeasedBatches(self._feed, batch_size)
        self._loader: DataLoader[Any] = DataLoader(
            dataset,
            batch_sampler=self._batches,
            num_workers=num_workers,
            persistent_workers=num_workers > 0,
            **loader,
        )

    def __iter__(self) -> Iterator[Any]:
        try:
            while self._feed.refill():
                for batch in self._loader:
                    if not self._feed.is_void(self._batches.sizes[0]):
                        yield batch
                    self._feed.trained(self._batches.sizes.popleft())
        finally:
            self._batches.sizes.clear()
            self._feed.give_up()


class _LeasedBatches:
    """Lists of indices for a `DataLoader`, which gives the batches back in this order."""

    def __init__(self, feed: Feed, size: int) -> None:
        self._feed, self._size = feed, size
        self.sizes: deque[int] = deque()
        """Of the batches under way."""

    def __iter__(self) -> Iterator[list[int]]:
        records = self._feed.records()
        while batch := list(islice(records, self._size)):
            self.sizes.append(len(batch))
            yield batch
