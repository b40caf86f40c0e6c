"""A job's way through its stages, and the rails: with the real optimizer, and with one that always wants the same."""

import math
from dataclasses import dataclass, replace
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.brain.facts import GIB, NOW, any_facts, any_limits, node, ring, role, servers, speeds

from shoal.brain.algorithms.local import LocalOptimizer
from shoal.brain.algorithms.proposing import Wanted, proposed
from shoal.core.cleaning import cleaned
from shoal.core.facts import JobFacts, Limits, OomEvent, OptimizerSettings, cpu_limit
from shoal.core.nodes import Role
from shoal.core.optimizing import Canary, Kind, Outcome, Question, Stage
from shoal.core.plans import NodeGroupResource, NodeResource, ResourcePlan
from shoal.core.stages import JobResourceOptimizer, OptimizerState, Turn, given_up

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


class Wished(Wishes):
    """One that keeps what it was asked."""

    def __init__(self) -> None:
        super().__init__(ResourcePlan(reason="nothing"))
        self.questions: list[Question] = []

    def generate_opt_plan(self, stage, config):
        self.questions.append(config)
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


def test_how_far_the_last_fit_can_be_trusted_is_remembered():
    fitted = walk().turn(RUNNING, ring(4), LIMITS).state
    assert fitted.confidence == pytest.approx(0.66, abs=0.05)
    assert walk(Wishes(eight())).turn(replace(fitted, pending=None), ring(4), LIMITS).state.confidence == (
        fitted.confidence
    ), "who plans by something else has no other fit"
    settled = replace(ring(4), roles={Role.WORKER: role(4, most=4, count_pinned=True, cpu_pinned=True)})
    stays = walk().turn(replace(RUNNING, changed={Kind.MEMORY: NOW - 5.0}), settled, LIMITS)
    assert (stays.plan, stays.state.confidence) == (None, fitted.confidence)


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


def with_slow_seat(name: str, *, end: float, since: float, speed: float = 400.0) -> JobFacts:
    """Four workers, of which the one in the last place has this name, and takes three times as long since it began."""
    others = tuple(replace(node(f"worker-{n}", own=0.5), seat=n) for n in range(3))
    last = replace(node(name, own=1.5), seat=3, since=since)
    moved = tuple(replace(each, samples=tuple(replace(s, at=s.at + end - NOW) for s in each.samples))
                  for each in (*others, last))  # fmt: skip
    kept = replace(moved[-1], samples=tuple(s for s in moved[-1].samples if s.at > since))
    return replace(measured(4, speed, end=end), nodes=(*moved[:-1], kept), changed_at=since)


def replaced_over(hours: float, *, helps: bool) -> tuple[list[float], OptimizerState]:
    """When a place in which everybody becomes slow has its node replaced, and what is remembered in the end. Every look
    is another master's, that has the state from the journal."""
    state, since, number, found = replace(RUNNING, distrusted=("scale_workers", "trim_idle")), NOW - 4_000.0, 3, []
    for look in range(int(hours * 120)):
        now = NOW + 30.0 * look
        speed = 400.0 if not helps or now - since > 250.0 else 600.0
        facts = with_slow_seat(f"worker-{number}", end=now, since=since, speed=speed)
        turn = walk().turn(msgspec.convert(msgspec.to_builtins(state), OptimizerState), facts, LIMITS)
        state = turn.state
        if turn.plan is not None:
            assert turn.plan.replace_nodes == (f"worker-{number}",)
            found.append(now - NOW)
            since, number = now, number + 1
    return found, state


def test_a_place_that_stays_slow_has_its_node_replaced_less_and_less_often():
    """It was every few minutes for ever."""
    found, state = replaced_over(15.0, helps=False)
    assert len(found) == 5
    gaps = [later - earlier for earlier, later in pairwise(found)]
    assert all(later >= 1.9 * earlier for earlier, later in pairwise(gaps))
    assert gaps[0] >= 1_800.0
    assert state.replaced["worker 3"].times == 5
    assert "worker-8 takes 3.0 times as long as usual for a step, and replacing it 5 times brought nothing" in (
        state.reason
    )


