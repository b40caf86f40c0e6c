"""Real workers that only read: every record is trained, and counted once, whoever dies."""

import asyncio
import contextlib
import os
import random
import signal
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.data.audit import last_state, missing, surplus, trained
from tests.e2e.harness import JobRun, shoal_run

from shoal.core import ledger as ledgers

SCRIPT = Path(__file__).with_name("train_shards.py")
STREAM = Path(__file__).with_name("train_stream.py")


def arguments(tmp_path: Path, *more: object) -> tuple[str, ...]:
    (tmp_path / "records").mkdir()
    return ("--log", str(tmp_path / "records"), *map(str, more))


def workers(tmp_path: Path) -> list[int]:
    """Pids of live workers that have begun to train."""
    pids = [int(path.stem) for path in (tmp_path / "records").glob("*.log") if path.stat().st_size]
    return [pid for pid in pids if _lives(pid)]


def _lives(pid: int) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


def kill(pid: int) -> bool:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
        return True
    return False


async def some_workers(run: JobRun, tmp_path: Path) -> list[int]:
    while not (pids := workers(tmp_path)):
        assert run.process.returncode is None, run.output
        await asyncio.sleep(0.02)
    return pids


async def test_several_datasets_are_trained_by_all_workers_once(tmp_path: Path) -> None:
    args = arguments(tmp_path, "--epochs", 2, "--evaluate", 2)
    async with shoal_run(tmp_path, "--nnodes", "2", "--nproc-per-node", "2", script=SCRIPT, script_args=args) as run:
        assert await run.ended() == 0, run.output
    counts = trained(tmp_path / "records")
    assert missing(counts, "train", epochs=range(2), size=1000) == []
    assert missing(counts, "eval", epochs=range(2), size=100) == []
    assert surplus(counts) == 0


async def kills(run: JobRun, tmp_path: Path, seed: int, whom: Iterable[str]) -> int:
    """Kill these, one after the other, chosen by the seed. Returns how many workers died of it."""
    chance, dead = random.Random(seed), 0
    for kind in whom:
        alive = await some_workers(run, tmp_path)
        state = await run.state()
        match kind:
            case "worker":
                dead += kill(chance.choice(sorted(alive)))
            case "agent":
                agents = [n for n in (state or {"nodes": []})["nodes"] if n["status"] == "running" and n["pid"]]
                if agents:
                    node = chance.choice(agents)
                    dead += max(1, len(node["processes"])) if kill(node["pid"]) else 0
            case "master":
                lock = run.home / "jobs" / run.name / "state" / "lock"
                with contextlib.suppress(OSError, ValueError):
                    kill(int(lock.read_text()))
        await asyncio.sleep(chance.uniform(0.1, 0.6))
    return dead


async def audit(tmp_path: Path, *, seed: int, whom: list[str], epochs: int, size: int, seconds: float) -> None:
    args = arguments(tmp_path, "--size", size, "--epochs", epochs, "--seconds", seconds, "--shard", 20)
    flags = ("--nnodes", "1:3", "--agents", "3", "--max-restarts", "1000")
    async with shoal_run(tmp_path, *flags, script=SCRIPT, script_args=args) as run:
        dead = await kills(run, tmp_path, seed, whom)
        assert await run.ended() == 0, run.output
        job = await last_state(run)
    counts = trained(tmp_path / "records")
    account = ledgers.account_of(job.ledger, "train")
    assert ledgers.is_complete(job.ledger)
    assert (account.epoch, account.done, account.line) == (epochs - 1, (((0, size),),), size)
    assert missing(counts, "train", epochs=range(epochs), size=size) == []
    assert set(counts) == {("train", e, r) for e in range(epochs) for r in range(size)}
    assert surplus(counts) <= dead * 20, f"seed {seed}: {surplus(counts)} records again for {dead} dead workers"


async def test_every_record_is_counted_once_whoever_is_killed(tmp_path: Path) -> None:
    whom = ["worker", "master", "agent", "worker", "worker", "agent"]
    await audit(tmp_path, seed=1, whom=whom, epochs=2, size=600, seconds=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [2])
