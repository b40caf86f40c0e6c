"""Training that goes on while parameter servers and trainers come, go and die: real processes, real TensorFlow.

The coordinator is small (`driver`); the words, the ledger and everything in the trainers are the real ones.
"""

import functools
import json
import re
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.tensorflow.driver import Ended, Job, Work
from tests.tensorflow.managed import ManagedJob
from tests.tensorflow.nodes import in_worker

from shoal.core import ledger as ledgers
from shoal.core.nodes import Role
from shoal.core.ps import manager
from shoal.core.ps.cluster import ThroughCheckpoint
from shoal.core.ps.values import PSSettings
from shoal.core.ps.words import Drained, Resumed, SavedPS, SaveFailed, SaveWanted, ServerUnreachable

pytestmark = pytest.mark.tensorflow

SIZE = 3200
BATCH = 16


def model() -> Any:
    from tests.tensorflow.models import a_model

    return a_model()


def load(gate: Path, records: Sequence[int]) -> Any:
    """Slowly while the gate is closed, so that there is something left to train when servers change."""
    from tests.tensorflow.models import a_batch

    if gate.exists():
        time.sleep(1.0)
    return a_batch(records[0], size=len(records))


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    path = tmp_path / "closed"
    path.touch()
    return path


@pytest.fixture
def a_job(gate: Path) -> Iterator[Callable[..., Job]]:
    jobs = []

    def make(directory: Path | None = None, *, size: int = SIZE, **how: Any) -> Job:
        work = Work(
            model=model,
            load=functools.partial(load, gate),
            size=size,
            shard_size=160,
            batch_size=BATCH,
            parts=3,
            **how,
        )
        jobs.append(Job(work, directory))
        return jobs[-1]

    yield make
    for job in jobs:
        job.end()


def is_counted_right(job: Job) -> bool:
    """No step is lost, none done twice. A worker reads the count before its step, and may miss one of each other's."""
    workers = 3
    return SIZE // BATCH - workers <= max(step.step for step in job.steps()) <= SIZE // BATCH - 1


def test_servers_and_trainers_come_and_go_and_every_record_is_trained_once(
    a_job: Callable[..., Job], gate: Path
) -> None:
    job = a_job()
    job.add_servers(0, 1)
    job.begin("worker-0", "worker-1")  # on both
    job.add_servers(5)
    more, _ = job.change(0, 1, 5)
    job.try_in_vain(0)
    job.join("worker-2")
    fewer, pause = job.change(1, 5)
    job.servers.pop(0).kill()
    job.wait_for_steps()
    gate.unlink()
    job.wait_for_the_end()
    print(pause)

    assert ledgers.is_complete(job.ledger)
    assert len(job.steps()) == SIZE // BATCH
    assert is_counted_right(job)
    assert more.nbytes == fewer.nbytes
    assert more.checksum != fewer.checksum  # there was training between them


def test_a_lost_server_takes_model_and_ledger_back_together(
    a_job: Callable[..., Job], gate: Path, tmp_path: Path
) -> None:
    job = a_job(directory=tmp_path / "closed")
    job.add_servers(0, 1, 2)
    servers = {task: job.servers.pop(task) for task in (2,)}
    job.begin("worker-0", "worker-1")
    refused = job.save()
    assert isinstance(refused, SaveFailed)
    assert "cannot write there" in refused.reason

    job.directory = tmp_path / "checkpoints"
    job.wait_for_steps()
    saved = job.save()
    assert isinstance(saved, SavedPS)
    job.wait_for_steps(count=2)

    job.servers.pop(1).kill()
    lost = job.wait(ServerUnreachable, "worker-0")
    assert lost.rank == 1
    before = max(step.step for step in job.steps())
    job.servers.update(servers)
    since = len(job.heard)
    job.recover(0, 2)
    job.wait_for_steps(since)
    again = [word.step for _, _, word in job.heard[since:] if hasattr(word, "loss")]
    assert saved.checkpoint.step <= min(again) < before

    gate.unlink()
    full = tmp_path / "full"
    full.touch()
    job.wait_for_the_end(unwritable=full)
    assert ledgers.is_complete(job.ledger)
    assert is_counted_right(job)
    assert job.checkpoints[-1].step == SIZE // BATCH, "the chief has tried again"


