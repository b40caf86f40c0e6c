"""A whole `shoal operator` in this process, on an API server that behaves."""

import asyncio
import re
from functools import partial

import aiohttp
import pytest
from tests.cli.test_operator import config_of
from tests.operator.builders import a_role
from tests.operator.test_scheduling_loop import QUICK, Crowded, crowded

from shoal.cli.operator import serve
from shoal.platforms.kubernetes.kinds import ELASTIC_JOBS, TRAINING_JOBS

WORDS = ("--skip-checks", "--listen", "127.0.0.1:0", "--home", "default", "--scheduler-settings", "shoal-scheduler")


async def test_one_operator_leads_schedules_and_answers_and_the_next_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="shoal.operator")
    async with crowded("a") as stage:
        stage.server.serve(TRAINING_JOBS, status=True)
        await stage.configure(QUICK)
        await stage.apply(ELASTIC_JOBS, "mnist", {"worker": a_role(replicas=2)})
        for workers in (2, 3):
            running = asyncio.create_task(serve(config_of(*WORDS), stage.server.access()))
            try:
                await stage.apply(ELASTIC_JOBS, "mnist", {"worker": a_role(replicas=workers)})
                await stage.until(partial(is_settled, stage, running, workers), "all run")
                await _answers(re.findall(r"serves (http://\S+)/metrics", caplog.text)[-1])
            finally:
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)
        assert stage.job()["status"]["scheduling"]["target"] == 3


def is_settled(stage: Crowded, running: asyncio.Task[None], workers: int) -> bool:
    if running.done():
        running.result()
    return len(stage.running()) == workers and stage.condition("Ready") == ("True", "AllMembersUp")


async def _answers(url: str) -> None:
    async with aiohttp.ClientSession() as http:
        for path in ("healthz", "readyz"):
            async with http.get(f"{url}/{path}") as answer:
                assert answer.status == 200
        async with http.get(f"{url}/metrics") as answer:
            text = await answer.text()
    assert 'shoal_leader{replica_role="leader"} 1.0' in text
    assert 'shoal_resizes_total{direction="up",result="granted",trigger="user"} 1.0' in text
