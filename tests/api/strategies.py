"""Hypothesis strategies made from the schemas: valid objects, and ones that something was done to."""

import copy
from typing import Any

from hypothesis import strategies as st
from tests.api.builders import Written, a_template

from shoal.api.elasticjob import API_VERSION
from shoal.api.jobresource import API_VERSION as EASYDL
from shoal.api.rules import ROLES
from shoal.api.schema import INT_OR_STRING, LIST_KEYS, PRESERVE, Schema
from shoal.api.trainingjob import API_VERSION as PADDLE
from shoal.api.validation import kinds

JOB = kinds()[API_VERSION, "ElasticJob"].schema
PLAN = kinds()[API_VERSION, "ScalePlan"].schema
RESOURCE = kinds()[EASYDL, "JobResource"].schema
TRAINING = kinds()[PADDLE, "TrainingJob"].schema

NAMES = st.from_regex(r"[a-z]([-a-z0-9]{0,8}[a-z0-9])?", fullmatch=True)
MEMORY = st.sampled_from(["1Mi", "256Mi", "1.5Gi", "2e9", "1048576", 1_048_576, "8G", "+64Mi", "1048576000m"])


_MADE: dict[int, st.SearchStrategy[Any]] = {}
"""By the identity of the schema; those of `kinds()` live as long as this module."""


def values(schema: Schema) -> st.SearchStrategy[Any]:
    """Values that the schema allows, by the schema alone."""
    if id(schema) not in _MADE:
        _MADE[id(schema)] = _values(schema)
    return _MADE[id(schema)]


def _values(schema: Schema) -> st.SearchStrategy[Any]:
    if schema.get(INT_OR_STRING):
        return st.integers(0, min(schema.get("maximum", 10**6), 10**6)) | _strings(schema)
    match schema["type"]:
        case "string":
            return _strings(schema)
        case "integer":
            return st.integers(schema.get("minimum", 0), min(schema.get("maximum", 2**31), 2**31))
        case "boolean":
            return st.booleans()
        case "array":
            return _lists(schema)
        case _:
            return _objects(schema)


def _strings(schema: Schema) -> st.SearchStrategy[str]:
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    if "pattern" in schema:
        matching = st.from_regex(schema["pattern"].removesuffix("$") + r"\Z")
        return matching.filter(lambda text: schema.get("minLength", 0) <= len(text) <= schema.get("maxLength", 10**6))
    return st.text(min_size=schema.get("minLength", 0), max_size=min(schema.get("maxLength", 20), 20))


def _lists(schema: Schema) -> st.SearchStrategy[list[Any]]:
    keys = schema.get(LIST_KEYS)
    unique = (lambda item: tuple(item[key] for key in keys)) if keys else None
    least = schema.get("minItems", 0)
    if unique:
        return st.lists(values(schema["items"]), min_size=least, max_size=least + 3, unique_by=unique)
    return st.lists(values(schema["items"]), min_size=least, max_size=least + 3)


def _objects(schema: Schema) -> st.SearchStrategy[Written]:
    if "additionalProperties" in schema:
        return st.dictionaries(st.sampled_from(["cpu", "disk", "a", "b.c/d"]), values(schema["additionalProperties"]))
    properties = schema.get("properties", {})
    if "containers" in properties:
        return st.builds(lambda: a_template()["spec"])
    if schema.get(PRESERVE):
        return st.dictionaries(NAMES, st.none() | st.integers() | st.text(max_size=5), max_size=3)
    required = {name: values(properties[name]) for name in schema.get("required", ())}
    optional = {name: _member(name, each) for name, each in properties.items() if name not in required}
    return st.fixed_dictionaries(required, optional=optional)


def _member(name: str, schema: Schema) -> st.SearchStrategy[Any]:
    return MEMORY if name == "memory" else values(schema)


@st.composite
def jobs(draw: st.DrawFn) -> Written:
    """Valid ElasticJobs."""
    properties = JOB["properties"]
    simple = [name for name in properties if name not in {own for own, _ in ROLES} | {"replicaSpecs"}]
    spec = draw(st.fixed_dictionaries({}, optional={name: _member(name, properties[name]) for name in simple}))
    strategy = spec.get("distributionStrategy", draw(st.sampled_from(["allreduce", "parameter_server"])))
    wanted = {"worker"} | draw(st.sets(st.sampled_from(["chief", "evaluator"])))
    if "arameter" in strategy:
        wanted.add("parameterServer")
    if "parameterServer" not in wanted or wanted & {"chief", "evaluator"}:
        spec.pop("tfConfig", None)
    if not spec.get("nodeUnit", 1) <= 8:
        del spec["nodeUnit"]
    for own, mapped in ROLES:
        if own in wanted:
            _place(draw, spec, own, mapped)
    return _object(draw, API_VERSION, "ElasticJob", spec)


