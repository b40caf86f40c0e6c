"""What a run leaves behind: integrals kept as it goes, so that they are exact, and curves coarse enough to be drawn."""

import math
from collections.abc import Iterable, Sequence

from shoal.sim.report import JobOutcome, Measures, Series

MOST_POINTS = 2_000
"""Of a curve. More cannot be told apart in a plot."""


class Gauge:
    """A number over time: its integral, and its curve."""

    def __init__(self) -> None:
        self.value = 0.0
        self._since = 0.0
        self._integral = 0.0
        self._times: list[float] = []
        self._values: list[float] = []

    def add(self, now: float, difference: float) -> None:
        self.set(now, self.value + difference)

    def set(self, now: float, value: float) -> None:
        if value == self.value:
            return
        self._integral += self.value * (now - self._since)
        self.value, self._since = value, now
        if self._times and self._times[-1] == now:
            self._values[-1] = value
        else:
            self._times.append(now)
            self._values.append(value)

    def forget(self, now: float) -> None:
        """Count from now on."""
        self._integral, self._since = 0.0, now

    def integral(self, until: float) -> float:
        """Up to now, or up to a moment that is past."""
        if until >= self._since:
            return self._integral + self.value * (until - self._since)
        total, later = self._integral, self._since
        for at, value in zip(reversed(self._times[:-1]), reversed(self._values[:-1]), strict=True):
            if later <= until:
                break
            total -= value * (later - max(at, until))
            later = at
        return total

    def series(self, scale: float = 1.0) -> Series:
        """The curve, divided by `scale`; a long one as means over equal stretches."""
        if len(self._times) <= MOST_POINTS:
            return Series(tuple(self._times), tuple(round(value / scale, 6) for value in self._values))
        start, end = self._times[0], self._times[-1]
        width = (end - start) / MOST_POINTS
        sums = [0.0] * MOST_POINTS
        for at, value, until in zip(self._times, self._values, self._times[1:], strict=False):
            _spread(sums, at - start, until - start, value, width)
        times = tuple(start + number * width for number in range(MOST_POINTS))
        return Series((*times, end), (*(round(each / width / scale, 6) for each in sums), self._values[-1] / scale))


def _spread(sums: list[float], start: float, end: float, value: float, width: float) -> None:
    """Add the integral of a constant between two moments to the stretches it lies in."""
    at = min(int(start / width), len(sums) - 1)
    while start < end:
        edge = (at + 1) * width if at < len(sums) - 1 else end
        sums[at] += value * max(0.0, min(edge, end) - start)
        start, at = max(edge, start), min(at + 1, len(sums) - 1)


def jain(values: Iterable[float]) -> float | None:
    """Jain's index: 1 when all are equal, 1/n when one has everything. None: there is nothing to share."""
    known = list(values)
    squares = math.fsum(value * value for value in known)
    return None if squares == 0.0 else math.fsum(known) ** 2 / (len(known) * squares)


def measure(
    jobs: Sequence[JobOutcome], *, utilisation: float, effective_utilisation: float, jain: float | None
) -> Measures:
    """The numbers of one run. The two utilisations and Jain's index are means over its time."""
    jcts = sorted(job.completion_seconds for job in jobs if job.completion_seconds is not None)
    waits = [job.wait_seconds for job in jobs if job.wait_seconds is not None]
    ends = [job.finished for job in jobs if job.finished is not None]
    return Measures(
        jobs=len(jobs),
        finished=len(jcts),
        jct_mean=mean(jcts),
        jct_median=quantile(jcts, 0.5),
        jct_p99=quantile(jcts, 0.99),
        makespan=max(ends) - min(job.submitted for job in jobs) if ends and len(ends) == len(jobs) else None,
        wait_mean=mean(waits),
        utilisation=utilisation,
        effective_utilisation=effective_utilisation,
        jain=jain,
        moves_per_job=sum(job.moves for job in jobs) / len(jobs) if jobs else 0.0,
        gangs_started=len(waits),
    )


def mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None


def quantile(ordered: Sequence[float], part: float) -> float | None:
    """Linear between neighbours, of values in order."""
    if not ordered:
        return None
    at = part * (len(ordered) - 1)
    low = math.floor(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)
