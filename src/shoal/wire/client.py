"""An agent's connection to its master: one WebSocket, a handshake, then messages both ways."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator

import aiohttp

from shoal.core.errors import Disconnected, ProtocolError, Refused
from shoal.wire.codec import Decoder, encode
from shoal.wire.messages import MAX_COMMAND, PROTOCOL, FromAgent, FromMaster, Hello, Refuse, Welcome
from shoal.wire.tls import fingerprint_bytes

_decoder: Decoder[FromMaster] = Decoder(FromMaster, limit=MAX_COMMAND)

PING_SECONDS = 10.0
"""A master that answers no ping for half of this after it is counted as disconnected: a silent dead peer
would otherwise hang the connection for good."""


class Connection:
    """A connection whose handshake is done. Ends with `Disconnected`; a new one may then be made."""

    def __init__(
        self, session: aiohttp.ClientSession, socket: aiohttp.ClientWebSocketResponse, welcome: Welcome
    ) -> None:
        self.welcome = welcome
        self._session = session
        self._socket = socket

    async def send(self, message: FromAgent) -> None:
        try:
            await self._socket.send_bytes(encode(message))
        except (ConnectionError, aiohttp.ClientError, RuntimeError) as exc:
            raise Disconnected(f"the master closed the connection: {exc}") from exc

    async def __aiter__(self) -> AsyncIterator[FromMaster]:
        """The master's messages, until `Disconnected`."""
        while True:
            yield await _receive(self._socket)

    async def close(self) -> None:
        with contextlib.suppress(aiohttp.ClientError, ConnectionError, TimeoutError):
            async with asyncio.timeout(1.0):
                await self._socket.close()
        await self._session.close()


async def connect(
    url: str, *, token: str, hello: Hello, fingerprint: str | None = None, timeout: float = 10.0
) -> Connection:
    """Connect and shake hands.

    Raises `Refused` when the master does not want us (final), `Disconnected` when it cannot be reached now.
    """
    session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None), trust_env=False)
    async with contextlib.AsyncExitStack() as unless_welcome:
        unless_welcome.push_async_callback(session.close)
        try:
            async with asyncio.timeout(timeout):
                socket = await _open(session, url, token, fingerprint)
                unless_welcome.push_async_callback(socket.close)
                await socket.send_bytes(encode(hello))
                answer = await _receive(socket)
        except TimeoutError as exc:
            raise Disconnected(f"master at {url} did not answer within {timeout:g} s") from exc
        if isinstance(answer, Refuse):
            raise Refused(answer.reason)
        if not isinstance(answer, Welcome):
            raise ProtocolError(f"master at {url}: wanted Welcome, got {type(answer).__name__}")
        if answer.protocol != PROTOCOL:
            raise Refused(f"master at {url} speaks protocol {answer.protocol}, this agent {PROTOCOL}")
        unless_welcome.pop_all()
        return Connection(session, socket, answer)


async def _open(
    session: aiohttp.ClientSession, url: str, token: str, fingerprint: str | None
) -> aiohttp.ClientWebSocketResponse:
    try:
        return await session.ws_connect(
            url.rstrip("/") + "/agent",
            headers={"Authorization": f"Bearer {token}"},
            max_msg_size=MAX_COMMAND,
            compress=0,
            heartbeat=PING_SECONDS,
            ssl=aiohttp.Fingerprint(fingerprint_bytes(fingerprint)) if fingerprint else True,
        )
    except aiohttp.ServerFingerprintMismatch as exc:
        raise Refused(
            f"master at {url} has another certificate: wanted {fingerprint}, got sha256:{exc.got.hex()}"
        ) from exc
    except aiohttp.WSServerHandshakeError as exc:
        said = exc.headers.get("X-Shoal-Reason", exc.message) if exc.headers else exc.message
        if exc.status in (400, 401, 403, 404, 426):
            raise Refused(f"master at {url} refused this agent ({exc.status}): {said}") from exc
        raise Disconnected(f"master at {url} answered {exc.status}: {said}") from exc
    except (ssl.SSLError, aiohttp.ClientConnectorCertificateError) as exc:
        raise Refused(f"master at {url}: TLS failed: {exc}") from exc
    except aiohttp.ClientConnectorError as exc:
        raise Disconnected(f"no master at {url}: {exc.os_error.strerror or exc.os_error}") from exc
    except (OSError, aiohttp.ClientError) as exc:
        raise Disconnected(f"no master at {url}: {exc}") from exc


async def _receive(socket: aiohttp.ClientWebSocketResponse) -> FromMaster:
    message = await socket.receive()
    if message.type is aiohttp.WSMsgType.BINARY:
        return _decoder.decode(message.data)
    if message.type is aiohttp.WSMsgType.TEXT:
        raise ProtocolError("the master sent text; messages are binary")
    why = (
        f"{message.extra or 'closed'} ({message.data})"
        if message.type is aiohttp.WSMsgType.CLOSE
        else message.type.name
    )
    raise Disconnected(f"the master closed the connection: {why}")
