"""What this process has trained, and how long that took it: the counters that go out with its reports.

A step lasts from the end of the one before to its own end, so what a script does between steps (reading data) is part
of it; what it says it does instead of training (`busy`) is not, nor is the time between two worlds. Of a step, what is
not spent waiting for others is work: in a world that steps together everybody's step is as long as the slowest
member's, and only the work tells whose that is.

Written by the training thread. Another thread may read `trained` at any time: it is replaced as a whole.
"""

import time
from collections.abc import Callable

from shoal.core.nodes import Trained


class Meter:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.trained = Trained(steps=0, samples=None, step_seconds=0.0, work_seconds=0.0)
        self._clock = clock
        self._since: float | None = None

    def begin(self) -> None:
        """A step begins, unless it began with the end of the one before."""
        if self._since is None:
            self._since = self._clock()

    def committed(self, *, samples: int | None, waited: float) -> None:
        """The step is done; `samples`: those that this process computed."""
        now, known = self._clock(), self.trained
        seconds = 0.0 if self._since is None else max(0.0, now - self._since)
        self._since = now
        self.trained = Trained(
            steps=known.steps + 1,
            samples=known.samples if samples is None else (known.samples or 0) + samples,
            step_seconds=known.step_seconds + seconds,
            work_seconds=known.work_seconds + min(seconds, max(0.0, seconds - waited)),
        )

    def rested(self, seconds: float) -> None:
        """It did something else for so long."""
        if self._since is not None:
            self._since += seconds

    def stop(self) -> None:
        """The world is over; the step that was under way is given up."""
        self._since = None
