"""Kubernetes as the operator needs it: caches to read from, writes that are safe to repeat, events for people.

Four informers keep the caches: ElasticJobs, ScalePlans, JobResources, and the Pods that bear a job's uid. Whatever they
hear of wakes the job it concerns, by namespace and name. Secrets are never listed nor watched: they are created, and
looked at by name when one is there already.

Everything here is repeatable. An object that exists is accepted when its controller is the one that ours would have,
and is somebody else's otherwise: it is never adopted.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NoReturn

from shoal.api.labels import JOB_NAME, JOB_UID, KIND
from shoal.api.reasons import Reason
from shoal.api.scaleplan import JOB_LABEL
from shoal.core.errors import Denied, NameTaken, Outdated
from shoal.core.pods import PodPhase, PodSeen
from shoal.platforms.kubernetes.cache import Change, Removed, Updated, by_owner
from shoal.platforms.kubernetes.client import Client, Strategic
from shoal.platforms.kubernetes.errors import (
    AlreadyExists,
    ApiError,
    Conflict,
    Forbidden,
    Invalid,
    NamespaceEnding,
    NotFound,
    QuotaExceeded,
)
from shoal.platforms.kubernetes.events import Recorder, reference
from shoal.platforms.kubernetes.hosts import HostBook
from shoal.platforms.kubernetes.informer import Caches, Informer, InformerSettings
from shoal.platforms.kubernetes.kinds import ELASTIC_JOBS, JOB_RESOURCES, SCALE_PLANS, TRAINING_JOBS
from shoal.platforms.kubernetes.objects import (
    NETWORK_POLICIES,
    PODS,
    ROLE_BINDINGS,
    ROLES,
    SECRETS,
    SERVICE_ACCOUNTS,
    SERVICES,
    Kind,
    Pod,
    metadata_of,
)
from shoal.platforms.kubernetes.pods import pod_seen

Json = Mapping[str, Any]
Wake = Callable[[str, str, float], None]
"""Told the namespace and the name of a job that something happened to, and how many seconds the look may wait. The
empty name is for plans that name no job: somebody has to tell them."""

_KINDS: Mapping[str, Kind[Any]] = {
    kind.kind: kind
    for kind in (
        ELASTIC_JOBS,
        JOB_RESOURCES,
        NETWORK_POLICIES,
        ROLES,
        ROLE_BINDINGS,
        SCALE_PLANS,
        SECRETS,
        SERVICES,
        SERVICE_ACCOUNTS,
        TRAINING_JOBS,
    )
}
_MADE_ONCE = frozenset({SECRETS.kind, SCALE_PLANS.kind})
"""Kinds whose contents are somebody else's, or never change, once they exist."""
_BY_JOB = "job"
_BY_UID = "uid"
_BY_HOST = "host"
_SOON = 0.05
"""How long a look at a job may wait when a Pod has ended: more are likely to follow, and one look serves all."""
_GATHERING = 1.0
"""The same where nobody waits for an answer: Pods that begin, and what was written to a status, mostly by ourselves. A
look at once would find one Pod more each time and write it down, which costs more calls than making the Pods. The Job
controller of Kubernetes waits as long."""
_MEANWHILE = 5
"""So many times as long where more is about to come: other Pods of the job do not run yet, or it was we who wrote the
status. A status costs the server as much as five Pods: of a job's start it tells once or twice, not each second."""


