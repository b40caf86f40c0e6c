"""An operator on an API server that behaves: everything is real but the server, and the test is the kubelet.

`Stage.operator` starts one; it can be made to die right after any of its writes, as a SIGKILL would end it, and another
one started. `until` waits for something to be so, while Pods start and end as they would.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

from tests.operator.builders import SETTINGS

from shoal.operator.metrics import OperatorMetrics
from shoal.operator.objects import MANAGER
from shoal.operator.operator import Operator
from shoal.operator.settings import OperatorSettings
from shoal.operator.snapshot import Key
from shoal.platforms.kubernetes.client import Client, Merge
from shoal.platforms.kubernetes.cluster import KubernetesCluster
from shoal.platforms.kubernetes.errors import NotFound
from shoal.platforms.kubernetes.events import Recorder
from shoal.platforms.kubernetes.fake import FakeApiServer
from shoal.platforms.kubernetes.kinds import ELASTIC_JOBS, JOB_RESOURCES, SCALE_PLANS
from shoal.platforms.kubernetes.objects import EVENTS, PODS
from shoal.platforms.kubernetes.workqueue import WorkQueue

PATIENCE = 120.0
WRITES = frozenset({"write_status", "ensure", "create_pod", "delete_pod", "delete_job"})


class Crashing:
    """A cluster whose user dies after its n-th write: the write is done, and nothing comes after it."""

    def __init__(self, cluster: Any, after: int | None, ensure: Any = None, *, writes: frozenset[str] = WRITES) -> None:
        self._cluster = cluster
        self._writes = writes
        self._ensure = ensure
        self._left = after
        self.writes = 0
        self.crashed = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._cluster, name)
        if name == "ensure" and self._ensure is not None:
            return lambda manifest: self._ensure(partial(found, manifest))
        return self._counted(found) if name in self._writes else found

    def _counted(self, call: Callable[..., Any]) -> Callable[..., Any]:
        async def counted(*args: Any, **kwargs: Any) -> Any:
            if self.crashed.is_set():
                await asyncio.Event().wait()
            answer = await call(*args, **kwargs)
            self.writes += 1
            if self._left is not None and self.writes > self._left:
                self.crashed.set()
                await asyncio.Event().wait()
            return answer

        return counted


class Stage:
    def __init__(self, server: FakeApiServer, client: Client, settings: OperatorSettings) -> None:
        self.server, self.client, self.settings = server, client, settings
        self.runs = True
        """New Pods begin to run."""

    # The operator --------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def operator(
        self,
        *,
        crash_after: int | None = None,
        ensure: Any = None,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        **instead: Any,
    ) -> AsyncIterator[Crashing]:
        """`instead`: what stands between the operator and calls of its cluster, by their names."""
        async with Client(self.server.access()) as client:
            recorder = Recorder(client, controller=MANAGER, instance="test")
            cluster = KubernetesCluster(client, recorder=recorder, manager=MANAGER, gathering=0.01)
            for name, between in instead.items():
                setattr(cluster, name, partial(between, getattr(cluster, name)))
            crashing = Crashing(cluster, crash_after, ensure)
            operator = Operator(
                crashing,  # type: ignore[arg-type]
                self.settings,
                metrics=OperatorMetrics(),
                clock=clock,
            )
            queue: WorkQueue[Key] = WorkQueue()
            cluster.on_wake(lambda namespace, name, after: queue.add_after(Key(namespace, name), after))
            crashing.wake_all = lambda: [queue.add(Key(*each)) for each in cluster.known_jobs()]  # type: ignore[attr-defined]
            crashing.queue = queue  # type: ignore[attr-defined]
            crashing.reconciler = operator._reconciler  # type: ignore[attr-defined]
            tasks = [
                asyncio.create_task(each)
                for each in (cluster.run(), recorder.run(), queue.work(operator.look, workers=4))
            ]
            try:
                yield crashing
            finally:
                for task in tasks:
                    task.cancel()
                # Not one by one with their cancellation suppressed: that of whoever waits here would be lost as well.
                for ended in await asyncio.gather(*tasks, return_exceptions=True):
                    if isinstance(ended, Exception):
                        raise ended

    # The cluster ---------------------------------------------------------------------------------------------------

    async def until(self, so: Callable[[], bool], what: str) -> None:
        async with asyncio.timeout(PATIENCE):
            while not so():
                await self.kubelet()
                await asyncio.sleep(0.005)
        assert so(), what

    async def kubelet(self) -> None:
        for pod in self.pods().values():
            meta, status = pod["metadata"], pod.get("status") or {}
            name, namespace = meta["name"], meta["namespace"]
            if "deletionTimestamp" in meta:
                with suppress(NotFound):
                    await self.client.delete(PODS, name, namespace=namespace, grace_seconds=0)
            elif self.runs and status.get("phase", "Pending") == "Pending":
                ready = {"type": "Ready", "status": "True"}
                change = {"status": {"phase": "Running", "conditions": [ready]}}
                with suppress(NotFound):
                    await self.client.patch(PODS, name, Merge(change), namespace=namespace, subresource="status")

    async def end(self, name: str, code: int = 1) -> None:
        """A Pod's training process ends."""
        state = {"terminated": {"exitCode": code}}
        change = {
            "status": {
                "phase": "Failed" if code else "Succeeded",
                "conditions": [],
                "containerStatuses": [{"name": "main", "state": state}],
            }
        }
        await self.client.patch(PODS, name, Merge(change), namespace="default", subresource="status")

    async def apply(self, kind: Any, name: str, spec: dict[str, Any], **meta: Any) -> None:
        body = {"metadata": {"name": name, "namespace": "default", **meta}, "spec": spec}
        await self.client.apply(kind, body, manager="user")

    async def report(self, phase: str, name: str = "mnist", reason: str = "") -> None:
        """Be the newest master: report."""
        term = (self.job(name).get("status") or {}).get("term", 1)
        body = {
            "metadata": {"name": name, "namespace": "default"},
            "status": {"training": {"phase": phase, "reason": reason, "term": term}},
        }
        await self.client.apply(ELASTIC_JOBS, body, manager="shoal-master", subresource="status")

    # Looking -------------------------------------------------------------------------------------------------------

    def pods(self) -> dict[str, dict[str, Any]]:
        return {pod["metadata"]["name"]: pod for pod in self.server.objects(PODS)}

    def running(self, role: str = "worker") -> list[str]:
        return sorted(
            name
            for name, pod in self.pods().items()
            if f"-{role}-" in name
            and (pod.get("status") or {}).get("phase") == "Running"
            and "deletionTimestamp" not in pod["metadata"]
        )

    def job(self, name: str = "mnist") -> dict[str, Any]:
        return next(job for job in self.server.objects(ELASTIC_JOBS) if job["metadata"]["name"] == name)

    def plan(self, name: str) -> dict[str, Any]:
        found = [*self.server.objects(SCALE_PLANS), *self.server.objects(JOB_RESOURCES)]
        return next(plan for plan in found if plan["metadata"]["name"] == name)

    def condition(self, kind: str, of: dict[str, Any] | None = None) -> tuple[str, str]:
        status = (of or self.job()).get("status") or {}
        found = next((each for each in status.get("conditions", []) if each["type"] == kind), None)
        return (found["status"], found["reason"]) if found else ("", "")

    def message(self, kind: str, of: dict[str, Any] | None = None) -> str:
        status = (of or self.job()).get("status") or {}
        return next((each.get("message", "") for each in status.get("conditions", []) if each["type"] == kind), "")

    def events(self) -> list[str]:
        return [event["reason"] for event in self.server.objects(EVENTS)]


@asynccontextmanager
async def a_stage(settings: OperatorSettings = SETTINGS, **server: Any) -> AsyncIterator[Stage]:
    async with FakeApiServer(**server) as fake:
        fake.serve(ELASTIC_JOBS, status=True, scale=("spec.worker.replicas", "status.replicas"))
        fake.serve(SCALE_PLANS, status=True)
        fake.serve(JOB_RESOURCES, status=True)
        async with Client(fake.access()) as client:
            yield Stage(fake, client, settings)


def quick(**times: Any) -> OperatorSettings:
    return replace(SETTINGS, times=replace(SETTINGS.times, **times))
