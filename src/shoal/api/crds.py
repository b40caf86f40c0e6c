"""The CustomResourceDefinitions, generated from the models and rules.

One file per kind goes into the Helm chart (`python tools/crds.py --write`); `helm.sh/resource-policy: keep` makes an
uninstall leave them, and everybody's jobs, in place.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from shoal.api import elasticjob, jobresource, scaleplan, trainingjob
from shoal.api.elasticjob import ElasticJob
from shoal.api.jobresource import JobResource
from shoal.api.rules import Rule
from shoal.api.scaleplan import ScalePlan
from shoal.api.schema import Schema, structural
from shoal.api.trainingjob import TrainingJob
from shoal.api.validation import kinds

Column = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """What a CRD says beyond its schema."""

    model: type[msgspec.Struct]
    api_version: str
    kind: str
    plural: str
    short: str
    columns: tuple[Column, ...]
    scale: dict[str, str] | None = None

    @property
    def name(self) -> str:
        return f"{self.plural}.{self.api_version.partition('/')[0]}"


def _column(name: str, path: str, kind: str = "string", *, wide: bool = False, about: str = "") -> Column:
    column: Column = {"name": name, "type": kind, "jsonPath": path}
    if about:
        column["description"] = about
    return {**column, "priority": 1} if wide else column


def _condition(name: str, *, show: str = "status") -> str:
    return f'.status.conditions[?(@.type=="{name}")].{show}'


_AGE = _column("Age", ".metadata.creationTimestamp", "date")
_PLAN_COLUMNS = (
    _column("Accepted", _condition("Accepted")),
    _column("Admitted", _condition("Admitted")),
    _column("Completed", _condition("Completed")),
    _column("Reason", _condition("Completed", show="reason"), wide=True),
)

DEFINITIONS = (
    Definition(
        model=ElasticJob,
        api_version=elasticjob.API_VERSION,
        kind=elasticjob.KIND,
        plural="elasticjobs",
        short="ej",
        scale={
            "specReplicasPath": ".spec.worker.replicas",
            "statusReplicasPath": ".status.replicas",
            "labelSelectorPath": ".status.selector",
        },
        columns=(
            _column("State", _condition("Ready", show="reason")),
            _column("Workers", ".status.replicas", "integer"),
            _column("Desired", ".spec.worker.replicas", "integer", about="What the user asks for, if anything."),
            _column("Restarts", ".status.restarts", "integer"),
            _column("Done", _condition("Succeeded"), about="True: it succeeded. False: it failed."),
            _column("World", ".status.world", "integer", wide=True),
            _column("Mode", ".spec.optimizeMode", wide=True),
            _column("Queue", r".metadata.labels.kueue\.x-k8s\.io/queue-name", wide=True),
            _column("Decision", ".status.lastDecision.reason", wide=True),
            _AGE,
        ),
    ),
    Definition(
        model=ScalePlan,
        api_version=elasticjob.API_VERSION,
        kind=scaleplan.KIND,
        plural="scaleplans",
        short="splan",
        columns=(
            _column("Job", ".spec.ownerJob"),
            _column("Type", ".metadata.labels.scale-type"),
            _column("Workers", ".spec.replicaResourceSpecs.worker.replicas", "integer"),
            _column("PS", ".spec.replicaResourceSpecs.ps.replicas", "integer"),
            *_PLAN_COLUMNS,
            _AGE,
        ),
    ),
    Definition(
        model=JobResource,
        api_version=jobresource.API_VERSION,
        kind=jobresource.KIND,
        plural="jobresources",
        short="jr",
        columns=(
            _column("Job", ".spec.selector.name"),
            _column("Workers", ".spec.worker.replicas", "integer"),
            _column("PS", ".spec.parameter_server.replicas", "integer"),
            *_PLAN_COLUMNS,
            _AGE,
        ),
    ),
    Definition(
        model=TrainingJob,
        api_version=trainingjob.API_VERSION,
        kind=trainingjob.KIND,
        plural="trainingjobs",
        short="tj",
        scale={
            "specReplicasPath": ".spec.trainer.max-instance",
            "statusReplicasPath": ".status.replicas",
            "labelSelectorPath": ".status.selector",
        },
        columns=(
            _column("Phase", ".status.phase"),
            _column("Trainers", ".status.replicas", "integer"),
            _column("Target", ".status.scheduling.target", "integer", about="What the scheduler allows."),
            _column("Min", ".spec.trainer.min-instance", "integer"),
            _column("Max", ".spec.trainer.max-instance", "integer"),
            _column("Place", ".status.scheduling.place", "integer", about="In the queue; 1 is next."),
            _column("Priority", ".spec.priority", wide=True),
            _column("Reason", ".status.reason", wide=True),
            _AGE,
        ),
    ),
)


def crd(definition: Definition) -> dict[str, Any]:
    """One CustomResourceDefinition, as a JSON object."""
    group, _, version = definition.api_version.partition("/")
    subresources: dict[str, Any] = {"status": {}}
    if definition.scale:
        subresources["scale"] = dict(definition.scale)
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": definition.name,
            "annotations": {"helm.sh/resource-policy": "keep"},
            "labels": {"app.kubernetes.io/name": "shoal", "app.kubernetes.io/part-of": "shoal"},
        },
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {
                "kind": definition.kind,
                "listKind": f"{definition.kind}List",
                "plural": definition.plural,
                "singular": definition.kind.lower(),
                "shortNames": [definition.short],
                "categories": ["shoal"],
            },
            "versions": [
                {
                    "name": version,
                    "served": True,
                    "storage": True,
                    "subresources": subresources,
                    "additionalPrinterColumns": [dict(column) for column in definition.columns],
                    "schema": {"openAPIV3Schema": _schema(definition)},
                }
            ],
        },
    }


def _schema(definition: Definition) -> Schema:
    schema = structural(definition.model)
    schema["properties"] |= {
        "apiVersion": {"type": "string"},
        "kind": {"type": "string"},
        "metadata": {"type": "object"},
    }
    schema["description"] = (definition.model.__doc__ or "").strip().partition("\n")[0]
    for rule in kinds()[definition.api_version, definition.kind].rules:
        _hang(rule, schema)
    return schema


def _hang(rule: Rule, schema: Schema) -> None:
    """Put a rule at its place of the schema."""
    place = schema
    for name in filter(None, rule.at.split(".")):
        place = place["properties"][name.removesuffix("[]")]
        if name.endswith("[]"):
            place = place["items"]
    written = {"rule": rule.cel, "message": rule.message}
    if rule.field and not rule.field.startswith("metadata"):  # a fieldPath must be in the schema; metadata is not
        written["fieldPath"] = "".join(_step(name) for name in rule.field.split("."))
    place.setdefault("x-kubernetes-validations", []).append(written)


def _step(name: str) -> str:
    return f".{name}" if "-" not in name else f"['{name}']"


# The text of the files -------------------------------------------------------------------------------------

_PLAIN_FIRST = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ./")
_PLAIN = _PLAIN_FIRST | frozenset("0123456789_-")
_WORDS_OF_YAML = frozenset({"true", "false", "yes", "no", "on", "off", "null", "y", "n"})


def to_yaml(value: Any) -> str:
    """YAML of a JSON value: block style, keys in their order. What is not plainly a word is quoted as JSON is."""
    return "\n".join(_lines(value)) + "\n"


def _lines(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for name, each in value.items():
            yield from _entry(f"{_scalar(name)}:", each)
    else:
        for each in value:
            if isinstance(each, dict | list) and each:
                first, *rest = _lines(each)
                yield f"- {first}"
                yield from (f"  {line}" for line in rest)
            else:
                yield f"- {_scalar(each)}"


def _entry(name: str, value: Any) -> Iterator[str]:
    if isinstance(value, dict | list) and value:
        yield name
        indent = "  " if isinstance(value, dict) else ""
        yield from (indent + line for line in _lines(value))
    else:
        yield f"{name} {_scalar(value)}"


def _scalar(value: Any) -> str:
    return value if isinstance(value, str) and _is_plain(value) else msgspec.json.encode(value).decode()


def _is_plain(word: str) -> bool:
    return word[:1] in _PLAIN_FIRST and set(word) <= _PLAIN and word.lower() not in _WORDS_OF_YAML


def files(definitions: Sequence[Definition] = DEFINITIONS) -> dict[str, str]:
    """File names, and what should stand in them: templates of the chart that are plain YAML as well.

    Helm reads its instructions in comments too, so `crds.install: false` leaves the definitions to somebody else.
    """
    head = "# Generated from shoal.api by `python tools/crds.py --write`; change the models, not this file.\n"
    begin, end = "# {{ if .Values.crds.install }}\n", "# {{ end }}\n"
    return {f"{each.plural}.yaml": head + begin + to_yaml(crd(each)) + end for each in definitions}
