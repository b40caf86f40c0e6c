"""Why a training process ended: what it left in its error file, at the end of stderr, and in the kernel's books."""

import json
from pathlib import Path

LONGEST = 8 * 1024
"""Characters of an error that are reported; the end says most, so that is kept."""
_MARKS = ("Traceback (most recent call last):", "Fatal Python error:")
_LAST_LINES = 10


def error_of(error_file: Path, stderr: bytes, *, code: int) -> str | None:
    """The traceback of a process that failed, from torch's error file or from what it printed last."""
    if code == 0:
        return None
    text = _from_error_file(error_file) or _from_stderr(stderr, by_signal=code > 128)
    return text[-LONGEST:] if text else None


def _from_error_file(path: Path) -> str | None:
    """`@record`'s JSON: `{"message": {"message": ..., "extraInfo": {"py_callstack": ...}}}`, or a bare message."""
    try:
        with path.open("rb") as file:
            content = json.loads(file.read(1024 * 1024))
    except (OSError, ValueError, RecursionError):
        return None  # the process did not write one, or died while it did
    message = content.get("message") if isinstance(content, dict) else None
    if isinstance(message, dict):
        extra = message.get("extraInfo")
        stack = extra.get("py_callstack") if isinstance(extra, dict) else None
        message = stack or message.get("message")
    return message.strip() if isinstance(message, str) else None


def _from_stderr(tail: bytes, *, by_signal: bool) -> str | None:
    text = tail.decode("utf-8", "replace")
    start = max(text.rfind(mark) for mark in _MARKS)
    if start >= 0:
        return text[start:].strip()
    if by_signal:
        return None  # what it printed last has nothing to do with its end
    lines = [line for line in text.splitlines() if line.strip()]
    return "\n".join(lines[-_LAST_LINES:]) or None


class OomCounter:
    """How often the kernel has killed a process of this cgroup for memory (versions 1 and 2)."""

    def __init__(self, *, proc: Path = Path("/proc"), mount: Path = Path("/sys/fs/cgroup")) -> None:
        self._file = next((file for file in _candidates(proc, mount) if _oom_kills(file) is not None), None)

    def read(self) -> int | None:
        """None: not known here."""
        return None if self._file is None else _oom_kills(self._file)


def _candidates(proc: Path, mount: Path) -> list[Path]:
    try:
        lines = (proc / "self" / "cgroup").read_text().splitlines()
    except OSError:
        lines = []
    found: list[Path] = []
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        inside = path.lstrip("/")
        if "memory" in controllers.split(","):
            found += [mount / "memory" / inside / "memory.oom_control", mount / "memory" / "memory.oom_control"]
        elif not controllers:
            found += [mount / inside / "memory.events", mount / "memory.events"]
    return found


def _oom_kills(file: Path) -> int | None:
    try:
        fields = dict(line.split(None, 1) for line in file.read_text().splitlines())
        return int(fields["oom_kill"])
    except (OSError, ValueError, KeyError):
        return None
