"""Real `torchrun` processes, each one node, against a real master."""

import asyncio
import contextlib
import os
import signal
import sys
from asyncio.subprocess import PIPE, STDOUT, Process
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

pytest.importorskip("torch")

from tests.rendezvous.masters import RunningMaster, StartMaster

from shoal.core.view import JobPhase

pytestmark = [pytest.mark.torch, pytest.mark.timeout(120)]

SCRIPT = Path(__file__).parent / "plain_script.py"
TORCHRUN = Path(sys.executable).parent / "torchrun"


@dataclass
class TorchrunNode:
    process: Process
    lines: list[str] = field(default_factory=list)
    news: asyncio.Event = field(default_factory=asyncio.Event)
    heard: int = 0

    async def read(self) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            self.lines.append(line.decode(errors="replace").rstrip())
            self.news.set()
        self.lines.append("(end of output)")
        self.news.set()

    async def says(self, words: str) -> None:
        """Wait for a line with these words after the last one that was waited for."""
        while True:
            for at in range(self.heard, len(self.lines)):
                if words in self.lines[at]:
                    self.heard = at + 1
                    return
                assert self.lines[at] != "(end of output)", "\n".join(self.lines)
            self.news.clear()
            await self.news.wait()

    def kill(self) -> None:
        """The whole node at once: torchrun and its training processes, each in a session of its own."""
        with contextlib.suppress(psutil.NoSuchProcess):
            top = psutil.Process(self.process.pid)
            for process in [*top.children(recursive=True), top]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.send_signal(signal.SIGKILL)


StartNode = Callable[[RunningMaster], Awaitable[TorchrunNode]]


@pytest.fixture
def enough(tmp_path: Path) -> Path:
    """The script trains until this file exists."""
    return tmp_path / "enough"


@pytest.fixture
async def start_node(enough: Path) -> AsyncIterator[StartNode]:
    nodes: list[TorchrunNode] = []
    readers: list[asyncio.Task[None]] = []

    async def start(master: RunningMaster, *, token: str | None = None) -> TorchrunNode:
        process = await asyncio.create_subprocess_exec(
            *(str(TORCHRUN), "--rdzv-backend=shoal", f"--rdzv-endpoint={master.endpoint}", "--nnodes=1:4"),
            *("--max-restarts=3", "--rdzv-conf=nproc=1", str(SCRIPT), str(enough)),
            env={**os.environ, "SHOAL_TOKEN": token or master.token, "OMP_NUM_THREADS": "1"},
            stdout=PIPE,
            stderr=STDOUT,
            start_new_session=True,
        )
        nodes.append(TorchrunNode(process))
        readers.append(asyncio.create_task(nodes[-1].read()))
        return nodes[-1]

    yield start
    for node in nodes:
        node.kill()
        await node.process.wait()
    await asyncio.gather(*readers)


async def test_a_world_survives_a_lost_node_and_takes_a_new_one(
    start_master: StartMaster, start_node: StartNode, enough: Path
) -> None:
    master = await start_master(awaited=2)
    lost, stays = [await start_node(master) for _ in range(2)]
    await asyncio.gather(lost.says("/2"), stays.says("/2"))
    assert master.master.view().generation == 1

    lost.kill()
    await stays.says("trains 0/1")

    joins = await start_node(master)
    await asyncio.gather(joins.says("trains 1/2"), stays.says("trains 0/2"))

    enough.touch()
    await asyncio.gather(joins.says("done 1/2"), stays.says("done 0/2"))
    assert [await joins.process.wait(), await stays.process.wait()] == [0, 0]
    view = await master.ended
    assert view.phase is JobPhase.SUCCEEDED
    assert [r.after for r in view.resizes] == [2, 1, 2]


async def test_a_wrong_token_ends_torchrun_with_the_reason(start_master: StartMaster, start_node: StartNode) -> None:
    master = await start_master()
    node = await start_node(master, token="d29ybGQuMGExYjJj" * 4)
    await node.says("RendezvousClosedError")
    assert await node.process.wait() == 1
    assert any("not this job's agent token" in line for line in node.lines), "\n".join(node.lines)


async def test_a_node_scaled_away_exits_with_success(
    start_master: StartMaster, start_node: StartNode, enough: Path
) -> None:
    master = await start_master(awaited=2)
    nodes = [await start_node(master) for _ in range(2)]
    await asyncio.gather(*(node.says("/2") for node in nodes))
    stays, goes = nodes if "trains 0/2" in nodes[0].lines else reversed(nodes)
    master.master.scale(1, who="test")
    assert await goes.process.wait() == 0
    await stays.says("trains 0/1")
    enough.touch()
    assert await stays.process.wait() == 0
    assert (await master.ended).phase is JobPhase.SUCCEEDED
