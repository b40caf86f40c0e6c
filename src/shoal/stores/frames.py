"""The journal file as bytes: a line that says what it is, then frames. Pure.

    shoal journal 1\\n
    [kind: 1 byte][length: 4 bytes][crc32 of kind, length and payload: 4 bytes][payload]  …

A writer that dies leaves a frame half written; a disk may give back other bytes than it was given. Reading stops at
the first frame that is not whole and right, and says what it left: what is read is always a prefix of what was
written.
"""

import struct
import zlib
from dataclasses import dataclass
from enum import IntEnum

from shoal.core.errors import StateUnreadable

VERSION = 1
_MAGIC = b"shoal journal "
HEADER = _MAGIC + str(VERSION).encode() + b"\n"
_LONGEST_HEADER = 40
_FRAME = struct.Struct(">BII")


class Kind(IntEnum):
    TERM = 1
    """A master began to write: 8 bytes with its term."""
    RECORD = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Journal:
    term: int
    records: tuple[bytes, ...]
    end: int
    """So many bytes are whole and right."""
    rest: int
    """So many bytes after them are not."""


def frame(kind: Kind, payload: bytes) -> bytes:
    start = struct.pack(">BI", kind, len(payload))
    return start + struct.pack(">I", zlib.crc32(payload, zlib.crc32(start))) + payload


def term_frame(term: int) -> bytes:
    return frame(Kind.TERM, struct.pack(">Q", term))


def written(term: int, records: tuple[bytes, ...]) -> bytes:
    """A whole journal."""
    return b"".join((HEADER, term_frame(term), *(frame(Kind.RECORD, record) for record in records)))


def read(data: bytes) -> Journal:
    """Raises `StateUnreadable` when this is no journal of ours."""
    if HEADER.startswith(data):
        return Journal(term=0, records=(), end=0, rest=len(data))  # whoever made it got no further
    _check_header(data)
    at, term, records = len(HEADER), 0, []
    while (found := _frame_at(data, at)) is not None:
        kind, payload, at = found
        match kind:
            case Kind.TERM:
                (term,) = struct.unpack(">Q", payload)
            case Kind.RECORD:
                records.append(payload)
    return Journal(term=term, records=tuple(records), end=at, rest=len(data) - at)


def _check_header(data: bytes) -> None:
    if data.startswith(HEADER):
        return
    line = data[:_LONGEST_HEADER].partition(b"\n")[0]
    version = line.removeprefix(_MAGIC)
    if line.startswith(_MAGIC) and version.isdigit():
        raise StateUnreadable(f"it has version {version.decode()}, this release reads {VERSION}")
    raise StateUnreadable("it is not a journal of Shoal")


def _frame_at(data: bytes, at: int) -> tuple[Kind, bytes, int] | None:
    if len(data) - at < _FRAME.size:
        return None
    kind, length, crc = _FRAME.unpack_from(data, at)
    end = at + _FRAME.size + length
    if end > len(data) or kind not in (Kind.TERM, Kind.RECORD):
        return None
    payload = data[at + _FRAME.size : end]
    if crc != zlib.crc32(payload, zlib.crc32(data[at : at + 5])) or (kind == Kind.TERM and length != 8):
        return None
    return Kind(kind), payload, end
