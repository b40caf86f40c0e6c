"""Data for PyTorch in one process: what the loader's workers see, and the fixed order."""

import os
from collections import Counter
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset

import shoal.torch as elastic
import shoal.trainer
from shoal.core.errors import BadInput

pytestmark = pytest.mark.torch


class Numbers(Dataset[Any]):
    """Record i is the number i, and who read it."""

    def __getitem__(self, index: int) -> tuple[int, int]:
        return index, os.getpid()


def a_job(size: int = 103, shard: int = 10, **more: Any) -> shoal.trainer.Job:
    job = shoal.trainer.join({})
    job.dataset("train", size=size, shard_size=shard, shuffle="samples", **more)
    return job


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_loader_sees_every_record_once_whoever_reads_it(num_workers: int) -> None:
    loader = elastic.ShardLoader(a_job(epochs=2).data, "train", Numbers(), batch_size=8, num_workers=num_workers)
    seen, readers = Counter[int](), set()
    for indices, pids in loader:
        seen.update(indices.tolist())
        readers |= set(pids.tolist())
    assert seen == Counter(dict.fromkeys(range(103), 2))
    assert len(readers) == (num_workers or 1)
    assert num_workers == 0 or os.getpid() not in readers


def test_a_loop_that_is_left_and_entered_again_goes_on_where_it_was() -> None:
    job = a_job()
    loader = elastic.ShardLoader(job.data, "train", Numbers(), batch_size=8)
    seen: list[int] = []
    for number, (indices, _) in enumerate(loader):
        if number == 5:
            break  # this batch was not trained
        seen += indices.tolist()
    for indices, _ in loader:
        seen += indices.tolist()
    assert sorted(seen) == list(range(103))


@pytest.mark.parametrize("num_workers", [0, 1])
def test_what_a_loader_has_read_ahead_is_not_trained_after_a_restore(num_workers: int) -> None:
    job = a_job()
    loader = elastic.ShardLoader(job.data, "train", Numbers(), batch_size=8, num_workers=num_workers)
    seen: list[int] = []
    saved, at = b"", 0
    for number, (indices, _) in enumerate(loader):
        if number == 2:
            saved, at = job.checkpoint(), len(seen)
        seen += indices.tolist()
        if number == 5:
            job.restore(saved)
            del seen[at:]  # what the model has not seen, now that it is the one of then
    assert sorted(seen) == list(range(103))


def test_a_batch_size_of_nothing_is_refused() -> None:
    with pytest.raises(BadInput, match="batch_size must be at least 1, got 0"):
        elastic.ShardLoader(a_job().data, "train", Numbers(), batch_size=0)


def a_state(**more: Any) -> elastic.State:
    model = torch.nn.Linear(1, 1)
    return elastic.State(model=model, optimizer=torch.optim.SGD(model.parameters(), 0.1), **more)


def trained_in_order(num_workers: int) -> list[list[int]]:
    """The records of each micro-batch, in the order in which they are trained."""
    seen: list[list[int]] = []

    @elastic.run
    def train(state: elastic.State) -> None:
        data = elastic.ordered(state, "train", size=50, epochs=2, seed=3)
        for batches in data.steps(Numbers(), num_workers=num_workers):
            for micro, (indices, _) in batches:
                assert indices.tolist() == data.indices(micro)
                seen.append(indices.tolist())
                state.model(torch.ones(1, 1)).sum().backward()
            state.commit()

    train(a_state(micro_batches=3, micro_batch_size=4))
    return seen


@pytest.mark.parametrize("source", ["ordered", "sharded"])
def test_a_step_is_not_committed_before_all_its_micro_batches_were_run(source: str) -> None:
    @elastic.run
    def train(state: elastic.State) -> None:
        more = {"shard_size": 8} if source == "sharded" else {}
        for batches in getattr(elastic, source)(state, "train", size=48, **more).steps(Numbers()):
            for micro, _ in batches:
                state.model(torch.ones(1, 1)).sum().backward()
                if micro.index == 1:
                    break
            state.commit()

    state = a_state(micro_batches=3, micro_batch_size=4)
    with pytest.raises(RuntimeError, match=r"2 of this worker's 3 micro-batches of step 0 were run: .* state.restore"):
        train(state)
    assert state.step == 0


def test_the_fixed_order_is_the_ledgers_with_and_without_loader_workers() -> None:
    seen = trained_in_order(0)
    assert trained_in_order(2) == seen
    assert [len(batch) for batch in seen] == 2 * [*[4] * 12, 2]  # two epochs of four whole steps and a short one
    for epoch in (seen[:13], seen[13:]):
        assert sorted(index for batch in epoch for index in batch) == list(range(50))
    assert seen[:13] != seen[13:]


