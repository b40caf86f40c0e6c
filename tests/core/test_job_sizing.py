"""What a job does with its optimizer's word, and with those who contradict it."""

import math
from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.job_builders import T0, Story

from shoal.brain.algorithms.local import LocalOptimizer
from shoal.cli.text import sizing_line
from shoal.core import journal
from shoal.core.exits import ProcessExit
from shoal.core.facts import Limits, OptimizerSettings
from shoal.core.job import JobSettings, JobSpec, PSSpec, asked_again, handle, new_job, resumed, taken_over
from shoal.core.job.values import (
    Announced,
    CountPinned,
    Effect,
    Given,
    Job,
    NodeExited,
    NodesAnnounced,
    PlanAsked,
    ResourcePinned,
    Scale,
    ScaleAsked,
    SelfSizing,
    ServersGranted,
    Sized,
    SpecChanged,
)
from shoal.core.nodes import NodeId, NodeSeen, ProcessSeen, Role, Trained
from shoal.core.optimizing import Kind, Outcome, Replaced, Stage
from shoal.core.plans import NodeGroupResource, NodeResource, ResourcePlan
from shoal.core.sizing import answered, is_still, look_at
from shoal.core.stages import JobResourceOptimizer, OptimizerState, Pending
from shoal.core.statistics import Heard, Now, Statistics

SHARED = OptimizerSettings(start_cpu=None, start_memory=None, canary=False)
W0 = NodeId("worker-0")


def sizing_itself(story: Story, limits: Limits | None = None) -> Story:
    """The job of a story, as one that sizes itself."""
    spec = replace(story.job.spec, sizing=SelfSizing(limits=limits or Limits()))
    story.job = replace(story.job, spec=spec, settings=replace(story.job.settings, optimizer=SHARED))
    return story


def a_story(**words: int) -> Story:
    story = sizing_itself(Story(nodes=2, **words))
    story.train("worker-0", "worker-1")
    return story


def workers(count: int, *, reason: str = "because", **resource: float) -> ResourcePlan:
    group = NodeGroupResource(count=count, node_resource=NodeResource(**resource))
    return ResourcePlan(node_group_resources={"worker": group}, reason=reason, algorithm="scale_workers")


def asked_for(count: int) -> OptimizerState:
    """The state of an optimizer that has just asked for so many."""
    pending = Pending(algorithm="scale_workers", kind=Kind.SIZE, at=0.0, asked={}, before={})
    return OptimizerState(stage=Stage.RUNNING, pending=pending, changes=1, reason=f"{count} are better")


def ran_out() -> OptimizerState:
    """The state of an optimizer that has just asked for more memory after somebody ran out of it."""
    pending = Pending(algorithm="recover_oom", kind=Kind.OOM, at=0.0, asked={}, before={})
    return replace(asked_for(1), pending=pending)


def sized(plan: ResourcePlan | None, state: OptimizerState | None = None) -> Sized:
    return Sized(state=state or asked_for(3), plan=plan)


def said(job: Job) -> list[str]:
    return [decision.reason for decision in job.decisions]


# Plans -------------------------------------------------------------------------------------------------------------


def test_a_plan_goes_through_the_door_of_shoal_scale_and_says_why() -> None:
    story = a_story()
    story.happen(sized(workers(3, reason="3 workers should train 90 samples/s instead of 60")))
    assert story.job.target == 3
    assert story.launched()[-1] == "worker-2"
    assert "the optimizer (scale_workers): 3 workers should train 90 samples/s instead of 60" in said(story.job)
    assert not story.job.sizing.pins
    view = story.view.sizing
    assert view is not None
    assert (view.stage, view.pending, view.changes) == ("running", "scale_workers", 1)


def test_a_job_that_does_not_size_itself_has_nothing_to_do_with_plans() -> None:
    story = Story(nodes=2)
    story.happen(sized(workers(3)))
    assert (story.job.target, story.view.sizing) == (2, None)


def test_what_came_of_a_change_is_told_once() -> None:
    story = a_story()
    outcome = Outcome(algorithm="scale_workers", at=1.0, before=60.0, measured=80.0, predicted=90.0, gain=0.1)
    after = OptimizerState(stage=Stage.RUNNING, outcomes=(outcome,), reason="all is well")
    story.happen(sized(None, after))
    story.happen(sized(None, replace(after, reason="all is well still")))
    words = (
        "the optimizer: scale_workers took the job from 60 to 80 samples/s, predicted 90 (+12%), +10% speed per cost"
    )
    assert said(story.job).count(words) == 1
    (shown,) = story.view.sizing.outcomes  # type: ignore[union-attr]
    assert shown.prediction_error == pytest.approx(0.125)


def test_people_see_how_far_the_fit_can_be_trusted_and_the_next_master_knows_what_was_replaced_in_vain() -> None:
    story, before = a_story(), a_story().job
    assert story.view.sizing is not None
    assert (story.view.sizing.confidence, "confidence" in sizing_line(story.view.sizing)) == (None, False)
    slow = {"worker 1": Replaced(times=2, at=40.0)}
    story.happen(sized(None, OptimizerState(stage=Stage.RUNNING, confidence=0.667, replaced=slow, reason="well")))
    assert story.view.sizing.confidence == 0.667
    assert sizing_line(story.view.sizing) == "running, 0 changes, its fit has a confidence of 0.67: well"
    change = journal.change(before, story.job)
    assert change is not None
    again = journal.replay([journal.snapshot(before), change.record])
    assert again is not None
    assert again.sizing.optimizer == story.job.sizing.optimizer


