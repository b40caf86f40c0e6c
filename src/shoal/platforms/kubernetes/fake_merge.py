"""The four ways to change an object that the fake API server knows: merge, strategic merge, JSON patch, apply.

Pure functions over plain JSON. Which lists are merged by a key is a table here, where the real server has schemas; the
table holds the lists we touch. Server-side apply keeps, per manager, the paths of the leaves it set last; that is all
it takes to know conflicts and to remove what a manager no longer wants.
"""

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Any

Json = dict[str, Any]
Step = str | tuple[str, Any]
"""A field, or the element of a list whose key field has a value."""
Path = tuple[Step, ...]

LIST_KEYS: Mapping[str, Sequence[str]] = {
    "containers": ("name",),
    "initContainers": ("name",),
    "containerStatuses": ("name",),
    "env": ("name",),
    "volumes": ("name",),
    "volumeMounts": ("mountPath",),
    "imagePullSecrets": ("name",),
    "ports": ("containerPort", "port"),
    "conditions": ("type",),
    "ownerReferences": ("uid",),
}


_DELETED = "$deleteFromPrimitiveList/"
CLAIMABLE = ("labels", "annotations", "finalizers", "ownerReferences")
"""What of an object's metadata a manager may have."""


class BadPatch(Exception):
    """A patch that cannot be carried out on this object."""


def merged(target: Any, patch: Any) -> Any:
    """RFC 7386."""
    if not isinstance(patch, dict):
        return deepcopy(patch)
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), value)
    return result


def strategically_merged(target: Any, patch: Any, name: str = "") -> Any:
    """Like `merged`, but lists with a key are merged by it, and single values can be taken out of plain lists."""
    if isinstance(patch, dict):
        result = dict(target) if isinstance(target, dict) else {}
        for key, value in patch.items():
            if value is None:
                result.pop(key, None)
            elif key.startswith(_DELETED):
                _take_out(result, key.removeprefix(_DELETED), value)
            else:
                result[key] = strategically_merged(result.get(key), value, key)
        return result
    key = list_key(name, patch)
    if key is None:
        return deepcopy(patch)
    items = {item.get(key): item for item in (target or [])}
    for item in patch:
        items[item[key]] = strategically_merged(items.get(item[key]), item)
    return list(items.values())


def _take_out(target: Json, field: str, values: Sequence[Any]) -> None:
    left = [each for each in target.pop(field, []) if each not in values]
    if left:
        target[field] = left


def list_key(name: str, value: Any) -> str | None:
    """The field by which the elements of a list are told apart; None: the list is one value."""
    if not isinstance(value, list) or not value or not all(isinstance(item, dict) for item in value):
        return None
    return next((key for key in LIST_KEYS.get(name, ()) if all(key in item for item in value)), None)


def json_patched(target: Any, operations: Sequence[Mapping[str, Any]]) -> Any:
    """RFC 6902."""
    result = deepcopy(target)
    for operation in operations:
        match operation.get("op"):
            case "test":
                if _at(result, operation["path"]) != operation.get("value"):
                    raise BadPatch(f"testing path {operation['path']}: test failed")
            case "add":
                _set(result, operation["path"], deepcopy(operation["value"]), insert=True)
            case "replace":
                _at(result, operation["path"])
                _set(result, operation["path"], deepcopy(operation["value"]), insert=False)
            case "remove":
                _remove(result, operation["path"])
            case other:
                raise BadPatch(f"operation {other!r} is not known here")
    return result


def _pointer(path: str) -> list[str]:
    if not path.startswith("/"):
        raise BadPatch(f"not a JSON pointer: {path!r}")
    return [part.replace("~1", "/").replace("~0", "~") for part in path[1:].split("/")]


def _at(target: Any, path: str) -> Any:
    for part in _pointer(path):
        try:
            target = target[int(part)] if isinstance(target, list) else target[part]
        except (KeyError, IndexError, ValueError, TypeError) as exc:
            raise BadPatch(f"the path {path} does not exist") from exc
    return target


def _parent(target: Any, path: str) -> tuple[Any, str]:
    *way, last = _pointer(path)
    if not way:
        return target, last
    return _at(target, path.rpartition("/")[0]), last


def _set(target: Any, path: str, value: Any, *, insert: bool) -> None:
    parent, last = _parent(target, path)
    try:
        if not isinstance(parent, list):
            parent[last] = value
        elif last == "-":
            parent.append(value)
        elif insert:
            parent.insert(int(last), value)
        else:
            parent[int(last)] = value
    except (IndexError, ValueError, TypeError) as exc:
        raise BadPatch(f"nothing can be put at {path}") from exc


def _remove(target: Any, path: str) -> None:
    _at(target, path)
    parent, last = _parent(target, path)
    del parent[int(last) if isinstance(parent, list) else last]


# Server-side apply -------------------------------------------------------------------------------------------------


def leaves(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Every leaf of an applied object, with the way to it."""
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from leaves(inner, (*path, key))
        return
    name = path[-1] if path and isinstance(path[-1], str) else ""
    key = list_key(name, value)
    if key is None:
        yield path, value
        return
    for item in value:
        for inner_key, inner in item.items():
            yield from leaves(inner, (*path, (key, item[key]), inner_key))


def owned(body: Json) -> dict[Path, Any]:
    """What an applied body claims: every leaf but those that only say which object is meant."""
    said = {key: value for key, value in body.items() if key not in ("apiVersion", "kind")}
    said["metadata"] = {key: value for key, value in said.get("metadata", {}).items() if key in CLAIMABLE}
    return {path: value for path, value in leaves(said) if path != ("metadata",)}


def without(target: Json, paths: Sequence[Path]) -> Json:
    """The object without these leaves; what they leave empty behind goes too."""
    result = deepcopy(target)
    for path in paths:
        _drop(result, path)
    return result


def _drop(target: Any, path: Path) -> None:
    step, rest = path[0], path[1:]
    if isinstance(step, tuple):
        found = next((item for item in target if isinstance(item, dict) and item.get(step[0]) == step[1]), None)
        if found is None or not rest:
            return
        _drop(found, rest)
        if not set(found) - {step[0]}:
            target.remove(found)
        return
    if not isinstance(target, dict) or step not in target:
        return
    if not rest:
        del target[step]
        return
    _drop(target[step], rest)
    if target[step] in ({}, []):
        del target[step]


def value_at(target: Any, path: Path) -> Any:
    """What is at a leaf, or None."""
    for step in path:
        if isinstance(step, tuple):
            items = target if isinstance(target, list) else []
            target = next((item for item in items if isinstance(item, dict) and item.get(step[0]) == step[1]), None)
        else:
            target = target.get(step) if isinstance(target, dict) else None
    return target
