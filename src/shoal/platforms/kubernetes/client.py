"""Calls to one API server: typed, bounded, each with a time-out, errors translated once.

    client = Client(access)
    pod = await client.get(PODS, "mnist-worker-0", namespace="train")
    pods = await client.list(PODS, namespace="train", labels="job=mnist")
    await client.create(SECRETS, Secret(metadata=ObjectMeta(name="token", namespace="train"), data={"token": b"..."}))
    await client.apply(PODS, {"metadata": {...}, "spec": {...}}, manager="elastic-operator")
    await client.close()

Bodies are Structs of `objects` or plain JSON; answers are the kind's type. The namespace of a body is that in its
metadata. Nothing is cached here (`informer` does that), but whoever caches is told of every write through
`on_write`, so that a cache never shows an object older than one this process wrote.

What is retried here and what is not:

- 429 always, as long as the server asks to wait and the time-out allows: it did nothing yet.
- 401 once, when the credentials have something newer.
- Reads, when the connection broke or the server said 5xx. Never writes: who wrote knows what a repetition means.

Every write goes through one door, `_write`, where a fence may refuse it: see `fenced`.
"""

import asyncio
import random
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from copy import copy
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Generic, Literal, TypeVar

import aiohttp
import msgspec

from shoal.platforms.kubernetes.access import Access
from shoal.platforms.kubernetes.errors import (
    ApiError,
    Gone,
    Unavailable,
    error_of,
    status_of,
)
from shoal.platforms.kubernetes.objects import (
    PODS,
    SERVICE_ACCOUNTS,
    Bare,
    Json,
    Kind,
    ObjectMeta,
    Page,
    Scale,
    TokenRequest,
    metadata_of,
)
from shoal.platforms.kubernetes.transport import JSON, Call, ClientSettings, Observe, Transport

T = TypeVar("T")
U = TypeVar("U")

METADATA_ONLY = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json"


class Propagation(StrEnum):
    """What becomes of the objects that a deleted one owns."""

    BACKGROUND = "Background"
    FOREGROUND = "Foreground"
    ORPHAN = "Orphan"


@dataclass(frozen=True, slots=True)
class Merge:
    """A JSON merge patch (RFC 7386): null removes, lists are replaced."""

    body: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Strategic:
    """Like `Merge`, but lists of built-in kinds are merged by their keys (containers by name). Not for custom kinds."""

    body: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class JsonPatch:
    """A JSON patch (RFC 6902). A `test` operation makes it conditional; a failed one is `Invalid`."""

    operations: Sequence[Mapping[str, Any]]


Patch = Merge | Strategic | JsonPatch


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


@dataclass(frozen=True, slots=True)
class Vanished:
    """What `on_write` says of an object that a deletion of ours removed at once."""

    name: str
    namespace: str
    uid: str


Written = Callable[[Any], None]
"""Called with the object that a write returned, or with `Vanished`."""


class _RawEvent(msgspec.Struct, frozen=True):
    type: str
    object: msgspec.Raw


_RAW_EVENT = msgspec.json.Decoder(_RawEvent)
_encode = msgspec.json.Encoder(order=None).encode


