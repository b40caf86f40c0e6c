"""The ordered mode: which records are in a step is arithmetic, so the only state is how many steps are committed.

Micro-batch b of step s of an epoch is the stretch [(s·N+b)·m, (s·N+b+1)·m) of the epoch's line. It does not depend on
how many workers there are or who computes it: a run that is resized sees the same records in the same order. Steps are
counted through all epochs; no step has records of two.

The last step of an epoch is the *tail* when N·m does not divide the records. With `drop_last` there is none: those
records are left out, other ones each epoch if the order is shuffled. Otherwise its micro-batches end where the line
ends: the first ones are whole, one may be short, the rest are empty, and each weighs by its records.
"""

from dataclasses import dataclass, replace

from shoal.core.batch import sample_range
from shoal.core.errors import BadInput
from shoal.core.ledger.datasets import DatasetSpec, GlobalBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """A stretch of the line of one epoch."""

    epoch: int
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderedDataset:
    """Where a dataset of the ordered mode stands."""

    spec: DatasetSpec
    steps: int = 0
    """How many steps are committed; also the number of the next one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderedCheckpoint:
    spec: DatasetSpec
    steps: int


def steps_per_epoch(spec: DatasetSpec) -> int:
    size = _batch(spec).size
    return spec.records // size if spec.drop_last else -(-spec.records // size)


def total_steps(spec: DatasetSpec) -> int | None:
    """How many steps there are in all; None: no end."""
    return None if spec.epochs is None else spec.epochs * steps_per_epoch(spec)


def step_slice(spec: DatasetSpec, step: int) -> Slice:
    """All records of a step."""
    size = _batch(spec).size
    epoch, number = _located(spec, step)
    return Slice(epoch=epoch, start=number * size, stop=min((number + 1) * size, spec.records))


def micro_batch(spec: DatasetSpec, step: int, number: int) -> Slice:
    """The records of one micro-batch of a step; at the end of an epoch it may be short or empty."""
    batch = _batch(spec)
    if not 0 <= number < batch.micro_batches:
        raise IndexError(f"dataset {spec.name}: micro-batch {number} of {batch.micro_batches}")
    epoch, in_epoch = _located(spec, step)
    whole = sample_range(in_epoch, number, micro_batches=batch.micro_batches, size=batch.micro_batch_size)
    return Slice(epoch=epoch, start=min(whole.start, spec.records), stop=min(whole.stop, spec.records))


def is_complete(dataset: OrderedDataset) -> bool:
    return dataset.steps == total_steps(dataset.spec)


def committed(dataset: OrderedDataset, step: int) -> OrderedDataset:
    """Rank 0 says that `step` is committed.

    A step is computed on top of those before it, so it vouches for them too: words that were lost do no harm. Nor does
    a word that is said again.
    """
    _located(dataset.spec, step)
    return replace(dataset, steps=max(dataset.steps, step + 1))


def rewound(dataset: OrderedDataset, steps: int) -> OrderedDataset:
    """A world begins whose state has `steps` steps: the ledger stands where the model does, be it further back."""
    if steps:
        _located(dataset.spec, steps - 1)
    return replace(dataset, steps=steps)


def _located(spec: DatasetSpec, step: int) -> tuple[int, int]:
    """In which epoch a step is, and its number there."""
    end = total_steps(spec)
    if step < 0 or (end is not None and step >= end):
        wanted = "0 or more" if end is None else f"in 0..{end - 1}"
        raise BadInput(f"dataset {spec.name}: a step must be {wanted}, got {step}")
    return divmod(step, steps_per_epoch(spec))


def _batch(spec: DatasetSpec) -> GlobalBatch:
    if spec.batch is None:
        raise BadInput(f"dataset {spec.name} has no steps: it is leased in shards (no batch was given)")
    return spec.batch
