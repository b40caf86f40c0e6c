"""ElasticJob (`elastic.iml.github.io/v1alpha1`): a training job that may gain and lose members.

A user needs to say what to run, and nothing else:

    spec:
      distributionStrategy: ring-allreduce
      worker:
        template: {spec: {containers: [{name: main, image: trainer, command: [python, train.py]}]}}

Roles stand under their own names (`worker`, `parameterServer`, `chief`, `evaluator`), or in DLRover's map
`replicaSpecs`; `jobspec.normalise` makes one shape of both. These Structs are the fields as they are written:
nothing is defaulted or interpreted here.

`spec` is the user's, all of it: not even `worker.replicas` is ever written by us. In `status` the operator writes
everything but `training`, which is the master's.
"""

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any

import msgspec

from shoal.api.fields import (
    LABEL_VALUE,
    MAX_ENTRIES,
    MAX_REPLICAS,
    Field,
    IntOrString,
    Template,
    a_count,
    a_measure,
    a_name,
    a_quantity,
    a_text,
)
from shoal.api.meta import Conditions, ObjectMeta, ObservedGeneration
from shoal.api.scheduling import FREEZING_WINDOW, SchedulingStatus
from shoal.api.templates import POD_TEMPLATE

API_VERSION = "elastic.iml.github.io/v1alpha1"
KIND = "ElasticJob"


class Role(StrEnum):
    """The roles of members. `PS` is written `parameterServer` in an ElasticJob, `ps` in names and plans."""

    WORKER = "worker"
    PS = "ps"
    CHIEF = "chief"
    EVALUATOR = "evaluator"


MAX_SCORES, MAX_METRICS, MAX_METRIC = 10, 16, 64
"""Scores that are told, figures of each, and letters of a figure's name."""
SPEED = a_measure("A speed; 0 also where none is known.")


class Strategy(StrEnum):
    PARAMETER_SERVER = "parameter_server"
    ALLREDUCE = "ring-allreduce"


STRATEGIES = {
    "parameter_server": Strategy.PARAMETER_SERVER,
    "ParameterServerStrategy": Strategy.PARAMETER_SERVER,
    "ParameterServer": Strategy.PARAMETER_SERVER,
    "ring-allreduce": Strategy.ALLREDUCE,
    "allreduce": Strategy.ALLREDUCE,
    "AllreduceStrategy": Strategy.ALLREDUCE,
}
"""Every accepted spelling: the seed's, and those of DLRover's releases."""


class OptimizeMode(StrEnum):
    MANUAL = "manual"
    SINGLE_JOB = "single-job"
    CLUSTER = "cluster"


class JobPriority(StrEnum):
    """A job's weight with the cluster's scheduler. Not to be confused with a role's `priority`."""

    EXPERIMENT = "Experiment"
    OFFLINE = "Offline"
    NORMAL = "Normal"
    PRODUCTION = "Production"


class RolePriority(StrEnum):
    HIGH = "high"
    LOW = "low"


