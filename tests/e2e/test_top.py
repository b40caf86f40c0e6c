"""`shoal top` of real jobs: what it says is what the kernel says, and it survives the master."""

import asyncio
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest
from tests.e2e.harness import PATIENCE, JobRun, shoal_run

CHILD = Path(__file__).with_name("use_child.py")
HELD = 200 * 1024 * 1024


async def top(run: JobRun, *flags: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(await run.command("top", "job", "-o", "json", *flags))
    return found


async def stats(run: JobRun, query: str = "") -> dict[str, Any] | None:
    """What the command asks for, without a process for each look; None: nobody answers."""
    folder = run.home / "jobs" / run.name
    try:
        url = json.loads((folder / "job.json").read_text())["url"]
        headers = {"Authorization": f"Bearer {(folder / 'admin.token').read_text().strip()}"}
        async with aiohttp.ClientSession() as session, session.get(f"{url}/stats{query}", headers=headers) as response:
            return dict(await response.json()) if response.status == 200 else None
    except (OSError, KeyError, json.JSONDecodeError, aiohttp.ClientError, aiohttp.InvalidURL):
        return None


def tree_of(pid: int) -> list[psutil.Process]:
    process = psutil.Process(pid)
    return [process, *process.children(recursive=True)]


def cpu_of(pid: int) -> float:
    return sum(sum(process.cpu_times()[:2]) for process in tree_of(pid))


def column(node: dict[str, Any], level: int, quantity: str, part: str = "mean") -> list[float]:
    return [value for value in node["history"][level][part].get(quantity, []) if value is not None]


async def until(what: str, holds: Any) -> Any:
    try:
        async with asyncio.timeout(PATIENCE):
            while not (found := await holds()):
                await asyncio.sleep(0.2)
            return found
    except TimeoutError:
        raise AssertionError(f"waited in vain for {what}") from None


def master_pid(run: JobRun) -> int:
    while not (text := (run.home / "jobs" / run.name / "state" / "lock").read_text()):
        pass  # just being written
    return int(text)


def times_written(run: JobRun) -> int:
    return (run.home / "jobs" / run.name / "state" / "journal").read_bytes().count(b"\xaastatistics")


async def test_what_a_child_process_uses_is_shown_as_the_kernel_counts_it_and_outlives_the_master(
    tmp_path: Path,
) -> None:
    stop = tmp_path / "stop"
    async with shoal_run(tmp_path, "--nnodes", "1", script=CHILD, script_args=(str(stop), str(HELD))) as run:

        async def holds_its_memory() -> dict[str, Any] | None:
            found = await stats(run)
            nodes = found["nodes"] if found is not None else []
            return found if nodes and (nodes[0]["memory_bytes"] or 0) > HELD and nodes[0]["cpu"] else None

        await until("the child's memory", holds_its_memory)
        state = await run.state()
        assert state is not None
        pid = state["nodes"][0]["processes"][0]["pid"]
        began, spent, written = time.time(), cpu_of(pid), times_written(run)
        first = await stats(run, "?node=worker-0")
        assert first is not None
        seen = len(column(first["nodes"][0], 0, "cpu"))

        async def measured() -> bool:
            found = await stats(run, "?node=worker-0")
            assert found is not None
            return len(column(found["nodes"][0], 0, "cpu")) >= seen + 5 and times_written(run) > written

        await until("some more heartbeats, written down", measured)
        cores = (cpu_of(pid) - spent) / (time.time() - began)
        before = await top(run, "--node", "worker-0")
        node = before["nodes"][0]
        shown = column(node, 0, "cpu")[seen:-1]
        assert sum(shown) / len(shown) == pytest.approx(cores, rel=0.4, abs=0.1)
        held = sum(process.memory_info().rss for process in tree_of(pid))
        assert node["memory_bytes"] == pytest.approx(held, rel=0.15)
        assert 0 < node["cpu_limit"] <= len(os.sched_getaffinity(0))
        assert HELD < node["memory_limit"] <= psutil.virtual_memory().total

        killed = master_pid(run)
        os.kill(killed, signal.SIGKILL)

        async def told_by_another() -> dict[str, Any] | None:
            found = None if master_pid(run) == killed else await stats(run, "?node=worker-0")
            return found if found is not None and found["nodes"][0]["cpu"] is not None else None

        after = await until("another master's figures", told_by_another)
        kept, known = after["nodes"][0]["history"][1], node["history"][1]
        assert kept["at"][0] == known["at"][0]
        assert kept["mean"]["memory_bytes"][0] == pytest.approx(known["mean"]["memory_bytes"][0], rel=0.2)
        assert after["history"][1]["at"][0] == before["history"][1]["at"][0]
        assert "worker-0" in await run.command("top", "job", "--once")
        stop.touch()
        assert await run.ended() == 0, run.output


@pytest.mark.torch
async def test_the_speed_of_a_job_and_of_each_node_is_told(tmp_path: Path) -> None:
    flags = ("--until", str(tmp_path / "stop"), "--pace", "0.02")
    async with shoal_run(tmp_path, "--nnodes", "1:2", script_args=flags) as run:
        await run.trains_with(2)

        async def trains() -> dict[str, Any] | None:
            found = await stats(run)
            assert found is not None
            is_told = found["samples_per_second"] and all(node["work_seconds"] for node in found["nodes"])
            return found if is_told and len(found["nodes"]) == 2 else None

        found = await until("speeds", trains)
        assert found["samples_per_second"] == pytest.approx(16 * found["steps_per_second"], rel=0.2)
        assert sum(node["samples_per_second"] for node in found["nodes"]) == pytest.approx(
            found["samples_per_second"], rel=0.6
        )
        for node in found["nodes"]:
            assert 0.02 <= node["work_seconds"] <= node["step_seconds"] * 1.01
        (tmp_path / "stop").touch()
        assert await run.ended() == 0, run.output