@pytest.mark.parametrize(
    ("plan", "why"),
    [
        pytest.param(workers(9), "worker=9 asked, the job takes 1 to 4", id="above-the-maximum"),
        pytest.param(workers(0), "worker=0 asked, the job takes 1 to 4", id="none"),
        pytest.param(
            ResourcePlan(node_group_resources={"ps": NodeGroupResource(count=0)}, reason="x"),
            "ps=0 asked, the job has worker",
            id="no-such-role",
        ),
    ],
)
def test_a_plan_that_cannot_be_followed_is_told_and_training_goes_on(plan: ResourcePlan, why: str) -> None:
    story = a_story()
    story.happen(sized(plan))
    assert story.job.target == 2
    assert why in said(story.job)[-1]
    assert story.job.sizing.optimizer.pending is None
    assert story.world == ["worker-0", "worker-1"]


# Who has the last word ---------------------------------------------------------------------------------------------


def test_a_user_who_scales_takes_the_count_from_the_optimizer_until_it_is_given_back() -> None:
    story = a_story()
    story.happen(sized(workers(3)))
    story.happen(ScaleAsked(count=1, who="shoal scale"))
    assert story.job.sizing.pins == {"worker": "shoal scale worker=1"}
    assert story.job.sizing.optimizer.pending is None, "nothing to judge: another has changed what was asked for"
    story.happen(sized(workers(3)))
    assert story.job.target == 1
    assert "shoal scale worker=1 says how many workers there are" in said(story.job)[-1]
    story.happen(CountPinned(role=Role.WORKER, by=None))
    story.happen(sized(workers(3)))
    assert story.job.target == 3


def test_an_answer_to_a_question_of_another_time_is_void() -> None:
    """Two plans at once: while the optimizer thought, somebody has scaled the job."""
    story = a_story()
    look = look_at(story.job, Statistics(), story.now)
    assert look is not None
    assert is_still(story.job, look)
    story.happen(ScaleAsked(count=3, who="shoal scale"))
    assert not is_still(story.job, look)


def test_a_job_that_ends_or_rests_is_not_looked_at() -> None:
    story = a_story()
    assert look_at(replace(story.job, target=0), Statistics(), story.now) is None
    assert look_at(replace(story.job, ended=T0), Statistics(), story.now) is None
    assert look_at(Story(nodes=2).job, Statistics(), T0) is None


# Where the platform makes the nodes --------------------------------------------------------------------------------


def test_there_a_plan_is_an_ask_and_the_next_master_asks_again() -> None:
    story = sizing_itself(Story(nodes=0, platform_grows=True))
    (effect,) = story.happen(sized(workers(2, cpu=4.0, memory=1024)))
    assert isinstance(effect, Scale)
    assert effect.plan.is_ask
    assert effect.plan.node_group_resources["worker"].node_resource == NodeResource(cpu=4.0, memory=1024)
    assert story.job.target == 0, "how many there are is the platform's to say"
    after = taken_over(story.job, story.now, reason="another master")
    (again,) = asked_again(after)
    assert isinstance(again, Scale)
    assert again.plan.node_group_resources == effect.plan.node_group_resources


def test_a_job_whose_limits_are_below_what_it_needs_begins_all_the_same_and_says_so() -> None:
    story = sizing_itself(Story(nodes=0, platform_grows=True), Limits(cpu=0.2))
    story.job = replace(story.job, settings=replace(story.job.settings, optimizer=OptimizerSettings()))
    look = look_at(story.job, Statistics(), story.now)
    assert look is not None
    (effect,) = story.happen(answered(look, JobResourceOptimizer(LocalOptimizer())))
    assert isinstance(effect, Scale)
    assert effect.plan.node_group_resources["worker"] == NodeGroupResource(count=1)
    assert "the limits of the job (0.2 cores) are below the least it needs" in said(story.job)[-1]


def test_a_job_whose_first_plan_cannot_be_followed_begins_all_the_same_and_says_so() -> None:
    story = sizing_itself(Story(nodes=0, minimum=2, maximum=4, platform_grows=True))
    after = OptimizerState(stage=Stage.WORKER_INITIAL, reason="nine to begin with")
    (effect,) = story.happen(sized(workers(9), after))
    assert isinstance(effect, Scale)
    assert effect.plan.node_group_resources == {"worker": NodeGroupResource(count=2)}
    assert story.job.sizing.asked == effect.plan.node_group_resources
    assert "worker=9 asked, the job takes 2 to 4" in said(story.job)[-1]
    assert story.happen(sized(workers(9))) == (), "what was asked for stays, whatever else cannot be followed"


def test_a_job_that_trained_before_it_was_to_size_itself_keeps_its_size_until_it_was_measured() -> None:
    """Its user has changed `optimizeMode`, or its master is of a newer release."""
    story = Story(nodes=0, platform_grows=True)
    story.happen(ScaleAsked(count=2, who="the grant"))
    nodes = tuple(Announced(node=NodeId(f"worker-{n}"), seat=n) for n in range(2))
    story.happen(NodesAnnounced(nodes=nodes))
    story.train("worker-0", "worker-1")
    look = look_at(sizing_itself(story).job, Statistics(), story.now)
    assert look is not None
    assert story.happen(answered(look, JobResourceOptimizer(LocalOptimizer(), SHARED))) == ()
    assert story.job.sizing.optimizer.stage is Stage.WORKER_INITIAL
    assert "fewer than 5 good samples" in story.job.sizing.optimizer.reason


def test_where_the_master_makes_the_nodes_new_ones_have_what_was_asked_for() -> None:
    story = sizing_itself(Story(nodes=0, platform_grows=True, fills_grant=True))
    story.happen(sized(workers(1, cpu=1.5, memory=512)))
    story.happen(ScaleAsked(count=1, who="the grant"))
    assert story.job.nodes[W0].resource == NodeResource(cpu=1.5, memory=512)


