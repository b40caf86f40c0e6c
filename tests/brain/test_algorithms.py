"""Each algorithm: what it plans, and what none of them ever does."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from tests.brain.facts import (
    GIB,
    NOW,
    SETTINGS,
    any_facts,
    any_history,
    any_limits,
    node,
    ring,
    role,
    servers,
    speeds,
    step_seconds,
    total,
)

from shoal.brain.algorithms.avoid_oom import avoid_oom
from shoal.brain.algorithms.cold_start import cold_start
from shoal.brain.algorithms.fit_throughput import fit_throughput
from shoal.brain.algorithms.local import LocalOptimizer
from shoal.brain.algorithms.model import Model, fitted
from shoal.brain.algorithms.probe_workers import probe_workers
from shoal.brain.algorithms.recover_oom import recover_oom
from shoal.brain.algorithms.registry import ALGORITHMS
from shoal.brain.algorithms.relieve_hot_ps import relieve_hot_ps
from shoal.brain.algorithms.replace_slow import replace_slow
from shoal.brain.algorithms.scale_workers import scale_workers
from shoal.brain.algorithms.size_ps import size_ps
from shoal.brain.algorithms.trim_idle import trim_idle
from shoal.core.cleaning import cleaned
from shoal.core.facts import JobFacts, Limits, OomEvent, ResizeCost
from shoal.core.nodes import Role
from shoal.core.optimizing import History, Kind, Question, Stage

NO_HISTORY = History()
WIDE = Limits(node_cpu=16.0)


# What none of them does --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ALGORITHMS)
@settings(max_examples=40, deadline=None)
@given(facts=any_facts(), history=any_history, limits=any_limits)
def test_a_plan_is_never_nothing_never_above_a_limit_and_always_has_a_reason(name, facts, history, limits):
    plan = ALGORITHMS[name].decide(facts, history, limits, SETTINGS)
    assert plan.reason
    assert plan.algorithm == name
    if plan.is_empty:
        return
    for which, group in plan.node_group_resources.items():
        known = facts.roles[Role(which)]
        assert group.count >= 1
        assert known.count_pinned or group.count <= max(known.max, 1)
        cpu, memory = group.node_resource.cpu, group.node_resource.memory
        assert known.cpu_pinned or cpu is None or 0 < cpu <= limits.node_cpu or cpu == known.resource.cpu
        assert known.memory_pinned or memory is None or memory <= limits.node_memory or memory == known.resource.memory
    if plan.node_group_resources or plan.node_resources:
        cpu, memory = total(plan, facts)
        assert limits.cpu is None or cpu <= limits.cpu * (1 + 1e-6)
        assert limits.memory is None or memory <= limits.memory


@pytest.mark.parametrize("name", ALGORITHMS)
@settings(max_examples=15, deadline=None)
@given(facts=any_facts(), history=any_history, limits=any_limits)
def test_the_same_facts_give_the_same_plan(name, facts, history, limits):
    decide = ALGORITHMS[name].decide
    assert decide(facts, history, limits, SETTINGS) == decide(facts, history, limits, SETTINGS)


@pytest.mark.parametrize("name", [name for name in ALGORITHMS if name not in ("cold_start", "recover_oom")])
def test_statistics_that_cannot_be_are_named_in_the_reason(name):
    bad = replace(speeds(4, 4.0)[-1], step_seconds=math.nan)
    strange = node("worker-0", used=-5.0)
    facts = replace(ring(), speeds=(bad,) * 20, nodes=(strange,))
    reason = ALGORITHMS[name].decide(facts, NO_HISTORY, WIDE, SETTINGS).reason
    assert "left out of the statistics: 20 not a number" in reason or name in ("size_ps", "relieve_hot_ps")


@pytest.mark.parametrize(
    ("limits", "told"),
    [
        pytest.param(Limits(cpu=0.3), "are below the least it needs", id="cores-of-the-job"),
        pytest.param(Limits(memory=300), "are below the least it needs", id="memory-of-the-job"),
        pytest.param(Limits(node_cpu=0.1), "one node may have 0.1 cores", id="cores-of-a-node"),
    ],
)
def test_limits_below_what_a_job_needs_are_refused_in_words(limits, told):
    facts = JobFacts(
        job="new",
        strategy=servers().strategy,
        now=0.0,
        roles={Role.WORKER: replace(role(0), resource=type(role(0).resource)()), Role.PS: replace(role(0))},
    )
    plan = cold_start(facts, NO_HISTORY, limits, SETTINGS)
    assert plan.is_empty
    assert told in plan.reason


def test_a_job_that_may_have_no_parameter_server_is_told_so():
    facts = replace(servers(), roles={Role.WORKER: role(1), Role.PS: role(0, most=0)})
    plan = cold_start(facts, NO_HISTORY, WIDE, SETTINGS)
    assert plan.is_empty
    assert "the job may have no ps" in plan.reason


def test_what_the_user_pinned_is_kept():
    facts = ring(4)
    facts = replace(facts, roles={Role.WORKER: role(4, count_pinned=True, memory_pinned=True)})
    plan = scale_workers(facts, NO_HISTORY, WIDE, SETTINGS)
    group = plan.node_group_resources["worker"]
    assert (group.count, group.node_resource.memory) == (4, 16 * GIB)


# The fit -----------------------------------------------------------------------------------------------------------


def test_the_fit_finds_the_formula_that_made_the_samples():
    facts, _ = cleaned(servers(4, 2))
    model = fitted(facts, SETTINGS)
    assert isinstance(model, Model)
    assert model.compute * 64 == pytest.approx(2.0, rel=0.02)
    assert model.second == pytest.approx(0.2, rel=0.02)
    predicted = float(model.step_seconds(8, 4.0, 4, 4.0))
    assert predicted == pytest.approx(step_seconds(8, 4.0, 4, 4.0), rel=0.03)


def test_the_fit_says_how_far_it_can_be_trusted():
    plan = fit_throughput(ring(), NO_HISTORY, WIDE, SETTINGS)
    assert plan.is_empty
    assert "2 sizes" in plan.reason
    assert "confidence 0.67" in plan.reason


# One by one --------------------------------------------------------------------------------------------------------


def test_a_new_job_starts_with_one_of_each():
    facts = JobFacts(job="new", strategy=servers().strategy, now=0.0, roles={Role.WORKER: role(0), Role.PS: role(0)})
    plan = cold_start(facts, NO_HISTORY, WIDE, SETTINGS)
    assert {name: group.count for name, group in plan.node_group_resources.items()} == {"worker": 1, "ps": 1}
    assert plan.node_group_resources["worker"].node_resource.memory == 16 * GIB


def test_a_probe_has_four_workers_and_a_canary():
    facts = replace(ring(1), speeds=speeds(1, 4.0))
    plan = probe_workers(facts, NO_HISTORY, WIDE, SETTINGS)
    assert plan.node_group_resources["worker"].count == 4
    assert plan.node_resources["worker-0"].cpu == 16.0


def test_a_canary_is_given_up_even_when_the_size_stays():
    facts = replace(ring(4, most=4), nodes=(node("worker-0", cpu=16.0), *(node(f"worker-{n}") for n in range(1, 4))))
    facts = replace(facts, roles={Role.WORKER: role(4, most=4, cpu_pinned=False)})
    limits = Limits(cpu=28.0, node_cpu=4.0)
    plan = scale_workers(facts, NO_HISTORY, limits, SETTINGS)
    assert plan.node_group_resources["worker"].count == 4
    assert "worker-0" not in plan.node_resources


def test_memory_is_changed_without_touching_cores_that_one_node_has_for_itself():
    facts = replace(ring(2), nodes=(node("worker-0", cpu=16.0), node("worker-1")))
    plan = trim_idle(facts, NO_HISTORY, WIDE, SETTINGS)
    assert plan.node_resources["worker-0"].cpu == 16.0
    assert plan.node_resources["worker-0"].memory == plan.node_group_resources["worker"].node_resource.memory


def test_workers_grow_while_the_marginal_speedup_is_worth_it():
    plan = scale_workers(ring(4), NO_HISTORY, WIDE, SETTINGS)
    assert plan.node_group_resources["worker"].count > 8
    assert "grow from 4 workers x 4 cores" in plan.reason
    assert plan.predicted_speed is not None


def test_workers_shrink_when_they_are_not_worth_their_cost():
    crowded = tuple(replace(s, step_seconds=s.step_seconds * 8, samples_per_second=s.samples_per_second / 8)
                    for s in speeds(16, 4.0))  # fmt: skip
    facts = replace(ring(16), speeds=(*speeds(1, 4.0, end=NOW - 1_000.0), *crowded))
    plan = scale_workers(facts, NO_HISTORY, WIDE, SETTINGS)
    assert "shrink from 16 workers" in plan.reason
    assert plan.node_group_resources["worker"].count < 16


def test_a_change_that_does_not_pay_before_the_end_is_not_made():
    facts = ring(4, remaining_samples=500.0, resizes=(ResizeCost(at=1.0, seconds=600.0),))
    plan = scale_workers(facts, NO_HISTORY, WIDE, SETTINGS)
    assert plan.is_empty
    assert "does not pay for a pause of 600 s" in plan.reason


def test_worker_counts_are_multiples_of_the_unit():
    plan = scale_workers(ring(4, node_unit=4), NO_HISTORY, WIDE, SETTINGS)
    assert plan.node_group_resources["worker"].count % 4 == 0


def test_parameter_servers_are_sized_for_the_workers_to_come():
    plan = size_ps(servers(4, 1, most=32), NO_HISTORY, WIDE, SETTINGS)
    assert plan.node_group_resources["worker"].count > 8
    group = plan.node_group_resources["ps"]
    assert group.count * (group.node_resource.cpu or 0.0) > 4.0


def test_a_hot_parameter_server_gets_cores_and_the_others_keep_theirs():
    hot = node("ps-0", used_cpu=3.8)
    facts = replace(servers(4, 3), nodes=(hot, node("ps-1", used_cpu=1.0), node("ps-2", used_cpu=1.0)))
    plan = relieve_hot_ps(facts, NO_HISTORY, WIDE, SETTINGS)
    assert set(plan.node_resources) == {"ps-0"}
    assert plan.node_resources["ps-0"].cpu == pytest.approx(7.6)
    assert "ps-0 uses 95% of its cores" in plan.reason


def test_when_all_parameter_servers_are_hot_there_are_more():
    facts = replace(servers(4, 2), nodes=(node("ps-0", used_cpu=3.8), node("ps-1", used_cpu=3.9)))
    assert relieve_hot_ps(facts, NO_HISTORY, WIDE, SETTINGS).node_group_resources["ps"].count == 4


def test_memory_that_was_never_used_is_reclaimed():
    plan = trim_idle(ring(4), NO_HISTORY, WIDE, SETTINGS)
    assert plan.node_group_resources["worker"].node_resource.memory == pytest.approx(2 * GIB * 1.2, abs=64)
    assert plan.node_group_resources["worker"].count == 4


def test_memory_that_grows_to_its_limit_gets_more_in_time():
    growing = node("worker-0", used=14 * GIB, slope=3.0)
    plan = avoid_oom(replace(ring(1), nodes=(growing,)), NO_HISTORY, WIDE, SETTINGS)
    assert (plan.node_group_resources["worker"].node_resource.memory or 0) > 20 * GIB
    assert "180 MiB more each minute" in plan.reason


def test_memory_that_is_filled_while_a_node_starts_is_no_trend():
    starting = node("worker-0", used=8 * GIB, slope=40.0, watched=150.0, count=5)
    assert avoid_oom(replace(ring(1), nodes=(starting,)), NO_HISTORY, WIDE, SETTINGS).is_empty


@pytest.mark.parametrize(
    ("had", "limit", "gets"),
    [
        pytest.param(8 * GIB, 64 * GIB, 16 * GIB, id="twice-as-much"),
        pytest.param(48 * GIB, 64 * GIB, 64 * GIB, id="at-most-the-limit"),
        pytest.param(64 * GIB, 64 * GIB, None, id="refused-at-the-limit"),
    ],
)
def test_a_node_that_ran_out_of_memory_comes_back_with_more(had, limit, gets):
    event = OomEvent(node="worker-0", role=Role.WORKER, at=NOW - 5.0, memory=had)
    facts = replace(ring(1), ooms=(event,), roles={Role.WORKER: role(1, memory=had)}, nodes=())
    plan = recover_oom(facts, NO_HISTORY, Limits(node_memory=limit), SETTINGS)
    if gets is None:
        assert "the most that a node may have" in plan.reason
        assert plan.is_empty
    else:
        assert plan.node_group_resources["worker"].node_resource.memory == gets


def test_even_parameter_servers_at_their_limit_become_more():
    event = OomEvent(node="ps-0", role=Role.PS, at=NOW - 5.0, memory=64 * GIB)
    facts = replace(servers(2, 2), ooms=(event,))
    assert recover_oom(facts, NO_HISTORY, WIDE, SETTINGS).node_group_resources["ps"].count == 3


def test_a_slow_worker_is_replaced_elsewhere():
    nodes = (*(node(f"worker-{n}", own=0.5) for n in range(3)), node("worker-3", own=1.4))
    plan = replace_slow(replace(ring(4), nodes=nodes), NO_HISTORY, WIDE, SETTINGS)
    assert plan.replace_nodes == ("worker-3",)
    assert "2.8 times the usual 0.5 s" in plan.reason


def test_where_all_are_slow_nobody_is_replaced():
    nodes = tuple(node(f"worker-{n}", own=5.0) for n in range(4))
    assert replace_slow(replace(ring(4), nodes=nodes), NO_HISTORY, WIDE, SETTINGS).is_empty


# Together ----------------------------------------------------------------------------------------------------------


def test_the_local_optimizer_asks_in_turn_and_says_why_nobody_wants_anything():
    question = Question(facts=ring(4), limits=WIDE)
    assert LocalOptimizer().generate_opt_plan(Stage.RUNNING, question).algorithm == "scale_workers"
    tired = replace(question, history=History(distrusted=frozenset({"scale_workers"}), cooling=frozenset(Kind)))
    plan = LocalOptimizer().generate_opt_plan(Stage.RUNNING, tired)
    assert plan.is_empty
    assert "scale_workers made this job worse before" in plan.reason
    assert "trim_idle waits" in plan.reason
