"""The contract of a `Scaler`, run against the local platform: whoever adds a platform adds it to the fixture."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import psutil
import pytest

from shoal.core.errors import PlatformUnavailable
from shoal.core.exits import ProcessExit
from shoal.core.nodes import Node, NodeId, NodeStatus, Role
from shoal.core.plans import ScalePlan
from shoal.platforms.local import LocalLaunch, LocalScaler, LocalSettings

SCRIPT = "import sys,time; print('hello'); print('oops', file=sys.stderr); sys.stdout.flush(); time.sleep(600)"


def a_node(number: int, status: NodeStatus = NodeStatus.PENDING) -> Node:
    return Node(
        role=Role.WORKER, number=number, seat=number, status=status, since=datetime(2026, 1, 1, tzinfo=UTC), reason="t"
    )


def launching(*nodes: Node) -> ScalePlan:
    return ScalePlan(launch_nodes=nodes, reason="test")


def removing(*nodes: Node) -> ScalePlan:
    return ScalePlan(remove_nodes=nodes, reason="test")


class Watched:
    """A scaler and what it said, with waiting instead of sleeping."""

    def __init__(self, scaler: LocalScaler, lines: asyncio.Queue[tuple[str, bytes, bool]]) -> None:
        self.scaler = scaler
        self.lines = lines
        self.exits: asyncio.Queue[tuple[NodeId, ProcessExit]] = asyncio.Queue()

    async def exited(self) -> tuple[NodeId, ProcessExit]:
        async with asyncio.timeout(30):
            return await self.exits.get()

    async def up(self) -> None:
        """Wait until one more node has printed its greeting on both streams."""
        async with asyncio.timeout(30):
            await self.lines.get()
            await self.lines.get()

    def pids(self) -> list[int]:
        return [p.pid for p in psutil.Process().children(recursive=True) if "sleep(600)" in " ".join(p.cmdline())]


@pytest.fixture
async def watched() -> AsyncIterator[Watched]:
    lines: asyncio.Queue[tuple[str, bytes, bool]] = asyncio.Queue()

    def launch(node: Node) -> LocalLaunch:
        script = {8: "import sys; sys.exit(3)"}.get(node.number, SCRIPT)
        argv = ("/nonexistent",) if node.number == 9 else (sys.executable, "-c", script)
        return LocalLaunch(argv=argv, env=dict(os.environ))

    scaler = LocalScaler(
        launch, lambda node, line, err: lines.put_nowait((node, line, err)), LocalSettings(linger_seconds=0.1)
    )
    watched = Watched(scaler, lines)
    await scaler.start(lambda node, exit: watched.exits.put_nowait((node, exit)))
    yield watched
    await scaler.close()
    assert watched.pids() == []


async def test_starting_a_node_twice_runs_one(watched: Watched) -> None:
    await watched.scaler.scale(launching(a_node(0)))
    await watched.scaler.scale(launching(a_node(0)))
    await watched.up()
    assert len(watched.pids()) == 1


async def test_what_a_node_prints_arrives_by_line_and_stream(watched: Watched) -> None:
    await watched.scaler.scale(launching(a_node(0)))
    async with asyncio.timeout(30):
        got = {await watched.lines.get(), await watched.lines.get()}
    assert got == {("worker-0", b"hello", False), ("worker-0", b"oops", True)}


async def test_a_removed_node_ends_and_its_end_is_reported_once(watched: Watched) -> None:
    await watched.scaler.scale(launching(a_node(0)))
    await watched.up()
    await watched.scaler.scale(removing(a_node(0)))
    await watched.scaler.scale(removing(a_node(0)))
    node, exit = await watched.exited()
    assert (node, exit.code) == ("worker-0", 128 + signal.SIGKILL)
    assert watched.exits.empty()


async def test_a_node_that_ended_well_may_linger_but_not_for_ever(watched: Watched) -> None:
    await watched.scaler.scale(launching(a_node(0)))
    await watched.up()
    await watched.scaler.scale(removing(a_node(0, NodeStatus.SUCCEEDED)))
    node, _ = await watched.exited()
    assert node == "worker-0"


async def test_a_removal_that_overtakes_its_launch_wins(watched: Watched) -> None:
    await watched.scaler.scale(removing(a_node(0)))
    await watched.scaler.scale(launching(a_node(0)))
    assert watched.pids() == []


async def test_a_frozen_node_can_be_removed(watched: Watched) -> None:
    await watched.scaler.scale(launching(a_node(0)))
    await watched.up()
    os.kill(watched.pids()[0], signal.SIGSTOP)
    await watched.scaler.scale(removing(a_node(0)))
    assert (await watched.exited())[0] == "worker-0"


async def test_a_nodes_exit_code_is_reported_as_a_shell_would(watched: Watched) -> None:
    await watched.scaler.scale(launching(a_node(8)))
    node, exit = await watched.exited()
    assert (node, exit.code) == ("worker-8", 3)


async def test_a_node_that_cannot_be_started_is_an_error_that_may_be_retried(watched: Watched) -> None:
    with pytest.raises(PlatformUnavailable, match="worker-9: cannot start /nonexistent"):
        await watched.scaler.scale(launching(a_node(9)))


async def test_one_node_that_cannot_be_started_does_not_hold_up_the_others(watched: Watched) -> None:
    with pytest.raises(PlatformUnavailable, match="worker-9"):
        await watched.scaler.scale(launching(a_node(9), a_node(0)))
    await watched.up()
    assert len(watched.pids()) == 1


async def test_nodes_die_with_the_process_that_started_them(tmp_path: Path) -> None:
    parent = tmp_path / "parent.py"
    parent.write_text(
        "import asyncio, os, sys\n"
        "from tests.platforms.test_scaler import SCRIPT, a_node, launching\n"
        "from shoal.platforms.local import LocalLaunch, LocalScaler\n"
        "async def main():\n"
        "    up = asyncio.Event()\n"
        "    launch = lambda node: LocalLaunch(argv=(sys.executable, '-c', SCRIPT), env=dict(os.environ))\n"
        "    scaler = LocalScaler(launch, lambda *_: up.set())\n"
        "    await scaler.start(lambda *_: None)\n"
        "    await scaler.scale(launching(a_node(0)))\n"
        "    await up.wait()\n"
        "    print(next(iter(scaler._children.values()))._process.pid, flush=True)\n"
        "    await asyncio.sleep(600)\n"
        "asyncio.run(main())\n"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(parent),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    assert process.stdout is not None
    child = psutil.Process(int(await process.stdout.readline()))
    process.kill()
    await process.wait()
    await asyncio.to_thread(psutil.wait_procs, [child], timeout=30)
    assert not child.is_running()
