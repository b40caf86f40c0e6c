"""The order in which jobs take steps up, without taking them.

A job's key never falls as it grows, so the order of all steps of all jobs is the order of their keys, and it can be
sorted instead of being picked from a heap one by one. It is sorted in portions of rising keys: most steps are never
reached, because room ends first. Keys that are no straight lines are worked out only as far as they are reached.
"""

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from shoal.scheduler.columns import Bools, Floats, Ints
from shoal.scheduler.planning import Round

FIRST, LARGEST = 2_048, 65_536
"""Steps that are sorted at a time, about: few at first, for in a full cluster hardly any are taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lines:
    """Jobs whose keys are straight lines, each with the sizes it may still go to."""

    job: Ints
    rank: Ints
    base: Floats
    slope: Floats
    shift: Ints
    at: Ints
    """The next size."""
    most: Ints

    def where(self, kept: Bools) -> "Lines":
        return Lines(**{name: getattr(self, name)[kept] for name in self.__slots__})

    def key(self, size: Ints) -> Floats:
        keys: Floats = self.base + self.slope * (size - self.shift)
        return keys

    def size_at(self, level: float) -> Ints:
        """The largest size whose key is not above the level; one less than `at` when there is none."""
        if level == np.inf:
            return self.most
        with np.errstate(divide="ignore", invalid="ignore"):
            guess = np.floor((level - self.base) / self.slope) + self.shift
        guess = np.where(self.slope > 0, guess, np.where(self.base <= level, self.most, self.at - 1))
        size = np.clip(guess, self.at - 1, self.most).astype(np.int64)
        # The division rounds, so the guess may be off by one. The key itself decides.
        size = np.where((size < self.most) & (self.key(size + 1) <= level), size + 1, size)
        lowered: Ints = np.where((size >= self.at) & (self.key(size) > level), size - 1, size)
        return lowered

    def level(self, portion: int) -> float:
        """A key up to which about so many steps lie; infinite when no more are left in all."""
        if int((self.most - self.at + 1).sum()) <= portion:
            return float(np.inf)
        low, high = float(self.key(self.at).min()), float(self.key(self.most).max())
        for _ in range(60):
            middle = (low + high) / 2
            steps = int((self.size_at(middle) - self.at + 1).sum())
            if portion / 2 <= steps <= portion:
                return middle
            low, high = (middle, high) if steps < portion / 2 else (low, middle)
        return high


class Curves:
    """Jobs whose keys are no straight lines, each with its next step."""

    def __init__(self, plan: Round, jobs: Ints) -> None:
        self._plan = plan
        self._next: list[tuple[float, int, int, int]] = []
        """Key, rank, job and size."""
        for job in jobs.tolist():
            self._push(job, plan.n[job])

    def __bool__(self) -> bool:
        return bool(self._next)

    def keep(self, is_alive: Callable[[Ints], Bools]) -> None:
        """Forget who dropped out."""
        if self._next:
            alive = is_alive(np.array([job for _, _, job, _ in self._next], dtype=np.int64)).tolist()
            self._next = [step for step, stays in zip(self._next, alive, strict=True) if stays]
            heapq.heapify(self._next)

    def take(self, level: float, portion: int) -> tuple[list[tuple[float, int, int]], float]:
        """Key, rank and job of the steps up to this level, and the level they go up to: a lower one if these are too
        many. Steps with the same key stay together."""
        taken: list[tuple[float, int, int]] = []
        while self._next and self._next[0][0] <= level:
            key, rank, job, size = heapq.heappop(self._next)
            self._push(job, size)
            taken.append((key, rank, job))
            if len(taken) == portion:
                level = key
        return taken, level

    def _push(self, job: int, size: int) -> None:
        unit = self._plan.unit[job]
        size = (size // unit + 1) * unit
        if size <= self._plan.most[job]:
            keys = self._plan.keys
            heapq.heappush(self._next, (keys.key(job, size), keys.rank[job], job, size))


def in_order(plan: Round, hungry: Ints, is_alive: Callable[[Ints], Bools], portion: int = FIRST) -> Iterator[list[int]]:
    """Whose step comes next, in portions of rising length. A job stands there as often as it has steps; `is_alive`
    says, between portions, who has not dropped out."""
    bent = np.array([job in plan.keys.bent or plan.unit[job] > 1 for job in hungry.tolist()], dtype=np.bool_)
    lines = _lines(plan, hungry[~bent])
    curves = Curves(plan, hungry[bent])
    while len(lines.job) or curves:
        lines = lines.where(is_alive(lines.job) & (lines.at <= lines.most))
        curves.keep(is_alive)
        level = lines.level(portion) if len(lines.job) else float(np.inf)
        curved, level = curves.take(level, portion)
        upto = lines.size_at(level)
        steps = _steps(lines, upto)
        if curved:
            key, rank, job = (np.array(column) for column in zip(*curved, strict=True))
            steps = [np.concatenate(pair) for pair in zip(steps, (key, rank, job), strict=True)]
        key, rank, job = steps
        yield job[np.lexsort((rank, key))].tolist()
        portion = min(2 * portion, LARGEST)
        lines = Lines(job=lines.job, rank=lines.rank, base=lines.base, slope=lines.slope, shift=lines.shift,
                      at=upto + 1, most=lines.most)  # fmt: skip


def _lines(plan: Round, jobs: Ints) -> Lines:
    keys = plan.keys
    return Lines(
        job=jobs,
        rank=np.array(keys.rank, dtype=np.int64)[jobs],
        base=np.array(keys.base, dtype=np.float64)[jobs],
        slope=np.array(keys.slope, dtype=np.float64)[jobs],
        shift=np.array(keys.shift, dtype=np.int64)[jobs],
        at=np.array(plan.n, dtype=np.int64)[jobs] + 1,
        most=plan.columns.jobs["most"][jobs],
    )


def _steps(lines: Lines, upto: Ints) -> list[np.ndarray[tuple[int], np.dtype[np.generic]]]:
    """Key, rank and job of every step from `at` to there."""
    counts = upto - lines.at + 1
    line = np.repeat(np.arange(len(counts)), counts)
    size = np.arange(len(line)) - (np.cumsum(counts) - counts)[line] + lines.at[line]
    key = lines.base[line] + lines.slope[line] * (size - lines.shift[line])
    return [key, lines.rank[line], lines.job[line]]
