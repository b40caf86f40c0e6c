"""Data for PyTorch: a fixed order that does not depend on the workers, and shards for workers on their own.

**ordered**, for `elastic.run` with a fixed global batch. Micro-batch b of step s is always the same records, whoever
computes it; a step that is given up is done again with the same ones, and the ledger counts steps, so each counts once.

    @elastic.run
    def train(state: elastic.State) -> None:
        data = elastic.ordered(state, "train", size=len(dataset), epochs=3, shuffle="samples", seed=7)
        for batches in data.steps(dataset, num_workers=2):
            for micro, (x, y) in batches:
                ...
            state.commit()

**shards**, for workers that make no collectives (`shoal.trainer.join`): a `DataLoader` fed with the shards that this
worker has leased. The main process fetches them and hands indices to the loader's workers, which know nothing of it; so
they may be any number, forked or spawned. A batch counts as trained when the loop asks for the next one.

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
) -> "OrderedData":
    """A dataset whose order is fixed. Called inside the training function, each time it is entered.

    An incomplete last global batch of an epoch is left out: it would weigh as much as a whole one. With a shuffled
    order other records are left out each epoch.
    """
    spec = dataset_spec(
        name,
        size=size,
        epochs=epochs,
        shuffle=shuffle,
        seed=seed,
        shard_size=shard_size,
        drop_last=True,
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
            yield ((micro, next(source)) for micro in self._state.micro_batches())
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
                yield self._data._indices(step, number)
            step += 1


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
