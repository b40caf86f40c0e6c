"""What the fake API server keeps: objects, versions, history, owners. No network, no clock, no chance.

It behaves like the real one in what controllers stand on, and the contract suite holds both to it:

- one counter of versions for everything; an object that does not change keeps its version;
- optimistic concurrency: an update with an old version, or a deletion with other preconditions, is a 409;
- history since a version, until it is compacted: then 410;
- deletion waits for finalizers, and of a Pod on a host for its grace; what a deleted object owned is collected;
- `status` is written through its own door, and `generation` counts changes of the rest;
- server-side apply with managers, conflicts and removal of what is no longer applied.

What it does not do: admission, schemas, defaults beyond the few that our code reads.
"""

import re
import uuid
from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from shoal.api.quantities import parse_quantity
from shoal.platforms.kubernetes.fake_merge import (
    BadPatch,
    Json,
    Path,
    json_patched,
    merged,
    owned,
    strategically_merged,
    value_at,
    without,
)
from shoal.platforms.kubernetes.objects import Kind
from shoal.platforms.kubernetes.selectors import parse_selector, selects

Key = tuple[str, str]
NAME = re.compile(r"^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$")


FIXED = (
    "name",
    "namespace",
    "uid",
    "resourceVersion",
    "creationTimestamp",
    "generation",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
)
"""What only the server writes in an object's metadata."""
COLLECTOR = ("foregroundDeletion", "orphan")
"""The garbage collector's own finalizers."""


