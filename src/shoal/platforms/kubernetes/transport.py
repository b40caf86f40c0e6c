"""Requests to one API server: a pool of connections, one time-out and a few retries per call, errors translated once.

`Call` says what is asked, in the server's words (method, path, body) and in people's (verb, kind, name: for messages,
and for the permission that a refusal names). `Transport` asks it. Which calls there are is `client`'s business.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from copy import copy
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote
from weakref import WeakSet

import aiohttp
from yarl import URL

from shoal.platforms.kubernetes.access import Access, Certificate
from shoal.platforms.kubernetes.backoff import Backoff
from shoal.platforms.kubernetes.errors import (
    ApiError,
    Permission,
    Status,
    TooManyRequests,
    Unauthorized,
    Unavailable,
    error_of,
    status_of,
)
from shoal.platforms.kubernetes.objects import Kind

JSON = "application/json"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    concurrency: int = 32
    """Calls under way at once, watches aside. Measured: 16 to 64 fill a server, more gains nothing."""
    call_seconds: float = 30.0
    """How long one call may take, waiting for a 429 included."""
    page_size: int = 500
    """Objects per page of a list. Decoding blocks the event loop: 500 Pods are about 25 ms."""
    retries: int = 4
    """How often one call is tried again before its error is the caller's."""
    backoff: Backoff = field(default_factory=lambda: Backoff(first_seconds=0.1, limit_seconds=5.0))
    watch_seconds: float = 420.0
    """After how long a watch is asked to end, so that connections spread over servers again; varied by half."""
    idle_seconds: float = 90.0
    """A watch this silent is taken for dead. The server sends bookmarks about every minute; a peer that vanished
    without a word would otherwise never be noticed."""
    user_agent: str = "shoal"

    def __post_init__(self) -> None:
        if self.concurrency < 1 or self.page_size < 1 or self.retries < 0:
            raise ValueError("concurrency and page_size must be at least 1, retries at least 0")
        if min(self.call_seconds, self.watch_seconds, self.idle_seconds) <= 0:
            raise ValueError("time-outs must be greater than 0")