class ResourceSpec(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What one Pod gets. The long names are those of Kubernetes' resource lists, for plans written by DLRover."""

    cpu: Annotated[IntOrString | None, a_quantity('Cores: `4`, `"0.5"`, `500m`.')] = None
    memory: Annotated[IntOrString | None, a_quantity("Bytes, with a unit: `256Mi`, `8Gi`. At least 1Mi.")] = None
    disk: Annotated[IntOrString | None, a_quantity("Bytes, with a unit; becomes `ephemeral-storage`.")] = None
    gpu: Annotated[IntOrString | None, a_quantity("Whole devices.", whole=True)] = None
    gpu_type: Annotated[
        str | None, a_text("Which kind of device; becomes a node selector.", max_length=63, pattern=LABEL_VALUE)
    ] = msgspec.field(default=None, name="gpuType")
    ephemeral_storage: Annotated[IntOrString | None, a_quantity("The same as `disk`.")] = msgspec.field(
        default=None, name="ephemeral-storage"
    )
    nvidia_gpu: Annotated[IntOrString | None, a_quantity("The same as `gpu`.", whole=True)] = msgspec.field(
        default=None, name="nvidia.com/gpu"
    )


class RoleSpec(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """The members of one role. Nothing but `template` needs saying."""

    template: Annotated[Template | None, Field("The Pod of a member, kept as it is.", schema=POD_TEMPLATE)] = None
    replicas: Annotated[int | None, a_count("How many; without it the optimizer decides, from `min` to `max`.")] = None
    min: Annotated[int | None, a_count("Never fewer: the job waits, or fails, below it.")] = None
    max: Annotated[int | None, a_count("Never more.", minimum=1)] = None
    restart_count: Annotated[
        int | None, a_count("How often one member may fail by its own fault. Default 3; 0 means 0.")
    ] = None
    resource: Annotated[ResourceSpec | None, Field("What each Pod gets; without it the optimizer decides.")] = None
    priority: Annotated[
        str | None, Field("`high` or `low`; becomes the Pods' PriorityClass.", enum=tuple(RolePriority))
    ] = None


class ReplicaSpec(RoleSpec, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """A role as DLRover writes it. There, `replicas: 0` means "not said"."""

    auto_scale: Annotated[bool | None, Field("Accepted for DLRover's YAML; `optimizeMode` decides.")] = None
    restart_policy: Annotated[str | None, a_text("Accepted for DLRover's YAML; not used.", max_length=32)] = None
    restart_timeout: Annotated[int | None, a_count("Accepted for DLRover's YAML; not used.", maximum=2**31 - 1)] = None
    batch_scheduler: Annotated[
        str | None, a_text("Accepted for DLRover's YAML; say `schedulerName` in the template.", max_length=63)
    ] = msgspec.field(default=None, name="BatchScheduler")


class ReplicaSpecs(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    worker: Annotated[ReplicaSpec | None, Field("The same as `spec.worker`.")] = None
    ps: Annotated[ReplicaSpec | None, Field("The same as `spec.parameterServer`.")] = None
    chief: Annotated[ReplicaSpec | None, Field("The same as `spec.chief`.")] = None
    evaluator: Annotated[ReplicaSpec | None, Field("The same as `spec.evaluator`.")] = None
    dlrover_master: Annotated[
        dict[str, Any] | None,
        Field(
            "Accepted for DLRover's YAML; the master is ours.",
            schema={"type": "object", "x-kubernetes-preserve-unknown-fields": True},
        ),
    ] = msgspec.field(default=None, name="dlrover-master")


class Checkpoint(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    path: Annotated[str, a_text("Where checkpoints are kept; it must outlive any Pod.", min_length=1, required=True)]
    every_seconds: Annotated[
        int | None,
        a_count(
            "How often a job with parameter servers makes one; others do when their script says. Default 600.",
            minimum=1,
            maximum=2**31 - 1,
        ),
    ] = None
    keep: Annotated[int | None, a_count("How many are left there. Default 3.", minimum=1, maximum=2**31 - 1)] = None
    fuzzy: Annotated[
        bool | None,
        Field(
            "With parameter servers: workers train on while the model is saved, so that its parts are not of one "
            "moment. The manifest says so. Not the last one.",
            default=False,
        ),
    ] = None


class ElasticJobSpec(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    distribution_strategy: Annotated[
        str | None,
        Field(
            "How members train together. Without it: by whether there are parameter servers.", enum=tuple(STRATEGIES)
        ),
    ] = None
    worker: Annotated[RoleSpec | None, Field("The members that train. `/scale` is `worker.replicas`.")] = None
    parameter_server: Annotated[RoleSpec | None, Field("The members that hold parameters.")] = None
    chief: Annotated[RoleSpec | None, Field("The member that also checkpoints; at most one.")] = None
    evaluator: Annotated[RoleSpec | None, Field("The members that evaluate beside the training.")] = None
    replica_specs: Annotated[ReplicaSpecs | None, Field("The roles, as DLRover writes them.")] = None
    optimize_mode: Annotated[
        str | None,
        Field("Who decides sizes: users (`manual`), the job's master, or Brain (`cluster`).", enum=tuple(OptimizeMode)),
    ] = None
    resource_limits: Annotated[ResourceSpec | None, Field("The most that all Pods of the job may have together.")] = (
        None
    )
    suspend: Annotated[bool | None, Field("No Pods while it is true; what was trained is kept.", default=False)] = None
    priority: Annotated[
        str | None, Field("The job's weight with the scheduler. Default `Normal`.", enum=tuple(JobPriority))
    ] = None
    freezing_window: Annotated[str | None, FREEZING_WINDOW] = None
    node_unit: Annotated[int | None, a_count("Worker counts are multiples of it.", minimum=1)] = None
    global_batch: Annotated[
        int | None,
        a_count(
            "Micro-batches per step, whatever the number of workers, where the script's `State` does not say. Default: "
            "`worker.max` times the processes of each.",
            minimum=1,
            maximum=2**31 - 1,
        ),
    ] = None
    checkpoint: Annotated[Checkpoint | None, Field("Checkpoints on storage.")] = None
    tf_config: Annotated[
        bool | None,
        Field(
            "The script does not use `shoal.tensorflow`: it gets `TF_CONFIG`, and is started again when the parameter "
            "servers change."
        ),
    ] = None
    ttl_seconds_after_finished: Annotated[
        int | None, a_count("The job is deleted so long after its end; without it, never.", maximum=2**31 - 1)
    ] = None
    active_deadline_seconds: Annotated[
        int | None, a_count("The job fails when it runs for longer.", minimum=1, maximum=2**31 - 1)
    ] = None
    managed_by: Annotated[
        str | None, a_text("Who reconciles it, when it is not this operator.", min_length=1, max_length=253)
    ] = None
    brain_service: Annotated[
        str | None, a_text("Brain's address when `optimizeMode` is `cluster`; the operator's setting without it.")
    ] = None
    envs: Annotated[
        dict[str, dict[str, Any]] | None,
        Field(
            "Environment of all Pods of the job, as DLRover writes it: name to Kubernetes `EnvVar`.",
            max_items=256,
            item=Field("An `EnvVar`.", schema={"type": "object", "x-kubernetes-preserve-unknown-fields": True}),
        ),
    ] = None
    enable_elastic_scheduling: Annotated[bool | None, Field("Accepted for DLRover's YAML; always so.")] = None
    enable_dynamic_sharding: Annotated[bool | None, Field("Accepted for DLRover's YAML; the script decides.")] = None


# The status ------------------------------------------------------------------------------------------------


class RoleStatus(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """Counts of one role's Pods."""

    role: Annotated[str, Field("The role.", enum=tuple(Role), required=True)]
    asked: Annotated[int | None, a_count("The count the winning ask names.")] = None
    granted: Annotated[int | None, a_count("The count the scheduler grants.")] = None
    pending: Annotated[int | None, a_count("Pods that do not run yet.")] = None
    running: Annotated[int | None, a_count("Pods that run.")] = None
    succeeded: Annotated[int | None, a_count("Pods that ended well.")] = None
    failed: Annotated[int | None, a_count("Pods that failed.", maximum=2**31 - 1)] = None
    next_id: Annotated[
        int | None, a_count("The id of the next new Pod; ids are never used twice.", maximum=2**31 - 1)
    ] = None


class RoleCount(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    role: Annotated[str, Field("The role.", enum=tuple(Role), required=True)]
    count: Annotated[int, a_count("How many.", required=True)]


_NAMES = Field("", min_length=1, max_length=253)


class Grant(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """What the scheduler allows. No Pod is created above it."""

    generation: Annotated[int, Field("Counts grants.", minimum=0, int64=True, required=True)]
    counts: Annotated[list[RoleCount] | None, Field("How many per role.", max_items=8, keys=("role",))] = None
    victims: Annotated[list[str] | None, Field("Pods that should go first.", max_items=MAX_ENTRIES, item=_NAMES)] = None
    hosts: Annotated[
        list[str] | None, Field("Where new Pods should go, if planned.", max_items=MAX_ENTRIES, item=_NAMES)
    ] = None
    drain_by: Annotated[datetime | None, Field("After this Pods above the grant are deleted undrained.")] = None
    reason: Annotated[str, a_text("Why so many.")] = ""


class Decision(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    reason: Annotated[str, a_text("What was decided, and why.", required=True)]
    at: Annotated[datetime, Field("When.", required=True)]


class RoleGiven(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """What an ask gives each member of a role."""

    role: Annotated[str, Field("The role.", enum=tuple(Role), required=True)]
    resource: Annotated[ResourceSpec, Field("What each gets.", required=True)]


class Accepted(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """When an ask was first seen in its present form: the last changed wins."""

    ask: Annotated[
        str,
        a_text(
            "Whose ask: `spec`, `spec.worker`, `ScalePlan/NAME`, `JobResource/NAME`.", max_length=320, required=True
        ),
    ]
    uid: Annotated[str | None, a_text("The object's uid.", max_length=64)] = None
    generation: Annotated[int, Field("The object's generation.", minimum=0, int64=True, required=True)]
    at: Annotated[datetime, Field("When the operator first saw it so.", required=True)]
    counts: Annotated[list[RoleCount] | None, Field("The counts it pins.", max_items=8)] = None
    resources: Annotated[list[RoleGiven] | None, Field("The resources it pins.", max_items=8)] = None
    optimize_mode: Annotated[str | None, a_text("Of `spec`: the mode it named.", max_length=32)] = None


class Member(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """A member, recorded before its Pod is made. Names are never used twice."""

    name: Annotated[str, a_name("Its Pod.", required=True)]
    role: Annotated[str, Field("Its role.", enum=tuple(Role), required=True)]
    id: Annotated[int, a_count("Its id.", maximum=2**31 - 1, required=True)]
    rank: Annotated[int, a_count("The place it takes.", required=True)]
    state: Annotated[str, a_text("live, failed, succeeded or leaving.", max_length=16, required=True)]
    uid: Annotated[str | None, a_text("Of its Pod, once that was seen.", max_length=64)] = None
    resource: Annotated[ResourceSpec | None, Field("What it gets instead of its role's.")] = None
    avoid_hosts: Annotated[
        list[str] | None,
        Field(
            "Others are preferred to these hosts.",
            max_items=64,
            item=Field("A host.", min_length=1, max_length=253),
        ),
    ] = None
    replaces: Annotated[str | None, a_name("The Pod whose place it takes.")] = None
    relaunches: Annotated[int | None, a_count("Replacements of this place by members' own fault.")] = None
    ended_at: Annotated[datetime | None, Field("When it ended.")] = None
    reason: Annotated[str | None, a_text("Why it is here, or how it ended.")] = None


class Move(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """An entry of `migratePods` or `resource_updation`, carried out once per (plan, generation, name)."""

    plan: Annotated[str, a_text("The plan's uid.", max_length=64, required=True)]
    generation: Annotated[int, Field("The plan's generation.", minimum=0, int64=True, required=True)]
    name: Annotated[str, a_name("The Pod to be replaced.", required=True)]
    state: Annotated[str, a_text("waiting, starting, removing, done or failed.", max_length=16, required=True)]
    replacement: Annotated[str | None, a_name("The Pod that takes its place.")] = None
    reason: Annotated[str | None, a_text("Why it stands there.")] = None


class Seat(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """What the member at a rank had beyond its role's when it left: the next one there gets it."""

    role: Annotated[str, Field("The role.", enum=tuple(Role), required=True)]
    rank: Annotated[int, a_count("The place.", required=True)]
    resource: Annotated[ResourceSpec, Field("What it had.", required=True)]


class MasterRecord(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """What the operator remembers of the job's masters; the newest is `<job>-master-<term>`."""

    since: Annotated[datetime | None, Field("When its term began.")] = None
    uid: Annotated[str | None, a_text("Of its Pod, once that was seen.", max_length=64)] = None
    failures: Annotated[int | None, a_count("Masters in a row that failed unready.", maximum=2**31 - 1)] = None
    was_ready: Annotated[bool | None, Field("This one has been ready.")] = None
    needed_since: Annotated[datetime | None, Field("Since when this one is waited for to be ready.")] = None
    silent_since: Annotated[datetime | None, Field("Since when no master answers.")] = None
    stopped: Annotated[bool | None, Field("None is wanted: the job is suspended.")] = None


class NodeFigures(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """What one node used in the last half minute. What nobody knows is left out."""

    name: Annotated[str, a_name("The node: its role and number.", required=True)]
    rank: Annotated[int | None, a_count("Of its first process in the world.", maximum=2**31 - 1)] = None
    processes: Annotated[int | None, a_count("How many it has there.")] = None
    cpu: Annotated[str | None, a_measure("Cores that its process tree used.")] = None
    cpu_limit: Annotated[str | None, a_measure("Cores that it may use.")] = None
    memory: Annotated[str | None, a_measure("Memory that it used.")] = None
    memory_limit: Annotated[str | None, a_measure("Memory that it may use.")] = None
    gpu: Annotated[str | None, a_measure("GPUs that were busy.")] = None
    gpus: Annotated[int | None, a_count("GPUs that it has.")] = None
    samples_per_second: Annotated[str | None, a_measure("Samples that it trained in a second.")] = None
    step_seconds: Annotated[str | None, a_measure("How long its steps took.")] = None
    work_seconds: Annotated[str | None, a_measure("Of that, without waiting for others.")] = None


class Figures(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """What the job used and how fast it was in the last half minute; for `shoal top`."""

    at: Annotated[datetime | None, Field("When.")] = None
    samples_per_second: Annotated[str | None, a_measure("Samples trained in a second.")] = None
    steps_per_second: Annotated[str | None, a_measure("Steps in a second.")] = None
    step_seconds: Annotated[str | None, a_measure("How long a step takes.")] = None
    cpu: Annotated[str | None, a_measure("Cores that all nodes use.")] = None
    memory: Annotated[str | None, a_measure("Memory that all nodes use.")] = None
    gpu: Annotated[str | None, a_measure("GPUs that are busy.")] = None
    speeds: Annotated[
        list[str] | None,
        Field("Samples, or else steps, a second: the last minutes, the newest last.", max_items=40, item=SPEED),
    ] = None
    nodes: Annotated[
        list[NodeFigures] | None,
        Field("Nodes; where there are many, those that use most of their limits.", max_items=64),
    ] = None
    left_out: Annotated[int | None, a_count("How many nodes are not listed.")] = None


class Metric(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """One figure of a score."""

    name: Annotated[str, a_text("Which.", max_length=MAX_METRIC, required=True)]
    value: Annotated[str, a_text("A number, as text: it may be any.", max_length=32, required=True)]


class Score(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """What the evaluator found of one checkpoint."""

    step: Annotated[int, Field("The checkpoint's step.", minimum=0, int64=True, required=True)]
    metrics: Annotated[list[Metric] | None, Field("None: it could not be scored.", max_items=MAX_METRICS)] = None


class Training(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """What the master reports. It alone writes this."""

    phase: Annotated[str | None, a_text("What the job does now, as its master sees it.", max_length=32)] = None
    reason: Annotated[str | None, a_text("Why.")] = None
    term: Annotated[int | None, Field("The master's term.", minimum=0, int64=True)] = None
    world: Annotated[int | None, Field("The world's generation.", minimum=0, int64=True)] = None
    world_size: Annotated[int | None, a_count("Processes in that world.", maximum=2**31 - 1)] = None
    members: Annotated[int | None, a_count("Nodes in that world.")] = None
    step: Annotated[int | None, Field("Steps committed.", minimum=0, int64=True)] = None
    samples: Annotated[int | None, Field("Samples trained.", minimum=0, int64=True)] = None
    sdk: Annotated[bool | None, Field("The script speaks to its agent, so it survives resizes in memory.")] = None
    restarts: Annotated[int | None, a_count("Restarts so far.", maximum=2**31 - 1)] = None
    error: Annotated[str | None, a_text("The last traceback, shortened.", max_length=8192)] = None
    last_decision: Annotated[Decision | None, Field("The master's last decision.")] = None
    figures: Annotated[Figures | None, Field("What the job uses and how fast it is, twice a minute.")] = None
    scores: Annotated[list[Score] | None, Field("The last scores, the newest last.", max_items=MAX_SCORES)] = None


class ElasticJobStatus(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """What is true of a job. `training` is the master's; lists that only the operator writes, always whole, are not
    keyed: the server then keeps no book of each entry's owner, and a write costs it half as much."""

    conditions: Conditions = None
    observed_generation: ObservedGeneration = None
    replicas: Annotated[int | None, a_count("Worker Pods that are there: `/scale`'s count.")] = None
    selector: Annotated[str | None, a_text("Selects the worker Pods: `/scale`'s selector.")] = None
    roles: Annotated[list[RoleStatus] | None, Field("Counts per role.", max_items=8)] = None
    world: Annotated[int | None, Field("The world's generation.", minimum=0, int64=True)] = None
    grant: Annotated[Grant | None, Field("What the scheduler allows.")] = None
    scheduling: Annotated[SchedulingStatus | None, Field("What the scheduler decided, and has to remember.")] = None
    last_decision: Annotated[Decision | None, Field("The operator's last decision.")] = None
    accepted_at: Annotated[
        list[Accepted] | None,
        Field("When each manual ask was first seen as it is now.", max_items=MAX_ENTRIES),
    ] = None
    members: Annotated[list[Member] | None, Field("Who is a member.", max_items=MAX_REPLICAS)] = None
    moves: Annotated[
        list[Move] | None,
        Field("Members being replaced.", max_items=MAX_ENTRIES),
    ] = None
    seats: Annotated[
        list[Seat] | None,
        Field("What places get back that nobody takes now.", max_items=MAX_REPLICAS),
    ] = None
    master: Annotated[MasterRecord | None, Field("What the operator remembers of the masters.")] = None
    prepared: Annotated[str | None, a_text("Which form of the job's fixed objects exists.", max_length=32)] = None
    term: Annotated[int | None, Field("The newest master Pod's term.", minimum=0, int64=True)] = None
    restarts: Annotated[int | None, a_count("Relaunches of members so far.", maximum=2**31 - 1)] = None
    start_time: Annotated[datetime | None, Field("When the first Pod was created.")] = None
    finish_time: Annotated[datetime | None, Field("When the job ended.")] = None
    training: Annotated[Training | None, Field("What the master reports.")] = None


class ElasticJob(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    api_version: str
    kind: str
    metadata: ObjectMeta
    spec: Annotated[ElasticJobSpec, Field("What should be true.", required=True)]
    status: Annotated[ElasticJobStatus | None, Field("What is true.")] = None


class JobCondition(StrEnum):
    """The conditions of an ElasticJob; all are set from the first visit on."""

    ADMITTED = "Admitted"
    READY = "Ready"
    RESIZING = "Resizing"
    PRIORITY_TRIMMED = "PriorityTrimmed"
    """It says a priority that its namespace may not have: it counts as Normal."""
    DEGRADED = "Degraded"
    SUCCEEDED = "Succeeded"
