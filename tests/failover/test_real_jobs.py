"""Real jobs whose master is killed: the training processes never notice."""

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.harness import JobRun, environment, shoal_run
from tests.failover.supervised import supervised

from shoal.cli.supervisor import NoMaster
from shoal.core.view import JobPhase

pytestmark = pytest.mark.torch


def endless(tmp_path: Path) -> tuple[str, ...]:
    return ("--until", str(tmp_path / "stop"), "--pace", "0.01")


async def finish(run: JobRun, tmp_path: Path) -> None:
    (tmp_path / "stop").touch()
    assert await run.ended() == 0, run.output
    assert "succeeded" in run.output


def master_pid(run: JobRun) -> int:
    """The process that holds the job's state."""
    while not (text := (run.home / "jobs" / run.name / "state" / "lock").read_text()):
        pass  # just being written
    return int(text)


async def kill_master(run: JobRun, how: signal.Signals = signal.SIGKILL) -> None:
    """Kill the master and wait until another one serves, with all agents back."""
    before = master_pid(run)
    os.kill(before, how)
    await run.wait_for("another master", lambda state: master_pid(run) != before and everybody_is_back(state))


def everybody_is_back(state: dict[str, Any]) -> bool:
    live = [node for node in state["nodes"] if node["status"] == "running"]
    return bool(live) and all(node["connected"] and node["processes"] for node in live)


def steps_are_whole(run: JobRun) -> None:
    """Everybody did every step of its life once: no step was lost or done again."""
    run.losses()
    for lines in run.trained().values():
        steps = [line.step for line in lines]
        assert steps == list(range(steps[0], steps[0] + len(steps)))


async def test_a_killed_master_costs_no_process_no_world_and_no_step(tmp_path: Path) -> None:
    """Again and again: while a spare one is there, while it is not, and while the next one is just beginning."""
    async with shoal_run(tmp_path, "--nnodes", "1:3", script_args=endless(tmp_path)) as run:
        before = await run.trains_with(3)
        for _ in range(3):
            await kill_master(run)
        killed = master_pid(run)
        os.kill(killed, signal.SIGKILL)
        while (beginning := master_pid(run)) == killed:
            await asyncio.sleep(0.001)
        os.kill(beginning, signal.SIGKILL)
        step = before["step"]
        after = await run.wait_for(
            "steps with all agents back", lambda s: s["step"] is not None and s["step"] > step and everybody_is_back(s)
        )
        assert run.pids(after) == run.pids(before)
        assert run.agents(after) == run.agents(before)
        assert after["generation"] == before["generation"]
        assert [r["generation"] for r in after["resizes"]] == [r["generation"] for r in before["resizes"]]
        await finish(run, tmp_path)
        steps_are_whole(run)


async def test_a_master_killed_in_a_resize_leaves_a_job_that_is_resized(tmp_path: Path) -> None:
    async with shoal_run(tmp_path, "--nnodes", "1:3", "--agents", "2", script_args=endless(tmp_path)) as run:
        before = await run.trains_with(2)
        pids = run.pids(before)
        await run.command("scale", "job", "worker=3")
        await kill_master(run)
        after = await run.trains_with(3)
        assert set(pids.values()) <= set(run.pids(after).values())
        await run.command("scale", "job", "worker=2")
        await kill_master(run)
        after = await run.trains_with(2)
        assert set(pids.values()) == set(run.pids(after).values())
        await finish(run, tmp_path)
        run.losses()


@pytest.mark.slow
async def test_whoever_died_while_there_was_no_master_is_replaced(tmp_path: Path) -> None:
    """A training process and a whole agent, each together with the master."""
    async with shoal_run(tmp_path, "--nnodes", "1:3", script_args=endless(tmp_path)) as run:
        before = await run.trains_with(3)
        pids = run.pids(before)
        os.kill(master_pid(run), signal.SIGKILL)
        os.kill(pids[1], signal.SIGKILL)
        after = await run.trains_with(3, beyond=before["step"])
        assert {pids[0], pids[2]} <= set(run.pids(after).values())
        agents, pids = run.agents(after), run.pids(after)
        os.kill(master_pid(run), signal.SIGKILL)
        os.kill(agents[2], signal.SIGKILL)
        after = await run.trains_with(3, beyond=after["step"])
        assert {pids[0], pids[1]} <= set(run.pids(after).values())
        await finish(run, tmp_path)
        run.losses()


async def test_a_signal_to_the_run_stops_it_although_its_master_was_just_killed(tmp_path: Path) -> None:
    async with shoal_run(tmp_path, "--nnodes", "2", "--grace", "2", script_args=endless(tmp_path)) as run:
        await run.trains_with(2)
        os.kill(master_pid(run), signal.SIGKILL)
        run.process.send_signal(signal.SIGINT)
        assert await run.ended() == 130
        assert "stopped" in run.output


async def test_a_second_master_on_the_same_state_is_refused(tmp_path: Path) -> None:
    script = tmp_path / "stay.py"
    script.write_text("import time\nprint('up', flush=True)\ntime.sleep(600)\n")
    async with shoal_run(tmp_path, "--nnodes", "1", script=script) as run:
        await run.wait_for("a world", lambda state: state["generation"] == 1)
        job = run.home / "jobs" / run.name
        words = ("master", "--config", str(job / "master.json"), "--store", str(job / "state"))
        other = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "shoal", *words),
            stdin=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=environment(run.home),
        )
        _, said = await other.communicate(b"take-over\n")
        assert other.returncode == 2
        assert f"in use by the master with process id {master_pid(run)}" in said.decode()
        assert (await run.state() or {})["phase"] == "running"
        run.process.send_signal(signal.SIGTERM)
        assert await run.ended() == 143


@pytest.mark.slow
async def test_a_master_that_stands_still_is_replaced(tmp_path: Path) -> None:
    """The supervisor by itself, less patient than in life; the nodes are real agents."""
    async with supervised(tmp_path, silent_seconds=3.0) as job:
        await job.until(lambda view: view.generation == 1)
        stopped = job.master_pid
        os.kill(stopped, signal.SIGSTOP)
        await job.until(lambda view: any("master 2 took over" in d.reason for d in view.decisions))
        view = await job.until(lambda view: all(node.connected for node in view.nodes))
        assert (view.generation, job.master_pid != stopped) == (1, True)
        assert any("has said nothing for 3 s" in note for note in job.notes)
        job.supervisor.stop("enough", grace_seconds=0.0)
        assert (await job.ended()).phase is JobPhase.STOPPED


@pytest.mark.slow
async def test_a_job_whose_state_could_not_be_kept_ends_with_its_master_and_says_why(tmp_path: Path) -> None:
    (tmp_path / "state").touch()  # no directory can be made there
    async with supervised(tmp_path) as job:
        await job.until(lambda view: view.generation == 1)
        view = await job.until(lambda view: any("cannot be kept" in d.reason for d in view.decisions))
        assert view.phase is JobPhase.RUNNING
        os.kill(job.find_master(), signal.SIGKILL)
        with pytest.raises(NoMaster, match=r"SIGKILL .*, and its state could not be kept \(.*/state: "):
            await job.ended()
