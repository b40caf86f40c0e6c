"""The order of steps: the same in portions as when all are sorted at once."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.scheduler.world import a_job, hosts, room

from shoal.scheduler.fill import fill
from shoal.scheduler.keys import Keys, cfs_keys
from shoal.scheduler.planning import Round
from shoal.scheduler.rows import Attained, Priority, Servers
from shoal.scheduler.scores import footprint, score
from shoal.scheduler.settings import SchedulerSettings
from shoal.scheduler.snapshot import Snapshot
from shoal.scheduler.steps import Lines, in_order

jobs = st.lists(
    st.tuples(
        st.integers(1, 5), st.integers(0, 40), st.sampled_from([0, 1, 2, 3]), st.integers(0, 5_000),
        st.sampled_from(list(Priority)), st.sampled_from([1, 1, 2]),
    ),
    max_size=12,
)  # fmt: skip


@settings(max_examples=60)
@given(jobs, st.integers(2, 40))
def test_portions_make_no_difference(drawn: list, portion: int) -> None:
    rows = [
        a_job(f"job-{at}", size, size + more, each=room(cores), priority=priority, unit=unit, target=size,
              attained=Attained(v=float(v)))
        for at, (size, more, cores, v, priority, unit) in enumerate(drawn)
    ]  # fmt: skip
    plan = Round(Snapshot.of(hosts(1), rows), 0.0, SchedulerSettings(), cfs_keys)
    all_of_them = np.arange(len(rows))
    found = [
        job for part in in_order(plan, all_of_them, lambda jobs: np.ones(len(jobs), bool), portion) for job in part
    ]
    steps = []
    for job in range(len(rows)):
        size = plan.n[job]
        while (size := (size // plan.unit[job] + 1) * plan.unit[job]) <= plan.most[job]:
            steps.append((plan.keys.key(job, size), plan.keys.rank[job], job))
    assert found == [job for _, _, job in sorted(steps)]


@settings(max_examples=300)
@given(
    base=st.floats(-1e6, 1e6),
    slope=st.one_of(st.just(0.0), st.floats(1e-3, 1e5)),
    at=st.integers(1, 20),
    more=st.integers(0, 60),
    exactly=st.integers(0, 80),
    beside=st.sampled_from(["on", "just below", "between"]),
)
def test_the_size_at_a_level_is_the_last_whose_key_is_not_above_it(
    base: float, slope: float, at: int, more: int, exactly: int, beside: str
) -> None:
    """Also where the level is a key, and the division does not come out."""
    key = base + slope * exactly
    level = {"on": key, "just below": float(np.nextafter(key, -np.inf)), "between": key + slope / 2}[beside]
    one = {"job": [0], "rank": [0], "shift": [0], "at": [at], "most": [at + more]}
    line = Lines(base=np.array([base]), slope=np.array([slope]), **{name: np.array(v) for name, v in one.items()})
    sizes = [size for size in range(at, at + more + 1) if base + slope * size <= level]
    assert line.size_at(level).tolist() == [max(sizes, default=at - 1)]


def test_keys_that_are_no_lines_are_worked_out_only_as_far_as_they_are_reached() -> None:
    """A full cluster costs little, however far jobs would like to grow."""
    asked = 0

    def counted(*facts: object) -> Keys:
        keys = cfs_keys(*facts)  # type: ignore[arg-type]

        def count(bent: Callable[[int], float]) -> Callable[[int], float]:
            def ask(size: int) -> float:
                nonlocal asked
                asked += 1
                return bent(size)

            return ask

        return replace(keys, bent={job: count(bent) for job, bent in keys.bent.items()})

    servers = Servers(each=room(1, 1), min=0, max=10**9, per_trainer=0.5)
    rows = [a_job(f"ps-{n}", 1, 10**8, target=1, placed={"host-0000": 1}, servers=servers) for n in range(8)]
    plan = Round(Snapshot.of(hosts(1, cores=8), rows), 0.0, SchedulerSettings(), counted)
    fill(plan)
    assert not plan.has_changes()
    assert asked < 10_000


def test_servers_whose_number_never_changes_leave_a_key_straight() -> None:
    servers = Servers(each=room(1, 1), min=3, max=3, per_trainer=0.5)
    plan = Round(Snapshot.of(hosts(1), [a_job("ps", 1, 9, servers=servers)]), 0.0, SchedulerSettings(), cfs_keys)
    assert not plan.keys.bent
    price = score(footprint(plan.rows[0], 5), plan.view.capacity, plan.settings)
    assert plan.keys.key(0, 5) - plan.keys.service[0] == pytest.approx(price * plan.settings.horizon)


def test_who_dropped_out_is_not_asked_again() -> None:
    rows = [a_job("a", 1, 50, target=1), a_job("b", 1, 50, target=1)]
    plan = Round(Snapshot.of(hosts(1), rows), 0.0, SchedulerSettings(), cfs_keys)
    out: set[int] = set()
    found: list[int] = []
    for part in in_order(plan, np.arange(2), lambda jobs: ~np.isin(jobs, list(out)), 10):
        found += part
        out.add(0)
    assert found.count(1) == 49
    assert 0 < found.count(0) <= 10