def dealt_alone(num_workers: int, **words: Any) -> list[list[int]]:
    seen: list[list[int]] = []

    @elastic.run
    def train(state: elastic.State) -> None:
        data = elastic.sharded(state, "train", size=50, shard_size=9, epochs=2, seed=3, **words)
        assert data.epoch is None
        for batches in data.steps(Numbers(), num_workers=num_workers):
            for micro, (indices, _) in batches:
                assert indices.tolist() == data.indices(micro)
                seen.append(indices.tolist())
                state.model(torch.ones(1, 1)).sum().backward()
            assert data.epoch == (state.step > 4)
            state.commit()

    train(a_state(micro_batches=3, micro_batch_size=4))
    return seen


def test_dealt_shards_are_the_same_with_and_without_loader_workers() -> None:
    seen = dealt_alone(0)
    assert dealt_alone(2) == seen
    assert [len(batch) for batch in seen] == 2 * [*[4] * 12, 2]
    assert Counter(index for batch in seen for index in batch) == Counter(dict.fromkeys(range(50), 2))


def test_each_micro_batch_reads_on_in_a_shard_of_its_own() -> None:
    first, second, third, *rest = dealt_alone(0, shuffle="none")
    assert (first, second, third) == ([0, 1, 2, 3], [9, 10, 11, 12], [18, 19, 20, 21])
    assert rest[:3] == [[4, 5, 6, 7], [13, 14, 15, 16], [22, 23, 24, 25]]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        pytest.param({"size": 0, "shard_size": 1}, "size must be at least 1 record", id="empty"),
        pytest.param({"size": -3, "shard_size": 1}, "got -3", id="negative"),
        pytest.param({"size": 5, "shard_size": 6}, "shard_size must be at most the dataset's 5 records", id="large"),
        pytest.param({"size": 5, "shard_size": 0}, "shard_size must be at least 1, got 0", id="no shard"),
        pytest.param({"size": 5, "shard_size": 1, "shuffle": "well"}, "shuffle must be one of none", id="unknown"),
    ],
)
def test_a_dataset_that_cannot_be_dealt_ends_the_training_with_why(
    words: dict[str, Any], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    @elastic.run
    def train(state: elastic.State) -> None:
        elastic.sharded(state, "train", **words)

    with pytest.raises(SystemExit) as ended:
        train(a_state(micro_batch_size=4))
    assert ended.value.code == 76
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("size", [0, -2])
def test_an_ordered_dataset_without_records_is_refused(size: int, capsys: pytest.CaptureFixture[str]) -> None:
    @elastic.run
    def train(state: elastic.State) -> None:
        elastic.ordered(state, "train", size=size)

    with pytest.raises(SystemExit):
        train(a_state(micro_batches=1, micro_batch_size=4))
    assert f"dataset train: size must be at least 1 record (and at most 2**62), got {size}" in capsys.readouterr().err


def test_dealing_needs_to_know_how_many_records_a_worker_gets(capsys: pytest.CaptureFixture[str]) -> None:
    @elastic.run
    def train(state: elastic.State) -> None:
        elastic.sharded(state, "train", size=5, shard_size=1)

    with pytest.raises(SystemExit):
        train(a_state())
    assert "State: to deal shards needs micro_batch_size" in capsys.readouterr().err


def test_sizes_for_another_number_of_micro_batches_are_refused() -> None:
    @elastic.run
    def train(state: elastic.State) -> None:
        list(state.micro_batches([1, 2]))

    with pytest.raises(ValueError, match="a step has 3 micro-batches, got sizes for 2"):
        train(a_state(micro_batches=3))


@pytest.mark.parametrize("sizes", [[0, 0], [3, -1]])
def test_a_step_without_records_is_refused(sizes: list[int]) -> None:
    @elastic.run
    def train(state: elastic.State) -> None:
        list(state.micro_batches(sizes))

    with pytest.raises(ValueError, match="a step needs records in its micro-batches"):
        train(a_state(micro_batches=2))


def test_a_batch_that_follows_the_world_has_no_fixed_order() -> None:
    @elastic.run
    def train(state: elastic.State) -> None:
        elastic.ordered(state, "train", size=50)

    with pytest.raises(SystemExit) as ended:
        train(a_state(micro_batches="world", micro_batch_size=4))
    assert ended.value.code == 76


def test_a_step_that_is_not_committed_is_noticed() -> None:
    @elastic.run
    def train(state: elastic.State) -> None:
        for batches in elastic.ordered(state, "train", size=50).steps(Numbers()):
            list(batches)

    with pytest.raises(RuntimeError, match="step 0 was not committed"):
        train(a_state(micro_batches=1, micro_batch_size=4))