async def test_thirty_kills_and_every_record_is_counted_once(tmp_path: Path, seed: int) -> None:
    whom = random.Random(seed).choices(["worker", "agent", "master"], weights=[6, 2, 2], k=32)
    await audit(tmp_path, seed=seed, whom=whom, epochs=3, size=3000, seconds=0.01)


async def test_a_shard_that_kills_whoever_trains_it_ends_the_job_by_name(tmp_path: Path) -> None:
    args = arguments(tmp_path, "--poison", 500, "--seconds", 0.001)
    async with shoal_run(tmp_path, "--nnodes", "2", "--max-restarts", "20", script=SCRIPT, script_args=args) as run:
        assert await run.ended() == 1, run.output
    assert "dataset train: poisoned at shard" in run.output
    assert "3 attempts failed" in run.output


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        pytest.param(("--size", "0", "--shard", "1"), "dataset train: size must be at least 1 record", id="empty"),
        pytest.param(("--size", "-5", "--shard", "1"), "got -5", id="negative"),
        pytest.param(  # slow enough for both to be there
            ("--contradict", "--seconds", "0.02"), "dataset train is registered already, now with", id="contradicting"
        ),
        pytest.param(
            ("--size", "10", "--shard", "11"), "shard_size must be at most the dataset's 10 records", id="big"
        ),
    ],
)
async def test_a_dataset_that_cannot_be_ends_the_job_at_once_and_says_why(
    tmp_path: Path, wrong: tuple[str, ...], said: str
) -> None:
    args = arguments(tmp_path, *wrong)
    async with shoal_run(tmp_path, "--nnodes", "2", script=SCRIPT, script_args=args) as run:
        assert await run.ended() == 1, run.output
    assert said in run.output
    assert "76" in run.output
    assert "restart" not in run.output.replace("asked not to be restarted", "")


async def test_a_stream_that_grows_is_trained_to_its_end_though_a_worker_and_the_master_are_killed(
    tmp_path: Path,
) -> None:
    extents = tmp_path / "extents"
    extents.write_text("0 45\n1 120\n")
    args = arguments(tmp_path, "--extents", extents)

    def trained_so_far(count: int) -> Callable[[dict[str, Any]], bool]:
        return lambda s: bool(s["data"]) and s["data"][0]["done"] == count

    async with shoal_run(tmp_path, "--nnodes", "2", script=STREAM, script_args=args) as run:
        await run.wait_for("whole shards of what is there", trained_so_far(40 + 20))
        extents.write_text("0 85\n1 190\n")
        await run.wait_for("what has grown", lambda s: s["data"][0]["done"] > 60)
        kill(workers(tmp_path)[0])
        await run.wait_for("what has grown, without its killed worker", trained_so_far(80 + 90))
        kill(int((run.home / "jobs" / run.name / "state" / "lock").read_text()))
        extents.write_text("0 92 closed\n1 190 closed\n")
        assert await run.ended() == 0, run.output
        job = await last_state(run)
    counts = trained(tmp_path / "records")
    assert set(counts) == {
        ("clicks", p, o) for p, (first, end) in enumerate([(0, 92), (100, 190)]) for o in range(first, end)
    }
    assert surplus(counts) <= 20  # what the killed worker held
    assert ledgers.account_of(job.ledger, "clicks").done == (((0, 92),), ((100, 190),))
    assert ledgers.is_complete(job.ledger)


async def test_a_worker_that_stands_still_loses_its_shard_and_its_late_report_is_refused(tmp_path: Path) -> None:
    args = arguments(tmp_path, "--size", 400, "--seconds", 0.01, "--lease", 1.0)
    async with shoal_run(tmp_path, "--nnodes", "2", script=SCRIPT, script_args=args) as run:
        while len(pids := workers(tmp_path)) < 2:
            await asyncio.sleep(0.02)
        os.kill(pids[0], signal.SIGSTOP)
        await run.wait_for("the end of the data", lambda s: s["data"] and s["data"][0]["done"] == 400)
        os.kill(pids[0], signal.SIGCONT)
        assert await run.ended() == 0, run.output
    counts = trained(tmp_path / "records")
    assert missing(counts, "train", epochs=[0], size=400) == []
    assert surplus(counts) <= 2 * 20
