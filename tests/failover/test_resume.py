"""All of a job is killed at once, as when the machine goes down; `shoal run --resume` goes on with it."""

import asyncio
import contextlib
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.data.audit import last_state, missing, surplus, trained
from tests.e2e.harness import PATIENCE, JobRun, environment, family, nobody_left, shoal_run, shoal_run_words

from shoal.checkpoint import manifests
from shoal.checkpoint.folder import LocalFolder
from shoal.core import ledger as ledgers

SHARDS = Path(__file__).parents[1] / "data" / "train_shards.py"
ORDERED = Path(__file__).with_name("train_resumable.py")
STAY = "import time\nprint('up', flush=True)\ntime.sleep(600)\n"


async def power_cut(run: JobRun) -> None:
    """Everything of the job dies without a word: `shoal run`, masters, agents, guards, training processes."""
    victims = family(str(run.home))
    assert any(process.pid == run.process.pid for process in victims)
    for process in victims:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
    assert await run.ended() == -signal.SIGKILL
    await nobody_left(run.home)


async def shoal(home: Path, *words: str) -> tuple[int, str]:
    """`shoal …` to its end: exit code, and what it said."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "shoal", *words, env=environment(home), stdout=-1, stderr=asyncio.subprocess.STDOUT
    )
    async with asyncio.timeout(PATIENCE):
        out, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode()


async def until(what: str, holds: Any, run: JobRun) -> None:
    try:
        async with asyncio.timeout(PATIENCE):
            while not holds():
                assert run.process.returncode is None, f"the run ended before {what}\n{run.output}"
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise AssertionError(f"waited in vain for {what}\n{run.output}") from None


# Data without a model ------------------------------------------------------------------------------------


async def test_data_goes_on_where_the_journal_stands_and_each_record_counts_once(tmp_path: Path) -> None:
    records = tmp_path / "records"
    records.mkdir()
    args = ("--log", str(records), "--size", "300", "--seconds", "0.02")
    async with shoal_run(tmp_path, "--nnodes", "2", script=SHARDS, script_args=args) as run:
        await run.wait_for("some records", lambda s: bool(s["data"]) and s["data"][0]["done"] >= 60)
        await power_cut(run)
        _, said = await shoal(run.home, "ps")
        assert "job job was lost with its process; go on with it: shoal run --resume job" in said
        code, said = await shoal(run.home, "why", "job")
        assert (code, "go on with it: shoal run --resume job" in said) == (1, True)
        before = await last_state(run)
    done = ledgers.account_of(before.ledger, "train").count
    async with shoal_run_words(tmp_path, "--resume", "job") as run:
        assert await run.ended() == 0, run.output
        assert f"resumes the job (it was lost; train: epoch 0, {done} of 300 records trained)" in run.output
        job = await last_state(run)
    assert ledgers.is_complete(job.ledger)
    assert ledgers.account_of(job.ledger, "train").count == 300
    counts = trained(records)
    assert missing(counts, "train", epochs=range(1), size=300) == []
    assert 0 < done <= sum(counts.values()) - surplus(counts)
    assert surplus(counts) <= 2 * 20, "no more than what the two killed workers had not reported"
    code, said = await shoal(run.home, "run", "--resume", "job")
    assert code == 2
    assert "--resume: job job succeeded at" in said
    assert "there is nothing left to do" in said


async def test_another_dataset_is_refused_and_the_right_one_goes_on_after_that(tmp_path: Path) -> None:
    records = tmp_path / "records"
    records.mkdir()
    args = ("--log", str(records), "--seconds", "0.02")
    async with shoal_run(tmp_path, "--nnodes", "1", script=SHARDS, script_args=(*args, "--size", "200")) as run:
        await run.wait_for("some records", lambda s: bool(s["data"]) and s["data"][0]["done"] >= 40)
        await power_cut(run)
    other = (str(SHARDS), *args, "--size", "500")
    async with shoal_run_words(tmp_path, "--resume", "job", *other) as run:
        assert await run.ended() == 1, run.output
    assert "resumed with another command: " in run.output
    assert "dataset train is not the one that this job has trained so far: size 500 instead of 200" in run.output
    assert "to go on from there: shoal run --resume job" in run.output
    same = (str(SHARDS), *args, "--size", "200")
    async with shoal_run_words(tmp_path, "--resume", "job", "--nnodes", "2", *same) as run:
        assert await run.ended() == 0, run.output
        job = await last_state(run)
    assert ledgers.account_of(job.ledger, "train").count == 200
    counts = trained(records)
    assert missing(counts, "train", epochs=range(1), size=200) == []
    assert surplus(counts) <= 20
    assert job.resumed == 2


# A model in a fixed order --------------------------------------------------------------------------------


def written(folder: Path, suffix: str) -> dict[tuple[int, ...], set[tuple[str, ...]]]:
    """The first words of each line → what else was written with them."""
    keys = 2 if suffix == "log" else 1
    found: dict[tuple[int, ...], set[tuple[str, ...]]] = {}
    for path in folder.glob(f"*.{suffix}"):
        for line in path.read_text().splitlines(keepends=True):
            if line.endswith("\n"):
                words = line.split()
                found.setdefault(tuple(map(int, words[:keys])), set()).add(tuple(words[keys:]))
    return found


async def undisturbed(tmp_path: Path) -> Path:
    """What a process by itself computes that nothing happens to."""
    folder = tmp_path / "undisturbed"
    folder.mkdir()
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(ORDERED), "--log", str(folder), env=environment(tmp_path)
    )
    assert await process.wait() == 0
    return folder


def saved_steps(directory: Path) -> list[int]:
    def fail(exc: manifests.Damaged) -> None:
        raise AssertionError(str(exc))

    return [each.step for each in manifests.scan(LocalFolder(directory), damaged=fail)]


async def killed(tmp_path: Path) -> tuple[str, ...]:
    """A job of two workers that was killed at step 14, with the last save at 12. Returns its script's arguments."""
    folder, kept = tmp_path / "killed", tmp_path / "kept"
    folder.mkdir()
    args = ("--log", str(folder), "--hold-at", "14", "--release", str(tmp_path / "go"))
    flags = ("--nnodes", "1:2", "--checkpoint-dir", str(kept))
    async with shoal_run(tmp_path, *flags, script=ORDERED, script_args=args) as run:
        await until("both to stand", lambda: len(list(folder.glob("held-*"))) == 2, run)
        await until("the disk", lambda: saved_steps(kept)[:1] == [12], run)
        await power_cut(run)
    (tmp_path / "go").touch()
    return args


