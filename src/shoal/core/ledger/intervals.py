"""Sets of whole numbers as ranges: sorted, disjoint, none empty, none touching the next.

That form is unique, so two sets are equal exactly when their tuples are.
"""

from collections.abc import Iterable

Ranges = tuple[tuple[int, int], ...]
"""`((0, 3), (7, 8))` is the set {0, 1, 2, 7}."""


def merged(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """The set of all numbers that are in one of the ranges. They may overlap, touch, be empty and come in any order."""
    out: list[tuple[int, int]] = []
    for start, stop in sorted(r for r in ranges if r[0] < r[1]):
        if out and start <= out[-1][1]:
            out[-1] = (out[-1][0], max(stop, out[-1][1]))
        else:
            out.append((start, stop))
    return tuple(out)


def minus(ranges: Ranges, holes: Ranges) -> Ranges:
    """What is in `ranges` and not in `holes`."""
    out: list[tuple[int, int]] = []
    next_hole = 0
    for start, stop in ranges:
        while next_hole < len(holes) and holes[next_hole][1] <= start:
            next_hole += 1
        at = next_hole
        while at < len(holes) and holes[at][0] < stop:
            if start < holes[at][0]:
                out.append((start, holes[at][0]))
            start = holes[at][1]
            at += 1
        if start < stop:
            out.append((start, stop))
    return tuple(out)


def total(ranges: Ranges) -> int:
    """How many numbers are in the set."""
    return sum(stop - start for start, stop in ranges)
