"""From objects as the API server has them to what a decision looks at. Nothing here fails: what cannot be read is said.

The API server has validated what it holds, but by the rules of the day it was applied: an older CRD, or none. So a spec
is held against our rules again, once per generation, and one that breaks them becomes a sentence instead of a spec.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, TypeVar

import msgspec

from shoal.api import ElasticJob, JobResource, ScalePlan
from shoal.api import elasticjob as api
from shoal.api.elasticjob import ElasticJobStatus, Role
from shoal.api.jobresource import JobResourceStatus
from shoal.api.jobspec import JobDefaults, JobSpec, normalise
from shoal.api.meta import ObjectMeta
from shoal.api.resources import of_job_resource, of_spec
from shoal.api.scaleplan import JOB_LABEL, TYPE_LABEL, PodMeta, ScalePlanStatus, ScaleType, is_manual, job_name
from shoal.api.validation import problems
from shoal.operator.objects import auto_name
from shoal.operator.recall import job_status, plan_status
from shoal.operator.snapshot import (
    JobSeen,
    JobStatus,
    Key,
    MoveOrder,
    PlanKind,
    PlanSeen,
    PodOrder,
    RoleAsk,
    Training,
)

Json = Mapping[str, Any]
T = TypeVar("T")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class _Read:
    generation: int
    spec: JobSpec | None
    invalid: str


class Reader:
    """Reads objects, and remembers what a spec meant for as long as its generation stays the same."""

    def __init__(self, defaults: JobDefaults | None = None) -> None:
        self._defaults = defaults or JobDefaults()
        self._known: dict[str, _Read] = {}

    def job(self, raw: Json) -> JobSeen:
        meta = _meta(raw)
        uid, generation = meta.uid or "", meta.generation or 0
        known = self._known.get(uid)
        if known is None or known.generation != generation:
            known = self._known[uid] = self._read(raw, generation)
        status = _lenient(raw.get("status") or {}, ElasticJobStatus)
        return JobSeen(
            key=Key(meta.namespace or "", meta.name),
            uid=uid,
            generation=generation,
            created_at=meta.creation_timestamp or _EPOCH,
            spec=known.spec,
            invalid=known.invalid,
            deleting=meta.deletion_timestamp is not None,
            version=meta.resource_version or "",
            status=_readable(status),
            training=_training(status.training),
        )

    def forget(self, uid: str) -> None:
        self._known.pop(uid, None)

    def _read(self, raw: Json, generation: int) -> _Read:
        found = problems(dict(raw))
        if found:
            return _Read(generation, None, "; ".join(str(problem) for problem in found[:3]))
        try:
            return _Read(generation, normalise(msgspec.convert(raw, ElasticJob), self._defaults), "")
        except (msgspec.ValidationError, ValueError, ArithmeticError) as exc:
            return _Read(generation, None, str(exc))


def read_plan(raw: Json, job: str) -> PlanSeen:
    """A ScalePlan or JobResource that names this job."""
    meta = _meta(raw)
    kind = PlanKind.JOB_RESOURCE if raw.get("kind") == PlanKind.JOB_RESOURCE else PlanKind.SCALE_PLAN
    shape: type[JobResourceStatus | ScalePlanStatus] = (
        JobResourceStatus if kind is PlanKind.JOB_RESOURCE else ScalePlanStatus
    )
    base = PlanSeen(
        kind=kind,
        name=meta.name,
        uid=meta.uid or "",
        generation=meta.generation or 0,
        created_at=meta.creation_timestamp or _EPOCH,
        version=meta.resource_version or "",
        status=plan_status(_lenient(raw.get("status") or {}, shape)),
        auto=kind is PlanKind.SCALE_PLAN and meta.name == auto_name(job),
    )
    found = problems(dict(raw))
    if found:
        return replace(base, invalid="; ".join(str(problem) for problem in found[:3]))
    try:
        if kind is PlanKind.JOB_RESOURCE:
            return _job_resource(base, msgspec.convert(raw, JobResource))
        return _scale_plan(base, msgspec.convert(raw, ScalePlan), job)
    except (msgspec.ValidationError, ValueError, ArithmeticError) as exc:
        return replace(base, invalid=str(exc))


def _job_resource(base: PlanSeen, plan: JobResource) -> PlanSeen:
    spec = plan.spec
    written = {
        Role.PS: spec.parameter_server,
        Role.WORKER: spec.worker,
        Role.CHIEF: spec.chief,
        Role.EVALUATOR: spec.evaluator,
    }
    return replace(
        base,
        roles={
            role: RoleAsk(replicas=each.replicas, resource=of_job_resource(each.resource))
            for role, each in written.items()
            if each is not None
        },
        migrate=tuple(
            MoveOrder(name=each.name, resource=of_job_resource(each.resource)) for each in spec.resource_updation or ()
        ),
    )


def _scale_plan(base: PlanSeen, plan: ScalePlan, job: str) -> PlanSeen:
    spec = plan.spec
    asks = spec.replica_resource_specs
    written = {role: getattr(asks, role, None) for role in Role} if asks else {}
    return replace(
        base,
        refused=_contradiction(base, plan, job),
        roles={
            role: RoleAsk(replicas=each.replicas, resource=of_spec(each.resource))
            for role, each in written.items()
            if each is not None
        },
        create=tuple(order for each in spec.create_pods or () if (order := _order(each, job)) is not None),
        remove=tuple(each.name for each in spec.remove_pods or ()),
        migrate=tuple(MoveOrder(name=each.name, resource=of_spec(each.resource)) for each in spec.migrate_pods or ()),
    )


def _contradiction(base: PlanSeen, plan: ScalePlan, job: str) -> str | None:
    label = (plan.metadata.labels or {}).get(JOB_LABEL)
    if label is not None and job_name(plan) != label:
        return f"ownerJob says {job_name(plan)}, the label {JOB_LABEL} says {label}"
    if not base.auto and not is_manual(plan):
        return f"{TYPE_LABEL}: {ScaleType.AUTO} is for the master's own plan, {auto_name(job)}; leave the label out"
    if base.auto and is_manual(plan):
        return f"{auto_name(job)} is the name of the master's own plan; take another"
    return None


def _order(entry: PodMeta, job: str) -> PodOrder | None:
    """An entry of `createPods`, with role and id from its name when it does not say them."""
    role, number = entry.type, entry.id
    for each in Role:
        rest = entry.name.removeprefix(f"{job}-{each}-")
        if rest != entry.name and rest.isascii() and rest.isdigit():
            role, number = role or each, int(rest) if number is None else number
    if role is None or number is None:
        return None
    return PodOrder(
        name=entry.name,
        role=Role(role),
        id=number,
        rank=entry.rank_index,
        resource=of_spec(entry.resource),
        avoid_hosts=tuple(entry.avoid_hosts or ()),
        replaces=entry.replaces,
    )


def _readable(status: ElasticJobStatus) -> JobStatus:
    try:
        return job_status(status)
    except ValueError:  # a word that we do not write
        return JobStatus()


def _training(training: api.Training | None) -> Training | None:
    if training is None or training.phase is None:
        return None
    last = training.last_decision
    return Training(
        phase=training.phase,
        reason=training.reason or "",
        decision=None if last is None else last.reason,
        decided_at=None if last is None else last.at,
        world=training.world,
        term=training.term,
    )


def _meta(raw: Json) -> ObjectMeta:
    return _lenient(raw.get("metadata") or {}, ObjectMeta)


def _lenient(raw: Any, kind: type[T]) -> T:
    """An object, or an empty one where somebody has scribbled: whoever reads it makes it anew."""
    try:
        return msgspec.convert(raw, kind)
    except (msgspec.ValidationError, ValueError):
        return kind()