def test_nobody_stands_still_for_a_fuzzy_checkpoint_and_its_manifest_says_what_it_is(
    a_job: Callable[..., Job], gate: Path, tmp_path: Path
) -> None:
    job = a_job(tmp_path / "checkpoints", size=640, checkpoint_seconds=0.1, fuzzy=True)
    job.add_servers(0, 1)
    spare = {1: job.servers.pop(1)}
    job.begin("worker-0", "worker-1")
    assert job.wait(SaveWanted, "worker-0").fuzzy
    since = len(job.heard)
    saved = job.save(fuzzy=True)
    job.wait_for_steps()
    assert isinstance(saved, SavedPS)
    assert saved.checkpoint.fuzzy
    assert not any(isinstance(word, Drained | Resumed) for _, _, word in job.heard[since:])
    assert json.loads((Path(saved.checkpoint.path) / "manifest.json").read_text())["fuzzy"] is True

    job.servers.pop(0).kill()
    job.wait(ServerUnreachable, "worker-0")
    job.servers.update(spare)
    job.recover(1)
    gate.unlink()
    job.wait(Ended, "worker-1")
    del job.trainers["worker-1"]
    job.wait_for(SaveWanted(reason="end"), "worker-0")
    assert isinstance(job.save(fuzzy=True), SavedPS)  # one that was asked for before is not the last
    last = job.save()
    assert isinstance(last, SavedPS)
    assert not last.checkpoint.fuzzy, "the finished model is whole"
    assert job.wait(Ended, "worker-0") == Ended()
    assert ledgers.is_complete(job.ledger)
    assert len(job.steps()) >= 640 // BATCH


def test_a_chief_that_cannot_save_the_finished_model_tries_again_and_then_says_where_and_why(
    a_job: Callable[..., Job], gate: Path, tmp_path: Path
) -> None:
    gate.unlink()
    full = tmp_path / "full"
    full.touch()
    job = a_job(directory=full, size=320, patience=1.0)
    job.add_servers(0)
    job.begin("worker-0")
    tries = 0
    while not any(isinstance(word, Ended) for _, _, word in job.heard):
        word = job.wait((SaveWanted, Ended), "worker-0", count=tries + 1)
        if isinstance(word, SaveWanted):
            tries += 1
            assert isinstance(job.save(), SaveFailed)
    error = job.wait(Ended, "worker-0").error
    assert tries > 1
    assert f"tried {tries} times" in error
    assert str(full) in error
    assert "Not a directory" in error


@pytest.mark.slow
def test_a_change_goes_through_a_checkpoint_when_a_copy_does_not_work(
    a_job: Callable[..., Job], gate: Path, tmp_path: Path
) -> None:
    job = a_job()
    job.add_servers(0, 1)
    job.begin("worker-0")
    assert job.cluster is not None
    transfer = ThroughCheckpoint(job.cluster.version, str(tmp_path / "transfer"))
    saved, _ = job.change(0, transfer=transfer)
    assert not (tmp_path / "transfer").exists(), "it has served its purpose"
    copied, _ = job.change(0, 1)
    assert saved.nbytes == copied.nbytes
    gate.unlink()
    job.wait_for_the_end()
    assert is_counted_right(job)


@pytest.mark.slow
def test_the_masters_own_manager_drives_it_all(gate: Path, tmp_path: Path) -> None:
    work = Work(model=model, load=functools.partial(load, gate), size=SIZE, shard_size=160, batch_size=BATCH, parts=3)
    directory = tmp_path / "checkpoints"
    job = ManagedJob(work, directory)
    try:
        job.start(PSSettings(max_servers=3, checkpoint_dir=str(directory)), "worker-0", "worker-1", servers=1)
        job.wait_for_steps(0)
        job.resize(2, "more servers")
        job.wait_for_steps()
        job.resize(1, "fewer servers")
        assert job.manager.chief is not None
        job.happens(manager.heard, job.manager.chief, 1, Role.WORKER, SaveWanted(reason="test"))
        job.wait_until(lambda m: bool(m.checkpoints))
        job.wait_for_steps()
        lost = job.kill_server()
        job.wait_until(lambda m: m.change is None and m.current is not None and lost not in m.current.nodes)
        job.wait_for_steps()
        gate.unlink()
        for node in ("worker-1", "worker-0"):
            job.wait(Ended, node)
    finally:
        job.end()
        print(*job.said, sep="\n")
    assert ledgers.is_complete(job.ledger)
    assert is_counted_right(job)
    assert job.checkpoints[-1].step == SIZE // BATCH


def test_the_example_learns_when_it_trains_alone() -> None:
    told = in_worker("the_example", ["--records", "25600", "--batch-size", "128"])
    found = re.search(r"(\d+) steps: loss (\S+); always saying the mean: (\S+)", told)
    assert found is not None, told
    assert int(found[1]) == 200
    assert float(found[2]) < float(found[3])