class KubernetesCluster(Caches):
    """The operator's port `Cluster`. `run` keeps the caches up to date; before `synced` nothing may be read."""

    def __init__(
        self,
        client: Client,
        *,
        recorder: Recorder,
        manager: str,
        namespace: str | None = None,
        settings: InformerSettings | None = None,
        writer: Client | None = None,
        hosts: HostBook | None = None,
        gathering: float = _GATHERING,
    ) -> None:
        """`namespace` None: all of them. `writer`: the same client behind a fence, for everything that changes.
        `hosts`: which of them are down; None: nobody may look. `gathering`: seconds that a look may wait for more news
        where nobody waits for an answer."""
        self._client = writer or client
        self._recorder = recorder
        self._manager = manager
        self._can_resize: bool | None = None
        self._hosts = hosts or HostBook()
        self._gathering = gathering
        self._views: dict[str, tuple[str, PodSeen | None]] = {}  # by the Pods' uids, with the version they are of
        self._running: dict[tuple[str, str], set[str]] = {}  # by jobs, their members' Pods
        index = {_BY_JOB: _named_jobs}
        self._jobs = Informer(client, ELASTIC_JOBS, namespace=namespace, indexers={"name": _name}, settings=settings)
        self._plans = Informer(client, SCALE_PLANS, namespace=namespace, indexers=index, settings=settings)
        self._resources = Informer(client, JOB_RESOURCES, namespace=namespace, indexers=index, settings=settings)
        self._pods: Informer[Pod] = Informer(
            client,
            PODS,
            namespace=namespace,
            labels=JOB_UID,
            indexers={"owner": by_owner, _BY_UID: _uid_of_job, _BY_HOST: _host_of},
            settings=settings,
        )

    @property
    def informers(self) -> Sequence[Informer[Any]]:
        return (self._jobs, self._plans, self._resources, self._pods)

    def on_wake(self, wake: Wake) -> None:
        """Tell `wake` of every job that something happened to."""

        def job(change: Change[Any]) -> None:
            meta = metadata_of(change.object)
            wake(meta.namespace, meta.name, self._patience(change))

        def plan(change: Change[Any]) -> None:
            seen = (change.before, change.object) if isinstance(change, Updated) else (change.object,)
            for named in dict.fromkeys(_job_of(each) for each in seen):
                wake(*named, self._patience(change))

        def pod(change: Change[Pod]) -> None:
            meta = change.object.metadata
            before = self._view(change.before) if isinstance(change, Updated) else None
            seen = self._view(change.object)
            if isinstance(change, Removed):
                self._views.pop(meta.uid, None)
                seen = None
            job = _elastic_job_of(change.object)
            self._count_running(job, meta.name, seen)
            if job[1] and not (isinstance(change, Updated) and before == seen):
                wake(*job, self._patience_with_pods(job, seen))

        def host(name: str) -> None:
            jobs = dict.fromkeys(_elastic_job_of(each) for each in self._pods.found(_BY_HOST, name))
            for namespace, concerned in jobs:
                if concerned:
                    wake(namespace, concerned, _SOON)

        self._hosts.on_change(host)
        self._jobs.on_change(job)
        self._plans.on_change(plan)
        self._resources.on_change(plan)
        self._pods.on_change(pod)

    def _patience(self, change: Change[Any]) -> float:
        """How long a look may wait after news of a job or a plan."""
        if not isinstance(change, Updated) or asked(change.before) != asked(change.object):
            return 0.0
        reported = _report_of_master(change.before) != _report_of_master(change.object)
        return self._gathering if reported else self._gathering * _MEANWHILE

    def _patience_with_pods(self, job: tuple[str, str], seen: PodSeen | None) -> float:
        """How long a look may wait after news of a Pod."""
        if seen is None or not begins(seen):
            return _SOON
        worth_telling = seen.role is None or seen.trouble is not None
        return self._gathering if worth_telling or self._is_complete(job) else self._gathering * _MEANWHILE

    def _is_complete(self, job: tuple[str, str]) -> bool:
        """Whether as many Pods of a job run as are to run, by the status that was written before they were made."""
        there = self._jobs.get(*job)
        return there is None or len(self._running.get(job, ())) >= _to_run(there)

    def _count_running(self, job: tuple[str, str], name: str, seen: PodSeen | None) -> None:
        if seen is not None and seen.role is not None and seen.is_running:
            self._running.setdefault(job, set()).add(name)
        elif job in self._running:
            self._running[job].discard(name)
            if not self._running[job]:
                del self._running[job]

    def _view(self, pod: Pod) -> PodSeen | None:
        """What decisions look at, worked out once per version of a Pod."""
        uid, version = pod.metadata.uid, pod.metadata.resource_version
        known = self._views.get(uid)
        if known is None or known[0] != version:
            known = self._views[uid] = version, pod_seen(pod)
        return known[1]

    def on_pod(self, call: Callable[[Change[Pod]], None]) -> None:
        """Tell of everything that happens to a Pod of any job, whatever its kind."""
        self._pods.on_change(call)

    def known_jobs(self) -> Sequence[tuple[str, str]]:
        """All jobs that are there or that a plan names; the empty name where one names none."""
        found = [(metadata_of(each).namespace, metadata_of(each).name) for each in self._jobs.all()]
        named = [_job_of(each) for each in (*self._plans.all(), *self._resources.all())]
        return list(dict.fromkeys([*found, *named]))

    # Reading ---------------------------------------------------------------------------------------------------

    def jobs(self) -> Sequence[Json]:
        return self._jobs.all()

    def job(self, namespace: str, name: str) -> Json | None:
        found = self._jobs.get(namespace, name)
        return None if found is None else with_kind(found, ELASTIC_JOBS)

    def plans(self, namespace: str, job: str) -> Sequence[Json]:
        key = f"{namespace}/{job}"
        found = [with_kind(each, SCALE_PLANS) for each in self._plans.found(_BY_JOB, key)]
        found += [with_kind(each, JOB_RESOURCES) for each in self._resources.found(_BY_JOB, key)]
        return sorted(found, key=lambda each: (each["kind"], each["metadata"]["name"]))

    def namespaces_of(self, job: str) -> Sequence[str]:
        return sorted({metadata_of(each).namespace for each in self._jobs.found("name", job)})

    async def pods(self, namespace: str, uid: str, expected: Mapping[str, str]) -> Sequence[PodSeen]:
        there = {pod.metadata.name for pod in self._pods.found("owner", uid)}
        for name in expected:
            if name not in there:  # rare: it is gone, or our cache is behind
                await self._pods.refresh(namespace, name)
        seen = (self._view(pod) for pod in self._pods.found("owner", uid) if controller_of(pod.metadata) == uid)
        return sorted((self._with_host(pod) for pod in seen if pod is not None), key=lambda pod: pod.name)

    def _with_host(self, pod: PodSeen) -> PodSeen:
        down = self._hosts.down_since(pod.host) if pod.host else None
        return pod if down is None else replace(pod, host_down=down)

    def pods_of_job(self, uid: str) -> Sequence[Pod]:
        """The Pods that say they belong to the job with this uid, whoever made them."""
        return self._pods.found(_BY_UID, uid)

    # Writing ---------------------------------------------------------------------------------------------------

    async def write_status(self, there: Json, status: Json) -> None:
        kind, meta = _KINDS[there["kind"]], metadata_of(there)
        body = {
            "apiVersion": kind.api_version,
            "kind": kind.kind,
            "metadata": {
                "name": meta.name,
                "namespace": meta.namespace,
                "uid": meta.uid,
                "resourceVersion": meta.resource_version,
            },
            "status": status,
        }
        try:
            await self._client.apply(kind, body, manager=self._manager, subresource="status")
        except (Conflict, NotFound) as exc:
            raise Outdated(str(exc)) from exc
        except (Forbidden, Invalid) as exc:
            refused(exc)

    async def ensure(self, manifest: Json) -> None:
        kind, meta = _KINDS[manifest["kind"]], metadata_of(manifest)
        try:
            await self._client.create(kind, manifest)
            return
        except AlreadyExists:
            pass
        except (Forbidden, Invalid, NotFound) as exc:
            refused(exc)
        try:
            there = await self._client.get(kind, meta.name, namespace=meta.namespace)
            is_ours(kind, manifest, there)
            if kind.kind not in _MADE_ONCE:
                pinned = {**manifest, "metadata": {**manifest["metadata"], "uid": metadata_of(there).uid}}
                await self._client.apply(kind, pinned, manager=self._manager)
        except (NotFound, Conflict) as exc:  # it went or changed in between
            raise Outdated(str(exc)) from exc
        except (Forbidden, Invalid) as exc:
            refused(exc)

    async def create_pod(self, manifest: Json) -> str:
        meta = metadata_of(manifest)
        try:
            return (await self._client.create(PODS, manifest)).metadata.uid
        except AlreadyExists:
            pass
        except (Forbidden, Invalid, NotFound) as exc:
            refused(exc)
        try:
            there = await self._client.get(PODS, meta.name, namespace=meta.namespace)
        except NotFound as exc:
            raise Outdated(str(exc)) from exc
        is_ours(PODS, manifest, there)
        await self._pods.refresh(meta.namespace, meta.name)  # our cache did not have it
        return there.metadata.uid

    async def delete_pod(self, namespace: str, name: str, uid: str) -> None:
        try:
            await self._client.delete(PODS, name, namespace=namespace, uid=uid)
        except NotFound:
            return
        except Conflict as exc:
            raise Outdated(str(exc)) from exc

    async def can_resize(self) -> bool:
        if self._can_resize is None:
            self._can_resize = await self._client.is_served(PODS, "resize")
        return self._can_resize

    async def resize_pod(self, namespace: str, name: str, uid: str, container: str, resources: Json) -> None:
        change = {"metadata": {"uid": uid}, "spec": {"containers": [{"name": container, "resources": resources}]}}
        try:
            await self._client.patch(PODS, name, Strategic(change), namespace=namespace, subresource="resize")
        except NotFound:
            return
        except Conflict as exc:
            raise Outdated(str(exc)) from exc
        except (Forbidden, Invalid) as exc:
            refused(exc)

    async def delete_job(self, namespace: str, name: str, uid: str) -> None:
        try:
            await self._client.delete(ELASTIC_JOBS, name, namespace=namespace, uid=uid)
        except NotFound:
            return
        except Conflict as exc:
            raise Outdated(str(exc)) from exc

    def tell(self, about: Json, *, reason: str, note: str, warning: bool) -> None:
        kind = _KINDS[about["kind"]]
        self._recorder.record(reference(kind, about), reason=reason, note=note, type="Warning" if warning else "Normal")


