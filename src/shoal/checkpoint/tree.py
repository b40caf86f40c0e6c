"""Trees of plain values with leaves of some framework: checked, copied, and packed into a msgpack-able body. Never
pickle.

A tree is None, bool, int, float, str, bytes, a leaf (a tensor), or a list, tuple, dict, OrderedDict or Counter of
trees. Anything else is an error that names its path, such as `state.history[3]: <class 'Foo'> cannot be sent`.
Subclasses do not count: what arrives must be what was sent. What a leaf is, its framework says (`Leaves`).
"""

from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from shoal.core.errors import BadInput, ProtocolError

_SCALARS = frozenset({type(None), bool, int, float, str, bytes})
_MAPPINGS: dict[type, str] = {dict: "dict", OrderedDict: "ordered", Counter: "counter"}
_MAKERS: dict[str, Callable[[list[tuple[Any, Any]]], Any]] = {
    "dict": dict,
    "ordered": OrderedDict,
    "counter": lambda pairs: Counter(dict(pairs)),
}


@dataclass(frozen=True, slots=True)
class Leaves:
    """The leaves of one framework. `check` gets a leaf and its path and raises `BadInput` for one that cannot be
    sent; `clone` copies one. `plain` makes Python's numbers of the framework's own, and leaves everything else."""

    kinds: frozenset[type]
    check: Callable[[Any, str], Any]
    clone: Callable[[Any], Any]
    plain: Callable[[Any], Any] = lambda value: value


NO_LEAVES = Leaves(frozenset(), lambda leaf, path: leaf, lambda leaf: leaf)
"""For trees of plain values only."""


def copied(value: Any, path: str, leaves: Leaves = NO_LEAVES) -> Any:
    """A copy that shares nothing mutable with `value`; raises `BadInput` where something is no tree."""
    kind = type(value)
    if kind in _SCALARS:
        return _checked_int(value, path) if kind is int else value
    if kind in leaves.kinds:
        return leaves.clone(leaves.check(value, path))
    if kind is list:
        return [copied(item, f"{path}[{i}]", leaves) for i, item in enumerate(value)]
    if kind is tuple:
        return tuple(copied(item, f"{path}[{i}]", leaves) for i, item in enumerate(value))
    if kind in _MAPPINGS:
        pairs = [
            (_checked_key(key, path, leaves), copied(item, f"{path}[{key!r}]", leaves)) for key, item in value.items()
        ]
        return _MAKERS[_MAPPINGS[kind]](pairs)
    return copied(_plain(value, path, leaves), path, leaves)


def packed(value: Any, path: str, leaves: Leaves, found: list[tuple[str, Any]]) -> Any:
    """The tree's structure as msgpack-able values. Its leaves are appended to `found` with their paths; the structure
    has their numbers."""
    kind = type(value)  # the usual kinds first: a model has thousands of tensors, and training waits for this
    if kind in _SCALARS:
        return _checked_int(value, path) if kind is int else value
    if kind in leaves.kinds:
        found.append((path, leaves.check(value, path)))
        return ["tensor", len(found) - 1]
    if kind is list or kind is tuple:
        return [kind.__name__, *(packed(item, f"{path}[{i}]", leaves, found) for i, item in enumerate(value))]
    if kind in _MAPPINGS:
        flat: list[Any] = [_MAPPINGS[kind]]
        for key, item in value.items():
            flat += (
                packed(_checked_key(key, path, leaves), path, leaves, found),
                packed(item, f"{path}[{key!r}]", leaves, found),
            )
        return flat
    return packed(_plain(value, path, leaves), path, leaves, found)


def unpacked(body: Any, leaf: Callable[[int], Any]) -> Any:
    """The tree of a packed structure, with `leaf(number)` in the place of each leaf. Raises `ProtocolError`."""
    try:
        return _unpacked(body, leaf)
    except (ValueError, TypeError, IndexError, RecursionError) as exc:
        raise ProtocolError(f"a received state is no tree: {exc}") from exc


def _unpacked(body: Any, leaf: Callable[[int], Any]) -> Any:
    if not isinstance(body, list):
        return body
    tag, *rest = body
    if tag == "tensor":
        return leaf(rest[0])
    items = [_unpacked(item, leaf) for item in rest]
    if tag == "list":
        return items
    if tag == "tuple":
        return tuple(items)
    if tag in _MAKERS:
        return _MAKERS[tag](list(zip(items[::2], items[1::2], strict=True)))
    raise ProtocolError(f"a received state has an unknown part {tag!r}")


def _checked_int(value: int, path: str) -> int:
    if not -(1 << 63) <= value < 1 << 64:
        raise BadInput(f"{path}: the number {value} cannot be sent: it has more than 64 bits")
    return value


def _plain(value: Any, path: str, leaves: Leaves) -> Any:
    """What the framework's own number is in Python's; raises `BadInput` for what is no number of it."""
    plain = leaves.plain(value)
    if type(plain) not in _SCALARS:
        raise _cannot(path, type(value))
    return plain


def _checked_key(key: Any, path: str, leaves: Leaves) -> Any:
    if type(key) is str:
        return key
    key = leaves.plain(key)
    if type(key) not in _SCALARS and type(key) is not tuple:
        raise BadInput(f"{path}: a key of {type(key)} cannot be sent")
    return copied(key, f"{path} key {key!r}", leaves)


def _cannot(path: str, kind: type) -> BadInput:
    return BadInput(
        f"{path}: {kind} cannot be sent to other workers or saved; "
        "wanted None, bool, int, float, str, bytes, list, tuple, dict, Counter or tensor"
    )
