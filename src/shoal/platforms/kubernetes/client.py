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

Reads stand in `reads`. Every write goes through one door, `_write`, where a fence may refuse it: see `fenced`.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal, TypeVar

import msgspec

from shoal.platforms.kubernetes.access import Access
from shoal.platforms.kubernetes.errors import status_of
from shoal.platforms.kubernetes.objects import (
    PODS,
    SERVICE_ACCOUNTS,
    Json,
    Kind,
    ObjectMeta,
    Scale,
    TokenRequest,
    metadata_of,
)
from shoal.platforms.kubernetes.reads import Reads
from shoal.platforms.kubernetes.transport import JSON, Call, ClientSettings, Observe

T = TypeVar("T")
U = TypeVar("U")


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
class Vanished:
    """What `on_write` says of an object that a deletion of ours removed at once."""

    name: str
    namespace: str
    uid: str


Written = Callable[[Any], None]
"""Called with the object that a write returned, or with `Vanished`."""

_encode = msgspec.json.Encoder(order=None).encode


class Client(Reads):
    """One connection pool to one API server. Made and used in a running event loop."""

    def __init__(
        self,
        access: Access,
        settings: ClientSettings | None = None,
        *,
        rng: random.Random | None = None,
        observe: Observe | None = None,
    ) -> None:
        super().__init__(access, settings, rng=rng, observe=observe)
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


# Small translations ------------------------------------------------------------------------------------------------


def _body(kind: Kind[Any], obj: Any) -> bytes:
    """The object as JSON, saying what it is."""
    named = {"apiVersion": kind.api_version, "kind": kind.kind}
    if isinstance(obj, Mapping):
        return _encode({**named, **obj})
    if "apiVersion" in getattr(obj, "__struct_encode_fields__", ()):
        return _encode({**msgspec.to_builtins(obj), **named})
    return _encode(named)[:-1] + b"," + _encode(obj)[1:]


def _is_gone(meta: ObjectMeta) -> bool:
    """Whether what a deletion returned is the object as it was at its end, rather than one that is still ending."""
    return not meta.finalizers and (meta.deletion_timestamp is None or meta.deletion_grace_period_seconds == 0)


class _KindOnly(msgspec.Struct, frozen=True):
    kind: str = ""


def _is_status(data: bytes) -> bool:
    return msgspec.json.decode(data, type=_KindOnly).kind == "Status"


def _unfenced() -> None:
    return None
