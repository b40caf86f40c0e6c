"""What cannot be a dataset is refused with what, wanted and got."""

from datetime import timedelta
from typing import Any

import msgspec
import pytest
from tests.core.ledger.builders import a_dataset, a_stream, an_ordered_dataset

from shoal.core.errors import BadInput
from shoal.core.ledger import DatasetSpec, GlobalBatch, Kind, LeaseSettings, Purpose, Shuffle


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        pytest.param({"size": 0}, "dataset d: size must be at least 1 record (and at most 2**62), got 0", id="empty"),
        pytest.param({"size": -5}, "got -5", id="negative"),
        pytest.param({"size": None}, "size must be at least 1 record", id="no-size"),
        pytest.param({"size": 2**62 + 1}, "at most 2**62", id="too-many"),
        pytest.param(
            {"shard_size": 11},
            "dataset d: shard_size must be at most the dataset's 10 records, got 11",
            id="large-shard",
        ),
        pytest.param({"shard_size": 0}, "dataset d: shard_size must be at least 1, got 0", id="empty-shard"),
        pytest.param({"shard_size": None}, "shard_size must be how many records are leased at a time", id="no-shard"),
        pytest.param({"epochs": 0}, "dataset d: epochs must be at least 1, got 0", id="no-epoch"),
        pytest.param({"seed": -1}, "dataset d: seed must be 0 <= seed < 2**63, got -1", id="seed"),
        pytest.param({"name": ""}, "a dataset needs a name", id="no-name"),
        pytest.param({"partitions": (0,)}, "partitions must be none for a range dataset, got (0,)", id="partitions"),
        pytest.param({"purpose": Purpose.EVALUATION}, "epochs must be None for an evaluation", id="evaluation-epochs"),
    ],
)
def test_a_wrong_bounded_dataset(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput) as refused:
        DatasetSpec(**{"name": "d", "size": 10, "shard_size": 2, **wrong})
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        pytest.param({"size": 10}, "size must be none for a stream", id="size"),
        pytest.param({"partitions": ()}, "partitions must be the first offset", id="no-partition"),
        pytest.param({"partitions": (0, -1)}, "got (0, -1)", id="negative-offset"),
        pytest.param({"shuffle": Shuffle.SAMPLES}, "shuffle must be none for a stream", id="shuffle"),
        pytest.param({"epochs": 2}, "epochs must be 1 for a stream", id="epochs"),
        pytest.param({"drop_last": True}, "drop_last must be False", id="drop-last"),
        pytest.param({"purpose": Purpose.EVALUATION}, "purpose must be training", id="evaluation"),
        pytest.param({"batch": GlobalBatch(micro_batches=1, micro_batch_size=1)}, "batch must be none", id="ordered"),
    ],
)
def test_a_wrong_stream(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput) as refused:
        a_stream(0, **wrong)
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        pytest.param({"shuffle": Shuffle.SHARDS}, "shard_size must be the block that shuffle=shards moves", id="block"),
        pytest.param({"drop_last": True}, "batch must be at most the dataset's 10 records", id="no-step-left"),
        pytest.param({"purpose": Purpose.EVALUATION}, "purpose must be training", id="evaluation"),
    ],
)
def test_a_wrong_ordered_dataset(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput) as refused:
        an_ordered_dataset(10, 4, 3, **wrong)
    assert message in str(refused.value)


def test_wrong_leases_and_batches() -> None:
    with pytest.raises(BadInput, match="lease time must be longer than 0 s, got 0 s"):
        LeaseSettings(time=timedelta(0))
    with pytest.raises(BadInput, match="max_attempts must be at least 1, got 0"):
        LeaseSettings(max_attempts=0)
    with pytest.raises(BadInput, match="micro_batch_size must be at least 1, got 0"):
        GlobalBatch(micro_batches=2, micro_batch_size=0)


@pytest.mark.parametrize("kind", [Kind.RANGE, Kind.TEXT, Kind.TABLE])
def test_records_are_records_of_whatever_kind(kind: Kind) -> None:
    assert a_dataset(10, 2, kind=kind).records == 10


@pytest.mark.parametrize(
    "spec",
    [a_dataset(10, 2, shuffle=Shuffle.SAMPLES), an_ordered_dataset(10, 2, 2), a_stream(5, 7)],
    ids=lambda s: s.kind,
)
def test_a_spec_survives_the_wire(spec: DatasetSpec) -> None:
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(spec), type=DatasetSpec) == spec
