"""Parameter servers: the operator makes the new ones, and takes no old one before the master has released it."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from tests.operator.builders import (
    SETTINGS,
    TEMPLATE,
    a_job,
    a_move,
    a_plan,
    a_role,
    an_auto_plan,
    an_order,
    on_a_volume,
)
from tests.operator.world import World

from shoal.api.elasticjob import JobCondition, Role
from shoal.api.scaleplan import PlanCondition
from shoal.operator.actions import JobPlan
from shoal.operator.memory import Memory, MoveState
from shoal.operator.snapshot import PlanKind, Training

PS, W = Role.PS, Role.WORKER
LONG = SETTINGS.master_timeout.total_seconds()
LATE = Training(phase="running", term=0)
"""The last word of a master before this one: nobody answers."""


def a_world(
    *, answers: bool = True, servers: int = 2, workers: int = 2, template: dict[str, Any] | None = None, **spec: Any
) -> World:
    """A job with servers and workers that run, and a master that answers."""
    template = template or TEMPLATE
    roles = {"worker": {"template": template, "replicas": workers}, "parameterServer": {"template": template, "max": 6}}
    job = a_job(**roles, **spec)
    world = World(job)
    world.put(a_plan("first", ps=servers, worker=workers))
    world.settle()
    if answers:
        world.job = replace(world.job, training=Training(phase="running"))
        world.settle()
    assert world.names(PS) == [f"mnist-ps-{n}" for n in range(servers)]
    return world


def released(world: World, *numbers: int, generation: int = 2) -> None:
    """The master says that these may go."""
    gone = tuple(f"mnist-ps-{number}" for number in numbers)
    world.put(an_auto_plan(generation=generation, remove=gone))
    world.settle()


def resizing(world: World) -> str:
    return world.job.status.conditions[JobCondition.RESIZING].message


# Down ----------------------------------------------------------------------------------------------------------------


def test_a_server_beyond_the_grant_stays_until_the_master_has_released_it():
    world = a_world(servers=3)
    world.put(a_plan("fewer", ps=2))
    world.settle()
    assert len(world.names(PS)) == 3
    assert world.job.memory.grant.counts[PS] == 2
    for _ in range(3):
        world.passes(LONG)  # however late: it answers
        world.settle()
    assert len(world.names(PS)) == 3
    released(world, 1)  # which of them goes is its choice
    assert world.names(PS) == ["mnist-ps-0", "mnist-ps-2"]


def test_why_a_server_stays_is_said_on_the_job_and_on_the_plan():
    world = a_world()
    world.put(a_plan("fewer", ps=1))
    world.settle()
    why = "stays until the master has moved what it holds"
    assert why in resizing(world)
    completed = world.plans["ScalePlan/fewer"].status.conditions[PlanCondition.COMPLETED]
    assert (completed.reason, why in completed.message) == ("InProgress", True)
    released(world, 1)
    assert resizing(world) == ""
    assert world.plans["ScalePlan/fewer"].status.conditions[PlanCondition.COMPLETED].reason == "Completed"


def test_workers_beyond_the_grant_still_go_at_the_end_of_their_time():
    world = a_world()
    world.put(a_plan("fewer", worker=1, ps=1))
    world.settle()
    world.passes(SETTINGS.times.drain.total_seconds())
    world.settle()
    assert len(world.names(W)) == 1
    assert len(world.names(PS)) == 2


def test_when_no_master_answers_a_server_goes_after_as_long_as_agents_would_wait_for_one():
    world = a_world()
    world.put(a_plan("fewer", ps=1))
    world.settle()
    world.job = replace(world.job, training=LATE)
    world.settle()
    world.passes(LONG - 1)
    world.settle()
    assert len(world.names(PS)) == 2
    assert "no master answers: it is removed at" in resizing(world)
    assert world.step().recheck_at == world.now + timedelta(seconds=1)
    world.passes(1)
    world.settle()
    assert world.names(PS) == ["mnist-ps-0"]


def test_before_any_master_has_answered_nothing_can_be_lost_with_a_server():
    world = a_world(answers=False)
    world.put(a_plan("fewer", ps=1))
    world.settle()
    assert world.names(PS) == ["mnist-ps-0"]


def test_a_master_that_answers_again_is_waited_for_again():
    world = a_world()
    world.put(a_plan("fewer", ps=1))
    world.job = replace(world.job, training=LATE)
    world.settle()
    world.passes(LONG - 1)
    world.job = replace(world.job, training=Training(phase="running"))
    world.settle()
    world.passes(LONG)
    world.settle()
    assert len(world.names(PS)) == 2


@pytest.mark.parametrize(
    ("saved", "why"),
    [
        pytest.param({}, "there is no checkpoint.path", id="no-path"),
        pytest.param(
            {"checkpoint": {"path": "/ckpt"}}, "checkpoint.path /ckpt is on no volume of its ps Pods", id="no-volume"
        ),
        pytest.param(
            {"checkpoint": {"path": "/ckpt/a"}, "template": on_a_volume("/ckpt", emptyDir={})},
            "checkpoint.path /ckpt/a is on the volume models (emptyDir) of its ps Pods",
            id="a-volume-that-ends-with-its-Pod",
        ),
    ],
)
def test_a_job_whose_model_would_be_lost_is_not_suspended_and_says_so(saved: dict[str, Any], why: str):
    world = a_world(**saved)
    assert world.job.spec is not None
    world.job = replace(world.job, spec=replace(world.job.spec, suspend=True))
    world.passes(LONG)
    world.settle()
    assert len(world.names(PS)) == len(world.names(W)) == 2
    assert why in world.job.status.conditions[JobCondition.ADMITTED].message


def test_a_job_that_rests_loses_its_servers_when_nobody_is_left_who_trains():
    world = a_world(checkpoint={"path": "/ckpt"}, template=on_a_volume("/ckpt"))
    assert world.job.spec is not None
    world.job = replace(world.job, spec=replace(world.job.spec, suspend=True))
    world.settle()
    assert len(world.names(PS)) == 2
    world.passes(SETTINGS.times.drain.total_seconds())
    world.settle()
    assert world.live(W) == world.live(PS) == []


def test_a_job_with_parameter_servers_is_never_left_without_one():
    world = a_world()
    world.put(a_plan("none", ps=0))
    world.settle()
    assert world.job.memory.grant.counts[PS] == 1
    assert "at least 1 of ps" in world.plans["ScalePlan/none"].status.trims[0].reason


# Moves ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [PlanKind.SCALE_PLAN, PlanKind.JOB_RESOURCE], ids=["migratePods", "resource_updation"])
def test_the_new_server_runs_before_the_old_one_goes_and_that_goes_by_the_masters_word(kind: PlanKind):
    world = a_world()
    world.put(a_plan("bigger", kind=kind, migrate=(a_move(PS, 0, cpu=8.0),)))
    world.settle()
    assert world.names(PS) == ["mnist-ps-0", "mnist-ps-1", "mnist-ps-2"]
    (move,) = world.job.memory.moves
    assert (move.state, move.replacement) == (MoveState.REMOVING, "mnist-ps-2")
    assert "mnist-ps-0 stays until the master" in resizing(world)
    world.passes(LONG)
    world.settle()
    assert "delete mnist-ps-0" not in world.log
    released(world, 0)
    assert world.names(PS) == ["mnist-ps-1", "mnist-ps-2"]
    assert world.job.memory.moves[0].state is MoveState.DONE
    order = [world.log.index(each) for each in ("create mnist-ps-2", "run mnist-ps-2", "delete mnist-ps-0")]
    assert order == sorted(order)


def test_a_move_in_the_masters_own_plan_is_done_once_however_often_the_plan_changes():
    world = a_world()
    order = (a_move(PS, 0, cpu=8.0),)
    world.put(an_auto_plan(generation=2, ps=2, migrate=order))
    world.settle()
    world.put(an_auto_plan(generation=3, ps=2, worker=3, migrate=order))
    world.settle()
    assert world.names(PS) == ["mnist-ps-0", "mnist-ps-1", "mnist-ps-2"]
    world.put(an_auto_plan(generation=4, ps=2, worker=3, migrate=order, remove=("mnist-ps-0",)))
    world.settle()
    assert world.names(PS) == ["mnist-ps-1", "mnist-ps-2"]
    world.put(an_auto_plan(generation=5, ps=2, worker=3, migrate=order))
    world.settle()
    assert world.names(PS) == ["mnist-ps-1", "mnist-ps-2"]
    (moved,) = [member for member in world.job.memory.members if member.name == "mnist-ps-2"]
    assert (moved.resource.cpu, moved.rank) == (8.0, 0)
    told = world.plans["ScalePlan/mnist-auto"].status.done
    assert [(each.entry, each.outcome.partition(":")[0]) for each in told] == [("mnist-ps-0", "done")]


def test_a_move_that_the_master_gives_up_leaves_the_old_server_where_it_is():
    world = a_world()
    world.put(a_plan("bigger", migrate=(a_move(PS, 0, cpu=8.0),)))
    world.settle()
    released(world, 2)
    assert world.names(PS) == ["mnist-ps-0", "mnist-ps-1"]
    assert world.job.memory.moves[0].state is MoveState.FAILED
    assert resizing(world) == ""


# Losses --------------------------------------------------------------------------------------------------------------


def test_a_lost_server_is_the_masters_to_replace_also_when_it_may_not_be_restarted():
    job = a_job(worker=a_role(replicas=1), parameterServer=a_role(restartCount=0))
    world = World(job)
    world.put(a_plan("first", ps=1))
    world.settle()
    world.job = replace(world.job, training=Training(phase="running"))
    world.end("mnist-ps-0", 1)
    world.passes(LONG)
    world.settle()
    assert world.job.memory.finish_time is None
    assert world.names(PS) == []
    world.put(an_auto_plan(generation=2, create=(an_order(PS, 1, replaces=0),)))
    world.settle()
    assert world.names(PS) == ["mnist-ps-1"]


# Whatever happens ----------------------------------------------------------------------------------------------------


class Servers(RuleBasedStateMachine):
    """Plans, moves, losses, suspension, silence and crashes in any order: who was deleted, and on whose word."""

    @initialize(servers=st.integers(1, 3))
    def begin(self, servers: int) -> None:
        self.world = a_world(servers=servers, checkpoint={"path": "/ckpt"}, template=on_a_volume("/ckpt"))
        self.generations: dict[str, int] = {}
        self.released: set[str] = set()

    def _next(self, name: str) -> int:
        self.generations[name] = self.generations.get(name, 1) + 1
        return self.generations[name]

    @rule(name=st.sampled_from("ab"), count=st.integers(0, 5), number=st.integers(0, 8))
    def plan(self, name: str, count: int, number: int) -> None:
        moved = (a_move(PS, number, memory=2048),)
        self.world.put(a_plan(name, generation=self._next(name), ps=count, migrate=moved))

    @rule(name=st.sampled_from("ab"))
    def unplan(self, name: str) -> None:
        self.world.plans.pop(f"ScalePlan/{name}", None)

    @rule(number=st.integers(0, 8))
    def release(self, number: int) -> None:
        name = f"mnist-ps-{number}"
        self.released.add(name)
        self.world.put(an_auto_plan(generation=self._next("auto"), remove=(name,)))

    @rule(answers=st.booleans())
    def master(self, answers: bool) -> None:
        self.world.job = replace(self.world.job, training=Training(phase="running") if answers else LATE)

    @rule(yes=st.booleans())
    def suspend(self, yes: bool) -> None:
        assert self.world.job.spec is not None
        self.world.job = replace(self.world.job, spec=replace(self.world.job.spec, suspend=yes))

    @rule(which=st.integers(0, 20), code=st.sampled_from([1, 137]))
    def pod_ends(self, which: int, code: int) -> None:
        alive = sorted(name for name, pod in self.world.pods.items() if not pod.is_over and not pod.deleting)
        if alive:
            self.world.end(alive[which % len(alive)], code)

    @rule()
    def pods_run(self) -> None:
        self.world.run_all()

    @rule()
    def pods_vanish(self) -> None:
        self.world.vanish()

    @rule(actions=st.integers(0, 6), later=st.sampled_from([0, 1, 125]))
    def crash(self, actions: int, later: int) -> None:
        self.world.passes(later)
        self._look(actions)

    @rule(later=st.sampled_from([0, 1, 125, 601]))
    def look(self, later: int) -> None:
        self.world.passes(later)
        for _ in range(3):
            self._look(None)
            self.world.run_all()

    def _look(self, actions: int | None) -> None:
        before = self.world.job.memory
        seated = {member.name for member in before.of(PS) if member.has_seat}
        runs = {pod.name for pod in self.world.live(PS) if pod.is_running}
        plan = self.world.step(actions=actions)
        given_up = {member.name for member in plan.status.memory.of(PS) if not member.has_seat}
        deleted = {ref.name for ref in plan.delete}
        assert not deleted & runs & (seated - given_up), "recorded before it is done"
        for name in (given_up & seated | deleted - given_up) & runs:
            assert self._may_go(name, before, plan), f"{name} is to go, and nobody has released it"

    def _may_go(self, name: str, before: Memory, plan: JobPlan) -> bool:
        """A server that runs: by the master's word, at the end of the job, when nobody trains, or long unattended."""
        memory = plan.status.memory
        silent = memory.master.silent_since
        unattended = silent is not None and self.world.now - silent >= SETTINGS.master_timeout
        trainers = any(member.is_live for role in (W, Role.CHIEF) for member in memory.of(role))
        assert self.world.job.spec is not None
        rests = self.world.job.spec.suspend and not trainers
        over = before.finish_time is not None
        return name in self.released or over or rests or unattended


TestServers = Servers.TestCase
TestServers.settings = settings(max_examples=40, stateful_step_count=25, deadline=timedelta(seconds=20))
