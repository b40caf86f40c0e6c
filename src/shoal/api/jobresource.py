"""JobResource (`elastic.easydl.org/v1alpha1`): how many members a job has, and what each gets.

The seed's older form of a manual plan, with its own names and units: bare numbers of memory and disk are MiB, and
`resource_updation` replaces the named Pods by ones with another resource, the new one first.
"""

from datetime import datetime
from typing import Annotated

import msgspec

from shoal.api.fields import LABEL_VALUE, MAX_ENTRIES, Field, IntOrString, a_count, a_name, a_quantity, a_text
from shoal.api.meta import Conditions, DoneEntries, ObjectMeta, ObservedGeneration
from shoal.api.scaleplan import TrimmedEntries

API_VERSION = "elastic.easydl.org/v1alpha1"
KIND = "JobResource"


class MebibyteResource(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What one Pod gets. Bare numbers of memory and disk are MiB here, and nowhere else."""

    cpu: Annotated[IntOrString | None, a_quantity('Cores: `4`, `"0.5"`, `500m`.')] = None
    memory: Annotated[IntOrString | None, a_quantity("MiB, or with a unit: `4096`, `4Gi`.")] = None
    disk: Annotated[IntOrString | None, a_quantity("MiB, or with a unit; becomes `ephemeral-storage`.")] = None
    gpu: Annotated[IntOrString | None, a_quantity("Whole devices.", whole=True)] = None
    gpu_type: Annotated[
        str | None, a_text("Which kind of device; becomes a node selector.", max_length=63, pattern=LABEL_VALUE)
    ] = msgspec.field(default=None, name="gpuType")


class RoleResource(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    replicas: Annotated[int | None, a_count("How many members.")] = None
    resource: Annotated[MebibyteResource | None, Field("What each gets.")] = None


class Updation(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    name: Annotated[str, a_name("The Pod to replace.", required=True)]
    resource: Annotated[MebibyteResource, Field("What the new one gets.", required=True)]


class Selector(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    name: Annotated[str, a_name("The job.", max_length=63, required=True)]


class JobResourceSpec(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    selector: Annotated[Selector, Field("Which job.", required=True)]
    parameter_server: Annotated[RoleResource | None, Field("Parameter servers.")] = None
    worker: Annotated[RoleResource | None, Field("Workers.")] = None
    chief: Annotated[RoleResource | None, Field("The chief.")] = None
    evaluator: Annotated[RoleResource | None, Field("Evaluators.")] = None
    resource_updation: Annotated[
        list[Updation] | None,
        Field("Pods to replace by ones with another resource.", max_items=MAX_ENTRIES, keys=("name",)),
    ] = None


class JobResourceStatus(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    conditions: Conditions = None
    observed_generation: ObservedGeneration = None
    trimmed: TrimmedEntries = None
    done: DoneEntries = None
    start_time: Annotated[datetime | None, Field("When the operator began with this generation.")] = None
    finish_time: Annotated[datetime | None, Field("When all of it was true.")] = None


class JobResource(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    api_version: str
    kind: str
    metadata: ObjectMeta
    spec: Annotated[JobResourceSpec, Field("What should be true of the job.", required=True)]
    status: Annotated[JobResourceStatus | None, Field("What became of it.")] = None
