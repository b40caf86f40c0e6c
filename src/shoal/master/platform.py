"""A platform in another process, as a `Scaler`: plans go out over its socket, ends of nodes come in.

The platform connects to the master (`/platform`), so a master that takes over finds it within moments. A new
connection takes the place of an older one: what exists is told anew with each.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Protocol

from aiohttp import WSCloseCode, WSMsgType, web

from shoal.core.errors import PlatformUnavailable, ProtocolError
from shoal.core.exits import ProcessExit
from shoal.core.job.values import Announced
from shoal.core.nodes import NodeId
from shoal.core.plans import ScalePlan
from shoal.core.view import ENDED
from shoal.wire.codec import Decoder, encode
from shoal.wire.messages import MAX_MESSAGE, PROTOCOL
from shoal.wire.platform import (
    Denied,
    FromPlatform,
    JobEnded,
    JobSeen,
    NodeEnded,
    PlatformHello,
    Scaled,
    ScaleOrder,
    StopOrder,
)
from shoal.wire.server import AgentSocket, ServerSettings

log = logging.getLogger("shoal.master")

ANSWER_SECONDS = 60.0
"""How long a platform may take over one order."""
GOODBYE_SECONDS = 5.0
"""How long the end of the job may take to reach the platform."""
HELLO_SECONDS = 10.0

_decoder: Decoder[FromPlatform] = Decoder(FromPlatform, limit=MAX_MESSAGE)


class Desk(Protocol):
    """What the master has to say to its platform, and what it wants to hear of it."""

    def seen(self) -> JobSeen: ...

    def refuses(self, hello: PlatformHello) -> str | None: ...

    async def outranks(self, term: int, who: str) -> bool: ...

    def announced(self, nodes: tuple[Announced, ...]) -> None: ...

    def exists(self, running: frozenset[NodeId], ended: dict[NodeId, ProcessExit]) -> None: ...

    def stop_order(self, order: StopOrder) -> None: ...


class RemoteScaler:
    """A `Scaler` whose nodes are another process's."""

    def __init__(self) -> None:
        self._desk: Desk | None = None
        self._on_exit: Callable[[NodeId, ProcessExit], None] | None = None
        self._socket: AgentSocket | None = None
        self._there = asyncio.Event()
        self._heard = asyncio.Event()
        """The platform was told of the end, and has gone."""
        self._number = 0
        self._answers: dict[int, asyncio.Future[Scaled]] = {}
        self._end: JobEnded | None = None

    def routes(self, desk: Desk) -> list[web.RouteDef]:
        self._desk = desk
        return [web.get("/platform", self._connected)]

    # The port ---------------------------------------------------------------------------------------------

    async def start(self, on_exit: Callable[[NodeId, ProcessExit], None]) -> None:
        self._on_exit = on_exit

    async def scale(self, plan: ScalePlan) -> None:
        await self._there.wait()
        assert self._socket is not None
        self._number += 1
        number = self._number
        answer: asyncio.Future[Scaled] = asyncio.get_running_loop().create_future()
        self._answers[number] = answer
        order = ScaleOrder(number=number, launch=plan.launch_nodes, remove=plan.remove_nodes, reason=plan.reason)
        self._socket.push(encode(order))
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                said = await answer
        except TimeoutError as exc:
            raise PlatformUnavailable(f"the platform did not answer within {ANSWER_SECONDS:g} s") from exc
        finally:
            self._answers.pop(number, None)
        if said.error is not None:
            raise PlatformUnavailable(said.error)

    async def close(self) -> None:
        """The nodes are the platform's: it ends them when it hears that the job is over, and goes."""
        view = self._desk.seen().view if self._desk is not None else None
        if view is None or view.phase not in ENDED:
            return
        self._end = JobEnded(view=view)
        if self._socket is not None:
            self._socket.push(encode(self._end))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(GOODBYE_SECONDS):
                await self._heard.wait()

    # The socket -------------------------------------------------------------------------------------------

    async def _connected(self, request: web.Request) -> web.StreamResponse:
        response = web.WebSocketResponse(max_msg_size=MAX_MESSAGE, compress=False, heartbeat=10.0, timeout=1.0)
        if not response.can_prepare(request).ok:
            return web.json_response({"error": "/platform is a WebSocket"}, status=400)
        await response.prepare(request)
        try:
            async with asyncio.timeout(HELLO_SECONDS):
                hello = self._greeted(await _receive(response))
        except (TimeoutError, ProtocolError) as exc:
            await response.send_bytes(encode(Denied(reason=str(exc) or "no hello in time")))
            await response.close(code=WSCloseCode.POLICY_VIOLATION)
            return response
        assert self._desk is not None
        if not await self._desk.outranks(hello.term, "the platform"):
            await response.close(code=WSCloseCode.TRY_AGAIN_LATER)
            return response
        await self._serve(response, hello, str(request.remote))
        return response

    def _greeted(self, message: FromPlatform | None) -> PlatformHello:
        """Raises `ProtocolError` with what is to be said to one that is not wanted."""
        assert self._desk is not None
        if not isinstance(message, PlatformHello):
            raise ProtocolError(f"the first message must be PlatformHello, got {type(message).__name__}")
        if message.protocol != PROTOCOL:
            raise ProtocolError(f"protocol {message.protocol} asked, this master speaks {PROTOCOL}")
        refusal = self._desk.refuses(message)
        if refusal is not None:
            raise ProtocolError(refusal)
        return message

    async def _serve(self, response: web.WebSocketResponse, hello: PlatformHello, peer: str) -> None:
        socket = AgentSocket(response, ServerSettings(), peer=peer)
        if self._socket is not None:
            self._socket.end()
            self._give_up_orders()  # nobody answers them on another connection
        self._socket = socket
        try:
            async with asyncio.TaskGroup() as tasks:
                helpers = [tasks.create_task(socket.write()), tasks.create_task(self._show(socket, hello.view_seconds))]
                self._begin(hello)
                await self._read(response)
                for helper in helpers:
                    helper.cancel()
        except* (ProtocolError, ConnectionError, TimeoutError) as group:
            log.warning("the platform's connection (%s) ended: %s", peer, group.exceptions[0])
        finally:
            if self._socket is socket:
                self._socket = None
                self._there.clear()
                if self._end is not None:
                    self._heard.set()
                self._give_up_orders()

    def _give_up_orders(self) -> None:
        """They come again, as the plans they were made of."""
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(PlatformUnavailable("the platform's connection ended"))

    def _begin(self, hello: PlatformHello) -> None:
        assert self._desk is not None
        assert self._socket is not None
        self._socket.push(encode(self._desk.seen()))
        ended = {NodeId(node): exit for node, exit in hello.ended.items()}
        self._desk.announced(tuple(Announced(node=NodeId(node), seat=seat) for node, seat in hello.seats.items()))
        self._desk.exists(frozenset(NodeId(node) for node in hello.running), ended)
        if self._end is not None:
            self._socket.push(encode(self._end))
        self._there.set()

    async def _show(self, socket: AgentSocket, seconds: float) -> None:
        assert self._desk is not None
        while self._end is None:
            await asyncio.sleep(max(0.05, seconds))
            socket.push(encode(self._desk.seen()))

    async def _read(self, response: web.WebSocketResponse) -> None:
        assert self._desk is not None
        while (message := await _receive(response)) is not None:
            match message:
                case NodeEnded(node=node, exit=exit):
                    if self._on_exit is not None:
                        self._on_exit(NodeId(node), exit)
                case Scaled(number=number):
                    answer = self._answers.get(number)
                    if answer is not None and not answer.done():
                        answer.set_result(message)
                case StopOrder():
                    self._desk.stop_order(message)
                case PlatformHello():
                    raise ProtocolError("PlatformHello is said once")


async def _receive(response: web.WebSocketResponse) -> FromPlatform | None:
    message = await response.receive()
    if message.type is WSMsgType.BINARY:
        return _decoder.decode(message.data)
    if message.type is WSMsgType.TEXT:
        raise ProtocolError("got text; messages are binary")
    return None
