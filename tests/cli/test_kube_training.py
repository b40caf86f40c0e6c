"""The verbs of `shoal` for a cluster's jobs, asked of TrainingJobs: the same words, the same pages."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.api.builders import EXAMPLES, a_training_job

from shoal.cli import kube_jobs
from shoal.cli.kube_jobs import Cluster
from shoal.core.errors import BadInput, ShoalError
from shoal.platforms.kubernetes.client import Client
from shoal.platforms.kubernetes.fake import FakeApiServer
from shoal.platforms.kubernetes.kinds import ELASTIC_JOBS, SCALE_PLANS, TRAINING_JOBS

STATUS: dict[str, Any] = {
    "phase": "Scaling",
    "reason": "2 of 4 trainers run",
    "conditions": [
        {"type": "Admitted", "status": "True", "reason": "Admitted", "lastTransitionTime": "2026-01-01T00:00:00Z"},
    ],
    "replicaStatuses": [{"role": "trainer", "target": 4, "running": 2, "pending": 2, "failed": 1}],
    "scaleRecords": [{"at": "2026-01-01T00:00:00Z", "from": 2, "to": 4, "reason": "free room"}],
    "scheduling": {"target": 4, "v": "1.5", "at": "2026-01-01T00:00:00Z", "code": "FreeRoom", "reason": "free room"},
}


@pytest.fixture
async def server() -> AsyncIterator[FakeApiServer]:
    async with FakeApiServer() as server:
        server.serve(ELASTIC_JOBS, status=True, scale=("spec.worker.replicas", "status.replicas"))
        server.serve(SCALE_PLANS, status=True)
        server.serve(TRAINING_JOBS, status=True, scale=("spec.trainer.max-instance", "status.replicas"))
        yield server


@pytest.fixture
async def cluster(server: FakeApiServer) -> AsyncIterator[Cluster]:
    async with Client(server.access()) as client:
        written = a_training_job("job-1", trainer={"min-instance": 2, "max-instance": 4})
        meta = {**written["metadata"], "namespace": "default"}
        await client.create(TRAINING_JOBS, {**written, "metadata": meta})
        body = {"metadata": meta, "status": STATUS}
        await client.apply(TRAINING_JOBS, body, manager="shoal-operator", subresource="status")
        yield Cluster(client=client, namespace="default")


def stored(server: FakeApiServer) -> dict[str, Any]:
    (job,) = server.objects(TRAINING_JOBS)
    return job


async def test_submit_takes_the_seeds_job_and_refuses_a_bad_one(
    cluster: Cluster, server: FakeApiServer, tmp_path: Path
) -> None:
    seed = next(path for path in EXAMPLES if path.stem == "seed-trainingjob")
    await cluster.client.delete(TRAINING_JOBS, "job-1", namespace="default")
    await kube_jobs.submit([str(seed)], dry_run=False)(cluster)
    assert stored(server)["spec"]["trainer"]["min-instance"] == 3
    bad = tmp_path / "bad.yaml"
    bad.write_text(seed.read_text().replace("max-instance: 6", "max-instance: 2"))
    with pytest.raises(BadInput, match=r"spec\.trainer\.min-instance: min-instance must not exceed max-instance"):
        kube_jobs.submit([str(bad)], dry_run=False)


async def test_get_shows_it_in_the_columns_of_all_jobs(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    await kube_jobs.get([], output="wide")(cluster)
    head, row = capsys.readouterr().out.splitlines()
    assert head.split()[:3] == ["JOB", "STATE", "WORKERS"]
    assert row.split()[:5] == ["job-1", "Scaling", "2", "4", "1"]
    assert "2 of 4 trainers run" in row


async def test_describe_tells_members_resizes_and_the_schedulers_word(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    await kube_jobs.describe("job-1", output="text")(cluster)
    told = capsys.readouterr().out
    for words in ("job-1 in namespace default: Scaling", "trainer: 2 run, 2 pending", "2 -> 4 trainers: free room"):
        assert words in told
    assert "the scheduler\n  4 allowed: FreeRoom: free room" in told


async def test_scale_suspend_and_stop_are_for_it_too(
    cluster: Cluster, server: FakeApiServer, capsys: pytest.CaptureFixture[str]
) -> None:
    await kube_jobs.scale("job-1", {"worker": 3})(cluster)
    assert stored(server)["spec"]["trainer"]["max-instance"] == 3
    await kube_jobs.suspend("job-1", on=True)(cluster)
    assert stored(server)["spec"]["suspend"] is True
    await kube_jobs.stop("job-1", now=False)(cluster)
    assert server.objects(TRAINING_JOBS) == []
    assert "at most 3 trainers" in capsys.readouterr().out


async def test_who_has_no_such_job_is_told_so(cluster: Cluster) -> None:
    with pytest.raises(ShoalError, match="no job named nobody in namespace default"):
        await kube_jobs.describe("nobody", output="text")(cluster)
