"""What the client does when the server does not do what was asked: translated once, retried where that is safe."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime

import msgspec
import pytest
from aiohttp import web
from tests.platforms.kubernetes.builders import SWIFT, a_config, a_pod

from shoal.core.errors import PlatformUnavailable
from shoal.platforms.kubernetes.access import Access, Identity
from shoal.platforms.kubernetes.client import Client, ClientSettings, Merge
from shoal.platforms.kubernetes.errors import (
    AlreadyExists,
    ApiError,
    Conflict,
    Forbidden,
    Gone,
    Invalid,
    NotFound,
    NotServed,
    Permission,
    QuotaExceeded,
    TooManyRequests,
    Unauthorized,
    Unavailable,
    error_of,
    status_of,
)
from shoal.platforms.kubernetes.objects import CONFIG_MAPS, PODS, Pod, micro_time

QUICK = ClientSettings(call_seconds=20.0, retries=3, backoff=SWIFT, idle_seconds=0.2)
Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]
Serve = Callable[[Answer], Awaitable[str]]


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    """A server that answers as the test says; called with its handler, gives its address."""
    runners: list[web.AppRunner] = []

    async def start(answer: Answer) -> str:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", answer)
        runners.append(web.AppRunner(app, access_log=None, shutdown_timeout=0.1))
        await runners[-1].setup()
        await web.TCPSite(runners[-1], "127.0.0.1", 0).start()
        return f"http://127.0.0.1:{runners[-1].addresses[0][1]}"

    yield start
    for runner in runners:
        await runner.cleanup()


def a_status(code: int, reason: str = "", message: str = "", **details: object) -> bytes:
    return msgspec.json.encode(
        {"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": message, "details": details}
    )


@pytest.mark.parametrize(
    ("code", "body", "error"),
    [
        (404, a_status(404, "NotFound", 'pods "a" not found', name="a", kind="pods"), NotFound),
        (404, b"404 page not found\n", NotServed),
        (409, a_status(409, "AlreadyExists"), AlreadyExists),
        (409, a_status(409, "Conflict"), Conflict),
        (410, a_status(410, "Expired"), Gone),
        (422, a_status(422, "Invalid"), Invalid),
        (400, a_status(400, "BadRequest"), Invalid),
        (401, a_status(401, "Unauthorized"), Unauthorized),
        (
            403,
            a_status(403, "Forbidden", "pods is forbidden: exceeded quota: gpus, requested: 9, limited: 4"),
            QuotaExceeded,
        ),
        (403, a_status(403, "Forbidden", 'violates PodSecurity "restricted"'), Forbidden),
        (429, a_status(429, "TooManyRequests"), TooManyRequests),
        (500, b"<html>bad gateway</html>", Unavailable),
        (503, b"", Unavailable),
        (504, a_status(504, "Timeout", "Too large resource version"), Unavailable),
        (418, b"teapot", ApiError),
    ],
)
def test_each_answer_has_its_error(code: int, body: bytes, error: type[ApiError]) -> None:
    permission = Permission(verb="create", group="", resource="pods", namespace="n")
    made = error_of(status_of(code, body), call="create Pod n/a", permission=permission)
    assert type(made) is error
    assert str(made).startswith("create Pod n/a: ")


def test_a_write_behind_a_500_may_have_been_done_and_behind_a_503_was_not() -> None:
    permission = Permission(verb="create", group="", resource="pods", namespace="n")
    unknown = {}
    for code in (500, 502, 503, 504):
        error = error_of(status_of(code, b""), call="c", permission=permission)
        assert isinstance(error, PlatformUnavailable)
        assert isinstance(error, Unavailable)
        unknown[code] = error.outcome_unknown
    assert unknown == {500: True, 502: True, 503: False, 504: True}


async def test_a_429_is_waited_for_and_a_write_is_then_done_once(serve: Serve) -> None:
    asked: list[str] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        asked.append(request.method)
        if len(asked) < 3:
            return web.Response(status=429, headers={"Retry-After": "0"}, body=a_status(429))
        return web.Response(body=await request.read())

    async with Client(Access(server=await serve(answer)), QUICK) as client:
        made = await client.create(CONFIG_MAPS, a_config("a", "n"))
    assert (made.metadata.name, asked) == ("a", ["POST"] * 3)


async def test_a_429_without_end_becomes_the_callers(serve: Serve) -> None:
    async def answer(_: web.Request) -> web.StreamResponse:
        return web.Response(status=429, headers={"Retry-After": "0"}, body=a_status(429))

    async with Client(Access(server=await serve(answer)), QUICK) as client:
        with pytest.raises(TooManyRequests) as refused:
            await client.create(CONFIG_MAPS, a_config("a", "n"))
    assert refused.value.retry_after == 0.0


async def test_reads_are_retried_and_writes_are_not(serve: Serve) -> None:
    asked: list[str] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        asked.append(request.method)
        return web.Response(status=500, body=a_status(500))

    async with Client(Access(server=await serve(answer)), QUICK) as client:
        with pytest.raises(Unavailable):
            await client.get(PODS, "a", namespace="n")
        assert asked == ["GET"] * 4
        with pytest.raises(Unavailable):
            await client.patch(PODS, "a", Merge({}), namespace="n")
        assert asked == ["GET"] * 4 + ["PATCH"]


class Rotating:
    """Credentials of which the first is refused."""

    def __init__(self) -> None:
        self.tokens = ["old", "new"]

    async def identity(self) -> Identity:
        return Identity({"Authorization": f"Bearer {self.tokens[0]}"})

    def refused(self) -> bool:
        if len(self.tokens) > 1:
            self.tokens.pop(0)
            return True
        return False


async def test_a_token_that_was_replaced_is_renewed_once(serve: Serve) -> None:
    asked: list[str] = []
    good = "Bearer new"

    async def answer(request: web.Request) -> web.StreamResponse:
        asked.append(request.headers["Authorization"])
        if asked[-1] != good:
            return web.Response(status=401, body=a_status(401))
        return web.Response(body=b"{}")

    url = await serve(answer)
    async with Client(Access(server=url, credentials=Rotating()), QUICK) as client:
        await client.create(CONFIG_MAPS, a_config("a", "n"))
        assert asked == ["Bearer old", "Bearer new"]
        good = "Bearer other"
        with pytest.raises(Unauthorized, match="credentials"):
            await client.get(PODS, "a", namespace="n")
        assert len(asked) == 3  # nothing newer is to be had


async def test_a_call_ends_when_its_time_is_over(serve: Serve) -> None:
    async def answer(_: web.Request) -> web.StreamResponse:
        await asyncio.Event().wait()
        raise AssertionError

    async with Client(Access(server=await serve(answer)), QUICK) as client:
        with pytest.raises(Unavailable, match="create ConfigMap n/a: no answer") as late:
            await client.create(CONFIG_MAPS, a_config("a", "n"), timeout=0.05)
    assert late.value.outcome_unknown


async def test_a_server_that_is_not_there_was_not_asked() -> None:
    async with Client(Access(server="http://127.0.0.1:9"), QUICK) as client:
        with pytest.raises(Unavailable, match="cannot reach") as away:
            await client.create(CONFIG_MAPS, a_config("a", "n"))
    assert not away.value.outcome_unknown


async def test_no_more_calls_are_under_way_than_allowed(serve: Serve) -> None:
    under_way, most = 0, 0

    async def answer(_: web.Request) -> web.StreamResponse:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0.005)
        under_way -= 1
        return web.Response(body=b"{}")

    async with Client(Access(server=await serve(answer)), ClientSettings(concurrency=5)) as client:
        await asyncio.gather(*(client.get(PODS, f"p{number}", namespace="n") for number in range(40)))
    assert most == 5


async def test_calls_apart_wait_behind_nobody_elses(serve: Serve) -> None:
    asked, go_on = asyncio.Event(), asyncio.Event()

    async def answer(request: web.Request) -> web.StreamResponse:
        if "pods" in request.path:
            asked.set()
            await go_on.wait()
        return web.json_response({"metadata": {"name": "a"}})

    async with Client(Access(server=await serve(answer)), ClientSettings(concurrency=1)) as client:
        slow = asyncio.create_task(client.get(PODS, "a", namespace="default"))
        await asked.wait()
        behind = asyncio.create_task(client.get(CONFIG_MAPS, "a", namespace="default"))
        apart = await client.apart(calls=1).get(CONFIG_MAPS, "a", namespace="default")
        assert apart.metadata.name == "a"
        assert not behind.done()
        go_on.set()
        await asyncio.gather(slow, behind)


async def test_an_answer_that_is_no_object_is_the_servers_failure(serve: Serve) -> None:
    async def answer(_: web.Request) -> web.StreamResponse:
        return web.Response(body=b'{"metadata": {"name": 7}}')

    async with Client(Access(server=await serve(answer)), QUICK) as client:
        with pytest.raises(Unavailable, match=r"not what we know.*metadata\.name"):
            await client.get(PODS, "a", namespace="n")


async def test_a_list_that_expires_between_its_pages_is_begun_anew(serve: Serve) -> None:
    asked: list[str | None] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        asked.append(request.query.get("continue"))
        if asked == [None, "more"]:
            return web.Response(status=410, body=a_status(410, "Expired"))
        more = {"continue": "more"} if "continue" not in request.query else {}
        items = [msgspec.to_builtins(a_pod(f"p{len(asked)}", "n"))]
        return web.json_response({"metadata": {"resourceVersion": "5", **more}, "items": items})

    async with Client(Access(server=await serve(answer)), QUICK) as client:
        listing = await client.list(PODS, namespace="n")
    assert [pod.metadata.name for pod in listing.items] == ["p3", "p4"]
    assert asked == [None, "more", None, "more"]


async def test_an_empty_list_may_be_null(serve: Serve) -> None:
    async def answer(_: web.Request) -> web.StreamResponse:
        return web.Response(body=b'{"metadata": {"resourceVersion": "5"}, "items": null}')

    async with Client(Access(server=await serve(answer)), QUICK) as client:
        assert (await client.list(PODS)).items == ()


async def test_a_silent_watch_ends_and_an_event_larger_than_any_buffer_arrives(serve: Serve) -> None:
    large = {"type": "ADDED", "object": {"metadata": {"name": "x" * 300_000, "resourceVersion": "6"}}}

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(msgspec.json.encode(large) + b"\n")
        await asyncio.Event().wait()  # and then never a word again
        return response

    async with Client(Access(server=await serve(answer)), QUICK) as client, client.watch(PODS, since="5") as events:
        told = [event async for event in events]
    assert [len(event.object.metadata.name) for event in told if event.object] == [300_000]


async def test_a_proxy_is_asked_in_the_servers_place(serve: Serve) -> None:
    asked: list[str] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        asked.append(str(request.url))
        return web.Response(body=b"{}")

    async with Client(Access(server="http://api.invalid:8080/base", proxy=await serve(answer)), QUICK) as client:
        await client.get(PODS, "a", namespace="n")
    assert asked == ["http://api.invalid:8080/base/api/v1/namespaces/n/pods/a"]


async def test_calls_are_observed_for_metrics(serve: Serve) -> None:
    seen: list[tuple[str, str, int]] = []

    async def answer(_: web.Request) -> web.StreamResponse:
        return web.Response(body=b"{}")

    def observe(verb: str, resource: str, code: int, seconds: float) -> None:
        assert seconds >= 0
        seen.append((verb, resource, code))

    client = Client(Access(server=await serve(answer)), QUICK, rng=random.Random(1), observe=observe)
    await client.get(PODS, "a", namespace="n")
    await client.patch(PODS, "a", Merge({}), namespace="n", subresource="status")
    await client.close()
    assert seen == [("get", "pods", 200), ("patch", "pods/status", 200)]


def test_only_what_is_set_is_sent_and_unknown_fields_are_passed_over() -> None:
    assert (
        msgspec.json.encode(a_config("a", "n", x="1")) == b'{"metadata":{"name":"a","namespace":"n"},"data":{"x":"1"}}'
    )
    pod = msgspec.json.decode(b'{"metadata": {"name": "a", "managedFields": [1]}, "spec": {"odd": {}}}', type=Pod)
    assert pod.metadata.name == "a"


def test_a_time_is_never_written_without_its_fraction() -> None:
    moment = micro_time(datetime(2026, 1, 1, tzinfo=UTC))
    assert msgspec.json.encode(moment) == b'"2026-01-01T00:00:00.000001Z"'
