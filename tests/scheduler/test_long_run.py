"""Fairness over time: shares by weight, bounded waits, and priorities the right way round."""

import random
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from tests.scheduler.world import World, a_job, hosts

from shoal.scheduler.decisions import Action
from shoal.scheduler.rows import JobKey, Priority
from shoal.scheduler.scores import footprint, score
from shoal.scheduler.settings import SchedulerSettings

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


@settings(max_examples=4, phases=[Phase.explicit, Phase.generate], suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.sampled_from([NORMAL, PRODUCTION]), min_size=2, max_size=5), st.integers(0, 100))
def test_service_per_weight_becomes_even_for_any_mix(priorities: list[Priority], seed: int) -> None:
    """Jobs that come at different times: who had more for a while pays it back, within a few times the horizon."""
    chance = random.Random(seed)
    world = World.of(hosts(25, cores=16), [], settings=SchedulerSettings(freezing_window=30.0))
    for number, priority in enumerate(priorities):
        world.arrive(a_job(f"job-{number}", 1, 1_000, priority=priority))
        for _ in range(chance.randint(1, 5)):
            world.round()
            world.wait(30.0)
    trainer_seconds(world, 4 * world.settings.horizon, step=300.0)
    attained = [standing.attained.now(world.now) for standing in world.standing.values()]
    assert min(attained) >= 0.65 * max(attained), (priorities, attained)


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


def test_a_production_job_that_has_run_long_is_started_before_an_experiment() -> None:
    world = World.of(hosts(1, cores=4), [a_job("production", 3, 3, priority=PRODUCTION)])
    world.round()
    world.wait(600.0)
    world.arrive(a_job("experiment", 3, 3, priority=EXPERIMENT))
    world.arrive(a_job("production-2", 3, 3, priority=PRODUCTION))
    assert [wait.key.name for wait in world.round().waits] == ["production-2", "experiment"]


# Waits ------------------------------------------------------------------------------------------------------


@settings(max_examples=15, phases=[Phase.explicit, Phase.generate], suppress_health_check=[HealthCheck.too_slow])
@given(
    sizes=st.lists(st.integers(1, 6), min_size=1, max_size=6),
    gang=st.integers(1, 8),
    weights=st.lists(st.sampled_from(list(Priority)), min_size=7, max_size=7),
    past=st.integers(0, 20),
)
def test_a_wait_is_bounded_when_surplus_is_enough(
    sizes: list[int], gang: int, weights: list[Priority], past: int
) -> None:
    """T <= max_wait + grace + 2 rounds, whatever the priorities."""
    jobs = [a_job(f"old-{n}", least, 100, priority=weights[n]) for n, least in enumerate(sizes)]
    cores = sum(sizes) + gang + 2
    world = World.of(hosts(4, cores=-(-cores // 4)), jobs, grace=30.0)
    run(world, past * 60.0)
    new = a_job("new", gang, gang, priority=weights[-1])
    world.arrive(new)
    came = world.now
    while world.target("new") == 0:
        decisions = world.round()
        assert world.now - came <= world.settings.max_wait + world.grace + 2 * world.settings.interval, decisions.waits
        world.wait(world.settings.interval if world.now - came < 60 or world.now - came > 1_740 else 60.0)


@settings(max_examples=15, phases=[Phase.explicit, Phase.generate], suppress_health_check=[HealthCheck.too_slow])
@given(rivals=st.integers(1, 5), gang=st.integers(1, 4), past=st.integers(1, 100))
def test_among_equal_weights_a_wait_is_as_short_as_the_debit(rivals: int, gang: int, past: int) -> None:
    """T <= D x (S_new / w_new) / min(S_j / w_j) + grace + 2 rounds."""
    world = World.of(hosts(5, cores=8), [a_job(f"old-{n}", 1, 100) for n in range(rivals)], grace=30.0)
    run(world, past * 5.0)
    new = a_job("new", gang, gang)
    world.arrive(new)
    came = world.now
    slowest = min(cost(world, key, world.standing[key].target) for key in world.jobs if key.name != "new")
    bound = (
        world.settings.start_debit * cost(world, new.key, gang) / slowest + world.grace + 2 * world.settings.interval
    )
    while world.target("new") == 0:
        world.round()
        assert world.now - came <= bound
        world.wait(world.settings.interval)


def cost(world: World, key: JobKey, trainers: int) -> float:
    return score(footprint(world.jobs[key], trainers), world.capacity, world.settings)


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