Observe = Callable[[str, str, int, float], None]
"""Called after each call with verb, resource, HTTP status (0: no answer) and seconds: for metrics."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    verb: str
    kind: Kind[Any]
    method: str
    namespace: str | None = None
    name: str | None = None
    about: str | None = None
    """The name of an object that is in the body only."""
    subresource: str | None = None
    query: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None
    content: str = JSON
    accept: str = JSON
    seconds: float | None = None

    @property
    def is_read(self) -> bool:
        return self.method == "GET"

    @property
    def permission(self) -> Permission:
        resource = f"{self.kind.plural}/{self.subresource}" if self.subresource else self.kind.plural
        namespace = self.namespace if self.kind.namespaced else None
        return Permission(verb=self.verb, group=self.kind.group, resource=resource, namespace=namespace or None)

    def __str__(self) -> str:
        what = self.kind.kind if self.subresource is None else f"{self.subresource} of {self.kind.kind}"
        which = "/".join(part for part in (self.namespace, self.name or self.about) if part)
        return f"{self.verb} {what} {which}".rstrip()


class Transport:
    """Sends calls. Made and used in a running event loop."""

    def __init__(self, access: Access, settings: ClientSettings, rng: random.Random, observe: Observe | None) -> None:
        self._access = access
        self._settings = settings
        self._rng = rng
        self._observe = observe or _unobserved
        self._slots = asyncio.Semaphore(settings.concurrency)
        self._pool = _Pool(access, settings)

    async def close(self) -> None:
        await self._pool.close()

    def apart(self, calls: int) -> "Transport":
        """The same connections, with slots of its own."""
        other = copy(self)
        other._slots = asyncio.Semaphore(calls)
        return other

    async def send(self, call: Call, *, path: str | None = None) -> bytes:
        """One call with its retries, within one slot and one time-out."""
        seconds = call.seconds or self._settings.call_seconds
        async with self._slots:
            try:
                async with asyncio.timeout(seconds):
                    return await self._tried(call, path)
            except TimeoutError as exc:
                raise Unavailable(f"{call}: no answer in {seconds:g} s", outcome_unknown=not call.is_read) from exc

    async def _tried(self, call: Call, path: str | None) -> bytes:
        failures = 0
        while True:
            try:
                async with self.answer(call, path=path) as response:
                    return await whole(response, call)
            except (TooManyRequests, Unauthorized, Unavailable) as exc:
                failures += 1
                if failures > self._settings.retries or not self._may_retry(call, exc, failures):
                    raise
                asked = getattr(exc, "retry_after", None)
                pause = self._settings.backoff.seconds(failures, self._rng.random())
            await asyncio.sleep(pause if asked is None else asked * (1 + 0.1 * self._rng.random()))

    def _may_retry(self, call: Call, exc: ApiError, failures: int) -> bool:
        match exc:
            case Unauthorized():
                return failures == 1 and self._access.credentials.refused()
            case TooManyRequests():
                return call.subresource != "eviction"  # there it is the answer
            case _:
                return call.is_read

    @asynccontextmanager
    async def answer(self, call: Call, *, path: str | None = None) -> AsyncIterator[aiohttp.ClientResponse]:
        """The response of one request, its status good. Every error of the HTTP library ends here."""
        loop = asyncio.get_running_loop()
        began, code = loop.time(), 0
        identity = await self._access.credentials.identity()
        headers = {"Accept": call.accept, **identity.headers}
        if call.body is not None:
            headers["Content-Type"] = call.content
        where = path or call.kind.path(call.namespace, call.name, call.subresource)
        try:
            try:
                async with asyncio.timeout(call.seconds or self._settings.call_seconds):
                    response = await self._pool.request(
                        call.method, where, call.query, headers, call.body, identity.certificate
                    )
            except TimeoutError as exc:
                raise Unavailable(
                    f"{call}: no answer from {self._access.server}", outcome_unknown=not call.is_read
                ) from exc
            except aiohttp.ClientConnectorError as exc:  # never connected: nothing was asked
                raise Unavailable(f"{call}: cannot reach {self._access.server}: {exc}") from exc
            except (aiohttp.ClientError, OSError) as exc:
                raise Unavailable(
                    f"{call}: the connection to {self._access.server} broke: {exc or type(exc).__name__}",
                    outcome_unknown=not call.is_read,
                ) from exc
            async with response:
                code = response.status
                if code >= 400:
                    await self._raise(response, call)
                yield response
        finally:
            self._observe(call.verb, call.permission.resource, code, loop.time() - began)

    async def _raise(self, response: aiohttp.ClientResponse, call: Call) -> None:
        status = status_of(response.status, await whole(response, call))
        raise error_of(
            status, call=str(call), permission=call.permission, retry_after=_retry_after(response.headers, status)
        )


_CLOSING_TURNS = 5
"""Turns of the loop in which connections that were given up are really closed: TLS takes more than one."""


class _Connector(aiohttp.TCPConnector):
    """Knows its connections to their end. One that was given up in the middle of an answer says goodbye in TLS and
    waits for the same: nobody would see it closed when the loop ends meanwhile."""

    def __init__(self, *, limit: int) -> None:
        super().__init__(limit=limit)
        self._made: WeakSet[asyncio.Transport] = WeakSet()

    async def _create_connection(self, *args: Any, **kwargs: Any) -> Any:
        made = await super()._create_connection(*args, **kwargs)
        if made.transport is not None:
            self._made.add(made.transport)
        return made

    def abort(self) -> None:
        for transport in list(self._made):
            transport.abort()


class _Pool:
    """Connections, and one TLS context per client certificate."""

    def __init__(self, access: Access, settings: ClientSettings) -> None:
        self._access = access
        self._base = access.server.rstrip("/")
        self._connector = _Connector(limit=0)  # the slots bound the calls; watches need one each
        self._session = aiohttp.ClientSession(
            connector=self._connector,
            timeout=aiohttp.ClientTimeout(total=None),  # scopes do that
            headers={"User-Agent": settings.user_agent},
            skip_auto_headers=["Accept-Encoding"],
            cookie_jar=aiohttp.DummyCookieJar(),
        )
        self._contexts: dict[Certificate | None, Any] = {}

    async def close(self) -> None:
        await self._session.close()
        self._connector.abort()
        for _ in range(_CLOSING_TURNS):
            await asyncio.sleep(0)

    async def request(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        headers: Mapping[str, str],
        body: bytes | None,
        certificate: Certificate | None,
    ) -> aiohttp.ClientResponse:
        text = self._base + quote(path) + ("?" + _query(query) if query else "")
        return await self._session.request(
            method,
            URL(text, encoded=True),
            headers=headers,
            data=body,
            ssl=self._context(certificate),
            server_hostname=self._access.server_name,
            proxy=self._access.proxy,
            allow_redirects=False,
        )

    def _context(self, certificate: Certificate | None) -> Any:
        if not self._base.startswith("https"):
            return True
        if certificate not in self._contexts:
            if len(self._contexts) > 4:  # certificates that rotate: the old ones are of no more use
                self._contexts.clear()
            self._contexts[certificate] = self._access.tls(certificate)
        return self._contexts[certificate]


def _query(query: Mapping[str, str]) -> str:
    return "&".join(f"{key}={quote(value, safe='')}" for key, value in query.items())


async def whole(response: aiohttp.ClientResponse, call: Call) -> bytes:
    try:
        return await response.read()
    except (aiohttp.ClientError, OSError) as exc:
        raise Unavailable(f"{call}: half an answer: {exc}", outcome_unknown=not call.is_read) from exc


def _retry_after(headers: Mapping[str, str], status: Status) -> float | None:
    """The header wins over the body; what is no number of seconds is no answer."""
    try:
        return max(0.0, float(headers["Retry-After"]))
    except (KeyError, ValueError):
        asked = status.details.retry_after_seconds if status.details else None
        return None if asked is None else max(0.0, float(asked))


def _unobserved(_verb: str, _resource: str, _code: int, _seconds: float) -> None:
    return None
