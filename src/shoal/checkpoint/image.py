"""The image: one training state as one run of bytes, the same in shared memory, in a file and on the way to another
agent.

    prefix │ header (msgpack) │ zeros up to a page │ tensor │ tensor │ …

The prefix has the lengths and a checksum of the header, so that bytes which are no image are never taken for one. The
header says what the state is (`Header`) and where each tensor stands. Tensors are raw bytes of their type, aligned.
"""

import mmap
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from shoal.core.errors import ShoalError

MAGIC = b"SHOALCKP"
VERSION = 1
_PREFIX = struct.Struct("<8sIIQQ")
_ALIGNMENT = 64
_HEADER_ROOM = mmap.PAGESIZE


class BadImage(ShoalError):
    """These bytes are no complete checkpoint of a version that is known here."""


class TensorPlace(msgspec.Struct, frozen=True, array_like=True):
    """One tensor of an image."""

    name: str
    dtype: str
    """As torch names it, without `torch.`."""
    device: str
    """The kind of device it was on."""
    shape: tuple[int, ...]
    offset: int
    """From the first tensor's place."""
    nbytes: int


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """What an image says of itself."""

    job: str
    step: int
    saved_at: float
    """Seconds since 1970."""
    signature: tuple[str, ...]
    """What a training script must have alike to take this state over, in words."""
    batching: str
    """How samples were counted when it was saved; may differ, and is told if it does."""
    tensors: tuple[TensorPlace, ...]
    body: bytes
    """The packed tree (`checkpoint.tree`) that has the tensors by number."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Where everything of an image goes."""

    head: bytes
    """Prefix and header, with zeros up to `start`."""
    start: int
    """Where the first tensor's place is."""
    total: int


_decoder = msgspec.msgpack.Decoder(Header)


def placed(tensors: Sequence[tuple[str, str, str, tuple[int, ...], int]]) -> tuple[TensorPlace, ...]:
    """Places for tensors of (name, dtype, device, shape, bytes), one after the other."""
    places = []
    end = 0
    for name, dtype, device, shape, nbytes in tensors:
        places.append(TensorPlace(name, dtype, device, shape, end, nbytes))
        end += -(-nbytes // _ALIGNMENT) * _ALIGNMENT
    return tuple(places)


def lay_out(header: Header) -> Layout:
    body = msgspec.msgpack.encode(header)
    start = -(-(_PREFIX.size + len(body)) // _HEADER_ROOM) * _HEADER_ROOM
    last = header.tensors[-1] if header.tensors else None
    total = start + (0 if last is None else last.offset + last.nbytes)
    prefix = _PREFIX.pack(MAGIC, VERSION, zlib.crc32(body), len(body), total)
    return Layout((prefix + body).ljust(start, b"\0"), start, total)


class Image:
    """An image that is there to be read. Raises `BadImage` for bytes that are none."""

    def __init__(self, data: memoryview) -> None:
        if len(data) < _PREFIX.size:
            raise BadImage(f"{len(data)} bytes are no checkpoint")
        magic, version, checksum, length, self.total = _PREFIX.unpack_from(data)
        if magic != MAGIC:
            raise BadImage("it does not begin as a checkpoint does")
        if version != VERSION:
            raise BadImage(f"it has version {version} of the format, known here is {VERSION}")
        if self.total > len(data):
            raise BadImage(f"it should have {self.total} bytes, {len(data)} are there")
        body = data[_PREFIX.size : _PREFIX.size + length]
        if len(body) != length or zlib.crc32(body) != checksum:
            raise BadImage("its header is damaged")
        try:
            self.header: Header = _decoder.decode(body)
        except (msgspec.MsgspecError, UnicodeDecodeError) as exc:
            raise BadImage(f"its header is not one: {exc}") from exc
        self._data = data
        self._start = -(-(_PREFIX.size + length) // _HEADER_ROOM) * _HEADER_ROOM
        for place in self.header.tensors:
            if place.offset < 0 or place.nbytes < 0 or self._start + place.offset + place.nbytes > self.total:
                raise BadImage(f"{place.name} lies outside of it")

    @property
    def data(self) -> memoryview:
        return self._data[: self.total]

    def tensor(self, number: int) -> memoryview:
        """The raw bytes of a tensor."""
        place = self.header.tensors[number]
        begin = self._start + place.offset
        return self._data[begin : begin + place.nbytes]
