"""A job's way through its stages, and the rails: with the real optimizer, and with one that always wants the same."""

import math
from dataclasses import dataclass, replace

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.brain.facts import GIB, NOW, any_facts, any_limits, node, ring, role, servers, speeds

from shoal.brain.algorithms.local import LocalOptimizer
from shoal.core.cleaning import cleaned
from shoal.core.facts import JobFacts, Limits, OomEvent, OptimizerSettings
from shoal.core.nodes import Role
from shoal.core.optimizing import Kind, Outcome, Stage
from shoal.core.plans import NodeGroupResource, NodeResource, ResourcePlan
from shoal.core.stages import JobResourceOptimizer, OptimizerState, Turn

LIMITS = Limits()
RUNNING = OptimizerState(stage=Stage.RUNNING)


@dataclass
class Wishes:
    """An optimizer that always wants the same."""

    plan: ResourcePlan

    def generate_opt_plan(self, stage, config):
        return self.plan

    def generate_oom_recovery_plan(self, oom_nodes, stage, config):
        return self.plan

    def generate_resource_plan_with_optimizer(self, config):
        return self.plan


def eight(predicted: float | None = 500.0) -> ResourcePlan:
    group = NodeGroupResource(count=8, node_resource=NodeResource(cpu=4.0, memory=16 * GIB))
    return ResourcePlan(
        node_group_resources={"worker": group}, reason="eight", algorithm="scale_workers", predicted_speed=predicted
    )


def walk(optimizer=None) -> JobResourceOptimizer:
    return JobResourceOptimizer(optimizer or LocalOptimizer(), OptimizerSettings())


def later(facts: JobFacts, seconds: float, **rest) -> JobFacts:
    return replace(facts, now=facts.now + seconds, **rest)


def measured(workers: int, speed: float, *, end: float) -> JobFacts:
    """A ring that has trained with so many workers at this speed for five minutes."""
    samples = tuple(replace(s, samples_per_second=speed) for s in speeds(workers, 4.0, end=end))
    return replace(ring(workers), now=end, speeds=samples, changed_at=end - 400.0)


def asked() -> Turn:
    return walk(Wishes(eight())).turn(RUNNING, measured(4, 400.0, end=NOW), LIMITS)


# The stages --------------------------------------------------------------------------------------------------------


def test_a_job_with_parameter_servers_walks_through_all_stages():
    new = replace(servers(), roles={Role.WORKER: role(0), Role.PS: role(0)}, nodes=(), speeds=(), changed_at=None)
    first = walk().turn(OptimizerState(), new, LIMITS)
    assert first.plan is not None
    assert (first.state.stage, first.plan.algorithm) == (Stage.WORKER_INITIAL, "cold_start")

    small = replace(servers(1, 1), speeds=speeds(1, 4.0, 1))
    probe = walk().turn(first.state, small, LIMITS)
    assert probe.plan is not None
    assert (probe.state.stage, probe.plan.algorithm) == (Stage.PS_INITIAL, "probe_workers")

    settled = replace(probe.state, pending=None, changed={})
    sized = walk().turn(settled, servers(4, 1), LIMITS)
    assert sized.plan is not None
    assert (sized.state.stage, sized.plan.algorithm) == (Stage.RUNNING, "size_ps")


def test_an_all_reduce_job_has_no_stage_for_parameter_servers():
    probe = walk().turn(OptimizerState(stage=Stage.WORKER_INITIAL), replace(ring(1), speeds=speeds(1, 4.0)), LIMITS)
    assert probe.state.stage is Stage.RUNNING


def test_nothing_is_decided_from_too_few_samples():
    turn = walk().turn(RUNNING, replace(ring(), speeds=speeds(4, 4.0, count=2)), LIMITS)
    assert turn.plan is None
    assert "fewer than 5 good samples" in turn.state.reason


# The rails ---------------------------------------------------------------------------------------------------------


def test_one_change_at_a_time():
    turn = asked()
    assert turn.plan is not None
    again = walk(Wishes(eight())).turn(turn.state, later(measured(4, 400.0, end=NOW), 30.0, in_change=True), LIMITS)
    assert again.plan is None
    assert again.state.reason == "a change is under way: nodes start, drain or move"


def test_what_came_of_a_change_is_kept_beside_what_was_predicted():
    done = walk(Wishes(eight())).turn(asked().state, measured(8, 600.0, end=NOW + 600.0), LIMITS)
    assert done.plan is None
    (outcome,) = done.state.outcomes
    assert (outcome.before, outcome.measured, outcome.predicted) == (400.0, 600.0, 500.0)
    assert outcome.prediction_error == pytest.approx(-1 / 6)
    assert done.state.pending is None


