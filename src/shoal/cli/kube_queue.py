"""`shoal queue` and `shoal whatif`: who waits for what, and what a job would have to wait for. Both only read."""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from shoal.api.scheduling import SchedulingStatus
from shoal.cli.jobs import print_rows, print_value, table
from shoal.cli.kube_documents import read_documents
from shoal.cli.kube_jobs import Cluster, Json
from shoal.cli.text import age, clean
from shoal.core.errors import BadInput
from shoal.core.hosts import PodUse
from shoal.platforms.kubernetes.errors import ApiError, NotFound
from shoal.platforms.kubernetes.informer import Informer
from shoal.platforms.kubernetes.kinds import ELASTIC_JOBS, JOB_RESOURCES, SCALE_PLANS, TRAINING_JOBS
from shoal.platforms.kubernetes.objects import CONFIG_MAPS, LEASES, NODES, PODS, RESOURCE_QUOTAS, Kind

TITLES = ("PLACE", "NAMESPACE", "JOB", "KIND", "PRIORITY", "ASKED", "WAITS FOR", "SINCE", "WHY")
WIDE = ("AGE", "ATTAINED")
SETTLE_SECONDS = 0.2
"""What changes together is shown together."""
JOB_KINDS: dict[str, Kind[Json]] = {kind.kind: kind for kind in (ELASTIC_JOBS, TRAINING_JOBS)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """How Shoal's operator was started: its own flags, of the same names."""

    home: str = "shoal-system"
    """Where the chart's notes put it."""
    scheduler_settings: str = "shoal-scheduler"
    lease: str = "shoal-operator"
    training_image: str | None = None
    gpu_resource: str = "nvidia.com/gpu"
    drain: float = 120.0


# queue -----------------------------------------------------------------------------------------------------------


Line = dict[str, Any]
"""A job that waits."""


def queue(*, output: str, watch: bool = False) -> Callable[[Cluster], Awaitable[None]]:
    async def do(cluster: Cluster) -> None:
        if watch:
            await _follow(cluster, output)
            return
        _show(_in_order([(kind, await _listed(cluster, kind)) for kind in JOB_KINDS.values()]), output)

    return do


async def _follow(cluster: Cluster, output: str) -> None:
    """The queue, and again whenever it has changed, until interrupted."""
    kinds = [kind for kind in JOB_KINDS.values() if await _is_served(cluster, kind)]
    informers = [Informer(cluster.client, kind, namespace=cluster.scope) for kind in kinds]
    changed = asyncio.Event()
    shown: list[Line] | None = None
    async with asyncio.TaskGroup() as tasks:
        for informer in informers:
            informer.on_change(lambda _: changed.set())
            tasks.create_task(informer.run())
        for informer in informers:
            await informer.synced()
        while True:
            changed.clear()
            lines = _in_order([(informer.kind, informer.all()) for informer in informers])
            if lines != shown:
                if shown is not None:
                    print("---" if output == "yaml" else "")
                _show(lines, output)
                sys.stdout.flush()
                shown = lines
            await changed.wait()
            await asyncio.sleep(SETTLE_SECONDS)


def _in_order(found: Iterable[tuple[Kind[Json], Sequence[Json]]]) -> list[Line]:
    lines = [line for kind, jobs in found for raw in jobs if (line := waits(kind.kind, raw)) is not None]
    return sorted(lines, key=lambda line: (line["place"], line["since"] or "", line["namespace"], line["job"]))


def _show(lines: Sequence[Line], output: str) -> None:
    if output in ("json", "yaml"):
        print_value(lines, output)
        return
    if not lines:
        print("nobody waits")
        return
    now, wide = datetime.now(UTC), output == "wide"
    rows = [tuple(clean(cell) for cell in _row(line, now, wide=wide)) for line in lines]
    if wide:
        print("\n".join(table([(*TITLES[:-1], *WIDE, TITLES[-1]), *rows], width=None)))
    else:
        print_rows([TITLES, *rows])


def waits(kind: str, raw: Json) -> Line | None:
    """A job's line in the queue; None: it does not wait."""
    status = raw.get("status")
    written = status.get("scheduling") if isinstance(status, dict) else None
    try:
        told = msgspec.convert(written or {}, SchedulingStatus)
    except msgspec.ValidationError:
        return None
    if told.place is None or told.target:
        return None
    meta, spec = raw.get("metadata", {}), raw.get("spec", {})
    return {
        "place": told.place,
        "namespace": meta.get("namespace", ""),
        "job": meta.get("name", ""),
        "kind": kind,
        "priority": spec.get("priority") or "Normal",
        "asked": _asked(kind, raw),
        "waitsFor": told.code or "",
        "since": None if told.waiting_since is None else told.waiting_since.isoformat(),
        "created": meta.get("creationTimestamp"),
        "attained": told.v,
        "why": told.reason or "",
    }


def _asked(kind: str, raw: Json) -> str:
    if kind == TRAINING_JOBS.kind:
        trainer = raw.get("spec", {}).get("trainer") or {}
        least = trainer.get("min-instance") or 1
        return f"{least}-{trainer.get('max-instance') or least}"
    roles = (raw.get("status") or {}).get("roles") or ()
    return str(next((role.get("asked", "") for role in roles if role.get("role") == "worker"), ""))


def _row(line: Line, now: datetime, *, wide: bool) -> tuple[str, ...]:
    cells = [str(line[name]) for name in ("place", "namespace", "job", "kind", "priority", "asked", "waitsFor")]
    cells.append(_ago(line["since"], now))
    if wide:
        cells += [_ago(line["created"], now), "" if line["attained"] is None else f"{float(line['attained']):.4g}"]
    return (*cells, line["why"])


def _ago(moment: str | None, now: datetime) -> str:
    return "" if moment is None else age(now - datetime.fromisoformat(moment))


async def _listed(cluster: Cluster, kind: Kind[Any]) -> list[Any]:
    with suppress(NotFound):  # an installation without that kind
        return list((await cluster.client.list(kind, namespace=cluster.scope)).items)
    return []


async def _is_served(cluster: Cluster, kind: Kind[Any]) -> bool:
    try:
        await cluster.client.list(kind, namespace=cluster.scope)
    except NotFound:
        return False
    return True


# whatif ----------------------------------------------------------------------------------------------------------


def whatif(file: str, text: bytes, *, installed: Installation, output: str) -> Callable[[Cluster], Awaitable[None]]:
    """When the job of a file would start, and who would shrink for it."""
    documents = list(read_documents(file, text, tuple(JOB_KINDS)))
    if len(documents) != 1:
        raise BadInput(f"{file}: wanted one {' or '.join(JOB_KINDS)}, got {len(documents)} objects")

    async def do(cluster: Cluster) -> None:
        document = documents[0]
        meta = {"namespace": cluster.namespace, **document["metadata"]}
        answer = await _ask({**document, "metadata": meta}, cluster, installed)
        if output in ("json", "yaml"):
            print_value(msgspec.to_builtins(answer), output)
            return
        for line in words(f"{document['kind']} {meta['namespace']}/{meta['name']}", answer):
            print(clean(line))

    return do


def words(title: str, answer: Any) -> list[str]:
    """The answer for people."""
    if answer.starts_in == 0:
        lines = [f"{title} would start at once, with {answer.trainers}: {answer.reason}"]
    elif answer.starts_in is not None:
        lines = [f"{title} would start in about {answer.starts_in:.0f} s, with {answer.trainers}: {answer.reason}"]
    else:
        lines = [f"{title} would not start within an hour, if nobody ends meanwhile"]
    if answer.waits_for:
        lines.append(f"  until then: place {answer.place} in the queue: {answer.waits_for}")
    lines += [
        f"  {each.key} would have {each.after} instead of {each.before}: {each.reason}" for each in answer.effects
    ]
    if not answer.effects:
        lines.append("  nobody would have to give anything up for it")
    return lines


async def _ask(document: Json, cluster: Cluster, installed: Installation) -> Any:
    from shoal.operator.scheduling.ledger import filled
    from shoal.operator.scheduling.round import Known
    from shoal.operator.scheduling.whatif import what_if
    from shoal.platforms.kubernetes.uses import host_seen, pod_use, quota_seen
    from shoal.scheduler.policies import policy

    client, now = cluster.client, datetime.now(UTC)
    operator = _operator(installed)
    nodes = (await client.list(NODES)).items
    uses: list[PodUse] = [pod_use(pod) for pod in (await client.list(PODS)).items]
    quotas = [seen for each in (await client.list(RESOURCE_QUOTAS)).items if (seen := quota_seen(each)) is not None]
    facts = await _facts(cluster, operator, now)
    there = {each.key for each in facts}
    mine = _fact(document, [], operator, now)
    if mine is None:
        raise BadInput(
            f"{document['kind']} {document['metadata']['name']} cannot be understood; `shoal submit` says why"
        )
    why = _why_not(mine)
    if why is not None:
        raise BadInput(f"{mine.key} would not start: {why}")
    if mine.key in there:
        raise BadInput(f"{mine.key} exists already; `shoal why` tells of it")
    settings, min_v = await _settings(cluster, installed)
    known = Known(hosts=[host_seen(node) for node in nodes], quotas=quotas, facts=facts, ledger=filled(uses))
    return what_if(known, uses, mine, policy(settings.policy), settings, min_v=min_v, now=now.timestamp())


def _operator(installed: Installation) -> Any:
    from shoal.operator.settings import JobTimes, OperatorSettings

    return OperatorSettings(
        image="shoal",  # what it makes of a job is only measured
        install_key=b"\0" * 32,
        training_image=installed.training_image,
        gpu_resource=installed.gpu_resource,
        times=JobTimes(drain=timedelta(seconds=installed.drain)),
    )


def _why_not(job: Any) -> str | None:
    """Why a job would not even wait; None: it takes part."""
    if job.suspended:
        return "spec.suspend is true"
    if job.takes_part:
        return None
    if job.key.kind == TRAINING_JOBS.kind:
        return "it names no image; --training-image says what the operator's is"
    return "nobody has said how many members it should have: say worker.replicas"


async def _facts(cluster: Cluster, operator: Any, now: datetime) -> list[Any]:
    client, found = cluster.client, []
    plans = [
        {"apiVersion": kind.api_version, "kind": kind.kind, **each}
        for kind in (SCALE_PLANS, JOB_RESOURCES)
        for each in (await client.list(kind)).items
    ]
    for kind in JOB_KINDS.values():
        for raw in (await client.list(kind)).items:
            whole = {"apiVersion": kind.api_version, "kind": kind.kind, **raw}
            of_job = [plan for plan in plans if _is_for(plan, raw)]
            found.append(_fact(whole, of_job, operator, now))
    return [each for each in found if each is not None]


def _is_for(plan: Json, job: Json) -> bool:
    spec, meta = plan.get("spec") or {}, job["metadata"]
    name = (spec.get("selector") or {}).get("name") or spec.get("ownerJob")
    return bool(name == meta["name"] and plan["metadata"].get("namespace") == meta.get("namespace"))


def _fact(raw: Json, plans: Sequence[Json], operator: Any, now: datetime) -> Any:
    from shoal.operator.reading import Reader
    from shoal.operator.scheduling.sources import facts_of
    from shoal.operator.training.facts import training_facts
    from shoal.operator.training.recall import TrainingReader
    from shoal.platforms.kubernetes.uses import shape

    fresh = {"uid": "what-if", "generation": 1, "creationTimestamp": now.isoformat()}
    whole = {**raw, "metadata": {**fresh, **raw["metadata"]}}
    if raw["kind"] == TRAINING_JOBS.kind:
        return training_facts(TrainingReader().job(whole), shape, operator)
    return facts_of(Reader(operator.defaults).job(whole), plans, shape, operator, now=now)


async def _settings(cluster: Cluster, installed: Installation) -> tuple[Any, float]:
    """The scheduler's settings and its `min_v`; where they cannot be read, the defaults, and a word about it."""
    from shoal.cli.operator_scheduler import LAST_SETTINGS, MIN_V, number_of, parse_yaml
    from shoal.operator.scheduling.live import LiveSettings
    from shoal.scheduler.policies import known_policies

    live = LiveSettings(parse=parse_yaml, policies=frozenset(known_policies(sim=False)))
    notes: dict[str, str] = {}
    try:
        lease = await cluster.client.get(LEASES, installed.lease, namespace=installed.home)
        notes = dict(lease.metadata.annotations)
    except ApiError as exc:
        _warn(f"who has attained how much is not known exactly (--home, --lease): {exc}")
    live.recall(notes.get(LAST_SETTINGS))
    try:
        found = await cluster.client.get(CONFIG_MAPS, installed.scheduler_settings, namespace=installed.home)
        refused = live.hear(dict(found.data))
        if refused is not None:
            _warn(f"the scheduler's settings are refused, those before them are taken: {refused}")
    except ApiError as exc:
        taken = "those on the lease are taken" if LAST_SETTINGS in notes else "the defaults are taken"
        _warn(f"the scheduler's settings cannot be read (--home, --scheduler-settings), {taken}: {exc}")
    return live(), number_of(notes.get(MIN_V))


def _warn(text: str) -> None:
    print(f"shoal: {clean(text)}", file=sys.stderr)
