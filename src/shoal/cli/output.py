"""What a running job prints: one thread owns the terminal, everybody else hands it values.

A terminal or a pipe can stand still for as long as its reader likes (`| less`); the master must not. So nothing
on the event loop ever writes: lines go into a bounded queue, the thread writes them. If the reader is slower for
longer than the queue holds, lines are dropped and counted; the log files have them all.

Training output goes to the stream it came from. What Shoal itself says goes to stderr, or above the live view.
"""

import io
import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import BinaryIO

from rich.console import Console
from rich.live import Live
from rich.text import Text

from shoal.cli.text import clean, clean_line, count
from shoal.cli.view import live
from shoal.core.view import JobView

MAX_QUEUED_BYTES = 16 * 1024 * 1024
REFRESH_SECONDS = 0.25
"""How often the live view is drawn: quick enough to follow, cheap enough not to be seen in a profile."""


@dataclass(frozen=True, slots=True)
class _Line:
    data: bytes
    is_stderr: bool
    is_ours: bool = False


class Printer:
    """Owns stdout and stderr from `start` to `close`. Every other method may be called from any thread."""

    def __init__(
        self,
        *,
        stdout: BinaryIO,
        stderr: BinaryIO,
        console: Console | None,
        now: Callable[[], datetime],
    ) -> None:
        """`console`: draw the live view there; None: plain lines."""
        self._stdout = stdout
        self._stderr = stderr
        self._console = console
        self._now = now
        self._queue: deque[_Line] = deque()
        self._queued_bytes = 0
        self._dropped = 0
        self._view: JobView | None = None
        self._changed = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="shoal-output", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def training(self, node: str, line: bytes, is_stderr: bool) -> None:
        """One line of a training process, as its agent wrote it, without the newline."""
        self._put(_Line(line, is_stderr))

    def note(self, text: str) -> None:
        """One line of ours."""
        self._put(_Line(clean(text).encode(), True, True))

    def show(self, view: JobView) -> None:
        """The newest picture; drawn at the next refresh."""
        with self._changed:
            self._view = view

    def close(self, last: Iterable[str] = (), *, timeout: float = 10.0) -> None:
        """Print what is left and these lines, and give the terminal back. A reader that stands still is not waited
        for longer than `timeout`."""
        for line in last:
            self.note(line)
        with self._changed:
            self._closing = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join(timeout)

    def _put(self, line: _Line) -> None:
        with self._changed:
            if not line.is_ours and self._queued_bytes + len(line.data) > MAX_QUEUED_BYTES:
                self._dropped += 1
                return
            self._queue.append(line)
            self._queued_bytes += len(line.data)
            self._changed.notify()

    # In the thread ---------------------------------------------------------------------------------------

    def _run(self) -> None:
        write = self._write_plain if self._console is None else self._write_live
        try:
            write()
        except (BrokenPipeError, ValueError, OSError):
            self._discard()  # the reader is gone for good: training goes on, its logs are in files

    def _take(self, timeout: float | None) -> tuple[list[_Line], bool]:
        """What has been queued, and whether that was the last."""
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._closing, timeout)
            lines = list(self._queue)
            self._queue.clear()
            self._queued_bytes = 0
            if self._dropped:
                lines.append(_Line(f"{count(self._dropped, 'line')} not shown: too fast to print".encode(), True, True))
                self._dropped = 0
            return lines, self._closing

    def _discard(self) -> None:
        done = False
        while not done:
            _, done = self._take(None)

    def _write_plain(self) -> None:
        done = False
        while not done:
            lines, done = self._take(None)
            out, err = io.BytesIO(), io.BytesIO()
            for line in lines:
                (err if line.is_stderr else out).write((b"shoal: " if line.is_ours else b"") + line.data + b"\n")
            for stream, data in ((self._stdout, out), (self._stderr, err)):
                if data.tell():
                    stream.write(data.getvalue())
                    stream.flush()

    def _write_live(self) -> None:
        console = self._console
        assert console is not None
        with Live(
            console=console, auto_refresh=False, transient=True, redirect_stdout=False, redirect_stderr=False
        ) as area:
            done = False
            while not done:
                lines, done = self._take(REFRESH_SECONDS)
                if done:
                    area.update("", refresh=True)  # the summary stands alone
                if lines:
                    console.print(_block(lines), soft_wrap=True)
                with self._changed:
                    view = self._view
                if view is not None and not done:
                    area.update(live(view, now=self._now(), height=console.height), refresh=True)


def _block(lines: Iterable[_Line]) -> Text:
    """Lines of all kinds as one text, so that the live view is redrawn once for all of them."""
    block = Text()
    for line in lines:
        if block:
            block.append("\n")
        if line.is_ours:
            block.append("shoal: ", style="bold cyan").append(line.data.decode())
        else:
            block.append(clean_line(line.data))
    return block
