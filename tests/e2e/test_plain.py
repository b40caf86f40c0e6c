"""Plain DDP scripts under `shoal run`: processes restart into the new world, and nobody pays for another's failure."""

import os
import signal
import time
from pathlib import Path

import pytest
from tests.e2e.harness import PLAIN, shoal_run

pytestmark = pytest.mark.torch


async def test_a_killed_worker_and_a_killed_node_are_replaced_and_training_goes_on(tmp_path: Path) -> None:
    args = ("--until", str(tmp_path / "stop"))
    async with shoal_run(tmp_path, "--nnodes", "2", script=PLAIN, script_args=args) as run:
        await run.steps_with(2)
        state = await run.wait_for("pids", lambda s: len(run.pids(s)) == 2)
        os.kill(run.pids(state)[1], signal.SIGKILL)
        await run.wait_for("world 2", lambda s: s["generation"] == 2)
        await run.steps_with(2, since=time.time_ns())

        state = await run.wait_for("pids", lambda s: len(run.agents(s)) == 2)
        os.kill(run.agents(state)[0], signal.SIGKILL)
        state = await run.wait_for("world 3", lambda s: s["generation"] == 3 and s["phase"] == "running")
        await run.steps_with(2, since=time.time_ns())
        (tmp_path / "stop").touch()
        assert await run.ended() == 0, run.output
        assert [r["after"] for r in state["resizes"]] == [2, 2, 2]


async def test_a_crash_of_one_rank_charges_that_rank_and_shows_its_error(tmp_path: Path) -> None:
    args = ("--steps", "40", "--crash-once", str(tmp_path / "crashed"))
    async with shoal_run(tmp_path, "--nnodes", "3", script=PLAIN, script_args=args) as run:
        assert await run.ended() == 0, run.output
        decisions = [line for line in run.lines if line.startswith("shoal: worker-")]
        assert len([line for line in decisions if "restart 1 of 3" in line]) == 1, run.output
        assert not any("restart 2 of 3" in line for line in decisions), run.output
