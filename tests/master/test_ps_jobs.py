"""Jobs with parameter servers in real processes: a real master, real agents, and a trainer without TensorFlow."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import aiohttp
import pytest

from shoal.agent.settings import AgentSettings
from shoal.cli import agent as agent_command
from shoal.cli.plan import node_environment
from shoal.core.job import JobSettings, JobSpec, PSSpec
from shoal.core.nodes import Node
from shoal.core.view import JobPhase, JobView, PSChangeView
from shoal.master import Master
from shoal.platforms.local import LocalLaunch, LocalScaler
from shoal.wire.tokens import JobKeys, Purpose

SCRIPT = Path(__file__).with_name("train_ps.py")
KEYS = JobKeys.new("j.1")
PATIENCE = 60


class Running:
    def __init__(self, directory: Path) -> None:
        spec = JobSpec(
            name="j",
            uid="j.1",
            min_nodes=1,
            max_nodes=3,
            command=(sys.executable, str(SCRIPT)),
            ps=PSSpec(max_servers=3, evaluator=True, checkpoint_dir=str(directory / "ckpt")),
        )
        self.spec, self.directory = spec, directory
        self.lines: list[str] = []
        self.ended: asyncio.Task[JobView] | None = None
        scaler = LocalScaler(self.launch, lambda node, line, err: self.lines.append(f"{node}: {line.decode()}"))
        self.master = Master(spec, JobSettings(), scaler=scaler, keys=KEYS, nodes=2)

    def launch(self, node: Node) -> LocalLaunch:
        settings = AgentSettings(
            master=self.master.url.replace("http", "ws", 1),
            token=KEYS.token(Purpose.AGENT),
            job="j",
            node=node.id,
            incarnation=node.incarnation,
            python=sys.executable,
            command=self.spec.command,
            environment={},
            host="here",
            log_dir=self.directory,
        )
        return LocalLaunch(
            argv=(sys.executable, "-m", "shoal", "agent", *agent_command.words(settings)),
            env={
                **os.environ,
                **node_environment(self.spec, node.role),
                agent_command.TOKEN: settings.token,
            },
        )

    async def until(self, what: Callable[[JobView], object]) -> JobView:
        try:
            async with asyncio.timeout(PATIENCE):
                while not what(view := self.master.view()) and not (self.ended and self.ended.done()):
                    await asyncio.sleep(0.01)
        except TimeoutError:
            view = self.master.view()
            pytest.fail("\n".join([str(view.data), *(d.reason for d in view.decisions), *self.lines]))
        return view

    async def post(self, **body: object) -> int:
        token = {"Authorization": f"Bearer {KEYS.token(Purpose.ADMIN)}"}
        async with (
            aiohttp.ClientSession(headers=token) as http,
            http.post(f"{self.master.url}/scale", json=body) as answer,
        ):
            return answer.status

    def kill(self, node: str) -> None:
        """Kill the process of a server. Its address names it."""
        servers = self.master.view().servers
        assert servers is not None
        address = dict(zip(servers.nodes, servers.addresses, strict=True))[node]
        os.kill(int(address.rpartition(":")[2]), signal.SIGKILL)


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[Running]:
    job = Running(tmp_path)
    await job.master.start()
    job.ended = asyncio.create_task(job.master.run())
    yield job
    job.master.stop("the test is over", grace=None)
    async with asyncio.timeout(PATIENCE):
        await job.ended


def _serving(count: int) -> Callable[[JobView], object]:
    return lambda view: view.servers is not None and view.servers.servers == count and _is_settled(view)


def _is_settled(view: JobView) -> bool:
    assert view.servers is not None
    return bool(view.servers.changes) and view.servers.changes[-1].outcome is not None


async def test_a_job_changes_its_servers_loses_one_and_trains_all_its_data(running: Running) -> None:
    await running.until(_serving(1))
    assert await running.post(ps=2, worker=3) == 200
    view = await running.until(_serving(2))
    assert view.servers is not None
    assert await running.post(ps=9) == 400
    assert await running.post(migrate={view.servers.nodes[1]: {"cpu": 2.0}}) == 200
    view = await running.until(lambda v: v.servers is not None and "ps-2" in v.servers.nodes and _is_settled(v))
    running.kill("ps-2")
    await running.until(lambda v: any(c.kind == "rollback" and c.outcome == "done" for c in _changes(v)))
    (running.directory / "finish").touch()
    view = await running.until(lambda v: v.phase is JobPhase.SUCCEEDED)
    assert [(d.done, d.records) for d in view.data] == [(400, 400)]
    assert view.servers is not None
    assert view.servers.scores
    resizes = [c for c in view.servers.changes if c.kind == "resize"]
    assert [c.outcome for c in resizes] == ["done", "done"]
    assert {n.node for n in view.nodes if n.role == "worker"} == {"worker-0", "worker-1", "worker-3"}


def _changes(view: JobView) -> tuple[PSChangeView, ...]:
    return () if view.servers is None else view.servers.changes
