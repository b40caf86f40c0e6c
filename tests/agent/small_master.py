"""A master small enough to see through: the real world functions behind a real WebSocket.

It behaves (worlds are formed, committed and broken by `shoal.core.world`, deaths are answered with `Restart`), and a
test may in addition say anything to an agent, cut its connection, or await what it says.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import TypeVar

from aiohttp import WSMsgType, web

from shoal.core import world as worlds
from shoal.core.nodes import NodeId
from shoal.core.rounds import RoundAnswer
from shoal.wire.codec import Decoder, encode
from shoal.wire.messages import (
    MAX_MESSAGE,
    PROTOCOL,
    Ack,
    Commit,
    DataAnswers,
    DataRound,
    Exited,
    Finished,
    FromAgent,
    FromMaster,
    Hello,
    Interrupt,
    Pause,
    PeerClosed,
    Prepare,
    Ready,
    Refuse,
    Release,
    Restart,
    StorePush,
    StoreSet,
    Succeeded,
    Welcome,
)

TOKEN = "a-token"
M = TypeVar("M")
_decoder: Decoder[FromAgent] = Decoder(FromAgent, limit=MAX_MESSAGE)


class SmallMaster:
    def __init__(self, *, nodes: int = 1, sdk: bool = False, restarts: bool = True, heartbeat: float = 0.2) -> None:
        self.url = ""
        self.sdk = sdk
        self.restarts = restarts
        self.heartbeat = heartbeat
        self.refusal: str | None = None
        self.heard: list[tuple[str, FromAgent]] = []
        self.hellos: list[Hello] = []
        self.worlds: list[worlds.World] = []
        self.rendezvous = worlds.Rendezvous(
            settings=worlds.WorldSettings(min_nodes=1, max_nodes=max(nodes, 1), last_call=timedelta(seconds=60))
        )
        for number in range(nodes):
            self._follow(worlds.expect(self.rendezvous, NodeId(f"worker-{number}"), 1, awaited=True, now=_now()))
        self._sockets: dict[str, web.WebSocketResponse] = {}
        self._changed = asyncio.Event()
        self._addresses: dict[str, str] = {}
        self._runner: web.AppRunner | None = None
        self._port = 0
        self._joined = nodes

    async def open(self) -> None:
        app = web.Application()
        app.router.add_get("/agent", self._agent)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self._port)
        await site.start()
        self._port = self._runner.addresses[0][1]
        self.url = f"ws://127.0.0.1:{self._port}"

    async def close(self) -> None:
        for socket in list(self._sockets.values()):
            await socket.close()
        if self._runner is not None:
            await self._runner.cleanup()

    async def cut(self, node: str) -> None:
        """End the connection without a word."""
        transport = self._sockets[node]._req.transport  # type: ignore[union-attr]
        assert transport is not None
        transport.abort()
        await self.until(lambda: node not in self._sockets)

    def say(self, node: str, message: FromMaster) -> None:
        if node in self._sockets:
            asyncio.get_running_loop().create_task(_send(self._sockets[node], encode(message)))

    async def until(self, true: Callable[[], bool]) -> None:
        async with asyncio.timeout(90):
            while not true():
                self._changed.clear()
                await self._changed.wait()

    def all(self, kind: type[M], node: str | None = None) -> list[M]:
        return [m for who, m in self.heard if isinstance(m, kind) and node in (None, who)]

    async def hear(self, kind: type[M], *, nth: int = 1, node: str | None = None) -> M:
        """The nth message of a kind, once it is there."""
        await self.until(lambda: len(self.all(kind, node)) >= nth)
        return self.all(kind, node)[nth - 1]

    async def committed(self, generation: int) -> worlds.World:
        def there() -> bool:
            world = self.rendezvous.committed
            return world is not None and world.generation >= generation

        await self.until(there)
        assert self.rendezvous.committed is not None
        return self.rendezvous.committed

    def lose(self, node: str) -> None:
        self._follow(worlds.lost(self.rendezvous, NodeId(node), now=_now(), reason=f"{node} is gone"))

    def expect(self, node: str) -> None:
        self._follow(worlds.expect(self.rendezvous, NodeId(node), 1, awaited=False, now=_now()))

    # Agents -----------------------------------------------------------------------------------------------

    async def _agent(self, request: web.Request) -> web.StreamResponse:
        if request.headers.get("Authorization") != f"Bearer {TOKEN}":
            return web.Response(status=401, reason="wrong token")
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        hello = _decoder.decode((await socket.receive()).data)
        assert isinstance(hello, Hello)
        self.hellos.append(hello)
        if self.refusal is not None:
            await socket.send_bytes(encode(Refuse(reason=self.refusal)))
            return socket
        node = hello.node or f"worker-{self._joined}"
        self._addresses[node] = hello.address
        welcome = Welcome(
            protocol=PROTOCOL,
            job=hello.job,
            node=node,
            incarnation=hello.incarnation,
            sdk=self.sdk,
            max_workers=4,
            heartbeat_seconds=self.heartbeat,
            max_restarts=3,
        )
        await socket.send_bytes(encode(welcome))
        self._sockets[node] = socket
        self._changed.set()
        try:
            async for frame in socket:
                assert frame.type is WSMsgType.BINARY
                self._heard(node, _decoder.decode(frame.data))
        finally:
            if self._sockets.get(node) is socket:
                del self._sockets[node]
            self._changed.set()
        return socket

    def _heard(self, node: str, message: FromAgent) -> None:
        self.heard.append((node, message))
        name, r, now = NodeId(node), self.rendezvous, _now()
        match message:
            case Ready():
                if message.sdk and not self.sdk:
                    self.sdk = True
                    self._follow(worlds.superseded(r, now=now))
                    r = self.rendezvous
                address = self._addresses[node]
                self._follow(worlds.ready(r, name, message.incarnation, address=address, steps=message.steps, now=now))
            case Ack():
                self._follow(
                    worlds.acked(r, name, message.incarnation, message.generation, store=message.store, now=now)
                )
            case Finished():
                self._follow(worlds.finished(r, name, message.incarnation, message.generation, now=now))
            case PeerClosed():
                self._follow(worlds.broken(r, message.generation, now=now, reason=message.detail))
            case StoreSet():
                push = StorePush(generation=message.generation, store={message.key: message.value})
                for member in self._sockets:
                    self.say(member, push)
            case Exited() if self.restarts and message.code != 0:
                incarnation = message.incarnation + 1
                known = r.members.get(name)
                if known is None or known.incarnation >= incarnation:
                    return
                self._follow(worlds.dropped(r, name, incarnation, awaited=not self.sdk, now=now, reason="it died"))
                self.say(node, Restart(incarnation=incarnation, sdk=self.sdk, reason="it died"))
            case DataRound(round=round):
                self.say(node, DataAnswers(answer=RoundAnswer(number=round.number)))
            case Succeeded():
                self._follow(worlds.completed(r, name, now=now))
        self._changed.set()

    def _follow(self, step: worlds.Step) -> None:
        self.rendezvous, notices = step
        for notice in notices:
            match notice:
                case worlds.Prepare(world=world):
                    self._tell([m.node for m in world.members], Prepare(world=world))
                case worlds.Commit(world=world, store=store):
                    self.worlds.append(world)
                    commit = Commit(generation=world.generation, store=dict(store))
                    self._tell([m.node for m in world.members], commit)
                case worlds.Pause(generation=generation, to=to, reason=reason):
                    self._tell(to, Pause(generation=generation, reason=reason))
                case worlds.Interrupt(generation=generation, to=to, reason=reason):
                    self._tell(to, Interrupt(generation=generation, reason=reason))
                case worlds.Release(generation=generation, to=to):
                    self._tell(to, Release(generation=generation))
                case worlds.Dismiss():
                    pass

    def _tell(self, nodes: tuple[NodeId, ...] | list[NodeId], message: FromMaster) -> None:
        for node in nodes:
            self.say(node, message)


async def _send(socket: web.WebSocketResponse, data: bytes) -> None:
    try:
        await socket.send_bytes(data)
    except (ConnectionError, RuntimeError):
        pass  # the test cut it


def _now() -> datetime:
    return datetime.now(UTC)


@asynccontextmanager
async def a_master(**options: object) -> AsyncIterator[SmallMaster]:
    master = SmallMaster(**options)  # type: ignore[arg-type]
    await master.open()
    try:
        yield master
    finally:
        await master.close()
