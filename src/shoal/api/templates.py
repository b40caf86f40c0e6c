"""Pod templates: kept word for word, and what little we read of them.

A template is the user's. Its schema names only what rules and the operator read; every other field of a Pod passes
unchanged (`x-kubernetes-preserve-unknown-fields`) and is judged by Kubernetes when a Pod is made of it. So a new
field of Kubernetes' Pods works here the day it exists.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from shoal.api.fields import Template

MAX_ARGUMENT = 131_072
"""Linux' own bound for one argument."""

_ARGUMENTS: Mapping[str, Any] = {
    "type": "array",
    "maxItems": 1024,
    "items": {"type": "string", "maxLength": MAX_ARGUMENT},
}
_LABELS: Mapping[str, Any] = {
    "type": "object",
    "maxProperties": 256,
    "additionalProperties": {"type": "string", "maxLength": 262_144},
}
_AMOUNTS: Mapping[str, Any] = {
    "type": "object",
    "maxProperties": 32,
    "additionalProperties": {
        "x-kubernetes-int-or-string": True,
        "anyOf": [{"type": "integer"}, {"type": "string"}],
        "maxLength": 32,
    },
}


def _objects(most: int, **properties: Mapping[str, Any]) -> Mapping[str, Any]:
    """A list of objects of Kubernetes' own, of which these properties are read."""
    return {"type": "array", "maxItems": most, "items": _an_object(**properties)}


def _an_object(**properties: Mapping[str, Any]) -> dict[str, Any]:
    known = {"properties": properties} if properties else {}
    return {"type": "object", "x-kubernetes-preserve-unknown-fields": True, **known}


_WORD: Mapping[str, Any] = {"type": "string", "maxLength": 4096}
_AFFINITY = _an_object(
    nodeAffinity=_an_object(
        requiredDuringSchedulingIgnoredDuringExecution=_an_object(
            nodeSelectorTerms=_objects(256, matchFields=_objects(256))
        )
    )
)
POD_TEMPLATE: Mapping[str, Any] = {
    "type": "object",
    "required": ["spec"],
    "properties": {
        "metadata": {
            "type": "object",
            "x-kubernetes-preserve-unknown-fields": True,
            "properties": {"labels": _LABELS, "annotations": _LABELS},
        },
        "spec": {
            "type": "object",
            "x-kubernetes-preserve-unknown-fields": True,
            "required": ["containers"],
            "properties": {
                "initContainers": _objects(32),
                "volumes": _objects(1024),
                "imagePullSecrets": _objects(64, name=_WORD),
                "nodeSelector": _LABELS,
                "affinity": _AFFINITY,
                "containers": {
                    "type": "array",
                    "minItems": 1,
                    "maxItems": 32,
                    "items": {
                        "type": "object",
                        "x-kubernetes-preserve-unknown-fields": True,
                        "required": ["name"],
                        "properties": {
                            "name": {"type": "string", "minLength": 1, "maxLength": 63},
                            "image": {"type": "string", "maxLength": 4096},
                            "command": _ARGUMENTS,
                            "args": _ARGUMENTS,
                            "env": _objects(4096, name=_WORD),
                            "volumeMounts": _objects(1024, mountPath=_WORD),
                            "resources": {
                                "type": "object",
                                "x-kubernetes-preserve-unknown-fields": True,
                                "properties": {"limits": _AMOUNTS, "requests": _AMOUNTS},
                            },
                        },
                    },
                },
            },
        },
    },
}


def training_container(template: Template) -> Mapping[str, Any]:
    """The container that trains: the first. Others are side-cars and stay as they are."""
    container: Mapping[str, Any] = template["spec"]["containers"][0]
    return container


def command_of(template: Template) -> Sequence[str]:
    """What the training container runs: its command and arguments."""
    container = training_container(template)
    return [*container["command"], *(container.get("args") or ())]
