"""How many trainers jobs would have if those of one shape were dealt out anew: who gives how far, and who gets how far.

Jobs are *even* when their keys are. A round may make only so many moves, and whoever takes part is frozen afterwards;
so it is worked out first where each job should end, and it goes there at once instead of a little in every round.
Frozen jobs count too: nobody is given in the meantime what they will be due.

Nobody is resized for the last trainer: who has a little more than even keeps it, unless others would be left with much
less.
"""

from collections.abc import Callable, Sequence

import numpy as np

from shoal.scheduler.columns import Floats, Ints
from shoal.scheduler.keys import Keys

NEAR = 4
"""A quarter more or less than even is near enough."""
HALVINGS = 50
"""Until a key is exact enough to tell the steps of equals apart."""


class Alike:
    """Jobs whose trainers can stand in for each other, with keys that are straight lines and rise with their size."""

    def __init__(self, jobs: Sequence[int], keys: Keys, n: Sequence[int], least: Sequence[int], most: Sequence[int]):
        self._base: Floats = np.array([keys.base[job] for job in jobs])
        self._slope: Floats = np.array([keys.slope[job] for job in jobs])
        self._shift: Ints = np.array([keys.shift[job] for job in jobs], dtype=np.int64)
        self._have: Ints = np.array([n[job] for job in jobs], dtype=np.int64)
        self._least: Ints = np.array([least[job] for job in jobs], dtype=np.int64)
        self._most: Ints = np.array([most[job] for job in jobs], dtype=np.int64)

    def ends(self) -> tuple[list[int], list[int]]:
        """For each job the size down to which it gives, and the size up to which it gets."""
        even = self._highest(lambda sizes: int(sizes.sum()) <= int(self._have.sum()))
        margin = even // NEAR
        keeps = even + margin
        gets = self._dealt(keeps)
        if (np.maximum(gets, self._have) < np.minimum(even, self._most) - margin).any():
            keeps = even
            gets = self._dealt(keeps)
        return keeps.tolist(), gets.tolist()

    def _dealt(self, keeps: Ints) -> Ints:
        """What everybody has when all that is above these sizes is dealt out to those that deserve it most."""
        given = int(np.maximum(self._have - keeps, 0).sum())
        return self._highest(lambda sizes: int(np.maximum(sizes - self._have, 0).sum()) <= given)

    def _highest(self, is_enough: Callable[[Ints], bool]) -> Ints:
        """The sizes at the highest common key at which this still holds."""
        low = float((self._base + self._slope * (self._least - self._shift)).min())
        high = float((self._base + self._slope * (self._most + 1 - self._shift)).max())
        below, above = self._sizes(low), self._sizes(high)
        for _ in range(HALVINGS):
            if int((above - below).sum()) <= 1:
                break  # at most one step is between them: nothing more is to be found out
            middle = (low + high) / 2
            sizes = self._sizes(middle)
            if is_enough(sizes):
                low, below = middle, sizes
            else:
                high, above = middle, sizes
        return below

    def _sizes(self, key: float) -> Ints:
        """How many trainers each has at this key."""
        free = np.floor((key - self._base) / self._slope) + self._shift
        sizes: Ints = np.clip(free, self._least, self._most).astype(np.int64)
        return sizes
