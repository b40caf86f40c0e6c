"""What an informer knows: the newest state of each object it was told of, and indexes over it.

No clock, no network: values in, changes out. Three sources tell the cache of objects, and none of them alone is right:

- a **list** is complete, but as of its version;
- a **watch** event is newer than the list, but may come twice, late, or (through a bad proxy) not at all;
- a **write** of ours returns what is newer than either, and its watch event comes later.

So every object is judged by itself: the higher resource version wins, whoever brought it (Kubernetes promises from
1.35 on that versions of one kind compare as numbers, and etcd has always made it so). The same holds for ends: an
object that was seen to go, because it was deleted or because a selector no longer admits it, comes back only in a
version after that end. The last ends are remembered for it, so that a late word of a deleted object wakes nothing up.

A list decides about what it does not hold: an object older than the list is gone, one newer was written since.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from shoal.platforms.kubernetes.objects import ObjectMeta, metadata_of

T = TypeVar("T")

Key = tuple[str, str]
"""Namespace (empty for kinds without) and name."""
Indexer = Callable[[T], Iterable[str]]
"""The values under which an object is found in an index."""


@dataclass(frozen=True, slots=True)
class Added(Generic[T]):
    object: T


@dataclass(frozen=True, slots=True)
class Updated(Generic[T]):
    before: T
    object: T


@dataclass(frozen=True, slots=True)
class Removed(Generic[T]):
    object: T
    """As it was last known."""


Change = Added[T] | Updated[T] | Removed[T]


def key_of(obj: object) -> Key:
    meta = metadata_of(obj)
    return meta.namespace, meta.name


def is_newer(one: ObjectMeta, other: ObjectMeta) -> bool:
    """Whether the first is a later state of an object than the second.

    Versions that are no numbers (a server that is not the usual one) say nothing about order; then the generation,
    which counts changes of the spec, decides, and in doubt what was heard last is taken for newer.
    """
    if one.resource_version == other.resource_version and one.uid == other.uid:
        return False
    if one.resource_version.isdecimal() and other.resource_version.isdecimal():
        return int(one.resource_version) > int(other.resource_version)
    if one.uid == other.uid and one.generation is not None and other.generation is not None:
        return one.generation >= other.generation
    return True


def is_after(meta: ObjectMeta, version: str) -> bool:
    """Whether an object was written after that version; False when nobody can tell."""
    return meta.resource_version.isdecimal() and version.isdecimal() and int(meta.resource_version) > int(version)


FOR_EVER = ""
"""The version of an end after which nothing comes: we know that it was a deletion, but not at which version."""


def by_owner(obj: object) -> Iterable[str]:
    """The indexer of owners' uids."""
    return [owner.uid for owner in metadata_of(obj).owner_references]


def by_label(label: str) -> Callable[[object], Iterable[str]]:
    """The indexer of one label's value."""

    def values(obj: object) -> Iterable[str]:
        value = metadata_of(obj).labels.get(label)
        return [] if value is None else [value]

    return values


class Cache(Generic[T]):
    """Owned by one informer; everybody else reads."""

    def __init__(self, indexers: Mapping[str, Indexer[T]] | None = None, *, remembered: int = 4096) -> None:
        self._objects: dict[Key, T] = {}
        self._indexers = dict(indexers or {})
        self._indexes: dict[str, dict[str, dict[Key, T]]] = {name: {} for name in self._indexers}
        self._ends: OrderedDict[str, str] = OrderedDict()  # of uids, the version
        self._remembered = remembered

    # Reading ----------------------------------------------------------------------------------------------

    def get(self, namespace: str, name: str) -> T | None:
        return self._objects.get((namespace, name))

    def all(self) -> list[T]:
        return list(self._objects.values())

    def found(self, index: str, value: str) -> list[T]:
        """The objects that an index has under a value."""
        return list(self._indexes[index].get(value, {}).values())

    def __len__(self) -> int:
        return len(self._objects)

    # Being told -------------------------------------------------------------------------------------------

    def saw(self, obj: T) -> Change[T] | None:
        """An object as a watch, a list or a write of ours shows it. None: nothing new."""
        meta = metadata_of(obj)
        if self._has_ended(meta):
            return None
        key = meta.namespace, meta.name
        before = self._objects.get(key)
        if before is None:
            self._put(key, obj)
            return Added(obj)
        known = metadata_of(before)
        if not is_newer(meta, known):
            return None
        if known.uid != meta.uid:
            self._bury(known.uid, FOR_EVER)  # one name, one object: the older one must be gone
        self._put(key, obj)
        return Updated(before, obj)

    def saw_end(self, key: Key, uid: str, version: str = FOR_EVER) -> Change[T] | None:
        """The object of that uid is gone, as of a version: deleted, or out of the selector's sight."""
        if uid:
            self._bury(uid, version)
        before = self._objects.get(key)
        if before is None:
            return None
        known = metadata_of(before)
        if uid and known.uid != uid:
            if not (version.isdecimal() and known.resource_version.isdecimal()) or is_after(known, version):
                return None  # the name is another object's by now
            self._bury(known.uid, FOR_EVER)  # one name, one object: the other one had it later, so this one was gone
        elif version and is_after(known, version):
            return None  # it has come back since
        self._drop(key)
        return Removed(before)

    def saw_all(self, objects: Iterable[T], version: str) -> list[Change[T]]:
        """A complete list as of a version: what it lacks and is not newer is gone."""
        listed: dict[Key, T] = {key_of(obj): obj for obj in objects}
        changes: list[Change[T]] = []
        for key, before in list(self._objects.items()):
            if key not in listed:
                change = self.saw_end(key, metadata_of(before).uid, version)
                if change is not None:
                    changes.append(change)
        for obj in listed.values():
            change = self.saw(obj)
            if change is not None:
                changes.append(change)
        return changes

    # Keeping ----------------------------------------------------------------------------------------------

    def _put(self, key: Key, obj: T) -> None:
        self._drop(key)
        self._objects[key] = obj
        for name, indexer in self._indexers.items():
            for value in indexer(obj):
                self._indexes[name].setdefault(value, {})[key] = obj

    def _drop(self, key: Key) -> None:
        before = self._objects.pop(key, None)
        if before is None:
            return
        for name, indexer in self._indexers.items():
            for value in indexer(before):
                holders = self._indexes[name].get(value)
                if holders is not None:
                    holders.pop(key, None)
                    if not holders:
                        del self._indexes[name][value]

    def _has_ended(self, meta: ObjectMeta) -> bool:
        version = self._ends.get(meta.uid)
        if version is None:
            return False
        return version == FOR_EVER or (version.isdecimal() and not is_after(meta, version))

    def _bury(self, uid: str, version: str) -> None:
        if self._ends.get(uid) != FOR_EVER:
            self._ends[uid] = version
        self._ends.move_to_end(uid)
        if len(self._ends) > self._remembered:
            self._ends.popitem(last=False)
