"""Whether an object may be applied, and what to change if not: the API server's verdict, without a server.

`problems` does to an object what the API server does when somebody creates it (with `old`: changes it) under strict
field validation, as kubectl asks for: fields nobody knows are refused, nulls are left out, defaults are filled in,
then types and bounds are held against the schema, and if all is well, the rules between fields.

The status is not looked at: it is not the writer's to give. Of the metadata only the name is.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from shoal.api import elasticjob, jobresource, scaleplan, trainingjob
from shoal.api.rules import Rule, elastic_job_rules, job_resource_rules, scale_plan_rules, training_job_rules
from shoal.api.schema import INT_OR_STRING, LIST_KEYS, PRESERVE, Schema, structural

MAX_SHOWN = 40
"""Characters of somebody's value that are repeated in a message."""
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One reason why an object is refused."""

    field: str
    """`spec.worker.min`."""
    rule: str
    """What was broken: a word of the schema (`maximum`, `enum`, `unknown`), or the rule in CEL."""
    message: str
    """What to change."""

    def __str__(self) -> str:
        return f"{self.field}: {self.message}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind of resource: its schema and its rules."""

    api_version: str
    kind: str
    schema: Schema
    rules: tuple[Rule, ...]


@cache
def kinds() -> Mapping[tuple[str, str], Kind]:
    """The kinds we know, by apiVersion and kind."""
    found = (
        Kind(
            api_version=elasticjob.API_VERSION,
            kind=elasticjob.KIND,
            schema=structural(elasticjob.ElasticJobSpec),
            rules=elastic_job_rules(),
        ),
        Kind(
            api_version=elasticjob.API_VERSION,
            kind=scaleplan.KIND,
            schema=structural(scaleplan.ScalePlanSpec),
            rules=scale_plan_rules(),
        ),
        Kind(
            api_version=jobresource.API_VERSION,
            kind=jobresource.KIND,
            schema=structural(jobresource.JobResourceSpec),
            rules=job_resource_rules(),
        ),
        Kind(
            api_version=trainingjob.API_VERSION,
            kind=trainingjob.KIND,
            schema=structural(trainingjob.TrainingJobSpec),
            rules=training_job_rules(),
        ),
    )
    return {(each.api_version, each.kind): each for each in found}


def problems(written: Any, old: Mapping[str, Any] | None = None) -> tuple[Problem, ...]:
    """Everything that is wrong with an object; nothing when the API server would take it."""
    if not isinstance(written, Mapping):
        return (_problem("", "type", f"an object is wanted, got {_type_of(written)}"),)
    kind = _kind_of(written)
    if kind is None:
        known = ", ".join(f"{each.kind} of {each.api_version}" for each in kinds().values())
        return (_problem("kind", "enum", f"no kind of ours: one of {known} is wanted"),)
    found = [*_metadata(written.get("metadata")), *_top_level(written)]
    spec = written.get("spec")
    if spec is None:
        found.append(_problem("spec", "required", "it is missing"))
    else:
        found += _unknown(spec, kind.schema, "spec")
        found += _schema_problems(_filled(spec, kind.schema), kind.schema, "spec")
    if found:
        return tuple(found)
    whole = {"metadata": written["metadata"], "spec": _filled(spec, kind.schema)}
    before = None if old is None else {"metadata": old["metadata"], "spec": _filled(old["spec"], kind.schema)}
    return tuple(problem for rule in kind.rules for problem in _broken(rule, whole, before))


def _kind_of(written: Mapping[str, Any]) -> Kind | None:
    names = (written.get("apiVersion"), written.get("kind"))
    return kinds().get(names) if all(isinstance(name, str) for name in names) else None  # type: ignore[arg-type]


def _problem(field: str, rule: str, message: str) -> Problem:
    return Problem(field=field, rule=rule, message=message)


# Metadata and the top level --------------------------------------------------------------------------------


def _metadata(metadata: Any) -> Iterator[Problem]:
    if not isinstance(metadata, Mapping):
        yield _problem("metadata", "required", "it is missing")
        return
    name = metadata.get("name")
    if not name and not metadata.get("generateName"):
        yield _problem("metadata.name", "required", "a name is wanted")
    elif name and not (isinstance(name, str) and len(name) <= 253 and _SUBDOMAIN.fullmatch(name)):
        yield _problem(
            "metadata.name", "pattern", f"{_shown(name)} is no name: small letters, digits, '-' and '.' are allowed"
        )


def _top_level(written: Mapping[str, Any]) -> Iterator[Problem]:
    for name in written:
        if name not in ("apiVersion", "kind", "metadata", "spec", "status"):
            yield _problem(_shown_name(name), "unknown", "there is no such field")


# What the API server does to an object before it looks at it ------------------------------------------------


def _property(schema: Schema, name: Any) -> Schema | None:
    found: Schema | None = schema.get("properties", {}).get(name)
    if found is None:
        found = schema.get("additionalProperties")
    return found


def _unknown(value: Any, schema: Schema, path: str) -> Iterator[Problem]:
    """Fields that the schema does not know, and does not keep."""
    if isinstance(value, list) and "items" in schema:
        for index, item in enumerate(value):
            yield from _unknown(item, schema["items"], f"{path}[{index}]")
    if not isinstance(value, Mapping):
        return
    for name, each in value.items():
        known = _property(schema, name)
        if known is not None:
            yield from _unknown(each, known, f"{path}.{_shown_name(name)}")
        elif not schema.get(PRESERVE):
            yield _problem(f"{path}.{_shown_name(name)}", "unknown", "there is no such field")


