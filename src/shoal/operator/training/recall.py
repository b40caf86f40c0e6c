"""A TrainingJob as the API server has it, read and written. Nothing here fails: what cannot be read is said.

What is written is what is read back, field by field: the record of a decision is what the next one rests on.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from shoal.api.fields import MAX_TEXT
from shoal.api.labels import JOB_UID, ROLE
from shoal.api.meta import Condition as ApiCondition
from shoal.api.meta import ObjectMeta
from shoal.api.trainingjob import (
    Phase,
    ReplicaStatus,
    TrainingJob,
    TrainingJobStatus,
    TrainingRole,
)
from shoal.api.trainingjob import ScaleRecord as ApiScaleRecord
from shoal.api.trainingspec import TrainingSpec, understand
from shoal.api.validation import problems
from shoal.operator.ports import Json
from shoal.operator.snapshot import Condition, Key
from shoal.operator.training.snapshot import (
    RoleCounts,
    ScaleRecord,
    TrainingMemory,
    TrainingSeen,
    TrainingStatus,
)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class TrainingReader:
    """Reads jobs, and what they mean once per generation: the rules are many, and a job is looked at often."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[int, TrainingSpec | None, str]] = {}

    def job(self, raw: Json) -> TrainingSeen:
        meta = _lenient(raw.get("metadata") or {}, ObjectMeta)
        uid, generation = meta.uid or "", meta.generation or 0
        if uid not in self._known or self._known[uid][0] != generation:
            self._known[uid] = (generation, *_read(raw))
        _, spec, invalid = self._known[uid]
        return TrainingSeen(
            key=Key(meta.namespace or "", meta.name),
            uid=uid,
            generation=generation,
            created_at=meta.creation_timestamp or _EPOCH,
            spec=spec,
            invalid=invalid,
            deleting=meta.deletion_timestamp is not None,
            version=meta.resource_version or "",
            status=recalled(_lenient(raw.get("status") or {}, TrainingJobStatus)),
        )

    def forget(self, uid: str) -> None:
        self._known.pop(uid, None)


def _read(raw: Json) -> tuple[TrainingSpec | None, str]:
    found = problems(dict(raw))
    if found:
        return None, "; ".join(str(problem) for problem in found[:3])
    try:
        return understand(msgspec.convert(raw, TrainingJob)), ""
    except (msgspec.ValidationError, ValueError, ArithmeticError) as exc:
        return None, str(exc)


def recalled(written: TrainingJobStatus) -> TrainingStatus:
    roles = {each.role: each for each in written.replica_statuses or ()}
    trainer = roles.get(TrainingRole.TRAINER)
    earlier = written.failures or 0
    memory = TrainingMemory(
        scheduling=written.scheduling,
        victims=tuple(written.victims or ()),
        form=written.form,
        trainer_uid=trainer.uid if trainer else None,
        trainer_failed=max((trainer.failed or 0) - earlier, 0) if trainer else 0,
        earlier_failures=earlier,
        records=tuple(
            ScaleRecord(
                at=each.at, before=each.from_, after=each.to, reason=each.reason or "", role=_role_of(each.role)
            )
            for each in written.scale_records or ()
        ),
        start_time=written.start_time,
        finish_time=written.finish_time,
    )
    return TrainingStatus(
        memory=memory,
        phase=Phase(written.phase) if written.phase in tuple(Phase) else Phase.PENDING,
        reason=written.reason or "",
        conditions={each.type: _condition(each) for each in written.conditions or ()},
        counts={
            TrainingRole(role): RoleCounts(
                target=each.target or 0,
                pending=each.pending or 0,
                running=each.running or 0,
                succeeded=each.succeeded or 0,
                failed=each.failed or 0,
            )
            for role, each in roles.items()
            if role in tuple(TrainingRole)
        },
        observed_generation=written.observed_generation,
    )


def written_status(job: TrainingSeen, status: TrainingStatus) -> dict[str, Any]:
    """All of a TrainingJob's status, as JSON."""
    memory = status.memory
    trainers = status.counts.get(TrainingRole.TRAINER)
    found = TrainingJobStatus(
        phase=status.phase,
        reason=status.reason[:MAX_TEXT] or None,
        conditions=[_api_condition(each) for each in status.conditions.values()],
        observed_generation=status.observed_generation,
        replicas=trainers.pending + trainers.running if trainers else 0,
        selector=f"{JOB_UID}={job.uid},{ROLE}={TrainingRole.TRAINER}",
        replica_statuses=_roles(status) or None,
        scheduling=memory.scheduling,
        scale_records=[
            ApiScaleRecord(
                at=each.at,
                from_=each.before,
                to=each.after,
                role=None if each.role is TrainingRole.TRAINER else str(each.role),
                reason=each.reason[:MAX_TEXT] or None,
            )
            for each in memory.records
        ]
        or None,
        victims=list(memory.victims) or None,
        form=memory.form,
        failures=memory.earlier_failures or None,
        start_time=memory.start_time,
        finish_time=memory.finish_time,
    )
    told: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(found))
    return told


def _role_of(written: str | None) -> TrainingRole:
    return TrainingRole(written) if written in tuple(TrainingRole) else TrainingRole.TRAINER


def _roles(status: TrainingStatus) -> list[ReplicaStatus]:
    memory = status.memory
    counts: Mapping[TrainingRole, RoleCounts] = status.counts
    if memory.trainer_uid is not None and TrainingRole.TRAINER not in counts:
        counts = {**counts, TrainingRole.TRAINER: RoleCounts(failed=memory.failures)}
    return [
        ReplicaStatus(
            role=role,
            target=each.target,
            pending=each.pending,
            running=each.running,
            succeeded=each.succeeded or None,
            failed=each.failed or None,
            uid=memory.trainer_uid if role is TrainingRole.TRAINER else None,
        )
        for role, each in sorted(counts.items())
    ]


def _condition(written: ApiCondition) -> Condition:
    return Condition(
        type=written.type,
        status=written.status,
        reason=written.reason,
        message=written.message,
        since=written.last_transition_time,
        generation=written.observed_generation or 0,
    )


def _api_condition(condition: Condition) -> ApiCondition:
    return ApiCondition(
        type=condition.type,
        status=condition.status,
        reason=condition.reason,
        message=condition.message[:MAX_TEXT],
        last_transition_time=condition.since,
        observed_generation=condition.generation,
    )


def _lenient(raw: Any, kind: type[Any]) -> Any:
    """An object, or an empty one where somebody has scribbled: whoever reads it makes it anew."""
    try:
        return msgspec.convert(raw, kind)
    except (msgspec.ValidationError, ValueError):
        return kind()
