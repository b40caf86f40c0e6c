"""The processes of one cluster: started with a log each, watched, and ended together with their owner."""

import os
import signal
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
        self._started_as: dict[str, tuple[Sequence[str | Path], Mapping[str, str] | None]] = {}
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
        self._started_as[name] = (command, environment)
        return process.pid

    def check(self) -> None:
        """Raise if a part has ended that nobody told to."""
        for name, process in self._running.items():
            if (status := process.poll()) is not None:
                raise ComponentDied(
                    f"{name} ended with status {status}; {self.logs / name}.log ends with:\n{self.tail(name)}"
                )

    def send(self, name: str, number: signal.Signals) -> None:
        """Send a signal to one part: SIGSTOP freezes it, SIGCONT lets it go on."""
        pid = self._running[name].pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        is_a_door = Path(f"/proc/{pid}/comm").read_text().strip() == "nsenter"  # the part itself is its only child
        for target in [int(child) for child in children] if is_a_door else [pid]:
            os.kill(target, number)

    def kill(self, name: str) -> None:
        """End one part on purpose, as a crash would; `restart` brings it back."""
        self.send(name, signal.SIGKILL)
        self._running.pop(name).wait()

    def restart(self, name: str) -> int:
        """Start one part again as it was started before, after ending it if it runs; returns its process id."""
        if self.is_running(name):
            self.kill(name)
        return self.start(name, *self._started_as[name])

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
