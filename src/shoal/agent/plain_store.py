"""The agent's side of the store of a plain world: it listens at once, and imports torch for nobody who does not ask.

The port is known as soon as the socket listens, so the world can be committed. The first connection (from a training
process that has just imported torch itself) starts the host process in the training interpreter, if it does not run
yet, and hands the listening socket over; the connection waits in the socket's queue meanwhile.
"""

import asyncio
import json
import socket
from collections.abc import Callable, Mapping
from pathlib import Path

from shoal.agent.guard import Guard
from shoal.agent.output import Route
from shoal.agent.processes import Process
from shoal.core.world import World

_SCRIPT = Path(__file__).with_name("store_host.py")
_BACKLOG = 4096
"""All processes of a world may connect before the host is up."""


class PlainStore:
    def __init__(
        self,
        python: str,
        address: str,
        *,
        environment: Mapping[str, str],
        guard: Guard,
        note: Callable[[str], None],
        ended: Callable[[], None],
    ) -> None:
        """`ended` is called when the host is gone."""
        self._python = python
        self._address = address
        self._environment = {**environment, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
        self._guard = guard
        self._note = note
        self._told_end = ended
        self._listening: socket.socket | None = None
        self._host: Process | None = None
        self._channel: socket.socket | None = None

    def open(self, world: World) -> str:
        """Listen for a world's store; return its `host:port`. Raises OSError when the address is not this machine's."""
        self._unlisten()
        family, _, _, _, where = socket.getaddrinfo(self._address, 0, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, socket.SOCK_STREAM)
        try:
            listening.setblocking(False)
            listening.bind(where)
            listening.listen(_BACKLOG)
        except OSError:
            listening.close()
            raise
        port: int = listening.getsockname()[1]
        self._listening = listening
        asyncio.get_running_loop().add_reader(listening, self._hand_over, listening, port, world.size)
        return f"{self._address}:{port}"

    def warm(self) -> Process:
        """Have the host running, with torch imported."""
        if self._host is not None:
            return self._host
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._host = Process(
                [self._python, str(_SCRIPT), str(theirs.fileno())],
                guard=self._guard,
                environment=self._environment,
                working_dir=None,
                outputs=self._outputs,
                ended=self._ended,
                pass_fds=(theirs.fileno(),),
            )
        self._channel = ours
        return self._host

    def close(self) -> None:
        """No store any more; the host goes."""
        self._unlisten()
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        if self._host is not None:
            self._host.kill()

    @property
    def is_hosting(self) -> bool:
        return self._host is not None

    def _hand_over(self, listening: socket.socket, port: int, size: int) -> None:
        asked = json.dumps({"host": self._address, "port": port, "size": size}).encode()
        try:
            self.warm()
            assert self._channel is not None
            socket.send_fds(self._channel, [asked], [listening.fileno()])
        except OSError as exc:
            self._note(f"cannot host the store of plain scripts with {self._python}: {exc}")
        self._unlisten()  # the host has it now; if the host dies, nobody waits at a dead socket

    def _unlisten(self) -> None:
        if self._listening is not None:
            asyncio.get_running_loop().remove_reader(self._listening)
            self._listening.close()
            self._listening = None

    def _outputs(self, stream: str) -> Route:
        return Route(show=lambda line: self._note(f"store: {line}"))

    def _ended(self, process: Process, code: int) -> None:
        if self._channel is not None:
            self._note(f"the host of the store ended by itself (exit {code}); the next world gets another")
            self._channel.close()
            self._channel = None
        self._host = None
        self._told_end()
