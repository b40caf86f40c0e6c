"""The time that a master lives by."""

import time
from datetime import UTC, datetime, timedelta


class SystemClock:
    """The wall clock at the start, and from then on time that neither jumps nor runs while the machine sleeps."""

    def __init__(self) -> None:
        self._start = datetime.now(UTC)
        self._ticks = time.monotonic()

    def now(self) -> datetime:
        return self._start + timedelta(seconds=time.monotonic() - self._ticks)
