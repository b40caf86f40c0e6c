"""How soon a job is looked at after what was heard of it: at once when somebody asks, later when there is only news."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tests.platforms.kubernetes.builders import QUICK_CLIENT, QUICK_INFORMER, until

from shoal.api.labels import JOB_NAME, JOB_UID, MASTER, ROLE, TERM
from shoal.platforms.kubernetes.client import Client, Merge
from shoal.platforms.kubernetes.cluster import KubernetesCluster
from shoal.platforms.kubernetes.events import Recorder
from shoal.platforms.kubernetes.fake import FakeApiServer
from shoal.platforms.kubernetes.kinds import ELASTIC_JOBS, JOB_RESOURCES, SCALE_PLANS
from shoal.platforms.kubernetes.objects import PODS

NEWS, MEANWHILE = 1.0, 5.0


class Heard:
    """A cluster whose wakes are noted, and who makes things happen in it."""

    def __init__(self, client: Client, waits: list[float]) -> None:
        self.client, self.waits = client, waits

    async def after(self, what: Any) -> float:
        """How long the look may wait after a call."""
        self.waits.clear()
        await what
        await until(lambda: bool(self.waits))
        return min(self.waits)

    async def job(self, **change: Any) -> None:
        await self.client.patch(ELASTIC_JOBS, "mnist", Merge(change), namespace="default")

    async def status(self, **change: Any) -> None:
        body = {"status": change}
        await self.client.patch(ELASTIC_JOBS, "mnist", Merge(body), namespace="default", subresource="status")

    async def pod(self, name: str, role: str = "worker") -> None:
        labels = {JOB_NAME: "mnist", JOB_UID: "1", ROLE: role, **({TERM: "1"} if role == MASTER else {})}
        meta = {"name": name, "namespace": "default", "labels": labels}
        await self.client.create(PODS, {"metadata": meta, "spec": {"containers": [{"name": "main", "image": "x"}]}})

    async def runs(self, name: str, phase: str = "Running", **status: Any) -> None:
        body = {"status": {"phase": phase, **status}}
        await self.client.patch(PODS, name, Merge(body), namespace="default", subresource="status")


@asynccontextmanager
async def heard() -> AsyncIterator[Heard]:
    async with FakeApiServer() as server, Client(server.access(), QUICK_CLIENT) as client:
        for kind in (ELASTIC_JOBS, SCALE_PLANS, JOB_RESOURCES):
            server.serve(kind, status=True)
        await client.create(ELASTIC_JOBS, {"metadata": {"name": "mnist", "namespace": "default"}, "spec": {}})
        recorder = Recorder(client, controller="test", instance="test")
        cluster = KubernetesCluster(client, recorder=recorder, manager="test", settings=QUICK_INFORMER, gathering=NEWS)
        waits: list[float] = []
        running = asyncio.create_task(cluster.run())
        await cluster.synced()
        cluster.on_wake(lambda _namespace, _name, after: waits.append(after))
        try:
            yield Heard(client, waits)
        finally:
            running.cancel()
            await asyncio.wait({running})


async def test_who_asks_is_heard_at_once_and_a_master_before_ourselves() -> None:
    async with heard() as stage:
        assert await stage.after(stage.job(spec={"worker": {"replicas": 2}})) == 0.0
        assert await stage.after(stage.job(metadata={"labels": {"a": "b"}})) == 0.0
        assert await stage.after(stage.status(training={"phase": "running"})) == NEWS
        assert await stage.after(stage.status(replicas=1)) == MEANWHILE


async def test_while_members_are_still_to_come_their_starts_are_no_reason_to_hurry() -> None:
    async with heard() as stage:
        await stage.status(roles=[{"role": "worker", "granted": 2}])
        assert await stage.after(stage.pod("mnist-worker-0")) == MEANWHILE
        assert await stage.after(stage.runs("mnist-worker-0")) == MEANWHILE  # the other one is not even there
        assert await stage.after(stage.pod("mnist-worker-1")) == MEANWHILE
        assert await stage.after(stage.runs("mnist-worker-1")) == NEWS  # all of them


async def test_a_member_that_has_ended_is_not_waited_for() -> None:
    async with heard() as stage:
        await stage.status(roles=[{"role": "worker", "granted": 2, "succeeded": 1}])
        await stage.pod("mnist-worker-0")
        assert await stage.after(stage.runs("mnist-worker-0")) == NEWS


async def test_an_end_a_trouble_and_a_master_wait_for_nobodys_start() -> None:
    async with heard() as stage:
        await stage.status(roles=[{"role": "worker", "granted": 3}])
        assert await stage.after(stage.pod("mnist-master-1", MASTER)) == NEWS
        await stage.pod("mnist-worker-0")
        stuck = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no room"}
        assert await stage.after(stage.runs("mnist-worker-0", "Pending", conditions=[stuck])) == NEWS
        assert await stage.after(stage.runs("mnist-worker-0", "Failed")) < NEWS
        await stage.pod("mnist-worker-1")
        gone = stage.client.delete(PODS, "mnist-worker-1", namespace="default", grace_seconds=0)
        assert await stage.after(gone) < NEWS
