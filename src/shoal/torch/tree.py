"""Trees whose leaves are tensors: `shoal.checkpoint.tree` with torch's leaves, packed into bytes and a list of tensors.

Tensors travel beside the structure, as raw bytes of their type; nothing is ever unpickled. Numpy's scalars arrive as
Python's: a lambda of a scheduler that uses `np.cos` is enough to have some.
"""

from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import torch
from torch import Tensor

from shoal.checkpoint import tree
from shoal.checkpoint.memory import have_pages
from shoal.core.errors import BadInput, ProtocolError

Specs = list[tuple[torch.dtype, str, list[int]]]
"""Of each tensor: element type, kind of device, shape."""

_LARGE_BYTES = 1 << 20
"""What is smaller comes from memory that the process mostly has already."""


def _dense(tensor: Tensor, path: str) -> Tensor:
    if tensor.layout is not torch.strided:
        raise BadInput(f"{path}: a tensor of layout {tensor.layout} cannot be sent, only dense ones")
    return tensor.detach()


def _without_numpy(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


LEAVES = tree.Leaves(
    frozenset({Tensor, torch.nn.Parameter}), _dense, lambda tensor: tensor.clone(), plain=_without_numpy
)


def _clone_at_once(tensor: Tensor) -> Tensor:
    if not tensor.is_cpu or tensor.nbytes < _LARGE_BYTES:
        return tensor.clone()
    new = torch.empty_like(tensor)
    have_pages(new.data_ptr(), new.nbytes)
    return new.copy_(tensor)


_LARGE_LEAVES = replace(LEAVES, clone=_clone_at_once)


def copied(value: Any, path: str) -> Any:
    """A copy that shares nothing mutable with `value`; raises `BadInput` where something is no tree."""
    return tree.copied(value, path, LEAVES)


def copied_at_once(value: Any, path: str) -> Any:
    """As `copied`, for what is large and new to this process: its memory is had before it is written to."""
    return tree.copied(value, path, _LARGE_LEAVES)


def pack(value: Any, path: str) -> tuple[bytes, list[Tensor]]:
    """The tree's structure as bytes, and its tensors in the order in which the structure names them."""
    found: list[tuple[str, Any]] = []
    body = tree.packed(value, path, LEAVES, found)
    tensors: list[Tensor] = [tensor for _, tensor in found]
    specs = [[dtype_name(t.dtype), t.device.type, list(t.shape)] for t in tensors]
    return msgspec.msgpack.encode([specs, body]), tensors


class Packed:
    """A received structure: what it holds besides tensors can be read at once, its tensors are filled in later."""

    def __init__(self, data: bytes) -> None:
        specs, self._body = msgspec.msgpack.decode(data, type=tuple[list[tuple[str, str, list[int]]], Any])
        self.specs: Specs = [(dtype_named(name), device, shape) for name, device, shape in specs]

    def unpack(self, tensors: list[Tensor] | None) -> Any:
        """The tree. Without tensors, None stands in the place of each."""
        return tree.unpacked(self._body, lambda number: None if tensors is None else tensors[number])


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def dtype_named(name: str) -> torch.dtype:
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise ProtocolError(f"a received state has a tensor of unknown type {name!r}")
    return dtype
