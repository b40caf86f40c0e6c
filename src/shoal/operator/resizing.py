"""Pods that are changed in place: what the server has agreed to and does not show yet, and what it has refused.

What is to be changed is read from what Pods have, at each look. What is kept here only saves calls: a change is asked
for again until it was answered, and one that was refused ever later, however often a job is woken.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from shoal.core.pods import Trouble
from shoal.operator.actions import Resize
from shoal.operator.holding import Holding
from shoal.operator.snapshot import RefusedResize

_PART = "resize"


@dataclass(slots=True)
class _Known:
    """Of one job, by the uids of its Pods."""

    agreed: dict[str, Resize] = field(default_factory=dict)
    refused: dict[str, tuple[Resize, Trouble]] = field(default_factory=dict)
    is_new: bool = False
    """Something was refused since the last `rest`."""


class Resizing:
    def __init__(self, clock: Callable[[], datetime]) -> None:
        self._holding = Holding(clock)
        self._known: dict[str, _Known] = {}

    def due(self, job: str, wanted: Iterable[Resize]) -> list[Resize]:
        """What to ask for now. What is no longer wanted, or wanted otherwise, is forgotten: an answer was to that."""
        asks = {each.pod.uid: each for each in wanted}
        known = self._known.setdefault(job, _Known())
        known.agreed = {pod: each for pod, each in known.agreed.items() if asks.get(pod) == each}
        known.refused = {pod: each for pod, each in known.refused.items() if asks.get(pod) == each[0]}
        if not known.refused:
            self._holding.done(job, _PART)
        waits = known.refused if self._holding.is_held(job, _PART) else {}
        return [each for pod, each in asks.items() if pod not in known.agreed and pod not in waits]

    def agreed(self, job: str, what: Resize) -> None:
        known = self._known[job]
        known.agreed[what.pod.uid] = what
        known.refused.pop(what.pod.uid, None)

    def refused(self, job: str, what: Resize, why: Trouble) -> bool:
        """Returns whether that is news."""
        known = self._known[job]
        before = known.refused.get(what.pod.uid)
        known.refused[what.pod.uid] = (what, why)
        known.is_new = True
        return before is None or before[1] != why

    def rest(self, job: str) -> None:
        """All that was due has been asked for: what was refused is held back as one."""
        known = self._known[job]
        if known.is_new:
            known.is_new = False
            self._holding.refused(job, _PART, [why for _, why in known.refused.values()])

    def refusals(self, job: str) -> Mapping[str, RefusedResize]:
        refused = self._known.get(job, _Known()).refused
        return {pod: RefusedResize(resources=each.resources, why=why.message) for pod, (each, why) in refused.items()}

    def retries(self, job: str) -> list[timedelta]:
        return self._holding.retries(job)

    def forget(self, job: str) -> None:
        self._known.pop(job, None)
        self._holding.forget(job)
