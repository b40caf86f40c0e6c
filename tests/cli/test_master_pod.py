"""`shoal master --kubernetes`: what it must be told, and what it says when it was not."""

import asyncio
import base64
import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from aiohttp import web
from tests.operator.builders import SETTINGS
from tests.operator.stage import Stage, a_stage

from shoal.cli.master import EXIT_HOPELESS, main
from shoal.cli.master_pod import EXIT_TOLD, PORT, Place, place_of, run
from shoal.core.errors import BadInput, Superseded
from shoal.platforms.kubernetes.access import Access
from shoal.platforms.kubernetes.client import Client
from shoal.platforms.kubernetes.errors import Permission
from shoal.platforms.kubernetes.fake import FakeApiServer
from shoal.platforms.kubernetes.kinds import ELASTIC_JOBS
from shoal.platforms.kubernetes.objects import SECRETS

GIVEN = {"SHOAL_JOB": "j", "SHOAL_NAMESPACE": "n", "SHOAL_TERM": "3", "SHOAL_POD_IP": "10.0.0.7"}


def test_a_pods_environment_says_who_the_master_is() -> None:
    place = place_of(GIVEN)
    assert (place.job, place.namespace, place.term, place.port) == ("j", "n", 3, PORT)
    assert "j-master.n.svc" in place.names
    assert place.max_members is None
    assert place_of({**GIVEN, "SHOAL_MAX_MEMBERS": "32"}).max_members == 32
    assert place.autoscale_seconds is None
    assert place_of({**GIVEN, "SHOAL_AUTOSCALE_EVERY": "8"}).autoscale_seconds == 8
    with pytest.raises(BadInput, match="SHOAL_AUTOSCALE_EVERY wants an even number of seconds"):
        place_of({**GIVEN, "SHOAL_AUTOSCALE_EVERY": "often"})
    assert "10.0.0.7" in place.names  # the kubelet asks for its health there


def test_who_makes_the_pods_is_said_by_name() -> None:
    assert place_of(GIVEN).pod_settings is None
    assert place_of({**GIVEN, "SHOAL_SCALER": "pod", "SHOAL_POD_SETTINGS": "{}"}).pod_settings == "{}"
    with pytest.raises(BadInput, match="needs SHOAL_POD_SETTINGS"):
        place_of({**GIVEN, "SHOAL_SCALER": "pod"})
    with pytest.raises(BadInput, match="pod or elasticjob, got 'pods'"):
        place_of({**GIVEN, "SHOAL_SCALER": "pods"})


@pytest.mark.parametrize("name", ["SHOAL_JOB", "SHOAL_NAMESPACE", "SHOAL_TERM"])
def test_what_is_missing_is_named(name: str) -> None:
    with pytest.raises(BadInput, match=f"{name} not set"):
        place_of({key: value for key, value in GIVEN.items() if key != name})


def test_a_term_that_is_no_number_is_refused() -> None:
    with pytest.raises(BadInput, match="SHOAL_TERM, SHOAL_PORT and SHOAL_MAX_MEMBERS must be numbers"):
        place_of({**GIVEN, "SHOAL_TERM": "first"})


async def test_a_missing_secret_is_named_with_what_should_be_there(tmp_path: Path) -> None:
    place = place_of({**GIVEN, "SHOAL_SECRETS": str(tmp_path)})
    with pytest.raises(BadInput, match=r"cannot read .*/agent.*Secret j-token must be mounted"):
        await run(place, Access(server="http://127.0.0.1:1"))


def test_outside_of_a_pod_it_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for name, value in GIVEN.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    assert main(["--kubernetes"]) == EXIT_HOPELESS
    assert "not in a Pod" in capsys.readouterr().err


async def told_while_it_waits(place: Place, access: Access) -> int:
    """Its exit code when the kubelet wants the Pod gone."""
    running = asyncio.create_task(run(place, access))
    asyncio.get_running_loop().call_later(0.3, os.kill, os.getpid(), signal.SIGTERM)
    try:
        async with asyncio.timeout(20):
            return await running
    finally:
        asyncio.get_running_loop().remove_signal_handler(signal.SIGTERM)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    for name in ("agent", "admin", "tls.crt", "tls.key", "fingerprint"):
        (tmp_path / name).write_text("x")
    return place_of({**GIVEN, "SHOAL_NAMESPACE": "default", "SHOAL_SECRETS": str(tmp_path), "SHOAL_JOB_UID": "u-1"})


async def test_told_to_end_while_the_api_server_is_away_it_ends(place: Place) -> None:
    assert await told_while_it_waits(place, Access(server="http://127.0.0.1:1")) == EXIT_TOLD


async def test_told_to_end_while_the_state_cannot_be_had_it_ends(place: Place) -> None:
    def allow(_: str, permission: Permission) -> bool:
        if permission.resource == "secrets":
            raise web.HTTPServiceUnavailable
        return True

    async with FakeApiServer(allow=allow) as server, Client(server.access()) as client:
        server.serve(ELASTIC_JOBS, status=True)
        place = replace(place, uid=await a_job(client))
        assert await told_while_it_waits(place, server.access()) == EXIT_TOLD


async def test_a_master_of_the_job_before_ends_before_it_touches_the_one_of_now(place: Place) -> None:
    async with FakeApiServer() as server, Client(server.access()) as client:
        server.serve(ELASTIC_JOBS, status=True)
        await a_job(client)
        with pytest.raises(Superseded, match="another one now"):
            await run(place, server.access())
        assert {verb for verb, _ in server.calls} == {"create", "get"}


