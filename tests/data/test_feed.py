"""Shards and feeds of a process that trains alone: what is handed out, what counts, and what is refused."""

import threading
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import shoal.trainer
from shoal.core.errors import BadInput
from shoal.trainer import tfdata
from shoal.trainer.feed import Feed


def a_job(size: int = 40, shard: int = 7, **more: Any) -> shoal.trainer.Job:
    job = shoal.trainer.join({})
    job.dataset("train", size=size, shard_size=shard, **more)
    return job


@given(
    size=st.integers(1, 60),
    shard=st.integers(1, 9),
    epochs=st.integers(1, 3),
    batch=st.integers(1, 12),
    ahead=st.integers(1, 4),
    prefetch=st.integers(1, 4),
)
def test_a_pipeline_that_reads_ahead_trains_every_record_once(
    size: int, shard: int, epochs: int, batch: int, ahead: int, prefetch: int
) -> None:
    job = a_job(size, min(shard, size), epochs=epochs, shuffle="samples")
    feed, seen = Feed(job.data, "train", prefetch=prefetch), Counter[int]()
    while feed.refill():
        waiting: list[list[int]] = []
        records = feed.records()
        while True:
            taken = [record for _, record in zip(range(batch), records, strict=False)]
            if taken:
                waiting.append(taken)
            if waiting and (len(waiting) > ahead or not taken):
                trained = waiting.pop(0)
                seen.update(trained)
                feed.trained(len(trained))
            elif not taken:
                break
    assert seen == Counter(dict.fromkeys(range(size), epochs))


def test_more_cannot_be_trained_than_was_handed_out() -> None:
    feed = Feed(a_job().data, "train")
    assert feed.refill()
    next(feed.records())
    with pytest.raises(ValueError, match="2 records are said to be trained, 1 are out"):
        feed.trained(2)


def test_a_shard_that_is_left_is_gone_on_with() -> None:
    job, seen = a_job(), []
    for shard in job.shards("train"):
        for record in shard:
            seen.append(record)
            if record == 9:
                break
        if seen[-1] == 9:
            break
    seen.pop()  # the loop did not come back for the next one, so this one does not count
    seen += [record for shard in job.shards("train") for record in shard]
    assert seen == list(range(40))


def test_half_a_shard_is_not_passed_over_in_silence() -> None:
    shards = a_job().shards("train")
    next(iter(next(shards)))
    with pytest.raises(RuntimeError, match="0 of 7 trained>, and the next one is asked for"):
        next(shards)


def test_evaluation_rounds_are_asked_for_by_number_beside_training() -> None:
    job = a_job()
    job.dataset("eval", size=5, shard_size=2, evaluation=True)
    for number in range(2):
        assert [record for shard in job.shards("eval", epoch=number) for record in shard] == list(range(5))
        assert len([record for shard in [next(job.shards("train"))] for record in shard]) == 7


