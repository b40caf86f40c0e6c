"""A proxy in front of an API server through which everything can go wrong, the same way for the same seed.

    async with Chaos(access, seed=7, odds=ROUGH) as chaos:
        client = Client(chaos.access())               # or a process, with chaos.write_kubeconfig(path)
        ...
        chaos.calm()                                  # nothing goes wrong any more: now it must settle

It speaks plain HTTP on loopback to whoever is tested, and to the server as the `access` it was given. What it can do:

- answer a write 409, a list 410, anything 429 or 500, without asking the server;
- cut the connection before a request reached the server, or after it took effect and before its answer is told;
- drop, repeat, delay, hold back for seconds and reorder the events of a watch, cut it, or end it with 410;
- kill a process right after its n-th write took effect (`kill_after`), or after the next one of which nobody has died
  yet (`kill_after_new`), for crash points;
- be an older server, that lacks a resource (`hidden`);
- be dark: refuse and cut everything, like a server that is away for a minute.

A dropped event is something no API server does. A controller has to live with it all the same, because a stale cache or
a bug anywhere between looks like it: an informer's periodic list must find it.
"""

import asyncio
import json
import random
import re
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web
from yarl import URL

from shoal.platforms.kubernetes.access import Access, Certificate

HOP_BY_HOP = {"host", "connection", "content-length", "transfer-encoding", "authorization", "keep-alive"}
VOLATILE = re.compile(
    rb'(,?"uid":)?"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"|,?"resourceVersion":"[0-9]+"|"[0-9T:.-]{19,27}Z"'
)
"""Times, uids and versions."""
BACKGROUND = ("/leases/", "/leases", "/events", "/events/")
"""Writes that come by the clock and not by what is decided: they are no crash points."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Odds:
    """How likely each thing is, from 0 to 1, for each request or each event of a watch."""

    conflict: float = 0.0
    """A write is answered 409, and was not done."""
    busy: float = 0.0
    """429 with a Retry-After, and not done."""
    broken: float = 0.0
    """500, and not done."""
    cut_before: float = 0.0
    """The connection is cut, and it was not done."""
    cut_after: float = 0.0
    """The connection is cut, and it *was* done."""
    broken_after: float = 0.0
    """500, and it *was* done."""
    late: float = 0.0
    """The answer takes up to `delay_seconds` longer."""
    gone: float = 0.0
    """A list or the start of a watch is answered 410."""
    event_dropped: float = 0.0
    event_twice: float = 0.0
    event_late: float = 0.0
    """An event, and what comes after it, waits for up to `delay_seconds`."""
    event_swapped: float = 0.0
    """An event comes after the one behind it."""
    event_held: float = 0.0
    """An event, and what comes after it, waits for `held_seconds`: whoever reads the cache meanwhile reads the past."""
    watch_cut: float = 0.0
    """Per event: the watch ends with a reset."""
    watch_gone: float = 0.0
    """Per event: the watch ends with the server's word that the version is gone."""
    delay_seconds: float = 0.05
    held_seconds: float = 3.0


CALM = Odds()
ROUGH = Odds(
    conflict=0.05,
    busy=0.05,
    broken=0.05,
    cut_before=0.05,
    cut_after=0.05,
    broken_after=0.03,
    late=0.1,
    gone=0.05,
    event_dropped=0.05,
    event_twice=0.1,
    event_late=0.1,
    event_swapped=0.05,
    event_held=0.02,
    watch_cut=0.02,
    watch_gone=0.02,
)


