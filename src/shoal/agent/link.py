"""The agent's link to its master: one connection at a time, made again whenever it is lost.

What a node *is* (ready, failed, finished) is said anew after each handshake, by `Owner.welcomed`; it needs no memory
here. What merely *happened* is kept while there is no connection, in order and bounded; heartbeats and progress
are not.
"""

import asyncio
from collections import deque
from typing import Protocol

from shoal.agent.settings import AgentSettings
from shoal.core.errors import Disconnected, ProtocolError
from shoal.wire.client import Connection, connect
from shoal.wire.messages import (
    FromAgent,
    FromMaster,
    Heartbeat,
    Hello,
    Left,
    PeerClosed,
    Progress,
    Resized,
    StoreSet,
    Succeeded,
    Welcome,
)

KEPT = (StoreSet, PeerClosed, Resized, Succeeded, Left)
KEPT_LIMIT = 1000
"""Messages kept without a connection; beyond that the oldest go. An outage produces a handful."""


class Owner(Protocol):
    """Called in the event loop; must not block."""

    def hello(self) -> Hello: ...
    def welcomed(self, welcome: Welcome) -> None: ...
    def received(self, message: FromMaster) -> None: ...
    def note(self, line: str) -> None: ...

    @property
    def patience(self) -> float:
        """Seconds without a master after which it is given up."""
        ...


class MasterLink:
    def __init__(self, settings: AgentSettings, owner: Owner) -> None:
        self._settings = settings
        self._owner = owner
        self._connected = False
        self._outbox: deque[FromAgent] = deque()
        self._filled = asyncio.Event()
        self._emptied = asyncio.Event()
        self._emptied.set()

    def send(self, message: FromAgent) -> None:
        """Send as soon as possible, in order. Never waits."""
        if not self._connected and not isinstance(message, KEPT):
            return  # what still holds is said after the handshake
        if isinstance(message, Progress | Heartbeat):
            self._forget(type(message))
        if not self._connected and len(self._outbox) >= KEPT_LIMIT:
            self._outbox.popleft()
        self._outbox.append(message)
        self._emptied.clear()
        self._filled.set()

    async def emptied(self, seconds: float) -> None:
        """Wait until all is sent, but not longer than this."""
        try:
            async with asyncio.timeout(seconds):
                await self._emptied.wait()
        except TimeoutError:
            self._owner.note(f"the master did not take the last message within {seconds:g} s")

    async def run(self) -> None:
        """Keep the link up. Ends only by `Refused`, `ProtocolError`, or `Disconnected` when there was no master for
        too long."""
        loop, settings = asyncio.get_running_loop(), self._settings.reconnect
        lost_at, delay, said = loop.time(), settings.first_delay, False
        while True:
            try:
                connection = await self._connect()
            except Disconnected as exc:
                if loop.time() - lost_at >= self._owner.patience:
                    raise Disconnected(f"{exc}; gave up after {self._owner.patience:g} s") from exc
                if not said:
                    self._owner.note(f"{exc}; trying for {self._owner.patience:g} s")
                said = True
                await asyncio.sleep(delay)
                delay = min(2 * delay, settings.longest_delay)
                continue
            if said:
                self._owner.note("connected to the master")
            reason = await self._use(connection)
            self._owner.note(f"{reason}; training goes on")
            lost_at, delay, said = loop.time(), settings.first_delay, True

    async def _connect(self) -> Connection:
        settings = self._settings
        return await connect(
            settings.master,
            token=settings.token,
            hello=self._owner.hello(),
            fingerprint=settings.fingerprint,
            timeout=settings.reconnect.connect_timeout,
        )

    async def _use(self, connection: Connection) -> str:
        """Carry messages both ways until the connection is lost; return why it was. Raises `ProtocolError`."""
        problems: list[Exception] = []
        try:
            self._connected = True
            self._owner.welcomed(connection.welcome)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._read(connection))
                tasks.create_task(self._write(connection))
        except* (Disconnected, ProtocolError) as group:
            problems.extend(group.exceptions)
        finally:
            self._connected = False
            self._outbox = deque(message for message in self._outbox if isinstance(message, KEPT))
            if not self._outbox:
                self._emptied.set()
            await connection.close()
        for problem in problems:
            if isinstance(problem, ProtocolError):
                raise problem
        return str(problems[0])

    async def _read(self, connection: Connection) -> None:
        async for message in connection:
            self._owner.received(message)

    async def _write(self, connection: Connection) -> None:
        while True:
            await self._filled.wait()
            self._filled.clear()
            while self._outbox:
                await connection.send(self._outbox[0])
                self._outbox.popleft()
            self._emptied.set()

    def _forget(self, kind: type[Progress] | type[Heartbeat]) -> None:
        """Only the newest of these is worth sending. The first in the box may be on its way already."""
        for index in range(len(self._outbox) - 1, 0, -1):
            if isinstance(self._outbox[index], kind):
                del self._outbox[index]
                return
