"""What is counted of TrainingJobs: resizes and failed trainers, once they are recorded."""

from dataclasses import replace

import pytest
from tests.operator.training.builders import a_job, a_pod, a_workload, allowed, elastic, plan_for
from tests.operator.training.world import World

from shoal.api.trainingjob import TrainingRole
from shoal.core.pods import PodPhase
from shoal.operator.counting import Direction, Resized, Result, Trigger
from shoal.operator.training.counting import lost_by, resize_of

UP, DOWN = Direction.UP, Direction.DOWN
USER, SCHEDULER = Trigger.USER, Trigger.SCHEDULER
GRANTED, TRIMMED = Result.GRANTED, Result.TRIMMED


@pytest.mark.parametrize(
    ("before", "after", "found"),
    [
        pytest.param(2, 3, Resized(UP, SCHEDULER, TRIMMED), id="more"),
        pytest.param(2, 4, Resized(UP, SCHEDULER, GRANTED), id="all-it-asks-for"),
        pytest.param(3, 2, Resized(DOWN, SCHEDULER, TRIMMED), id="fewer"),
        pytest.param(3, 0, Resized(DOWN, SCHEDULER, TRIMMED), id="put-back"),
        pytest.param(2, 2, None, id="nothing"),
    ],
)
def test_a_resize_is_counted_by_direction_word_and_result(before: int, after: int, found: Resized | None) -> None:
    world = World(a_job(trainer=elastic(1, 4)))
    world.allowance = allowed(before)
    world.settle()
    world.allowance = allowed(after)
    was = world.job
    assert resize_of(was, world.step().status) == found


def test_what_its_owner_takes_back_is_the_owners_resize() -> None:
    world = World(a_job(trainer=elastic(1, 4)))
    world.allowance = allowed(4)
    world.settle()
    assert world.job.spec is not None
    world.job = replace(world.job, spec=replace(world.job.spec, suspend=True))
    was = world.job
    assert resize_of(was, world.step().status) == Resized(DOWN, USER, GRANTED)


def test_failed_trainers_are_counted_once_by_the_cause_of_each() -> None:
    job = a_job(trainer=elastic(1, 4))
    failed = (
        a_pod(1, phase=PodPhase.FAILED, exit_code=1),
        a_pod(2, phase=PodPhase.FAILED, exit_code=137, oom_killed=True),
    )
    batch = a_workload(job, TrainingRole.TRAINER, 2, failed=3)
    status = plan_for(job, workloads=(batch,), pods=failed, allowance=allowed(2)).status
    assert lost_by(job, status, failed) == ("oom", "user", "unknown")
    assert lost_by(replace(job, status=status), status, failed) == ()
