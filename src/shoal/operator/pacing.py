"""How often it is told how many of a job's Pods have started.

Nothing depends on this news, and there is much of it: a job of ten members has up to ten pieces, and a thousand jobs
that start at once would spend as many calls on it as on the Pods. So the next piece waits for as long as the last one
cost the server, many times over: on one that answers in a few milliseconds nobody notices, and one that is busy is left
alone. Whatever was decided, has failed or is complete is no such news, and is written at once. Nor is that a Pod
exists: the auto plan's status is how the master hears of its nodes, and until it has heard of one it keeps that node's
agent at the door.

While Pods queue up to be made, news waits for them as well, though not for ever, and so does what is said of a plan
that somebody made: he waits for the Pods, too.
"""

from datetime import datetime, timedelta

_LONGEST = timedelta(seconds=15)
_NONE = timedelta(0)
_AFTER_PODS = timedelta(seconds=5)
"""Not less: a look at each of a thousand jobs that wait takes a second of a core."""


class Pace:
    def __init__(self, rest: float) -> None:
        """`rest`: how many times as long as the write took."""
        self._rest = rest
        self._due: dict[str, datetime] = {}
        self._held: dict[str, datetime] = {}
        """Since when something of an object waits for Pods."""

    def wrote(self, uid: str, began: datetime, ended: datetime) -> None:
        """Something was written to this object."""
        self._held.pop(uid, None)
        self._due[uid] = ended + min(self._rest * max(ended - began, _NONE), _LONGEST)

    def left(self, uid: str, now: datetime) -> timedelta | None:
        """How long news of this object has to wait; None: it may be written."""
        left = self._due.get(uid, now) - now
        return min(left, _LONGEST) if left > _NONE else None

    def behind_pods(self, uid: str, now: datetime) -> timedelta | None:
        """How long to wait for Pods that are to be made first; None: it has waited for long enough."""
        since = self._held[uid] = min(self._held.get(uid, now), now)  # clocks may jump
        return _AFTER_PODS if now - since < _LONGEST else None

    def forget(self, uid: str) -> None:
        self._due.pop(uid, None)
        self._held.pop(uid, None)
