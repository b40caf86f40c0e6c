"""ScalePlan (`elastic.iml.github.io/v1alpha1`): what a job's members should be.

A plan is *absolute*: it names the state that is wanted, not a difference. Users write manual plans (label
`scale-type: manual`); the master owns exactly one plan per job, `<job>-auto`, and updates it. In that one `spec` is
the master's order to the operator, and `status.pods` the operator's answer: which Pods exist and how they ended.

The job is named by `ownerJob` or by the label `elasticjob-name`.
"""

from datetime import datetime
from enum import StrEnum
from typing import Annotated

import msgspec

from shoal.api.elasticjob import ResourceSpec, Role
from shoal.api.fields import MAX_ENTRIES, MAX_REPLICAS, Field, a_count, a_name, a_text
from shoal.api.meta import Conditions, DoneEntries, ObjectMeta, ObservedGeneration

KIND = "ScalePlan"
JOB_LABEL = "elasticjob-name"
TYPE_LABEL = "scale-type"


class ScaleType(StrEnum):
    MANUAL = "manual"
    AUTO = "auto"


class ReplicaResourceSpec(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    replicas: Annotated[int | None, a_count("How many members.")] = None
    resource: Annotated[ResourceSpec | None, Field("What each gets.")] = None


class ReplicaResourceSpecs(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    worker: Annotated[ReplicaResourceSpec | None, Field("Workers.")] = None
    ps: Annotated[ReplicaResourceSpec | None, Field("Parameter servers.")] = None
    chief: Annotated[ReplicaResourceSpec | None, Field("The chief.")] = None
    evaluator: Annotated[ReplicaResourceSpec | None, Field("Evaluators.")] = None


class PodMeta(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """One Pod of a plan."""

    name: Annotated[str, a_name("The Pod's name: `<job>-<role>-<id>`.", required=True)]
    type: Annotated[str | None, Field("Its role.", enum=tuple(Role))] = None
    id: Annotated[int | None, a_count("Its id.", maximum=2**31 - 1)] = None
    rank_index: Annotated[int | None, a_count("The place it takes.")] = None
    service: Annotated[str | None, a_text("Accepted for DLRover's YAML; not used.", max_length=253)] = None
    resource: Annotated[ResourceSpec | None, Field("What it gets.")] = None
    avoid_hosts: Annotated[
        list[str] | None,
        Field(
            "Others are preferred to these hosts.",
            max_items=64,
            item=Field("A host.", min_length=1, max_length=253),
        ),
    ] = None
    replaces: Annotated[str | None, a_name("The Pod whose place it takes.")] = None


class ScalePlanSpec(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    owner_job: Annotated[str | None, a_name("The job.", max_length=63)] = None
    replica_resource_specs: Annotated[
        ReplicaResourceSpecs | None, Field("How many members per role, and what each gets.")
    ] = None
    create_pods: Annotated[
        list[PodMeta] | None, Field("Pods to create, each once.", max_items=MAX_ENTRIES, keys=("name",))
    ] = None
    remove_pods: Annotated[
        list[PodMeta] | None, Field("Pods to remove, each once.", max_items=MAX_ENTRIES, keys=("name",))
    ] = None
    migrate_pods: Annotated[
        list[PodMeta] | None,
        Field(
            "Pods to replace by one with another resource: the new one first.", max_items=MAX_ENTRIES, keys=("name",)
        ),
    ] = None
    ps_hosts: Annotated[
        list[str] | None,
        Field(
            "Accepted for older YAML, and read by nobody: a parameter server's address is that of its Pod.",
            max_items=1024,
            item=Field("An address.", min_length=1, max_length=261),
        ),
    ] = None
    manual_scaling: Annotated[bool | None, Field("Accepted for older YAML: the same as `scale-type: manual`.")] = None
    reason: Annotated[str | None, a_text("Why the plan asks for this.")] = None


class Trimmed(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """Something the plan asked for and did not get."""

    what: Annotated[str, a_text("Which: `worker.replicas`, `worker.resource.memory`.", max_length=320, required=True)]
    asked: Annotated[str | None, a_text("What was asked for.", max_length=64)] = None
    got: Annotated[str | None, a_text("What it became.", max_length=64)] = None
    reason: Annotated[str, a_text("Why.", required=True)]


TrimmedEntries = Annotated[list[Trimmed] | None, Field("What was asked for and not granted, and why.", max_items=64)]


class PodReport(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """One Pod of the job, as the operator sees it; in the auto plan's status, for the master."""

    name: Annotated[str, a_name("The Pod.", required=True)]
    uid: Annotated[str | None, a_text("Its uid.", max_length=64)] = None
    role: Annotated[str, Field("Its role.", enum=tuple(Role), required=True)]
    id: Annotated[int, a_count("Its id.", maximum=2**31 - 1, required=True)]
    rank: Annotated[int | None, a_count("The place it takes.")] = None
    phase: Annotated[str, a_text("Pending, Running, Succeeded, Failed or Deleted.", max_length=16, required=True)]
    exit_code: Annotated[int | None, Field("Its first container's exit code.", minimum=-(2**31), maximum=2**31 - 1)] = (
        None
    )
    oom_killed: Annotated[bool | None, Field("The kernel killed it for its memory.")] = None
    reason: Annotated[str | None, a_text("What Kubernetes says.")] = None
    host: Annotated[str | None, a_text("Where it runs.", max_length=253)] = None
    resource: Annotated[ResourceSpec | None, Field("What it has.")] = None
    replaces: Annotated[str | None, a_name("The Pod whose place it takes.")] = None


class ScalePlanStatus(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    conditions: Conditions = None
    observed_generation: ObservedGeneration = None
    trimmed: TrimmedEntries = None
    done: DoneEntries = None
    start_time: Annotated[datetime | None, Field("When the operator began with this generation.")] = None
    finish_time: Annotated[datetime | None, Field("When all of it was true.")] = None
    pods: Annotated[
        list[PodReport] | None,
        Field("The job's Pods; in the auto plan only.", max_items=MAX_REPLICAS),
    ] = None


class ScalePlan(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    api_version: str
    kind: str
    metadata: ObjectMeta
    spec: Annotated[ScalePlanSpec, Field("What should be true of the job.", required=True)]
    status: Annotated[ScalePlanStatus | None, Field("What became of it.")] = None


class PlanCondition(StrEnum):
    """The conditions of ScalePlans and JobResources."""

    ACCEPTED = "Accepted"
    """It is well-formed and its job is there."""
    ADMITTED = "Admitted"
    """What it asks for was granted, all or trimmed."""
    COMPLETED = "Completed"
    """It is so."""


def job_name(plan: ScalePlan) -> str | None:
    """The job a plan is for."""
    return plan.spec.owner_job or (plan.metadata.labels or {}).get(JOB_LABEL)


def is_manual(plan: ScalePlan) -> bool:
    """Whether a user wrote it. A plan that does not say is a user's: the master's always says."""
    return (plan.metadata.labels or {}).get(TYPE_LABEL, ScaleType.MANUAL) != ScaleType.AUTO
