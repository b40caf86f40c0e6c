"""Non-negative least squares: the x of at least zero that brings `rows @ x` closest to `wanted`.

Lawson and Hanson's active sets, which end after a few rounds for our handful of unknowns. numpy only: the image of the
operator and its masters has it anyway, and what else brings this function is ten times as large.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

ROUNDS = 30
"""For each unknown. It ends long before; rounding could make it go in circles."""


def nnls(rows: "np.ndarray", wanted: "np.ndarray") -> "tuple[np.ndarray, float]":
    """The solution, and how far it is off: the length of what is left over."""
    import numpy as np

    count = rows.shape[1]
    squares, towards = rows.T @ rows, rows.T @ wanted
    close = 10.0 * max(rows.shape) * np.spacing(1.0) * float(np.abs(squares).sum(axis=0).max(initial=0.0))
    x = np.zeros(count)
    free = np.zeros(count, dtype=bool)
    """Unknowns that may be above zero."""
    for _ in range(ROUNDS * count):
        pull = towards - squares @ x
        if free.all() or not (pull[~free] > close).any():
            break
        free[int(np.argmax(np.where(free, -np.inf, pull)))] = True
        x, free = _feasible(np, squares, towards, x, free, close)
    return x, float(np.linalg.norm(rows @ x - wanted))


def _feasible(np: Any, squares: Any, towards: Any, x: Any, free: Any, close: float) -> Any:
    """The best with these free; those that would be below zero are held at zero, the first to get there first."""
    while True:
        best = np.zeros_like(x)
        best[free] = np.linalg.lstsq(squares[np.ix_(free, free)], towards[free], rcond=None)[0]
        below = free & (best <= 0.0)
        if not below.any():
            return best, free
        step = float(np.min(x[below] / (x[below] - best[below] + np.finfo(float).tiny)))
        x = x + min(max(step, 0.0), 1.0) * (best - x)
        held = free & (x <= close)
        held |= below if not held.any() else np.zeros_like(free)
        x = np.where(held, 0.0, x)
        free = free & ~held
        if not free.any():
            return np.zeros_like(x), free
