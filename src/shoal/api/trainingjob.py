"""TrainingJob (`paddlepaddle.org/v1`): trainers, parameter servers and a master, between a least and a most number.

    spec:
      image: trainer
      trainer:
        entrypoint: "python train.py"
        workspace: "/workspace/job-1/"
        min-instance: 3
        max-instance: 6
        resources: {requests: {cpu: "500m", memory: "600Mi"}}

The names are those of the first controller and its successors, as people wrote them: `min-instance`, `VolumeMounts`,
`host_network`. These Structs are the fields as they are written; `trainingspec.understand` says what they mean.

`spec` is the user's. All of `status` is the operator's.
"""

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any

import msgspec

from shoal.api.elasticjob import Checkpoint, JobPriority
from shoal.api.fields import MAX_ENTRIES, MAX_NAME, QUANTITY, Field, IntOrString, a_count, a_text
from shoal.api.meta import Conditions, ObjectMeta, ObservedGeneration
from shoal.api.scheduling import FREEZING_WINDOW, SchedulingStatus

API_VERSION = "paddlepaddle.org/v1"
KIND = "TrainingJob"
MAX_SCALE_RECORDS = 10
MAX_AMOUNTS = 32
"""Resources that a container may name."""


class TrainingRole(StrEnum):
    MASTER = "master"
    ETCD = "etcd"
    PSERVER = "pserver"
    TRAINER = "trainer"


PRIORITIES = {**{str(each): each for each in JobPriority}, "Experiement": JobPriority.EXPERIMENT}
"""Every accepted spelling: the second design document has the last one."""

_KEPT = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}


def _an_object(meaning: str) -> Field:
    """Something of Kubernetes' own, or of somebody else's: kept as it is."""
    return Field(meaning, schema=_KEPT)


def _objects(meaning: str, *, most: int = 256) -> Field:
    return Field(meaning, max_items=most, item=Field("", schema=_KEPT))


def _texts(meaning: str, *, most: int = 256, length: int = 4096) -> Field:
    return Field(meaning, max_items=most, item=Field("", max_length=length))


def _amounts(meaning: str) -> Field:
    return Field(meaning, max_items=MAX_AMOUNTS, item=Field("A quantity.", minimum=0, max_length=32, pattern=QUANTITY))