def _place(draw: st.DrawFn, spec: Written, own: str, mapped: str) -> None:
    """One role, under its own name or in `replicaSpecs`, with counts that agree."""
    schema = JOB["properties"][own] if draw(st.booleans()) else None
    fields = (schema or JOB["properties"]["replicaSpecs"]["properties"][mapped])["properties"]
    role = draw(
        st.fixed_dictionaries(
            {"template": st.builds(a_template)},
            optional={name: _member(name, each) for name, each in fields.items() if name != "template"},
        )
    )
    unit = spec.get("nodeUnit", 1) if own == "worker" else 1
    low, mid, high = sorted(draw(st.lists(st.integers(1, 100).map(lambda n: n * unit), min_size=3, max_size=3)))
    counts = {"min": low, "replicas": 1 if own == "chief" else mid, "max": high}
    if own == "chief":
        counts["min"] = draw(st.sampled_from([0, 1]))
    role |= {name: count for name, count in counts.items() if name in role}
    if schema is not None:
        spec[own] = role
    else:
        spec.setdefault("replicaSpecs", {})[mapped] = role


@st.composite
def plans(draw: st.DrawFn) -> Written:
    spec = draw(values(PLAN))
    _one_chief(spec.get("replicaResourceSpecs", {}))
    return _object(draw, API_VERSION, "ScalePlan", spec)


@st.composite
def job_resources(draw: st.DrawFn) -> Written:
    spec = draw(values(RESOURCE))
    _one_chief(spec)
    return _object(draw, EASYDL, "JobResource", spec)


def _one_chief(roles: Written) -> None:
    if "replicas" in roles.get("chief", {}):
        roles["chief"]["replicas"] = min(roles["chief"]["replicas"], 1)


def _object(draw: st.DrawFn, api_version: str, kind: str, spec: Written) -> Written:
    return {"apiVersion": api_version, "kind": kind, "metadata": {"name": draw(NAMES)}, "spec": spec}


GPUS = ("nvidia.com/gpu", "alpha.kubernetes.io/nvidia-gpu")


@st.composite
def training_jobs(draw: st.DrawFn) -> Written:
    """Valid TrainingJobs."""
    spec = draw(values(TRAINING))
    for part in ("trainer", "pserver", "master"):
        if part not in spec:
            continue
        low, high = sorted(draw(st.lists(st.integers(1, 100), min_size=2, max_size=2)))
        counts = {"min-instance": low, "max-instance": high}
        spec[part] |= {name: count for name, count in counts.items() if name in spec[part]}
        if "resources" in spec[part]:
            spec[part]["resources"] = draw(_requirements())
        if "etcd-replicas" in spec[part]:
            spec[part]["etcd-replicas"] = draw(st.sampled_from([1, 3]))
    if "max-instance" in spec["trainer"] and "fault_tolerant" in spec:
        spec["fault_tolerant"] = True
    return _object(draw, PADDLE, "TrainingJob", spec)


@st.composite
def _requirements(draw: st.DrawFn) -> Written:
    """Requests below limits; cores where there are devices."""
    cores = st.sampled_from([1, "500m", "0.25", "1e0"])
    requests = draw(st.fixed_dictionaries({}, optional={"cpu": cores, "memory": MEMORY}))
    limits = draw(st.fixed_dictionaries({}, optional={"cpu": st.sampled_from([2, "8"]), "memory": st.just("16Gi")}))
    if "cpu" in requests | limits:
        limits |= draw(st.dictionaries(st.sampled_from(GPUS), st.sampled_from([0, 1, "4"]), max_size=1))
    both = {"requests": requests, "limits": limits}
    return {name: amounts for name, amounts in both.items() if amounts or draw(st.booleans())}


valid = jobs() | plans() | job_resources() | training_jobs()

# What goes wrong -------------------------------------------------------------------------------------------

HOSTILE: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 7, 10_001, 2**31, 2**40, 0.5, "", "0", "1", "1Mi", "500m", "1e3", "-1",
    "4GB", ".", "+", "Ki", "1\n", "x" * 300, "обучение", "a\u202eb", "\x1b[2J", "high", "manual", [], {}, [1],
    [None], [{}], {"a": 1}, {"name": "a"}, {"name": None}, [{"name": "a"}, {"name": "a"}],
    {"template": None}, {"replicas": 0},
)  # fmt: skip
"""Values put where others are expected."""
hostile = st.sampled_from(HOSTILE).map(copy.deepcopy)


@st.composite
def broken(draw: st.DrawFn) -> Written:
    """An object that one to three things were done to. Some of them are still valid: that is for the judges to say."""
    written: Written = draw(valid)
    for _ in range(draw(st.integers(1, 3))):
        written.setdefault("spec", {})
        holder, key = draw(st.sampled_from([(written, "spec"), *_places(written.get("spec"))]))
        match draw(st.sampled_from(["replace", "replace", "remove", "add"])):
            case "replace":
                holder[key] = draw(hostile)
            case "remove":
                holder.pop(key)
            case _:
                names = ["min", "max", "replicas", "memory", "surprise", "template", "nodeUnit"]
                names += ["min-instance", "max-instance", "fault_tolerant", "nvidia.com/gpu", "cpu"]
                name = draw(st.sampled_from(names))
                if isinstance(holder, dict):
                    holder[name] = draw(hostile)
    return written


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Every place in a value: what holds it, and under which key."""
    found: list[tuple[Any, Any]] = []
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in entries:
        found.append((value, key))
        if isinstance(each, dict | list):
            found += _places(each)
    return found
