"""Jobs, plans and Pods for tests: a builder shows only what matters."""

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from shoal.api import ElasticJob
from shoal.api.elasticjob import Role
from shoal.api.jobspec import normalise
from shoal.api.resources import Resource
from shoal.core.pods import PodPhase, PodSeen
from shoal.operator.actions import JobPlan
from shoal.operator.crew import pod_name
from shoal.operator.plan import plan_job
from shoal.operator.settings import JobTimes, OperatorSettings
from shoal.operator.snapshot import (
    JobSeen,
    JobStatus,
    Key,
    MoveOrder,
    PlanKind,
    PlanSeen,
    PodOrder,
    RoleAsk,
    Snapshot,
    Training,
)

NOW = datetime(2026, 1, 1, 12, 0, tzinfo=UTC)
SETTINGS = OperatorSettings(image="shoal:test", install_key=b"k" * 32, news_rest=0.0)
TIMES = JobTimes()
KEY = Key("default", "mnist")
TEMPLATE = {"spec": {"containers": [{"name": "main", "image": "trainer", "command": ["python", "train.py"]}]}}


def at(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def a_role(**more: Any) -> dict[str, Any]:
    return {"template": TEMPLATE, **more}


def on_a_volume(mounted: str, **volume: Any) -> dict[str, Any]:
    """The template with a volume at this path: one that outlives its Pods, unless another kind is given."""
    kind = volume or {"persistentVolumeClaim": {"claimName": "models"}}
    container = {**TEMPLATE["spec"]["containers"][0], "volumeMounts": [{"name": "models", "mountPath": mounted}]}
    return {"spec": {"containers": [container], "volumes": [{"name": "models", **kind}]}}


def a_job(status: JobStatus | None = None, *, training: Training | None = None, **spec: Any) -> JobSeen:
    written = {
        "apiVersion": "elastic.iml.github.io/v1alpha1",
        "kind": "ElasticJob",
        "metadata": {"name": KEY.name, "namespace": KEY.namespace, "uid": "job-uid", "generation": 1},
        "spec": {"worker": a_role(), **spec},
    }
    return JobSeen(
        key=KEY,
        uid="job-uid",
        generation=1,
        created_at=NOW,
        spec=normalise(msgspec.convert(written, ElasticJob)),
        status=status or JobStatus(),
        training=training,
    )


def a_plan(name: str = "p", *, generation: int = 1, uid: str = "", **more: Any) -> PlanSeen:
    """A manual ScalePlan; `worker=3` and the like ask for counts."""
    roles = {role: RoleAsk(replicas=more.pop(role)) for role in Role if role in more}
    roles |= more.pop("roles", {})
    return PlanSeen(
        kind=more.pop("kind", PlanKind.SCALE_PLAN),
        name=name,
        uid=uid or f"{name}-uid",
        generation=generation,
        created_at=NOW,
        roles=roles,
        **more,
    )


def an_auto_plan(**more: Any) -> PlanSeen:
    return a_plan(f"{KEY.name}-auto", auto=True, **more)


def an_order(role: Role, number: int, *, replaces: int | None = None, **more: Any) -> PodOrder:
    return PodOrder(
        name=pod_name(KEY.name, role, number),
        role=role,
        id=number,
        replaces=None if replaces is None else pod_name(KEY.name, role, replaces),
        **more,
    )


def a_move(role: Role, number: int, **resource: Any) -> MoveOrder:
    return MoveOrder(name=pod_name(KEY.name, role, number), resource=Resource(**resource))


def a_pod(role: Role | None, number: int, phase: PodPhase = PodPhase.RUNNING, **more: Any) -> PodSeen:
    name = f"{KEY.name}-master-{number}" if role is None else pod_name(KEY.name, role, number)
    return PodSeen(name=name, uid=f"{name}-uid", role=role, id=number, phase=phase, created_at=NOW, **more)


def a_plan_for(job: JobSeen, *, seconds: float = 0, settings: OperatorSettings = SETTINGS, **more: Any) -> JobPlan:
    return plan_job(Snapshot(job=job, **more), settings, now=at(seconds))
