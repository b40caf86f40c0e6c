"""What training processes print: whole and raw into files, line by line and prefixed onto the console.

Nothing here may hold training up for long. Pipes are emptied as soon as something is in them; a disk that is full
costs the file, a console that is closed or does not read costs its lines, each said once. A console that is merely
slower than a burst of output is waited for, within limits: see `Console`.
"""

import asyncio
import os
import re
import select
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

LONGEST_LINE = 64 * 1024
"""Bytes after which a line is shown in pieces."""
TAIL = 16 * 1024
"""Bytes of the end of a stream that are kept, to tell why a process failed."""
_AT_ONCE = 4096
"""PIPE_BUF: what a pipe that is ready takes without blocking."""
_FLUSH_TRIES = 5

_LINE_END = re.compile(rb"\r\n|\n|\r(?=[^\n])")
_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[PX^_][^\x1b]*(?:\x1b\\)?|.)?")
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def printable(line: bytes) -> str:
    """A line that a terminal shows and does not obey."""
    return _CONTROL.sub("", _ESCAPE.sub("", line.decode("utf-8", "replace")))


class Lines:
    """Cuts a stream into lines. A carriage return ends one too: that is how progress bars speak."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        text = self._rest + data
        lines, start = [], 0
        for end in _LINE_END.finditer(text):
            if end.start() > start or end.group() != b"\r":
                lines.append(text[start : end.start()])
            start = end.end()
        while len(text) - start >= LONGEST_LINE:
            lines.append(text[start : start + LONGEST_LINE])
            start += LONGEST_LINE
        self._rest = text[start:]
        return lines

    def end(self) -> list[bytes]:
        rest, self._rest = self._rest.rstrip(b"\r"), b""
        return [rest] if rest else []


class Console:
    """The agent's own stdout or stderr. Never blocks: what it cannot take yet waits, bounded.

    When that is more than `limit`, whoever prints is held, until half of it is gone or for `patience` seconds. A
    console that is too slow even so costs lines, which are counted, and is not waited for again before it has taken
    all.
    """

    def __init__(self, fd: int, *, limit: int = 1024 * 1024, patience: float = 1.0) -> None:
        self._fd = fd
        self._limit = limit
        self._patience = patience
        self._waiting: deque[bytes] = deque()
        self._size = 0
        self._dropped = 0
        self._writing = False
        self._closed = False
        self._is_waited_for = True
        self._held: list[Callable[[], None]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._drained = asyncio.Event()
        self._drained.set()

    def line(self, text: str) -> None:
        if self._closed:
            return
        if self._size > self._limit and not self._is_waited_for:
            self._dropped += 1
            return
        self._tell_dropped()
        self._add(text.encode("utf-8", "replace") + b"\n")
        if not self._writing:
            self._write()

    def holds(self, go_on: Callable[[], None]) -> bool:
        """Whether the caller must print nothing more for now; then `go_on` is called when it may."""
        if self._size <= self._limit or not self._is_waited_for:
            return False
        self._held.append(go_on)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._patience, self._give_up)
        return True

    async def flush(self, seconds: float) -> None:
        """Give a slow console time for what still waits: this long as long as it takes something, but not for ever."""
        if not self._closed:
            self._tell_dropped()
            if not self._writing:
                self._write()
        for _ in range(_FLUSH_TRIES):
            before = self._size
            try:
                async with asyncio.timeout(seconds):
                    await self._drained.wait()
            except TimeoutError:
                pass
            if not self._size or self._size == before:
                break  # it has taken all, or has had its chance
        self._let_go()
        self._stop()

    def _tell_dropped(self) -> None:
        if self._dropped:
            lines = "line is" if self._dropped == 1 else "lines are"
            self._add(f"[shoal] {self._dropped} {lines} not shown: the console was too slow\n".encode())
            self._dropped = 0

    def _add(self, data: bytes) -> None:
        self._size += len(data)
        self._drained.clear()
        if self._waiting and len(self._waiting[-1]) + len(data) <= _AT_ONCE:
            self._waiting[-1] += data
            return
        for start in range(0, len(data), _AT_ONCE):
            self._waiting.append(data[start : start + _AT_ONCE])

    def _write(self) -> None:
        try:
            while self._waiting:
                if not _takes(self._fd):
                    self._wait()
                    return
                written = os.write(self._fd, self._waiting[0])
                self._size -= written
                self._waiting[0] = self._waiting[0][written:]
                if not self._waiting[0]:
                    self._waiting.popleft()
        except BlockingIOError:
            self._wait()
            return
        except OSError:  # closed: nobody is left to be told
            self._closed = True
            self._waiting.clear()
            self._size = 0
        self._is_waited_for = True
        self._let_go()
        self._stop()

    def _wait(self) -> None:
        if self._size <= self._limit // 2:
            self._let_go()
        if not self._writing:
            self._writing = True
            asyncio.get_running_loop().add_writer(self._fd, self._write)

    def _stop(self) -> None:
        if self._writing:
            self._writing = False
            asyncio.get_running_loop().remove_writer(self._fd)
        self._drained.set()

    def _give_up(self) -> None:
        self._is_waited_for = False
        self._let_go()

    def _let_go(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        held, self._held = self._held, []
        for go_on in held:
            go_on()


def _takes(fd: int) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    return bool(poll.poll(0))


class LogFile:
    """A file that is written as long as it can be."""

    def __init__(self, path: Path, *, failed: Callable[[str], None]) -> None:
        self._path = path
        self._failed = failed
        self._fd: int | None = None
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        except OSError as exc:
            failed(f"cannot write {path}: {exc.strerror}; training goes on without this log")

    def write(self, data: bytes) -> None:
        if self._fd is None:
            return
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._fd, view) :]
        except OSError as exc:
            self.close()
            self._failed(f"cannot write {self._path}: {exc.strerror}; training goes on without this log")

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """Where the output of one stream goes: raw into `file`, each line to `show`, at the pace of `console`."""

    file: LogFile | None = None
    show: Callable[[str], None] | None = None
    console: Console | None = None


class Stream:
    """One output pipe of one process: read at once, copied to a file and shown line by line."""

    def __init__(self, fd: int, route: Route) -> None:
        self._fd = fd
        self._route = route
        self._lines = Lines()
        self._open = True
        self._tail = bytearray()
        os.set_blocking(fd, False)
        self._listen()

    @property
    def tail(self) -> bytes:
        """The last of what was printed."""
        return bytes(self._tail[-TAIL:])

    def reroute(self, route: Route) -> None:
        """What is printed from now on goes there."""
        self._take_all()
        self._route = route

    def finish(self) -> None:
        """The process has ended: take what is still in the pipe, and wait for nobody who inherited its other end."""
        self._take_all()
        self._close()

    def _take_all(self) -> None:
        for _ in range(64):  # a pipe holds at most a megabyte
            if not self._read():
                break

    def _listen(self) -> None:
        if self._open:
            asyncio.get_running_loop().add_reader(self._fd, self._readable)

    def _readable(self) -> None:
        console = self._route.console
        if self._read() and console is not None and console.holds(self._listen):
            asyncio.get_running_loop().remove_reader(self._fd)

    def _read(self) -> bool:
        if not self._open:
            return False
        try:
            data = os.read(self._fd, 65536)
        except BlockingIOError:
            return False
        if not data:
            self._close()
            return False
        self._tail += data
        if len(self._tail) > 4 * TAIL:
            del self._tail[:-TAIL]
        if self._route.file is not None:
            self._route.file.write(data)
        self._show(self._lines.feed(data))
        return True

    def _show(self, lines: list[bytes]) -> None:
        if self._route.show is not None:
            for line in lines:
                self._route.show(printable(line))

    def _close(self) -> None:
        if not self._open:
            return
        self._open = False
        asyncio.get_running_loop().remove_reader(self._fd)
        os.close(self._fd)
        self._show(self._lines.end())
        if self._route.file is not None:
            self._route.file.close()