def is_ours(kind: Kind[Any], manifest: Json, there: Any) -> None:
    """Raises `NameTaken` unless what is there has the controller that the manifest names."""
    meta, wanted = metadata_of(there), metadata_of(manifest)
    if controller_of(meta) != controller_of(wanted):
        raise NameTaken(
            f"{kind.kind} {meta.namespace}/{meta.name} exists and belongs to somebody else; it is left alone"
        )


def asked(obj: Json) -> tuple[Any, ...]:
    """What changes of an object when somebody asks for something else."""
    meta = obj["metadata"]
    return tuple(meta.get(name) for name in ("uid", "generation", "labels", "annotations", "deletionTimestamp"))


def _report_of_master(obj: Json) -> Any:
    """What a job's master says; of other objects nothing."""
    status = obj.get("status")
    return status.get("training") if isinstance(status, Mapping) else None


def _to_run(job: Json) -> int:
    """How many Pods of members there are to be, by a job's status."""
    status = job.get("status")
    roles = status.get("roles") if isinstance(status, Mapping) else None
    return sum(
        (each.get("granted") or 0) - (each.get("succeeded") or 0) - (each.get("failed") or 0)
        for each in roles or ()
        if isinstance(each, Mapping)
    )


def begins(pod: PodSeen) -> bool:
    """Whether a Pod is on its way to run, or runs."""
    return not pod.deleting and pod.phase in (PodPhase.PENDING, PodPhase.RUNNING)


