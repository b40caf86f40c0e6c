"""An operator on an API server that behaves: everything is real but the server, and the test is the kubelet.

`Stage.operator` starts one; it can be made to die right after any of its writes, as a SIGKILL would end it, and another
one started. `until` waits for something to be so, while Pods start and end as they would.
"""

import asyncio
import json
import re
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
from shoal.platforms.kubernetes.errors import AlreadyExists, NotFound
from shoal.platforms.kubernetes.events import Recorder
from shoal.platforms.kubernetes.fake import FakeApiServer
from shoal.platforms.kubernetes.kinds import ELASTIC_JOBS, JOB_RESOURCES, SCALE_PLANS
from shoal.platforms.kubernetes.objects import EVENTS, NODES, PODS
from shoal.platforms.kubernetes.room import KubernetesRoom
from shoal.platforms.kubernetes.workqueue import WorkQueue
from shoal.scheduler.decisions import Decisions
from shoal.scheduler.policies import policy
from shoal.scheduler.settings import SchedulerSettings
from shoal.scheduler.snapshot import Snapshot

PATIENCE = 120.0
WRITES = frozenset({"write_status", "ensure", "create_pod", "delete_pod", "resize_pod", "delete_job"})


_VOLATILE = re.compile(r'"[0-9T:.-]{19,27}Z"|"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"')
"""Times and uids."""


def described(call: str, what: tuple[Any, ...]) -> str:
    """A write, without what is another at each try."""
    match call:
        case "write_status":
            return f"{call} {what[0]['metadata']['name']} {_VOLATILE.sub('', json.dumps(what[1], default=str))}"
        case "ensure" | "create_pod":
            return f"{call} {what[0]['kind']} {what[0]['metadata']['name']}"
        case _:
            return f"{call} {what[1]} {what[3:]}"


class Crashing:
    """A cluster whose user dies after its n-th write, or after one of which `dies` says so: the write is done, and
    nothing comes after it."""

    def __init__(
        self,
        cluster: Any,
        after: int | None,
        ensure: Any = None,
        *,
        dies: Callable[[str], bool] | None = None,
        writes: frozenset[str] = WRITES,
    ) -> None:
        self._cluster = cluster
        self._writes = writes
        self._ensure = ensure
        self._left = after
        self._dies = dies
        self.writes = 0
        self.crashed = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._cluster, name)
        if name == "ensure" and self._ensure is not None:
            return lambda manifest: self._ensure(partial(found, manifest))
        return self._counted(name, found) if name in self._writes else found

    def _counted(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        async def counted(*args: Any, **kwargs: Any) -> Any:
            if self.crashed.is_set():
                await asyncio.Event().wait()
            answer = await call(*args, **kwargs)
            self.writes += 1
            is_named = self._dies is not None and self._dies(described(name, args))
            if is_named or (self._left is not None and self.writes > self._left):
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
        dies: Callable[[str], bool] | None = None,
        ensure: Any = None,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        sees_hosts: bool = False,
        **instead: Any,
    ) -> AsyncIterator[Crashing]:
        """`sees_hosts`: it may look at them. `instead`: what stands between the operator and calls of its cluster, by
        their names."""
        async with Client(self.server.access()) as client:
            recorder = Recorder(client, controller=MANAGER, instance="test")
            room = KubernetesRoom(
                client, recorder=recorder, home="default", config_map="none", namespace=None, sees_hosts=sees_hosts
            )
            cluster = KubernetesCluster(client, recorder=recorder, manager=MANAGER, gathering=0.01, hosts=room.book)
            for name, between in instead.items():
                setattr(cluster, name, partial(between, getattr(cluster, name)))
            crashing = Crashing(cluster, crash_after, ensure, dies=dies)
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
            if sees_hosts:
                tasks.append(asyncio.create_task(room.run()))
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

    async def host(self, name: str, ready: str = "True") -> None:
        """Make a host, or say that one is ready or not."""
        said = {
            "type": "Ready",
            "status": ready,
            "lastTransitionTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        }
        with suppress(AlreadyExists):
            await self.client.create(NODES, {"metadata": {"name": name}})
        await self.client.patch(NODES, name, Merge({"status": {"conditions": [said]}}), subresource="status")

    async def end(self, name: str, code: int = 1, reason: str = "") -> None:
        """A Pod's training process ends; `reason` is the kubelet's word for it."""
        state = {"terminated": {"exitCode": code, **({"reason": reason} if reason else {})}}
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


class Broken:
    """A policy that fails for as long as it is told to."""

    def __init__(self, *, fails: bool = True) -> None:
        self.fails = fails

    def __call__(self, snapshot: Snapshot, now: float, settings: SchedulerSettings) -> Decisions:
        if self.fails:
            raise ZeroDivisionError("the policy divides by zero")
        return policy("cfs")(snapshot, now, settings)