def test_a_place_whose_replacement_has_helped_has_its_node_replaced_whenever_it_is_slow():
    found, state = replaced_over(1.0, helps=True)
    assert len(found) >= 4
    assert len(state.replaced) <= 1


def test_a_kind_of_change_cools_down():
    state = replace(RUNNING, changed={Kind.SIZE: NOW - 10.0})
    turn = walk().turn(state, ring(4), LIMITS)
    assert turn.plan is None or turn.plan.algorithm != "scale_workers"


def test_however_fast_a_job_is_looked_at_a_platform_has_a_minute_to_grant():
    quick = JobResourceOptimizer(Wishes(eight()), OptimizerSettings().paced(4))
    waiting = quick.turn(asked().state, measured(4, 450.0, end=NOW + 50.0), LIMITS)
    assert waiting.state.reason == "what was asked for is not there yet"
    late = quick.turn(waiting.state, measured(4, 450.0, end=NOW + 70.0), LIMITS)
    assert "granted in part (worker: 8 asked, 4 granted)" in late.state.reason


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


def with_hot_server(name: str, cpu: float, speed: float, *, end: float) -> JobFacts:
    """Two servers, of which the one in the first place has this name and so many cores."""
    there = (replace(node(name, cpu=cpu), seat=0), replace(node("ps-1"), seat=1))
    samples = tuple(replace(s, samples_per_second=speed) for s in speeds(4, 4.0, 2, end=end))
    facts = servers(4, 2)
    workers = tuple(each for each in facts.nodes if each.role is Role.WORKER)
    return replace(facts, now=end, nodes=(*workers, *there), speeds=samples, changed_at=end - 400.0)


RELIEF = ResourcePlan(
    node_resources={"ps-0": NodeResource(cpu=8.0, memory=16 * GIB)}, reason="ps-0 is hot", algorithm="relieve_hot_ps"
)


def test_a_server_that_was_moved_is_judged_in_its_place_and_a_bad_move_is_taken_back():
    """Who takes a place has another name."""
    state = walk(Wishes(RELIEF)).turn(RUNNING, with_hot_server("ps-0", 4.0, 400.0, end=NOW), LIMITS).state
    waiting = walk(Wishes(RELIEF)).turn(state, with_hot_server("ps-0", 4.0, 400.0, end=NOW + 30.0), LIMITS)
    assert waiting.state.reason == "what was asked for is not there yet"
    worse = walk(Wishes(RELIEF)).turn(state, with_hot_server("ps-2", 8.0, 300.0, end=NOW + 600.0), LIMITS)
    assert worse.plan is not None
    assert worse.plan.node_resources == {"ps-2": NodeResource(cpu=4.0, memory=16 * GIB)}
    assert (worse.plan.algorithm, worse.plan.node_group_resources) == ("roll_back", {})
    assert worse.state.distrusted == ("relieve_hot_ps",)
    back = walk(Wishes(RELIEF)).turn(worse.state, with_hot_server("ps-3", 4.0, 400.0, end=NOW + 1_200.0), LIMITS)
    assert (back.plan, back.state.pending) == (None, None)


def test_a_move_that_was_not_made_is_not_judged_and_asked_for_again_only_for_another_server():
    state = walk(Wishes(RELIEF)).turn(RUNNING, with_hot_server("ps-0", 4.0, 400.0, end=NOW), LIMITS).state
    still = with_hot_server("ps-0", 4.0, 400.0, end=NOW + 600.0)
    given_up = walk(Wishes(RELIEF)).turn(state, still, LIMITS)
    assert "granted in part (ps 0: as it was) and is not judged" in given_up.state.reason
    assert (given_up.state.pending, given_up.state.outcomes) == (None, ())
    assert walk(Wishes(RELIEF)).turn(given_up.state, later(still, 300.0), LIMITS).plan is None
    other = replace(RELIEF, node_resources={"ps-1": NodeResource(cpu=8.0, memory=16 * GIB)})
    assert walk(Wishes(other)).turn(given_up.state, later(still, 300.0), LIMITS).plan == other


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