def with_kind(obj: Json, kind: Kind[Any]) -> Json:
    """An object that says what it is: the items of a list need not."""
    return obj if "kind" in obj else {**obj, "apiVersion": kind.api_version, "kind": kind.kind}


def controller_of(meta: Any) -> str | None:
    return next((each.uid for each in meta.owner_references if each.controller), None)


def refused(exc: ApiError) -> NoReturn:
    match exc:
        case QuotaExceeded():
            reason = Reason.QUOTA_EXCEEDED
        case NamespaceEnding() | NotFound():
            reason = Reason.NAMESPACE_ENDING
        case Forbidden():
            reason = Reason.FORBIDDEN
        case _:
            reason = Reason.INVALID_OBJECT
    raise Denied(reason, str(exc)) from exc


def _uid_of_job(obj: Any) -> Sequence[str]:
    uid = metadata_of(obj).labels.get(JOB_UID)
    return [uid] if uid else []


def _host_of(obj: Any) -> Sequence[str]:
    return [obj.spec.node_name] if obj.spec.node_name else []


def _elastic_job_of(pod: Pod) -> tuple[str, str]:
    """Namespace and name of the ElasticJob that a Pod belongs to; no name: it is another kind's."""
    meta = pod.metadata
    return meta.namespace, "" if KIND in meta.labels else meta.labels.get(JOB_NAME, "")


def _name(obj: Any) -> Sequence[str]:
    return [metadata_of(obj).name]


def _job_of(obj: Any) -> tuple[str, str]:
    """Namespace and name of the job that a plan names, however odd the plan is; no name: it names none."""
    meta, spec = metadata_of(obj), obj.get("spec")
    spec = spec if isinstance(spec, Mapping) else {}
    selector = spec.get("selector")
    name = selector.get("name") if isinstance(selector, Mapping) else None
    name = name or spec.get("ownerJob") or meta.labels.get(JOB_LABEL)
    return meta.namespace, name if isinstance(name, str) else ""


def _named_jobs(obj: Any) -> Sequence[str]:
    namespace, name = _job_of(obj)
    return [f"{namespace}/{name}"]