class Refusal(Exception):
    """An answer that is a Status: code, reason, words, details."""

    def __init__(self, code: int, reason: str, message: str, **details: Any) -> None:
        super().__init__(message)
        self.code = code
        self.body = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": message,
            "reason": reason,
            "code": code,
            **({"details": details} if details else {}),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A kind that the server serves."""

    kind: Kind[Any]
    subresources: frozenset[str] = frozenset()
    is_custom: bool = False
    scale: tuple[str, str] | None = None
    """The paths of replicas in spec and status, dotted."""
    validate: Callable[[Json], Iterable[tuple[str, str]]] | None = None
    """What is wrong with an object: field and message."""
    categories: tuple[str, ...] = ()

    @property
    def has_status(self) -> bool:
        return "status" in self.subresources


@dataclass(frozen=True, slots=True)
class Happened:
    """One entry of the history."""

    version: int
    type: str
    object: Json
    before: Json | None


@dataclass(slots=True)
class _Shelf:
    served: Served
    objects: dict[Key, Json] = field(default_factory=dict)
    history: list[Happened] = field(default_factory=list)


class Store:
    def __init__(self, now: Callable[[], datetime]) -> None:
        self._now = now
        self.version = 1000
        self.oldest = self.version
        """Versions before it are compacted away."""
        self._shelves: dict[tuple[str, str], _Shelf] = {}
        self._managers: dict[str, dict[tuple[str, str], frozenset[Path]]] = {}
        self._dependents: dict[str, set[tuple[tuple[str, str], Key]]] = {}
        self._alive: set[str] = set()
        self.changed: Callable[[], None] = lambda: None

    # What is served ---------------------------------------------------------------------------------------

    def serve(self, served: Served) -> None:
        self._shelves.setdefault((served.kind.group, served.kind.plural), _Shelf(served))

    def served(self) -> list[Served]:
        return [shelf.served for shelf in self._shelves.values()]

    def shelf(self, group: str, version: str, plural: str) -> _Shelf:
        shelf = self._shelves.get((group, plural))
        if shelf is None or shelf.served.kind.version != version:
            raise Refusal(404, "NotFound", "the server could not find the requested resource")
        return shelf

    # Reading ----------------------------------------------------------------------------------------------

    def get(self, shelf: _Shelf, key: Key) -> Json:
        found = shelf.objects.get(key)
        if found is None:
            raise _not_found(shelf.served, key[1])
        return found

    def listed(self, shelf: _Shelf, namespace: str | None, labels: str | None, fields: str | None) -> list[Json]:
        admits = admission(namespace, labels, fields)
        return [obj for _, obj in sorted(shelf.objects.items()) if admits(obj)]

    def since(self, shelf: _Shelf, version: int) -> list[Happened]:
        """What happened after a version. Raises 410 when that is compacted away."""
        if version < self.oldest:
            raise Refusal(410, "Expired", f"too old resource version: {version} ({self.oldest})")
        low, high = 0, len(shelf.history)
        while low < high:
            middle = (low + high) // 2
            low, high = (middle + 1, high) if shelf.history[middle].version <= version else (low, middle)
        return shelf.history[low:]

    def compact(self) -> None:
        """Forget the history up to now."""
        self.oldest = self.version
        for shelf in self._shelves.values():
            shelf.history.clear()

    # Writing ----------------------------------------------------------------------------------------------

    def create(self, shelf: _Shelf, namespace: str, body: Json, *, dry_run: bool = False) -> Json:
        served = shelf.served
        obj = deepcopy(body)
        meta = obj.setdefault("metadata", {})
        self._check_place(served, namespace, meta)
        if not meta.get("name") and meta.get("generateName"):
            meta["name"] = f"{meta['generateName']}{self.version:05x}"
        key = (namespace, meta.get("name", ""))
        if key in shelf.objects:
            raise Refusal(
                409,
                "AlreadyExists",
                f'{served.kind.plural} "{key[1]}" already exists',
                name=key[1],
                kind=served.kind.plural,
                group=served.kind.group,
            )
        obj["apiVersion"], obj["kind"] = served.kind.api_version, served.kind.kind
        meta.pop("resourceVersion", None)
        if namespace:
            meta["namespace"] = namespace
        if served.has_status:
            obj.pop("status", None)
            meta["generation"] = 1
        _default(served.kind.kind, obj)
        self._validate(served, obj)
        meta["creationTimestamp"] = _text(self._now())
        meta["uid"] = str(uuid.UUID(int=(0xFA << 120) | (self.version + 1)))
        if dry_run:
            return obj
        self._alive.add(meta["uid"])
        self._put(shelf, key, obj, "ADDED")
        self._collect_orphan(shelf, key, shelf.objects[key])
        return shelf.objects.get(key, obj)

    def update(self, shelf: _Shelf, key: Key, body: Json, subresource: str | None, *, dry_run: bool = False) -> Json:
        before = self.get(shelf, key)
        served, meta = shelf.served, body.get("metadata", {})
        if served.is_custom and not meta.get("resourceVersion"):
            raise _invalid(served, key[1], [("metadata.resourceVersion", "must be specified for an update")])
        return self._changed(shelf, key, before, deepcopy(body), subresource, dry_run=dry_run)

    def patch(self, shelf: _Shelf, key: Key, content: str, patch: Any, subresource: str | None) -> Json:
        before = self.get(shelf, key)
        try:
            if content == "application/json-patch+json":
                after = json_patched(before, patch)
            elif content == "application/strategic-merge-patch+json":
                if shelf.served.is_custom:
                    raise Refusal(415, "UnsupportedMediaType", "custom resources take no strategic merge patch")
                after = strategically_merged(before, patch)
            else:
                after = merged(before, patch)
        except BadPatch as exc:
            raise Refusal(422, "Invalid", f"the server rejected our request due to an error in it: {exc}") from exc
        return self._changed(shelf, key, before, after, subresource)

    def apply(
        self, shelf: _Shelf, key: Key, body: Json, manager: str, subresource: str | None, *, force: bool, dry_run: bool
    ) -> tuple[Json, bool]:
        """Returns the object and whether it was made."""
        claims = owned(body)
        if key not in shelf.objects:
            if subresource is not None:
                raise _not_found(shelf.served, key[1])
            if body.get("metadata", {}).get("uid"):
                raise _conflict(shelf.served, key[1], "uid mismatch: the object is not there")
            made = self.create(shelf, key[0], body, dry_run=dry_run)
            self._managers.setdefault(made["metadata"]["uid"], {})[manager, ""] = frozenset(claims)
            return made, True
        before = shelf.objects[key]
        claims = {path: value for path, value in claims.items() if (path[0] == "status") == (subresource == "status")}
        managers = self._managers.setdefault(before["metadata"]["uid"], {})
        mine = (manager, subresource or "")
        others = {who: paths for who, paths in managers.items() if who != mine}
        disputed = {
            path: who[0]
            for who, paths in others.items()
            for path in paths & claims.keys()
            if value_at(before, path) != claims[path]
        }
        if disputed and not force:
            raise _disputed(shelf.served, key[1], disputed)
        kept = frozenset().union(*others.values()) if others else frozenset()
        gone = [path for path in managers.get(mine, frozenset()) if path not in claims and path not in kept]
        wanted = {name: value for name, value in body.items() if name not in ("apiVersion", "kind")}
        after = strategically_merged(without(before, gone), wanted)
        asked_version = body.get("metadata", {}).get("resourceVersion", "")
        after["metadata"] = {**after["metadata"], "resourceVersion": asked_version}
        result = self._changed(shelf, key, before, after, subresource, dry_run=dry_run)
        if not dry_run:
            for who in others:
                managers[who] = managers[who] - disputed.keys()
            managers[mine] = frozenset(claims)
        return result, False

    def delete(self, shelf: _Shelf, key: Key, options: Mapping[str, Any]) -> tuple[Json, bool]:
        """Returns the object as it is or was, and whether it is gone."""
        before = self.get(shelf, key)
        meta = before["metadata"]
        wanted = options.get("preconditions") or {}
        for name in ("uid", "resourceVersion"):
            if wanted.get(name) and wanted[name] != meta[name]:
                raise _conflict(
                    shelf.served, key[1], f"the {name} in the precondition ({wanted[name]}) does not match {meta[name]}"
                )
        propagation = options.get("propagationPolicy", "Background")
        after = deepcopy(before)
        finalizers = after["metadata"].setdefault("finalizers", [])
        marker = {"Foreground": "foregroundDeletion", "Orphan": "orphan"}.get(propagation)
        if marker and marker not in finalizers and self._dependents.get(meta["uid"]):
            finalizers.append(marker)
        grace = _grace(shelf.served.kind.kind, before, options.get("gracePeriodSeconds"))
        if "deletionTimestamp" not in meta or grace < meta.get("deletionGracePeriodSeconds", 0):
            after["metadata"]["deletionTimestamp"] = _text(self._now() + timedelta(seconds=grace))
            after["metadata"]["deletionGracePeriodSeconds"] = grace
        if not finalizers:
            del after["metadata"]["finalizers"]
        is_namespace = shelf.served.kind.kind == "Namespace"
        if (finalizers or grace or is_namespace) and after != before:
            if is_namespace:
                after["status"] = {"phase": "Terminating"}
            self._put(shelf, key, after, "MODIFIED")
        if is_namespace:
            self._empty(key[1])
        elif marker == "foregroundDeletion":
            self._delete_dependents(meta["uid"])
        elif marker == "orphan":
            self._orphan_dependents(meta["uid"])
        if finalizers or grace or is_namespace:
            after = shelf.objects.get(key, after)
        return self._settled(shelf, key, after)

    # How objects change -----------------------------------------------------------------------------------

    def _changed(
        self, shelf: _Shelf, key: Key, before: Json, after: Json, subresource: str | None, *, dry_run: bool = False
    ) -> Json:
        """The one way an object is changed: checks the version, and that each door changes only what is its own."""
        served = shelf.served
        old, new = before["metadata"], dict(after.get("metadata", {}))
        if new.get("resourceVersion") and new["resourceVersion"] != old["resourceVersion"]:
            raise _conflict(served, key[1], "the object has been modified; please apply your changes to the latest one")
        if new.get("uid") and new["uid"] != old["uid"]:
            raise _invalid(served, key[1], [("metadata.uid", f'Invalid value: "{new["uid"]}": field is immutable')])
        self._check_place(served, key[0], new)
        kept = {name: value for name, value in new.items() if name not in FIXED}
        new = {**kept, **{name: old[name] for name in FIXED if name in old}}
        result = {**after, "apiVersion": before["apiVersion"], "kind": before["kind"], "metadata": new}
        match subresource:
            case "status":
                result = {**before, "status": after.get("status", {}), "metadata": new if not served.is_custom else old}
            case "resize":
                result = {**before, "spec": _resized(before["spec"], after.get("spec", {}))}
                if wrong := list(_beyond_limits(result["spec"])):
                    raise _invalid(served, key[1], wrong)
            case _ if served.has_status:
                result.pop("status", None)
                if "status" in before:
                    result["status"] = before["status"]
        self._validate(served, result)
        if _counted(result) != _counted(before) and "generation" in old:
            result["metadata"] = {**result["metadata"], "generation": old["generation"] + 1}
        if result == before or dry_run:
            return result
        self._put(shelf, key, result, "MODIFIED")
        return self._settled(shelf, key, shelf.objects[key])[0]

    def _settled(self, shelf: _Shelf, key: Key, obj: Json) -> tuple[Json, bool]:
        """Remove an object that is being deleted when nothing holds it any more."""
        if key not in shelf.objects:
            return obj, True
        meta = obj["metadata"]
        is_held = meta.get("finalizers") or meta.get("deletionGracePeriodSeconds")
        is_full = shelf.served.kind.kind == "Namespace" and self._holds_anything(key[1])
        if "deletionTimestamp" not in meta or is_held or is_full:
            return shelf.objects[key], False
        self._remove(shelf, key, obj)
        return obj, True

    def _put(self, shelf: _Shelf, key: Key, obj: Json, type_: str) -> None:
        before = shelf.objects.get(key)
        self.version += 1
        obj = {**obj, "metadata": {**obj["metadata"], "resourceVersion": str(self.version)}}
        shelf.objects[key] = obj
        self._index(shelf, key, before, obj)
        shelf.history.append(Happened(self.version, type_, obj, before))
        self.changed()

    def _remove(self, shelf: _Shelf, key: Key, last: Json) -> None:
        before = shelf.objects.pop(key)
        uid = before["metadata"]["uid"]
        self.version += 1
        obj = {**last, "metadata": {**last["metadata"], "resourceVersion": str(self.version)}}
        self._index(shelf, key, before, None)
        self._alive.discard(uid)
        self._managers.pop(uid, None)
        shelf.history.append(Happened(self.version, "DELETED", obj, before))
        self.changed()
        self._delete_dependents(uid)
        for owner in before["metadata"].get("ownerReferences", []):
            self._owner_may_go(owner["uid"])
        if key[0]:
            self._namespace_may_go(key[0])

    # Owners -----------------------------------------------------------------------------------------------

    def _index(self, shelf: _Shelf, key: Key, before: Json | None, after: Json | None) -> None:
        where = ((shelf.served.kind.group, shelf.served.kind.plural), key)
        for owner in (before or {}).get("metadata", {}).get("ownerReferences", []):
            self._dependents.get(owner["uid"], set()).discard(where)
        for owner in (after or {}).get("metadata", {}).get("ownerReferences", []):
            self._dependents.setdefault(owner["uid"], set()).add(where)

    def _delete_dependents(self, uid: str) -> None:
        for where, key in sorted(self._dependents.get(uid, ())):
            shelf = self._shelves[where]
            obj = shelf.objects.get(key)
            if obj is None or any(
                owner["uid"] in self._alive and owner["uid"] != uid for owner in obj["metadata"]["ownerReferences"]
            ):
                continue
            self.delete(shelf, key, {})

    def _orphan_dependents(self, uid: str) -> None:
        for where, key in sorted(self._dependents.get(uid, ())):
            shelf = self._shelves[where]
            obj = deepcopy(shelf.objects[key])
            obj["metadata"]["ownerReferences"] = [o for o in obj["metadata"]["ownerReferences"] if o["uid"] != uid]
            self._put(shelf, key, obj, "MODIFIED")
        self._owner_may_go(uid)

    def _owner_may_go(self, uid: str) -> None:
        """Take the collector's finalizers off an owner whose dependents are gone."""
        if self._dependents.get(uid):
            return
        for shelf in self._shelves.values():
            for key, obj in list(shelf.objects.items()):
                finalizers = obj["metadata"].get("finalizers", [])
                if obj["metadata"]["uid"] == uid and set(COLLECTOR) & set(finalizers):
                    after = deepcopy(obj)
                    after["metadata"]["finalizers"] = [f for f in finalizers if f not in COLLECTOR]
                    self._put(shelf, key, after, "MODIFIED")
                    self._settled(shelf, key, shelf.objects[key])

    def _collect_orphan(self, shelf: _Shelf, key: Key, obj: Json) -> None:
        """An object made for an owner that is no more is collected, as it would be a moment later."""
        owners = obj["metadata"].get("ownerReferences", [])
        if owners and not any(owner["uid"] in self._alive for owner in owners):
            self.delete(shelf, key, {})

    # Namespaces -------------------------------------------------------------------------------------------

    def _check_place(self, served: Served, namespace: str, meta: Json) -> None:
        if meta.get("namespace") and served.kind.namespaced and meta["namespace"] != namespace:
            raise Refusal(
                400,
                "BadRequest",
                f"the namespace of the provided object does not match the namespace sent on the request "
                f"({meta['namespace']}, {namespace})",
            )
        if not served.kind.namespaced or meta.get("uid"):
            return
        found = self._shelves[("", "namespaces")].objects.get(("", namespace))
        if found is None:
            raise _not_found(self._shelves[("", "namespaces")].served, namespace)
        if "deletionTimestamp" in found["metadata"]:
            raise Refusal(
                403,
                "Forbidden",
                f'{served.kind.plural} "{meta.get("name")}" is forbidden: unable to create new content in namespace '
                f"{namespace} because it is being terminated",
                name=meta.get("name", ""),
                kind=served.kind.plural,
                causes=[{"reason": "NamespaceTerminating", "message": f"namespace {namespace} is being terminated"}],
            )

    def _empty(self, namespace: str) -> None:
        for shelf in self._shelves.values():
            for key in [key for key in shelf.objects if key[0] == namespace]:
                if key in shelf.objects:
                    self.delete(shelf, key, {"gracePeriodSeconds": 0})

    def _holds_anything(self, namespace: str) -> bool:
        return any(key[0] == namespace for shelf in self._shelves.values() for key in shelf.objects)

    def _namespace_may_go(self, namespace: str) -> None:
        shelf = self._shelves[("", "namespaces")]
        obj = shelf.objects.get(("", namespace))
        if obj is not None and "deletionTimestamp" in obj["metadata"]:
            self._settled(shelf, ("", namespace), obj)

    def _validate(self, served: Served, obj: Json) -> None:
        wrong = [*_wrong(served.kind.kind, obj), *(served.validate(obj) if served.validate else ())]
        if wrong:
            raise _invalid(served, obj["metadata"].get("name", ""), wrong)


