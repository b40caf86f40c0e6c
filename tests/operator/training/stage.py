"""The controller of TrainingJobs on an API server that behaves; the test is Kubernetes' controllers and the kubelet."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from typing import Any

from tests.operator.builders import SETTINGS
from tests.operator.stage import PATIENCE, Crashing

from shoal.api.labels import JOB_UID, ROLE
from shoal.api.scheduling import SchedulingStatus
from shoal.operator.allowances import Allowance
from shoal.operator.metrics import OperatorMetrics
from shoal.operator.objects import MANAGER
from shoal.operator.operator import TrainingOperator
from shoal.operator.settings import OperatorSettings
from shoal.operator.snapshot import Key
from shoal.platforms.kubernetes.client import Client, Merge
from shoal.platforms.kubernetes.cluster import KubernetesCluster
from shoal.platforms.kubernetes.errors import NotFound
from shoal.platforms.kubernetes.events import Recorder
from shoal.platforms.kubernetes.fake import FakeApiServer
from shoal.platforms.kubernetes.kinds import ELASTIC_JOBS, JOB_RESOURCES, SCALE_PLANS, TRAINING_JOBS
from shoal.platforms.kubernetes.objects import EVENTS, PODS
from shoal.platforms.kubernetes.training import KubernetesTraining
from shoal.platforms.kubernetes.workloads import JOBS, REPLICA_SETS, STATEFUL_SETS
from shoal.platforms.kubernetes.workqueue import WorkQueue
from shoal.scheduler.rows import JobKey

Json = dict[str, Any]
GRACE_TURNS = 10
"""How often Kubernetes' controllers work before a Pod that was told to end has ended."""
WRITES = frozenset({"write_status", "ensure", "create", "resize", "delete", "evict"})


class Words:
    """The scheduler, as far as a controller knows it."""

    def __init__(self) -> None:
        self.said: dict[str, Allowance] = {}
        self.trouble: str | None = None

    def of(self, key: JobKey, uid: str, written: SchedulingStatus | None) -> Allowance | None:
        return self.said.get(key.name)


