"""Who is told that he is allowed something else now. Pure.

Each time is a look at the job and a write of its status, and each write comes back as an event. What changes the job's
Pods, or whether it waits at all, is told at once. A place in the queue, and the words for what is missing, change for
all that wait whenever anybody comes or goes; so they are told a job no more often than every quarter of a minute, and
all jobs together no more often than a few times a second, however many wait. The first in the queue come first.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from shoal.operator.allowances import Allowance
from shoal.operator.scheduling.round import Held
from shoal.scheduler.rows import JobKey, Seconds

RETELL = 15.0
"""Seconds between two wordings for the same job."""
A_SECOND = 5
"""Wordings for all jobs together."""
AT_ONCE = 50
"""At most, however long nothing was told."""
_FIRST = 20
"""Who has such a place wants to know it exactly."""


@dataclass(frozen=True, slots=True)
class Told:
    allowance: Allowance
    at: Seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Telling:
    """What was told whom."""

    told: Mapping[JobKey, Told] = field(default_factory=dict)
    at: Seconds = 0.0
    """When wordings were last told."""
    due: tuple[JobKey, ...] = ()
    """Who is to be told, by the one who made this."""


def tell(before: Telling, holding: Mapping[JobKey, Held], *, everybody: bool, now: Seconds) -> Telling:
    """`everybody`: whatever they were told before, it was something else in between."""
    news: list[JobKey] = []
    wordings: list[tuple[bool, Seconds, int, JobKey]] = []
    for key, held in holding.items():
        known, allowance = before.told.get(key), held.allowance
        if known is None or everybody or not (known.allowance is allowance or _is_wording(known.allowance, allowance)):
            news.append(key)
        elif known.allowance != allowance and now - known.at >= RETELL:
            place = allowance.place or 0
            wordings.append((place > _FIRST, known.at, place, key))
    most = max(0, min(AT_ONCE, int((now - before.at) * A_SECOND)))
    chosen = [key for *_, key in sorted(wordings)[:most]]
    told = {key: known for key, known in before.told.items() if key in holding}
    told |= {key: Told(holding[key].allowance, now) for key in (*news, *chosen)}
    return Telling(told=told, at=now if chosen else before.at, due=(*news, *chosen))


def _is_wording(one: Allowance, other: Allowance) -> bool:
    """Whether they differ in nothing but words, or not at all."""
    return replace(one, place=None, reason="") == replace(other, place=None, reason="")
