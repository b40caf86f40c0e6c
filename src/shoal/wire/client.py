"""Connections to a master: one WebSocket, a handshake, then messages both ways. For agents, and for platforms."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from typing import Generic, TypeVar

import aiohttp
import msgspec

from shoal.core.errors import Disconnected, ProtocolError, Refused
from shoal.wire.codec import Decoder, encode
from shoal.wire.messages import MAX_COMMAND, PROTOCOL, FromAgent, FromMaster, Hello, Refuse, Welcome
from shoal.wire.platform import Denied, FromPlatform, JobSeen, PlatformHello, ToPlatform
from shoal.wire.tls import fingerprint_bytes

Out = TypeVar("Out", bound=msgspec.Struct)
In = TypeVar("In", bound=msgspec.Struct)
First = TypeVar("First", bound=msgspec.Struct)

_agents: Decoder[FromMaster] = Decoder(FromMaster, limit=MAX_COMMAND)
_platforms: Decoder[ToPlatform] = Decoder(ToPlatform, limit=MAX_COMMAND)

PING_SECONDS = 10.0
"""A master that answers no ping for half of this after it is counted as disconnected: a silent dead peer
would otherwise hang the connection for good."""


class Link(Generic[Out, In, First]):
    """A connection whose handshake is done. Ends with `Disconnected`; a new one may then be made."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        socket: aiohttp.ClientWebSocketResponse,
        decoder: Decoder[In],
        welcome: First,
    ) -> None:
        self.welcome = welcome
        self._session = session
        self._socket = socket
        self._decoder = decoder

    async def send(self, message: Out) -> None:
        try:
            await self._socket.send_bytes(encode(message))
        except (ConnectionError, aiohttp.ClientError, RuntimeError) as exc:
            raise Disconnected(f"the master closed the connection: {exc}") from exc

    async def __aiter__(self) -> AsyncIterator[In]:
        """The master's messages, until `Disconnected`."""
        while True:
            yield await _receive(self._socket, self._decoder)

    async def close(self) -> None:
        with contextlib.suppress(aiohttp.ClientError, ConnectionError, TimeoutError):
            async with asyncio.timeout(1.0):
                await self._socket.close()
        await self._session.close()


Connection = Link[FromAgent, FromMaster, Welcome]
PlatformConnection = Link[FromPlatform, ToPlatform, JobSeen]


async def connect(
    url: str, *, token: str, hello: Hello, fingerprint: str | None = None, timeout: float = 10.0
) -> Connection:
    """Connect an agent and shake hands.

    Raises `Refused` when the master does not want us (final), `Disconnected` when it cannot be reached now.
    """
    session, socket, answer = await _greeted(url, "/agent", token, fingerprint, timeout, hello, _agents)
    async with contextlib.AsyncExitStack() as unless_welcome:
        _close_later(unless_welcome, session, socket)
        if isinstance(answer, Refuse):
            raise Refused(answer.reason)
        if not isinstance(answer, Welcome):
            raise ProtocolError(f"master at {url}: wanted Welcome, got {type(answer).__name__}")
        if answer.protocol != PROTOCOL:
            raise Refused(f"master at {url} speaks protocol {answer.protocol}, this agent {PROTOCOL}")
        if answer.term < hello.term:
            raise Disconnected(f"master at {url} has term {answer.term}, and {hello.term} was seen: it was superseded")
        unless_welcome.pop_all()
    return Link(session, socket, _agents, answer)


async def connect_platform(
    url: str, *, token: str, hello: PlatformHello, fingerprint: str | None = None, timeout: float = 10.0
) -> PlatformConnection:
    """Connect a platform and shake hands. Raises as `connect` does."""
    session, socket, answer = await _greeted(url, "/platform", token, fingerprint, timeout, hello, _platforms)
    async with contextlib.AsyncExitStack() as unless_welcome:
        _close_later(unless_welcome, session, socket)
        if isinstance(answer, Denied):
            raise Refused(answer.reason)
        if not isinstance(answer, JobSeen):
            raise ProtocolError(f"master at {url}: wanted JobSeen, got {type(answer).__name__}")
        if answer.term < hello.term:
            raise Disconnected(f"master at {url} has term {answer.term}, and {hello.term} was seen: it was superseded")
        unless_welcome.pop_all()
    return Link(session, socket, _platforms, answer)


async def _greeted(
    url: str,
    path: str,
    token: str,
    fingerprint: str | None,
    timeout: float,
    hello: msgspec.Struct,
    decoder: Decoder[In],
) -> tuple[aiohttp.ClientSession, aiohttp.ClientWebSocketResponse, In]:
    """Open the socket, say hello, and hear the first answer."""
    session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None), trust_env=False)
    async with contextlib.AsyncExitStack() as unless_answered:
        unless_answered.push_async_callback(session.close)
        try:
            async with asyncio.timeout(timeout):
                socket = await _open(session, url, path, token, fingerprint)
                unless_answered.push_async_callback(socket.close)
                await socket.send_bytes(encode(hello))
                answer = await _receive(socket, decoder)
        except TimeoutError as exc:
            raise Disconnected(f"master at {url} did not answer within {timeout:g} s") from exc
        except (ConnectionError, aiohttp.ClientError) as exc:
            raise Disconnected(f"master at {url} closed the connection: {exc}") from exc
        unless_answered.pop_all()
    return session, socket, answer


def _close_later(
    stack: contextlib.AsyncExitStack, session: aiohttp.ClientSession, socket: aiohttp.ClientWebSocketResponse
) -> None:
    stack.push_async_callback(session.close)
    stack.push_async_callback(socket.close)


async def _open(
    session: aiohttp.ClientSession, url: str, path: str, token: str, fingerprint: str | None
) -> aiohttp.ClientWebSocketResponse:
    try:
        return await session.ws_connect(
            url.rstrip("/") + path,
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


async def _receive(socket: aiohttp.ClientWebSocketResponse, decoder: Decoder[In]) -> In:
    message = await socket.receive()
    if message.type is aiohttp.WSMsgType.BINARY:
        return decoder.decode(message.data)
    if message.type is aiohttp.WSMsgType.TEXT:
        raise ProtocolError("the master sent text; messages are binary")
    why = (
        f"{message.extra or 'closed'} ({message.data})"
        if message.type is aiohttp.WSMsgType.CLOSE
        else message.type.name
    )
    raise Disconnected(f"the master closed the connection: {why}")
