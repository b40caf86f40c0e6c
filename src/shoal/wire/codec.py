"""Messages to bytes and back: msgpack, typed, bounded. Bytes that are no message raise `ProtocolError`."""

from typing import Generic, TypeVar

import msgspec

from shoal.core.errors import BadInput, ProtocolError

M = TypeVar("M")

_encoder = msgspec.msgpack.Encoder()


def encode(message: msgspec.Struct) -> bytes:
    return _encoder.encode(message)


class Decoder(Generic[M]):
    """Decodes one closed union: `Decoder(FromAgent)`."""

    def __init__(self, union: object, *, limit: int) -> None:
        self._decoder: msgspec.msgpack.Decoder[M] = msgspec.msgpack.Decoder(union)
        self._limit = limit

    def decode(self, data: bytes | bytearray | memoryview) -> M:
        if len(data) > self._limit:
            raise ProtocolError(f"message too large: {len(data)} bytes, at most {self._limit} are read")
        try:
            return self._decoder.decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, BadInput) as exc:
            raise ProtocolError(f"not a message of this protocol: {exc}") from exc