# Small answers -----------------------------------------------------------------------------------------------------


def admission(namespace: str | None, labels: str | None, fields: str | None) -> Callable[[Json], bool]:
    """Whether a list or a watch shows an object."""
    requirements = parse_selector(labels)
    wanted = [part.partition("=") for part in fields.split(",")] if fields else []

    def admits(obj: Json) -> bool:
        meta = obj["metadata"]
        if namespace and meta.get("namespace") != namespace:
            return False
        if not selects(requirements, meta.get("labels") or {}):
            return False
        for path, _, value in wanted:
            negated = path.endswith("!")
            found = str(value_at(obj, tuple(path.rstrip("!").split("."))) or "")
            if (found == value.lstrip("=")) == negated:
                return False
        return True

    return admits


def _wrong(kind: str, obj: Json) -> list[tuple[str, str]]:
    name = obj["metadata"].get("name", "")
    if not name:
        return [("metadata.name", "Required value: name or generateName is required")]
    if not NAME.match(name):
        return [("metadata.name", f'Invalid value: "{name}": a lowercase RFC 1123 subdomain must consist of ...')]
    if kind != "Pod":
        return []
    containers = (obj.get("spec") or {}).get("containers") or []
    if not containers:
        return [("spec.containers", "Required value")]
    return [(f"spec.containers[{i}].image", "Required value") for i, c in enumerate(containers) if not c.get("image")]


