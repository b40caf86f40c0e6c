"""The agent's Unix socket: where its training processes attach.

The socket lies in a directory of the agent's own (0700) and is itself 0600; the kernel says which process is at the
other end, and only training processes of this node and what they have started are let in. Bytes that are no
message end that one connection and nothing else.
"""

import asyncio
import os
import socket
import struct
from pathlib import Path
from typing import Protocol

from shoal.core.errors import ProtocolError
from shoal.wire.local import HEADER, LOCAL_PROTOCOL, Attach, Attached, FromAgentLocal, FromProcess, frame
from shoal.wire.local import process_decoder as decoder
from shoal.wire.messages import MAX_COMMAND, MAX_MESSAGE, Refuse

UNREAD_LIMIT = 2 * MAX_COMMAND
"""Bytes a process may leave unread (it is stopped, say) before its connection is given up."""

_CREDENTIALS = struct.Struct("3i")


class Owner(Protocol):
    """Who hears of it all. Called in the event loop; must not block."""

    def slot_of(self, pid: int) -> int | None:
        """The local rank of the live training process with this pid."""

    def greeting(self) -> Attached: ...
    def process_attached(self, local_rank: int) -> None: ...
    def process_said(self, local_rank: int, message: FromProcess) -> None: ...
    def process_detached(self, local_rank: int) -> None: ...
    def note(self, line: str) -> None: ...


class LocalServer:
    def __init__(self, path: Path, owner: Owner) -> None:
        self.path = path
        self._owner = owner
        self._links: dict[int, _Link] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        self._server = await asyncio.start_unix_server(self._accepted, self.path)
        os.chmod(self.path, 0o600)

    def tell(self, local_ranks: tuple[int, ...], message: FromAgentLocal) -> None:
        data = frame(message)
        for rank in local_ranks:
            if rank in self._links:
                self._links[rank].write(data)

    def drop(self, local_rank: int) -> None:
        """The process has ended; what it said and we have not read is of no use any more."""
        link = self._links.pop(local_rank, None)
        if link is not None:
            link.close()

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(_Link(reader, writer)))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, link: "_Link") -> None:
        rank: int | None = None
        try:
            rank = await self._attach(link)
            while rank is not None:
                self._owner.process_said(rank, await link.read())
        except ProtocolError as exc:
            self._owner.note(f"closed a local connection from process {link.peer}: {exc}")
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the process closed it, or ended
        finally:
            link.close()
            if rank is not None and self._links.get(rank) is link:
                del self._links[rank]
                self._owner.process_detached(rank)

    async def _attach(self, link: "_Link") -> int | None:
        message = await link.read()
        if not isinstance(message, Attach):
            raise ProtocolError(f"the first message must be Attach, got {type(message).__name__}")
        why = self._refusal(link.peer, message)
        if why is not None:
            link.write(frame(Refuse(reason=why)))
            self._owner.note(f"refused process {link.peer}: {why}")
            return None
        self.drop(message.local_rank)
        self._links[message.local_rank] = link
        link.write(frame(self._owner.greeting()))
        self._owner.process_attached(message.local_rank)
        return message.local_rank

    def _refusal(self, peer: int, attach: Attach) -> str | None:
        if attach.protocol != LOCAL_PROTOCOL:
            return f"it speaks local protocol {attach.protocol}, this agent {LOCAL_PROTOCOL}"
        rank = self._training_process_above(peer)
        if rank is None:
            return "it is no training process of this node"
        if rank != attach.local_rank:
            return f"it says that it is local rank {attach.local_rank}, but it belongs to {rank}"
        held = self._links.get(rank)
        if held is not None and held.peer == peer:
            return "this process is attached already: a job has one training function"
        if held is not None:
            return f"process {held.peer} is attached as local rank {rank} already"
        return None

    def _training_process_above(self, pid: int) -> int | None:
        """The local rank of the process itself or of its nearest ancestor that has one."""
        try:
            by_session = self._owner.slot_of(os.getsid(pid))
        except OSError:
            return None
        while by_session is None and pid > 1:
            by_session = self._owner.slot_of(pid)
            pid = _parent(pid)
        return by_session


class _Link:
    """One connection, framed."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        peer = writer.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        self.peer: int = _CREDENTIALS.unpack(peer)[0]

    async def read(self) -> FromProcess:
        (length,) = HEADER.unpack(await self._reader.readexactly(HEADER.size))
        if length > MAX_MESSAGE:
            raise ProtocolError(f"message of {length} bytes, at most {MAX_MESSAGE} are read")
        return decoder.decode(await self._reader.readexactly(length))

    def write(self, data: bytes) -> None:
        transport = self._writer.transport
        if transport.is_closing():
            return
        if transport.get_write_buffer_size() > UNREAD_LIMIT:
            transport.abort()
            return
        transport.write(data)

    def close(self) -> None:
        self._writer.close()


def _parent(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return int(file.read().rpartition(")")[2].split()[1])
    except OSError:
        return 0
