"""TrainingJobs, their Pods and what is allowed to them, for tests: a builder shows only what matters."""

from dataclasses import replace
from typing import Any

import msgspec
from tests.api.builders import a_training_job
from tests.operator.builders import NOW, SETTINGS, at

from shoal.api import TrainingJob
from shoal.api.trainingjob import TrainingRole
from shoal.api.trainingspec import understand
from shoal.core.pods import PodPhase
from shoal.core.workloads import TrainingPod, Workload, WorkloadKind
from shoal.operator.allowances import Allowance
from shoal.operator.settings import OperatorSettings
from shoal.operator.snapshot import Key
from shoal.operator.training.objects import form_for
from shoal.operator.training.plan import TrainingPlan, plan_training_job
from shoal.operator.training.snapshot import TrainingSeen, TrainingSnapshot, TrainingStatus
from shoal.scheduler.actuation import Standing

KEY = Key("default", "job")
KINDS = {
    TrainingRole.TRAINER: WorkloadKind.JOB,
    TrainingRole.PSERVER: WorkloadKind.REPLICA_SET,
    TrainingRole.MASTER: WorkloadKind.REPLICA_SET,
    TrainingRole.ETCD: WorkloadKind.STATEFUL_SET,
}


def a_job(status: TrainingStatus | None = None, *, trainer: dict[str, Any] | None = None, **spec: Any) -> TrainingSeen:
    written = a_training_job("job", trainer=trainer, **spec)
    written["metadata"] |= {"namespace": KEY.namespace, "uid": "job-uid", "generation": 1}
    return TrainingSeen(
        key=KEY,
        uid="job-uid",
        generation=1,
        created_at=NOW,
        spec=understand(msgspec.convert(written, TrainingJob)),
        status=status or TrainingStatus(),
    )


def elastic(least: int = 1, most: int = 4) -> dict[str, Any]:
    return {"min-instance": least, "max-instance": most}


def allowed(target: int, *, victims: tuple[str, ...] = (), **more: Any) -> Allowance:
    more = {"code": "Admitted" if target else "NoRoom", "reason": "the test says so", **more}
    return Allowance(standing=Standing(target=target), victims=victims, **more)


def a_workload(
    job: TrainingSeen, role: TrainingRole, wanted: int, *, settings: OperatorSettings = SETTINGS, **more: Any
) -> Workload:
    assert job.spec is not None
    form = form_for(role, job.spec, settings)
    name = f"{job.name}-{role}"
    base = Workload(kind=KINDS[role], name=name, uid=f"{name}-uid", role=role, wanted=wanted, form=form)
    return replace(base, **more)


def a_pod(number: int, role: TrainingRole = TrainingRole.TRAINER, **more: Any) -> TrainingPod:
    name = f"job-{role}-{number}"
    base = TrainingPod(
        name=name,
        uid=f"{name}-uid",
        role=role,
        owner=f"job-{role}-uid",
        phase=PodPhase.RUNNING,
        ready=True,
        host="host-1",
        created_at=at(number),
    )
    return replace(base, **more)


def plan_for(
    job: TrainingSeen, *, settings: OperatorSettings = SETTINGS, seconds: float = 0, **more: Any
) -> TrainingPlan:
    return plan_training_job(TrainingSnapshot(job=job, **more), settings, now=at(seconds))