def _filled(value: Any, schema: Schema) -> Any:
    """The value without nulls, and with defaults."""
    if isinstance(value, list):
        return [_filled(item, schema.get("items", {})) for item in value]
    if not isinstance(value, Mapping):
        return value
    found = {}
    for name, each in value.items():
        known = _property(schema, name)
        if known is None:
            found[name] = each
        elif each is not None:
            found[name] = _filled(each, known)
    defaults = {n: each["default"] for n, each in schema.get("properties", {}).items() if "default" in each}
    return {**defaults, **found}


# Types and bounds ------------------------------------------------------------------------------------------


def _schema_problems(value: Any, schema: Schema, path: str) -> Iterator[Problem]:
    wanted = _types(schema)
    if not _is_a(value, wanted):
        hint = ' (a fraction is written as a string, "0.5"; a whole number without a point, 4)'
        hint = hint if isinstance(value, float) else ""
        yield _problem(path, "type", f"{' or '.join(wanted)} is wanted, got {_type_of(value)}{hint}")
    elif isinstance(value, str):
        yield from _string_problems(value, schema, path)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        if not schema.get("minimum", value) <= value <= schema.get("maximum", value):
            yield _problem(path, "bounds", f"{_range(schema)} is wanted, got {_shown(value)}")
    elif isinstance(value, list):
        yield from _list_problems(value, schema, path)
    elif isinstance(value, Mapping):
        yield from _object_problems(value, schema, path)


def _types(schema: Schema) -> tuple[str, ...]:
    return ("integer", "string") if schema.get(INT_OR_STRING) else (schema["type"],)


def _is_a(value: Any, wanted: tuple[str, ...]) -> bool:
    """4.0 is no whole number here. The API server lets it pass as one where no rule looks at it, and refuses it where
    one does: nobody should have to know which."""
    return _type_of(value) in wanted


def _type_of(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
        case _:
            return "object"


def _string_problems(value: str, schema: Schema, path: str) -> Iterator[Problem]:
    if "enum" in schema and value not in schema["enum"]:
        yield _problem(path, "enum", f"one of {', '.join(schema['enum'])} is wanted, got {_shown(value)}")
    if not schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", len(value)):
        yield _problem(path, "length", f"{len(value)} characters; at most {schema.get('maxLength')} are allowed")
    elif "pattern" in schema and not _matches(schema["pattern"], value):
        yield _problem(path, "pattern", f"{_shown(value)} does not match {schema['pattern']}")


def _matches(pattern: str, value: str) -> bool:
    """Go's `$` is the end of the text; Python's is also before a last line feed."""
    return re.search(pattern.removesuffix("$") + r"\Z" if pattern.endswith("$") else pattern, value) is not None


def _list_problems(value: list[Any], schema: Schema, path: str) -> Iterator[Problem]:
    if not schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", len(value)):
        least, most = schema.get("minItems", 0), schema.get("maxItems")
        yield _problem(path, "items", f"{len(value)} entries; {least} to {most} are allowed")
        return
    for index, item in enumerate(value):
        yield from _schema_problems(item, schema["items"], f"{path}[{index}]")
    keys = schema.get(LIST_KEYS, ())
    seen = set()
    for index, item in enumerate(value):
        if keys and isinstance(item, Mapping):
            key = tuple(repr(item.get(name)) for name in keys)
            if key in seen:
                yield _problem(f"{path}[{index}]", "duplicate", f"another entry has the same {' and '.join(keys)}")
            seen.add(key)


def _object_problems(value: Mapping[str, Any], schema: Schema, path: str) -> Iterator[Problem]:
    for name in schema.get("required", ()):
        if name not in value:
            yield _problem(f"{path}.{name}", "required", "it is missing")
    if len(value) > schema.get("maxProperties", len(value)):
        yield _problem(path, "items", f"{len(value)} entries; at most {schema['maxProperties']} are allowed")
    for name, each in value.items():
        known = _property(schema, name)
        if known is not None:
            yield from _schema_problems(each, known, f"{path}.{_shown_name(name)}")


def _range(schema: Schema) -> str:
    return f"{schema.get('minimum', 'any')} to {schema.get('maximum', 'any')}"


# Rules between fields --------------------------------------------------------------------------------------


def _broken(rule: Rule, whole: Mapping[str, Any], before: Mapping[str, Any] | None) -> Iterator[Problem]:
    if rule.transition and before is None:
        return
    old = dict(_places(before, rule.at)) if rule.transition else {}
    for path, value in _places(whole, rule.at):
        if rule.transition and path not in old:
            continue  # nothing was there, so nothing changed
        if not (rule.holds(value, old[path]) if rule.transition else rule.holds(value)):
            yield _problem(".".join(part for part in (path, rule.field) if part), rule.cel, rule.message)


def _places(value: Any, at: str, path: str = "") -> Iterator[tuple[str, Any]]:
    """What stands at a place of the schema: nothing, one value, or one for each item of a list."""
    if not at:
        yield path, value
        return
    name, _, rest = at.partition(".")
    each = name.removesuffix("[]")
    if each not in value:
        return
    below = f"{path}.{each}" if path else each
    if name.endswith("[]"):
        for index, item in enumerate(value[each]):
            yield from _places(item, rest, f"{below}[{index}]")
    else:
        yield from _places(value[each], rest, below)


# What is repeated of somebody's input ----------------------------------------------------------------------


def _shown(value: Any) -> str:
    """A value for a message: short, and without what a terminal would obey."""
    if isinstance(value, str):
        return ascii(value if len(value) <= MAX_SHOWN else value[:MAX_SHOWN] + "...")
    written = str(value) if not isinstance(value, int) or abs(value) < 10**MAX_SHOWN else "a very large number"
    return written[:MAX_SHOWN]


def _shown_name(name: Any) -> str:
    return name if isinstance(name, str) and name.isascii() and name.isprintable() and len(name) < 128 else _shown(name)
