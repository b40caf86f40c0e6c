"""Why worlds change, for the metrics: the failure that came before, and how long it went unnoticed."""

from datetime import datetime, timedelta

from shoal.core.exits import failure_class
from shoal.core.job import Event, Job
from shoal.core.job.values import NodeExited, ProcessExited, Ticked
from shoal.core.nodes import NodeStatus
from shoal.core.view import ResizeView

NONE = "none"
"""Nobody failed."""
UNKNOWN = "unknown"
_KEPT = 8


def failure_of(before: Job, event: Event) -> str | None:
    """The class of a failure that an event tells of; None: it tells of none."""
    match event:
        case ProcessExited() if (event.node, event.incarnation, event.local_rank) in before.hanging:
            return "hang"
        case ProcessExited(exit=exit) | NodeExited(exit=exit) if exit.code != 0:
            return failure_class(exit)
        case _:
            return None


def unnoticed(before: Job, event: Event, after: Job, now: datetime) -> list[timedelta]:
    """Of each failure that nobody told of at once: how long ago the last sign of life was. A process that ends is
    known to its agent at once."""
    if failure_of(before, event) == "hang":
        return [now - before.gain.at]
    if not isinstance(event, Ticked) or after.nodes is before.nodes:
        return []
    return [
        now - seen.at
        for node, seen in before.seen.items()
        if before.nodes[node].status is NodeStatus.RUNNING and after.nodes[node].status is NodeStatus.FAILED
    ]


class Causes:
    """Which failure each of the last worlds followed. A new master knows of none."""

    def __init__(self) -> None:
        self._since: str | None = None
        self._worlds: dict[int, str] = {}

    def failed(self, kind: str) -> None:
        """The first failure since the last world is the one that broke it: those that follow are its consequences."""
        self._since = self._since or kind

    def changed(self, resize: ResizeView) -> str:
        """There is another world. Returns what triggered it: `start`, `failure`, or `plan`, the wish for another
        size or for other members."""
        failure, self._since = self._since, None
        self._worlds[resize.generation] = failure or NONE
        for old in sorted(self._worlds)[:-_KEPT]:
            del self._worlds[old]
        return "failure" if failure else "plan" if resize.before else "start"

    def of(self, generation: int) -> str:
        return self._worlds.get(generation, UNKNOWN)
