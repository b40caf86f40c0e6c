"""Kubernetes as the controller of TrainingJobs needs it, beside what the operator's `Cluster` has.

Four more informers: TrainingJobs, and the ReplicaSets, StatefulSets and Jobs that bear a job's uid. Pods come from the
operator's own cache. What is read may be behind the API server; every write says which object it means by its uid, and
writing the same twice changes nothing, so that costs at most another look. How many Pods a workload makes is written
only over the generation that it was decided on: a process that slept in between does not undo what is newer.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from shoal.api.labels import JOB_NAME, JOB_UID, KIND, TRAINING_JOB
from shoal.core.errors import Denied, Outdated
from shoal.core.workloads import TrainingPod, Workload, WorkloadKind
from shoal.platforms.kubernetes.cache import Change, Removed, Updated
from shoal.platforms.kubernetes.client import Client, JsonPatch, Strategic
from shoal.platforms.kubernetes.cluster import (
    KubernetesCluster,
    Wake,
    asked,
    controller_of,
    is_ours,
    refused,
    with_kind,
)
from shoal.platforms.kubernetes.errors import AlreadyExists, Conflict, Forbidden, Invalid, NotFound, TooManyRequests
from shoal.platforms.kubernetes.informer import Caches, Informer, InformerSettings
from shoal.platforms.kubernetes.kinds import TRAINING_JOBS
from shoal.platforms.kubernetes.objects import PODS, Pod, metadata_of
from shoal.platforms.kubernetes.workloads import WORKLOADS, training_pod, workload_seen

Json = Mapping[str, Any]
_OF_TRAINING = f"{JOB_UID},{KIND}={TRAINING_JOB}"
_SOON = 0.05
_TRACKED = "batch.kubernetes.io/job-tracking"
"""The finalizer by which the Job controller keeps a Pod until it has counted how that ended."""


class KubernetesTraining(Caches):
    """The operator's port `TrainingCluster`. `run` keeps the caches up to date; before `synced` nothing may be read."""

    def __init__(
        self,
        client: Client,
        cluster: KubernetesCluster,
        *,
        namespace: str | None = None,
        settings: InformerSettings | None = None,
        writer: Client | None = None,
        gathering: float = 1.0,
    ) -> None:
        """As `KubernetesCluster`; `cluster` is the one whose Pods, fixed objects and events are shared."""
        self._client = writer or client
        self._cluster = cluster
        self._gathering = gathering
        self._jobs = Informer(client, TRAINING_JOBS, namespace=namespace, settings=settings)
        self._workloads: dict[WorkloadKind, Informer[Any]] = {
            kind: Informer(
                client,
                served,
                namespace=namespace,
                labels=_OF_TRAINING,
                indexers={"job": _uid_of_job},
                settings=settings,
            )
            for kind, served in WORKLOADS.items()
        }

    @property
    def informers(self) -> Sequence[Informer[Any]]:
        return (self._jobs, *self._workloads.values())

    def on_wake(self, wake: Wake) -> None:
        """Tell `wake` of every TrainingJob that something happened to."""

        def job(change: Change[Any]) -> None:
            meta = metadata_of(change.object)
            same = isinstance(change, Updated) and asked(change.before) == asked(change.object)
            wake(meta.namespace, meta.name, self._gathering if same else 0.0)

        def workload(change: Change[Any]) -> None:
            if isinstance(change, Updated) and workload_seen(change.before) == workload_seen(change.object):
                return
            meta = metadata_of(change.object)
            wake(meta.namespace, meta.labels.get(JOB_NAME, ""), _SOON)

        def pod(change: Change[Pod]) -> None:
            labels = change.object.metadata.labels
            if labels.get(KIND) != TRAINING_JOB:
                return
            seen = training_pod(change.object)
            if isinstance(change, Updated) and training_pod(change.before) == seen:
                return
            begins = seen is not None and seen.is_live and not isinstance(change, Removed)
            wake(change.object.metadata.namespace, labels.get(JOB_NAME, ""), self._gathering if begins else _SOON)

        self._jobs.on_change(job)
        self._cluster.on_pod(pod)
        for informer in self._workloads.values():
            informer.on_change(workload)

    def known_jobs(self) -> Sequence[tuple[str, str]]:
        return [(metadata_of(each).namespace, metadata_of(each).name) for each in self._jobs.all()]

    # Reading ---------------------------------------------------------------------------------------------------

    def jobs(self) -> Sequence[Json]:
        return self._jobs.all()

    def job(self, namespace: str, name: str) -> Json | None:
        found = self._jobs.get(namespace, name)
        return None if found is None else with_kind(found, TRAINING_JOBS)

    def workloads(self, uid: str) -> Sequence[Workload]:
        found = []
        for informer in self._workloads.values():
            for each in informer.found("job", uid):
                if controller_of(each.metadata) == uid and (seen := workload_seen(each)) is not None:
                    found.append(seen)
        return sorted(found, key=lambda each: each.name)

    def pods(self, uid: str) -> Sequence[TrainingPod]:
        found = (training_pod(pod) for pod in self._cluster.pods_of_job(uid))
        return sorted((pod for pod in found if pod is not None), key=lambda pod: pod.name)

    # Writing ---------------------------------------------------------------------------------------------------

    async def write_status(self, there: Json, status: Json) -> None:
        await self._cluster.write_status(there, status)

    async def ensure(self, manifest: Json) -> None:
        await self._cluster.ensure(manifest)

    async def create(self, manifest: Json) -> None:
        informer = self._workloads[WorkloadKind(manifest["kind"])]
        kind, meta = informer.kind, metadata_of(manifest)
        try:
            await self._client.create(kind, manifest)
            return
        except AlreadyExists:
            pass
        except (Forbidden, Invalid, NotFound) as exc:
            refused(exc)
        try:
            there = await self._client.get(kind, meta.name, namespace=meta.namespace)
        except NotFound as exc:
            raise Outdated(str(exc)) from exc
        is_ours(kind, manifest, there)
        await informer.refresh(meta.namespace, meta.name)  # our cache did not have it

    async def resize(
        self,
        kind: WorkloadKind,
        namespace: str,
        name: str,
        uid: str,
        generation: int,
        count: int,
        affinity: Json | None,
    ) -> None:
        """Kubernetes writes the status whenever a Pod comes or goes: another version, and the same generation."""
        field = "parallelism" if kind is WorkloadKind.JOB else "replicas"
        change: list[Json] = [
            {"op": "test", "path": "/metadata/uid", "value": uid},
            {"op": "test", "path": "/metadata/generation", "value": generation},
            {"op": "add", "path": f"/spec/{field}", "value": count},
        ]
        if affinity is not None:
            change.append({"op": "add", "path": "/spec/template/spec/affinity", "value": affinity})
        try:
            await self._client.patch(WORKLOADS[kind], name, JsonPatch(change), namespace=namespace)
        except (Conflict, NotFound) as exc:
            raise Outdated(str(exc)) from exc
        except Invalid as exc:
            if not await self._is_still(kind, namespace, name, uid, generation):
                raise Outdated(str(exc)) from exc
            refused(exc)
        except Forbidden as exc:
            refused(exc)

    async def _is_still(self, kind: WorkloadKind, namespace: str, name: str, uid: str, generation: int) -> bool:
        """Whether a workload is the one that was decided on. What is not does not become so again."""
        try:
            there = await self._client.get(WORKLOADS[kind], name, namespace=namespace)
        except NotFound:
            return False
        return (there.metadata.uid, there.metadata.generation) == (uid, generation)

    async def delete(self, kind: WorkloadKind, namespace: str, name: str, uid: str) -> None:
        try:
            await self._client.delete(WORKLOADS[kind], name, namespace=namespace, uid=uid)
        except NotFound:
            return
        except Conflict as exc:
            raise Outdated(str(exc)) from exc

    async def evict(self, namespace: str, name: str, uid: str) -> None:
        try:
            await self._client.evict(name, namespace=namespace, uid=uid)
        except NotFound:
            return
        except Conflict as exc:
            raise Outdated(str(exc)) from exc
        except TooManyRequests as exc:
            raise Denied("DisruptionBudget", f"{name} has to go, and a disruption budget forbids it: {exc}") from exc
        except (Forbidden, Invalid) as exc:
            refused(exc)
        await self._untrack(namespace, name, uid)

    async def _untrack(self, namespace: str, name: str, uid: str) -> None:
        """Let the Job controller not count how an evicted Pod ends, as it does with Pods that it removes itself.

        Its policy for failures ignores disruptions when it counts, but not when it decides how long to wait until it
        makes the next Pods: 10 s after the first, twice as long after each further one, up to 10 minutes. And a trainer
        that ends well because it was told to go has not finished the training. Not before the eviction: where that is
        refused the Pod goes on, and its end counts. A Pod that ends before we get here costs one wait.
        """
        change = {"metadata": {"uid": uid, "$deleteFromPrimitiveList/finalizers": [_TRACKED]}}
        try:
            await self._client.patch(PODS, name, Strategic(change), namespace=namespace)
        except (NotFound, Conflict):
            return  # it is gone
        except (Forbidden, Invalid) as exc:
            refused(exc)

    def tell(self, about: Json, *, reason: str, note: str, warning: bool) -> None:
        self._cluster.tell(about, reason=reason, note=note, warning=warning)


def _uid_of_job(obj: Any) -> Sequence[str]:
    uid = metadata_of(obj).labels.get(JOB_UID)
    return [uid] if uid else []
