"""How fast a job is: the one thing about it that only the simulation knows.

A model is asked two questions: how far does the job get in so many seconds on these hosts, and how long would it still
take there. `Scaling` answers them for traces that know no more of a job than how long it took at one size; measured
profiles do it in `shoal.sim.pollux`.
"""

import math
from dataclasses import dataclass
from typing import Protocol

Placement = tuple[int, ...]
"""Trainers on each host, in the order of the ring."""


class Model(Protocol):
    finished: float | None
    """When it ended."""

    def advance(self, now: float, seconds: float, placement: Placement, slowdown: float = 0.0) -> None:
        """It trains from `now` for so long. Sets `finished` when it ends on the way."""
        ...

    def seconds_left(self, placement: Placement, slowdown: float = 0.0) -> float:
        """How long it would still take there."""
        ...

    def rewind(self, seconds: float, placement: Placement) -> None:
        """So many seconds of training there are lost."""
        ...


@dataclass(frozen=True, slots=True)
class ScalingSpec:
    """A `Scaling` job that has not begun: a value, as a trace may have a million of them."""

    duration: float
    size: int
    efficiency: float

    def __call__(self) -> "Scaling":
        return Scaling(duration=self.duration, size=self.size, efficiency=self.efficiency)


class Scaling:
    """A job whose duration at one size is known. Each doubling of its trainers makes it 2 x `efficiency` times as fast;
    a ring over several hosts is as fast as on one."""

    def __init__(self, *, duration: float, size: int, efficiency: float) -> None:
        self.finished: float | None = None
        self.left = duration
        """Seconds at the known size."""
        self._whole = duration
        self._size = size
        self._exponent = 1.0 + math.log2(efficiency)

    def advance(self, now: float, seconds: float, placement: Placement, slowdown: float = 0.0) -> None:
        if self.finished is not None:
            return
        need = self.seconds_left(placement, slowdown)
        if need <= seconds:
            self.left, self.finished = 0.0, now + need
        else:
            self.left -= self.left * seconds / need

    def seconds_left(self, placement: Placement, slowdown: float = 0.0) -> float:
        return self.left / self._speed(placement, slowdown)

    def rewind(self, seconds: float, placement: Placement) -> None:
        self.left = min(self._whole, self.left + seconds * self._speed(placement, 0.0))

    def _speed(self, placement: Placement, slowdown: float) -> float:
        size: float = (sum(placement) / self._size) ** self._exponent
        return size * (1.0 - slowdown)


def placement_of(hosts: tuple[int, ...]) -> Placement:
    """Trainers on each host, hosts in the order in which they first appear."""
    counts: dict[int, int] = {}
    for host in hosts:
        counts[host] = counts.get(host, 0) + 1
    return tuple(counts.values())
