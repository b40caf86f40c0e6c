"""Fairness over time: shares by weight, and priorities the right way round."""

import random
from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from tests.scheduler.clusters import random_job, worlds
from tests.scheduler.world import World, a_job, hosts, room

from shoal.scheduler.decisions import Action
from shoal.scheduler.rows import JobKey, Priority, Room
from shoal.scheduler.settings import WEIGHTS, SchedulerSettings

NORMAL, PRODUCTION, OFFLINE, EXPERIMENT = (
    Priority.NORMAL,
    Priority.PRODUCTION,
    Priority.OFFLINE,
    Priority.EXPERIMENT,
)


def trainer_seconds(world: World, seconds: float, step: float = 30.0, warm_up: float = 600.0) -> dict[str, float]:
    """Let time pass, and count what each job had of it after a while."""
    had = dict.fromkeys(world.targets(), 0.0)
    end = warm_up + seconds
    while world.now < end:
        world.round()
        world.wait(step)
        if world.now > warm_up:
            for name, target in world.targets().items():
                had[name] += target * step
    return had


def test_hungry_jobs_get_service_in_proportion_to_their_weights() -> None:
    jobs = [
        a_job("production", 1, 500, priority=PRODUCTION),
        a_job("normal-a", 1, 500, priority=NORMAL),
        a_job("normal-b", 1, 500, priority=NORMAL),
        a_job("offline", 1, 500, priority=OFFLINE),
    ]
    world = World.of(hosts(20, cores=16), jobs, settings=SchedulerSettings(freezing_window=30.0))
    had = trainer_seconds(world, 7_200.0)
    assert had["normal-a"] == pytest.approx(had["normal-b"], rel=0.05)
    assert had["production"] / had["normal-a"] == pytest.approx(10, rel=0.15)
    assert had["normal-a"] / had["offline"] == pytest.approx(10, rel=0.6)  # 2.4 trainers: whole ones are coarse


CLOSE = dict(zip(Priority, (1_000, 2_000, 3_000, 5_000), strict=True))
"""Weights that whole trainers can follow in a small cluster; a hundredth of another job's share is none."""
TRAINERS = (room(1, 1), room(2, 4), room(4, 1), room(8, 16, 1), room(16, 64, 2), room(32, 64, 4))
"""Those of one cluster are alike: a smaller one that goes leaves no room for a larger one."""


def unevenness(
    count: int,
    priorities: list[Priority],
    seed: int,
    *,
    horizons: int,
    step: float,
    weights: Mapping[Priority, int] = WEIGHTS,
    each: Room = TRAINERS[0],
) -> float:
    """Jobs come one after the other into a cluster of so many hosts, and run for so many horizons: by what part of it
    the service that one has attained, divided by its weight, is then less than another's."""
    chance = random.Random(seed)
    there = hosts(count, cores=96, gib=768, gpus=8) if each.gpu else hosts(count, cores=16)
    world = World.of(there, [], settings=SchedulerSettings(freezing_window=30.0, weights=weights))
    for number, priority in enumerate(priorities):
        world.arrive(a_job(f"job-{number}", 1, 10_000, each=each, priority=priority))
        for _ in range(chance.randint(1, 5)):
            world.round()
            world.wait(30.0)
    trainer_seconds(world, horizons * world.settings.horizon, step=step)
    attained = [standing.attained.now(world.now) for standing in world.standing.values()]
    return 1 - min(attained) / max(attained)


a_mix = st.lists(st.sampled_from([NORMAL, PRODUCTION]), min_size=2, max_size=5)
unhurried = [HealthCheck.too_slow]


@settings(max_examples=8, phases=[Phase.explicit, Phase.generate], suppress_health_check=unhurried)
@given(a_mix, st.integers(0, 100))
def test_service_per_weight_becomes_even_for_any_mix(priorities: list[Priority], seed: int) -> None:
    """Jobs that come at different times: who had more for a while pays it back, within a few times the horizon."""
    assert unevenness(25, priorities, seed, horizons=8, step=300.0) <= 0.1


@settings(max_examples=12, phases=[Phase.explicit, Phase.generate], suppress_health_check=unhurried)
@given(
    st.lists(st.sampled_from(Priority), min_size=2, max_size=6),
    st.permutations(list(CLOSE.values())),
    st.sampled_from(TRAINERS),
    st.integers(0, 100),
)
def test_so_it_does_for_other_weights_and_other_trainers(
    priorities: list[Priority], weights: list[int], each: Room, seed: int
) -> None:
    table = dict(zip(Priority, weights, strict=True))
    assert unevenness(25, priorities, seed, horizons=8, step=300.0, weights=table, each=each) <= 0.1


@settings(max_examples=1, phases=[Phase.explicit, Phase.generate], suppress_health_check=unhurried)
@given(
    st.lists(st.sampled_from(Priority), min_size=60, max_size=100), st.sampled_from(TRAINERS[:4]), st.integers(0, 100)
)
def test_so_it_does_for_up_to_100_jobs_on_200_hosts(priorities: list[Priority], each: Room, seed: int) -> None:
    assert unevenness(200, priorities, seed, horizons=4, step=900.0, weights=CLOSE, each=each) <= 0.25


@pytest.mark.slow
@settings(max_examples=8, phases=[Phase.explicit, Phase.generate], suppress_health_check=unhurried)
@given(a_mix, st.integers(0, 100))
def test_in_the_long_run_service_is_in_proportion_to_weights(priorities: list[Priority], seed: int) -> None:
    assert unevenness(25, priorities, seed, horizons=32, step=300.0) <= 0.03


