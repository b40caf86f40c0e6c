"""The models as tables for people: one row per field or rule. The pages in `docs/reference` are made of them."""

from collections.abc import Iterator

import msgspec

from shoal.api.rules import Rule
from shoal.api.schema import INT_OR_STRING, Schema, structural

Row = tuple[str, ...]
FIELDS_HEAD = ("field", "type", "meaning")
RULES_HEAD = ("about", "rule")


def field_rows(model: type[msgspec.Struct], *, flat: bool = False) -> list[Row]:
    """A Struct's fields; `flat` adds those of the objects and lists in it."""
    return list(_rows(structural(model), "", flat))


def _rows(schema: Schema, path: str, flat: bool) -> Iterator[Row]:
    required = schema.get("required", ())
    for name, each in schema["properties"].items():
        inner = each.get("items", each)
        is_list = inner is not each
        here = f"{path}{name}{'[]' if is_list else ''}"
        kind = type_of(each) + (", required" if name in required else "")
        yield f"`{here}`", kind, each.get("description", "")
        if flat and "properties" in inner:
            yield from _rows(inner, f"{here}.", flat)


def type_of(schema: Schema) -> str:
    """A schema's type and bounds, in a few words."""
    if schema.get(INT_OR_STRING):
        return "quantity" if "maximum" not in schema else "whole number"
    if "enum" in schema:
        return ", ".join(f"`{each}`" for each in schema["enum"])
    match schema["type"]:
        case "integer":
            return _number(schema)
        case "array":
            return f"list, at most {schema['maxItems']}"
        case "string" if schema.get("format") == "date-time":
            return "time"
        case "string":
            return "text"
        case "boolean":
            return "boolean, default `false`" if schema.get("default") is False else "boolean"
        case _:
            return "object"


def _number(schema: Schema) -> str:
    least, most = schema.get("minimum"), schema.get("maximum")
    if most is None or most >= 2**31 - 1:
        return "number" if least is None else f"number from {least}"
    return f"number, {least} to {most}"


def rule_rows(rules: tuple[Rule, ...]) -> list[Row]:
    """What is asked between fields. What is asked of every role, wherever it stands, is one row."""
    places: dict[str, str] = {}
    for rule in rules:
        place = f"`{'.'.join(part for part in (rule.at, rule.field) if part)}`"
        first = places.setdefault(rule.message, place)
        if first != place and "other roles" not in first and "replicaSpecs" not in place:
            places[rule.message] = f"{first}, and of other roles"
    return [(place, message) for message, place in places.items()]
