"""The guard: a tiny process that outlives its agent just long enough to leave nothing behind.

It is forked before anything else and does nothing but read a pipe that only the agent writes to. Each training
process announces its own process group there, between fork and exec, so no group is ever unknown; the agent
takes the group off when it has emptied it. When the pipe ends, the agent is gone, however it went, and the guard
kills every group that is left, and every process that has the agent's private directory in its environment: whoever
made a session of its own still carries that. It removes the directory (and the agent's shared memory) and exits. It has
its own session and ignores what a terminal or a supervisor would send to the agent's group.
"""

import ctypes
import os
import shutil
import signal
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

RECORD = struct.Struct("!cI")
_ADD, _REMOVE = b"+", b"-"

_IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGPIPE, signal.SIGTSTP)
_LOOKS, _LOOK_SECONDS = 100, 0.01
"""How often and how long apart: one that hangs in the kernel cannot be waited for."""
_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_ARGUMENTS = slice(45, 47)
"""`arg_start` and `arg_end` in `/proc/<pid>/stat`, counted after the name."""
_libc = ctypes.CDLL(None, use_errno=True)


class Guard:
    """The agent's end. `close` lets the guard go; with groups left in it, it kills them."""

    def __init__(self, directory: Path, *also: Path) -> None:
        """`also`: other directories to be removed at the end."""
        reading, writing = os.pipe()
        agent = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(writing)
            _keep_watch(reading, directory, also)
        os.close(reading)
        self._writing = writing
        self._agent = agent

    def protect(self) -> Callable[[], None]:
        """What a child of the agent runs between fork and exec: it dies with the agent, and its group does too."""
        writing, agent = self._writing, self._agent

        def between_fork_and_exec() -> None:
            _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != agent:  # it died before we could ask to be told
                os._exit(128 + signal.SIGKILL)
            signal.signal(signal.SIGPIPE, signal.SIG_IGN)
            try:
                os.write(writing, RECORD.pack(_ADD, os.getpid()))
            except BrokenPipeError:
                pass  # somebody killed the guard; the first line above still holds
            signal.signal(signal.SIGPIPE, signal.SIG_DFL)

        return between_fork_and_exec

    def forget(self, group: int) -> None:
        """The group is empty. Called before its leader is reaped: until then nobody else can have its number."""
        try:
            os.write(self._writing, RECORD.pack(_REMOVE, group))
        except BrokenPipeError:
            pass  # somebody killed the guard; the agent still does its own part

    def close(self) -> None:
        os.close(self._writing)
        os.waitpid(self.pid, 0)


def kill_group(group: int, number: signal.Signals = signal.SIGKILL) -> None:
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        pass  # it is empty, or all that is left of it changed its user


def _keep_watch(reading: int, directory: Path, also: tuple[Path, ...]) -> NoReturn:
    try:
        os.setsid()
        _show_as(b"shoal-guard")
        signal.set_wakeup_fd(-1)
        for number in _IGNORED:
            signal.signal(number, signal.SIG_IGN)
        _close_all_but(reading)
        for group in _until_the_end(reading):
            kill_group(group)
        _kill_marked(os.fsencode(directory))
        for each in (directory, *also):
            shutil.rmtree(each, ignore_errors=True)
    finally:
        os._exit(0)


def _show_as(title: bytes) -> None:
    """For `ps` and `pgrep -f`: the guard has its agent's name and arguments, and is no second agent."""
    _libc.prctl(_PR_SET_NAME, title, 0, 0, 0)
    fields = Path("/proc/self/stat").read_text(errors="replace").rpartition(")")[2].split()
    start, end = map(int, fields[_ARGUMENTS])  # where the kernel has put them, and reads them for others
    if 0 < start < end - len(title):
        ctypes.memset(start, 0, end - start)
        ctypes.memmove(start, title, len(title))


def _kill_marked(mark: bytes) -> None:
    """Kill every process whose environment names `mark`, until a look round finds none: they may be starting others."""
    for _ in range(_LOOKS):
        found = [pid for pid in _processes() if mark in _environment(pid)]
        if not found:
            return
        for pid in found:
            try:
                os.kill(pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                pass  # gone meanwhile, or of another user
        time.sleep(_LOOK_SECONDS)


def _processes() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdecimal() and int(name) != os.getpid()]


def _environment(pid: int) -> bytes:
    """What the process was started with; nothing for zombies and for processes of other users."""
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""


def _close_all_but(reading: int) -> None:
    """Above all the agent's output pipes: whoever reads them must see them end with the agent."""
    null = os.open(os.devnull, os.O_RDWR)
    for standard in range(3):
        os.dup2(null, standard)
    for fd in map(int, os.listdir("/proc/self/fd")):
        if fd > 2 and fd != reading:
            os.closerange(fd, fd + 1)  # ignores the one that listed them, which is closed already


def _until_the_end(reading: int) -> set[int]:
    """Keep the books until the agent is gone; return the groups it left."""
    groups: set[int] = set()
    while record := os.read(reading, RECORD.size):  # records are written whole: they are shorter than PIPE_BUF
        kind, group = RECORD.unpack(record)
        if kind == _ADD:
            groups.add(group)
        else:
            groups.discard(group)
    return groups