@pytest.mark.parametrize(
    ("own", "busy"),
    [
        pytest.param(0.58, 2.0 / 0.58, id="they-cannot-use-all"),
        pytest.param(0.5, 4.0, id="they-use-all"),
        pytest.param(0.6, None, id="waiting-is-not-told-apart"),
    ],
)
def test_workers_that_are_alike_show_how_many_cores_they_keep_busy_while_they_compute(own, busy):
    """A step takes 0.61 s and 2 core-seconds of 4 cores."""
    nodes = tuple(node(f"worker-{n}", own=own) for n in range(4))
    shown = walk().turn(RUNNING, replace(ring(4), nodes=nodes), LIMITS).state.canary
    assert (None if shown is None else shown.busy) == (None if busy is None else pytest.approx(busy))


def test_workers_of_parameter_servers_do_not_tell_computing_from_waiting():
    nodes = tuple(node(f"worker-{n}", own=0.5) for n in range(4))
    assert walk().turn(RUNNING, replace(servers(4, 2), nodes=nodes), LIMITS).state.canary is None


def test_what_workers_with_more_cores_have_shown_is_not_forgotten_for_those_with_fewer():
    shown = Canary(tried=16.0, busy=6.0)
    nodes = tuple(node(f"worker-{n}", own=0.5) for n in range(4))
    turn = walk().turn(replace(RUNNING, canary=shown), replace(ring(4), nodes=nodes), LIMITS)
    assert turn.state.canary == shown


def test_a_node_that_no_host_has_room_for_is_asked_for_smaller():
    seen = []

    class Watched(Wishes):
        def generate_opt_plan(self, stage, config):
            seen.append(cpu_limit(config.facts.workers, config.limits))
            return self.plan

    group = NodeGroupResource(count=4, node_resource=NodeResource(cpu=20.0, memory=16 * GIB))
    plan = ResourcePlan(node_group_resources={"worker": group}, reason="more cores", algorithm="scale_workers")
    optimizer, facts, wide = walk(Watched(plan)), measured(4, 400.0, end=NOW), Limits(node_cpu=64.0)
    refused = optimizer.turn(optimizer.turn(RUNNING, facts, wide).state, later(facts, 100.0), wide)
    assert "granted in part (worker: less)" in refused.state.reason
    optimizer.turn(refused.state, later(facts, 300.0), wide)
    assert seen == [64.0, 16.0]
    optimizer.turn(refused.state, later(facts, 300.0), replace(wide, free_cpu=100.0))
    assert seen[-1] == 64.0, "there is other room now"
    given_away = given_up(asked().state, "somebody says how many")
    optimizer.turn(given_away, later(facts, 300.0), wide)
    assert seen[-1] == 64.0, "nobody has refused it"


def refused_move(facts: JobFacts, cpu: float) -> Turn:
    """After `ps-0` was to have so many cores, and did not get them."""
    plan = ResourcePlan(
        node_resources={"ps-0": NodeResource(cpu=cpu, memory=16 * GIB)}, reason="hot", algorithm="relieve_hot_ps"
    )
    optimizer = walk(Wishes(plan))
    refused = optimizer.turn(optimizer.turn(RUNNING, facts, LIMITS).state, later(facts, 100.0), LIMITS)
    assert "granted in part" in refused.state.reason
    return refused