def test_memory_for_one_that_ran_out_of_it_is_asked_for_all_of_its_role_and_no_other_number_of_them() -> None:
    story = sizing_itself(Story(nodes=0, platform_grows=True))
    story.job = replace(story.job, settings=replace(story.job.settings, optimizer=OptimizerSettings(canary=False)))
    story.happen(sized(workers(2, cpu=1.0, memory=1024), OptimizerState(stage=Stage.WORKER_INITIAL)))
    story.happen(ScaleAsked(count=2, who="the grant"))
    has = NodeResource(cpu=1.0, memory=1024)
    nodes = tuple(Announced(node=NodeId(f"worker-{n}"), seat=n, resource=has) for n in range(2))
    story.happen(NodesAnnounced(nodes=nodes))
    story.train("worker-0", "worker-1")
    story.happen(NodeExited(node=NodeId("worker-1"), exit=ProcessExit(code=137, oom=True)))
    look = look_at(story.job, Statistics(), story.now)
    assert look is not None
    (effect,) = story.happen(answered(look, JobResourceOptimizer(LocalOptimizer(), OptimizerSettings())))
    assert isinstance(effect, Scale)
    asked = effect.plan.node_group_resources["worker"]
    assert (asked.count, asked.node_resource.memory) == (2, 2048)
    assert story.job.nodes[NodeId("worker-2")].resource.memory == 2048, "its replacement has what its role gets"
    assert "worker-1 ran out of 1024 MiB: 2048 MiB (2.0 times)" in said(story.job)[-1]
    again = look_at(story.job, Statistics(), story.now)
    assert again is not None
    assert answered(again, JobResourceOptimizer(LocalOptimizer())).plan is None, "once for each"


GIVEN = NodeResource(cpu=32.0, memory=131_072)


