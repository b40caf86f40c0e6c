"""The master as a shell: real sockets, the real core, nodes that are connections of this test."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from typing import TypeVar

import aiohttp
import pytest

from shoal.core.errors import BadInput, PlatformUnavailable, Refused
from shoal.core.exits import ProcessExit
from shoal.core.job import JobSettings, JobSpec
from shoal.core.nodes import NodeId
from shoal.core.plans import ScalePlan
from shoal.core.view import JobPhase
from shoal.master import Master
from shoal.wire.client import Connection, connect
from shoal.wire.messages import (
    PROTOCOL,
    Ack,
    Commit,
    Exited,
    FromMaster,
    Hello,
    Prepare,
    Ready,
    Restart,
    Stop,
    Succeeded,
)
from shoal.wire.tokens import JobKeys, Purpose

M = TypeVar("M", bound=FromMaster)

KEYS = JobKeys.new("j.uid")


class Yard:
    """A scaler that starts nothing: the test plays the nodes. It fails as often as it is told to."""

    def __init__(self) -> None:
        self.plans: asyncio.Queue[ScalePlan] = asyncio.Queue()
        self.failures = 0
        self.exited: Callable[[NodeId, ProcessExit], None] | None = None

    async def start(self, on_exit: Callable[[NodeId, ProcessExit], None]) -> None:
        self.exited = on_exit

    async def scale(self, plan: ScalePlan) -> None:
        if self.failures:
            self.failures -= 1
            raise PlatformUnavailable("no room just now")
        await self.plans.put(plan)

    async def close(self) -> None:
        pass


class Play:
    def __init__(self, master: Master, yard: Yard, running: asyncio.Task[object]) -> None:
        self.master, self.yard, self.running = master, yard, running

    async def agent(self, node: str, incarnation: int = 1) -> Connection:
        hello = Hello(
            protocol=PROTOCOL,
            job="j",
            node=node,
            incarnation=incarnation,
            host="h",
            address="127.0.0.1",
            slots=1,
            pid=1,
        )
        return await connect(self.master.url, token=KEYS.token(Purpose.AGENT), hello=hello)

    async def trains(self, *nodes: str) -> list[Connection]:
        agents = [await self.agent(node) for node in nodes]
        for agent in agents:
            await agent.send(Ready(incarnation=1, steps=(None,), sdk=True))
        for agent in agents:
            prepare = await hear(agent, Prepare)
            await agent.send(Ack(incarnation=1, generation=prepare.world.generation, store={agent.welcome.node: b"x"}))
        for agent in agents:
            assert set((await hear(agent, Commit)).store) == set(nodes)
        return agents


async def hear(agent: Connection, kind: type[M]) -> M:
    """The next message of this kind; others are passed over."""
    async with asyncio.timeout(30):
        async for message in agent:
            if isinstance(message, kind):
                return message
    raise AssertionError(f"no {kind.__name__}")


@pytest.fixture
async def play() -> AsyncIterator[Play]:
    yard = Yard()
    spec = JobSpec(name="j", uid="j.uid", min_nodes=1, max_nodes=3)
    settings = JobSettings(grace=timedelta(seconds=0.1), end_slack=timedelta(seconds=0.1))
    master = Master(spec, settings, scaler=yard, keys=KEYS, nodes=2)
    await master.start()
    running: asyncio.Task[object] = asyncio.create_task(master.run())
    yield Play(master, yard, running)
    if not running.done():
        master.stop("the test is over", grace=timedelta(0))
    await running


async def test_two_agents_get_one_world_and_the_job_ends_when_both_succeed(play: Play) -> None:
    agents = await play.trains("worker-0", "worker-1")
    for agent in agents:
        await agent.send(Succeeded(incarnation=1))
    await play.running
    view = play.master.view()
    assert (view.phase, view.exit_code, view.generation) == (JobPhase.SUCCEEDED, 0, 1)
    for agent in agents:
        await agent.close()


async def test_a_process_exit_is_answered_with_a_restart_and_counted(play: Play) -> None:
    agents = await play.trains("worker-0", "worker-1")
    await agents[1].send(Exited(incarnation=1, local_rank=0, pid=1, code=137, oom=False, error=None, uptime_seconds=9))
    assert (await hear(agents[1], Restart)).incarnation == 2
    text = play.master.metrics_text().decode()
    assert 'shoal_member_failures_total{class="preemption"} 1.0' in text
    assert 'shoal_resizes_total{direction="up",result="granted",trigger="start"} 1.0' in text
    for agent in agents:
        await agent.close()


async def test_a_plan_that_fails_comes_again(play: Play) -> None:
    assert len((await play.yard.plans.get()).launch_nodes) == 2
    play.yard.failures = 2
    play.master.scale(3, who="test")
    async with asyncio.timeout(30):
        plan = await play.yard.plans.get()
    assert [n.id for n in plan.launch_nodes] == ["worker-2"]


async def test_statistics_that_cannot_be_summed_up_are_dropped_and_the_job_goes_on(
    play: Play, caplog: pytest.LogCaptureFixture
) -> None:
    broken = play.master._watch
    del broken.statistics.job  # a fault that nobody has thought of
    async with asyncio.timeout(30):
        while play.master._watch is broken and not play.running.done():
            await asyncio.sleep(0.01)
    assert "statistics are dropped" in caplog.text
    agents = await play.trains("worker-0", "worker-1")
    assert play.master.figures().world_size == 2
    for agent in agents:
        await agent.close()


async def test_a_node_of_another_job_or_unknown_is_refused(play: Play) -> None:
    with pytest.raises(Refused, match="no node worker-9"):
        await play.agent("worker-9")


async def test_people_can_look_scale_and_stop_over_http(play: Play) -> None:
    headers = {"Authorization": f"Bearer {KEYS.token(Purpose.ADMIN)}"}
    async with aiohttp.ClientSession(headers=headers) as http:
        async with http.get(f"{play.master.url}/state") as answer:
            assert (await answer.json())["name"] == "j"
        async with http.get(f"{play.master.url}/metrics") as answer:
            assert "shoal_build_info" in await answer.text()
        async with http.post(f"{play.master.url}/scale", json={"worker": 3}) as answer:
            assert answer.status == 200
        bad = [
            ("/scale", {"worker": 9}),
            ("/scale", {"worker": "x"}),
            ("/scale", {"ps": "auto"}),
            ("/stop", {"grace_seconds": 1e300}),
            ("/stop", []),
        ]
        for path, body in bad:
            async with http.post(play.master.url + path, data=json.dumps(body)) as answer:
                assert answer.status == 400
                assert (await answer.json())["error"]
        async with http.post(f"{play.master.url}/stop", json={"reason": "enough", "grace_seconds": 0}) as answer:
            assert answer.status == 200
    await play.running
    assert play.master.view().phase is JobPhase.STOPPED
    with pytest.raises(BadInput, match="is ending"):
        play.master.scale(2, who="test")


async def test_an_agent_is_told_to_stop_when_the_job_is_stopped(play: Play) -> None:
    (agent,) = [await play.agent("worker-0")]
    await asyncio.sleep(0)
    play.master.stop("enough")
    assert (await hear(agent, Stop)).reason == "enough"
    await agent.close()
