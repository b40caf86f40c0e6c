"""Objects and settings that tests of the Kubernetes platform share; each shows only what matters."""

import asyncio
from collections.abc import Callable
from typing import Any

from shoal.platforms.kubernetes.backoff import Backoff
from shoal.platforms.kubernetes.client import ClientSettings
from shoal.platforms.kubernetes.informer import InformerSettings
from shoal.platforms.kubernetes.objects import ConfigMap, Container, Kind, ObjectMeta, Pod, PodSpec

SWIFT = Backoff(first_seconds=0.005, limit_seconds=0.05)
QUICK_CLIENT = ClientSettings(call_seconds=20.0, backoff=SWIFT)
QUICK_INFORMER = InformerSettings(relist_seconds=600.0, short_watch_seconds=0.01, backoff=SWIFT)

FISH = Kind(group="sea.shoal.dev", version="v1", kind="Fish", plural="fish", type=dict)
"""A custom kind with status and scale subresources."""
FISH_SCALE = ("spec.replicas", "status.replicas")

FISH_DEFINITION: dict[str, Any] = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "fish.sea.shoal.dev"},
    "spec": {
        "group": "sea.shoal.dev",
        "scope": "Namespaced",
        "names": {"kind": "Fish", "plural": "fish", "singular": "fish", "listKind": "FishList"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "subresources": {
                    "status": {},
                    "scale": {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"},
                },
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "properties": {
                            "spec": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                            "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                        },
                    }
                },
            }
        ],
    },
}


def a_pod(name: str, namespace: str, *, host: str = "", labels: dict[str, str] | None = None) -> Pod:
    meta = ObjectMeta(name=name, namespace=namespace, labels=labels or {})
    return Pod(meta, PodSpec(node_name=host, containers=[Container(name="main", image="none.invalid/image")]))


def a_config(
    name: str, namespace: str, *, owner: Any = None, finalizers: tuple[str, ...] = (), **data: str
) -> ConfigMap:
    owners = [owner] if owner is not None else []
    meta = ObjectMeta(name=name, namespace=namespace, owner_references=owners, finalizers=list(finalizers))
    return ConfigMap(meta, data)


def a_fish(name: str, namespace: str, **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": namespace}, "spec": spec}


async def until(is_so: Callable[[], bool], *, within: float = 60.0) -> None:
    """Wait for something that other tasks bring about. The limit is for a test that hangs, not for how fast it is."""
    async with asyncio.timeout(within):
        while not is_so():
            await asyncio.sleep(0.01)