@pytest.mark.torch
async def test_a_model_goes_on_from_its_last_checkpoint_in_the_same_order(tmp_path: Path) -> None:
    await killed(tmp_path)
    async with shoal_run_words(tmp_path, "--resume", "job") as run:
        assert await run.ended() == 0, run.output
        job = await last_state(run)
    assert f"restored step 12 from {tmp_path / 'kept'}" in run.output
    assert ledgers.is_complete(job.ledger)
    assert ledgers.account_of(job.ledger, "train").count == 120
    assert_like_the_undisturbed(tmp_path / "killed", await undisturbed(tmp_path))


def assert_like_the_undisturbed(folder: Path, wanted: Path) -> None:
    assert written(folder, "log") == written(wanted, "log"), "the records of each micro-batch, also of those done again"
    losses, before = written(folder, "steps"), written(wanted, "steps")
    assert len(before) == 20
    assert losses.keys() == before.keys()
    for step, values in losses.items():
        (right,) = (float(value) for (value,) in before[step])
        assert max(abs(float(value) - right) for (value,) in values) < 1e-9


@pytest.mark.torch
@pytest.mark.slow
async def test_another_global_batch_or_model_is_refused_and_costs_nothing(tmp_path: Path) -> None:
    args = await killed(tmp_path)
    wrong = {
        ("--micro-batches", "2"): "was trained with micro_batches=4, micro_batch_size=3, seed=3, this script has",
        ("--wide",): "is of another model: it has parameter",
    }
    for more, complaint in wrong.items():
        async with shoal_run_words(tmp_path, "--resume", "job", str(ORDERED), *args, *more) as run:
            assert await run.ended() == 1, run.output
        assert complaint in run.output
    async with shoal_run_words(tmp_path, "--resume", "job") as run:
        assert await run.ended() == 0, run.output
    assert f"restored step 12 from {tmp_path / 'kept'}" in run.output
    assert_like_the_undisturbed(tmp_path / "killed", await undisturbed(tmp_path))


# What cannot be resumed ----------------------------------------------------------------------------------


async def a_lost_job(tmp_path: Path) -> Path:
    """Its directory."""
    script = tmp_path / "stay.py"
    script.write_text(STAY)
    async with shoal_run(tmp_path, "--nnodes", "1", script=script) as run:
        await run.wait_for("a world", lambda state: state["generation"] == 1)
        code, said = await shoal(run.home, "run", "--resume", "job")
        assert (code, "--resume: job job is running (process" in said) == (2, True)
        await power_cut(run)
    return run.home / "jobs" / "job"


async def test_a_state_that_cannot_be_used_is_named_and_left_as_it_is(tmp_path: Path) -> None:
    job = await a_lost_job(tmp_path)
    journal = job / "state" / "journal"
    good, home = journal.read_bytes(), tmp_path / "home"

    journal.write_bytes(good.replace(b"shoal journal 1\n", b"shoal journal 2\n", 1))
    newer = journal.read_bytes()
    code, said = await shoal(home, "run", "--resume", "job")
    assert code == 2
    assert f"job job cannot be resumed: {journal} cannot be used: it has version 2, this release reads 1" in said
    assert journal.read_bytes() == newer
    assert json.loads((job / "job.json").read_text())["result"] is None, "it is lost as before, nobody ended it"

    journal.write_bytes(good)
    holder = await hold(job / "state" / "lock")
    try:
        code, said = await shoal(home, "run", "--resume", "job")
    finally:
        holder.kill()
        await holder.wait()
    assert code == 2
    assert f"job job cannot be resumed: {job / 'state'} is in use by the master with process id" in said

    journal.rename(tmp_path / "away")
    code, said = await shoal(home, "run", "--resume", "job")
    assert (code, f"job job has no state in {job / 'state'}" in said) == (2, True)
    code, said = await shoal(home, "run", "--resume", "jib")
    assert (code, "no job named jib on this machine; none can be resumed" in said) == (2, True)
    _, said = await shoal(home, "ps")
    assert "job job was lost with its process, and there is nothing to resume" in said

    (tmp_path / "away").rename(journal)
    async with shoal_run_words(tmp_path, "--resume", "job") as run:
        await run.wait_for("a world", lambda state: state["generation"] == 2)
        run.process.send_signal(signal.SIGINT)
        assert await run.ended() == 130


async def hold(lock: Path) -> asyncio.subprocess.Process:
    """Somebody whom this machine's process table does not show as the job's: a container with the same home, say."""
    code = (
        f"import fcntl, time; f = open({str(lock)!r}, 'a'); fcntl.flock(f, 2); print('up', flush=True); time.sleep(99)"
    )
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdout=-1)
    assert process.stdout is not None
    await process.stdout.readline()
    return process
