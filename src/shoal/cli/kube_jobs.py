"""A cluster's jobs, for people: `submit`, `get`, `describe`, `why`, `logs`, `scale`, `suspend`, `resume`, `stop`.

Everything goes through the API server with the rights of whoever types: there is no service of ours behind it. Each
function makes one client, asks or writes, and prints; what is printed is made by `kube_text`.
"""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import yaml

from shoal.api import ElasticJob, ScalePlan
from shoal.api.meta import ObjectMeta
from shoal.api.scaleplan import job_name
from shoal.api.trainingjob import TrainingJob
from shoal.cli import kube_text
from shoal.cli.jobs import print_rows
from shoal.cli.kube_access import access_from
from shoal.cli.kube_documents import read_documents
from shoal.cli.text import clean, clean_line
from shoal.cli.where import Where
from shoal.core.errors import BadInput, ShoalError
from shoal.platforms.kubernetes.client import Client, Merge
from shoal.platforms.kubernetes.errors import ApiError, NotFound, NotServed
from shoal.platforms.kubernetes.kinds import ELASTIC_JOBS, JOB_RESOURCES, SCALE_PLANS, TRAINING_JOBS
from shoal.platforms.kubernetes.objects import EVENTS, PODS, Event, Kind, Pod

T = TypeVar("T")
Json = dict[str, Any]
MANAGER = "shoal-cli"
KINDS: dict[str, Kind[Json]] = {kind.kind: kind for kind in (ELASTIC_JOBS, SCALE_PLANS, JOB_RESOURCES, TRAINING_JOBS)}
GROUP = "elastic.iml.github.io"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """One client, and where its user is when nobody says."""

    client: Client
    namespace: str
    everywhere: bool = False

    @property
    def scope(self) -> str | None:
        return None if self.everywhere else self.namespace


@asynccontextmanager
async def _cluster(where: Where, environment: dict[str, str]) -> AsyncIterator[Cluster]:
    access = access_from(environment, kubeconfig=where.kubeconfig, context=where.context)
    async with Client(access) as client:
        yield Cluster(client=client, namespace=where.namespace or access.namespace, everywhere=where.all_namespaces)


def run(where: Where, environment: dict[str, str], what: Callable[[Cluster], Awaitable[T]]) -> T:
    """Do something with the cluster. Errors come out with what to do about them."""

    async def do() -> T:
        async with _cluster(where, environment) as cluster:
            return await what(cluster)

    try:
        return asyncio.run(do())
    except NotServed as exc:
        raise ShoalError(f"{exc}; is Shoal installed in this cluster? (docs/install.md)") from exc


# submit ----------------------------------------------------------------------------------------------------------


def submit(files: Sequence[str], *, dry_run: bool) -> Callable[[Cluster], Awaitable[None]]:
    """Apply every document of the files. All of them are read and checked before the first one is sent."""
    documents = [document for name in files for document in read_documents(name, text_of(name), tuple(KINDS))]
    if not documents:
        raise BadInput(f"{', '.join(files)}: there is no object in it")

    async def do(cluster: Cluster) -> None:
        for document in documents:
            kind = KINDS[document["kind"]]
            meta = {**document["metadata"]}
            meta.setdefault("namespace", cluster.namespace)
            body = {**document, "metadata": meta}
            known = await _exists(cluster.client, kind, meta["namespace"], meta["name"])
            await cluster.client.apply(kind, body, manager=MANAGER, dry_run=dry_run)
            said = "configured" if known else "created"
            print(f"{kind.kind} {meta['namespace']}/{meta['name']} {said}{' (dry run)' if dry_run else ''}")

    return do


async def _exists(client: Client, kind: Kind[Json], namespace: str, name: str) -> bool:
    try:
        await client.get(kind, name, namespace=namespace)
    except NotFound:
        return False
    return True


def text_of(name: str) -> bytes:
    if name == "-":
        return sys.stdin.buffer.read()
    try:
        return Path(name).read_bytes()
    except OSError as exc:
        raise BadInput(f"{name} cannot be read: {exc.strerror or exc}") from exc


# get, describe, why ----------------------------------------------------------------------------------------------


def get(names: Sequence[str], *, output: str) -> Callable[[Cluster], Awaitable[None]]:
    async def do(cluster: Cluster) -> None:
        found = await _jobs(cluster, names)
        if output in ("json", "yaml"):
            _print_objects(found, output, single=len(names) == 1)
            return
        if not found:
            print("no jobs" if cluster.everywhere else f"no jobs in namespace {cluster.namespace}")
            return
        wide = output == "wide"
        now = datetime.now(UTC)
        rows = [kube_text.row(_job(each), now, wide=wide, namespaces=cluster.everywhere) for each in found]
        print_rows([kube_text.titles(wide=wide, namespaces=cluster.everywhere), *rows])

    return do


