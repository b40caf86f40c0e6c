"""State from the source to everybody: first a header, then all tensors as one run of bytes.

Receivers change nothing before the last byte has arrived, so a transfer that is interrupted leaves them as they were.
The header carries the source's *signature*: what must be the same on every member for training together to make sense.
"""

from typing import Any

import torch
from torch import Tensor

from shoal.core.errors import BadInput
from shoal.torch.group import Group
from shoal.torch.tree import Packed, Specs, pack

_FIRST_BYTES = 4096
"""The first broadcast has a fixed size; a small header is in it, a larger one follows."""
_CHUNK_BYTES = 64 << 20
_ALIGNMENT = 16


class ModelMismatch(BadInput):
    """The members do not train the same thing; starting the process again cannot help."""


def give(group: Group, tree: dict[str, Any]) -> None:
    """Send the tree to all other members. The signature stands under the key `signature`, if there is one."""
    header, tensors = pack(tree, "state")
    _broadcast_bytes(group, header, source=group.rank)
    flat, views = _flat([(t.dtype, t.device.type, list(t.shape)) for t in tensors], group.device)
    for view, tensor in zip(views, tensors, strict=True):
        view.copy_(tensor)
    _broadcast_flat(group, flat, source=group.rank)


def take(group: Group, source: int, *, signature: list[str]) -> Any:
    """Receive what `source` gives. Raises `ModelMismatch` before any tensor is awaited."""
    packed = Packed(_broadcast_bytes(group, None, source=source))
    theirs = packed.unpack(None).get("signature")
    if theirs is not None and theirs != signature:
        raise ModelMismatch(describe_difference(signature, theirs, rank=group.rank, source=source))
    flat, views = _flat(packed.specs, group.device)
    _broadcast_flat(group, flat, source=source)
    placed = [view.to(device) for view, (_, device, _) in zip(views, packed.specs, strict=True)]
    return packed.unpack(placed)


def describe_difference(mine: list[str], theirs: list[str], *, rank: int, source: int) -> str:
    """Name the first place in which two signatures differ, and what each side has there."""
    place = next((i for i, (a, b) in enumerate(zip(mine, theirs, strict=False)) if a != b), min(len(mine), len(theirs)))
    here = mine[place] if place < len(mine) else "nothing more"
    there = theirs[place] if place < len(theirs) else "nothing more"
    return (
        f"the training state differs between workers: rank {rank} has {here} "
        f"where rank {source}, whose state everybody takes, has {there}"
    )


def _broadcast_bytes(group: Group, data: bytes | None, *, source: int) -> bytes:
    first = bytearray(_FIRST_BYTES)
    if data is not None:
        first[:8] = len(data).to_bytes(8, "big")
        head = data[: _FIRST_BYTES - 8]
        first[8 : 8 + len(head)] = head
    tensor = torch.frombuffer(first, dtype=torch.uint8).to(group.device)
    group.broadcast(tensor, source)
    group.drain()
    received = _to_bytes(tensor)
    length = int.from_bytes(received[:8], "big")
    missing = length - (_FIRST_BYTES - 8)
    if missing <= 0:
        return received[8 : 8 + length]
    rest = bytearray(data[-missing:]) if data is not None else bytearray(missing)
    tensor = torch.frombuffer(rest, dtype=torch.uint8).to(group.device)
    group.broadcast(tensor, source)
    group.drain()
    return received[8:] + _to_bytes(tensor)


def _to_bytes(tensor: Tensor) -> bytes:
    return bytes(tensor.cpu().numpy().data)


def _broadcast_flat(group: Group, flat: Tensor, *, source: int) -> None:
    for chunk in torch.split(flat, _CHUNK_BYTES):
        group.broadcast(chunk, source)
    group.drain()


def _flat(specs: Specs, device: torch.device) -> tuple[Tensor, list[Tensor]]:
    """One buffer of bytes for all tensors, and a view into it for each."""
    places: list[tuple[int, int]] = []
    end = 0
    for dtype, _, shape in specs:
        start = -(-end // _ALIGNMENT) * _ALIGNMENT
        end = start + dtype.itemsize * torch.Size(shape).numel()
        places.append((start, end))
    flat = torch.empty(end, dtype=torch.uint8, device=device)
    views = [
        flat[start:stop].view(dtype).view(shape) for (start, stop), (dtype, _, shape) in zip(places, specs, strict=True)
    ]
    return flat, views
