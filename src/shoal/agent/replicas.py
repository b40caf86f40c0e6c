"""A second copy of the newest checkpoint in another agent's memory, for jobs that ask for it.

Every agent of such a job keeps for others. Where, it says in its part of the world's bootstrap store, so that with each
world everybody knows everybody's address. What this node saves goes to the next node of the world, on another host
if there is one. Losing this node then loses nothing that was saved, even if no training process anywhere is left.
"""

import asyncio
import itertools
import socket
from collections.abc import Callable, Mapping

from shoal.agent.saver import Saver
from shoal.checkpoint.replica import PATIENCE, Keeping, Offer, Patience, ReplicaFailed, keep, send
from shoal.core.world import World

_KEY = "agent/replica/"
_LIMIT = 4 << 20
_MOST_CONNECTIONS = 32
"""In a job one node or two send to one keeper; the rest are strangers, which are let go soon."""


class Replicas:
    """Owned by the event loop. `note` tells people."""

    def __init__(
        self,
        saver: Saver,
        *,
        token: str,
        address: str,
        note: Callable[[str], None],
        patience: Patience = PATIENCE,
    ) -> None:
        self._saver = saver
        self._token = token
        self._address = address
        self._note = note
        self._patience = patience
        self._node = ""
        self._listener: socket.socket | None = None
        self._server: asyncio.Server | None = None
        self._peer: tuple[str, str, int] | None = None
        """Name, host and port of the node that keeps for this one."""
        self._sent = 0
        self._busy = False
        self._told: str | None = None
        self._connections = 0
        self._conversations = itertools.count(1)
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Keep for others from now on. Called again it changes nothing."""
        if self._listener is not None:
            return
        try:
            family, _, _, _, address = socket.getaddrinfo(self._address, 0, type=socket.SOCK_STREAM)[0]
            self._listener = socket.create_server(address[:2], family=family)
        except OSError as exc:
            self._tell(f"no copies of checkpoints are kept here: {self._address}: {exc}", about="listen")
            return
        self._saver.on_saved(self._send_next)
        self._spawn(self._serve(self._listener))

    async def _serve(self, listener: socket.socket) -> None:
        self._server = await asyncio.start_server(self._accepted, sock=listener, limit=_LIMIT)

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._listener is not None:
            self._listener.close()

    def entry(self, node: str) -> dict[str, bytes]:
        """What this agent puts into the bootstrap store: where it keeps for others."""
        if self._listener is None:
            return {}
        port = self._listener.getsockname()[1]
        return {f"{_KEY}{node}": f"{self._address} {port}".encode()}

    def world_formed(self, world: World, store: Mapping[str, bytes], node: str) -> None:
        self._node = node
        peer = keeper_for(world, store, node)
        if peer != self._peer:
            self._peer, self._sent = peer, 0  # the new one has nothing of ours yet
        self._send_next()

    # Giving ----------------------------------------------------------------------------------------------

    def _send_next(self) -> None:
        if self._peer is None or self._busy:
            return
        held = self._saver.take_last(after=self._sent)
        if held is None:
            return
        self._busy = True
        self._spawn(self._send(self._peer, held.number, held.order))

    async def _send(self, peer: tuple[str, str, int], number: int, order: int) -> None:
        name, host, port = peer
        try:
            image, step = self._saver.image(number)
            with image:
                offer = Offer(node=self._node, step=step, nbytes=len(image))
                await send(host, port, token=self._token, offer=offer, image=image, patience=self._patience)
            self._tell(f"{name} keeps a copy of its checkpoints, so far of step {step}", about=f"ok {name}")
        except (ReplicaFailed, OSError) as exc:
            self._tell(f"no copy of its checkpoints on {name}: {exc}; training goes on", about=f"failed {name}")
        finally:
            self._saver.give_back(number)
            self._sent = max(self._sent, order)
            self._busy = False
        self._send_next()

    # Keeping ---------------------------------------------------------------------------------------------

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._connections >= _MOST_CONNECTIONS:
            self._tell("copies of checkpoints are refused: too many connections at once", about="crowd")
            writer.transport.abort()
            return
        self._connections += 1
        self._spawn(self._keep(reader, writer))

    async def _keep(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # Of each conversation: a node may come again before the end of its last connection is noticed here.
        conversation = f"replica {next(self._conversations)}"

        async def accept(offer: Offer) -> Keeping:
            number = await self._saver.room(conversation, offer.nbytes)
            if number is None:
                return Keeping(None, lambda: False)
            memory = self._saver.memory(number, offer.nbytes)
            return Keeping(
                memory, lambda: self._saver.filled(number, conversation, step=offer.step, nbytes=offer.nbytes)
            )

        try:
            await keep(reader, writer, token=self._token, accept=accept, patience=self._patience)
        except (ReplicaFailed, OSError) as exc:
            peer = writer.get_extra_info("peername")
            self._tell(f"a copy of a checkpoint from {peer} is not kept: {exc}", about="refused")
        finally:
            self._connections -= 1
            self._saver.writer_gone(conversation)
            writer.close()

    def _tell(self, line: str, *, about: str) -> None:
        if about != self._told:
            self._told = about
            self._note(line)

    def _spawn(self, work: "asyncio._CoroutineLike[None]") -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def keeper_for(world: World, store: Mapping[str, bytes], node: str) -> tuple[str, str, int] | None:
    """Who keeps for `node`: the next member of the world that can, on another host if there is one."""
    names = [member.node for member in world.members]
    if node not in names:
        return None
    at = names.index(node)  # type: ignore[arg-type]
    others = (*world.members[at + 1 :], *world.members[:at])
    able = [member for member in others if f"{_KEY}{member.node}" in store]
    if not able:
        return None
    own = world.members[at].address
    chosen = next((member for member in able if member.address != own), able[0])
    host, _, port = store[f"{_KEY}{chosen.node}"].decode("ascii", "replace").partition(" ")
    return (chosen.node, host, int(port)) if port.isdecimal() else None
