"""A real master whose job sizes itself: it asks, follows and says so; no fault of its optimizer stops the job."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta

import aiohttp
import pytest
from tests.master.test_master import KEYS, Play, Yard

from shoal.core.errors import BadInput
from shoal.core.exits import ProcessExit
from shoal.core.facts import OomEvent, OptimizerSettings
from shoal.core.job import JobSettings, JobSpec
from shoal.core.job.values import SelfSizing
from shoal.core.nodes import NodeId, NodeSeen, Role
from shoal.core.optimizing import Question, Stage
from shoal.core.plans import NodeGroupResource, ResourcePlan
from shoal.core.view import JobView
from shoal.master import Master
from shoal.wire.client import Connection
from shoal.wire.messages import Heartbeat
from shoal.wire.tokens import Purpose


class Moody:
    """An optimizer that fails twice, and then wants three workers because one ran out of memory."""

    def __init__(self) -> None:
        self.failures = 2

    def generate_opt_plan(self, stage: Stage, config: Question) -> ResourcePlan:
        return ResourcePlan(reason="nothing")

    def generate_oom_recovery_plan(self, oom_nodes: Sequence[OomEvent], stage: Stage, config: Question) -> ResourcePlan:
        if self.failures:
            self.failures -= 1
            raise ZeroDivisionError("an algorithm with a fault in it")
        group = NodeGroupResource(count=3)
        return ResourcePlan(node_group_resources={"worker": group}, reason="three are best", algorithm="recover_oom")

    def generate_resource_plan_with_optimizer(self, config: Question) -> ResourcePlan:
        return ResourcePlan(reason="nothing")


@pytest.fixture
async def play() -> AsyncIterator[Play]:
    yard = Yard()
    spec = JobSpec(name="j", uid="j.uid", min_nodes=1, max_nodes=3, sizing=SelfSizing())
    settings = JobSettings(
        grace=timedelta(seconds=0.1),
        end_slack=timedelta(seconds=0.1),
        sizing_interval=timedelta(seconds=0.02),
        optimizer=OptimizerSettings(start_cpu=None, start_memory=None),
    )
    master = Master(spec, settings, scaler=yard, keys=KEYS, nodes=2, optimizer=Moody())
    await master.start()
    running: asyncio.Task[object] = asyncio.create_task(master.run())
    yield Play(master, yard, running)
    if not running.done():
        master.stop("the test is over", grace=timedelta(0))
    await running


async def until_asked(play: Play, count: int) -> JobView:
    async with asyncio.timeout(30):
        while (view := play.master.view()).target != count:
            await asyncio.sleep(0.01)
    return view


async def ran_out_of_memory(play: Play) -> list[Connection]:
    """Two train, and one of them is no more."""
    agents = await play.trains("worker-0", "worker-1")
    limit = NodeSeen(memory_limit=1024 * 1024 * 1024)
    await agents[1].send(Heartbeat(incarnation=1, processes=(), node=limit))
    async with asyncio.timeout(30):
        while play.master.figures().nodes[1].memory_limit is None:
            await asyncio.sleep(0.01)
    assert play.yard.exited is not None
    play.yard.exited(NodeId("worker-1"), ProcessExit(code=137, oom=True))
    return agents


async def test_an_optimizer_that_fails_is_asked_again_and_its_plan_is_followed_and_told(
    play: Play, caplog: pytest.LogCaptureFixture
) -> None:
    agents = await ran_out_of_memory(play)
    view = await until_asked(play, 3)
    assert caplog.text.count("ZeroDivisionError: an algorithm with a fault in it") == 2
    assert "training goes on" in caplog.text
    assert "the optimizer (recover_oom): three are best" in [each.reason for each in view.decisions]
    assert view.sizing is not None
    assert (view.sizing.pending, view.sizing.changes) == ("recover_oom", 1)
    text = play.master.metrics_text().decode()
    assert 'shoal_optimizer_changes_total{algorithm="recover_oom"} 1.0' in text
    assert 'shoal_optimizer_stage{stage="worker_initial"} 1.0' in text
    for agent in agents:
        await agent.close()


async def test_who_scales_by_hand_wins_and_can_give_it_back(play: Play) -> None:
    agents = await ran_out_of_memory(play)
    await until_asked(play, 3)
    play.master.scale(1, who="shoal scale")
    view = play.master.view()
    assert view.sizing is not None
    assert (view.target, view.sizing.pins, view.sizing.pending) == (1, {"worker": "shoal scale worker=1"}, None)
    assert 'shoal_optimizer_pinned{role="worker"} 1.0' in play.master.metrics_text().decode()
    with pytest.raises(BadInput, match="has no ps, so worker=auto ps=auto means nothing to it"):
        play.master.scale_itself(Role.WORKER, Role.PS)
    headers = {"Authorization": f"Bearer {KEYS.token(Purpose.ADMIN)}"}
    async with aiohttp.ClientSession(headers=headers) as http:
        for asked, status in (({"worker": "auto", "ps": 2}, 400), ({"worker": "auto"}, 200)):
            async with http.post(f"{play.master.url}/scale", json=asked) as answer:
                assert answer.status == status
    sizing = play.master.view().sizing
    assert sizing is not None
    assert not sizing.pins
    for agent in agents:
        await agent.close()


async def test_a_job_that_does_not_size_itself_says_so() -> None:
    spec = JobSpec(name="j", uid="j.uid", min_nodes=1, max_nodes=3)
    master = Master(spec, JobSettings(), scaler=Yard(), keys=KEYS, nodes=1)
    with pytest.raises(BadInput, match="started without --autoscale"):
        master.scale_itself(Role.WORKER)
