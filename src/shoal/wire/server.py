"""The master's port: agents' WebSockets, and plain HTTP for people and Prometheus.

Who may in is decided before anything is read: a foreign `Origin` or `Host` is refused (browsers reach loopback),
`/healthz` and `/metrics` are open, `/agent` wants the agent token, all else the admin token. After that a bad message,
too many of them, or a peer that does not read closes that one connection with a reason and touches nothing else.
"""

import asyncio
import contextlib
import ipaddress
import logging
import os
import socket
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from aiohttp import WSCloseCode, WSMsgType, web

from shoal.core.errors import BadInput, ProtocolError
from shoal.wire.codec import Decoder, encode
from shoal.wire.messages import MAX_MESSAGE, PROTOCOL, FromAgent, FromMaster, Hello, Refuse, Welcome
from shoal.wire.tls import Certificate
from shoal.wire.tokens import Purpose, TokenCheck

log = logging.getLogger("shoal.wire")

OPEN_PATHS = frozenset({"/healthz", "/metrics"})
REASON_HEADER = "X-Shoal-Reason"

_decoder: Decoder[FromAgent] = Decoder(FromAgent, limit=MAX_MESSAGE)
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Listen:
    """Where to listen. Anything but loopback wants a certificate."""

    host: str = "127.0.0.1"
    port: int = 0
    """0: any free one."""
    certificate: Certificate | None = None
    names: tuple[str, ...] = ()
    """Further host names by which people may address this port."""
    sockets: tuple[int, ...] = ()
    """Descriptors of sockets that listen there already; they belong to whoever opened them, and outlive this server."""

    def __post_init__(self) -> None:
        if self.certificate is None and not is_loopback(self.host):
            raise BadInput(f"listening on {self.host} needs TLS: only loopback goes without")

    def url(self, port: int) -> str:
        """For peers on this machine, or on the address we listen on."""
        host = "127.0.0.1" if self.host in ("0.0.0.0", "::") else self.host  # noqa: S104
        host = f"[{host}]" if ":" in host else host
        return f"{'https' if self.certificate else 'http'}://{host}:{port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    handshake_seconds: float = 10.0
    """How long a connection may take to say Hello."""
    send_seconds: float = 10.0
    """How long one message may take to leave; a peer that does not read for so long is cut off."""
    queue_messages: int = 1024
    """How many messages may wait for one agent."""
    messages_per_second: int = 5000
    """What one agent may send; far above what training needs."""
    ping_seconds: float = 10.0
    backlog: int = 2048


class Door(Protocol):
    """Who answers the agents. Called in the event loop; must not block."""

    async def hello(self, hello: Hello, socket: "AgentSocket") -> Welcome | Refuse | None:
        """None: neither welcome nor refused for good; the agent should try again."""
        ...

    def message(self, socket: "AgentSocket", message: FromAgent) -> None: ...

    def closed(self, socket: "AgentSocket") -> None: ...


class AgentSocket:
    """The server's end of one agent's connection. `push` never blocks; a writer task sends in order."""

    def __init__(self, socket: web.WebSocketResponse, settings: ServerSettings, peer: str) -> None:
        self.node: str | None = None
        self.peer = peer
        self._socket = socket
        self._settings = settings
        self._queue: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._overflowed = False

    def push(self, data: bytes) -> None:
        """Queue one encoded message. An agent that lets too many pile up is cut off."""
        if self._queue.qsize() >= self._settings.queue_messages:
            self._overflowed = True
            self.end()
            return
        self._queue.put_nowait(data)

    def end(self) -> None:
        """Send what is queued, then close."""
        self._queue.put_nowait(None)

    async def write(self) -> None:
        """The writer task. However it ends, the connection ends with it: nobody stays connected and hears nothing."""
        try:
            while not self._overflowed and (data := await self._queue.get()) is not None:
                async with asyncio.timeout(self._settings.send_seconds):
                    await self._socket.send_bytes(data)
        finally:
            await self._socket.close(code=WSCloseCode.GOING_AWAY, message=b"the master has no more to say")


