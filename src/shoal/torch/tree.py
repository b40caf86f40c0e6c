"""Trees of plain values and tensors: checked, copied, and packed into bytes plus a list of tensors. Never pickle.

A tree is None, bool, int, float, str, bytes, a tensor, or a list, tuple, dict, OrderedDict or Counter of trees.
Anything else is an error that names its path, such as `state.history[3]: <class 'Foo'> cannot be sent`. Subclasses do
not count: what arrives must be what was sent. Numpy's scalars are the one exception: they arrive as Python's.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import torch
from torch import Tensor

from shoal.core.errors import BadInput, ProtocolError

_SCALARS = frozenset({type(None), bool, int, float, str, bytes})
_TENSORS = frozenset({Tensor, torch.nn.Parameter})
_MAPPINGS: dict[type, str] = {dict: "dict", OrderedDict: "ordered", Counter: "counter"}
_MAKERS: dict[str, Callable[[list[tuple[Any, Any]]], Any]] = {
    "dict": dict,
    "ordered": OrderedDict,
    "counter": lambda pairs: Counter(dict(pairs)),
}

Specs = list[tuple[torch.dtype, str, list[int]]]
"""Of each tensor: element type, kind of device, shape."""


def copied(value: Any, path: str) -> Any:
    """A copy that shares nothing mutable with `value`; raises `BadInput` where something is no tree."""
    value = _without_numpy(value)
    kind = type(value)
    if kind in _SCALARS:
        return _checked_int(value, path) if kind is int else value
    if kind is list:
        return [copied(item, f"{path}[{i}]") for i, item in enumerate(value)]
    if kind is tuple:
        return tuple(copied(item, f"{path}[{i}]") for i, item in enumerate(value))
    if kind in _MAPPINGS:
        pairs = [(_checked_key(key, path), copied(item, f"{path}[{key!r}]")) for key, item in value.items()]
        return _MAKERS[_MAPPINGS[kind]](pairs)
    if kind in _TENSORS:
        return _checked_tensor(value, path).detach().clone()
    raise _cannot(path, kind)


def pack(value: Any, path: str) -> tuple[bytes, list[Tensor]]:
    """The tree's structure as bytes, and its tensors in the order in which the structure names them."""
    tensors: list[Tensor] = []
    body = _packed(value, path, tensors)
    specs = [[str(t.dtype).removeprefix("torch."), t.device.type, list(t.shape)] for t in tensors]
    return msgspec.msgpack.encode([specs, body]), tensors


class Packed:
    """A received structure: what it holds besides tensors can be read at once, its tensors are filled in later."""

    def __init__(self, data: bytes) -> None:
        specs, self._body = msgspec.msgpack.decode(data, type=tuple[list[tuple[str, str, list[int]]], Any])
        self.specs: Specs = [(_dtype(name), device, shape) for name, device, shape in specs]

    def unpack(self, tensors: list[Tensor] | None) -> Any:
        """The tree. Without tensors, None stands in the place of each."""
        return _unpacked(self._body, tensors)


def _packed(value: Any, path: str, tensors: list[Tensor]) -> Any:
    value = _without_numpy(value)
    kind = type(value)
    if kind in _SCALARS:
        return _checked_int(value, path) if kind is int else value
    if kind is list or kind is tuple:
        return [kind.__name__, *(_packed(item, f"{path}[{i}]", tensors) for i, item in enumerate(value))]
    if kind in _MAPPINGS:
        flat: list[Any] = [_MAPPINGS[kind]]
        for key, item in value.items():
            flat += (_packed(_checked_key(key, path), path, tensors), _packed(item, f"{path}[{key!r}]", tensors))
        return flat
    if kind in _TENSORS:
        tensors.append(_checked_tensor(value, path).detach())
        return ["tensor", len(tensors) - 1]
    raise _cannot(path, kind)


def _unpacked(body: Any, tensors: list[Tensor] | None) -> Any:
    if not isinstance(body, list):
        return body
    tag, *rest = body
    if tag == "tensor":
        return None if tensors is None else tensors[rest[0]]
    items = [_unpacked(item, tensors) for item in rest]
    if tag == "list":
        return items
    if tag == "tuple":
        return tuple(items)
    if tag in _MAKERS:
        return _MAKERS[tag](list(zip(items[::2], items[1::2], strict=True)))
    raise ProtocolError(f"a state from a peer has an unknown part {tag!r}")


def _dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise ProtocolError(f"a state from a peer has a tensor of unknown type {name!r}")
    return dtype


def _without_numpy(value: Any) -> Any:
    """Numpy's numbers get everywhere: a lambda of a scheduler that uses `np.cos` is enough."""
    return value.item() if isinstance(value, np.generic) else value


def _checked_int(value: int, path: str) -> int:
    if not -(1 << 63) <= value < 1 << 64:
        raise BadInput(f"{path}: the number {value} cannot be sent: it has more than 64 bits")
    return value


def _checked_key(key: Any, path: str) -> Any:
    key = _without_numpy(key)
    if type(key) not in _SCALARS and type(key) is not tuple:
        raise BadInput(f"{path}: a key of {type(key)} cannot be sent")
    return copied(key, f"{path} key {key!r}")


def _checked_tensor(tensor: Tensor, path: str) -> Tensor:
    if tensor.layout is not torch.strided:
        raise BadInput(f"{path}: a tensor of layout {tensor.layout} cannot be sent, only dense ones")
    return tensor


def _cannot(path: str, kind: type) -> BadInput:
    return BadInput(
        f"{path}: {kind} cannot be sent to other workers; "
        "wanted None, bool, int, float, str, bytes, list, tuple, dict, Counter or tensor"
    )