class Requirements(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What one Pod's container asks for and may have: Kubernetes' own form."""

    limits: Annotated[dict[str, IntOrString] | None, _amounts("The most it may have.")] = None
    requests: Annotated[dict[str, IntOrString] | None, _amounts("What is kept for it. Default: its limits.")] = None


class Part(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What trainers, parameter servers and the master have in common."""

    entrypoint: Annotated[str | None, a_text("What to run, as a shell has it.", max_length=16_384)] = None
    resources: Annotated[Requirements | None, Field("Of each Pod.")] = None
    envs: Annotated[dict[str, str] | None, _texts("More environment.", length=32_768)] = None
    node_selector: Annotated[dict[str, str] | None, _texts("Labels of the hosts it may run on.", length=63)] = None
    tolerations: Annotated[list[dict[str, Any]] | None, _objects("Taints of hosts that it puts up with.")] = None
    grace_period_seconds: Annotated[int | None, a_count("From SIGTERM to SIGKILL.", maximum=86_400)] = None
    pre_stop_cmd: Annotated[list[str] | None, _texts("Run in the container before it is stopped.", most=64)] = None
    liveness_probe: Annotated[dict[str, Any] | None, _an_object("Kubernetes' own.")] = msgspec.field(
        default=None, name="livenessProbe"
    )
    readiness_probe: Annotated[dict[str, Any] | None, _an_object("Kubernetes' own.")] = msgspec.field(
        default=None, name="readinessProbe"
    )
    replica_spec: Annotated[
        dict[str, Any] | None, _an_object("Accepted; the operator keeps what it makes out of the spec.")
    ] = msgspec.field(default=None, name="replicaSpec")
    etcd_endpoint: Annotated[str | None, a_text("Accepted; the master's etcd is the operator's.")] = msgspec.field(
        default=None, name="etcd-endpoint"
    )


class Instances(Part, frozen=True, omit_defaults=True, kw_only=True):
    min_instance: Annotated[int | None, a_count("Never fewer. Default 1.", minimum=1)] = msgspec.field(
        default=None, name="min-instance"
    )
    max_instance: Annotated[int | None, a_count("Never more. Default: `min-instance`.", minimum=1)] = msgspec.field(
        default=None, name="max-instance"
    )


class TrainerSpec(Instances, frozen=True, omit_defaults=True, kw_only=True):
    workspace: Annotated[str | None, a_text("The folder in which it runs.", max_length=4096, pattern="^/")] = None
    passes: Annotated[int | None, a_count("The same as `spec.passes`.", minimum=1, maximum=2**31 - 1)] = None
    max_restarts: Annotated[
        int | None,
        a_count("Trainers that may fail, for each trainer it has. Default 3; 0 for a job that is not fault tolerant."),
    ] = msgspec.field(default=None, name="max-restarts")


class PserverSpec(Instances, frozen=True, omit_defaults=True, kw_only=True):
    pass


class MasterSpec(Part, frozen=True, omit_defaults=True, kw_only=True):
    """There is a master only when this is written, if only as `{}`."""

    etcd_replicas: Annotated[int | None, a_count("Members of its etcd: 1 or 3. Default 1.", minimum=1, maximum=3)] = (
        msgspec.field(default=None, name="etcd-replicas")
    )
    etcd_storage: Annotated[
        IntOrString | None,
        Field(
            "The volume of each, which outlives its Pod. Default: none, and the state is lost with the Pod.",
            minimum=0,
            max_length=32,
            pattern=QUANTITY,
        ),
    ] = msgspec.field(default=None, name="etcd-storage")


class TrainingJobSpec(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    image: Annotated[str | None, a_text("Of all its Pods. Default: the operator's setting.", max_length=4096)] = None
    trainer: Annotated[TrainerSpec, Field("The members that train: a batch Job.", required=True)]
    pserver: Annotated[PserverSpec | None, Field("The members that hold parameters: a ReplicaSet.")] = None
    master: Annotated[MasterSpec | None, Field("The member that deals out data, and its etcd.")] = None
    checkpoint: Annotated[Checkpoint | None, Field("Checkpoints on storage, of a job whose master is ours.")] = None
    priority: Annotated[
        str | None, Field("The job's weight with the scheduler. Default `Normal`.", enum=tuple(PRIORITIES))
    ] = None
    freezing_window: Annotated[str | None, FREEZING_WINDOW] = msgspec.field(default=None, name="freezingWindow")
    suspend: Annotated[bool | None, Field("No Pods while it is true.", default=False)] = None
    fault_tolerant: Annotated[
        bool | None, Field("It survives the loss of trainers; needed to be elastic. Default: whether it is elastic.")
    ] = None
    passes: Annotated[
        int | None, a_count("Passes over the data: PADDLE_INIT_NUM_PASSES. Default 1.", minimum=1, maximum=2**31 - 1)
    ] = None
    port: Annotated[int | None, a_count("The first port of its Pods. Default 7164.", minimum=1, maximum=65_535)] = None
    ports_num: Annotated[int | None, a_count("How many ports. Default 1.", maximum=64)] = None
    ports_num_for_sparse: Annotated[int | None, a_count("And for sparse updates. Default 1.", maximum=64)] = None
    trainer_port: Annotated[int | None, a_count("Accepted; not used.", minimum=1, maximum=65_535)] = None
    trainer_ports_num: Annotated[int | None, a_count("Accepted; not used.", maximum=64)] = None
    volumes: Annotated[list[dict[str, Any]] | None, _objects("Volumes of all its Pods.")] = None
    volume_mounts: Annotated[list[dict[str, Any]] | None, _objects("Where they are mounted, in all its Pods.")] = (
        msgspec.field(default=None, name="VolumeMounts")
    )
    image_pull_secrets: Annotated[list[dict[str, Any]] | None, _objects("To pull the image with.", most=64)] = (
        msgspec.field(default=None, name="imagePullSecrets")
    )
    host_network: Annotated[bool | None, Field("Its Pods use the host's network.")] = None
    host_network_of_tpr: Annotated[bool | None, Field("The same as `host_network`.")] = msgspec.field(
        default=None, name="hostNetwork"
    )
    host_network_by_tag: Annotated[bool | None, Field("The same as `host_network`.")] = msgspec.field(
        default=None, name="HostNetwork"
    )
    node_selector: Annotated[dict[str, str] | None, _texts("Labels of the hosts it may run on.", length=63)] = None
    node_selector_of_crd: Annotated[dict[str, str] | None, _texts("The same as `node_selector`.", length=63)] = (
        msgspec.field(default=None, name="NodeSelector")
    )
    tolerations: Annotated[list[dict[str, Any]] | None, _objects("Taints of hosts that it puts up with.")] = None
    envs: Annotated[dict[str, str] | None, _texts("More environment of all its Pods.", length=32_768)] = None
    annotations: Annotated[dict[str, str] | None, _texts("Annotations of its Pods.")] = None
    scheduler_name: Annotated[str | None, a_text("Who binds its Pods.", max_length=253)] = msgspec.field(
        default=None, name="schedulerName"
    )
    pod_group_name: Annotated[str | None, a_text("Accepted; gangs are started whole anyway.", max_length=253)] = (
        msgspec.field(default=None, name="podGroupName")
    )
    grace_period_seconds: Annotated[int | None, a_count("From SIGTERM to SIGKILL.", maximum=86_400)] = None
    pre_stop_cmd: Annotated[list[str] | None, _texts("Run in the containers before they are stopped.", most=64)] = None
    local_job: Annotated[bool | None, Field("Accepted; not used.")] = None
    is_nccl: Annotated[bool | None, Field("Accepted; not used.")] = None
    frame_work: Annotated[dict[str, Any] | None, _an_object("Accepted; not used.")] = None
    mountpath: Annotated[str | None, a_text("Accepted; say `VolumeMounts`.", max_length=4096)] = None
    nfsmount: Annotated[str | None, a_text("Accepted; say `volumes`.", max_length=4096)] = None


# The status ------------------------------------------------------------------------------------------------


class Phase(StrEnum):
    PENDING = "Pending"
    """It waits to be admitted, or is suspended: nothing of it runs."""
    CREATING = "Creating"
    """It is admitted; fewer than its least number of trainers run, or parameter servers or the master do not yet."""
    RUNNING = "Running"
    SCALING = "Scaling"
    """It trains, with more or fewer trainers than it should have."""
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


class TrainingCondition(StrEnum):
    """All are set from the first visit on."""

    ADMITTED = "Admitted"
    QUOTA_EXCEEDED = "QuotaExceeded"
    """It waits because its namespace's quota is used up, or will never hold it."""
    PRIORITY_TRIMMED = "PriorityTrimmed"
    """It says a priority that its namespace may not have: it counts as Normal."""
    READY = "Ready"
    SCALING = "Scaling"
    IMAGE_MISSING = "ImageMissing"
    """Neither the job nor the operator's settings name an image."""
    SERVERS_FIXED = "ServersFixed"
    """It asks for a range of parameter servers and gets its least: its trainers would not notice more, or fewer."""
    STATE_NOT_KEPT = "StateNotKept"
    """Its owner has suspended it, and what its master knew went with an etcd that has no volume; or it has no Pods, and
    what its parameter servers held is kept nowhere."""
    DEGRADED = "Degraded"
    SUCCEEDED = "Succeeded"


class ReplicaStatus(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """Counts of one role's Pods."""

    role: Annotated[str, Field("The role.", enum=tuple(TrainingRole), required=True)]
    target: Annotated[int | None, a_count("How many there should be.")] = None
    pending: Annotated[int | None, a_count("Pods that do not run yet.")] = None
    running: Annotated[int | None, a_count("Pods that run.")] = None
    succeeded: Annotated[int | None, a_count("Pods that ended well.")] = None
    failed: Annotated[int | None, a_count("Failures so far.", maximum=2**31 - 1)] = None
    uid: Annotated[str | None, a_text("Of the ReplicaSet, StatefulSet or Job, once it was seen.", max_length=64)] = None


class ScaleRecord(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    at: Annotated[datetime, Field("When.", required=True)]
    from_: Annotated[int, a_count("How many before.", required=True)] = msgspec.field(name="from")
    to: Annotated[int, a_count("How many from then on.", required=True)]
    role: Annotated[str | None, Field("Of which role. Default: trainer.", enum=tuple(TrainingRole))] = None
    reason: Annotated[str | None, a_text("Why.")] = None


class TrainingJobStatus(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    phase: Annotated[str | None, Field("In one word.", enum=tuple(Phase))] = None
    reason: Annotated[str | None, a_text("Why it is so.")] = None
    conditions: Conditions = None
    observed_generation: ObservedGeneration = None
    replicas: Annotated[int | None, a_count("Trainer Pods that are there: `/scale`'s count.")] = None
    selector: Annotated[str | None, a_text("Selects the trainer Pods: `/scale`'s selector.")] = None
    replica_statuses: Annotated[list[ReplicaStatus] | None, Field("Counts per role.", max_items=8, keys=("role",))] = (
        None
    )
    scheduling: Annotated[SchedulingStatus | None, Field("What the scheduler decided, and has to remember.")] = None
    scale_records: Annotated[
        list[ScaleRecord] | None, Field("The last resizes, the newest last.", max_items=MAX_SCALE_RECORDS)
    ] = None
    victims: Annotated[
        list[str] | None, _texts("Trainers that go first while there are too many.", most=MAX_ENTRIES, length=MAX_NAME)
    ] = None
    form: Annotated[str | None, a_text("Of which spec its objects were made.", max_length=64)] = None
    failures: Annotated[
        int | None, a_count("Trainers that failed in earlier Jobs of it, before it was suspended.", maximum=2**31 - 1)
    ] = None
    start_time: Annotated[datetime | None, Field("When its first trainers were made.")] = None
    finish_time: Annotated[datetime | None, Field("When it ended.")] = None


class TrainingJob(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    api_version: str
    kind: str
    metadata: ObjectMeta
    spec: Annotated[TrainingJobSpec, Field("What should be true.", required=True)]
    status: Annotated[TrainingJobStatus | None, Field("What is true.")] = None
