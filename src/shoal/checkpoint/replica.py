"""An image from one agent's memory into another's: a short conversation over TCP between two that know the job's token.

    keeper ──▶ sender   a nonce
    sender ──▶ keeper   a nonce, proof of the token over both, who sends which step in how many bytes
    keeper ──▶ sender   proof over both nonces the other way round, and whether there is room
    sender ──▶ keeper   the image, then proof of its checksum
    keeper ──▶ sender   kept

The token itself never travels. The bytes are not encrypted, as those of the collectives between the same nodes are not;
whoever listens binds to the job's interface. The keeper counts an image only after its last proof.
"""

import asyncio
import hashlib
import hmac
import secrets
import zlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import msgspec

from shoal.core.errors import ShoalError

_NONCE = 32
_PROOF = 32
_PIECE = 1 << 20
_LIMIT = 4 << 20
_LONGEST_OFFER = 4096
_YES, _NO = b"\1", b"\0"


class ReplicaFailed(ShoalError):
    """The other side is not one of us, has no room, or sent something else than it said."""


class Offer(msgspec.Struct, frozen=True, kw_only=True):
    """What the sender is about to send."""

    node: str
    step: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Keeping:
    """What the keeper does with an offer. `memory` None: there is no room. `kept` is called when all has arrived."""

    memory: memoryview | None
    kept: Callable[[], None]


async def send(host: str, port: int, *, token: str, offer: Offer, image: memoryview) -> None:
    """Bring an image to the keeper at this address. Raises `ReplicaFailed` or `OSError`."""
    reader, writer = await asyncio.open_connection(host, port, limit=_LIMIT)
    try:
        theirs, ours = await reader.readexactly(_NONCE), secrets.token_bytes(_NONCE)
        said = msgspec.msgpack.encode(offer)
        writer.write(ours + _proof(token, b"send", theirs, ours, said) + len(said).to_bytes(4, "big") + said)
        proof, room = await reader.readexactly(_PROOF), await reader.readexactly(1)
        if not hmac.compare_digest(proof, _proof(token, b"keep", ours, theirs, room)):
            raise ReplicaFailed(f"{host}:{port} does not know the job's token")
        if room != _YES:
            raise ReplicaFailed(f"{host}:{port} has no memory for it")
        checksum = 0
        for begin in range(0, len(image), _PIECE):
            piece = image[begin : begin + _PIECE]
            checksum = zlib.crc32(piece, checksum)
            writer.write(piece)
            await writer.drain()
        writer.write(_proof(token, b"sent", theirs, ours, checksum.to_bytes(4, "big")))
        if await reader.readexactly(1) != _YES:
            raise ReplicaFailed(f"{host}:{port} did not keep it")
    except asyncio.IncompleteReadError as exc:
        raise ReplicaFailed(f"{host}:{port} closed the connection") from exc
    finally:
        writer.transport.abort()  # after the last answer nothing is on its way; before it, nobody wants the rest


async def keep(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    *,
    token: str,
    accept: Callable[[Offer], Awaitable[Keeping]],
) -> None:
    """The keeper's side of one connection. Raises `ReplicaFailed` or `OSError`; what came by then does not count."""
    ours = secrets.token_bytes(_NONCE)
    writer.write(ours)
    try:
        theirs, proof = await reader.readexactly(_NONCE), await reader.readexactly(_PROOF)
        length = int.from_bytes(await reader.readexactly(4), "big")
        if length > _LONGEST_OFFER:
            raise ReplicaFailed("it begins as no replica does")
        said = await reader.readexactly(length)
        if not hmac.compare_digest(proof, _proof(token, b"send", ours, theirs, said)):
            raise ReplicaFailed("it does not know the job's token")
        keeping = await accept(msgspec.msgpack.decode(said, type=Offer))
        room = _NO if keeping.memory is None else _YES
        writer.write(_proof(token, b"keep", theirs, ours, room) + room)
        if keeping.memory is None:
            await writer.drain()
            return
        checksum = await _receive(reader, keeping.memory)
        proof = await reader.readexactly(_PROOF)
        if not hmac.compare_digest(proof, _proof(token, b"sent", ours, theirs, checksum.to_bytes(4, "big"))):
            raise ReplicaFailed("what arrived is not what was sent")
    except asyncio.IncompleteReadError as exc:
        raise ReplicaFailed("the sender closed the connection") from exc
    except msgspec.MsgspecError as exc:
        raise ReplicaFailed(f"no offer: {exc}") from exc
    keeping.kept()
    writer.write(_YES)
    await writer.drain()


async def _receive(reader: asyncio.StreamReader, memory: memoryview) -> int:
    checksum = done = 0
    while done < len(memory):
        piece = await reader.read(min(_PIECE, len(memory) - done))
        if not piece:
            raise ReplicaFailed("the sender closed the connection")
        memory[done : done + len(piece)] = piece
        checksum = zlib.crc32(piece, checksum)
        done += len(piece)
    return checksum


def _proof(token: str, *parts: bytes) -> bytes:
    return hmac.new(token.encode(), b"replica" + b"".join(parts), hashlib.sha256).digest()
