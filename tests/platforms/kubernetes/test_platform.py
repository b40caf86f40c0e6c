"""A master's own job in the cluster: how it is read and understood, and what is reported of it."""

import asyncio
import math
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from tests.core.job_builders import Story
from tests.core.ps_stories import PSStory

from shoal.api.elasticjob import ElasticJob, Role, Training
from shoal.brain.algorithms.local import LocalOptimizer
from shoal.core.errors import BadInput, Superseded
from shoal.core.job import JobSettings, PSSpec, handle, new_job
from shoal.core.job.values import Job
from shoal.core.nodes import Role as CoreRole
from shoal.core.plans import NodeResource, ResourcePlan
from shoal.core.ps.evaluation import Score
from shoal.core.saving import CheckpointSpec
from shoal.core.sizing import answered, look_at
from shoal.core.stages import JobResourceOptimizer
from shoal.core.statistics import Statistics
from shoal.platforms.kubernetes.backoff import Backoff
from shoal.platforms.kubernetes.client import Client
from shoal.platforms.kubernetes.errors import Permission
from shoal.platforms.kubernetes.fake import FakeApiServer
from shoal.platforms.kubernetes.kinds import ELASTIC_JOBS
from shoal.platforms.kubernetes.platform import (
    EVERY,
    Reporter,
    first_ask,
    managed_roles,
    optimizer_settings,
    read_job,
    training_of,
    understood,
)

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


def on_a_volume(kind: dict[str, Any]) -> dict[str, Any]:
    container = {**TEMPLATE["spec"]["containers"][0], "volumeMounts": [{"name": "models", "mountPath": "/ckpt"}]}
    return {"spec": {"containers": [container], "volumes": [{"name": "models", **kind}]}}


def test_a_job_that_says_nothing_has_the_defaults() -> None:
    spec = understood(a_job())
    assert (spec.name, spec.uid, spec.min_nodes, spec.max_nodes, spec.nproc) == ("j", "u", 1, 8, 1)
    assert (spec.max_restarts, spec.memory_limit, spec.platform_grows) == (3, None, True)
    assert spec.checkpoint == CheckpointSpec()


def test_what_a_job_says_reaches_its_master() -> None:
    worker = {"min": 2, "max": 6, "restartCount": 0, "resource": {"gpu": 4, "memory": "8Gi"}}
    often = understood(a_job(checkpoint={"path": "/ckpt", "everySeconds": 60, "keep": 5})).checkpoint
    assert (often.seconds, often.keep) == (60, 5)
    spec = understood(a_job(worker, nodeUnit=2, resourceLimits={"memory": "64Gi"}, globalBatch=48))
    assert (spec.min_nodes, spec.max_nodes, spec.nproc, spec.node_unit, spec.max_restarts) == (2, 6, 4, 2, 0)
    assert spec.memory_limit_of(CoreRole.WORKER) == 32 * 1024  # what two could have
    assert spec.micro_batches == 48
    assert understood(a_job(worker)).micro_batches == 6 * 4


def test_the_memory_of_a_job_is_shared_by_the_fewest_of_each_role() -> None:
    servers = {"template": TEMPLATE, "min": 4, "max": 8}
    spec = understood(a_job({"min": 2}, parameterServer=servers, resourceLimits={"memory": "64Gi"}))
    assert spec.memory_limit_of(CoreRole.WORKER) == 32 * 1024
    assert spec.memory_limit_of(CoreRole.PS) == 16 * 1024
    assert spec.memory_limit_of(CoreRole.EVALUATOR) == 64 * 1024


REQUESTS = {
    "spec": {
        "containers": [{**TEMPLATE["spec"]["containers"][0], "resources": {"requests": {"cpu": 32, "memory": "128Gi"}}}]
    }
}
LARGE = [
    pytest.param({"resource": {"cpu": "32", "memory": "128Gi"}}, id="in-the-spec"),
    pytest.param({"template": REQUESTS}, id="in-the-template"),
]


def planned_first(job: ElasticJob) -> tuple[Job, ResourcePlan]:
    """The job, as its optimizer's first plan finds it, and that plan."""
    spec = understood(job)
    settings = JobSettings(optimizer=optimizer_settings(spec))
    begun, _ = new_job(spec, settings, nodes=0, now=T0)
    look = look_at(begun, Statistics(), T0)
    assert look is not None
    sized = answered(look, JobResourceOptimizer(LocalOptimizer(), settings.optimizer))
    assert sized.plan is not None
    return handle(begun, sized, T0)[0], sized.plan