def _default(kind: str, obj: Json) -> None:
    if kind == "Pod":
        spec = obj.setdefault("spec", {})
        spec.setdefault("restartPolicy", "Always")
        spec.setdefault("terminationGracePeriodSeconds", 30)
        spec.setdefault("schedulerName", "default-scheduler")
        obj["status"] = {"phase": "Pending"}
    elif kind == "Namespace":
        obj["status"] = {"phase": "Active"}
    elif kind == "Secret":
        obj.setdefault("type", "Opaque")


def _grace(kind: str, obj: Json, asked: int | None) -> int:
    """Only a Pod that is on a host and not over ends gracefully."""
    is_over = obj.get("status", {}).get("phase") in ("Succeeded", "Failed")
    if kind != "Pod" or is_over or not obj["spec"].get("nodeName"):
        return 0
    return int(obj["spec"].get("terminationGracePeriodSeconds", 30) if asked is None else asked)


def _resized(before: Json, after: Json) -> Json:
    wanted = {c["name"]: c.get("resources", {}) for c in after.get("containers", [])}
    return {**before, "containers": [{**c, "resources": wanted.get(c["name"], {})} for c in before["containers"]]}


def _beyond_limits(spec: Json) -> Iterable[tuple[str, str]]:
    """Which containers request more than they may have, and of what."""
    for number, container in enumerate(spec["containers"]):
        resources = container["resources"]
        limits = resources.get("limits", {})
        for name, amount in resources.get("requests", {}).items():
            if name in limits and parse_quantity(amount) > parse_quantity(limits[name]):
                said = f'Invalid value: "{amount}": must be less than or equal to {name} limit of {limits[name]}'
                yield f"spec.containers[{number}].resources.requests", said


