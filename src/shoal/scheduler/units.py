"""The units of the scheduler's design document, and the order they are kept in.

The document keeps its units in a red-black tree by score. What it needs of the tree is an order with quick ends, and
that is `Order`: a sorted list, found by bisection. The policies use it for donors and fairness moves; `GpuPriorityCFS`
is the same order under the document's own names, for whoever wants to build upon that interface.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Hashable, Iterable, Iterator
from enum import IntEnum
from typing import Generic, Protocol, TypeVar

T = TypeVar("T", bound=Hashable)
Rank = tuple[float, ...]


class Order(Generic[T]):
    """Items by rank, smallest first. No two items have the same rank."""

    def __init__(self, items: Iterable[tuple[Rank, T]] = ()) -> None:
        self._items = sorted(items)  # ranks differ, so items are never compared
        self._ranks = {item: rank for rank, item in self._items}

    def __len__(self) -> int:
        return len(self._items)

    def __contains__(self, item: T) -> bool:
        return item in self._ranks

    def __iter__(self) -> Iterator[T]:
        return (item for _, item in self._items)

    def __reversed__(self) -> Iterator[T]:
        return (item for _, item in reversed(self._items))

    def put(self, item: T, rank: Rank) -> None:
        """Add it, or move it to another rank."""
        self.drop(item)
        insort(self._items, (rank, item))
        self._ranks[item] = rank

    def drop(self, item: T) -> None:
        """Take it out, if it is in."""
        rank = self._ranks.pop(item, None)
        if rank is not None:
            del self._items[bisect_left(self._items, (rank,))]  # before (rank, item)

    def rank(self, item: T) -> Rank:
        return self._ranks[item]

    def first(self) -> T | None:
        return self._items[0][1] if self._items else None

    def last(self) -> T | None:
        return self._items[-1][1] if self._items else None


class PrioLevel(IntEnum):
    """The document's levels; they are weights, not classes."""

    Experiment = 10
    Experiement = 10  # as the document spells it
    Offline = 100
    Normal = 1_000
    Production = 10_000


class Unit(Protocol):
    """What is scheduled as one: a job, under the document's names."""

    def GetPrio(self) -> PrioLevel: ...  # noqa: N802
    def SetPrio(self, prio: PrioLevel) -> None: ...  # noqa: N802
    def MaxInstances(self) -> int: ...  # noqa: N802
    def MinInstances(self) -> int: ...  # noqa: N802

    def ResourceScore(self) -> int:  # noqa: N802
        """The score of a single Pod: the sum of weight x amount over its resources."""
        ...

    def ExpectedCount(self) -> int:  # noqa: N802
        """The parallelism it should have by the present step."""
        ...

    def RunningCount(self) -> int:  # noqa: N802
        """The parallelism it has; 0 means that it waits for room."""
        ...

    def Obj(self) -> object:  # noqa: N802
        """What is inside."""
        ...


class GpuPriorityCFS:
    """The document's scheduler interface over `Order`: units by a value, the least deserving last.

    The value comes from `key`. Where the document multiplies by the priority, which would serve the highest last, ours
    divides by it. A unit whose value changed is taken out and added again.
    """

    def __init__(self, key: Callable[[Unit], float]) -> None:
        self._key = key
        self._order: Order[int] = Order()
        self._units: dict[int, Unit] = {}
        self._added = 0

    def AddUnit(self, unit: Unit) -> None:  # noqa: N802
        if id(unit) in self._units:
            raise ValueError(f"unit {unit.Obj()!r} is already in")
        self._units[id(unit)] = unit
        self._added += 1
        self._order.put(id(unit), (self._key(unit), self._added))

    def DelUnit(self, unit: Unit) -> None:  # noqa: N802
        if self._units.pop(id(unit), None) is None:
            raise KeyError(f"unit {unit.Obj()!r} is not in")
        self._order.drop(id(unit))

    def GetLeftMost(self) -> Unit | None:  # noqa: N802
        """The unit with the smallest value: it deserves the most."""
        first = self._order.first()
        return None if first is None else self._units[first]

    def GetRightMost(self) -> Unit | None:  # noqa: N802
        """The unit with the largest value: it gives first."""
        last = self._order.last()
        return None if last is None else self._units[last]

    def Len(self) -> int:  # noqa: N802
        return len(self._order)

    def Traverse(self, *callbacks: Callable[[Unit], None]) -> None:  # noqa: N802
        """Each unit from left to right, to every callback."""
        for item in list(self._order):
            for callback in callbacks:
                callback(self._units[item])
