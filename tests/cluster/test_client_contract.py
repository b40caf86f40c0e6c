"""The contract of client, informer, elector and recorder, held by a real API server."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack

import msgspec
import pytest
from hack.kube.harness import Cluster
from tests.platforms.kubernetes.builders import FISH_DEFINITION, QUICK_CLIENT
from tests.platforms.kubernetes.contract import *  # noqa: F403 - the suite
from tests.platforms.kubernetes.contract import Api

from shoal.platforms.kubernetes.access import Identity
from shoal.platforms.kubernetes.client import Client
from shoal.platforms.kubernetes.config import load
from shoal.platforms.kubernetes.credentials import Fixed
from shoal.platforms.kubernetes.errors import Forbidden
from shoal.platforms.kubernetes.objects import PODS, ROLE_BINDINGS, ROLES

READER = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}]


@pytest.fixture(scope="session")
def with_fish(control_plane: Cluster) -> Cluster:
    words = ("apply", "--server-side", "-f", "-")
    control_plane.kubectl(*words, stdin=msgspec.json.encode(FISH_DEFINITION).decode())
    control_plane.kubectl("wait", "--for=condition=Established", "crd/fish.sea.shoal.dev", "--timeout=60s")
    return control_plane


@pytest.fixture
async def api(with_fish: Cluster, make_namespace: Callable[[Cluster], str]) -> AsyncIterator[Api]:
    namespace = make_namespace(with_fish)
    admin = load([with_fish.kubeconfig], environment={})
    reader = load([with_fish.service_account(namespace, "reader")], environment={})
    nobody = Fixed(Identity({"Authorization": "Bearer nobody's"}))
    stranger = type(admin)(server=admin.server, authority=admin.authority, credentials=nobody)
    async with AsyncExitStack() as stack:
        client, other, third = [
            await stack.enter_async_context(Client(access, QUICK_CLIENT)) for access in (admin, reader, stranger)
        ]
        meta = {"name": "reader", "namespace": namespace}
        await client.create(ROLES, {"metadata": meta, "rules": READER})
        ref = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "reader"}
        subject = {"kind": "ServiceAccount", "name": "reader", "namespace": namespace}
        await client.create(ROLE_BINDINGS, {"metadata": meta, "roleRef": ref, "subjects": [subject]})
        await bound(other, namespace)
        yield Api(client, other, third, namespace)


async def bound(reader: Client, namespace: str) -> None:
    """Until the server goes by the binding: it hears of it by a watch of its own."""
    async with asyncio.timeout(60):
        while True:
            with contextlib.suppress(Forbidden):
                await reader.list(PODS, namespace=namespace)
                return
            await asyncio.sleep(0.02)
