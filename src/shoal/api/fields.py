"""What a field of a resource says about itself beyond its type.

The models of this package are plain msgspec Structs. What Kubernetes wants to know of a field beyond its type (its
bounds, its meaning, how lists merge) stands beside the type as a `Field`:

    replicas: Annotated[int | None, Field("How many.", minimum=0, maximum=MAX_REPLICAS)] = None

msgspec does not look at it: decoding never refuses a value that is merely out of bounds, because by then the API
server has let it in and the operator must be able to say what is wrong with it. `schema` turns types and `Field`s
into the CRD's schema, and `validation` holds objects against that same schema, so there is one set of bounds.

Every string and every list has a bound: the API server multiplies the cost of a rule by the longest input it could
get, and refuses rules that could become expensive.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MAX_REPLICAS = 10_000
"""Nobody's job has more members; it keeps counts far from where arithmetic could overflow."""
MAX_ENTRIES = 512
"""Entries of one plan's lists. More members than that are changed by count, or in several plans."""
MAX_NAME = 253
"""Kubernetes' own bound for object names."""
MAX_TEXT = 1024
"""A reason or message: a few sentences."""

QUANTITY = r"^\+?([0-9]{1,18}(\.[0-9]{0,9})?|\.[0-9]{1,9})([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]{1,2})?$"
"""Kubernetes' grammar of quantities, without negative ones and with a bound on the digits."""
WHOLE = r"^\+?[0-9]{1,5}$"
DURATION = r"^([0-9]{1,6}h)?([0-9]{1,6}m)?([0-9]{1,6}s)?$"
POD_NAME = r"^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$"
LABEL_VALUE = r"^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$"

IntOrString = int | str
"""A number as YAML has it, or a string such as `500m`. Fractions are strings: `"0.5"`."""
Template = dict[str, Any]
"""A Pod template, word for word as the user wrote it."""


@dataclass(frozen=True, slots=True)
class Field:
    """One field's meaning and bounds, in the words of Kubernetes' schemas."""

    meaning: str
    minimum: int | None = None
    maximum: int | None = None
    max_length: int | None = None
    """Of a string."""
    min_length: int | None = None
    pattern: str | None = None
    enum: Sequence[str] | None = None
    max_items: int | None = None
    """Of a list, or entries of a map."""
    keys: tuple[str, ...] = ()
    """The list is a map by these keys of its entries (`x-kubernetes-list-map-keys`)."""
    required: bool = False
    default: object = None
    int64: bool = False
    item: "Field | None" = None
    """Of what a list or map holds."""
    schema: Mapping[str, Any] | None = None
    """The schema itself, where types cannot say it: Pod templates."""


def a_text(meaning: str, *, max_length: int = MAX_TEXT, **bounds: Any) -> Field:
    return Field(meaning, max_length=max_length, **bounds)


def a_name(meaning: str, *, max_length: int = MAX_NAME, **bounds: Any) -> Field:
    """The name of an object; what it may be made of keeps control characters out of terminals and messages."""
    return Field(meaning, min_length=1, max_length=max_length, pattern=POD_NAME, **bounds)


def a_count(meaning: str, *, minimum: int = 0, maximum: int = MAX_REPLICAS, **bounds: Any) -> Field:
    return Field(meaning, minimum=minimum, maximum=maximum, **bounds)


def a_quantity(meaning: str, *, whole: bool = False) -> Field:
    if whole:
        return Field(meaning, minimum=0, maximum=99_999, max_length=32, pattern=WHOLE)
    return Field(meaning, minimum=0, max_length=32, pattern=QUANTITY)


def a_measure(meaning: str) -> Field:
    """A quantity that was measured, and is told in a string."""
    return Field(meaning, max_length=32, pattern=QUANTITY)
