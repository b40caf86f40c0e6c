"""Agents as child processes of this one.

Each agent has a session of its own, is killed by the kernel when this process dies however it dies, and its exit is
seen through a pidfd the moment it happens. What becomes of an agent's training processes is the agent's business
(and, when it is killed, its guard's).
"""

import asyncio
import ctypes
import logging
import os
import signal
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from shoal.core.errors import PlatformUnavailable
from shoal.core.exits import ProcessExit, shell_code
from shoal.core.nodes import Node, NodeId, NodeStatus
from shoal.core.plans import ScalePlan

log = logging.getLogger("shoal.platforms.local")

Output = Callable[[NodeId, bytes, bool], None]
"""Called with a node, one line it printed (without the newline), and whether it was on stderr."""

_PR_SET_PDEATHSIG = 1
_LINE_LIMIT = 256 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalLaunch:
    """How one node is started."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(repr=False)
    """May hold the job's token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalSettings:
    linger_seconds: float = 10.0
    """How long a node that ended well may take to be gone before it is killed."""
    close_seconds: float = 5.0
    """How long `close` waits for killed processes to be gone."""


class LocalScaler:
    """A `Scaler` whose nodes are child processes."""

    def __init__(
        self, launch: Callable[[Node], LocalLaunch], output: Output, settings: LocalSettings | None = None
    ) -> None:
        self._launch = launch
        self._output = output
        self._settings = settings or LocalSettings()
        self._children: dict[NodeId, _Child] = {}
        self._ever: set[NodeId] = set()
        self._on_exit: Callable[[NodeId, ProcessExit], None] | None = None

    async def start(self, on_exit: Callable[[NodeId, ProcessExit], None]) -> None:
        self._on_exit = on_exit

    async def scale(self, plan: ScalePlan) -> None:
        for node in plan.remove_nodes:
            self._remove(node)
        failures: list[PlatformUnavailable] = []
        for node in plan.launch_nodes:
            if node.id not in self._ever:
                try:
                    self._start(node)
                except PlatformUnavailable as exc:
                    failures.append(exc)  # the others are started all the same
        if failures:
            raise PlatformUnavailable("; ".join(str(exc) for exc in failures)) from failures[0]

    def existing(self) -> tuple[NodeId, ...]:
        """The nodes whose processes are there."""
        return tuple(self._children)

    def seats(self) -> dict[str, int]:
        """Which place of the job each of them fills."""
        return {node: child.seat for node, child in self._children.items()}

    async def close(self) -> None:
        children = list(self._children.values())
        for child in children:
            child.kill()
        await asyncio.gather(*(child.gone(self._settings.close_seconds) for child in children))

    def _start(self, node: Node) -> None:
        launch = self._launch(node)
        try:
            child = _Child(node, launch, self._output, self._exited)
        except OSError as exc:
            raise PlatformUnavailable(f"{node.id}: cannot start {launch.argv[0]}: {exc}") from exc
        self._ever.add(node.id)
        self._children[node.id] = child

    def _remove(self, node: Node) -> None:
        self._ever.add(node.id)  # a launch of it that comes late is not carried out
        child = self._children.get(node.id)
        if child is None:
            return
        if node.status is NodeStatus.SUCCEEDED:
            asyncio.get_running_loop().call_later(self._settings.linger_seconds, child.kill)
        else:
            child.kill()

    def _exited(self, node: NodeId, code: int) -> None:
        self._children.pop(node, None)
        if self._on_exit is not None:
            self._on_exit(node, ProcessExit(code=shell_code(code)))


class _Child:
    """One agent process, its pipes and its end."""

    def __init__(
        self, started: Node, launch: LocalLaunch, output: Output, on_exit: Callable[[NodeId, int], None]
    ) -> None:
        self._node = node = started.id
        self.seat = started.seat
        self._on_exit = on_exit
        self._loop = asyncio.get_running_loop()
        self._ended = asyncio.Event()
        parent = os.getpid()
        self._process = subprocess.Popen(
            launch.argv,
            env=dict(launch.env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            preexec_fn=lambda: die_with(parent),
        )
        self._pidfd = os.pidfd_open(self._process.pid)
        self._loop.add_reader(self._pidfd, self._exited)
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._pipes = {
            self._process.stdout.fileno(): _Lines(lambda line: output(node, line, False)),
            self._process.stderr.fileno(): _Lines(lambda line: output(node, line, True)),
        }
        for fd in self._pipes:
            os.set_blocking(fd, False)
            self._loop.add_reader(fd, self._readable, fd)

    def kill(self) -> None:
        """End it and its session now. Safe when it is already gone."""
        if self._process.poll() is None:
            try:
                os.killpg(self._process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass

    async def gone(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._ended.wait()
        except TimeoutError:
            log.error("%s (pid %d) did not die within %g s of being killed", self._node, self._process.pid, seconds)

    def _readable(self, fd: int) -> None:
        try:
            data = os.read(fd, 65536)
        except BlockingIOError:
            return
        if data:
            self._pipes[fd].feed(data)
        else:
            self._loop.remove_reader(fd)
            self._pipes[fd].flush()

    def _exited(self) -> None:
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        code = self._process.wait()
        for fd, lines in self._pipes.items():
            self._drain(fd)
            self._loop.remove_reader(fd)
            lines.flush()
        for pipe in (self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()
        self._ended.set()
        self._on_exit(self._node, code)

    def _drain(self, fd: int) -> None:
        """What it printed last is still in the pipe."""
        while True:
            try:
                data = os.read(fd, 65536)
            except BlockingIOError:
                return  # a grandchild holds the pipe open; it is not waited for
            if not data:
                return
            self._pipes[fd].feed(data)


class _Lines:
    """Bytes to lines; a line without an end is cut at a limit."""

    def __init__(self, line: Callable[[bytes], None]) -> None:
        self._line = line
        self._rest = b""

    def feed(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._line(line)
        if len(self._rest) > _LINE_LIMIT:
            self.flush()

    def flush(self) -> None:
        if self._rest:
            self._line(self._rest)
            self._rest = b""


_libc = ctypes.CDLL(None, use_errno=True)


def die_with(parent: int) -> None:
    """In the child, before exec: be killed when the parent dies, and do not start if it already has."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)