@pytest.mark.parametrize("had", [700, 1000, 40_000])
def test_who_ran_out_of_memory_comes_back_with_what_the_optimizer_gives_its_role(had: int) -> None:
    limits = Limits(node_memory=65_536)
    story = sizing_itself(Story(nodes=0, platform_grows=True), limits)
    story.happen(ScaleAsked(count=2, who="the grant"))
    has = NodeResource(memory=had)
    nodes = tuple(Announced(node=NodeId(f"worker-{n}"), seat=n, resource=has) for n in range(2))
    story.happen(NodesAnnounced(nodes=nodes))
    story.train("worker-0", "worker-1")
    story.happen(NodeExited(node=NodeId("worker-1"), exit=ProcessExit(code=137, oom=True)))
    look = look_at(story.job, Statistics(), story.now)
    assert look is not None
    asked = ask_in(story.happen(answered(look, JobResourceOptimizer(LocalOptimizer(), SHARED))))
    assert story.job.nodes[NodeId("worker-2")].resource.memory == asked.node_resource.memory
    assert asked.node_resource.memory == min(65_536, -(-2 * had // 64) * 64)


def a_job_with_given(given: NodeResource, has: NodeResource | None = None) -> Story:
    """Two workers train, with what their user gives them."""
    story = sizing_itself(Story(nodes=0, platform_grows=True))
    limits = Limits(node_cpu=32.0, node_memory=262_144)
    story.job = replace(
        story.job,
        spec=replace(story.job.spec, sizing=SelfSizing(limits=limits, resource=given)),
        settings=replace(story.job.settings, optimizer=OptimizerSettings(canary=False)),
    )
    story.happen(sized(workers(2, cpu=32.0, memory=131_072), OptimizerState(stage=Stage.WORKER_INITIAL)))
    story.happen(ScaleAsked(count=2, who="the grant"))
    nodes = tuple(Announced(node=NodeId(f"worker-{n}"), seat=n, resource=has or given) for n in range(2))
    story.happen(NodesAnnounced(nodes=nodes))
    story.train("worker-0", "worker-1")
    return story


def ask_in(effects: tuple[Effect, ...]) -> NodeGroupResource:
    (ask,) = [effect for effect in effects if isinstance(effect, Scale) and effect.plan.is_ask]
    return ask.plan.node_group_resources["worker"]


def test_what_the_user_gives_is_pinned_and_an_ask_for_another_number_is_silent_about_it() -> None:
    story = a_job_with_given(GIVEN)
    look = look_at(story.job, Statistics(), story.now)
    assert look is not None
    known = look.facts.workers
    assert (known.cpu_pinned, known.memory_pinned, known.resource) == (True, True, GIVEN)
    assert ask_in(story.happen(sized(workers(3, cpu=32.0, memory=131_072)))) == NodeGroupResource(count=3)
    only_cores = a_job_with_given(NodeResource(cpu=32.0), GIVEN)
    look = look_at(only_cores.job, Statistics(), only_cores.now)
    assert look is not None
    assert (look.facts.workers.cpu_pinned, look.facts.workers.memory_pinned) == (True, False)


def test_memory_that_was_given_and_ran_out_is_raised_and_stays_so_until_more_is_given() -> None:
    story = a_job_with_given(GIVEN)
    story.happen(NodeExited(node=NodeId("worker-1"), exit=ProcessExit(code=137, oom=True)))
    look = look_at(story.job, Statistics(), story.now)
    assert look is not None
    raised = ask_in(story.happen(answered(look, JobResourceOptimizer(LocalOptimizer(), OptimizerSettings()))))
    assert raised == NodeGroupResource(count=2, node_resource=NodeResource(memory=262_144))
    assert "worker-1 ran out of 131072 MiB: 262144 MiB (2.0 times)" in said(story.job)[-1]
    more = ask_in(story.happen(sized(workers(3, cpu=32.0, memory=131_072))))
    assert more == NodeGroupResource(count=3, node_resource=NodeResource(memory=262_144))
    given = NodeResource(cpu=48.0, memory=524_288)
    spec = replace(story.job.spec, sizing=SelfSizing(resource=given))
    assert ask_in(story.happen(SpecChanged(spec=spec))) == NodeGroupResource(count=3)


def test_a_spec_that_gives_less_memory_than_before_is_not_taken_for_one_of_which_somebody_ran_out() -> None:
    story = a_job_with_given(GIVEN)
    story.happen(sized(workers(3, cpu=32.0, memory=131_072)))
    spec = replace(story.job.spec, sizing=SelfSizing(resource=replace(GIVEN, memory=65_536)))
    assert ask_in(story.happen(SpecChanged(spec=spec))) == NodeGroupResource(count=3)
    more = ask_in(story.happen(sized(workers(4, cpu=32.0, memory=131_072))))  # they have it until they are resized
    assert more == NodeGroupResource(count=4)
    chosen = a_job_with_given(NodeResource(), GIVEN)
    told = ask_in(chosen.happen(SpecChanged(spec=spec)))
    assert told == NodeGroupResource(count=2), "what the optimizer chose before is none either"
    silent = replace(spec, sizing=SelfSizing(resource=NodeResource(cpu=32.0)))
    story = a_job_with_given(GIVEN)
    kept = ask_in(story.happen(SpecChanged(spec=silent)))
    assert kept == NodeGroupResource(count=2, node_resource=NodeResource(memory=131_072)), "they keep what they have"


def test_what_a_user_asks_of_the_cluster_pins_the_count_there() -> None:
    story = sizing_itself(Story(nodes=0, platform_grows=True))
    story.happen(ScaleAsked(count=2, who="the grant"))
    assert not story.job.sizing.pins, "a grant is nobody's wish"
    story.happen(CountPinned(role=Role.WORKER, by="ScalePlan three"))
    look = look_at(story.job, Statistics(), story.now)
    assert look is not None
    assert look.facts.workers.count_pinned


def by_plan(**resource: float) -> ResourcePinned:
    return ResourcePinned(role=Role.WORKER, given=Given("ScalePlan large", NodeResource(**resource)))


def look_at_workers(story: Story) -> tuple[bool, bool]:
    look = look_at(story.job, Statistics(), story.now)
    assert look is not None
    return look.facts.workers.cpu_pinned, look.facts.workers.memory_pinned


def test_what_a_users_ask_gives_each_worker_is_not_the_optimizers_until_the_ask_is_deleted() -> None:
    story = a_job_with_given(NodeResource(), NodeResource(cpu=32.0, memory=131_072))
    assert look_at_workers(story) == (False, False)
    story.happen(sized(workers(3, cpu=16.0, memory=131_072)))
    told = ask_in(story.happen(by_plan(cpu=4.0)))
    assert told == NodeGroupResource(count=3, node_resource=NodeResource(memory=131_072))
    assert story.job.sizing.optimizer.pending is None, "what was under way is not judged any more"
    assert "ScalePlan large says what each worker has, the optimizer does not any more" in said(story.job)[-1]
    assert story.view.sizing is not None
    assert story.view.sizing.given == {"worker": "ScalePlan large"}
    assert look_at_workers(story) == (True, False)
    assert story.happen(by_plan(cpu=4.0)) == (), "said again, it changes nothing"
    more = ask_in(story.happen(sized(workers(4, cpu=32.0, memory=65_536))))
    assert more == NodeGroupResource(count=4, node_resource=NodeResource(memory=65_536))
    kept = ask_in(story.happen(ResourcePinned(role=Role.WORKER, given=None)))
    assert kept == NodeGroupResource(count=4, node_resource=GIVEN_BACK), "they keep what they have"
    assert look_at_workers(story) == (False, False)
    assert "the optimizer may change it again" in said(story.job)[-1]


GIVEN_BACK = NodeResource(cpu=32.0, memory=65_536)


def test_an_ask_that_gives_less_memory_than_workers_have_is_not_taken_for_one_that_ran_out() -> None:
    story = a_job_with_given(NodeResource(), GIVEN)
    assert ask_in(story.happen(by_plan(memory=65_536))).node_resource == NodeResource(cpu=32.0)
    asked = ask_in(story.happen(sized(workers(3, cpu=32.0, memory=131_072))))  # they have it until they are resized
    assert asked == NodeGroupResource(count=3, node_resource=NodeResource(cpu=32.0))


def test_memory_that_an_ask_gave_and_that_ran_out_is_raised_all_the_same() -> None:
    story = a_job_with_given(NodeResource(), GIVEN)
    story.happen(by_plan(memory=131_072))
    story.happen(NodeExited(node=NodeId("worker-1"), exit=ProcessExit(code=137, oom=True)))
    look = look_at(story.job, Statistics(), story.now)
    assert look is not None
    raised = ask_in(story.happen(answered(look, JobResourceOptimizer(LocalOptimizer(), OptimizerSettings()))))
    assert raised.node_resource.memory == 262_144
    more = ask_in(story.happen(sized(workers(3, cpu=32.0, memory=131_072))))
    assert more.node_resource.memory == 262_144, "and stays so"
    less = ask_in(story.happen(by_plan(memory=200_000)))
    assert less.node_resource.memory is None, "until its user gives something else"


def test_an_ask_that_gives_only_what_the_optimizer_never_plans_takes_nothing_from_it() -> None:
    story = a_job_with_given(NodeResource(), GIVEN)
    story.happen(sized(workers(3, cpu=16.0, memory=131_072)))
    before, told = story.job.sizing.optimizer, said(story.job)
    assert before.pending is not None
    for ask in (by_plan(disk=1024), by_plan(disk=2048, gpu_num=2), ResourcePinned(role=Role.WORKER, given=None)):
        asked = ask_in(story.happen(ask)).node_resource
        assert (asked.cpu, asked.memory) == (16.0, 131_072)
        assert story.job.sizing.optimizer == before, "the change is judged all the same"
        assert said(story.job) == told
        assert story.view.sizing is not None
        assert not story.view.sizing.given


def test_what_was_given_up_for_an_ask_may_be_planned_again_when_that_gives_it_back() -> None:
    story = a_job_with_given(NodeResource(), GIVEN)
    story.happen(sized(workers(3, cpu=16.0, memory=131_072)))
    story.happen(by_plan(cpu=4.0, disk=1024))
    assert story.job.sizing.optimizer.trimmed is not None
    story.happen(by_plan(cpu=4.0, disk=2048))
    assert story.job.sizing.optimizer.trimmed is not None, "it is the user's still"
    story.happen(by_plan(disk=2048))
    assert story.job.sizing.optimizer.trimmed is None
    assert "the optimizer may change it again" in said(story.job)[-1]


def test_what_was_given_up_for_a_number_may_be_planned_again_when_that_is_given_back() -> None:
    story = a_job_with_given(NodeResource(), GIVEN)
    story.happen(sized(workers(3, cpu=16.0, memory=131_072)))
    story.happen(CountPinned(role=Role.WORKER, by="a plan"))
    assert story.job.sizing.optimizer.trimmed is not None
    story.happen(CountPinned(role=Role.WORKER, by=None))
    assert story.job.sizing.optimizer.trimmed is None


def test_what_running_out_of_memory_taught_outlasts_other_changes_of_the_ask_and_its_end() -> None:
    story = a_job_with_given(NodeResource(), GIVEN)
    story.happen(by_plan(memory=131_072))
    story.happen(NodeExited(node=NodeId("worker-1"), exit=ProcessExit(code=137, oom=True)))
    look = look_at(story.job, Statistics(), story.now)
    assert look is not None
    story.happen(answered(look, JobResourceOptimizer(LocalOptimizer(), OptimizerSettings())))
    cores_too = ask_in(story.happen(by_plan(memory=131_072, cpu=8.0)))
    assert cores_too.node_resource == NodeResource(memory=262_144)
    more = ask_in(story.happen(by_plan(memory=131_072, cpu=16.0, disk=1024)))
    assert more.node_resource == NodeResource(memory=262_144)
    kept = ask_in(story.happen(ResourcePinned(role=Role.WORKER, given=None)))
    assert kept.node_resource.memory == 262_144, "most have less, and would run out of it again"


def test_an_ask_for_as_much_memory_as_the_spec_gives_does_not_undo_what_running_out_of_it_taught() -> None:
    story = a_job_with_given(GIVEN)
    story.happen(NodeExited(node=NodeId("worker-1"), exit=ProcessExit(code=137, oom=True)))
    look = look_at(story.job, Statistics(), story.now)
    assert look is not None
    story.happen(answered(look, JobResourceOptimizer(LocalOptimizer(), OptimizerSettings())))
    assert ask_in(story.happen(by_plan(memory=131_072))).node_resource == NodeResource(memory=262_144)
    assert ask_in(story.happen(by_plan(memory=200_000))).node_resource == NodeResource()


def test_what_an_ask_gave_and_the_spec_gives_too_is_the_specs_again() -> None:
    story = a_job_with_given(GIVEN)
    story.happen(by_plan(cpu=4.0))
    assert ask_in(story.happen(ResourcePinned(role=Role.WORKER, given=None))) == NodeGroupResource(count=2)
    assert look_at_workers(story) == (True, True)
    assert said(story.job)[-1] == "ScalePlan large says what each worker has no more, the job's spec does"


# With parameter servers --------------------------------------------------------------------------------------------


def test_a_job_with_parameter_servers_is_looked_at_and_sized_as_a_whole() -> None:
    spec = JobSpec(name="j", uid="u", min_nodes=1, max_nodes=4, ps=PSSpec(max_servers=3), sizing=SelfSizing())
    job, _ = new_job(spec, JobSettings(optimizer=SHARED), nodes=1, now=T0)
    look = look_at(job, Statistics(), T0)
    assert look is not None
    assert look.facts.is_ps
    assert look.facts.in_change, "nobody trains yet"
    servers = look.facts.roles[Role.PS]
    assert (servers.count, servers.min, servers.max) == (1, 1, 3)
    counts = {"worker": NodeGroupResource(count=2), "ps": NodeGroupResource(count=2)}
    plan = ResourcePlan(node_group_resources=counts, reason="two and two", algorithm="size_ps")
    job, _ = handle(job, sized(plan), T0)
    assert job.servers is not None
    assert (job.target, job.servers.goal.count) == (2, 2)
    job, _ = handle(job, PlanAsked(plan=replace(plan, reason="ps=1"), who="shoal scale"), T0)
    assert job.sizing.pins == {"worker": "shoal scale worker=2", "ps": "shoal scale ps=2"}
    none = ResourcePlan(node_group_resources={"ps": NodeGroupResource(count=0)}, reason="none", algorithm="size_ps")
    job, _ = handle(job, sized(none), T0)
    assert "that cannot be followed" in said(job)[-1]
    assert job.servers is not None
    assert job.servers.goal.count == 2


def a_job_with_servers(sizing: SelfSizing | None = None, **words: bool) -> Job:
    """On a platform that makes the nodes; nothing is there yet."""
    spec = JobSpec(
        name="j",
        uid="u",
        min_nodes=1,
        max_nodes=4,
        platform_grows=True,
        ps=PSSpec(max_servers=3, checkpoint_dir="/ckpt"),
        sizing=sizing or SelfSizing(),
        **words,
    )
    return new_job(spec, JobSettings(optimizer=replace(SHARED, start_workers=2)), nodes=0, now=T0)[0]


def asks_in(effects: tuple[Effect, ...]) -> dict[str, NodeGroupResource]:
    (ask,) = [effect for effect in effects if isinstance(effect, Scale) and effect.plan.is_ask]
    return dict(ask.plan.node_group_resources)


def servers(count: int, **resource: float) -> ResourcePlan:
    group = NodeGroupResource(count=count, node_resource=NodeResource(**resource))
    return ResourcePlan(node_group_resources={"ps": group}, reason="because", algorithm="size_ps")


def test_a_pin_is_of_the_role_that_it_names_and_of_no_other() -> None:
    spec = JobSpec(name="j", uid="u", min_nodes=1, max_nodes=4, ps=PSSpec(max_servers=3), sizing=SelfSizing())
    job, _ = new_job(spec, JobSettings(optimizer=SHARED), nodes=1, now=T0)
    two = ResourcePlan(node_group_resources={"ps": NodeGroupResource(count=2)}, reason="ps=2")
    job, _ = handle(job, PlanAsked(plan=two, who="shoal scale"), T0)
    assert job.sizing.pins == {"ps": "shoal scale ps=2"}
    (told,) = [words for words in said(job) if "gives it back" in words]
    assert told == (
        "shoal scale ps=2 says how many parameter servers there are, the optimizer does not any more; "
        "`shoal scale j ps=auto` gives it back"
    )
    look = look_at(job, Statistics(), T0)
    assert look is not None
    assert {role: known.count_pinned for role, known in look.facts.roles.items()} == {Role.WORKER: False, Role.PS: True}
    job, _ = handle(job, sized(workers(3)), T0)
    assert job.target == 3, "the workers are the optimizer's still"
    job, _ = handle(job, sized(servers(3)), T0)
    assert job.servers is not None
    assert job.servers.goal.count == 2
    assert "cannot be followed: shoal scale ps=2 says how many parameter servers there are" in said(job)[-1]
    job, _ = handle(job, CountPinned(role=Role.PS, by=None), T0)
    assert said(job)[-1].startswith("the optimizer says how many parameter servers there are again")
    job, _ = handle(job, sized(servers(3)), T0)
    assert job.servers is not None
    assert job.servers.goal.count == 3


def test_servers_that_keep_their_number_beside_workers_that_ran_out_of_memory_are_not_said_to_have() -> None:
    job = a_job_with_servers()
    has = NodeResource(cpu=2.0, memory=4096)
    nodes = tuple(Announced(node=NodeId(name), seat=0, resource=has) for name in ("worker-0", "ps-0"))
    job, _ = handle(job, ScaleAsked(count=1, who="the grant"), T0)
    job, _ = handle(job, NodesAnnounced(nodes=nodes), T0)
    for role in (Role.WORKER, Role.PS):
        job, _ = handle(job, ResourcePinned(role=role, given=Given("ScalePlan small", NodeResource(memory=1024))), T0)
    job, _ = handle(job, NodeExited(node=W0, exit=ProcessExit(code=137, oom=True)), T0)
    more = NodeGroupResource(count=1, node_resource=NodeResource(cpu=2.0, memory=8192))
    beside = NodeGroupResource(count=1, node_resource=NodeResource(cpu=1.0, memory=4096))
    plan = ResourcePlan(node_group_resources={"worker": more, "ps": beside}, reason="more", algorithm="recover_oom")
    asked = asks_in(handle(job, sized(plan, ran_out()), T0)[1])
    assert asked["worker"].node_resource.memory == 8192
    assert asked["ps"].node_resource == NodeResource(cpu=1.0), "what they have was not too little"


@pytest.mark.parametrize("fills_grant", [False, True], ids=["operator-makes-pods", "master-makes-pods"])
def test_the_first_ask_of_a_platform_names_workers_and_servers(fills_grant: bool) -> None:
    job = a_job_with_servers(fills_grant=fills_grant)
    look = look_at(job, Statistics(), T0)
    assert look is not None
    job, effects = handle(job, answered(look, JobResourceOptimizer(LocalOptimizer(), job.settings.optimizer)), T0)
    assert asks_in(effects) == {"worker": NodeGroupResource(count=2), "ps": NodeGroupResource(count=1)}
    job, effects = handle(job, sized(servers(2, cpu=3.0)), T0)
    two = NodeGroupResource(count=2, node_resource=NodeResource(cpu=3.0))
    assert asks_in(effects) == {"worker": NodeGroupResource(count=2), "ps": two}, "the others stay asked for"
    (again,) = asked_again(taken_over(job, T0, reason="another master"))
    assert asks_in((again,)) == asks_in(effects)


def test_a_job_with_servers_for_which_nothing_can_be_planned_begins_as_small_as_it_can_be() -> None:
    job = a_job_with_servers(SelfSizing(limits=Limits(cpu=0.2)))
    job = replace(job, settings=replace(job.settings, optimizer=OptimizerSettings()))
    look = look_at(job, Statistics(), T0)
    assert look is not None
    job, effects = handle(job, answered(look, JobResourceOptimizer(LocalOptimizer(), OptimizerSettings())), T0)
    assert asks_in(effects) == {"worker": NodeGroupResource(count=1), "ps": NodeGroupResource(count=1)}
    assert "1 of worker, 1 of ps, with what the job's spec gives" in said(job)[-1]


@pytest.mark.parametrize(
    ("plan", "why"),
    [
        pytest.param(servers(4), "ps=4 asked, the job takes 1 to 3", id="above-the-maximum"),
        pytest.param(servers(0), "ps=0 asked, the job takes 1 to 3", id="none"),
        pytest.param(
            ResourcePlan(node_group_resources={"chief": NodeGroupResource(count=1)}, reason="x"),
            "the job has no chief",
            id="no-such-role",
        ),
    ],
)
def test_a_platform_is_not_asked_for_servers_that_the_job_may_not_have(plan: ResourcePlan, why: str) -> None:
    job, effects = handle(a_job_with_servers(), sized(plan), T0)
    assert asks_in(effects) == {"worker": NodeGroupResource(count=1), "ps": NodeGroupResource(count=1)}, "the least"
    job, effects = handle(job, sized(plan), T0)
    assert effects == ()
    assert why in said(job)[-1]
    assert job.sizing.optimizer.pending is None


def test_what_the_user_gives_servers_is_pinned_and_an_ask_is_silent_about_it() -> None:
    given = NodeResource(cpu=8.0, memory=16_384)
    job = a_job_with_servers(SelfSizing(ps_resource=given))
    look = look_at(job, Statistics(), T0)
    assert look is not None
    known = look.facts.roles[Role.PS]
    assert (known.cpu_pinned, known.memory_pinned, known.resource) == (True, True, given)
    job, _ = handle(job, NodesAnnounced(nodes=(Announced(node=PS0, seat=0, resource=given),)), T0)
    job, _ = handle(job, NodeExited(node=PS0, exit=ProcessExit(code=137, oom=True)), T0)
    job, effects = handle(job, sized(servers(2, cpu=8.0, memory=32_768), ran_out()), T0)
    more = NodeGroupResource(count=2, node_resource=NodeResource(memory=32_768))
    assert asks_in(effects)["ps"] == more, "but for memory, after somebody ran out of it"
    job, effects = handle(job, sized(servers(3, cpu=8.0, memory=16_384)), T0)
    assert asks_in(effects)["ps"] == replace(more, count=3), "what was too little once is not asked for again"


# Single nodes ------------------------------------------------------------------------------------------------------


PS0, PS2 = NodeId("ps-0"), NodeId("ps-2")
FOUR = NodeResource(cpu=4.0, memory=1024)


def two_servers(**words: bool) -> Job:
    """The platform has made two, with four cores each."""
    job = a_job_with_servers(**words)
    job = replace(job, sizing=replace(job.sizing, optimizer=OptimizerState(stage=Stage.RUNNING)))
    nodes = tuple(Announced(node=NodeId(f"ps-{n}"), seat=n, resource=FOUR) for n in range(2))
    return handle(job, NodesAnnounced(nodes=nodes), T0)[0]


def relief(node: str = "ps-0", cpu: float = 8.0) -> Sized:
    named = {node: NodeResource(cpu=cpu, memory=1024)}
    return sized(ResourcePlan(node_resources=named, reason=f"{node} is hot", algorithm="relieve_hot_ps"))


def moves_in(effects: tuple[Effect, ...]) -> dict[str, float | None]:
    (ask,) = [effect for effect in effects if isinstance(effect, Scale) and effect.plan.is_ask]
    return {node.id: node.resource.cpu for node in ask.plan.migrate_nodes}


def test_a_platform_is_asked_to_replace_a_named_node_until_the_change_is_judged() -> None:
    job, effects = handle(two_servers(), relief(), T0)
    assert moves_in(effects) == {"ps-0": 8.0}
    assert "the optimizer (relieve_hot_ps): ps-0 is hot" in said(job)
    (again,) = asked_again(taken_over(job, T0, reason="another master"))
    assert moves_in((again,)) == {"ps-0": 8.0}
    job, effects = handle(job, sized(None), T0)
    assert effects == (), "it is not judged yet"
    job, effects = handle(job, sized(None, OptimizerState(stage=Stage.RUNNING, reason="it was given up")), T0)
    assert moves_in(effects) == {}
    assert moves_in(asked_again(job)) == {}
    counts = {role: group.count for role, group in asks_in(effects).items()}
    assert counts == {"worker": 0, "ps": 2}, "all else is as it was"


def test_a_node_that_has_what_is_asked_for_it_is_not_replaced() -> None:
    job, effects = handle(two_servers(), relief(cpu=4.0), T0)
    assert effects == ()
    assert job.sizing.moves == {}


def test_who_was_singled_out_goes_back_to_what_all_have_when_a_plan_says_so_and_no_other_does() -> None:
    job, _ = handle(two_servers(), relief(), T0)
    new = Announced(node=PS2, seat=0, resource=replace(FOUR, cpu=8.0), replaces=PS0)
    by_hand = Announced(node=NodeId("ps-1"), seat=1, resource=replace(FOUR, cpu=6.0))
    job, _ = handle(job, NodesAnnounced(nodes=(new, by_hand)), T0)
    job, _ = handle(job, NodeExited(node=PS0, exit=ProcessExit(code=0)), T0)
    job, _ = handle(job, sized(None, OptimizerState(stage=Stage.RUNNING)), T0)
    job, effects = handle(job, sized(servers(2, cpu=4.0, memory=1024)), T0)
    assert moves_in(effects) == {"ps-2": 4.0}


@pytest.mark.parametrize(
    ("words", "node", "why"),
    [
        pytest.param({}, "ps-7", "ps-7 is to be changed, and is not there", id="not-there"),
        pytest.param(
            {"fills_grant": True}, "ps-0", "the master of this job replaces nobody that runs", id="pod-scaler"
        ),
    ],
)
def test_a_node_that_cannot_be_replaced_is_not_asked_for(words: dict[str, bool], node: str, why: str) -> None:
    job = a_job_with_servers(**words)
    if words:
        job, _ = handle(job, sized(servers(1, cpu=4.0)), T0)
    else:
        job = two_servers()
    job, effects = handle(job, relief(node), T0)
    assert effects == ()
    assert why in said(job)[-1]
    assert job.sizing.optimizer.pending is None


def test_where_the_master_makes_the_nodes_new_servers_have_what_was_asked_for() -> None:
    job = a_job_with_servers(fills_grant=True)
    job, _ = handle(job, sized(servers(2, cpu=1.5, memory=512)), T0)
    job, _ = handle(job, ServersGranted(count=2, are_too_many=False), T0)
    assert job.nodes[NodeId("ps-1")].resource == NodeResource(cpu=1.5, memory=512)


# What is kept ------------------------------------------------------------------------------------------------------


def test_the_state_of_the_optimizer_is_in_the_jobs_records() -> None:
    story = a_story()
    before = story.job
    story.happen(sized(workers(3)))
    change = journal.change(before, story.job)
    assert change is not None
    assert not change.is_minor
    again = journal.replay([journal.snapshot(before), change.record])
    assert again is not None
    assert again.sizing == story.job.sizing


def test_new_words_about_an_unchanged_state_are_not_worth_a_record_of_their_own() -> None:
    story = a_story()
    story.happen(sized(None, OptimizerState(stage=Stage.RUNNING, reason="one")))
    before = story.job
    story.happen(sized(None, OptimizerState(stage=Stage.RUNNING, reason="two", confidence=0.61)))
    change = journal.change(before, replace(story.job, decisions=before.decisions))
    assert change is not None
    assert change.is_minor
    assert change.is_replayed


def test_a_job_that_is_resumed_begins_with_the_size_that_it_had_found() -> None:
    story = a_story()
    story.happen(sized(workers(4)))
    job, _ = resumed(story.job, story.job.spec, story.job.settings, nodes=1, term=2, now=story.now)
    assert job.target == 4
    assert job.sizing.optimizer.stage is Stage.RUNNING
    assert job.sizing.optimizer.pending is None


# Everybody at once -------------------------------------------------------------------------------------------------


wishes = st.builds(lambda count: sized(workers(count), asked_for(count)), st.integers(0, 6))
nothing = st.builds(lambda words: sized(None, OptimizerState(stage=Stage.RUNNING, reason=words)), st.text(max_size=5))
by_hand = st.builds(lambda count: ScaleAsked(count=count, who="shoal scale"), st.integers(1, 4))
pins = st.sampled_from([CountPinned(role=Role.WORKER, by=by) for by in ("somebody", None)])
gifts = st.sampled_from([by_plan(cpu=2.0), by_plan(memory=512), ResourcePinned(role=Role.WORKER, given=None)])
losses = st.integers(0, 8).map(lambda n: NodeExited(node=NodeId(f"worker-{n}"), exit=ProcessExit(code=137)))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.one_of(wishes, nothing, by_hand, pins, gifts, losses), max_size=20))
def test_whoever_asks_for_what_in_whatever_order_the_job_stays_within_its_bounds_and_the_hand_wins(events):
    story = a_story()
    for event in events:
        before = story.job
        story.happen(event)
        assert 1 <= story.job.target <= 4
        if isinstance(event, Sized) and before.sizing.pins:
            assert story.job.target == before.target, "the number is not the optimizer's to say"
        if isinstance(event, ScaleAsked) and before.ending is None:
            assert story.job.target == event.count
            assert story.job.sizing.pins == {"worker": f"shoal scale worker={event.count}"}
        change = journal.change(before, story.job)
        again = journal.replay([journal.snapshot(before), *([change.record] if change else [])])
        assert again is not None
        assert again.sizing == story.job.sizing