class AgentServer:
    def __init__(
        self,
        *,
        keys: TokenCheck,
        door: Door,
        listen: Listen,
        routes: Sequence[web.RouteDef] = (),
        settings: ServerSettings | None = None,
    ) -> None:
        self._keys = keys
        self._door = door
        self._listen = listen
        self._settings = settings or ServerSettings()
        self._names = {"localhost", listen.host.lower(), *(name.lower() for name in listen.names)}
        self._sockets: set[AgentSocket] = set()
        self._app = web.Application(middlewares=[self._guard], client_max_size=64 * 1024)
        self._app.add_routes([web.get("/agent", self._agent), *routes])
        self._runner: web.AppRunner | None = None
        self.port = 0

    async def start(self) -> None:
        """Open the port. Raises `BadInput` when it cannot be had."""
        self._runner = web.AppRunner(self._app, access_log=None, shutdown_timeout=1.0)
        await self._runner.setup()
        try:
            for site in self._sites(self._runner):
                await site.start()
        except OSError as exc:
            await self._runner.cleanup()
            where = f"{self._listen.host}:{self._listen.port}"
            raise BadInput(f"cannot listen on {where}: {exc.strerror or exc}; give another address or port") from exc
        self.port = self._runner.addresses[0][1]

    def _sites(self, runner: web.AppRunner) -> list[web.BaseSite]:
        certificate = self._listen.certificate
        context = certificate.server_context() if certificate else None
        backlog = self._settings.backlog
        if not self._listen.sockets:
            return [web.TCPSite(runner, self._listen.host, self._listen.port, ssl_context=context, backlog=backlog)]
        listening = [socket.socket(fileno=os.dup(descriptor)) for descriptor in self._listen.sockets]
        return [web.SockSite(runner, each, ssl_context=context, backlog=backlog) for each in listening]

    @property
    def url(self) -> str:
        return self._listen.url(self.port)

    async def close(self) -> None:
        for agent in list(self._sockets):
            agent.end()
        if self._runner is not None:
            await self._runner.cleanup()

    # Requests ---------------------------------------------------------------------------------------------

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        refusal = self._refusal(request)
        if refusal is not None:
            status, reason = refusal
            headers = {REASON_HEADER: reason}
            if status == 401:
                headers["WWW-Authenticate"] = "Bearer"
            return web.json_response({"error": reason}, status=status, headers=headers)
        try:
            return await handler(request)
        except web.HTTPException as exc:
            return web.json_response({"error": exc.reason}, status=exc.status)
        except BadInput as exc:
            return web.json_response({"error": str(exc)}, status=400)

    def _refusal(self, request: web.Request) -> tuple[int, str] | None:
        host = _host_name(request.host)
        if not (host in self._names or _is_address(host)):
            return 403, "this Host is not ours: address the master by its address or the name it listens on"
        origin = request.headers.get("Origin")
        if origin is not None and origin.lower() != f"{request.scheme}://{request.host}".lower():
            return 403, "requests of other web sites are refused"
        if request.path in OPEN_PATHS:
            return None
        purpose = Purpose.AGENT if request.path == "/agent" else Purpose.ADMIN
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not token:
            return 401, f"this needs the job's {purpose} token (Authorization: Bearer …)"
        if not self._keys.allows(token.strip(), purpose):
            return 401, f"that is not this job's {purpose} token"
        return None

    async def _agent(self, request: web.Request) -> web.StreamResponse:
        response = web.WebSocketResponse(
            max_msg_size=MAX_MESSAGE, compress=False, heartbeat=self._settings.ping_seconds, timeout=1.0
        )
        if not response.can_prepare(request).ok:
            return web.json_response({"error": "/agent is a WebSocket"}, status=400)
        try:
            await response.prepare(request)
        except ConnectionError:
            return response  # it went away before it was greeted
        agent = AgentSocket(response, self._settings, peer=str(request.remote))
        try:
            async with asyncio.timeout(self._settings.handshake_seconds):
                hello = await _receive(response)
                answer = await self._greet(hello, agent)
        except (TimeoutError, ProtocolError) as exc:
            await _refuse(response, str(exc) or "no Hello in time")
            return response
        if answer is None:
            await response.close(code=WSCloseCode.TRY_AGAIN_LATER, message=b"not now")
            return response
        if isinstance(answer, Refuse):
            await _refuse(response, answer.reason)
            return response
        await self._talk(agent, response, answer)
        return response

    async def _greet(self, hello: FromAgent | None, agent: AgentSocket) -> Welcome | Refuse | None:
        if not isinstance(hello, Hello):
            raise ProtocolError(f"the first message must be Hello, got {type(hello).__name__}")
        if hello.protocol != PROTOCOL:
            return Refuse(reason=f"protocol {hello.protocol} asked, this master speaks {PROTOCOL}")
        return await self._door.hello(hello, agent)

    async def _talk(self, agent: AgentSocket, response: web.WebSocketResponse, welcome: Welcome) -> None:
        self._sockets.add(agent)
        writer: asyncio.Task[None] | None = None
        try:
            await response.send_bytes(encode(welcome))
            writer = asyncio.create_task(agent.write())
            await self._read(agent, response)
        except ProtocolError as exc:
            log.warning("%s (%s): %s; its connection is closed", agent.node, agent.peer, exc)
            with contextlib.suppress(ConnectionError):
                await _refuse(response, str(exc))
        except ConnectionError:
            pass
        finally:
            self._sockets.discard(agent)
            if writer is not None:
                writer.cancel()
                with contextlib.suppress(asyncio.CancelledError, TimeoutError, ConnectionError):
                    await writer
            self._door.closed(agent)

    async def _read(self, agent: AgentSocket, response: web.WebSocketResponse) -> None:
        window, count = time.monotonic(), 0
        while (message := await _receive(response)) is not None:
            count += 1
            if count > self._settings.messages_per_second:
                if time.monotonic() - window < 1.0:
                    raise ProtocolError(f"more than {self._settings.messages_per_second} messages in a second")
                window, count = time.monotonic(), 0
            if isinstance(message, Hello):
                raise ProtocolError("Hello is said once")
            self._door.message(agent, message)


async def _receive(response: web.WebSocketResponse) -> FromAgent | None:
    """The next message, or None when the connection has ended."""
    message = await response.receive()
    if message.type is WSMsgType.BINARY:
        return _decoder.decode(message.data)
    if message.type is WSMsgType.TEXT:
        raise ProtocolError("got text; messages are binary")
    return None


async def _refuse(response: web.WebSocketResponse, reason: str) -> None:
    refusal: FromMaster = Refuse(reason=reason)
    await response.send_bytes(encode(refusal))
    await response.close(code=WSCloseCode.POLICY_VIOLATION, message=reason.encode()[:120])


def _host_name(host: str) -> str:
    """The name in a Host header: without the port and the brackets of IPv6."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.rpartition(":")[0].lower() if host.count(":") == 1 else host.lower()


def _is_address(host: str) -> bool:
    """An address cannot be rebound by somebody's name server, so it is ours."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def own_names() -> tuple[str, ...]:
    """The names this machine goes by."""
    return tuple({socket.gethostname(), socket.getfqdn()})
