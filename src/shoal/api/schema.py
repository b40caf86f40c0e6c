"""From models to Kubernetes' structural schemas.

A structural schema says the type of everything, so that the API server can prune what it does not know and compile
rules before any object exists. `structural` derives one from a Struct: types give types, `Field`s give meaning and
bounds.
"""

import types
import typing
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import msgspec

from shoal.api.fields import Field

Schema = dict[str, Any]

INT_OR_STRING = "x-kubernetes-int-or-string"
PRESERVE = "x-kubernetes-preserve-unknown-fields"
LIST_TYPE = "x-kubernetes-list-type"
LIST_KEYS = "x-kubernetes-list-map-keys"


def structural(model: type[msgspec.Struct]) -> Schema:
    """The schema of one Struct: an object with its fields."""
    hints = typing.get_type_hints(model, include_extras=True)
    properties: Schema = {}
    required = []
    for each in msgspec.structs.fields(model):
        written, field = _annotated(hints[each.name])
        properties[each.encode_name] = _described(_of_type(written, field), field)
        if field.required:
            required.append(each.encode_name)
    schema: Schema = {"type": "object", "properties": properties}
    if required:
        schema["required"] = required
    return schema


def _annotated(hint: Any) -> tuple[Any, Field]:
    """The type without `None`, and its `Field`. Absence is how Kubernetes says `None`."""
    field = Field("")
    if typing.get_origin(hint) is typing.Annotated:
        hint, *notes = typing.get_args(hint)
        field = next(note for note in notes if isinstance(note, Field))
    if isinstance(hint, types.UnionType):
        members = [member for member in typing.get_args(hint) if member is not type(None)]
        hint = members[0] if len(members) == 1 else tuple(members)
    return hint, field


def _of_type(written: Any, field: Field) -> Schema:
    if field.schema is not None:
        given: Schema = plain(field.schema)
        return given
    origin = typing.get_origin(written)
    if origin is list:
        return _list(typing.get_args(written)[0], field)
    if origin is dict:
        return _map(typing.get_args(written)[1], field)
    if isinstance(written, type) and issubclass(written, msgspec.Struct):
        return structural(written)
    return _scalar(written, field)


def _scalar(written: Any, field: Field) -> Schema:
    bounds = {
        "enum": None if field.enum is None else [str(each) for each in field.enum],
        "minimum": field.minimum,
        "maximum": field.maximum,
        "minLength": field.min_length,
        "maxLength": field.max_length,
        "pattern": field.pattern,
        "default": field.default,
    }
    stated = {name: bound for name, bound in bounds.items() if bound is not None}
    if written == (int, str):
        return {INT_OR_STRING: True, "anyOf": [{"type": "integer"}, {"type": "string"}], **stated}
    if written is int:
        return {"type": "integer", "format": "int64" if field.int64 else "int32", **stated}
    if written is datetime:
        return {"type": "string", "format": "date-time", **stated}
    return {"type": {str: "string", bool: "boolean"}[written], **stated}


def _list(item: Any, field: Field) -> Schema:
    written, noted = _annotated(item)
    schema: Schema = {"type": "array", "maxItems": field.max_items, "items": _of_type(written, field.item or noted)}
    if field.keys:
        return {**schema, LIST_TYPE: "map", LIST_KEYS: list(field.keys)}
    return {**schema, LIST_TYPE: "atomic"}


def _map(value: Any, field: Field) -> Schema:
    written, noted = _annotated(value)
    if isinstance(value, types.UnionType):
        written = typing.get_args(value)
    return {
        "type": "object",
        "maxProperties": field.max_items,
        "additionalProperties": _of_type(written, field.item or noted),
    }


def _described(schema: Schema, field: Field) -> Schema:
    return {"description": field.meaning, **schema} if field.meaning else schema


def plain(value: Any) -> Any:
    """A copy made of dicts and lists only, which nobody else holds."""
    if isinstance(value, Mapping):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return value