def test_a_parameter_server_that_no_host_has_room_for_leaves_the_workers_their_cores():
    facts = servers(4, 2, cpu=8.0, ps_cpu=2.0)
    asked_of = Wished()
    walk(asked_of).turn(refused_move(facts, 3.2).state, later(facts, 300.0), LIMITS)
    (question,) = asked_of.questions
    assert cpu_limit(question.facts.roles[Role.PS], question.limits) == pytest.approx(2.56)
    assert cpu_limit(question.facts.workers, question.limits) == LIMITS.node_cpu
    memory = proposed("any", question.facts, LIMITS, OptimizerSettings(), {Role.WORKER: Wanted(memory=GIB)}, reason="")
    assert memory.node_group_resources["worker"].node_resource.cpu == 8.0


def test_cores_that_were_refused_may_be_asked_for_again_when_that_was_long_ago():
    """Kubernetes tells nobody of free room: a host that has come since would never be used."""
    facts = servers(4, 2, cpu=8.0, ps_cpu=2.0)
    refused = refused_move(facts, 3.2)
    plan = ResourcePlan(
        node_resources={"ps-0": NodeResource(cpu=3.2, memory=16 * GIB)}, reason="hot", algorithm="relieve_hot_ps"
    )
    seen = at(refused)
    turns = [walk(Wishes(plan)).turn(refused.state, replace(facts, now=seen + s), LIMITS) for s in (1_799.0, 1_801.0)]
    assert [turn.plan for turn in turns] == [None, plan]
    assert "the same was asked for and granted in part" in turns[0].state.reason
    caps = []
    for seconds in (1_799.0, 1_801.0):
        asked_of = Wished()
        walk(asked_of).turn(refused.state, replace(facts, now=seen + seconds), LIMITS)
        caps.append(cpu_limit(asked_of.questions[0].facts.roles[Role.PS], LIMITS))
    assert caps == [pytest.approx(2.56), LIMITS.node_cpu]
    shorter = JobResourceOptimizer(Wishes(plan), OptimizerSettings(refusal_holds=600.0))
    assert shorter.turn(refused.state, replace(facts, now=seen + 601.0), LIMITS).plan == plan
    back = walk(Wishes(plan)).turn(refused.state, replace(facts, now=seen - 90_000.0), LIMITS)
    assert at(back) == seen - 90_000.0, "a clock that was set back makes nobody wait for a day"
    given_away = given_up(replace(refused.state, pending=asked().state.pending), "somebody says how many")
    assert given_away.trimmed is not None
    assert given_away.trimmed.at is None, "that is no matter of room"
    with pytest.raises(ValueError, match="refusal_holds must be above 0"):
        OptimizerSettings(refusal_holds=0.0)


def at(turn: Turn) -> float:
    """When the last refusal was seen."""
    assert turn.state.trimmed is not None
    assert turn.state.trimmed.at is not None
    return turn.state.trimmed.at


def test_what_nodes_have_is_never_more_than_a_host_has_room_for():
    facts = servers(4, 2, ps_cpu=4.0)
    large = replace(facts, nodes=(*facts.nodes, node("ps-2", cpu=6.0, used_cpu=0.5)))
    for each, most in ((facts, 4.0), (large, 6.0)):
        asked_of = Wished()
        walk(asked_of).turn(refused_move(facts, 4.4).state, later(each, 300.0), LIMITS)
        (question,) = asked_of.questions
        assert cpu_limit(question.facts.roles[Role.PS], question.limits) == most


def test_one_that_ran_out_of_memory_is_seen_to_once_whatever_the_clock_does():
    event = OomEvent(node="worker-0", role=Role.WORKER, at=NOW - 1.0, memory=16 * GIB)
    facts = replace(measured(4, 400.0, end=NOW), ooms=(event,), in_change=True)
    turn = walk().turn(RUNNING, facts, LIMITS)
    assert turn.plan is not None
    jumped = replace(facts, ooms=(replace(event, at=event.at - 3_600.0),))
    assert walk().turn(turn.state, jumped, LIMITS).plan is None
    other = replace(facts, ooms=(event, replace(event, node="worker-5")))
    assert walk().turn(turn.state, other, LIMITS).plan is not None


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