class Client:
    """One connection pool to one API server. Made and used in a running event loop."""

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
        self._written: dict[Kind[Any], list[Written]] = {}
        self._fence: Callable[[], None] = _unfenced

    async def close(self) -> None:
        await self._transport.close()

    async def __aenter__(self) -> "Client":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def fenced(self, check: Callable[[], None]) -> "Client":
        """The same client (same pool, slots, caches told), but `check` is called before each write and may raise."""
        other = copy(self)
        other._fence = check
        return other

    def apart(self, *, calls: int) -> "Client":
        """The same client (same pool, caches told), with room for so many calls at once that wait behind nobody else's:
        for what must not be late however much there is to do."""
        other = copy(self)
        other._transport = self._transport.apart(calls)
        return other

    def on_write(self, kind: Kind[T], told: Written) -> Callable[[], None]:
        """Have `told` called with each object of that kind that a write returns. Returns what ends it."""
        listeners = self._written.setdefault(kind, [])
        listeners.append(told)
        return lambda: listeners.remove(told)

    # Reading ----------------------------------------------------------------------------------------------

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

    # Writing ----------------------------------------------------------------------------------------------

    async def create(
        self, kind: Kind[T], obj: T | Mapping[str, Any], *, dry_run: bool = False, timeout: float | None = None
    ) -> T:
        """Raises `AlreadyExists`."""
        meta = metadata_of(obj)
        call = Call(
            verb="create",
            kind=kind,
            method="POST",
            namespace=meta.namespace,
            about=meta.name or None,
            query={"dryRun": "All"} if dry_run else {},
            body=_body(kind, obj),
            seconds=timeout,
        )
        written: T = await self._write(call, told=not dry_run)
        return written

    async def replace(
        self,
        kind: Kind[T],
        obj: T | Mapping[str, Any],
        *,
        subresource: Literal["status"] | None = None,
        timeout: float | None = None,
    ) -> T:
        """Put the object in place of what is there. With a resource version in it: `Conflict` when that is not the
        newest. Only plain JSON or a kind that is `whole`: others would lose the fields we do not know."""
        if not kind.whole and not isinstance(obj, Mapping):
            raise TypeError(f"{kind.kind} holds part of the object only: patch or apply it, a replacement loses fields")
        meta = metadata_of(obj)
        call = Call(
            verb="update",
            kind=kind,
            method="PUT",
            namespace=meta.namespace,
            name=meta.name,
            subresource=subresource,
            body=_body(kind, obj),
            seconds=timeout,
        )
        written: T = await self._write(call)
        return written

    async def patch(
        self,
        kind: Kind[T],
        name: str,
        patch: Patch,
        *,
        namespace: str | None = None,
        subresource: Literal["status", "resize"] | None = None,
        timeout: float | None = None,
    ) -> T:
        """To make a patch conditional, put `metadata.resourceVersion` (or `uid`) in it: `Conflict` when it differs."""
        match patch:
            case Merge(body):
                content, data = "application/merge-patch+json", _encode(body)
            case Strategic(body):
                content, data = "application/strategic-merge-patch+json", _encode(body)
            case JsonPatch(operations):
                content, data = "application/json-patch+json", _encode(operations)
        call = Call(
            verb="patch",
            kind=kind,
            method="PATCH",
            namespace=namespace,
            name=name,
            subresource=subresource,
            body=data,
            content=content,
            seconds=timeout,
        )
        written: T = await self._write(call)
        return written

    async def apply(
        self,
        kind: Kind[T],
        obj: T | Mapping[str, Any],
        *,
        manager: str,
        force: bool = True,
        subresource: Literal["status"] | None = None,
        dry_run: bool = False,
        timeout: float | None = None,
    ) -> T:
        """Server-side apply: the fields given become so and are the manager's; those it gave before and does not give
        now are removed. Creates what is not there. Without `force`, `Conflict` when another manager has a field."""
        meta = metadata_of(obj)
        query = {"fieldManager": manager, "force": "true" if force else "false"}
        if dry_run:
            query["dryRun"] = "All"
        call = Call(
            verb="patch",
            kind=kind,
            method="PATCH",
            namespace=meta.namespace,
            name=meta.name,
            subresource=subresource,
            query=query,
            body=_body(kind, obj),
            content="application/apply-patch+yaml",
            seconds=timeout,
        )
        written: T = await self._write(call, told=not dry_run)
        return written

    async def delete(
        self,
        kind: Kind[T],
        name: str,
        *,
        namespace: str | None = None,
        uid: str | None = None,
        version: str | None = None,
        propagation: Propagation = Propagation.BACKGROUND,
        grace_seconds: int | None = None,
        timeout: float | None = None,
    ) -> T | None:
        """Returns the object when it is still there, being deleted, and None when it is gone. `uid` and `version` make
        sure that what is deleted is what was meant: `Conflict` otherwise. Raises `NotFound`."""
        options: Json = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": propagation.value}
        if uid is not None or version is not None:
            given = {"uid": uid, "resourceVersion": version}
            options["preconditions"] = {key: value for key, value in given.items() if value is not None}
        if grace_seconds is not None:
            options["gracePeriodSeconds"] = grace_seconds
        call = Call(
            verb="delete",
            kind=kind,
            method="DELETE",
            namespace=namespace,
            name=name,
            body=_encode(options),
            seconds=timeout,
        )
        self._fence()
        data = await self._transport.send(call)
        if _is_status(data):
            status = status_of(200, data)
            self._tell(kind, Vanished(name, namespace or "", status.details.uid if status.details else ""))
            return None
        left: T = self._decode(kind, "one", data, call)
        if _is_gone(metadata_of(left)):
            self._tell(kind, Vanished(name, namespace or "", metadata_of(left).uid))
            return None
        self._tell(kind, left)
        return left

    async def evict(self, name: str, *, namespace: str, uid: str | None = None, timeout: float | None = None) -> None:
        """Ask for a Pod's end in the way that disruption budgets are asked. `TooManyRequests`: a budget forbids it.
        `uid` makes sure that it is the one that was meant: `Conflict` otherwise."""
        body: Json = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": namespace}}
        if uid is not None:
            body["deleteOptions"] = {"preconditions": {"uid": uid}}
        await self._subresource(PODS, name, namespace, "eviction", "POST", _encode(body), timeout)

    async def scale(self, kind: Kind[Any], name: str, *, namespace: str, timeout: float | None = None) -> Scale:
        call = Call(
            verb="get", kind=kind, method="GET", namespace=namespace, name=name, subresource="scale", seconds=timeout
        )
        return msgspec.json.decode(await self._transport.send(call), type=Scale)

    async def set_scale(
        self, kind: Kind[Any], name: str, replicas: int, *, namespace: str, timeout: float | None = None
    ) -> Scale:
        body = _encode({"spec": {"replicas": replicas}})
        data = await self._subresource(kind, name, namespace, "scale", "PATCH", body, timeout)
        return msgspec.json.decode(data, type=Scale)

    async def request_token(
        self, account: str, request: TokenRequest, *, namespace: str, timeout: float | None = None
    ) -> TokenRequest:
        """A token for a service account, valid for as long as asked."""
        wanted = Kind(group="authentication.k8s.io", version="v1", kind="TokenRequest", plural="", type=TokenRequest)
        data = await self._subresource(
            SERVICE_ACCOUNTS, account, namespace, "token", "POST", _body(wanted, request), timeout
        )
        return msgspec.json.decode(data, type=TokenRequest)

    # The doors --------------------------------------------------------------------------------------------

    async def _write(self, call: Call, *, told: bool = True) -> Any:
        self._fence()
        data = await self._transport.send(call)
        obj = self._decode(call.kind, "one", data, call)
        if told:
            self._tell(call.kind, obj)
        return obj

    async def _subresource(
        self, kind: Kind[Any], name: str, namespace: str, which: str, method: str, body: bytes, timeout: float | None
    ) -> bytes:
        verb, content = ("create", JSON) if method == "POST" else ("patch", "application/merge-patch+json")
        call = Call(
            verb=verb,
            kind=kind,
            method=method,
            namespace=namespace,
            name=name,
            subresource=which,
            body=body,
            content=content,
            seconds=timeout,
        )
        self._fence()
        return await self._transport.send(call)

    def _tell(self, kind: Kind[Any], what: Any) -> None:
        for told in self._written.get(kind, ()):
            told(what)

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


