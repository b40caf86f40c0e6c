"""An image from one agent's memory into another's: a short conversation over TCP between two that know the job's token.

    keeper ──▶ sender   a nonce
    sender ──▶ keeper   a nonce, proof of the token over both, who sends which step in how many bytes
    keeper ──▶ sender   proof over both nonces the other way round, and whether there is room
    sender ──▶ keeper   the image, then proof of its checksum
    keeper ──▶ sender   kept

The token itself never travels. The bytes are not encrypted, as those of the collectives between the same nodes are not;
whoever listens binds to the job's interface. The keeper counts an image only after its last proof, and says that it is
kept only if it was counted. Neither side waits for the other without end: `Patience` says how long.
"""

import asyncio
import hashlib
import hmac
import secrets
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
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
    """What the keeper does with an offer. `memory` None: there is no room. `kept` is called when all has arrived, and
    says whether it counts."""

    memory: memoryview | None
    kept: Callable[[], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long one side waits for the other, in seconds."""

    handshake: float = 20.0
    """Until the other side has shown that it knows the token: strangers should not stay."""
    room: float = 600.0
    """Until the keeper has the memory: for a large image that takes a while."""
    piece: float = 60.0
    """For each piece of the image to come or go, and for the last answer."""


PATIENCE = Patience()


async def send(
    host: str, port: int, *, token: str, offer: Offer, image: memoryview, patience: Patience = PATIENCE
) -> None:
    """Bring an image to the keeper at this address. Raises `ReplicaFailed` or `OSError`."""
    where = f"{host}:{port}"
    async with _within(patience.handshake, where):
        reader, writer = await asyncio.open_connection(host, port, limit=_LIMIT)
    try:
        async with _within(patience.handshake, where):
            theirs, ours = await reader.readexactly(_NONCE), secrets.token_bytes(_NONCE)
        said = msgspec.msgpack.encode(offer)
        writer.write(ours + _proof(token, b"send", theirs, ours, said) + len(said).to_bytes(4, "big") + said)
        async with _within(patience.room, where):
            proof, room = await reader.readexactly(_PROOF), await reader.readexactly(1)
        if not hmac.compare_digest(proof, _proof(token, b"keep", ours, theirs, room)):
            raise ReplicaFailed(f"{where} does not know the job's token")
        if room != _YES:
            raise ReplicaFailed(f"{where} has no memory for it")
        checksum = 0
        for begin in range(0, len(image), _PIECE):
            piece = image[begin : begin + _PIECE]
            checksum = zlib.crc32(piece, checksum)
            writer.write(piece)
            async with _within(patience.piece, where):
                await writer.drain()
        writer.write(_proof(token, b"sent", theirs, ours, checksum.to_bytes(4, "big")))
        async with _within(patience.piece, where):
            kept = await reader.readexactly(1)
        if kept != _YES:
            raise ReplicaFailed(f"{where} did not keep it")
    except asyncio.IncompleteReadError as exc:
        raise ReplicaFailed(f"{where} closed the connection") from exc
    finally:
        writer.transport.abort()  # after the last answer nothing is on its way; before it, nobody wants the rest


async def keep(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    *,
    token: str,
    accept: Callable[[Offer], Awaitable[Keeping]],
    patience: Patience = PATIENCE,
) -> None:
    """The keeper's side of one connection. Raises `ReplicaFailed` or `OSError`; what came by then does not count."""
    ours = secrets.token_bytes(_NONCE)
    writer.write(ours)
    try:
        async with _within(patience.handshake, "it"):
            theirs, offer = await _offered(reader, token, ours)
        keeping = await accept(offer)
        room = _NO if keeping.memory is None else _YES
        writer.write(_proof(token, b"keep", theirs, ours, room) + room)
        if keeping.memory is not None:
            checksum = await _receive(reader, keeping.memory, patience.piece)
            async with _within(patience.piece, "it"):
                proof = await reader.readexactly(_PROOF)
            if not hmac.compare_digest(proof, _proof(token, b"sent", ours, theirs, checksum.to_bytes(4, "big"))):
                raise ReplicaFailed("what arrived is not what was sent")
            writer.write(_YES if keeping.kept() else _NO)
        async with _within(patience.piece, "it"):
            await writer.drain()
    except asyncio.IncompleteReadError as exc:
        raise ReplicaFailed("the sender closed the connection") from exc


async def _offered(reader: asyncio.StreamReader, token: str, ours: bytes) -> tuple[bytes, Offer]:
    """The sender's nonce, and what it has, once it has shown that it knows the token."""
    theirs, proof = await reader.readexactly(_NONCE), await reader.readexactly(_PROOF)
    length = int.from_bytes(await reader.readexactly(4), "big")
    if length > _LONGEST_OFFER:
        raise ReplicaFailed("it begins as no replica does")
    said = await reader.readexactly(length)
    if not hmac.compare_digest(proof, _proof(token, b"send", ours, theirs, said)):
        raise ReplicaFailed("it does not know the job's token")
    try:
        return theirs, msgspec.msgpack.decode(said, type=Offer)
    except msgspec.MsgspecError as exc:
        raise ReplicaFailed(f"no offer: {exc}") from exc


async def _receive(reader: asyncio.StreamReader, memory: memoryview, patience: float) -> int:
    checksum = done = 0
    while done < len(memory):
        async with _within(patience, "it"):
            piece = await reader.read(min(_PIECE, len(memory) - done))
        if not piece:
            raise ReplicaFailed("the sender closed the connection")
        memory[done : done + len(piece)] = piece
        checksum = zlib.crc32(piece, checksum)
        done += len(piece)
    return checksum


@asynccontextmanager
async def _within(seconds: float, who: str) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError as exc:
        raise ReplicaFailed(f"{who} was silent for {seconds:g} s") from exc


def _proof(token: str, *parts: bytes) -> bytes:
    return hmac.new(token.encode(), b"replica" + b"".join(parts), hashlib.sha256).digest()