class Chaos:
    def __init__(self, access: Access, *, seed: int, odds: Odds = CALM) -> None:
        self._upstream = access
        self._contexts: dict[Certificate | None, ssl.SSLContext] = {}
        self._rng = random.Random(seed)
        self.odds = odds
        self.is_dark = False
        self.hidden: frozenset[str] = frozenset()
        """Resources of the core group that the server does not say it has: `pods/resize`."""
        self.writes: list[str] = []
        """Method and path of each write that took effect, leases and events aside, in order."""
        self.faults: dict[str, int] = {}
        """How often each thing was done: a test that saw none proves nothing."""
        self.deaths: list[str] = []
        """Those that somebody was killed after, or had been killed before, by `kill_after_new`."""
        self._known: set[str] = set()
        self._kill: tuple[Callable[[str], bool], Callable[[], None]] | None = None
        self._open: set[asyncio.Transport] = set()
        self._runner: web.AppRunner | None = None
        self._session: aiohttp.ClientSession | None = None
        self.url = ""

    async def __aenter__(self) -> "Chaos":
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=None), auto_decompress=False
        )
        app = web.Application(client_max_size=64 * 1024 * 1024)
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._runner is not None
        assert self._session is not None
        self.dark()
        await self._runner.cleanup()
        await self._session.close()

    # What a test does -------------------------------------------------------------------------------------

    def access(self) -> Access:
        return Access(server=self.url, namespace=self._upstream.namespace)

    def write_kubeconfig(self, path: Path) -> Path:
        """For a process: whoever uses it is, to the server, the `access` this proxy was given."""
        entry = {"name": "chaos"}
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "chaos",
            "clusters": [{**entry, "cluster": {"server": self.url}}],
            "users": [{**entry, "user": {}}],
            "contexts": [
                {**entry, "context": {"cluster": "chaos", "user": "chaos", "namespace": self._upstream.namespace}}
            ],
        }
        path.write_text(json.dumps(content))
        return path

    def calm(self) -> None:
        """Nothing goes wrong from now on."""
        self.odds = CALM
        self.is_dark = False

    def dark(self) -> None:
        """Be away: cut what is open, refuse what comes, until `calm`."""
        self.is_dark = True
        for transport in list(self._open):
            transport.abort()

    def kill_after(self, writes: int, kill: Callable[[], None]) -> None:
        """Call `kill` when so many more writes have taken effect, before the last one is answered."""
        last = len(self.writes) + writes
        self._kill = (lambda _: len(self.writes) >= last, kill)

    def kill_after_new(self, kill: Callable[[], None], *, but: str) -> None:
        """Call `kill` when a write has taken effect that is unlike all before, before it is answered: of another
        object, or it says something else, times and uids aside. `but`: objects that do not count, a pattern."""
        spared = re.compile(but)
        self._kill = (lambda write: write not in self._known and not spared.search(write), kill)

    # Between the two --------------------------------------------------------------------------------------

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        self._open.add(request.transport)
        try:
            return await self._troubled(request)
        finally:
            self._open.discard(request.transport)

    async def _troubled(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        is_watch = request.query.get("watch") in ("true", "1")
        is_write = request.method != "GET"
        if self.is_dark or self._happens("cut_before"):
            return _cut(request)
        if self._happens("busy"):
            return _status(429, "TooManyRequests", "slow down", {"Retry-After": "0"})
        if self._happens("broken"):
            return _status(500, "InternalError", "etcdserver: leader changed")
        if is_write and request.method != "POST" and self._happens("conflict"):
            return _status(409, "Conflict", "the object has been modified")
        if not is_write and (is_watch or "limit" in request.query) and self._happens("gone"):
            return _status(410, "Expired", "too old resource version")
        if is_watch:
            return await self._watch(request)
        try:
            status, headers, answer = await self._forward(request, body)
        except (aiohttp.ClientError, OSError):
            return _cut(request)
        if is_write and status < 400:
            self._wrote(f"{request.method} {request.path}", body)
        if self.hidden and request.path == "/api/v1":
            answer = self._without_hidden(answer)
        if self.is_dark or self._happens("cut_after"):
            return _cut(request)
        if is_write and self._happens("broken_after"):
            return _status(500, "InternalError", "etcdserver: request timed out")
        if self._happens("late"):
            await self._dawdle()
        return web.Response(status=status, body=answer, headers=headers)

    def _without_hidden(self, answer: bytes) -> bytes:
        told = json.loads(answer)
        return json.dumps(
            {**told, "resources": [e for e in told["resources"] if e["name"] not in self.hidden]}
        ).encode()

    async def _forward(self, request: web.Request, body: bytes) -> tuple[int, Mapping[str, str], bytes]:
        async with await self._request(request, body) as response:
            return response.status, _kept(response.headers), await response.read()

    async def _request(self, request: web.Request, body: bytes) -> aiohttp.ClientResponse:
        assert self._session is not None
        identity = await self._upstream.credentials.identity()
        is_tls = self._upstream.server.startswith("https")
        return await self._session.request(
            request.method,
            URL(self._upstream.server.rstrip("/") + request.raw_path, encoded=True),
            headers={**_kept(request.headers), **identity.headers},
            data=body or None,
            ssl=self._tls(identity.certificate) if is_tls else True,
            server_hostname=self._upstream.server_name,
        )

    def _tls(self, certificate: Certificate | None) -> ssl.SSLContext:
        """Made once per certificate: a context of its own for each request would mean a connection for each as well."""
        if certificate not in self._contexts:
            self._contexts[certificate] = self._upstream.tls(certificate)
        return self._contexts[certificate]

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        try:
            upstream = await self._request(request, b"")
        except (aiohttp.ClientError, OSError):
            return _cut(request)
        async with upstream:
            if upstream.status != 200:
                return web.Response(status=upstream.status, body=await upstream.read(), headers=_kept(upstream.headers))
            response = web.StreamResponse(headers={"Content-Type": "application/json"})
            await response.prepare(request)
            try:
                return await self._relay(request, upstream, response)
            except (aiohttp.ClientError, OSError):
                return _cut(request)

    async def _relay(
        self, request: web.Request, upstream: aiohttp.ClientResponse, response: web.StreamResponse
    ) -> web.StreamResponse:
        rest, held = b"", b""
        while piece := await upstream.content.readany():
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                if self.is_dark or self._happens("watch_cut"):
                    return _cut(request)
                if self._happens("watch_gone"):
                    await response.write(held + _gone_event())
                    return response
                if self._happens("event_dropped"):
                    continue
                if self._happens("event_late"):
                    await self._dawdle()
                if self._happens("event_held"):
                    await asyncio.sleep(self.odds.held_seconds)
                told = line + b"\n"
                if self._happens("event_twice"):
                    told += told
                if not held and self._happens("event_swapped"):
                    held = told
                    continue
                await response.write(told + held)
                held = b""
        await response.write(held)
        return response

    def _wrote(self, what: str, body: bytes) -> None:
        if any(part in what for part in BACKGROUND):
            return
        self.writes.append(what)
        if what.startswith("POST"):
            what += f"/{json.loads(body).get('metadata', {}).get('name', '')}"
        write = f"{what.removeprefix('POST ').removeprefix('PATCH ')} {VOLATILE.sub(b'', body).decode()}"
        if self._kill is not None and self._kill[0](write):
            _, kill = self._kill
            self._kill = None
            self.faults["kill"] = self.faults.get("kill", 0) + 1
            kill()
        if self._kill is None and write not in self._known:  # whoever made it is dead, or dies of it
            self.deaths.append(what)
            self._known.add(write)

    def _happens(self, what: str) -> bool:
        if self._rng.random() >= getattr(self.odds, what):
            return False
        self.faults[what] = self.faults.get(what, 0) + 1
        return True

    async def _dawdle(self) -> None:
        await asyncio.sleep(self._rng.random() * self.odds.delay_seconds)


@contextmanager
def chaos_in_a_thread(access: Access, *, seed: int, odds: Odds = CALM) -> Iterator[Chaos]:
    """The same for a test that is not asynchronous. Its methods may be called from any thread, `dark` aside."""
    ready: list[Any] = []
    started, over = threading.Event(), threading.Event()

    async def serve() -> None:
        async with Chaos(access, seed=seed, odds=odds) as chaos:
            ready.append(chaos)
            started.set()
            await asyncio.to_thread(over.wait)

    thread = threading.Thread(target=lambda: asyncio.run(serve()), name="chaos")
    thread.start()
    try:
        if not started.wait(30):
            raise TimeoutError("the proxy did not start")
        yield ready[0]
    finally:
        over.set()
        thread.join()


def _cut(request: web.Request) -> web.Response:
    """End the connection with a reset. What is returned goes nowhere."""
    if request.transport is not None:
        request.transport.abort()
    return web.Response()


def _status(code: int, reason: str, message: str, headers: Mapping[str, str] | None = None) -> web.Response:
    body = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason}
    return web.json_response({**body, "message": f"chaos: {message}"}, status=code, headers=headers)


def _gone_event() -> bytes:
    status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 410, "reason": "Expired"}
    return json.dumps({"type": "ERROR", "object": {**status, "message": "chaos: too old"}}).encode() + b"\n"


def _kept(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.lower() not in HOP_BY_HOP}