async def a_job(client: Client) -> str:
    template = {"spec": {"containers": [{"name": "main", "image": "i", "command": ["true"]}]}}
    job = {"metadata": {"name": "j", "namespace": "default"}, "spec": {"worker": {"template": template}}}
    uid: str = (await client.create(ELASTIC_JOBS, job))["metadata"]["uid"]
    return uid


async def test_where_masters_make_the_pods_operator_and_master_share_one_job(tmp_path: Path) -> None:
    """Both are real: the operator grants, the master makes, and neither does what is the other's."""
    template = {"spec": {"containers": [{"name": "main", "image": "i", "command": ["true"]}]}}
    async with a_stage(replace(SETTINGS, pod_scaler=True, gpu_resource="amd.com/gpu")) as stage, stage.operator():
        await stage.apply(ELASTIC_JOBS, "mnist", {"worker": {"template": template, "max": 4, "resource": {"gpu": 1}}})
        await stage.until(lambda: "mnist-master-1" in stage.running("master"), "the master's Pod runs")
        assert stage.running() == []
        running = asyncio.create_task(run(placed(stage, tmp_path), stage.server.access()))
        try:
            await stage.until(lambda: stage.running() == ["mnist-worker-0", "mnist-worker-1"], "two asked for and made")
            pod = stage.pods()["mnist-worker-0"]
            (container,) = pod["spec"]["containers"]
            assert container["command"][:2] == ["/shoal/bin/shoal", "agent"]
            assert container["resources"]["limits"] == {"amd.com/gpu": "1"}
            await stage.end("mnist-worker-1", 137)
            await stage.until(lambda: stage.running() == ["mnist-worker-0", "mnist-worker-2"], "it is replaced")
            await stage.apply(ELASTIC_JOBS, "mnist", {"worker": {"template": template, "max": 4, "replicas": 3}})
            await stage.until(lambda: len(stage.running()) == 3, "it grows with the grant")
            await stage.until(lambda: stage.condition("Ready") == ("True", "AllMembersUp"), "the operator sees them")
            assert stage.job()["status"]["grant"]["counts"] == [{"role": "worker", "count": 3}]
            assert not running.done()
        finally:
            running.cancel()
            await asyncio.wait([running])
            asyncio.get_running_loop().remove_signal_handler(signal.SIGTERM)


async def test_a_job_with_limits_and_nothing_else_is_given_cores_and_memory_by_its_first_plan(tmp_path: Path) -> None:
    """Operator and master are real: the plan is the master's optimizer's, the Pods are the operator's."""
    template = {"spec": {"containers": [{"name": "main", "image": "i", "command": ["true"]}]}}
    async with a_stage() as stage, stage.operator():
        limits = {"cpu": 6, "memory": "8Gi"}
        await stage.apply(ELASTIC_JOBS, "mnist", {"worker": {"template": template}, "resourceLimits": limits})
        await stage.until(lambda: "mnist-master-1" in stage.running("master"), "the master's Pod runs")
        running = asyncio.create_task(run(placed(stage, tmp_path), stage.server.access()))
        try:
            await stage.until(lambda: stage.running() == ["mnist-worker-0", "mnist-worker-1"], "two asked for and made")
            asked = stage.plan("mnist-auto")["spec"]
            resource = {"cpu": "3", "memory": "4096Mi"}
            assert asked["replicaResourceSpecs"] == {"worker": {"replicas": 2, "resource": resource}}
            assert asked["reason"].startswith("nothing is known of the job: 2 worker with 3 cores and 4096 MiB each")
            (container,) = stage.pods()["mnist-worker-0"]["spec"]["containers"]
            assert container["resources"]["requests"] == {"cpu": "3", "memory": "4096Mi"}
            assert not running.done()
        finally:
            running.cancel()
            await asyncio.wait([running])
            asyncio.get_running_loop().remove_signal_handler(signal.SIGTERM)


async def test_an_evaluator_without_a_number_comes_with_the_workers_of_a_job_that_sizes_itself(tmp_path: Path) -> None:
    template = {"spec": {"containers": [{"name": "main", "image": "i", "command": ["true"]}]}}
    async with a_stage() as stage, stage.operator():
        roles = {"worker": {"template": template, "resource": {"cpu": 32}}, "evaluator": {"template": template}}
        await stage.apply(ELASTIC_JOBS, "mnist", {"replicaSpecs": roles})
        await stage.until(lambda: "mnist-master-1" in stage.running("master"), "the master's Pod runs")
        running = asyncio.create_task(run(placed(stage, tmp_path), stage.server.access()))
        try:
            await stage.until(lambda: len(stage.running()) == 2, "two workers")
            await stage.until(lambda: stage.running("evaluator") == ["mnist-evaluator-0"], "and an evaluator")
            asked = stage.plan("mnist-auto")["spec"]["replicaResourceSpecs"]
            assert asked == {"evaluator": {"replicas": 1}, "worker": {"replicas": 2}}
            (container,) = stage.pods()["mnist-worker-0"]["spec"]["containers"]
            assert container["resources"]["requests"] == {"cpu": "32"}
        finally:
            running.cancel()
            await asyncio.wait([running])
            asyncio.get_running_loop().remove_signal_handler(signal.SIGTERM)


def placed(stage: Stage, secrets: Path, **more: str) -> Place:
    """The place of the master whose Pod the operator made, with its Secret mounted."""
    (container,) = stage.pods()["mnist-master-1"]["spec"]["containers"]
    for secret in stage.server.objects(SECRETS):
        if secret["metadata"]["name"] == "mnist-token":
            for name, value in secret["data"].items():
                (secrets / name).write_bytes(base64.b64decode(value))
    given = {each["name"]: each["value"] for each in container["env"] if "value" in each}
    return place_of({**given, "SHOAL_SECRETS": str(secrets), "SHOAL_PORT": "0", **more})