# Wrong input -------------------------------------------------------------------------------------------------------


odd = st.sampled_from([math.nan, math.inf, -math.inf, -1.0, 0.0, 1e300, 1.0, 3.5])


@settings(max_examples=40, deadline=None)
@given(
    said_by_agents=st.lists(st.tuples(odd, odd, odd), max_size=6),
    leaps=st.lists(st.sampled_from([2, 30, 600, -3600, 90_000_000]), min_size=1, max_size=30),
    samples=st.lists(st.integers(-(10**6), 10**12), max_size=30),
    changed=st.dictionaries(st.sampled_from(list(Kind)), odd),
)
def test_no_statistics_and_no_clock_stop_a_job_or_plan_beyond_its_bounds(said_by_agents, leaps, samples, changed):
    """Not-a-number, negative, of tomorrow: whatever comes in, a look ends, with a reason, within the limits."""
    story, statistics, now = a_story(), Statistics(), T0
    for number, leap in enumerate(leaps):
        now = now + timedelta(seconds=leap)
        for cpu, memory, work in said_by_agents[number % 7 : number % 7 + 2]:
            trained = Trained(steps=number, samples=number, step_seconds=work, work_seconds=work)
            process = ProcessSeen(
                local_rank=0,
                pid=1,
                stopped=False,
                cpu=cpu,
                memory_bytes=int(memory) if math.isfinite(memory) else -1,
                step=number,
                collectives=0,
                busy=None,
                trained=trained,
            )
            statistics.heard(W0, Heard(node=NodeSeen(cpu_limit=cpu), processes=(process,)), now)
        if number < len(samples):
            statistics.progressed(number, samples[number], now)
        statistics.ticked(lambda: Now(workers=2, nodes=tuple(story.job.nodes.values())), now)
    state = OptimizerState(stage=Stage.RUNNING, changed=changed)
    story.job = replace(story.job, sizing=replace(story.job.sizing, optimizer=state))
    look = look_at(story.job, statistics, now)
    assert look is not None
    answer = answered(look, JobResourceOptimizer(LocalOptimizer(), SHARED))
    assert answer.state.reason
    after, _ = handle(story.job, answer, story.now)
    assert 1 <= after.target <= 4
    assert after.phase is story.job.phase


@given(cpu=st.sampled_from([math.nan, math.inf, -math.inf, 0.0, -2.0]))
def test_a_node_is_never_given_what_is_no_amount(cpu: float) -> None:
    with pytest.raises(ValueError, match="cpu must be above 0 when it is said"):
        NodeResource(cpu=cpu)
