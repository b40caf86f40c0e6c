"""A whole `shoal operator` in this process, on an API server that behaves."""

import asyncio
import re
import threading
from functools import partial

import aiohttp
import pytest
from tests.cli.test_operator import config_of
from tests.operator.builders import a_role
from tests.operator.stage import PATIENCE
from tests.operator.test_scheduling_loop import QUICK, Crowded, crowded

from shoal.cli.operator import serve
from shoal.operator.http import why_unhealthy
from shoal.platforms.kubernetes.kinds import ELASTIC_JOBS, TRAINING_JOBS
from shoal.scheduler.decisions import Decisions
from shoal.scheduler.policies import POLICIES, Entry, policy
from shoal.scheduler.settings import SchedulerSettings
from shoal.scheduler.snapshot import Snapshot

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


async def test_an_operator_whose_scheduler_is_stuck_in_a_round_is_not_healthy_until_that_ends(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level("INFO", logger="shoal.operator")
    goes_on = threading.Event()

    def stuck(snapshot: Snapshot, now: float, settings: SchedulerSettings) -> Decisions:
        if threading.current_thread() is not threading.main_thread():  # there settings are tried out
            goes_on.wait()
        return policy("cfs")(snapshot, now, settings)

    monkeypatch.setitem(POLICIES, "stuck", Entry(policy=stuck, summary="never decides"))  # type: ignore[arg-type]
    async with crowded("a") as stage, aiohttp.ClientSession() as http:
        stage.server.serve(TRAINING_JOBS, status=True)
        await stage.configure("{policy: stuck, interval: 0.2, spacing: 0.05, roundTimeout: 1}")
        config = config_of(*WORDS, "--round-stuck-seconds", "0.1")
        running = asyncio.create_task(serve(config, stage.server.access()))

        async def says(status: int) -> str:
            """What /healthz says as soon as it says this."""
            async with asyncio.timeout(PATIENCE):
                while True:
                    for url in re.findall(r"serves (http://\S+)/metrics", caplog.text)[-1:]:
                        async with http.get(f"{url}/healthz") as answer:
                            if answer.status == status:
                                return await answer.text()
                    await asyncio.sleep(0.05)

        try:
            assert await says(200) == "ok\n", "what has just begun is no trouble"
            assert "no round of the scheduler has come to an end for" in await says(503)
            goes_on.set()
            assert await says(200) == "ok\n"
        finally:
            goes_on.set()
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


async def _answers(url: str) -> None:
    async with aiohttp.ClientSession() as http:
        for path in ("healthz", "readyz"):
            async with http.get(f"{url}/{path}") as answer:
                assert answer.status == 200
        async with http.get(f"{url}/metrics") as answer:
            text = await answer.text()
    assert 'shoal_leader{replica_role="leader"} 1.0' in text
    assert 'shoal_resizes_total{direction="up",result="granted",trigger="user"} 1.0' in text
    assert 'shoal_goodput_ratio{queue="default"}' in text


@pytest.mark.parametrize(
    ("loop", "elector", "rounds", "said"),
    [
        pytest.param(1.0, 2.0, 3.0, None, id="all-is-well"),
        pytest.param(61.0, 2.0, 3.0, "event loop has not come round for 61 s", id="the-loop-is-starved"),
        pytest.param(1.0, 90.0, 3.0, "lease has not been tried for since 90 s", id="the-elector-is-stuck"),
        pytest.param(1.0, 59.0, 599.0, None, id="a-try-may-take-its-time"),
        pytest.param(1.0, 2.0, 601.0, "no round of the scheduler has come to an end for 601 s", id="a-round-is-stuck"),
        pytest.param(1.0, 2.0, None, None, id="another-makes-the-rounds"),
    ],
)
def test_a_process_that_is_stuck_is_not_healthy(
    loop: float, elector: float, rounds: float | None, said: str | None
) -> None:
    why = why_unhealthy(
        loop_idle=loop, elector_idle=elector, lease_seconds=15.0, round_idle=rounds, round_patience=600.0
    )
    assert (why is None) if said is None else (said in (why or ""))


def test_long_leases_are_tried_for_less_often() -> None:
    assert why_unhealthy(loop_idle=1.0, elector_idle=100.0, lease_seconds=60.0) is None
