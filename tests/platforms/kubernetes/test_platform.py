"""A master's own job in the cluster: how it is read and understood, and what is reported of it."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from tests.core.job_builders import Story

from shoal.api.elasticjob import ElasticJob, Role, Training
from shoal.core.errors import BadInput, Superseded
from shoal.platforms.kubernetes.backoff import Backoff
from shoal.platforms.kubernetes.client import Client
from shoal.platforms.kubernetes.errors import Permission
from shoal.platforms.kubernetes.fake import FakeApiServer
from shoal.platforms.kubernetes.kinds import ELASTIC_JOBS
from shoal.platforms.kubernetes.platform import EVERY, Reporter, first_ask, read_job, training_of, understood

T0 = datetime(2026, 1, 1, tzinfo=UTC)
TEMPLATE = {"spec": {"containers": [{"name": "main", "image": "i", "command": ["python", "train.py"]}]}}


def a_job(worker: dict[str, Any] | None = None, **spec: Any) -> ElasticJob:
    written = {
        "apiVersion": "elastic.iml.github.io/v1alpha1",
        "kind": "ElasticJob",
        "metadata": {"name": "j", "namespace": "default", "uid": "u"},
        "spec": {"worker": {"template": TEMPLATE, **(worker or {})}, **spec},
    }
    return msgspec.convert(written, ElasticJob)


def test_a_job_that_says_nothing_has_the_defaults() -> None:
    spec = understood(a_job())
    assert (spec.name, spec.uid, spec.min_nodes, spec.max_nodes, spec.nproc) == ("j", "u", 1, 8, 1)
    assert (spec.max_restarts, spec.memory_limit, spec.platform_grows) == (3, None, True)


def test_what_a_job_says_reaches_its_master() -> None:
    worker = {"min": 2, "max": 6, "restartCount": 0, "resource": {"gpu": 4, "memory": "8Gi"}}
    spec = understood(a_job(worker, nodeUnit=2, resourceLimits={"memory": "64Gi"}, globalBatch=48))
    assert (spec.min_nodes, spec.max_nodes, spec.nproc, spec.node_unit, spec.max_restarts) == (2, 6, 4, 2, 0)
    assert spec.memory_limit == 32 * 1024  # what two could have
    assert spec.micro_batches == 48
    assert understood(a_job(worker)).micro_batches == 6 * 4


@pytest.mark.parametrize(
    ("worker", "spec", "asked"),
    [
        pytest.param({}, {}, {Role.WORKER: 2}, id="two-workers"),
        pytest.param({"max": 1}, {}, {Role.WORKER: 1}, id="never-more-than-max"),
        pytest.param({"min": 5}, {}, {Role.WORKER: 5}, id="never-fewer-than-min"),
        pytest.param({"max": 8}, {"nodeUnit": 4}, {Role.WORKER: 4}, id="whole-units"),
        pytest.param({}, {"optimizeMode": "manual"}, {}, id="manual"),
        pytest.param(
            {}, {"parameterServer": {"template": TEMPLATE}}, {Role.WORKER: 2, Role.PS: 1}, id="parameter-server"
        ),
    ],
)
def test_what_a_master_asks_for_first(worker: dict[str, Any], spec: dict[str, Any], asked: dict[Role, int]) -> None:
    assert first_ask(a_job(worker, **spec)) == asked


def test_the_report_tells_of_the_world_and_the_last_decision() -> None:
    story = Story(nodes=2)
    story.train("worker-0", "worker-1")
    report = training_of(story.view, term=4)
    assert (report.phase, report.term, report.world, report.world_size, report.sdk) == ("running", 4, 1, 2, True)
    assert report.last_decision is not None
    assert report.last_decision.reason.startswith("world 1: 2 processes")


def test_long_words_are_cut() -> None:
    story = Story(nodes=1)
    story.train("worker-0")
    story.crash("worker-0", 76, error="x" * 20_000)
    report = training_of(story.view, term=1)
    assert report.error == "x" * 8192


# Reporting ---------------------------------------------------------------------------------------------------------


class HandClock:
    def __init__(self) -> None:
        self.time = T0

    def now(self) -> datetime:
        return self.time


@pytest.fixture
async def server() -> AsyncIterator[FakeApiServer]:
    async with FakeApiServer() as server:
        server.serve(ELASTIC_JOBS, status=True)
        yield server


async def created(client: Client) -> str:
    job = msgspec.to_builtins(a_job())
    job["metadata"].pop("uid", None)
    uid: str = (await client.create(ELASTIC_JOBS, job))["metadata"]["uid"]
    return uid


async def reported(client: Client, step: int) -> dict[str, Any]:
    async with asyncio.timeout(20):
        while True:
            job = await client.get(ELASTIC_JOBS, "j", namespace="default")
            found: dict[str, Any] = job.get("status", {}).get("training") or {}
            if found.get("step") == step:
                return found
            await asyncio.sleep(0.02)


async def test_progress_is_reported_now_and_then_and_a_change_of_phase_at_once(server: FakeApiServer) -> None:
    report, clock = Training(phase="running", step=1), HandClock()
    async with Client(server.access()) as client:
        uid = await created(client)
        reporter = Reporter(client, namespace="default", name="j", uid=uid, look=lambda: report, now=clock.now)
        task = asyncio.create_task(reporter.run())
        await reported(client, 1)
        report = Training(phase="running", step=2)
        await asyncio.sleep(1.2)  # two looks
        assert (await client.get(ELASTIC_JOBS, "j", namespace="default"))["status"]["training"]["step"] == 1
        clock.time += EVERY
        await reported(client, 2)
        report = Training(phase="succeeded", step=3)
        assert (await reported(client, 3))["phase"] == "succeeded"
        task.cancel()


async def test_the_last_word_is_said_until_it_is_accepted() -> None:
    refusals = iter([False, False, True])

    def allow(_: str, permission: Permission) -> bool:
        return permission.resource != "elasticjobs/status" or next(refusals, True)

    async with FakeApiServer(allow=allow) as server, Client(server.access()) as client:
        server.serve(ELASTIC_JOBS, status=True)
        uid = await created(client)
        reporter = Reporter(
            client,
            namespace="default",
            name="j",
            uid=uid,
            look=lambda: Training(phase="failed", step=9),
            now=lambda: T0 + timedelta(0),
            backoff=Backoff(first_seconds=0.01),
        )
        await reporter.last_word()
        assert (await reported(client, 9))["phase"] == "failed"


async def test_a_job_that_is_gone_ends_the_last_word(server: FakeApiServer) -> None:
    async with Client(server.access()) as client:
        reporter = Reporter(client, namespace="default", name="j", uid="u-1", look=Training, now=lambda: T0)
        await reporter.last_word()


async def test_nothing_is_said_of_another_job_of_the_same_name(server: FakeApiServer) -> None:
    async with Client(server.access()) as client:
        uid = await created(client)
        over = Training(phase="succeeded", term=1)
        reporter = Reporter(client, namespace="default", name="j", uid=uid, look=lambda: over, now=lambda: T0)
        await client.delete(ELASTIC_JOBS, "j", namespace="default")
        await created(client)
        with pytest.raises(Superseded, match="another one now"):
            await reporter.last_word()
        with pytest.raises(Superseded, match="another one now"):
            await reporter.run()
        assert "status" not in await client.get(ELASTIC_JOBS, "j", namespace="default")


# Reading -----------------------------------------------------------------------------------------------------------


async def test_what_is_wrong_with_reading_the_job_says_what_to_do(server: FakeApiServer) -> None:
    async with Client(server.access()) as client:
        with pytest.raises(BadInput, match="no ElasticJob default/j: it was deleted"):
            await read_job(client, "default", "j")
    async with FakeApiServer() as bare, Client(bare.access()) as client:
        with pytest.raises(BadInput, match=r"does not serve elasticjobs.*install\.yaml"):
            await read_job(client, "default", "j")

    def allow(_: str, permission: Permission) -> bool:
        return permission.resource != "elasticjobs"

    async with FakeApiServer(tokens={"t": "jane"}, allow=allow) as strict, Client(strict.access("t")) as client:
        strict.serve(ELASTIC_JOBS, status=True)
        with pytest.raises(BadInput, match=r"lacks the permission to get elasticjobs.*j-master"):
            await read_job(client, "default", "j")
