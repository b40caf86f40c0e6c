"""A node that joins by itself saves as the job does: where, and with whom, the master tells it."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.checkpoint.test_real_jobs import held, job, steps_of, until
from tests.e2e.harness import JobRun, environment

pytestmark = pytest.mark.torch


@asynccontextmanager
async def joined(run: JobRun, said: Path, *flags: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """Another shell accepts the invitation; what it says goes to a file."""
    await until("the invitation", lambda: "shoal run --join" in run.output, run)
    line = next(line for line in run.lines if "shoal run --join" in line)
    words = line.partition("shoal run ")[2].split()
    token = run.home / "jobs" / run.name / "agent.token"
    with said.open("wb") as output:
        guest = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "shoal", "run", *words, "--token-file", str(token), *flags),
            env=environment(run.home),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    try:
        yield guest
    finally:
        if guest.returncode is None:
            guest.kill()
        await guest.wait()


@pytest.mark.parametrize("own", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["the-jobs", "its-own"])
async def test_a_node_that_joined_saves_where_the_master_says_unless_it_was_told_itself(
    tmp_path: Path, own: bool
) -> None:
    """The host's own node is killed: from then on the one that joined has the state, and saves it."""
    kept, elsewhere = tmp_path / "kept", tmp_path / "elsewhere"
    hold = ("--hold-at", "23", "--release", str(tmp_path / "go"), "--every", "10")
    flags = ("--nnodes", "2", "--agents", "1", "--listen", "127.0.0.1", "--keep", "1")
    where = ("--checkpoint-dir", str(kept), "--checkpoint-replica")
    async with job(tmp_path, *flags, *where, args=hold) as run:
        said, override = tmp_path / "said", ("--checkpoint-dir", str(elsewhere)) if own else ()
        async with joined(run, said, *override) as guest:
            await until("both to stand", lambda: len(held(run)) == 2, run)
            copied = "keeps a copy of its checkpoints"
            await until("the replica, of whoever is first", lambda: copied in run.output + said.read_text(), run)
            nodes = json.loads(await run.command("ps", "-o", "json"))[0]["state"]["nodes"]
            mine = next(node for node in nodes if node["node"] == "worker-0")
            (tmp_path / "go").touch()
            os.kill(mine["pid"], signal.SIGKILL)
            assert await run.ended() == 0, run.output
            assert await guest.wait() == 0
    assert steps_of(elsewhere if own else kept) == [40], "keep 1 is the job's word too"