def _counted(obj: Json) -> Json:
    """What a generation counts: everything but metadata and status."""
    return {key: value for key, value in obj.items() if key not in ("metadata", "status")}


def _text(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def _not_found(served: Served, name: str) -> Refusal:
    plural, group = served.kind.plural, served.kind.group
    full = f"{plural}.{group}" if group else plural
    return Refusal(404, "NotFound", f'{full} "{name}" not found', name=name, kind=plural, group=group)


def _conflict(served: Served, name: str, why: str) -> Refusal:
    plural = served.kind.plural
    message = f'Operation cannot be fulfilled on {plural} "{name}": {why}'
    return Refusal(409, "Conflict", message, name=name, kind=plural, group=served.kind.group)


def _disputed(served: Served, name: str, disputed: Mapping[Path, str]) -> Refusal:
    causes = [
        {"reason": "FieldManagerConflict", "message": f'conflict with "{who}"', "field": _dotted(path)}
        for path, who in sorted(disputed.items(), key=str)
    ]
    message = f"Apply failed with {len(causes)} conflict(s)"
    return Refusal(409, "Conflict", message, name=name, kind=served.kind.plural, causes=causes)


def _dotted(path: Path) -> str:
    return "".join(f'[{step[0]}="{step[1]}"]' if isinstance(step, tuple) else f".{step}" for step in path)


def _invalid(served: Served, name: str, wrong: Iterable[tuple[str, str]]) -> Refusal:
    causes = [{"reason": "FieldValueInvalid", "message": message, "field": where} for where, message in wrong]
    told = ", ".join(f"{cause['field']}: {cause['message']}" for cause in causes)
    message = f'{served.kind.kind} "{name}" is invalid: {told}'
    return Refusal(422, "Invalid", message, name=name, kind=served.kind.kind, group=served.kind.group, causes=causes)
