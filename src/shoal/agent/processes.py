"""Processes that belong to the agent: started so that they cannot outlive it, and watched so that their end is seen.

Each gets its own session and process group. Its end is seen through a pidfd the moment it happens, and then the
rest of its group is killed before anybody is told: a training process leaves no children behind. `guard` does the
same should the agent itself be gone.
"""

import asyncio
import os
import secrets
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from shoal.agent.guard import Guard, kill_group
from shoal.agent.output import Route, Stream
from shoal.core.exits import shell_code


class Process:
    """One running process. `ended` is called once with its exit code (as a shell counts), after its output is read."""

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        guard: Guard,
        environment: Mapping[str, str],
        working_dir: Path | None,
        outputs: Callable[[str], Route],
        ended: Callable[["Process", int], None],
        pass_fds: Sequence[int] = (),
    ) -> None:
        """Raises OSError when the command cannot be started. `outputs` says where a stream goes, by its name."""
        self._guard = guard
        self._ended = ended
        self._timer: asyncio.TimerHandle | None = None
        self._popen = subprocess.Popen(
            list(arguments),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            cwd=working_dir,
            env=dict(environment),
            start_new_session=True,
            preexec_fn=guard.protect(),  # safe: the agent has one thread
            pass_fds=pass_fds,
        )
        self.pid = self._popen.pid
        self.life = secrets.token_hex(4)
        """A name that no other process has, also where pids come again."""
        self._started = time.monotonic()
        self._streams = {name: self._stream(name, outputs) for name in ("stdout", "stderr")}
        self._pidfd = os.pidfd_open(self.pid)
        asyncio.get_running_loop().add_reader(self._pidfd, self._gone)

    @property
    def uptime(self) -> float:
        return time.monotonic() - self._started

    @property
    def is_running(self) -> bool:
        return self._popen.returncode is None

    @property
    def stderr_tail(self) -> bytes:
        return self._streams["stderr"].tail

    def adopt(self, outputs: Callable[[str], Route], ended: Callable[["Process", int], None]) -> None:
        """Another owner hears of it from now on. Its life is counted from here."""
        self._ended = ended
        self._started = time.monotonic()
        for name, stream in self._streams.items():
            stream.reroute(outputs(name))

    def stop(self, grace: float) -> None:
        """SIGTERM now, SIGKILL after the grace period. Asked again, the shorter time counts."""
        if not self.is_running:
            return
        if grace <= 0:
            self.kill()
            return
        kill_group(self.pid, signal.SIGTERM)
        kill_group(self.pid, signal.SIGCONT)  # one that is stopped would not hear it
        loop = asyncio.get_running_loop()
        if self._timer is None or self._timer.when() > loop.time() + grace:
            self._cancel_timer()
            self._timer = loop.call_later(grace, self.kill)

    def kill(self) -> None:
        self._cancel_timer()
        if self.is_running:
            kill_group(self.pid)

    def signal(self, number: signal.Signals) -> None:
        """To the process alone, not to what it has started."""
        if self.is_running:
            self._popen.send_signal(number)

    def kill_later(self, seconds: float) -> None:
        self._cancel_timer()
        self._timer = asyncio.get_running_loop().call_later(seconds, self.kill)

    def _stream(self, name: str, outputs: Callable[[str], Route]) -> Stream:
        pipe = self._popen.stdout if name == "stdout" else self._popen.stderr
        assert pipe is not None
        fd = os.dup(pipe.fileno())
        pipe.close()
        return Stream(fd, outputs(name))

    def _gone(self) -> None:
        """It has ended and nobody has reaped it: its group's number is still ours, so the order here matters."""
        asyncio.get_running_loop().remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._cancel_timer()
        kill_group(self.pid)
        self._guard.forget(self.pid)
        code = shell_code(self._popen.wait())
        for stream in self._streams.values():
            stream.finish()
        self._ended(self, code)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
