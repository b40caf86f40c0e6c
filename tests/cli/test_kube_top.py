"""`shoal top` of a job in a cluster: what its status tells, and what is said when it tells nothing."""

import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import pytest

from shoal.cli import kube_top
from shoal.cli.kube_jobs import Cluster
from shoal.core.errors import ShoalError
from shoal.platforms.kubernetes.client import Client
from shoal.platforms.kubernetes.fake import FakeApiServer
from shoal.platforms.kubernetes.kinds import ELASTIC_JOBS

JOB = {
    "apiVersion": "elastic.iml.github.io/v1alpha1",
    "kind": "ElasticJob",
    "metadata": {"name": "mnist", "namespace": "default"},
    "spec": {"worker": {"template": {"spec": {"containers": [{"name": "main", "image": "trainer"}]}}}},
}
NODE = {"name": "worker-0", "rank": 0, "processes": 1, "cpu": "1.25", "cpuLimit": "2", "memory": "512Mi"}
TRAINING = {
    "phase": "running",
    "worldSize": 1,
    "step": 1200,
    "figures": {"at": "2026-01-01T00:00:00Z", "samplesPerSecond": "312.5", "speeds": ["1", "2"], "nodes": [NODE]},
}


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with FakeApiServer() as server:
        server.serve(ELASTIC_JOBS, status=True)
        async with Client(server.access()) as client:
            yield Cluster(client=client, namespace="default")


async def submit(cluster: Cluster, training: dict[str, Any] | None) -> None:
    created = await cluster.client.create(ELASTIC_JOBS, JOB)
    if training is not None:
        body = {**created, "status": {"training": training}}
        await cluster.client.replace(ELASTIC_JOBS, body, subresource="status")


async def top(cluster: Cluster, *, output: str = "table", node: str | None = None) -> None:
    await kube_top.top("mnist", once=True, output=output, node=node)(cluster)


async def test_figures_of_a_status_are_shown_as_a_table_as_json_and_as_yaml(cluster: Cluster, capsys: Any) -> None:
    await submit(cluster, TRAINING)
    await top(cluster)
    shown = capsys.readouterr().out
    assert all(word in shown for word in ("mnist", "step 1,200", "312.5 samples/s", "worker-0", "1.25/2", "512 MiB"))
    await top(cluster, output="json", node="worker-0")
    assert json.loads(capsys.readouterr().out)["nodes"][0]["cpu"] == 1.25
    await top(cluster, output="yaml")
    assert "samples_per_second: 312.5" in capsys.readouterr().out


async def test_figures_that_are_old_say_so(cluster: Cluster, capsys: Any) -> None:
    figures = dict[str, Any](TRAINING["figures"])  # type: ignore[call-overload]
    await submit(cluster, {**TRAINING, "figures": {**figures, "at": datetime.now(UTC).isoformat()}})
    await top(cluster)
    assert "ago" not in capsys.readouterr().out
    job = await cluster.client.get(ELASTIC_JOBS, "mnist", namespace="default")
    await cluster.client.replace(ELASTIC_JOBS, {**job, "status": {"training": TRAINING}}, subresource="status")
    await top(cluster)
    assert "as it was" in capsys.readouterr().out


async def test_a_job_that_told_nothing_and_one_that_is_not_there_are_named(cluster: Cluster) -> None:
    with pytest.raises(ShoalError, match="no ElasticJob named mnist in namespace default"):
        await top(cluster)
    await submit(cluster, None)
    with pytest.raises(ShoalError, match="has told no figures yet"):
        await top(cluster)


async def test_a_node_that_is_not_told_of_is_named_with_those_that_are(cluster: Cluster) -> None:
    await submit(cluster, TRAINING)
    with pytest.raises(ShoalError, match="nothing of a node named worker-5; it does of: worker-0"):
        await top(cluster, node="worker-5")
