"""The thread that speaks with the master while torchrun's agent does its own work in the main thread.

It owns the `Member`: only this thread's event loop changes it, others read the value. It keeps the connection up,
beats the heart, answers the master, and when this node has group rank 0 it hosts the store of a generation and the
other nodes' connections. How to connect and how to open a store are given to it.
"""

import asyncio
import contextlib
import logging
import os
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Protocol, TypeVar

from torch._C._distributed_c10d import TCPStore

from shoal.core.errors import Disconnected, ProtocolError, Refused
from shoal.torch.rendezvous_member import (
    Ending,
    Formed,
    Member,
    Stage,
    asked,
    ended,
    is_host,
    last_words,
    opened,
    peer_lost,
    told,
    welcomed,
)
from shoal.torch.rendezvous_peers import PeerWatch
from shoal.torch.rendezvous_settings import HandlerSettings
from shoal.wire.messages import PROTOCOL, Commit, FromAgent, FromMaster, Heartbeat, Hello, Prepare, Welcome

log = logging.getLogger("shoal.torch.rendezvous")

RETRY_SECONDS = (0.1, 0.2, 0.5, 1.0, 2.0)
"""Between attempts to reach the master; the last one repeats."""
LAST_WORDS_SECONDS = 5.0
"""How long the end of torchrun may wait for a master to hear of it."""

T = TypeVar("T")


class Wire(Protocol):
    """A connection whose handshake is done (`shoal.wire.client.Connection`)."""

    welcome: Welcome

    async def send(self, message: FromAgent) -> None: ...

    def __aiter__(self) -> AsyncIterator[FromMaster]: ...

    async def close(self) -> None: ...


Connect = Callable[[Hello], Coroutine[None, None, Wire]]
"""Raises `Refused` (final) or `Disconnected`."""


