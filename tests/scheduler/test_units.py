"""The document's facade, and the order under it."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.scheduler.units import GpuPriorityCFS, Order, PrioLevel, Unit


@dataclass
class Job:
    """A unit as the document has it."""

    name: str
    prio: PrioLevel = PrioLevel.Normal
    score: int = 10
    running: int = 1
    seconds: int = 60

    def GetPrio(self) -> PrioLevel:
        return self.prio

    def SetPrio(self, prio: PrioLevel) -> None:
        self.prio = prio

    def MaxInstances(self) -> int:
        return 10

    def MinInstances(self) -> int:
        return 1

    def ResourceScore(self) -> int:
        return self.score

    def ExpectedCount(self) -> int:
        return self.running

    def RunningCount(self) -> int:
        return self.running

    def Obj(self) -> object:
        return self.name


def value(unit: Unit) -> float:
    assert isinstance(unit, Job)
    return unit.ResourceScore() * unit.RunningCount() * unit.seconds / unit.GetPrio()


def test_the_unit_with_the_least_service_for_its_weight_is_left_most() -> None:
    tree = GpuPriorityCFS(value)
    units = [Job("a", seconds=100), Job("b", seconds=1), Job("c", prio=PrioLevel.Production, seconds=100)]
    for unit in units:
        tree.AddUnit(unit)
    assert tree.Len() == 3
    assert tree.GetLeftMost() is units[1]
    assert tree.GetRightMost() is units[0]
    seen: list[object] = []
    also: list[object] = []
    tree.Traverse(lambda unit: seen.append(unit.Obj()), lambda unit: also.append(unit))
    assert seen == ["b", "c", "a"]
    assert len(also) == 3


def test_production_is_not_behind_an_experiment() -> None:
    """As the document writes the score, times the priority, it would be."""
    tree = GpuPriorityCFS(value)
    production, experiment = Job("p", prio=PrioLevel.Production), Job("e", prio=PrioLevel.Experiement)
    tree.AddUnit(experiment)
    tree.AddUnit(production)
    assert tree.GetLeftMost() is production
    assert PrioLevel.Experiement is PrioLevel.Experiment


def test_a_unit_that_changed_is_taken_out_and_added_again() -> None:
    tree = GpuPriorityCFS(value)
    first, second = Job("first", seconds=1), Job("second", seconds=2)
    tree.AddUnit(first)
    tree.AddUnit(second)
    tree.DelUnit(first)
    first.seconds = 3
    tree.AddUnit(first)
    assert tree.GetLeftMost() is second


def test_wrong_use_is_an_error() -> None:
    tree = GpuPriorityCFS(value)
    unit = Job("a")
    assert tree.GetLeftMost() is None
    assert tree.GetRightMost() is None
    with pytest.raises(KeyError, match="not in"):
        tree.DelUnit(unit)
    tree.AddUnit(unit)
    with pytest.raises(ValueError, match="already in"):
        tree.AddUnit(unit)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 5), st.booleans()), max_size=60))
def test_the_order_is_that_of_a_sorted_dictionary(events: list[tuple[int, int, bool]]) -> None:
    order: Order[int] = Order()
    model: dict[int, tuple[float, ...]] = {}
    for item, rank, is_put in events:
        if is_put:
            order.put(item, (rank, item))
            model[item] = (rank, item)
        else:
            order.drop(item)
            model.pop(item, None)
        expected = sorted(model, key=lambda one: model[one])
        assert list(order) == expected
        assert list(reversed(order)) == expected[::-1]
        assert (order.first(), order.last()) == ((expected[0], expected[-1]) if expected else (None, None))
        assert len(order) == len(expected)
        assert (item in order) is (item in model)
