"""ReplicaSets, StatefulSets and Jobs: the fields we use, where they are served, and what decisions see of them."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from msgspec import field

from shoal.api.labels import FORM, ROLE
from shoal.api.trainingjob import TrainingRole
from shoal.core.pods import PodPhase
from shoal.core.workloads import TrainingPod, Workload, WorkloadKind
from shoal.platforms.kubernetes.objects import Condition, Kind, ObjectMeta, Part, Pod
from shoal.platforms.kubernetes.pods import pod_end, pod_reason, pod_trouble, was_oom_killed

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class ReplicasSpec(Part, frozen=True):
    replicas: int = 1


class ReplicasStatus(Part, frozen=True):
    replicas: int = 0
    ready_replicas: int = 0


class ReplicaSet(Part, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: ReplicasSpec = ReplicasSpec()
    status: ReplicasStatus = ReplicasStatus()


class StatefulSet(Part, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: ReplicasSpec = ReplicasSpec()
    status: ReplicasStatus = ReplicasStatus()


class JobSpec(Part, frozen=True):
    parallelism: int = 1


class JobStatus(Part, frozen=True):
    active: int = 0
    succeeded: int = 0
    failed: int = 0
    conditions: list[Condition] = field(default_factory=list)


class Job(Part, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: JobSpec = JobSpec()
    status: JobStatus = JobStatus()


REPLICA_SETS = Kind(group="apps", version="v1", kind="ReplicaSet", plural="replicasets", type=ReplicaSet)
STATEFUL_SETS = Kind(group="apps", version="v1", kind="StatefulSet", plural="statefulsets", type=StatefulSet)
JOBS = Kind(group="batch", version="v1", kind="Job", plural="jobs", type=Job)
WORKLOADS: Mapping[WorkloadKind, Kind[Any]] = {
    WorkloadKind.REPLICA_SET: REPLICA_SETS,
    WorkloadKind.STATEFUL_SET: STATEFUL_SETS,
    WorkloadKind.JOB: JOBS,
}


def workload_seen(found: ReplicaSet | StatefulSet | Job) -> Workload | None:
    """None: it does not say for which role it is, so it is none of ours."""
    meta = found.metadata
    role = meta.labels.get(ROLE, "")
    if role not in tuple(TrainingRole):
        return None
    common: dict[str, Any] = {
        "name": meta.name,
        "uid": meta.uid,
        "generation": meta.generation or 0,
        "role": TrainingRole(role),
        "form": meta.annotations.get(FORM, ""),
        "deleting": meta.deletion_timestamp is not None,
    }
    if not isinstance(found, Job):
        kind = WorkloadKind.REPLICA_SET if isinstance(found, ReplicaSet) else WorkloadKind.STATEFUL_SET
        return Workload(kind=kind, wanted=found.spec.replicas, **common)
    told = {each.type: each for each in found.status.conditions if each.status == "True"}
    failure = told.get("Failed")
    return Workload(
        kind=WorkloadKind.JOB,
        wanted=found.spec.parallelism,
        succeeded=found.status.succeeded,
        failed=found.status.failed,
        is_complete="Complete" in told,
        failure=None if failure is None else (failure.message or failure.reason or "the Job failed"),
        **common,
    )


def training_pod(pod: Pod) -> TrainingPod | None:
    """None: it does not say which role it has, so it is none of ours."""
    meta = pod.metadata
    role = meta.labels.get(ROLE, "")
    if role not in tuple(TrainingRole):
        return None
    end = pod_end(pod)
    return TrainingPod(
        name=meta.name,
        uid=meta.uid,
        role=TrainingRole(role),
        owner=next((each.uid for each in meta.owner_references if each.controller), ""),
        phase=PodPhase(pod.status.phase) if pod.status.phase in tuple(PodPhase) else PodPhase.PENDING,
        ready=any(each.type == "Ready" and each.status == "True" for each in pod.status.conditions),
        deleting=meta.deletion_timestamp is not None,
        ends=meta.deletion_timestamp,
        created_at=meta.creation_timestamp or _EPOCH,
        host=pod.spec.node_name,
        exit_code=end.exit_code if end else None,
        oom_killed=was_oom_killed(end),
        reason=pod_reason(pod),
        trouble=pod_trouble(pod),
    )
