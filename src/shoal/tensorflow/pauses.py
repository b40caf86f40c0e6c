"""How long a trainer stood still for a change, and what that time went into."""

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """Seconds, from the word to stand still (or a step that failed) to the end of the first step after it."""

    reason: str
    version: int
    """On which it trains now."""
    drain: float
    """Until this trainer stood still and all it had trained was on record."""
    move: float
    """In which it brought the state to the next version's servers, or saved it. Only the chief does."""
    wait: float
    """For the others, and for the word to go on."""
    first_step: float
    checksum: str | None
    """Of all variables, when they were moved by this trainer."""
    checksum_before: str | None = None
    """Of all variables on the servers before, when they were copied from there."""

    @property
    def total(self) -> float:
        return self.drain + self.move + self.wait + self.first_step

    def __str__(self) -> str:
        checked = "" if self.checksum is None else f"; checksum {self.checksum}"
        if self.checksum_before is not None:
            checked = f"; checksum {self.checksum_before} before, {self.checksum} after"
        return (
            f"version {self.version}: {self.total:.2f} s without a step (drain {self.drain:.2f}, move {self.move:.2f}, "
            f"wait {self.wait:.2f}, first step {self.first_step:.2f}): {self.reason}{checked}"
        )


class Stopwatch:
    """Started when a trainer begins to stand still."""

    def __init__(self, reason: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.reason = reason
        self._clock = clock
        self._began = self._went = clock()
        self._drained: float | None = None
        self._moving = 0.0
        self._checksums: tuple[str | None, str | None] = (None, None)
        """Before and after."""

    def drained(self) -> None:
        if self._drained is None:
            self._drained = self._clock()

    def moved(self, seconds: float, checksum: str | None, *, before: str | None = None) -> None:
        self._moving += seconds
        self._checksums = (before, checksum)

    def went(self) -> None:
        self._went = self._clock()

    def ended(self, version: int) -> Pause:
        """The first step after it is done."""
        now = self._clock()
        drained = self._began if self._drained is None else self._drained
        return Pause(
            reason=self.reason,
            version=version,
            drain=drained - self._began,
            move=self._moving,
            wait=max(0.0, self._went - drained - self._moving),
            first_step=now - self._went,
            checksum=self._checksums[1],
            checksum_before=self._checksums[0],
        )