@pytest.mark.parametrize("worker", LARGE)
def test_what_the_user_gives_workers_is_not_cut_by_the_first_plan(worker: dict[str, Any]) -> None:
    job, plan = planned_first(a_job({"replicas": 4, "min": 4, "max": 4, **worker}))
    group = plan.node_group_resources["worker"]
    assert (group.node_resource.cpu, group.node_resource.memory) == (32.0, 128 * 1024)
    assert "4 worker with 32 cores and 131072 MiB each" in plan.reason
    assert job.wanted[CoreRole.WORKER] == NodeResource(), "what is the user's to say is not asked for"


@pytest.mark.parametrize("worker", LARGE)
def test_a_worker_that_runs_out_of_what_its_user_gave_it_may_get_twice_that(worker: dict[str, Any]) -> None:
    sizing = understood(a_job(worker)).sizing
    assert sizing is not None
    assert (sizing.limits.node_cpu, sizing.limits.node_memory) == (32.0, 256 * 1024)
    within = understood(a_job(worker, resourceLimits={"memory": "160Gi"})).sizing
    assert within is not None
    assert within.limits.node_memory == 160 * 1024


@pytest.mark.parametrize("server", LARGE)
def test_what_the_user_gives_parameter_servers_is_theirs_as_it_is_the_workers(server: dict[str, Any]) -> None:
    job, plan = planned_first(a_job(parameterServer={"template": TEMPLATE, "min": 2, **server}))
    group = plan.node_group_resources["ps"]
    assert (group.count, group.node_resource) == (2, NodeResource(cpu=32.0, memory=128 * 1024))
    assert job.sizing.asked["ps"] == group
    assert job.wanted[CoreRole.PS] == NodeResource(), "what is the user's to say is not asked for"
    assert job.wanted[CoreRole.WORKER] == NodeResource(), "nobody knows what fits a host"
    assert job.spec.sizing is not None
    assert job.spec.sizing.limits.node_memory == 256 * 1024


def test_a_job_with_parameter_servers_sizes_itself_unless_its_user_does() -> None:
    servers = {"template": TEMPLATE}
    job, plan = planned_first(a_job(parameterServer=servers, resourceLimits={"cpu": 6, "memory": "12Gi"}))
    each = NodeResource(cpu=2.0, memory=4096)
    assert {role: (group.count, group.node_resource) for role, group in plan.node_group_resources.items()} == {
        "worker": (2, each),
        "ps": (1, each),
    }
    assert job.wanted == {CoreRole.WORKER: each, CoreRole.PS: each}
    assert understood(a_job(parameterServer=servers, optimizeMode="manual")).sizing is None


def test_a_job_with_parameter_servers_tells_its_master_of_all_its_roles() -> None:
    role = {"template": on_a_volume({"hostPath": {"path": "/models"}})}
    job = a_job(
        {**role, "resource": {"gpu": 2}},
        parameterServer={**role, "min": 2, "max": 5},
        evaluator=role,
        checkpoint={"path": "/ckpt", "fuzzy": True},
    )
    spec = understood(job)
    assert spec.checkpoint.fuzzy
    assert not understood(a_job()).checkpoint.fuzzy
    assert spec.ps == PSSpec(min_servers=2, max_servers=5, evaluator=True, checkpoint_dir="/ckpt/j.u")
    assert spec.nproc == 1  # one process that sees both devices
    assert managed_roles(job) == frozenset(Role)
    assert managed_roles(a_job()) == {Role.WORKER}


def test_a_master_knows_why_its_checkpoint_path_ends_with_its_pods() -> None:
    role = {"template": on_a_volume({"emptyDir": {}})}
    spec = understood(a_job(role, parameterServer=role, checkpoint={"path": "/ckpt"})).ps
    assert spec is not None
    assert "/ckpt is on the volume models (emptyDir)" in spec.fleeting


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


def test_the_report_tells_of_the_last_scores_whatever_the_script_has_computed() -> None:
    story = PSStory(evaluator=True)
    assert training_of(story.view, term=1).scores is None
    some = {f"m{n}": float(n) for n in range(30)}
    odd = {"a" * 100: math.nan, "auc": 0.71234567, "": -math.inf, **some}
    scores = tuple(Score(path="p", step=step, metrics=odd if step == 12 else {}) for step in range(13))
    story.job = replace(story.job, evaluation=replace(story.job.evaluation, scores=scores))
    report = training_of(story.view, term=1)
    assert report.scores is not None
    assert [score.step for score in report.scores] == list(range(3, 13))
    assert report.scores[0].metrics is None, "it could not be scored"
    last = {metric.name: metric.value for metric in report.scores[-1].metrics or ()}
    assert (last[""], last["auc"], len(last)) == ("-inf", "0.712346", 16)
    assert all(len(name) <= 64 for name in last)


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
