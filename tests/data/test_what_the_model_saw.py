"""Real elastic jobs whose model remembers every record: it has seen what the ledger says, whatever was killed."""

import asyncio
import contextlib
import json
import os
import random
import signal
from pathlib import Path

import pytest
from tests.data.audit import last_state
from tests.e2e.harness import JobRun, shoal_run

from shoal.core import ledger as ledgers

pytestmark = pytest.mark.torch

SCRIPT = Path(__file__).with_name("train_counting.py")


def arguments(out: Path, *more: object) -> tuple[str, ...]:
    out.mkdir(exist_ok=True)
    return ("--out", str(out), *map(str, more))


async def audit(run: JobRun, out: Path, *, size: int, epochs: int) -> None:
    """Every worker's model has every record once an epoch; so has the ledger."""
    models = [json.loads(path.read_text()) for path in out.glob("*.json")]
    assert models
    for seen in models:
        assert seen == pytest.approx([epochs] * size, abs=1e-9), run.output
    job = await last_state(run)
    account = ledgers.account_of(job.ledger, "train")
    assert (account.epoch, account.done) == (epochs - 1, (((0, size),),))
    assert ledgers.is_complete(job.ledger)


def kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


async def held(run: JobRun, out: Path, count: int) -> list[int]:
    """The processes that stand at `--hold-at`, when there are so many."""
    while len(pids := [int(path.name.removeprefix("held-")) for path in out.glob("held-*")]) < count:
        assert run.process.returncode is None, run.output
        await asyncio.sleep(0.02)
    return pids


@pytest.mark.parametrize("mode", ["sharded", pytest.param("ordered", marks=pytest.mark.slow)])
async def test_after_a_rollback_the_model_has_seen_what_the_ledger_says(tmp_path: Path, mode: str) -> None:
    """All processes are killed three steps after the last save: the data goes back with the model, to the record."""
    out = tmp_path / "out"
    args = arguments(out, "--mode", mode, "--save-every", 5, "--hold-at", 13)
    async with shoal_run(tmp_path, "--nnodes", "2", script=SCRIPT, script_args=args) as run:
        pids = await held(run, out, 2)
        await run.wait_for("the ledger to be where the model is", lambda s: s["data"] and s["data"][0]["done"] > 100)
        (out / "go").touch()
        for pid in pids:
            kill(pid)
        assert await run.ended() == 0, run.output
        assert "restored step 10 from the agent's memory" in run.output
        await audit(run, out, size=200, epochs=2)


@pytest.mark.slow
async def test_a_job_of_another_size_goes_on_from_the_directory_with_the_data_where_the_model_is(
    tmp_path: Path,
) -> None:
    out, folder = tmp_path / "out", tmp_path / "kept"
    where = ("--checkpoint-dir", str(folder))
    args = arguments(out, "--save-every", 7, "--hold-at", 17)
    async with shoal_run(tmp_path, "--nnodes", "1", *where, script=SCRIPT, script_args=args, name="first") as run:
        await held(run, out, 1)
        while not (folder / "step-000000000014.json").exists():
            await asyncio.sleep(0.02)
    (out / "go").touch()
    async with shoal_run(tmp_path, "--nnodes", "3", *where, script=SCRIPT, script_args=args, name="second") as run:
        assert await run.ended() == 0, run.output
        assert "restored step 14 from" in run.output
        await audit(run, out, size=200, epochs=2)


async def survive(tmp_path: Path, seed: int, whom: list[str], *, size: int, epochs: int) -> None:
    out, chance = tmp_path / "out", random.Random(seed)
    args = arguments(out, "--size", size, "--epochs", epochs, "--pace", 0.03, "--save-every", 4)
    flags = ("--nnodes", "1:3", "--agents", "3", "--max-restarts", "1000", "--checkpoint-dir", str(tmp_path / "kept"))
    async with shoal_run(tmp_path, *flags, script=SCRIPT, script_args=args) as run:
        for kind in whom:
            state = await run.wait_for("a world that trains", lambda s: bool(run.pids(s)) and s["phase"] == "running")
            match kind:
                case "worker":
                    kill(chance.choice(sorted(run.pids(state).values())))
                case "all":
                    for pid in run.pids(state).values():
                        kill(pid)
                case "agent":
                    kill(chance.choice(sorted(run.agents(state).values())))
                case "master":
                    with contextlib.suppress(OSError, ValueError):
                        kill(int((run.home / "jobs" / run.name / "state" / "lock").read_text()))
            await asyncio.sleep(chance.uniform(0.3, 1.5))
        assert await run.ended() == 0, run.output
        await audit(run, out, size=size, epochs=epochs)


@pytest.mark.slow
async def test_whoever_is_killed_the_model_has_seen_every_record_once_an_epoch(tmp_path: Path) -> None:
    await survive(tmp_path, 1, ["worker", "all", "master"], size=300, epochs=2)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [3, 4])
async def test_many_kills_and_the_model_has_seen_every_record_once_an_epoch(tmp_path: Path, seed: int) -> None:
    whom = random.Random(seed).choices(["worker", "all", "agent", "master"], weights=[5, 2, 2, 2], k=12)
    await survive(tmp_path, seed, whom, size=2000, epochs=3)
