"""The contract, held by the fake API server; and what only a fake can be asked to do."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest
from tests.platforms.kubernetes.builders import FISH, FISH_SCALE, QUICK_CLIENT, a_pod
from tests.platforms.kubernetes.contract import *  # noqa: F403 - the suite
from tests.platforms.kubernetes.contract import Api

from shoal.platforms.kubernetes.client import Client
from shoal.platforms.kubernetes.errors import Permission
from shoal.platforms.kubernetes.fake import FakeApiServer
from shoal.platforms.kubernetes.objects import PODS


def allowed(user: str, permission: Permission) -> bool:
    reading = permission.verb in ("get", "list", "watch") and permission.resource == "pods"
    return user == "admin" or reading or permission.resource == "selfsubjectaccessreviews"


@pytest.fixture
async def api() -> AsyncIterator[Api]:
    async with AsyncExitStack() as stack:
        server = FakeApiServer(tokens={"a-token": "admin", "r-token": "reader"}, allow=allowed, bookmark_seconds=0.05)
        await stack.enter_async_context(server)
        server.serve(FISH, scale=FISH_SCALE)
        clients = [
            await stack.enter_async_context(Client(server.access(token), QUICK_CLIENT))
            for token in ("a-token", "r-token", "nobody's")
        ]
        yield Api(*clients, namespace="default")


async def test_the_logs_of_a_pod_are_what_the_test_says() -> None:
    async with FakeApiServer() as server, Client(server.access(), QUICK_CLIENT) as client:
        await client.create(PODS, a_pod("a", "default"))
        server.logs["default", "a"] = b"one\ntwo\n"
        assert b"".join([piece async for piece in client.logs("a", namespace="default")]) == b"one\ntwo\n"


async def test_a_pod_that_was_being_deleted_is_gone_when_its_processes_are_over() -> None:
    async with FakeApiServer() as server, Client(server.access(), QUICK_CLIENT) as client:
        await client.create(PODS, a_pod("a", "default"))
        server.bind("default", "a", "host-1")
        assert (await client.get(PODS, "a", namespace="default")).status.phase == "Running"
        await client.delete(PODS, "a", namespace="default")
        server.finish("default", "a")
        assert server.objects(PODS) == []
