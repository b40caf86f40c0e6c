"""What a decision costs grows with the job, not with its square. Steps are counted, not timed."""

import sys
from dataclasses import replace
from typing import Any

import pytest
from tests.operator.builders import SETTINGS, a_job, a_role
from tests.operator.world import World

from shoal.api.elasticjob import Role
from shoal.operator.plan import plan_job


def steps_of(world: World) -> int:
    """How many functions one decision calls."""
    count = 0

    def called(_frame: Any, event: str, _of: Any) -> None:
        nonlocal count
        count += event == "call"

    snapshot = world.snapshot()
    sys.setprofile(called)
    try:
        plan_job(snapshot, world.settings, now=world.now)
    finally:
        sys.setprofile(None)
    return count


def half_made(members: int) -> World:
    """Recorded are all of them, made is a part: the next look makes more."""
    world = World(a_job(worker=a_role(replicas=members, max=members)), replace(SETTINGS, most_at_once=10))
    world.step()
    world.run_all()
    return world


def shrinking(members: int) -> World:
    """Most of the members have to go."""
    world = World(a_job(worker=a_role(replicas=members, max=members)), replace(SETTINGS, most_at_once=members))
    world.settle()
    world.job = replace(a_job(world.job.status, worker=a_role(replicas=1, max=members)), generation=2)
    return world


def failing(members: int) -> World:
    """All of them have failed, and few are wanted."""
    world = shrinking(members)
    for name, pod in list(world.pods.items()):
        if pod.role is Role.WORKER:
            world.end(name, 1)
    return world


@pytest.mark.parametrize("situation", [half_made, shrinking, failing])
def test_ten_times_the_members_cost_about_ten_times_as_much(situation: Any) -> None:
    small, large = steps_of(situation(40)), steps_of(situation(400))
    assert large < 12 * small
