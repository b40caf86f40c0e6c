"""What the server refused, job by job and part by part: it is tried again ever later, however often a job is woken.

A *part* is what is refused as one and held back as one. What one part has to wait for holds up no other.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from shoal.api.reasons import Reason
from shoal.core.errors import Denied, NameTaken
from shoal.core.pods import Trouble

_FIRST_RETRY = timedelta(seconds=2)
_LAST_RETRY = timedelta(minutes=2)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Held:
    troubles: tuple[Trouble, ...]
    retry_at: datetime
    failures: int


def trouble_of(refused: NameTaken | Denied) -> Trouble:
    return Trouble(reason=refused.reason if isinstance(refused, Denied) else Reason.NAME_CONFLICT, message=str(refused))


class Holding:
    def __init__(self, clock: Callable[[], datetime], order: Iterable[str] = ()) -> None:
        """`order`: whose troubles are told first; those of other parts come after, as they came."""
        self._clock = clock
        self._order = tuple(order)
        self._held: dict[str, dict[str, _Held]] = {}

    def is_held(self, uid: str, part: str) -> bool:
        """Whether it is too early to try this part again."""
        held = self._parts(uid).get(part)
        return held is not None and self._clock() < held.retry_at

    def refused(self, uid: str, part: str, troubles: Sequence[Trouble]) -> None:
        before = self._parts(uid).get(part)
        failures = before.failures + 1 if before else 0
        wait = min(_FIRST_RETRY * (1 << min(failures, 16)), _LAST_RETRY)
        held = _Held(troubles=tuple(troubles), retry_at=self._clock() + wait, failures=failures)
        self._held.setdefault(uid, {})[part] = held

    def done(self, uid: str, part: str) -> None:
        self._held.get(uid, {}).pop(part, None)

    def parts(self, uid: str) -> tuple[str, ...]:
        return tuple(self._parts(uid))

    def troubles(self, uid: str) -> tuple[Trouble, ...]:
        parts = self._parts(uid)
        known = [part for part in self._order if part in parts]
        told = [*known, *(part for part in parts if part not in known)]
        return tuple(dict.fromkeys(trouble for part in told for trouble in parts[part].troubles))

    def retries(self, uid: str) -> list[timedelta]:
        """How long until each part may be tried again."""
        now = self._clock()
        return [max(held.retry_at - now, timedelta(0)) for held in self._parts(uid).values()]

    def forget(self, uid: str) -> None:
        self._held.pop(uid, None)

    def _parts(self, uid: str) -> dict[str, _Held]:
        return self._held.get(uid, {})
