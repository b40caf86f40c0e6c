"""The ordered mode: the order does not depend on who trains; the state is one number."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.ledger.builders import an_ordered_dataset

from shoal.core.batch import block
from shoal.core.errors import BadInput
from shoal.core.ledger import (
    DatasetSpec,
    Ledger,
    Shuffle,
    account_of,
    checkpoint,
    committed,
    is_complete,
    micro_batch,
    order_of,
    records,
    registered,
    restored,
    rewound,
    step_slice,
    steps_per_epoch,
    total_steps,
)


@st.composite
def specs(draw: st.DrawFn) -> DatasetSpec:
    size, micro_batches, each = draw(st.integers(1, 60)), draw(st.integers(1, 5)), draw(st.integers(1, 4))
    return an_ordered_dataset(
        size,
        micro_batches,
        each,
        shuffle=draw(st.sampled_from(Shuffle)),
        shard_size=draw(st.integers(1, size)),
        epochs=draw(st.integers(1, 3)),
        drop_last=draw(st.booleans()) and micro_batches * each <= size,
        seed=draw(st.integers(0, 99)),
    )


def trained_by(spec: DatasetSpec, step: int, number: int) -> list[int]:
    piece = micro_batch(spec, step, number)
    return list(order_of(spec, piece.epoch).trained(piece.start, piece.stop))


def run(spec: DatasetSpec, sizes: list[int]) -> list[int]:
    """The records in logical order, when the world has these sizes step after step."""
    assert spec.batch is not None
    out: list[int] = []
    steps = total_steps(spec)
    assert steps is not None
    for step in range(steps):
        workers = sizes[step % len(sizes)]
        for rank in range(workers):
            for number in block(spec.batch.micro_batches, workers, rank):
                out += trained_by(spec, step, number)
    return out


@given(specs(), st.lists(st.integers(1, 6), min_size=1, max_size=5))
def test_the_order_does_not_depend_on_how_many_workers_there_are(spec: DatasetSpec, sizes: list[int]) -> None:
    assert run(spec, sizes) == run(spec, [1])


@given(specs())
def test_every_record_is_trained_once_an_epoch_and_drop_last_leaves_less_than_a_batch_out(spec: DatasetSpec) -> None:
    assert spec.batch is not None
    assert spec.epochs is not None
    every = run(spec, [1])
    per_epoch = len(every) // spec.epochs
    for epoch in range(spec.epochs):
        once = every[epoch * per_epoch : (epoch + 1) * per_epoch]
        assert len(set(once)) == len(once)
        missing = set(range(spec.records)) - set(once)
        assert len(missing) < spec.batch.size if spec.drop_last else not missing


@given(specs(), st.data())
def test_the_account_is_what_the_committed_steps_trained(spec: DatasetSpec, data: st.DataObject) -> None:
    total = total_steps(spec)
    assert total is not None
    steps = data.draw(st.integers(0, total))
    ledger = registered(Ledger(), spec)
    for step in range(steps):
        ledger = committed(ledger, "train", step)
    account = account_of(ledger, "train")
    # At the very end the account is still of the last epoch, whose steps are all done.
    done = steps - account.epoch * steps_per_epoch(spec)
    slices = [step_slice(spec, account.epoch * steps_per_epoch(spec) + n) for n in range(done)]
    trained = [r for s in slices for r in order_of(spec, s.epoch).trained(s.start, s.stop)]
    assert list(records(spec, account.epoch, account.done[0])) == trained
    assert account.count == len(trained) == sum(len(s) for s in slices)
    assert is_complete(ledger) == (steps == total)


def test_micro_batches_are_where_the_formula_says() -> None:
    spec = an_ordered_dataset(100, 4, 3, epochs=None)
    piece = micro_batch(spec, 2, 1)
    assert (piece.epoch, piece.start, piece.stop) == (0, (2 * 4 + 1) * 3, (2 * 4 + 2) * 3)
    assert micro_batch(spec, steps_per_epoch(spec), 0).epoch == 1


def test_the_tail_ends_where_the_line_ends() -> None:
    spec = an_ordered_dataset(16, 3, 4)  # one step of 12, a tail of 4
    assert [len(micro_batch(spec, 1, n)) for n in range(3)] == [4, 0, 0]
    spec = an_ordered_dataset(17, 3, 4)
    assert [len(micro_batch(spec, 1, n)) for n in range(3)] == [4, 1, 0]
    assert total_steps(an_ordered_dataset(17, 3, 4, drop_last=True)) == 1


def test_a_step_vouches_for_those_before_it_and_counts_once() -> None:
    ledger = registered(Ledger(), an_ordered_dataset(100, 2, 5))
    ledger = committed(ledger, "train", 4)
    assert account_of(ledger, "train").done == (((0, 50),),)
    assert committed(committed(ledger, "train", 4), "train", 2) == ledger


def test_a_world_that_begins_further_back_takes_the_ledger_along() -> None:
    ledger = committed(registered(Ledger(), an_ordered_dataset(100, 2, 5)), "train", 4)
    assert account_of(rewound(ledger, "train", 3), "train").done == (((0, 30),),)
    assert account_of(rewound(ledger, "train", 0), "train").done == ((),)


def test_a_restore_stands_where_the_checkpoint_was_taken() -> None:
    before = committed(registered(Ledger(), an_ordered_dataset(100, 2, 5)), "train", 4)
    mark = checkpoint(before)
    after = committed(before, "train", 7)
    assert restored(after, mark) == (before, ())
    assert restored(Ledger(), mark) == (before, ())


@pytest.mark.parametrize("step", [-1, 10])
def test_a_step_that_does_not_exist_is_refused(step: int) -> None:
    ledger = registered(Ledger(), an_ordered_dataset(100, 2, 5))
    with pytest.raises(BadInput, match=rf"dataset train: a step must be in 0\.\.9, got {step}"):
        committed(ledger, "train", step)


def test_a_dataset_of_a_billion_knows_its_last_step_at_once() -> None:
    spec = an_ordered_dataset(10**9, 8, 32, shuffle=Shuffle.SAMPLES, epochs=None)
    step = 5 * steps_per_epoch(spec) - 1
    piece = micro_batch(spec, step, 0)
    assert piece.epoch == 4
    assert len(set(order_of(spec, 4).trained(piece.start, piece.stop))) == len(piece)
