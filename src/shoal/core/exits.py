"""How a training process ended, and what that means.

The table of the specification (elastic-job §3) in one function: `cause_of` looks at the exit code, the
signal and what the host says, and answers with a cause. What is done about a cause stands in `recovery`.
"""

import signal
from dataclasses import dataclass
from enum import StrEnum

EXIT_DO_NOT_RESTART = 76
EXIT_LEFT = 77
EXIT_JOB_FAILED = 78
"""Of an agent that joined by itself, when its job has failed."""
EXIT_OOM = 247
EXITS_HARDWARE = frozenset({201, 202})

_OWN_FAULT = frozenset(
    int(s)
    for s in (
        signal.SIGILL,
        signal.SIGTRAP,
        signal.SIGABRT,
        signal.SIGBUS,
        signal.SIGFPE,
        signal.SIGSEGV,
        signal.SIGSYS,
    )
)
"""Signals a process raises by its own doing; the others come from outside."""


class ExitCause(StrEnum):
    SUCCEEDED = "succeeded"
    OOM = "oom"
    KILLED = "killed"
    """Preempted, evicted or killed from outside: not the user's doing."""
    HARDWARE = "hardware"
    USER_ERROR = "user-error"
    DO_NOT_RESTART = "do-not-restart"
    LEFT = "left"
    HANG = "hang"
    GONE = "gone"
    """Nothing is known but that it is no longer there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessExit:
    """The end of one training process, as its agent saw it."""

    code: int
    """As the shell counts: 128 + n for signal n."""
    oom: bool = False
    """The kernel's oom killer took it (the cgroup's count rose)."""
    error: str | None = None
    """The traceback it left in its error file or at the end of stderr."""
    uptime_seconds: float = 0.0


def shell_code(returncode: int) -> int:
    """The exit code as a shell prints it, from Python's (negative for signals)."""
    return 128 - returncode if returncode < 0 else returncode


def cause_of(exit: ProcessExit) -> ExitCause:
    if exit.code == 0:
        return ExitCause.SUCCEEDED
    if exit.oom or exit.code == EXIT_OOM:
        return ExitCause.OOM
    if exit.code == EXIT_DO_NOT_RESTART:
        return ExitCause.DO_NOT_RESTART
    if exit.code == EXIT_LEFT:
        return ExitCause.LEFT
    if exit.code in EXITS_HARDWARE:
        return ExitCause.HARDWARE
    number = exit.code - 128
    if 1 <= number < signal.NSIG and number not in _OWN_FAULT:
        return ExitCause.KILLED
    return ExitCause.USER_ERROR


_CLASSES = {
    ExitCause.HARDWARE: "hardware",
    ExitCause.KILLED: "preemption",
    ExitCause.OOM: "oom",
    ExitCause.USER_ERROR: "user",
    ExitCause.DO_NOT_RESTART: "user",
}


def failure_class(exit: ProcessExit) -> str:
    """The same in the few words of the metrics: hardware, preemption, oom, user or unknown."""
    return _CLASSES.get(cause_of(exit), "unknown")


def describe(exit: ProcessExit) -> str:
    """`exit 1` or `SIGKILL (exit 137)`, for reasons people read."""
    number = exit.code - 128
    if 1 <= number < signal.NSIG:
        try:
            return f"{signal.Signals(number).name} (exit {exit.code})"
        except ValueError:
            pass
    return f"exit {exit.code}"
