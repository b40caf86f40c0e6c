"""What a TrainingJob asks for, for the scheduler: its trainers are what is decided on, all else comes with them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from shoal.api.trainingjob import TrainingCondition, TrainingRole
from shoal.api.trainingspec import TrainingSpec
from shoal.core.hosts import Shape
from shoal.operator.ports import Json
from shoal.operator.scheduling.elastic import Shaper
from shoal.operator.scheduling.facts import JobFacts
from shoal.operator.settings import OperatorSettings
from shoal.operator.standings import of_status
from shoal.operator.status import TRUE
from shoal.operator.training.objects import pod_template
from shoal.operator.training.recall import TrainingReader
from shoal.operator.training.snapshot import TrainingSeen
from shoal.operator.training.status import NO_IMAGE
from shoal.scheduler.rows import JobKey, Kind, Part, Priority, Room, Servers

_DEFAULT_GRACE = 30.0
"""Kubernetes' own."""


class TrainingJobs:
    """Called, it gives the facts of all TrainingJobs that take part, made anew only when an object has changed."""

    def __init__(self, jobs: Callable[[], Sequence[Json]], shape: Shaper, settings: OperatorSettings) -> None:
        self._jobs, self._shape, self._settings = jobs, shape, settings
        self._reader = TrainingReader()
        self._known: dict[str, tuple[str, JobFacts | None]] = {}

    def __call__(self) -> Sequence[JobFacts]:
        known = {}
        for raw in self._jobs():
            meta = raw["metadata"]
            uid, version = str(meta.get("uid", "")), str(meta.get("resourceVersion"))
            before = self._known.get(uid)
            known[uid] = before if before is not None and before[0] == version else (version, self._read(raw))
        for uid in self._known.keys() - known.keys():
            self._reader.forget(uid)
        self._known = known
        return [facts for _, facts in known.values() if facts is not None]

    def _read(self, raw: Json) -> JobFacts | None:
        kind: dict[str, Any] = {"apiVersion": "paddlepaddle.org/v1", "kind": "TrainingJob"}
        return training_facts(self._reader.job({**kind, **raw}), self._shape, self._settings)


def training_facts(job: TrainingSeen, shape: Shaper, settings: OperatorSettings) -> JobFacts | None:
    """None: it takes no part, and its own controller says why."""
    spec = job.spec
    if spec is None or job.deleting or job.is_over:
        return None
    spec = _as_it_runs(spec, job)
    try:
        template = pod_template(job, spec, TrainingRole.TRAINER, settings)
        trainer = shape(template)
        shapes = {part.role: shape(pod_template(job, spec, part.role, settings)) for part in spec.parts}
    except (ValueError, TypeError, LookupError, AttributeError):
        return None
    written, has_image = job.memory.scheduling, bool(spec.image or settings.training_image)
    return JobFacts(
        key=JobKey(job.key.namespace, job.name, Kind.TRAINING_JOB),
        uid=job.uid,
        priority=Priority(spec.priority),
        created=job.created_at.timestamp(),
        asks=has_image,
        lacks=None if has_image else ("ImageMissing", NO_IMAGE),
        suspended=spec.suspend,
        min=spec.trainer.min,
        max=spec.trainer.max,
        trainer_role=str(TrainingRole.TRAINER),
        each=Room(*trainer.amounts),
        placement=trainer.placement,
        placements={str(role): each.placement for role, each in shapes.items()},
        fixed=tuple(
            Part(role=str(part.role), each=Room(*shapes[part.role].amounts), count=part.min)
            for part in spec.parts
            if part.role is not TrainingRole.PSERVER
        ),
        servers=_servers(spec, shapes),
        server_role=str(TrainingRole.PSERVER),
        freezing_window=None if spec.freezing_window is None else spec.freezing_window.total_seconds(),
        grace=float(template["spec"].get("terminationGracePeriodSeconds", _DEFAULT_GRACE)),
        written=written,
        standing=of_status(written),
        victims=job.memory.victims,
        spares_succeeded=True,
        code=(written.code if written else None) or "",
        reason=(written.reason if written else None) or "",
    )


def _as_it_runs(spec: TrainingSpec, job: TrainingSeen) -> TrainingSpec:
    """Servers that stay, by the last look at those that there are: no room is kept for more of them."""
    fixed = job.status.conditions.get(TrainingCondition.SERVERS_FIXED)
    return spec if fixed is None or fixed.status != TRUE else replace(spec, servers_stay=fixed.message)


def _servers(spec: TrainingSpec, shapes: Mapping[TrainingRole, Shape]) -> Servers | None:
    """As many for each trainer as the most for the most; the least beside any number of trainers that would not notice
    more."""
    pserver = spec.pserver
    if pserver is None:
        return None
    each = Room(*shapes[TrainingRole.PSERVER].amounts)
    if not spec.servers_follow:
        return Servers(each=each, min=pserver.min, max=pserver.min, per_trainer=0.0)
    return Servers(each=each, min=pserver.min, max=pserver.max, per_trainer=pserver.max / spec.trainer.max)
