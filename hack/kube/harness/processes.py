"""The processes of one cluster: started with a log each, watched, and ended together with their owner."""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from . import teardown

TAIL_LINES = 30


class ComponentDied(RuntimeError):
    """A part of the cluster ended by itself; the message has its last words."""


class Processes:
    """Owns every process of the cluster in `folder`; `stop` ends them all, and the guard does if the owner cannot."""

    def __init__(self, folder: Path, *, kept: bool) -> None:
        self.folder = folder
        self.logs = folder / "logs"
        self.logs.mkdir(parents=True, exist_ok=True)
        self.data = folder / "data"
        self.data.mkdir(exist_ok=True)
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._guard = None if kept else self._start_guard()

    def start(self, name: str, command: Sequence[str | Path], environment: Mapping[str, str] | None = None) -> int:
        """Start one part and return its process id. What it says goes to `logs/NAME.log`, after what it said before."""
        with (self.logs / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [str(word) for word in command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(environment or {}), teardown.MARK: str(self.folder.resolve())},
                start_new_session=True,  # Ctrl-C is for the owner, who then ends the parts in order
            )
        self._running[name] = process
        return process.pid

    def check(self) -> None:
        """Raise if a part has ended that nobody told to."""
        for name, process in self._running.items():
            if (status := process.poll()) is not None:
                raise ComponentDied(
                    f"{name} ended with status {status}; {self.logs / name}.log ends with:\n{self.tail(name)}"
                )

    def kill(self, name: str) -> None:
        """End one part on purpose, as a crash would; `start` may bring it back."""
        process = self._running.pop(name)
        process.kill()
        process.wait()

    def is_running(self, name: str) -> bool:
        return name in self._running and self._running[name].poll() is None

    def tail(self, name: str) -> str:
        lines = (self.logs / f"{name}.log").read_text(errors="replace").splitlines()
        return "\n".join(lines[-TAIL_LINES:])

    def stop(self) -> None:
        for process in self._running.values():
            process.kill()
        for process in self._running.values():
            process.wait()
        self._running.clear()
        teardown.tear_down(self.folder)
        if self._guard is not None:
            assert self._guard.stdin is not None
            self._guard.stdin.close()
            self._guard.wait()
            self._guard = None

    def _start_guard(self) -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-I", "-S", str(Path(teardown.__file__)), str(self.folder.resolve())]
        return subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
