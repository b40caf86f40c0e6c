"""What all resources have: metadata, conditions, references to owners. Kubernetes' own shapes, the fields we use."""

from datetime import datetime
from enum import StrEnum
from typing import Annotated

import msgspec

from shoal.api.fields import Field, a_name, a_text


class OwnerReference(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    api_version: str
    kind: str
    name: str
    uid: str
    controller: bool | None = None
    block_owner_deletion: bool | None = None


class ObjectMeta(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    name: str = ""
    generate_name: str | None = None
    namespace: str | None = None
    uid: str | None = None
    resource_version: str | None = None
    generation: int | None = None
    creation_timestamp: datetime | None = None
    deletion_timestamp: datetime | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    owner_references: list[OwnerReference] | None = None
    finalizers: list[str] | None = None


class ConditionStatus(StrEnum):
    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


class Condition(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """One thing that is true of the object, is not, or is not known: `metav1.Condition`."""

    type: Annotated[str, a_name("What it is about, as an adjective: Ready, Completed.", max_length=316, required=True)]
    status: Annotated[str, Field("True, False or Unknown.", enum=tuple(ConditionStatus), required=True)]
    reason: Annotated[str, a_text("Why, in one CamelCase word that alerts may match.", required=True)]
    message: Annotated[str, a_text("Why, in a sentence for people.", max_length=4096)] = ""
    last_transition_time: Annotated[datetime, Field("When `status` last changed.", required=True)]
    observed_generation: Annotated[
        int | None, Field("The spec's generation it was said of.", minimum=0, int64=True)
    ] = None


Conditions = Annotated[
    list[Condition] | None,
    Field("What is true of it now; every known type is set from the first visit on.", max_items=16, keys=("type",)),
]
ObservedGeneration = Annotated[
    int | None, Field("The newest generation of the spec that the operator has seen.", minimum=0, int64=True)
]


def condition(conditions: list[Condition] | None, type: str) -> Condition | None:
    """The condition of that type, if it has been set."""
    return next((each for each in conditions or () if each.type == type), None)


class Done(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """One entry of a plan that has been carried out, and is not carried out again."""

    uid: Annotated[str, a_text("The uid of the plan or JobResource.", max_length=64, required=True)]
    generation: Annotated[int, Field("Its generation.", minimum=0, int64=True, required=True)]
    entry: Annotated[
        str,
        a_text("Which entry: `migratePods/J-ps-0`, `createPods/J-worker-4`.", max_length=320, required=True),
    ]
    pod: Annotated[str | None, a_name("The Pod that came of it.")] = None
    outcome: Annotated[str | None, a_text("What became of it.")] = None


DoneEntries = Annotated[
    list[Done] | None,
    Field("Entries carried out, once per (uid, generation, entry).", max_items=4096),
]
