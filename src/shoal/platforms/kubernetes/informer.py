"""A live copy of all objects of one kind (in a namespace, with a selector), and a word for each change.

    pods = Informer(client, PODS, labels="app=shoal", indexers={"owner": by_owner})
    pods.on_change(lambda change: queue.add(owner_of(change.object)))
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(pods.run())
        await pods.synced()
        pods.get("train", "mnist-worker-0"), pods.found("owner", uid), pods.all()

It lists in pages, then watches from the list's version, reconnecting from the last version heard. It lists again when
the server has forgotten that version (410) and, in case something between us and the server lost an event, once in a
while; objects that a list lacks are reported as removed. A later list is one of versions, and what is known in its
version is not read again: 10,000 Pods would hold up the event loop for seconds. What the cache holds is never older
than what this process wrote through the same client: see `cache`. A silent peer is noticed by the client's idle
time-out.

Changes wake people; they say nothing that the cache does not. Handlers run in the event loop and must not block.

Trouble does not end `run`: the cache stays as it is, grows stale (`staleness`) and says why (`trouble`). Only a bug
of ours ends it.
"""

import asyncio
import logging
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from shoal.platforms.kubernetes.backoff import Backoff
from shoal.platforms.kubernetes.cache import Cache, Change, Indexer, is_newer, key_of
from shoal.platforms.kubernetes.client import Client, Vanished
from shoal.platforms.kubernetes.errors import ApiError, Gone, NotFound
from shoal.platforms.kubernetes.objects import Kind, ObjectMeta, metadata_of
from shoal.platforms.kubernetes.reads import EventType, Listing, WatchEvent
from shoal.platforms.kubernetes.selectors import parse_selector, selects

log = logging.getLogger("shoal.platforms.kubernetes")

T = TypeVar("T")
Handler = Callable[[Change[T]], None]

