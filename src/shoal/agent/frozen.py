"""Processes of a job with parameter servers that stand still although nobody told them to.

A trainer that waits for a frozen parameter server gets no error, however long it waits: the kernel keeps its connection
alive. So the agent next to the process looks after it, and ends it; a server that has ended is replaced.

Two signs: the kernel says that it is stopped (SIGSTOP), or a server that tells several times a second that it is there
has stopped doing so. Both have to last, and none counts when the agent itself has not looked for too long: then
everything stood still, and everything goes on.
"""

from collections.abc import Collection, Mapping

from shoal.agent.usage import parse

LOOK_SECONDS = 0.5
_LATE_SECONDS = 2.0
"""A look that comes so late tells nothing about the time before it."""


class Watch:
    """`stopped_after` and `silent_after`: seconds."""

    def __init__(self, *, stopped_after: float, silent_after: float) -> None:
        self._stopped_after, self._silent_after = stopped_after, silent_after
        self._stopped: dict[int, float] = {}
        self._heard: dict[int, float] = {}
        self._looked: float | None = None

    def heard(self, local_rank: int, now: float) -> None:
        """A server said that it is there."""
        self._heard[local_rank] = now

    def gone(self, local_rank: int) -> None:
        self._heard.pop(local_rank, None)
        self._stopped.pop(local_rank, None)

    def look(self, stopped: Collection[int], now: float) -> Mapping[int, str]:
        """Who is to be ended, and why. `stopped`: those of whom the kernel says so now."""
        if self._looked is not None and now - self._looked > LOOK_SECONDS + _LATE_SECONDS:
            self._stopped.clear()
            self._heard = dict.fromkeys(self._heard, now)
        self._looked = now
        self._stopped = {rank: self._stopped.get(rank, now) for rank in stopped}
        frozen = {
            rank: f"it is stopped (state T) for {now - since:.0f} s"
            for rank, since in self._stopped.items()
            if now - since >= self._stopped_after
        }
        silent = {
            rank: f"it has said nothing for {now - at:.0f} s"
            for rank, at in self._heard.items()
            if now - at >= self._silent_after
        }
        return {**silent, **frozen}


def is_stopped(pid: int) -> bool:
    """Whether the kernel says T. A debugger that holds a process (t) is somebody who looks after it."""
    try:
        with open(f"/proc/{pid}/stat", errors="replace") as file:
            stat = parse(file.read())
    except OSError:
        return False
    return stat is not None and stat.state == "T"
