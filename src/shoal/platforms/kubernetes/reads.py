"""The reading half of `client.Client`: objects, lists in pages, watches, logs, and what the server serves."""

import asyncio
import random
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Generic, TypeVar

import aiohttp
import msgspec

from shoal.platforms.kubernetes.access import Access
from shoal.platforms.kubernetes.errors import ApiError, Gone, Unavailable, error_of, status_of
from shoal.platforms.kubernetes.objects import PODS, Bare, Json, Kind, Page, metadata_of
from shoal.platforms.kubernetes.transport import JSON, Call, ClientSettings, Observe, Transport

T = TypeVar("T")

METADATA_ONLY = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json"


@dataclass(frozen=True, slots=True)
class Listing(Generic[T]):
    """Objects as they were all at one version."""

    items: tuple[T, ...]
    version: str


class EventType(StrEnum):
    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"
    BOOKMARK = "BOOKMARK"


@dataclass(frozen=True, slots=True)
class WatchEvent(Generic[T]):
    """One thing that happened. Of a bookmark only the version counts: nothing up to it was missed."""

    type: EventType
    object: T | None
    """None for bookmarks."""
    version: str


class _RawEvent(msgspec.Struct, frozen=True):
    type: str
    object: msgspec.Raw


_RAW_EVENT = msgspec.json.Decoder(_RawEvent)