_FEW = 100
"""So many objects are fetched one by one; for more, a whole list is the smaller work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InformerSettings:
    relist_seconds: float = 600.0
    """How long a lost event can go unnoticed."""
    short_watch_seconds: float = 1.0
    """A watch that ends sooner and told nothing counts as a failure, so that we do not reconnect in a loop."""
    backoff: Backoff = field(default_factory=Backoff)


class Informer(Generic[T]):
    def __init__(
        self,
        client: Client,
        kind: Kind[T],
        *,
        namespace: str | None = None,
        labels: str | None = None,
        fields: str | None = None,
        indexers: Mapping[str, Indexer[T]] | None = None,
        settings: InformerSettings | None = None,
        rng: random.Random | None = None,
    ) -> None:
        """`namespace` None: all of them."""
        self.kind = kind
        self.client = client
        self._namespace = namespace
        self._labels = labels
        self._requirements = parse_selector(labels)
        self._fields = fields
        self._settings = settings or InformerSettings()
        self._rng = rng or random.Random()
        self._cache: Cache[T] = Cache(indexers)
        self._handlers: list[Handler[T]] = []
        self._hearing: list[Callable[[bool], None]] = []
        self._synced = asyncio.Event()
        self._version = ""
        self._heard_at: float | None = None
        self._listed_at = 0.0
        self.trouble: str | None = None
        """Why the cache is not kept up to date at the moment; None: it is."""
        self.lists = 0
        """How many complete lists there were; for metrics."""

    # Reading ----------------------------------------------------------------------------------------------

    def get(self, namespace: str, name: str) -> T | None:
        """The object, or None. Kinds without a namespace have an empty one."""
        return self._cache.get(namespace, name)

    def found(self, index: str, value: str) -> list[T]:
        return self._cache.found(index, value)

    def all(self) -> list[T]:
        return self._cache.all()

    def __len__(self) -> int:
        return len(self._cache)

    @property
    def version(self) -> str:
        """Up to which version nothing was missed."""
        return self._version

    @property
    def has_synced(self) -> bool:
        return self._synced.is_set()

    async def synced(self) -> None:
        """Wait for the first complete list. Before it, what is not in the cache may well exist."""
        await self._synced.wait()

    def staleness(self) -> float | None:
        """Seconds since the server was last heard, by an event, a bookmark or a list; None: never."""
        if self._heard_at is None:
            return None
        return asyncio.get_running_loop().time() - self._heard_at

    def on_change(self, handler: Handler[T]) -> None:
        self._handlers.append(handler)

    def on_hearing(self, handler: Callable[[bool], None]) -> None:
        """Tell whether the server is heard: `True` whenever it is, `False` whenever it cannot be."""
        self._hearing.append(handler)

    async def refresh(self, namespace: str, name: str) -> T | None:
        """Ask the server for one object now, and keep the answer: for who has reason to doubt the cache, for instance
        because a create met `AlreadyExists`."""
        known = self._cache.get(namespace, name)
        try:
            self._saw(await self.client.get(self.kind, name, namespace=namespace or None))
        except NotFound:
            if known is not None:
                self._tell(self._cache.saw_end((namespace, name), metadata_of(known).uid))
        return self._cache.get(namespace, name)

    # Running ----------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Keep the cache up to date until cancelled."""
        end = self.client.on_write(self.kind, self._wrote)
        failures = 0
        try:
            while True:
                try:
                    await self._list()
                    await self._watch_until_relist()
                    failures = 0
                except Gone as exc:
                    failures += 1
                    log.info("%s: the version is gone, listing again: %s", self.kind.plural, exc)
                except ApiError as exc:
                    failures += 1
                    self._in_trouble(exc)
                await self._pause(failures)
        finally:
            end()

    async def _list(self) -> None:
        listing = await (self._compared() if self.has_synced else self._whole())
        for change in self._cache.saw_all(listing.items, listing.version):
            self._tell(change)
        self._version = listing.version
        self._listed_at = asyncio.get_running_loop().time()
        self.lists += 1
        self._heard()
        self._synced.set()

    async def _whole(self) -> Listing[T]:
        return await self.client.list(self.kind, namespace=self._namespace, labels=self._labels, fields=self._fields)

    async def _compared(self) -> Listing[T]:
        """All that is there: from the cache, as far as that has it in the version that the server has."""
        there = await self.client.list_metadata(
            self.kind, namespace=self._namespace, labels=self._labels, fields=self._fields
        )
        items: list[T] = []
        unknown: list[ObjectMeta] = []
        for meta in (each.metadata for each in there.items):
            known = self._cache.get(meta.namespace, meta.name)
            if known is None or is_newer(meta, metadata_of(known)):
                unknown.append(meta)
            else:
                items.append(known)
        if len(unknown) > _FEW:
            return await self._whole()
        for meta in unknown:
            items += await self._one(meta)
        return Listing(tuple(items), there.version)

    async def _one(self, meta: ObjectMeta) -> tuple[T, ...]:
        """The object, unless it is gone; by a list, for whoever may list need not be allowed to get."""
        fields = ",".join(filter(None, (self._fields, f"metadata.name={meta.name}")))
        found = await self.client.list(self.kind, namespace=meta.namespace or None, labels=self._labels, fields=fields)
        return found.items

    async def _watch_until_relist(self) -> None:
        loop = asyncio.get_running_loop()
        due = self._listed_at + self._settings.relist_seconds * (0.75 + 0.5 * self._rng.random())
        failures = 0
        while loop.time() < due:
            began = loop.time()
            try:
                async with asyncio.timeout_at(due):
                    told = await self._watch()
            except TimeoutError:
                return
            except Gone:
                raise
            except ApiError as exc:
                failures += 1
                self._in_trouble(exc)
            else:
                is_short = not told and loop.time() - began < self._settings.short_watch_seconds
                failures = failures + 1 if is_short else 0
            await self._pause(failures)

    async def _watch(self) -> int:
        """One watch, to its end. Returns how much it told."""
        told = 0
        async with self.client.watch(
            self.kind, since=self._version, namespace=self._namespace, labels=self._labels, fields=self._fields
        ) as events:
            self._heard()
            async for event in events:
                self._happened(event)
                told += 1
        return told

    def _happened(self, event: WatchEvent[T]) -> None:
        self._heard()
        match event.type:
            case EventType.ADDED | EventType.MODIFIED:
                assert event.object is not None
                self._tell(self._cache.saw(event.object))
            case EventType.DELETED:
                assert event.object is not None
                uid = metadata_of(event.object).uid
                self._tell(self._cache.saw_end(key_of(event.object), uid, event.version))
            case EventType.BOOKMARK:
                pass
        self._version = _later(self._version, event.version)

    def _wrote(self, what: Any) -> None:
        """This process wrote: what it was answered is newer than what any watch said so far."""
        if isinstance(what, Vanished):
            self._tell(self._cache.saw_end((what.namespace, what.name), what.uid))
        else:
            self._saw(what)

    def _saw(self, obj: T) -> None:
        meta = metadata_of(obj)
        if self._is_ours(obj):
            self._tell(self._cache.saw(obj))
        elif self._cache.get(meta.namespace, meta.name) is not None:  # the write took it out of the selector
            self._tell(self._cache.saw_end(key_of(obj), meta.uid, meta.resource_version))

    def _is_ours(self, obj: T) -> bool:
        """Whether the list and the watch would show it. A field selector we leave to the server: then only objects
        that are known already are taken."""
        meta = metadata_of(obj)
        if self._namespace is not None and meta.namespace != self._namespace:
            return False
        if self._fields and self._cache.get(meta.namespace, meta.name) is None:
            return False
        return selects(self._requirements, meta.labels)

    def _tell(self, change: Change[T] | None) -> None:
        if change is None:
            return
        for handler in self._handlers:
            handler(change)

    def _heard(self) -> None:
        self._heard_at = asyncio.get_running_loop().time()
        self.trouble = None
        for told in self._hearing:
            told(True)

    def _in_trouble(self, exc: ApiError) -> None:
        if self.trouble != str(exc):
            log.warning("%s are not up to date: %s", self.kind.plural, exc)
        self.trouble = str(exc)
        for told in self._hearing:
            told(False)

    async def _pause(self, failures: int) -> None:
        await asyncio.sleep(self._settings.backoff.seconds(failures, self._rng.random()))


class Caches(ABC):
    """Several informers as one: what reads more than one kind. Before `synced` nothing may be read."""

    @property
    @abstractmethod
    def informers(self) -> Sequence[Informer[Any]]: ...

    @property
    def indispensable(self) -> Sequence[Informer[Any]]:
        """Those without which nothing can be said."""
        return self.informers

    async def run(self) -> None:
        """Keep the caches up to date until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for informer in self.informers:
                tasks.create_task(informer.run())

    async def synced(self) -> None:
        for informer in self.indispensable:
            await informer.synced()

    @property
    def has_synced(self) -> bool:
        return all(informer.has_synced for informer in self.indispensable)


def _later(one: str, other: str) -> str:
    """The version to go on from: never back, whatever order events came in."""
    if one.isdecimal() and other.isdecimal():
        return one if int(one) >= int(other) else other
    return other
