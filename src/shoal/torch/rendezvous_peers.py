"""Connections between the torchruns of one world, so that the end of one is noticed at once.

Every node holds one connection to that of group rank 0. The kernel closes the connections of a dead process, and with
its closed connection to the master this makes a node gone at once, instead of suspected for ten seconds
(elastic-job §3); the others come to the next world before their processes fail. Who leaves on purpose says so first.
Where to connect travels with group rank 0's acknowledgement, with a word that only members of the world know.
"""

import asyncio
import contextlib
import hmac
import secrets
import socket
from collections.abc import Awaitable, Callable

_BYE = b"bye"
_WORD_BYTES = 32
_GREETING_SECONDS = 10.0
_LEAVE_SECONDS = 1.0
"""How long leaving may wait for the connections to close."""


class PeerWatch:
    """One world's connections on one node. Lives in one event loop; `lost` is called when one ends without a word."""

    def __init__(self, lost: Callable[[], Awaitable[None]]) -> None:
        self._lost = lost
        self._word = secrets.token_hex(_WORD_BYTES // 2)
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._has_left = False

    async def host(self, address: str) -> str:
        """Wait for the others; return what they need to come."""
        listener = _listener()
        self._server = await asyncio.start_server(self._greet, sock=listener)
        return f"{address}:{listener.getsockname()[1]}/{self._word}"

    async def join(self, invitation: str) -> None:
        where, _, word = invitation.rpartition("/")
        host, _, port = where.rpartition(":")
        try:
            reader, writer = await asyncio.open_connection(host, int(port))
        except OSError:
            await self._lost()
            return
        writer.write(word.encode())
        task = asyncio.create_task(self._watch(reader, writer))
        self._keep(task)

    async def leave(self) -> None:
        self._has_left = True
        if self._server is not None:
            self._server.close()
        for writer in self._writers:
            writer.write(_BYE)
            writer.close()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_LEAVE_SECONDS)

    async def _greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._keep(task)
        try:
            async with asyncio.timeout(_GREETING_SECONDS):
                word = await reader.readexactly(_WORD_BYTES)
        except (TimeoutError, OSError, asyncio.IncompleteReadError):
            word = b""
        if hmac.compare_digest(word, self._word.encode()):
            await self._watch(reader, writer)
        else:
            writer.close()  # a stranger

    async def _watch(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            said = await reader.readexactly(len(_BYE))
        except (OSError, asyncio.IncompleteReadError):
            said = b""
        finally:
            self._writers.discard(writer)
            writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
        if said != _BYE and not self._has_left:
            await self._lost()

    def _keep(self, task: "asyncio.Task[None]") -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _listener() -> socket.socket:
    """On every address of this machine, as torch's store listens: what others call it may not be an interface's."""
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", 0))