async def _jobs(cluster: Cluster, names: Sequence[str]) -> list[Json]:
    if names:
        return [(await _named(cluster, name))[1] for name in names]
    found = list((await cluster.client.list(ELASTIC_JOBS, namespace=cluster.scope)).items)
    with suppress(NotServed):  # a cluster from before there were any
        listed = (await cluster.client.list(TRAINING_JOBS, namespace=cluster.scope)).items
        found += [{"kind": TRAINING_JOBS.kind, "apiVersion": TRAINING_JOBS.api_version, **each} for each in listed]
    return found


async def _named(cluster: Cluster, name: str) -> tuple[Kind[Json], Json]:
    """The job of that name, and its kind. An ElasticJob comes first where there are both."""
    for kind in (ELASTIC_JOBS, TRAINING_JOBS):
        try:
            return kind, await cluster.client.get(kind, name, namespace=cluster.namespace)
        except NotFound:
            continue
        except NotServed:
            if kind is ELASTIC_JOBS:
                raise
    raise ShoalError(f"no job named {clean(name)} in namespace {cluster.namespace}")


def _job(found: Json) -> ElasticJob | TrainingJob:
    try:
        if found.get("kind") == TRAINING_JOBS.kind:
            return msgspec.convert(found, TrainingJob)
        return msgspec.convert(found, ElasticJob)
    except msgspec.ValidationError as exc:
        name = found.get("metadata", {}).get("name")
        raise ShoalError(f"job {name}: it is not as this release of Shoal knows jobs: {exc}") from exc


def _print_objects(found: Sequence[Json], output: str, *, single: bool) -> None:
    whole: Any = found[0] if single else {"apiVersion": "v1", "kind": "List", "items": list(found)}
    if output == "json":
        print(json.dumps(whole, indent=2))
    else:
        print(yaml.safe_dump(whole, sort_keys=False, allow_unicode=True), end="")


def describe(name: str, *, output: str) -> Callable[[Cluster], Awaitable[None]]:
    async def do(cluster: Cluster) -> None:
        _, found = await _named(cluster, name)
        if output in ("json", "yaml"):
            _print_objects([found], output, single=True)
            return
        job = _job(found)
        if isinstance(job, TrainingJob):
            events = await _events(cluster, job.metadata)
            print("\n".join(kube_text.describe_training(job, events, datetime.now(UTC))))
            return
        plans = await _plans(cluster, name)
        auto = next((plan for plan in plans if plan.metadata.name == f"{name}-auto"), None)
        pods = (auto.status.pods or []) if auto is not None and auto.status is not None else []
        events = await _events(cluster, job.metadata)
        for line in kube_text.describe(job, plans, pods, events, datetime.now(UTC)):
            print(line)

    return do


def why(name: str, *, output: str) -> Callable[[Cluster], Awaitable[None]]:
    async def do(cluster: Cluster) -> None:
        lines = await _why(cluster, name)
        if output == "json":
            print(json.dumps(lines, indent=2))
        elif output == "yaml":
            print(yaml.safe_dump(lines, allow_unicode=True, width=1000), end="")
        else:
            print("\n".join(lines))

    return do


async def _why(cluster: Cluster, name: str) -> list[str]:
    now = datetime.now(UTC)
    _, found = await _named(cluster, name)
    job = _job(found)
    events = await _events_of_job(cluster, job.metadata)
    if isinstance(job, TrainingJob):
        return kube_text.why_training(job, events, now)
    return kube_text.why(job, await _plans(cluster, name), events, now)


async def _events_of_job(cluster: Cluster, meta: ObjectMeta) -> list[kube_text.EventLine]:
    return [each for each in await _events(cluster, meta) if each.is_about_job or each.kind == "Warning"]


async def _plans(cluster: Cluster, name: str) -> list[ScalePlan]:
    plans = []
    for each in (await cluster.client.list(SCALE_PLANS, namespace=cluster.namespace)).items:
        with suppress(msgspec.ValidationError):  # somebody's broken plan is not about this job's state
            plans.append(msgspec.convert(each, ScalePlan))
    return [plan for plan in plans if job_name(plan) == name]


async def _events(cluster: Cluster, meta: ObjectMeta) -> list[kube_text.EventLine]:
    """What was said about the job and its Pods lately. Who may not read events sees the rest all the same."""
    try:
        found = (await cluster.client.list(EVENTS, namespace=cluster.namespace)).items
    except ApiError as exc:
        print(f"shoal: events are not shown: {clean(str(exc))}", file=sys.stderr)
        return []
    uid, prefix = meta.uid, f"{meta.name}-"
    about = [
        e
        for e in found
        if e.regarding.uid == uid or (e.regarding.kind == "Pod" and e.regarding.name.startswith(prefix))
    ]
    return sorted((_line(each) for each in about), key=lambda line: line.at)


def _line(event: Event) -> kube_text.EventLine:
    series = event.series
    at = (series.last_observed_time if series else None) or event.event_time or event.metadata.creation_timestamp
    return kube_text.EventLine(
        at=at or datetime.now(UTC),
        kind=event.type,
        reason=event.reason,
        about=f"{event.regarding.kind} {event.regarding.name}",
        note=event.note,
        count=series.count if series else 1,
    )


# logs ------------------------------------------------------------------------------------------------------------