@pytest.mark.parametrize(
    ("words", "said"),
    [
        pytest.param({"size": 0, "shard_size": 1}, "size must be at least 1 record", id="empty"),
        pytest.param({"size": -3, "shard_size": 1}, "got -3", id="negative"),
        pytest.param({"size": 5, "shard_size": 6}, "at most the dataset's 5 records, got 6", id="shard-too-large"),
        pytest.param({"size": 5}, "how many records are leased at a time", id="no-shard-size"),
        pytest.param({"size": 5, "shard_size": 2, "shuffle": "a lot"}, "shuffle must be one of", id="shuffle"),
        pytest.param({"size": 5, "shard_size": 2, "kind": "tree"}, "kind must be one of", id="kind"),
        pytest.param({"size": 5, "shard_size": 2, "lease_seconds": 0}, "longer than 0 s", id="lease"),
    ],
)
def test_a_dataset_that_cannot_be_is_refused_in_words(words: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        shoal.trainer.join({}).dataset("train", **words)


def test_other_words_about_the_same_dataset_are_refused() -> None:
    job = a_job()
    job.dataset("train", size=40, shard_size=7)
    with pytest.raises(BadInput, match="registered already, now with size 41 instead of 40"):
        job.dataset("train", size=41, shard_size=7)


def test_after_a_restore_the_data_goes_on_where_the_model_was_saved() -> None:
    job = a_job(epochs=2, shuffle="samples")
    seen: list[int] = []
    saved, at, restored = b"", 0, False
    for shard in job.shards("train"):
        for record in shard:
            seen.append(record)
        if len(seen) == 21 and not restored:
            saved, at = job.checkpoint(), 21
        if len(seen) == 35 and not restored:
            job.restore(saved)
            del seen[at:]  # what the model has not seen, now that it is the one of then
            restored = True
    assert Counter(seen) == Counter(dict.fromkeys(range(40), 2))


def test_a_checkpoint_of_other_data_is_refused() -> None:
    saved = a_job().checkpoint()
    with pytest.raises(BadInput, match="dataset train is not the one of the checkpoint: size 41 instead of 40"):
        a_job(41).restore(saved)
    with pytest.raises(BadInput, match="no checkpoint of a ledger"):
        a_job().restore(b"nothing")


def test_an_unknown_dataset_is_named() -> None:
    with pytest.raises(BadInput, match="dataset test is not registered; registered: train"):
        next(a_job().shards("test"))


def test_a_source_for_tensorflow_is_a_generator_without_it() -> None:
    source = tfdata.Source(a_job(10, 5).data, "train")
    seen = []
    while source.refill():
        for record in source.records():
            seen.append(record)
            source.trained(1)
    assert seen == list(range(10))


# Streams -------------------------------------------------------------------------------------------------------


def a_stream() -> tuple[shoal.trainer.Job, Any]:
    job = shoal.trainer.join({})
    return job, job.dataset("clicks", kind="stream", partitions=(0, 50), shard_size=10)


def test_a_loop_over_a_stream_waits_for_it_to_grow_and_ends_where_it_is_closed() -> None:
    _, clicks = a_stream()
    clicks.grow(0, 15)
    clicks.close(1, 50)
    seen: list[int] = []

    def train() -> None:
        for shard in clicks.shards():
            seen.extend(shard)

    loop = threading.Thread(target=train)
    loop.start()
    clicks.grow(0, 30)
    clicks.close(0, 34)
    clicks.close(0, 34)
    loop.join(30)
    assert not loop.is_alive()
    assert seen == list(range(34))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        pytest.param((2, 10), r"partition must be in 0\.\.1, got 2", id="no-partition"),
        pytest.param((1, 49), "partition 1 begins at 50 and cannot end at 49", id="before-its-beginning"),
    ],
)
def test_words_about_what_is_no_part_of_a_stream_are_refused_at_once(words: tuple[int, int], said: str) -> None:
    _, clicks = a_stream()
    with pytest.raises(BadInput, match=said):
        clicks.grow(*words)
    with pytest.raises(BadInput, match=said):
        clicks.close(*words)


def test_only_a_stream_grows() -> None:
    job = a_job()
    with pytest.raises(BadInput, match="dataset train: only a stream grows or is closed, this is a range dataset"):
        job.grow("train", 0, 50)
    with pytest.raises(BadInput, match="dataset nothing is not registered; registered: train"):
        job.close("nothing", 0, 50)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        pytest.param({"size": 0, "shard_size": 1}, "size must be at least 1 record", id="empty"),
        pytest.param({"size": -1, "shard_size": 1}, "size must be at least 1 record", id="negative"),
        pytest.param({"size": 5, "shard_size": 6}, "shard_size must be at most the dataset's 5 records", id="large"),
        pytest.param({"size": 5, "shard_size": -1}, "shard_size must be at least 1, got -1", id="no-shard"),
        pytest.param({"kind": "stream", "shard_size": 1}, "partitions must be the first offset", id="no-partitions"),
    ],
)
def test_a_dataset_that_cannot_be_is_refused_at_the_call(words: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        shoal.trainer.join({}).dataset("train", **words)