class Reads:
    """What can be asked of one API server."""

    def __init__(
        self,
        access: Access,
        settings: ClientSettings | None = None,
        *,
        rng: random.Random | None = None,
        observe: Observe | None = None,
    ) -> None:
        self.access = access
        self.settings = settings or ClientSettings()
        self._rng = rng or random.Random()
        self._transport = Transport(access, self.settings, self._rng, observe)
        self._decoders: dict[tuple[Kind[Any], str], msgspec.json.Decoder[Any]] = {}

    async def get(self, kind: Kind[T], name: str, *, namespace: str | None = None, timeout: float | None = None) -> T:
        call = Call(verb="get", kind=kind, method="GET", namespace=namespace, name=name, seconds=timeout)
        found: T = self._decode(kind, "one", await self._transport.send(call), call)
        return found

    async def pages(
        self,
        kind: Kind[T],
        *,
        namespace: str | None = None,
        labels: str | None = None,
        fields: str | None = None,
        page_size: int | None = None,
        timeout: float | None = None,
    ) -> AsyncIterator[Listing[T]]:
        """A list in pages, all as of one version. Raises `Gone` when it took so long that the version is no more."""
        size = page_size or self.settings.page_size
        continued = ""
        while True:
            page: Page[T] = await self._page(kind, "page", JSON, namespace, labels, fields, size, continued, timeout)
            yield Listing(tuple(page.items or ()), page.metadata.resource_version)
            continued = page.metadata.continue_
            if not continued:
                return

    async def list(
        self,
        kind: Kind[T],
        *,
        namespace: str | None = None,
        labels: str | None = None,
        fields: str | None = None,
        timeout: float | None = None,
    ) -> Listing[T]:
        """All of them, fetched in pages; begun anew when the version of the first page is gone before the last."""
        for is_last in (False, False, True):
            items: list[T] = []
            version = ""
            try:
                async for page in self.pages(kind, namespace=namespace, labels=labels, fields=fields, timeout=timeout):
                    items += page.items
                    version = page.version
                return Listing(tuple(items), version)
            except Gone:
                if is_last:
                    raise
        raise AssertionError("unreachable")

    async def list_metadata(
        self,
        kind: Kind[Any],
        *,
        namespace: str | None = None,
        labels: str | None = None,
        fields: str | None = None,
        timeout: float | None = None,
    ) -> Listing[Bare]:
        """Only names, labels, owners and versions: a fraction of the bytes."""
        items: list[Bare] = []
        continued = ""
        while True:
            page: Page[Bare] = await self._page(
                kind, "bare", METADATA_ONLY, namespace, labels, fields, self.settings.page_size, continued, timeout
            )
            items += page.items or ()
            continued = page.metadata.continue_
            if not continued:
                return Listing(tuple(items), page.metadata.resource_version)

    @asynccontextmanager
    async def watch(
        self,
        kind: Kind[T],
        *,
        since: str,
        namespace: str | None = None,
        labels: str | None = None,
        fields: str | None = None,
    ) -> AsyncIterator[AsyncIterator[WatchEvent[T]]]:
        """What happens from a version on. The stream ends when the server ends it or is silent for too long (watch
        again from the last version seen); it raises `Gone` when that version is no more (list again)."""
        seconds = self.settings.watch_seconds * (0.5 + 0.5 * self._rng.random())
        query = {
            "watch": "true",
            "resourceVersion": since,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(max(1, int(seconds))),
        }
        call = Call(verb="watch", kind=kind, method="GET", namespace=namespace, query=_selecting(query, labels, fields))
        async with self._transport.answer(call) as response, aclosing(self._events(kind, call, response)) as events:
            yield events

    async def logs(
        self, name: str, *, namespace: str, container: str | None = None, follow: bool = False, tail: int | None = None
    ) -> AsyncIterator[bytes]:
        """What a Pod prints, in pieces as they come."""
        query = {"follow": "true"} if follow else {}
        if container is not None:
            query["container"] = container
        if tail is not None:
            query["tailLines"] = str(tail)
        call = Call(
            verb="get",
            kind=PODS,
            method="GET",
            namespace=namespace,
            name=name,
            subresource="log",
            query=query,
            accept="*/*",
        )
        async with self._transport.answer(call) as response:
            try:
                async for piece in response.content.iter_any():
                    yield piece
            except (aiohttp.ClientError, OSError) as exc:
                raise Unavailable(f"{call}: the connection broke: {exc}") from exc

    async def is_served(self, kind: Kind[Any], subresource: str | None = None) -> bool:
        """Whether the server knows the kind, and a subresource of it."""
        path = f"/apis/{kind.group}/{kind.version}" if kind.group else f"/api/{kind.version}"
        wanted = f"{kind.plural}/{subresource}" if subresource else kind.plural
        found = await self.get_path(path)
        return found is not None and any(each.get("name") == wanted for each in found.get("resources", []))

    async def get_path(self, path: str) -> Json | None:
        """The JSON at a path of the server, such as `/version`; None: there is nothing."""
        kind = Kind(group="", version="", kind=path, plural=path, type=dict, namespaced=False)
        call = Call(verb="get", kind=kind, method="GET")
        try:
            data = await self._transport.send(call, path=path)
        except ApiError as exc:
            if exc.status.code == 404:
                return None
            raise
        found: Json = msgspec.json.decode(data)
        return found

    # The doors --------------------------------------------------------------------------------------------

    async def _page(
        self,
        kind: Kind[Any],
        how: str,
        accept: str,
        namespace: str | None,
        labels: str | None,
        fields: str | None,
        size: int,
        continued: str,
        timeout: float | None,
    ) -> Any:
        query = {"limit": str(size)} | ({"continue": continued} if continued else {})
        call = Call(
            verb="list",
            kind=kind,
            method="GET",
            namespace=namespace,
            query=_selecting(query, labels, fields),
            accept=accept,
            seconds=timeout,
        )
        return self._decode(kind, how, await self._transport.send(call), call)

    async def _events(
        self, kind: Kind[T], call: Call, response: aiohttp.ClientResponse
    ) -> AsyncGenerator[WatchEvent[T], None]:
        rest = b""
        while True:
            try:
                async with asyncio.timeout(self.settings.idle_seconds):
                    piece = await response.content.readany()
            except TimeoutError:
                return
            except (aiohttp.ClientError, OSError):
                return  # like any end of a watch: the next one goes on from the last version
            if not piece:
                return
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                if line.strip():
                    yield self._event(kind, call, line)

    def _event(self, kind: Kind[T], call: Call, line: bytes) -> WatchEvent[T]:
        raw: _RawEvent = _decoded(_RAW_EVENT, line, call)
        match raw.type:
            case "BOOKMARK":
                bare: Bare = self._decode(kind, "metadata", raw.object, call)
                return WatchEvent(EventType.BOOKMARK, None, bare.metadata.resource_version)
            case "ERROR":
                status = status_of(500, bytes(raw.object))
                status = msgspec.structs.replace(status, code=_code_in(bytes(raw.object)) or 500)
                raise error_of(status, call=str(call), permission=call.permission)
            case _:
                obj: T = self._decode(kind, "one", raw.object, call)
                return WatchEvent(EventType(raw.type), obj, metadata_of(obj).resource_version)

    def _decode(self, kind: Kind[Any], how: str, data: bytes | msgspec.Raw, call: Call) -> Any:
        decoder = self._decoders.get((kind, how))
        if decoder is None:
            types: dict[str, Any] = {"one": kind.type, "page": Page[kind.type], "bare": Page[Bare], "metadata": Bare}  # type: ignore[name-defined]
            decoder = self._decoders[kind, how] = msgspec.json.Decoder(types[how])
        return _decoded(decoder, data, call)


def _selecting(query: Mapping[str, str], labels: str | None, fields: str | None) -> dict[str, str]:
    given = {"labelSelector": labels, "fieldSelector": fields}
    return {**query, **{key: value for key, value in given.items() if value}}


def _decoded(decoder: msgspec.json.Decoder[Any], data: bytes | msgspec.Raw, call: Call) -> Any:
    try:
        return decoder.decode(data)
    except msgspec.MsgspecError as exc:
        raise Unavailable(f"{call}: the answer is not what we know: {exc}", outcome_unknown=not call.is_read) from exc


class _CodeOnly(msgspec.Struct, frozen=True):
    code: int = 0


def _code_in(data: bytes) -> int:
    try:
        return msgspec.json.decode(data, type=_CodeOnly).code
    except msgspec.MsgspecError:
        return 0