class MasterLink:
    def __init__(self, settings: HandlerSettings, *, connect: Connect, open_store: Callable[[], TCPStore]) -> None:
        self._settings = settings
        self._connect = connect
        self._open_store = open_store
        self._member = Member(slots=settings.slots)
        self._hosted: TCPStore | None = None
        self._peers: PeerWatch | None = None
        self._wire: Wire | None = None
        self._changed = asyncio.Event()
        self._began = time.monotonic()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._serve, name="shoal-rendezvous", daemon=True)
        self._serving = threading.Event()
        self._talking: asyncio.Task[None] | None = None

    # For the main thread ----------------------------------------------------------------------------------

    @property
    def member(self) -> Member:
        talking = self._talking
        if talking is not None and talking.done() and not talking.cancelled():
            talking.result()  # raises what ended the thread's work, if it was an error
        return self._member

    @property
    def hosted(self) -> TCPStore | None:
        """The store of the world that was formed last, if this node hosts it."""
        return self._hosted

    def next_world(self, timeout: float) -> Formed | None:
        """Ask for a world and wait for it. None: the member is over. Raises TimeoutError."""
        if self._loop is None:
            self._thread.start()
            self._serving.wait()
        return self._call(self._next_world(), timeout)

    def say_end(self, error: str | None) -> bool:
        """Tell the master how it ended here, and end the thread. False: the master could not be told."""
        loop = self._loop
        if loop is None:
            return True
        try:
            return self._call(self._say_end(error), LAST_WORDS_SECONDS)
        except TimeoutError:
            return False
        finally:
            loop.call_soon_threadsafe(loop.stop)
            self._thread.join(LAST_WORDS_SECONDS)

    def _call(self, work: Coroutine[None, None, T], timeout: float) -> T:
        assert self._loop is not None
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(timeout)
        except BaseException:  # also torchrun's SignalException: nobody waits for the answer any more
            future.cancel()
            raise

    # In the thread ----------------------------------------------------------------------------------------

    def _serve(self) -> None:
        with asyncio.Runner() as runner:  # ends with every task cancelled and waited for
            self._loop = runner.get_loop()
            self._serving.set()
            self._loop.run_forever()

    async def _next_world(self) -> Formed | None:
        self._hosted = None
        await self._leave_peers()
        await self._take(*asked(self._member))
        if self._talking is None:
            self._talking = asyncio.create_task(self._stay_connected())
        while self._member.over is None and self._member.stage is not Stage.TRAINING:
            await self._change()
        return self._member.formed if self._member.over is None else None

    async def _say_end(self, error: str | None) -> bool:
        await self._leave_peers()
        said = last_words(self._member, error, pid=os.getpid(), uptime_seconds=round(time.monotonic() - self._began, 3))
        while self._wire is None and self._talking is not None and not self._talking.done():
            await self._change()
        if self._wire is None:
            return not said
        try:
            for message in said:
                await self._wire.send(message)
        except Disconnected:
            return False
        return True

    async def _stay_connected(self) -> None:
        """Until the member is over. A defect of ours ends it too, and is not lost: the main thread gets it."""
        lost_at = time.monotonic()
        attempt = 0
        while self._member.over is None:
            try:
                wire = await self._connect(self._hello())
            except Refused as exc:
                self._put(ended(self._member, Ending.CLOSED, str(exc)))
                return
            except Disconnected as exc:
                waited = time.monotonic() - lost_at
                if waited >= self._settings.master_timeout:
                    self._put(ended(self._member, Ending.UNREACHABLE, f"{exc} (tried for {waited:.0f} s)"))
                    return
                if attempt == 0:
                    log.warning("%s; trying for %g s", exc, self._settings.master_timeout)
                await asyncio.sleep(RETRY_SECONDS[min(attempt, len(RETRY_SECONDS) - 1)])
                attempt += 1
                continue
            attempt = 0
            try:
                await self._talk(wire)
            except Disconnected as exc:
                log.warning("%s; connecting again", exc)
            except ProtocolError as exc:
                self._put(ended(self._member, Ending.CLOSED, str(exc)))
            finally:
                self._wire = None
                await wire.close()
            lost_at = time.monotonic()

    async def _talk(self, wire: Wire) -> None:
        self._wire = wire
        await self._take(*welcomed(self._member, wire.welcome))
        heart = asyncio.create_task(self._beat(wire, wire.welcome.heartbeat_seconds))
        try:
            async for message in wire:
                await self._take(*told(self._member, message))
                match message:
                    case Prepare(world=world) if is_host(self._member):
                        await self._host(world.generation)
                    case Commit(generation=generation) if generation == self._member.generation:
                        await self._meet_peers(generation)
        finally:
            heart.cancel()

    async def _beat(self, wire: Wire, seconds: float) -> None:
        with contextlib.suppress(Disconnected):  # the reader hears of it as well
            while True:
                await wire.send(Heartbeat(incarnation=self._member.incarnation, processes=()))
                await asyncio.sleep(seconds)

    async def _host(self, generation: int) -> None:
        """Every generation gets a store of its own; one that was never committed is let go with the next."""
        await self._leave_peers()
        self._hosted = await asyncio.to_thread(self._open_store)
        self._peers = self._watch(generation)
        address = self._settings.address
        peers = await self._peers.host(address)
        store = f"{address}:{self._hosted.port}"
        await self._take(*opened(self._member, generation, store=store, peers=peers))

    async def _meet_peers(self, generation: int) -> None:
        formed = self._member.formed
        assert formed is not None
        if formed.rank != 0 and formed.peers is not None:
            await self._leave_peers()  # of a generation that this node was to host and that never came
            self._peers = self._watch(generation)
            await self._peers.join(formed.peers)

    def _watch(self, generation: int) -> PeerWatch:
        async def lost() -> None:
            await self._take(*peer_lost(self._member, generation))

        return PeerWatch(lost)

    async def _leave_peers(self) -> None:
        if self._peers is not None:
            await self._peers.leave()
            self._peers = None

    def _hello(self) -> Hello:
        m, s = self._member, self._settings
        return Hello(
            protocol=PROTOCOL,
            job=s.job,
            node=m.node,
            incarnation=m.incarnation,
            host=s.host,
            address=s.address,
            slots=s.slots,
            pid=os.getpid(),
            generation=m.generation,
        )

    async def _take(self, member: Member, messages: tuple[FromAgent, ...]) -> None:
        """Become `member`, then say what is to be said. Without a connection it is said after the next handshake."""
        self._put(member)
        for message in messages:
            if self._wire is not None:
                with contextlib.suppress(Disconnected):  # the reader hears of it, and connects again
                    await self._wire.send(message)

    def _put(self, member: Member) -> None:
        self._member = member
        self._changed.set()

    async def _change(self) -> None:
        """Wait for the member to change; for the end of the conversation too."""
        self._changed.clear()
        waiting = asyncio.create_task(self._changed.wait())
        talking = {self._talking} if self._talking is not None else set()
        try:
            await asyncio.wait({waiting, *talking}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
        if self._talking is not None and self._talking.done():
            await self._talking
