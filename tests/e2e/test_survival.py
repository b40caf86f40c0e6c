"""Members die, freeze, join and leave; the others keep their processes and the mathematics does not notice."""

import asyncio
import os
import signal
from pathlib import Path

import pytest
from tests.e2e.harness import JobRun, shoal_run

pytestmark = pytest.mark.torch


def endless(tmp_path: Path) -> tuple[str, ...]:
    """Train until the test says stop."""
    return ("--until", str(tmp_path / "stop"), "--pace", "0.01")


async def finish(run: JobRun, tmp_path: Path) -> None:
    (tmp_path / "stop").touch()
    assert await run.ended() == 0, run.output


async def test_survivors_keep_their_processes_whoever_is_killed(tmp_path: Path) -> None:
    """A worker process, rank 0, two at once, a whole agent, everybody but one: each with SIGKILL, one after another."""
    async with shoal_run(tmp_path, "--nnodes", "1:4", script_args=endless(tmp_path)) as run:
        state = await run.trains_with(4)

        async def killed(victims: list[int], survivors: dict[int, int]) -> None:
            step = (await run.wait_for("a step", lambda s: s["step"] is not None))["step"]
            for pid in victims:
                os.kill(pid, signal.SIGKILL)
            after = await run.trains_with(4, beyond=step)
            now = set(run.pids(after).values())
            assert set(survivors.values()) <= now, f"survivors were restarted\n{run.output}"
            assert not now & set(victims)

        pids = run.pids(state)
        await killed([pids[2]], {r: p for r, p in pids.items() if r != 2})

        pids = run.pids(await run.trains_with(4))
        await killed([pids[0]], {r: p for r, p in pids.items() if r != 0})

        pids = run.pids(await run.trains_with(4))
        await killed([pids[1], pids[3]], {r: p for r, p in pids.items() if r in (0, 2)})

        state = await run.trains_with(4)
        pids, agents = run.pids(state), run.agents(state)
        await killed([agents[1]], {r: p for r, p in pids.items() if r != 1})

        pids = run.pids(await run.trains_with(4))
        await killed([pids[0], pids[1], pids[2]], {3: pids[3]})

        await finish(run, tmp_path)
        final = run.output
        assert "succeeded" in final
        run.losses()  # asserts that everybody who did a step saw the same loss


@pytest.mark.slow
async def test_a_run_resized_4_3_1_4_has_the_losses_of_one_that_was_not(tmp_path: Path) -> None:
    steps = 200
    (tmp_path / "fixed").mkdir()
    (tmp_path / "resized").mkdir()
    async with shoal_run(tmp_path / "fixed", "--nnodes", "4", script_args=("--steps", str(steps))) as run:
        assert await run.ended() == 0, run.output
        fixed = run.losses()
    assert len(fixed) == steps

    slow = ("--steps", str(steps), "--pace", "0.05")
    async with shoal_run(tmp_path / "resized", "--nnodes", "1:4", script_args=slow) as run:
        await run.trains_with(4)
        await run.command("scale", "job", "worker=3")
        await run.trains_with(3)
        state = await run.trains_with(3)
        pids = run.pids(state)
        for rank in (0, 2):
            os.kill(pids[rank], signal.SIGKILL)
        await run.command("scale", "job", "worker=1")
        await run.trains_with(1)
        await run.command("scale", "job", "worker=4")
        assert await run.ended() == 0, run.output
        resized = run.losses()
        sizes = {line.size for lines in run.trained().values() for line in lines}

    assert sizes == {4, 3, 1} or sizes == {4, 3, 2, 1}
    assert set(resized) == set(fixed)
    worst = max(abs(resized[step] - fixed[step]) for step in fixed)
    assert worst <= 1e-9, f"losses differ by {worst}"


async def test_a_frozen_worker_is_found_and_the_others_go_on(tmp_path: Path) -> None:
    flags = ("--nnodes", "1:3", "--hang-timeout", "4")
    async with shoal_run(tmp_path, *flags, script_args=endless(tmp_path)) as run:
        pids = run.pids(await run.trains_with(3, beyond=40))
        os.kill(pids[1], signal.SIGSTOP)
        await run.wait_for("the hang to be named", lambda s: any("hangs" in d["reason"] for d in s["decisions"]))
        after = await run.trains_with(3)
        now = set(run.pids(after).values())
        assert pids[0] in now
        assert pids[2] in now
        assert pids[1] not in now
        await finish(run, tmp_path)
        assert run.output.count("] kills local rank") == 1, run.output


async def test_a_node_with_one_dead_process_leaves_as_a_whole_and_its_other_process_lives_on(tmp_path: Path) -> None:
    flags = ("--nnodes", "1:2", "--nproc-per-node", "2")
    async with shoal_run(tmp_path, *flags, script_args=endless(tmp_path)) as run:
        pids = run.pids(await run.trains_with(4))
        os.kill(pids[3], signal.SIGKILL)
        after = await run.trains_with(4, beyond=1)
        assert {pids[0], pids[1], pids[2]} <= set(run.pids(after).values())
        assert any(r["after"] == 2 for r in after["resizes"])
        await finish(run, tmp_path)


async def test_a_join_and_a_drain_lose_no_step(tmp_path: Path) -> None:
    async with shoal_run(tmp_path, "--nnodes", "1:3", script_args=endless(tmp_path)) as run:
        state = await run.trains_with(3)
        before = state["generation"]
        await run.command("scale", "job", "worker=2")
        await run.trains_with(2)
        await run.command("scale", "job", "worker=3")
        state = await run.trains_with(3)
        await finish(run, tmp_path)
        for resize in state["resizes"]:
            if resize["generation"] > before:
                assert resize["lost_steps"] == 0, resize
        counts: dict[int, int] = {}
        for lines in run.trained().values():
            for line in lines:
                counts[line.step] = counts.get(line.step, 0) + 1
                assert line.size in (2, 3)
        assert sorted(counts) == list(range(1, max(counts) + 1))


@pytest.mark.slow
async def test_a_crash_of_one_rank_is_restarted_and_charged(tmp_path: Path) -> None:
    args = ("--steps", "60", "--crash-at", "30")
    async with shoal_run(tmp_path, "--nnodes", "2", "--max-restarts", "2", script_args=args) as run:
        assert await run.ended() == 1, run.output
        assert "crash at step 30" in run.output
        assert "2 of 2 restarts used" in run.output


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
async def test_nothing_is_left_running_after_a_signal_to_the_run_itself(tmp_path: Path, how: signal.Signals) -> None:
    async with shoal_run(tmp_path, "--nnodes", "1:2", "--grace", "2", script_args=endless(tmp_path)) as run:
        await run.trains_with(2)
        run.process.send_signal(how)
        code = await run.ended()
        assert code == {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGKILL: -9}[how]
    await asyncio.sleep(0)  # `shoal_run` has checked that nobody is left