def logs(name: str, *, rank: int | None, node: str | None, follow: bool) -> Callable[[Cluster], Awaitable[None]]:
    async def do(cluster: Cluster) -> None:
        await _named(cluster, name)
        found = (await cluster.client.list(PODS, namespace=cluster.namespace, labels=f"{GROUP}/job-name={name}")).items
        wanted = _wanted(name, found, rank=rank, node=node)
        prefixed = len(wanted) > 1
        if follow:
            async with asyncio.TaskGroup() as tasks:
                for pod in wanted:
                    tasks.create_task(_show(cluster, name, pod, follow=True, prefixed=prefixed))
            return
        for pod in wanted:
            await _show(cluster, name, pod, follow=False, prefixed=prefixed)

    return do


def _wanted(job: str, pods: Sequence[Pod], *, rank: int | None, node: str | None) -> list[Pod]:
    """The Pods whose output is asked for, the oldest first. A rank is the place the operator gave to a Pod."""
    members = sorted(
        (pod for pod in pods if pod.metadata.labels.get(f"{GROUP}/role") != "master" or node is not None),
        key=lambda pod: (pod.metadata.creation_timestamp or datetime.min.replace(tzinfo=UTC), pod.metadata.name),
    )
    if node is not None:
        members = [pod for pod in members if pod.metadata.name in (node, f"{job}-{node}")]
    if rank is not None:
        members = [pod for pod in members if pod.metadata.labels.get(f"{GROUP}/rank-hint") == str(rank)][-1:]
    if not members:
        known = ", ".join(sorted(pod.metadata.name for pod in pods)) or "none"
        raise ShoalError(f"job {job}: no Pod of that kind; its Pods are: {known}")
    return members


async def _show(cluster: Cluster, job: str, pod: Pod, *, follow: bool, prefixed: bool) -> None:
    name = pod.metadata.name
    prefix = f"[{name.removeprefix(f'{job}-')}] " if prefixed else ""
    rest = b""
    try:
        async for piece in cluster.client.logs(name, namespace=cluster.namespace, follow=follow):
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                print(f"{prefix}{clean_line(line)}", flush=follow)
    except ApiError as exc:  # its container has not started, or it was just deleted: the others' output counts
        print(f"shoal: {name}: {clean(str(exc))}", file=sys.stderr)
    if rest:
        print(f"{prefix}{clean_line(rest)}", flush=follow)


# scale, suspend, resume, stop ------------------------------------------------------------------------------------


def scale(name: str, counts: Mapping[str, int | None]) -> Callable[[Cluster], Awaitable[None]]:
    """By role. None: its `replicas` is taken back, and how many there are is the optimizer's to say again."""

    async def do(cluster: Cluster) -> None:
        kind, found = await _named(cluster, name)
        words = " ".join(f"{role}={'auto' if count is None else count}" for role, count in counts.items())
        if kind is not ELASTIC_JOBS:
            if counts.keys() != {"worker"} or counts["worker"] is None:
                raise BadInput(f"job {name} is a TrainingJob, which has trainers only: {words} is for ElasticJobs")
            await cluster.client.set_scale(kind, name, counts["worker"], namespace=cluster.namespace)
            print(f"{name}: at most {counts['worker']} trainers; `shoal why {name}` tells what comes of it")
            return
        if "ps" in counts and not (found.get("spec") or {}).get("parameterServer"):
            raise BadInput(f"job {name} has no spec.parameterServer, so {words} means nothing to it")
        for role, count in counts.items():
            if role == "worker" and count is not None:
                await cluster.client.set_scale(kind, name, count, namespace=cluster.namespace)
            else:
                patch = Merge({"spec": {_FIELDS[role]: {"replicas": count}}})
                await cluster.client.patch(kind, name, patch, namespace=cluster.namespace)
        print(f"{name}: {words} asked for; `shoal why {name}` tells what comes of it")

    return do


_FIELDS = {"worker": "worker", "ps": "parameterServer"}
"""Of a spec, by role."""


def suspend(name: str, *, on: bool) -> Callable[[Cluster], Awaitable[None]]:
    async def do(cluster: Cluster) -> None:
        kind, found = await _named(cluster, name)
        job = _job(found)
        if bool(job.spec.suspend) == on:
            print(f"{name}: it is {'suspended already' if on else 'not suspended'}")
            return
        await cluster.client.patch(kind, name, Merge({"spec": {"suspend": on}}), namespace=cluster.namespace)
        print(f"{name}: {'suspended: its Pods are drained and end' if on else 'resumed'}")

    return do


def stop(name: str, *, now: bool) -> Callable[[Cluster], Awaitable[None]]:
    """The end of a job on Kubernetes is the end of its object: all it owns goes with it."""

    async def do(cluster: Cluster) -> None:
        kind, found = await _named(cluster, name)
        job = _job(found)
        await cluster.client.delete(
            kind, name, namespace=cluster.namespace, uid=job.metadata.uid, grace_seconds=0 if now else None
        )
        print(f"{name}: deleted, and its Pods with it; `shoal suspend` would have kept it")

    return do