class TrainingStage:
    def __init__(self, server: FakeApiServer, client: Client, settings: OperatorSettings) -> None:
        self.server, self.client, self.settings = server, client, settings
        self.words = Words()
        self.lets_pods_end = True
        """False: Pods that were told to end use their grace."""
        self._grace: dict[str, int] = {}
        self._made = 0

    @asynccontextmanager
    async def operator(self, *, crash_after: int | None = None) -> AsyncIterator[Crashing]:
        async with Client(self.server.access()) as client:
            recorder = Recorder(client, controller=MANAGER, instance="test")
            cluster = KubernetesCluster(client, recorder=recorder, manager=MANAGER, gathering=0.02)
            training = KubernetesTraining(client, cluster, gathering=0.02)
            crashing = Crashing(training, crash_after, writes=WRITES)
            operator = TrainingOperator(
                crashing,  # type: ignore[arg-type]
                self.settings,
                metrics=OperatorMetrics(),
                clock=lambda: datetime.now(UTC),
                allowances=self.words,
            )
            queue: WorkQueue[Key] = WorkQueue()
            training.on_wake(lambda namespace, name, after: queue.add_after(Key(namespace, name), after))
            self.wake = lambda: [queue.add(Key(*each)) for each in training.known_jobs()]
            running = (cluster.run(), training.run(), recorder.run(), queue.work(operator.look, workers=2))
            tasks = [asyncio.create_task(each) for each in running]
            try:
                yield crashing
            finally:
                for task in tasks:
                    task.cancel()
                for ended in await asyncio.gather(*tasks, return_exceptions=True):
                    if isinstance(ended, Exception):
                        raise ended

    def allow(self, job: str, allowance: Allowance) -> None:
        self.words.said[job] = allowance
        self.wake()

    async def apply(self, written: Json) -> None:
        meta = {**written["metadata"], "namespace": "default"}
        await self.client.apply(TRAINING_JOBS, {"metadata": meta, "spec": written["spec"]}, manager="user")

    async def until(self, so: Callable[[], bool], what: str) -> None:
        async with asyncio.timeout(PATIENCE):
            while not so():
                await self.kubernetes()
                await asyncio.sleep(0.005)
        assert so(), what

    # Kubernetes --------------------------------------------------------------------------------------------------

    async def kubernetes(self) -> None:
        for kind in (REPLICA_SETS, STATEFUL_SETS, JOBS):
            for each in self.server.objects(kind):
                with suppress(NotFound):
                    await self._control(kind, each)
        self._one_set_of_trainers()
        for pod in self.pods():
            meta = pod["metadata"]
            with suppress(NotFound):
                if "deletionTimestamp" in meta:
                    left = self._grace[meta["uid"]] = self._grace.get(meta["uid"], GRACE_TURNS) - 1
                    if left > 0 or not self.lets_pods_end:
                        continue
                    await self.client.delete(PODS, meta["name"], namespace="default", grace_seconds=0)
                elif phase(pod) == "Pending" and (host := self.place(pod)):
                    self.server.bind("default", meta["name"], host)

    def place(self, pod: Json) -> str | None:
        """The host that a Pod gets; None: it waits."""
        return "host-1"

    def _one_set_of_trainers(self) -> None:
        owners = {
            (pod["metadata"]["labels"][JOB_UID], pod["metadata"]["ownerReferences"][0]["uid"])
            for pod in self.pods()
            if pod["metadata"]["labels"][ROLE] == "trainer" and phase(pod) not in ("Succeeded", "Failed")
        }
        assert len(owners) == len({job for job, _ in owners}), "two sets of trainers at once"

    async def _control(self, kind: Any, each: Json) -> None:
        meta, spec = each["metadata"], each["spec"]
        own = [pod for pod in self.pods() if pod["metadata"]["ownerReferences"][0]["uid"] == meta["uid"]]
        over = [pod for pod in own if phase(pod) in ("Succeeded", "Failed")]
        there = [pod for pod in own if pod not in over]
        wanted = spec["parallelism"] if kind is JOBS else spec["replicas"]
        if kind is JOBS:
            wanted = await self._job_status(each, over, wanted)
        for _ in range(wanted - len(there)):
            await self._make(each)
        for pod in [pod for pod in there if "deletionTimestamp" not in pod["metadata"]][wanted:]:
            await self.client.delete(PODS, pod["metadata"]["name"], namespace="default")

    async def _job_status(self, job: Json, over: list[Json], wanted: int) -> int:
        """What a Job says of its Pods; how many there should be now."""
        done = sum(phase(pod) == "Succeeded" for pod in over)
        said: Json = {"succeeded": done, "failed": len(over) - done}
        uid = job["metadata"]["uid"]
        if done and done == len([pod for pod in self.pods() if pod["metadata"]["ownerReferences"][0]["uid"] == uid]):
            said["conditions"] = [{"type": "Complete", "status": "True"}]
        if (job.get("status") or {}) != said:
            name = job["metadata"]["name"]
            await self.client.patch(JOBS, name, Merge({"status": said}), namespace="default", subresource="status")
        return 0 if done else wanted

    async def _make(self, of: Json) -> None:
        self._made += 1
        meta, template = of["metadata"], of["spec"]["template"]
        owner = {"apiVersion": "v1", "kind": "Any", "name": meta["name"], "uid": meta["uid"], "controller": True}
        pod = {
            "metadata": {
                "name": f"{meta['name']}-{self._made}",
                "namespace": "default",
                "labels": template["metadata"]["labels"],
                "ownerReferences": [owner],
            },
            "spec": template["spec"],
        }
        await self.client.create(PODS, pod)

    def finish(self, code: str = "Succeeded") -> None:
        """All trainers end."""
        for name in self.running("trainer"):
            self.server.finish("default", name, phase=code)

    # Looking -----------------------------------------------------------------------------------------------------

    def pods(self) -> list[Json]:
        """Those of jobs."""
        return [pod for pod in self.server.objects(PODS) if ROLE in pod["metadata"].get("labels", {})]

    def running(self, role: str) -> list[str]:
        return sorted(
            pod["metadata"]["name"]
            for pod in self.pods()
            if pod["metadata"]["labels"][ROLE] == role
            and phase(pod) == "Running"
            and "deletionTimestamp" not in pod["metadata"]
        )

    def status(self, name: str = "job") -> Json:
        jobs = {job["metadata"]["name"]: job for job in self.server.objects(TRAINING_JOBS)}
        found: Json = jobs[name].get("status") or {}
        return found

    def is_in(self, phase: str, **roles: int) -> bool:
        counts = {role: len(self.running(role)) for role in ("master", "etcd", "pserver", "trainer")}
        return self.status().get("phase") == phase and counts == dict.fromkeys(counts, 0) | roles

    def events(self) -> list[str]:
        return [event["reason"] for event in self.server.objects(EVENTS)]


def phase(pod: Json) -> str:
    return str((pod.get("status") or {}).get("phase", "Pending"))


@asynccontextmanager
async def a_training_stage(settings: OperatorSettings = SETTINGS, **server: Any) -> AsyncIterator[TrainingStage]:
    async with FakeApiServer(**server) as fake:
        for kind in (ELASTIC_JOBS, SCALE_PLANS, JOB_RESOURCES, TRAINING_JOBS):
            fake.serve(kind, status=True)
        async with Client(fake.access()) as client:
            yield TrainingStage(fake, client, settings)
