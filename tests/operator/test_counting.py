"""What the operator counts: resizes by who asked and what came of it, lost members by cause."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families
from tests.operator.builders import a_job, a_move, a_plan, a_pod, a_role, an_auto_plan
from tests.operator.test_plan import a_world, rescale, suspend
from tests.operator.test_scheduling_plan import Scheduled, allowed
from tests.operator.world import World

from shoal.api.elasticjob import Role
from shoal.core.pods import PodPhase
from shoal.operator.actions import JobPlan
from shoal.operator.counting import Resized, lost_class, settled_counts
from shoal.operator.metrics import OperatorMetrics

W = Role.WORKER


def counted(world: World) -> list[tuple[str, str, str]]:
    """What is counted until the job settles: a decision that is not recorded is not counted."""
    found: list[Resized] = []
    for _ in range(60):
        before = (world.job.status, dict(world.pods))
        plan = world.step()
        found += [plan.resized] if plan.resized and plan.status != before[0] else []
        world.run_all()
        world.vanish()
        if (world.job.status, dict(world.pods)) == before:
            return [(str(each.direction), str(each.trigger), str(each.result)) for each in found]
    raise AssertionError("it does not settle")


def test_who_asked_is_counted() -> None:
    world = World(a_job(worker=a_role(max=8)))
    world.put(an_auto_plan(worker=2))
    assert counted(world) == [("up", "master", "granted")]
    rescale(world, 5)
    assert counted(world) == [("up", "user", "granted")]
    world.put(a_plan("fewer", worker=3))
    assert counted(world) == [("down", "user", "granted")]
    suspend(world, True)
    assert counted(world) == [("down", "user", "granted")]
    suspend(world, False)
    assert counted(world) == [("up", "user", "granted")]
    assert counted(world) == []


def test_what_the_scheduler_gives_and_takes_is_counted_as_its_own() -> None:
    world = Scheduled(a_job(worker=a_role(replicas=5)), allowed(2))
    assert counted(world) == [("up", "user", "trimmed")]
    world.allowance = allowed(5)
    assert counted(world) == [("up", "scheduler", "granted")]
    world.allowance = allowed(1)
    assert counted(world) == [("down", "scheduler", "trimmed")]


def test_a_replacement_is_no_resize() -> None:
    world = a_world(2)
    world.put(a_plan("m", migrate=(a_move(W, 0, cpu=2.0),)))
    assert counted(world) == []
    assert world.names(W) == ["mnist-worker-1", "mnist-worker-2"]
    assert settled_counts(world.job.memory) == {W: 2}


@pytest.mark.parametrize(
    ("pod", "expected"),
    [
        ({"exit_code": 137, "oom_killed": True}, "oom"),
        ({"exit_code": 137}, "preemption"),
        ({"exit_code": 1}, "user"),
        ({"exit_code": 201}, "hardware"),
        ({"reason": "Evicted: The node was low on resource: memory."}, "preemption"),
        ({"reason": "UnexpectedAdmissionError: no such device"}, "unknown"),
        ({"deleting": True}, "preemption"),
    ],
    ids=["oom", "killed", "crash", "hardware", "evicted", "not-admitted", "deleted"],
)
def test_a_lost_member_is_counted_by_its_cause(pod: dict[str, Any], expected: str) -> None:
    assert lost_class(a_pod(W, 0, PodPhase.FAILED, **pod)) == expected


def test_a_loss_is_counted_once_also_when_the_member_is_replaced_in_the_same_look() -> None:
    world = a_world(2, parameterServer=a_role(replicas=1))
    world.end("mnist-ps-0", 1)
    world.delete("mnist-worker-0")
    world.vanish()
    lost = [world.step().lost for _ in range(3)]
    assert lost == [("user", "preemption"), (), ()]


def test_what_was_recorded_is_what_prometheus_reads() -> None:
    metrics, world = OperatorMetrics(), World(a_job(worker=a_role(replicas=2)))
    metrics.recorded(world.step())
    metrics.recorded(replace(world.step(), lost=("oom",)))
    text = metrics.text([], staleness={}, waiting=0, leads=True).decode()
    families = {each.name: each for each in text_string_to_metric_families(text)}
    (resize,) = (each for each in families["shoal_resizes"].samples if each.name.endswith("_total"))
    assert (resize.labels, resize.value) == ({"direction": "up", "trigger": "user", "result": "granted"}, 1.0)
    assert 'shoal_member_failures_total{class="oom"} 1.0' in text
    assert set(families["shoal_build_info"].samples[0].labels) == {"version", "commit"}


@given(st.lists(st.tuples(st.integers(1, 6), st.integers(0, 6), st.booleans()), max_size=6))
def test_every_change_of_size_is_counted_once_and_points_the_right_way(story: list[tuple[int, int, bool]]) -> None:
    world = Scheduled(a_job(worker=a_role(max=6)), allowed(0))
    size = 0
    for asked, target, rests in story:
        rescale(world, asked)
        suspend(world, rests)
        world.allowance = allowed(target)
        for _ in range(3):
            plan: JobPlan = world.step()
            after = settled_counts(plan.status.memory).get(W, 0)
            assert (plan.resized is None) == (after == size)
            if plan.resized is not None:
                assert plan.resized.direction == ("up" if after > size else "down")
            size = after