def test_a_change_that_made_it_worse_is_taken_back_once_and_its_algorithm_distrusted():
    worse = walk(Wishes(eight())).turn(asked().state, measured(8, 300.0, end=NOW + 600.0), LIMITS)
    assert worse.plan is not None
    assert worse.plan.algorithm == "roll_back"
    assert worse.plan.node_group_resources["worker"].count == 4
    assert worse.state.distrusted == ("scale_workers",)
    assert "400 to 300 samples/s" in worse.plan.reason
    back = walk(Wishes(eight())).turn(worse.state, measured(4, 100.0, end=NOW + 1_200.0), LIMITS)
    assert back.plan is None, "a roll-back is not rolled back"


def test_a_probe_may_make_it_worse():
    plan = replace(eight(), algorithm="probe_workers")
    state = walk(Wishes(plan)).turn(RUNNING, measured(4, 400.0, end=NOW), LIMITS).state
    assert walk(Wishes(plan)).turn(state, measured(8, 100.0, end=NOW + 600.0), LIMITS).plan is None


def test_a_kind_of_change_cools_down():
    state = replace(RUNNING, changed={Kind.SIZE: NOW - 10.0})
    turn = walk().turn(state, ring(4), LIMITS)
    assert turn.plan is None or turn.plan.algorithm != "scale_workers"


def test_a_trimmed_ask_is_not_judged_and_not_repeated_until_something_changes():
    optimizer = walk(Wishes(eight()))
    facts = measured(6, 450.0, end=NOW + 600.0)
    trimmed = optimizer.turn(asked().state, facts, Limits(free_cpu=0.0))
    assert trimmed.plan is None
    assert "worker: 8 asked, 6 granted" in trimmed.state.reason
    assert trimmed.state.outcomes == ()

    again = optimizer.turn(trimmed.state, later(facts, 300.0), Limits(free_cpu=0.0))
    assert again.plan is None
    assert "granted in part" in again.state.reason
    assert optimizer.turn(trimmed.state, later(facts, 300.0), Limits(free_cpu=8.0)).plan == eight()
    better = walk(Wishes(eight(predicted=700.0)))
    assert better.turn(trimmed.state, later(facts, 300.0), Limits(free_cpu=0.0)).plan is not None


def test_memory_for_a_node_that_ran_out_of_it_waits_for_nothing():
    event = OomEvent(node="worker-0", role=Role.WORKER, at=NOW - 1.0, memory=16 * GIB)
    facts = replace(measured(4, 400.0, end=NOW), ooms=(event,), in_change=True)
    turn = walk().turn(asked().state, facts, LIMITS)
    assert turn.plan is not None
    assert turn.plan.node_group_resources["worker"].node_resource.memory == 32 * GIB
    assert walk().turn(turn.state, facts, LIMITS).plan is None, "once for each time"


def test_a_canary_is_remembered():
    nodes = (node("worker-0", cpu=16.0, own=0.25), *(node(f"worker-{n}", own=0.5) for n in range(1, 4)))
    turn = walk().turn(RUNNING, replace(ring(4), nodes=nodes), LIMITS)
    assert turn.state.canary is not None
    assert (turn.state.canary.tried, turn.state.canary.busy) == (16.0, 8.0)


# Wrong input -------------------------------------------------------------------------------------------------------


def test_a_clock_that_jumps_back_does_not_stop_the_optimizer():
    state = asked().state
    past = measured(8, 600.0, end=100.0)
    waiting = walk(Wishes(eight())).turn(state, past, LIMITS).state
    done = walk(Wishes(eight())).turn(waiting, measured(8, 600.0, end=900.0), LIMITS)
    assert len(done.state.outcomes) == 1


def test_samples_that_cannot_be_are_counted_in_the_reason():
    samples = speeds(4, 4.0)
    bad = (
        replace(samples[0], step_seconds=math.nan),
        replace(samples[0], samples_per_second=-1.0),
        replace(samples[0], at=NOW + 5_000.0),
    )
    turn = walk().turn(RUNNING, replace(ring(), speeds=bad), LIMITS)
    assert "1 from the future, 1 not a number, 1 not above zero" in turn.state.reason


@settings(max_examples=60, deadline=None)
@given(facts=st.lists(any_facts(), min_size=1, max_size=4), limits=any_limits)
def test_whatever_is_measured_the_walk_goes_on_and_its_state_can_be_kept(facts, limits):
    state = OptimizerState()
    for each in facts:
        turn = walk().turn(state, each, limits)
        state = turn.state
        assert state.reason
        assert turn.plan is None or not turn.plan.is_empty
        encoded = msgspec.msgpack.encode(state)
        assert msgspec.msgpack.encode(msgspec.msgpack.decode(encoded, type=OptimizerState)) == encoded


@settings(max_examples=60, deadline=None)
@given(facts=any_facts())
def test_cleaning_twice_cleans_once(facts):
    once, _ = cleaned(facts)
    assert cleaned(once) == (once, "")
    assert all(s.step_seconds > 0.0 and s.samples_per_second > 0.0 and s.workers >= 1 for s in once.speeds)


def test_a_prediction_of_nothing_has_no_error():
    assert Outcome(algorithm="a", at=0.0, before=1.0, measured=1.0).prediction_error is None