@pytest.mark.slow
@settings(max_examples=3, phases=[Phase.explicit, Phase.generate], suppress_health_check=unhurried)
@given(st.lists(st.sampled_from([NORMAL, PRODUCTION]), min_size=50, max_size=100), st.integers(0, 100))
def test_so_it_is_with_up_to_100_jobs_on_200_hosts(priorities: list[Priority], seed: int) -> None:
    assert unevenness(200, priorities, seed, horizons=16, step=900.0) <= 0.1


def test_a_production_job_is_not_behind_an_experiment() -> None:
    """The document's formula, taken literally, serves Production last."""
    jobs = [a_job("production", 1, 50, priority=PRODUCTION), a_job("experiment", 1, 50, priority=EXPERIMENT)]
    world = World.of(hosts(2, cores=16), jobs)
    world.round()
    assert world.target("production") > world.target("experiment")
    for _ in range(40):
        world.wait(30.0)
        world.round()
        assert world.target("production") > world.target("experiment")


def check_twins(world: World, seed: int) -> None:
    """Of two jobs that differ in their priority alone, the higher is never behind in the queue nor left to wait while
    the lower runs; and when everything has come to rest, it has at least as many trainers."""
    chance = random.Random(seed)
    low, high = sorted(chance.sample(list(Priority), 2), key=lambda priority: WEIGHTS[priority])
    alike = replace(random_job("twin", chance), servers=None, created=world.now)
    keys = {priority: JobKey("twins", f"{priority}") for priority in (low, high)}
    world.services.clear()  # they take whole jobs from the hosts that suit them
    for priority in (low, high):
        world.arrive(replace(alike, key=keys[priority], priority=priority))
    for turn in range(8):
        places = {wait.key: wait.place for wait in world.round().waits}
        if keys[high] in places:
            assert keys[low] in places, "the lower runs and the higher waits"
            assert places[keys[high]] < places[keys[low]]
        world.wait(chance.choice([1.0, 5.0, 70.0, 2_000.0, 100_000.0]))
        for key in [key for key in world.jobs if key.namespace != "twins" and chance.random() < 0.1]:
            world.finish(key)
        for number in range(chance.choice([0, 0, 3])):
            world.arrive(random_job(f"late-{turn}-{number}", chance))
    rest(world)
    assert world.standing[keys[high]].target >= world.standing[keys[low]].target


def rest(world: World) -> None:
    """Rounds, until none has anything to do."""
    for _ in range(400):
        if not world.round().changes:
            return
    raise AssertionError("it does not come to rest")


@settings(max_examples=40, phases=[Phase.explicit, Phase.generate], suppress_health_check=unhurried)
@given(worlds(hosts=20, jobs=15, freezing=False), st.integers(0, 2**32))
def test_of_like_jobs_the_one_of_higher_priority_is_never_behind(world: World, seed: int) -> None:
    check_twins(world, seed)


@settings(max_examples=3, phases=[Phase.explicit, Phase.generate], suppress_health_check=unhurried)
@given(worlds(hosts=200, jobs=98, rounds=2, freezing=False), st.integers(0, 2**32))
def test_nor_is_it_with_up_to_200_hosts_and_100_jobs(world: World, seed: int) -> None:
    check_twins(world, seed)


def test_a_production_job_that_has_run_long_is_started_before_an_experiment() -> None:
    world = World.of(hosts(1, cores=4), [a_job("production", 3, 3, priority=PRODUCTION)])
    world.round()
    world.wait(600.0)
    world.arrive(a_job("experiment", 3, 3, priority=EXPERIMENT))
    world.arrive(a_job("production-2", 3, 3, priority=PRODUCTION))
    assert [wait.key.name for wait in world.round().waits] == ["production-2", "experiment"]


def run(world: World, seconds: float) -> None:
    until = world.now + seconds
    while world.now < until:
        world.round()
        world.wait(min(60.0, until - world.now))


def test_a_job_that_waited_is_owed_no_more_than_the_lag_cap() -> None:
    """One that was kept out for a day does not get the whole cluster when it may run: its gang, one trainer, is owed to
    it for the lag cap, which is one trainer more for as long."""
    world = World.of(hosts(2, cores=16), [a_job("runs", 1, 40), a_job("kept-out", 1, 40)])
    world.jobs[JobKey("team", "kept-out")] = replace(world.jobs[JobKey("team", "kept-out")], pools=frozenset({"none"}))
    for _ in range(20):
        world.round()
        world.wait(3_600.0)
    world.jobs[JobKey("team", "kept-out")] = replace(world.jobs[JobKey("team", "kept-out")], pools=None)
    had = trainer_seconds(world, 3_600.0, step=60.0, warm_up=world.now + 1_200.0)
    assert had["runs"] == pytest.approx(had["kept-out"], rel=0.25), "a quarter is near enough"


def test_moves_end_when_shares_are_even() -> None:
    """Nobody is moved for the sake of moving: a cluster in balance has few changes."""
    world = World.of(hosts(8, cores=16), [a_job(f"job-{n}", 1, 100) for n in range(8)])
    run(world, 600.0)
    world.log.clear()
    run(world, 3_600.0)
    assert len(world.log) <= 32
    assert not [change for _, change in world.log if change.action is Action.SUSPEND]


def test_a_newcomer_does_not_get_what_a_week_old_job_has_had() -> None:
    world = World.of(hosts(2, cores=16), [a_job("old", 1, 40)])
    world.round()
    world.wait(7 * 86_400.0)
    world.arrive(a_job("new", 1, 40))
    for _ in range(60):
        world.round()
        world.wait(30.0)
    assert abs(world.target("old") - world.target("new")) <= 4, "a quarter of an equal share is near enough"
