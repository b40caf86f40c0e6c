"""`shoal submit`, `get`, `describe`, `why`, `logs`, `scale`, `suspend` and `stop` against an API server."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from shoal.cli import kube_jobs
from shoal.cli.kube_jobs import Cluster
from shoal.core.errors import BadInput, ShoalError
from shoal.platforms.kubernetes.client import Client, Merge
from shoal.platforms.kubernetes.errors import Forbidden
from shoal.platforms.kubernetes.fake import FakeApiServer
from shoal.platforms.kubernetes.kinds import ELASTIC_JOBS, JOB_RESOURCES, SCALE_PLANS
from shoal.platforms.kubernetes.objects import EVENTS, PODS

JOB = """
apiVersion: elastic.iml.github.io/v1alpha1
kind: ElasticJob
metadata: {name: mnist}
spec:
  distributionStrategy: ring-allreduce
  worker:
    template: {spec: {containers: [{name: main, image: trainer, command: [python, train.py]}]}}
"""
SPEC = {"containers": [{"name": "main", "image": "trainer"}]}
STATUS = {
    "conditions": [
        {"type": "Ready", "status": "True", "reason": "Training", "lastTransitionTime": "2026-01-01T00:00:00Z"},
        {
            "type": "Degraded",
            "status": "True",
            "reason": "ImagePull",
            "message": "image trainer:7 cannot be pulled",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        },
    ],
    "roles": [{"role": "worker", "asked": 3, "granted": 2, "running": 2}],
    "world": 4,
    "grant": {"generation": 2, "counts": [{"role": "worker", "count": 2}], "reason": "all that fits"},
    "lastDecision": {"reason": "worker 2 granted", "at": "2026-01-01T00:00:00Z"},
    "training": {
        "phase": "running",
        "world": 4,
        "worldSize": 2,
        "step": 1200,
        "error": "Traceback\nValueError: no",
        "lastDecision": {"reason": "world 4: 2 processes", "at": "2026-01-01T00:00:01Z"},
        "scores": [{"step": 600}, {"step": 900, "metrics": [{"name": "auc", "value": "0.71"}]}],
    },
}


@pytest.fixture
async def server() -> AsyncIterator[FakeApiServer]:
    async with FakeApiServer() as server:
        server.serve(ELASTIC_JOBS, status=True, scale=("spec.worker.replicas", "status.replicas"))
        server.serve(SCALE_PLANS, status=True)
        server.serve(JOB_RESOURCES, status=True)
        yield server


@pytest.fixture
async def cluster(server: FakeApiServer) -> AsyncIterator[Cluster]:
    async with Client(server.access()) as client:
        yield Cluster(client=client, namespace="default")


@pytest.fixture
async def job(cluster: Cluster, tmp_path: Path) -> str:
    file = tmp_path / "job.yaml"
    file.write_text(JOB)
    await kube_jobs.submit([str(file)], dry_run=False)(cluster)
    found = await cluster.client.get(ELASTIC_JOBS, "mnist", namespace="default")
    await cluster.client.replace(ELASTIC_JOBS, {**found, "status": STATUS}, subresource="status")
    return "mnist"


async def spec(cluster: Cluster) -> dict[str, Any]:
    found = await cluster.client.get(ELASTIC_JOBS, "mnist", namespace="default")
    return dict(found["spec"])


async def test_a_job_is_created_then_configured(cluster: Cluster, tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "job.yaml").write_text(JOB)
    await kube_jobs.submit([str(tmp_path / "job.yaml")], dry_run=False)(cluster)
    await kube_jobs.submit([str(tmp_path / "job.yaml")], dry_run=False)(cluster)
    said = capsys.readouterr().out
    assert said.splitlines() == ["ElasticJob default/mnist created", "ElasticJob default/mnist configured"]


async def test_nothing_is_sent_when_one_document_is_bad(cluster: Cluster, tmp_path: Path) -> None:
    file = tmp_path / "two.yaml"
    file.write_text(JOB + "---\nkind: Secret\nmetadata: {name: x}\n")
    with pytest.raises(BadInput, match="document 2"):
        await kube_jobs.submit([str(file)], dry_run=False)(cluster)
    assert (await cluster.client.list(ELASTIC_JOBS, namespace="default")).items == ()


async def test_a_dry_run_changes_nothing(cluster: Cluster, tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "job.yaml").write_text(JOB)
    await kube_jobs.submit([str(tmp_path / "job.yaml")], dry_run=True)(cluster)
    assert "created (dry run)" in capsys.readouterr().out
    assert (await cluster.client.list(ELASTIC_JOBS, namespace="default")).items == ()


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"none\.yaml cannot be read: No such file"):
        kube_jobs.submit([str(tmp_path / "none.yaml")], dry_run=False)


async def test_jobs_are_listed_as_a_table_as_json_and_as_yaml(cluster: Cluster, job: str, capsys: Any) -> None:
    capsys.readouterr()
    await kube_jobs.get([], output="table")(cluster)
    titles, row = capsys.readouterr().out.splitlines()
    assert titles.split()[:4] == ["JOB", "STATE", "WORKERS", "ASKED"]
    assert row.split()[:6] == ["mnist", "Training", "2", "3", "4", "1,200"]
    await kube_jobs.get([job], output="json")(cluster)
    assert json.loads(capsys.readouterr().out)["metadata"]["name"] == "mnist"
    await kube_jobs.get([], output="yaml")(cluster)
    assert yaml.safe_load(capsys.readouterr().out)["items"][0]["status"]["world"] == 4
    await kube_jobs.get([], output="wide")(cluster)
    assert "worker 2 granted" in capsys.readouterr().out


async def test_describe_shows_members_conditions_and_the_last_error(cluster: Cluster, job: str, capsys: Any) -> None:
    await kube_jobs.describe(job, output="table")(cluster)
    said = capsys.readouterr().out
    for part in ("worker: 2 run", "3 asked for, 2 granted", "all that fits", "image trainer:7", "ValueError: no"):
        assert part in said
    assert "scored at step 600: not\n  scored at step 900: auc 0.71\n" in said


async def test_why_tells_decisions_what_is_waited_for_and_what_was_trimmed(
    cluster: Cluster, job: str, capsys: Any
) -> None:
    await cluster.client.create(
        EVENTS,
        {
            "metadata": {"name": "e", "namespace": "default"},
            "regarding": {"kind": "Pod", "name": "mnist-worker-0", "namespace": "default"},
            "reason": "MemberLost",
            "note": "worker-0 was\x1b[2J lost",
            "type": "Warning",
            "eventTime": "2026-01-01T00:00:05.000001Z",
        },
    )
    await kube_jobs.why(job, output="table")(cluster)
    said = capsys.readouterr().out
    order = [said.index(part) for part in ("MemberLost", "master: world 4", "operator: worker 2 granted", "ImagePull")]
    assert order == sorted(order)
    assert "worker: 3 asked for, 2 granted" in said
    assert "\x1b" not in said


async def test_what_the_job_finds_best_is_what_nobody_asks_for(cluster: Cluster, job: str) -> None:
    await kube_jobs.scale(job, {"worker": 3})(cluster)
    await kube_jobs.scale(job, {"worker": None})(cluster)
    found = await cluster.client.get(ELASTIC_JOBS, job, namespace=cluster.namespace)
    assert "replicas" not in found["spec"]["worker"]


async def test_servers_are_asked_for_and_given_back_as_workers_are(cluster: Cluster, job: str) -> None:
    with pytest.raises(BadInput, match=r"mnist has no spec\.parameterServer, so ps=2 means nothing to it"):
        await kube_jobs.scale(job, {"ps": 2})(cluster)
    template = (await spec(cluster))["worker"]["template"]
    patch = Merge({"spec": {"parameterServer": {"template": template}}})
    await cluster.client.patch(ELASTIC_JOBS, job, patch, namespace=cluster.namespace)
    await kube_jobs.scale(job, {"ps": 2, "worker": 3})(cluster)
    now = await spec(cluster)
    assert (now["parameterServer"]["replicas"], now["worker"]["replicas"]) == (2, 3)
    await kube_jobs.scale(job, {"ps": None})(cluster)
    now = await spec(cluster)
    assert "replicas" not in now["parameterServer"]
    assert now["worker"]["replicas"] == 3


async def test_scaling_writes_the_scale_subresource_and_suspending_the_spec(cluster: Cluster, job: str) -> None:
    await kube_jobs.scale(job, {"worker": 3})(cluster)
    await kube_jobs.suspend(job, on=True)(cluster)
    now = await spec(cluster)
    assert (now["worker"]["replicas"], now["suspend"]) == (3, True)
    await kube_jobs.suspend(job, on=False)(cluster)
    assert (await spec(cluster))["suspend"] is False


async def test_stop_deletes_just_the_job_that_was_looked_at(cluster: Cluster, job: str, capsys: Any) -> None:
    await kube_jobs.stop(job, now=False)(cluster)
    assert "deleted" in capsys.readouterr().out
    with pytest.raises(ShoalError, match="no job named mnist in namespace default"):
        await kube_jobs.stop(job, now=False)(cluster)


async def test_logs_of_a_pod_that_is_not_there_name_those_that_are(cluster: Cluster, job: str) -> None:
    labels = {"elastic.iml.github.io/job-name": "mnist", "elastic.iml.github.io/role": "worker"}
    pod = {"metadata": {"name": "mnist-worker-4", "namespace": "default", "labels": labels}, "spec": SPEC}
    await cluster.client.create(PODS, pod)
    with pytest.raises(ShoalError, match="its Pods are: mnist-worker-4"):
        await kube_jobs.logs(job, rank=None, node="worker-9", follow=False)(cluster)


async def test_a_missing_permission_is_named() -> None:
    async with FakeApiServer(tokens={"t": "jane"}, allow=lambda user, wanted: False) as server:
        server.serve(ELASTIC_JOBS, status=True)
        async with Client(server.access("t")) as client:
            with pytest.raises(Forbidden, match="elasticjobs"):
                await kube_jobs.get([], output="table")(Cluster(client=client, namespace="default"))