# Small translations ------------------------------------------------------------------------------------------------


def _body(kind: Kind[Any], obj: Any) -> bytes:
    """The object as JSON, saying what it is."""
    named = {"apiVersion": kind.api_version, "kind": kind.kind}
    if isinstance(obj, Mapping):
        return _encode({**named, **obj})
    if "apiVersion" in getattr(obj, "__struct_encode_fields__", ()):
        return _encode({**msgspec.to_builtins(obj), **named})
    return _encode(named)[:-1] + b"," + _encode(obj)[1:]


def _selecting(query: Mapping[str, str], labels: str | None, fields: str | None) -> dict[str, str]:
    given = {"labelSelector": labels, "fieldSelector": fields}
    return {**query, **{key: value for key, value in given.items() if value}}


def _decoded(decoder: msgspec.json.Decoder[Any], data: bytes | msgspec.Raw, call: Call) -> Any:
    try:
        return decoder.decode(data)
    except msgspec.MsgspecError as exc:
        raise Unavailable(f"{call}: the answer is not what we know: {exc}", outcome_unknown=not call.is_read) from exc


def _is_gone(meta: ObjectMeta) -> bool:
    """Whether what a deletion returned is the object as it was at its end, rather than one that is still ending."""
    return not meta.finalizers and (meta.deletion_timestamp is None or meta.deletion_grace_period_seconds == 0)


class _KindOnly(msgspec.Struct, frozen=True):
    kind: str = ""
    code: int = 0


def _is_status(data: bytes) -> bool:
    return msgspec.json.decode(data, type=_KindOnly).kind == "Status"


def _code_in(data: bytes) -> int:
    try:
        return msgspec.json.decode(data, type=_KindOnly).code
    except msgspec.MsgspecError:
        return 0


def _unfenced() -> None:
    return None
