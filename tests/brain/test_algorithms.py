"""Each algorithm: what it plans, and what none of them ever does."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.brain.facts import (
    GIB,
    NOW,
    SETTINGS,
    any_facts,
    any_history,
    any_limits,
    crowded_jobs,
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
from shoal.brain.algorithms.memory import needed_memory
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
from shoal.core.facts import JobFacts, Limits, OomEvent, ResizeCost, RoleFacts
from shoal.core.nodes import Role
from shoal.core.optimizing import Canary, History, Kind, Outcome, Question, Stage
from shoal.core.plans import NodeGroupResource, NodeResource

NO_HISTORY = History()
WIDE = Limits(node_cpu=16.0)
ALIKE = replace(SETTINGS, canary=False)


# What none of them does --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ALGORITHMS)
@settings(max_examples=40, deadline=None)
@given(facts=any_facts(), history=any_history, limits=any_limits, how=st.sampled_from((SETTINGS, ALIKE)))
def test_a_plan_is_never_nothing_never_above_a_limit_and_always_has_a_reason(name, facts, history, limits, how):
    plan = ALGORITHMS[name].decide(facts, history, limits, how)
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
@settings(max_examples=60, deadline=None)
@given(job=crowded_jobs(), history=any_history, how=st.sampled_from((SETTINGS, ALIKE)))
def test_no_plan_has_less_memory_than_nodes_use_or_ran_out_of_and_each_changed_role_is_named(name, job, history, how):
    facts, limits = job
    plan = ALGORITHMS[name].decide(facts, history, limits, how)
    for which, group in plan.node_group_resources.items():
        known, memory = facts.roles[Role(which)], group.node_resource.memory
        assert which in plan.reason.lower() or (which == "ps" and "parameter server" in plan.reason)
        margin = 1.2 if which == "ps" else 1.15
        used = margin * max(s.memory for each in facts.nodes if each.role == which for s in each.samples)
        lost = max((event.memory for event in facts.ooms if event.role == which), default=0)
        if which == "ps" and group.count < known.count:
            used = used * known.count / group.count
        elif which == "ps" and group.count > known.count:
            lost = used = used * known.count / group.count  # the more there are, the less each holds
        else:
            used = min(used, known.resource.memory)
        assert memory >= math.floor(used)
        assert memory > lost or memory == lost == known.resource.memory or group.count > known.count


def test_what_another_role_loses_to_a_node_that_ran_out_of_memory_is_said_and_never_what_it_uses():
    workers = tuple(node(f"worker-{n}", memory=1_024, used=900.0) for n in range(2))
    known = {Role.WORKER: role(2, memory=1_024), Role.PS: role(1, memory=6_144)}
    event = OomEvent(node="ps-0", role=Role.PS, at=NOW - 5.0, memory=6_144, count=1)
    facts = replace(servers(2, 1), nodes=workers, roles=known, ooms=(event,))
    plan = recover_oom(facts, NO_HISTORY, Limits(memory=8 * GIB), SETTINGS)
    worker, ps = (plan.node_group_resources[which] for which in ("worker", "ps"))
    assert (worker.count, worker.node_resource.memory) == (1, 1_024)
    assert (ps.count, ps.node_resource.memory) == (1, 7_168)
    assert plan.reason == (
        "ps-0 ran out of 6144 MiB: 7168 MiB (1.2 times); "
        "the limits leave 1 worker x 4 cores and 1024 MiB instead of 2 worker x 4 cores and 1024 MiB"
    )
    both = replace(facts, roles={**known, Role.WORKER: role(2, memory=1_024, min=2)})
    plan = recover_oom(both, NO_HISTORY, Limits(memory=8 * GIB), SETTINGS)
    assert plan.is_empty
    assert plan.reason.startswith("ps-0 ran out of 6144 MiB; the limits of the job (8192 MiB) are below the least")


def test_parameter_servers_become_no_fewer_than_hold_what_they_hold():
    """Half of the cores would do, and each of two servers would have to hold what two hold now."""
    full = tuple(node(f"ps-{n}", memory=4 * GIB, used=3 * GIB, used_cpu=0.1) for n in range(4))
    known = {Role.WORKER: role(1, min=1), Role.PS: role(4, memory=4 * GIB, most=8)}
    facts = replace(servers(1, 4), nodes=(node("worker-0", used=15 * GIB), *full), roles=known)
    tight = Limits(cpu=12.0, memory=40 * GIB)
    plan = avoid_oom(facts, NO_HISTORY, tight, SETTINGS)
    assert plan.is_empty or plan.node_group_resources["ps"].count == 4
    given = {**known, Role.PS: role(4, memory=4 * GIB, most=2, memory_pinned=True)}
    plan = avoid_oom(replace(facts, roles=given), NO_HISTORY, Limits(), SETTINGS)
    assert plan.is_empty
    assert "each of 2 ps needs 7373 MiB by what was measured, and may have 4096 MiB" in plan.reason


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


def test_nodes_are_given_nothing_to_begin_with_where_nobody_knows_what_fits_and_keep_what_they_have():
    settings = replace(SETTINGS, start_workers=2, start_cpu=None, start_memory=None)
    new = replace(ring(1), roles={Role.WORKER: RoleFacts(count=0, max=8)}, nodes=(), speeds=(), changed_at=None)
    plan = cold_start(new, NO_HISTORY, WIDE, settings)
    assert plan.node_group_resources["worker"] == NodeGroupResource(count=2)
    assert "2 worker with what their hosts have show what it needs" in plan.reason
    given = RoleFacts(count=0, max=8, resource=NodeResource(cpu=1.0, gpu_num=1))
    plan = cold_start(replace(new, roles={Role.WORKER: given}), NO_HISTORY, WIDE, settings)
    assert plan.node_group_resources["worker"].node_resource == given.resource


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


def test_a_job_that_begins_with_all_its_workers_is_probed_with_half_of_them():
    """Of both kinds: a fit to one size cannot tell what workers wait for from what each of them does."""
    ring_of_4 = replace(ring(4, most=4), speeds=speeds(4, 4.0))
    served = replace(servers(2, 1, most=2), speeds=speeds(2, 4.0, 1))
    for facts, half in ((ring_of_4, 2), (served, 1)):
        plan = probe_workers(facts, NO_HISTORY, WIDE, SETTINGS)
        assert plan.node_group_resources["worker"].count == half
    two_sizes = replace(served, speeds=(*speeds(2, 4.0, 2, end=NOW - 1_000.0), *speeds(2, 4.0, 1)))
    assert probe_workers(two_sizes, NO_HISTORY, WIDE, SETTINGS).node_group_resources["worker"].count == 2
    pinned = replace(served, roles={**served.roles, Role.WORKER: role(2, most=2, count_pinned=True)})
    assert probe_workers(pinned, NO_HISTORY, WIDE, SETTINGS).node_group_resources["worker"].count == 2


def test_a_probe_shares_the_memory_that_the_first_workers_do_not_use():
    first = tuple(node(f"worker-{n}", memory=8 * GIB, used=2 * GIB, watched=150.0) for n in range(2))
    known = replace(role(2, most=4), resource=NodeResource(cpu=4.0, memory=8 * GIB))
    facts = replace(ring(2, most=4), speeds=speeds(2, 4.0), nodes=first, roles={Role.WORKER: known})
    tight = Limits(memory=16 * GIB)
    group = probe_workers(facts, NO_HISTORY, tight, SETTINGS).node_group_resources["worker"]
    assert (group.count, group.node_resource.memory) == (4, 4 * GIB)
    full = tuple(node(f"worker-{n}", memory=8 * GIB, used=6 * GIB, watched=150.0) for n in range(2))
    plan = probe_workers(replace(facts, nodes=full), NO_HISTORY, tight, SETTINGS)
    assert "worker" not in plan.node_group_resources


def test_a_ring_that_was_seen_with_one_number_of_workers_keeps_it():
    crowded = replace(ring(4), speeds=speeds(4, 4.0))
    plan = scale_workers(crowded, NO_HISTORY, WIDE, SETTINGS)
    assert plan.is_empty or plan.node_group_resources["worker"].count == 4


def test_while_a_parameter_server_becomes_busy_nothing_else_is_concluded():
    busy = node("ps-0", used_cpu=3.8, watched=900.0)
    since = [replace(sample, cpu=1.0) for sample in busy.samples[:-2]]
    facts = replace(servers(4, 1), nodes=(replace(busy, samples=(*since, *busy.samples[-2:])),))
    assert "ps-0 has become busy" in scale_workers(facts, NO_HISTORY, WIDE, SETTINGS).reason
    assert relieve_hot_ps(facts, NO_HISTORY, WIDE, SETTINGS).is_empty
    hot = replace(servers(4, 1), nodes=(busy,))
    assert "has become busy" not in scale_workers(hot, NO_HISTORY, WIDE, SETTINGS).reason
    assert set(relieve_hot_ps(hot, NO_HISTORY, WIDE, SETTINGS).node_resources) == {"ps-0"}


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


def waiting(workers: int, cpu: float, end: float = NOW):
    """Samples of a job that waits for its data: 12 records a step, 0.05 s for each on its worker, hardly any cpu."""
    return tuple(
        replace(each, step_seconds=0.6 / workers, samples_per_second=20.0 * workers, worker_cpu_used=0.02)
        for each in speeds(workers, cpu, end=end)
    )


@pytest.mark.parametrize("between", [(), waiting(3, 0.7, NOW - 1_000.0), waiting(2, 0.5, NOW - 1_000.0)])
def test_a_fit_that_is_far_off_does_not_shrink_a_job_to_what_nobody_has_measured(between):
    """The formula has no place for such a wait: to it, three workers are hardly faster than one."""
    measured = (*waiting(2, 0.7, NOW - 2_000.0), *between, *waiting(3, 0.5))
    facts = replace(ring(3, cpu=0.5, most=3), speeds=measured, global_batch=12)
    plan = scale_workers(facts, NO_HISTORY, Limits(), SETTINGS)
    assert plan.is_empty, plan.reason
    assert "1 worker x 0.5 cores are fewer workers than were ever measured" in plan.reason
    seen = replace(facts, speeds=(*waiting(1, 0.7, NOW - 3_000.0), *measured))
    assert "than were ever measured" not in scale_workers(seen, NO_HISTORY, Limits(), SETTINGS).reason


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


@pytest.mark.parametrize(
    ("shown", "cores"),
    [
        pytest.param(Canary(tried=4.0, busy=4.0), 16.0, id="four-times-as-many-for-who-uses-all"),
        pytest.param(Canary(tried=4.0, busy=2.1), 2.0, id="as-many-as-they-use"),
        pytest.param(None, 8.0, id="twice-as-many-for-who-uses-most-and-does-not-tell"),
    ],
)
def test_where_workers_are_alike_all_of_them_show_how_many_cores_they_can_use(shown, cores):
    plan = probe_workers(replace(ring(1), speeds=speeds(1, 4.0)), History(canary=shown), WIDE, ALIKE)
    assert plan.node_resources == {}
    assert plan.node_group_resources["worker"].node_resource.cpu == cores


def test_when_all_parameter_servers_are_hot_there_are_more():
    facts = replace(servers(4, 2), nodes=(node("ps-0", used_cpu=3.8), node("ps-1", used_cpu=3.9)))
    plan = relieve_hot_ps(facts, NO_HISTORY, WIDE, SETTINGS)
    assert plan.node_group_resources["ps"].count == 4
    assert plan.reason == "all 2 parameter servers use 96% of their cores: 4 share the load"


def test_a_hot_parameter_server_whose_cores_are_given_gets_others_to_share_its_load():
    hot, given = node("ps-0", used_cpu=3.8), role(2, most=8, cpu_pinned=True)
    facts = servers(4, 2)
    facts = replace(facts, nodes=(hot, node("ps-1", used_cpu=1.0)), roles={**facts.roles, Role.PS: given})
    plan = relieve_hot_ps(facts, NO_HISTORY, WIDE, SETTINGS)
    assert (plan.node_group_resources["ps"].count, plan.node_resources) == (4, {})
    assert plan.reason == "ps-0, the hottest of 2 parameter servers, uses 95% of its cores: 4 share the load"


def test_a_hot_parameter_server_is_not_moved_to_cores_that_no_host_has_room_for():
    facts = servers(4, 1)
    known = {**facts.roles, Role.PS: replace(role(1, most=8), roomy_cpu=4.0)}
    plan = relieve_hot_ps(replace(facts, nodes=(node("ps-0", used_cpu=3.8),), roles=known), NO_HISTORY, WIDE, SETTINGS)
    assert (plan.node_group_resources["ps"].count, plan.node_resources) == (2, {})
    assert plan.reason == "ps-0 uses 95% of its cores: 2 share the load"


def test_parameter_servers_that_have_all_that_the_fewest_may_have_each_become_more():
    facts = servers(4, 2)
    known = {**facts.roles, Role.PS: replace(role(2, most=8), most_memory=16 * GIB)}
    event = OomEvent(node="ps-0", role=Role.PS, at=NOW - 1.0, memory=16 * GIB)
    plan = recover_oom(replace(facts, roles=known, ooms=(event,)), NO_HISTORY, WIDE, SETTINGS)
    group = plan.node_group_resources["ps"]
    assert (group.count, group.node_resource.memory) == (3, 16 * GIB)


def test_memory_that_was_never_used_is_reclaimed():
    plan = trim_idle(ring(4), NO_HISTORY, WIDE, SETTINGS)
    assert plan.node_group_resources["worker"].node_resource.memory == pytest.approx(2 * GIB * 1.15, abs=64)
    assert plan.node_group_resources["worker"].count == 4


def test_memory_that_grows_to_its_limit_gets_more_in_time():
    growing = node("worker-0", used=14 * GIB, slope=3.0)
    plan = avoid_oom(replace(ring(1), nodes=(growing,)), NO_HISTORY, WIDE, SETTINGS)
    assert (plan.node_group_resources["worker"].node_resource.memory or 0) > 20 * GIB
    assert "180 MiB more each minute" in plan.reason


def test_memory_that_grows_but_lasts_until_the_job_ends_is_left_alone():
    growing = replace(ring(1), nodes=(node("worker-0", used=15.3 * GIB, slope=0.1),))
    speed = growing.speeds[-1].samples_per_second
    near, far = (replace(growing, remaining_samples=seconds * speed) for seconds in (1_200.0, 12_000.0))
    assert avoid_oom(near, NO_HISTORY, WIDE, SETTINGS).is_empty
    assert not avoid_oom(far, NO_HISTORY, WIDE, SETTINGS).is_empty


def test_a_few_samples_that_happen_to_rise_are_no_trend():
    held = node("worker-0", used=8 * GIB)
    rising = [7_900.0, 8_020.0, 7_970.0, 8_070.0, 8_040.0, 8_130.0]
    noisy = replace(held, samples=tuple(replace(s, memory=m) for s, m in zip(held.samples[-6:], rising, strict=True)))
    assert needed_memory(replace(ring(1), nodes=(noisy,)), Role.WORKER, SETTINGS) == math.ceil(max(rising) * 1.15)


def test_a_parameter_server_keeps_what_it_needs_for_itself_when_there_are_more_of_them():
    facts = replace(servers(2, 1), nodes=(node("ps-0", used=800.0),))
    assert needed_memory(facts, Role.PS, SETTINGS, count=8) == math.ceil((512 + 288 / 8) * 1.2)
    short = replace(facts, ooms=(OomEvent(node="ps-0", role=Role.PS, at=NOW, memory=1_536, count=1),))
    assert needed_memory(short, Role.PS, SETTINGS, count=8) == math.ceil((512 + 1_024 / 8) * 1.3)


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


def test_the_reasons_have_the_numbers_of_the_plan():
    """What is wanted is more than the limits leave."""
    event = OomEvent(node="worker-0", role=Role.WORKER, at=NOW - 5.0, memory=8 * GIB)
    facts = replace(ring(2), ooms=(event,), roles={Role.WORKER: role(2, memory=8 * GIB, min=2)}, nodes=())
    plan = recover_oom(facts, NO_HISTORY, Limits(memory=24 * GIB), SETTINGS)
    assert plan.node_group_resources["worker"].node_resource.memory == 12 * GIB
    assert plan.reason == f"worker-0 ran out of {8 * GIB} MiB: {12 * GIB} MiB (1.5 times)"
    begun = replace(facts, ooms=(), roles={Role.WORKER: role(0, cpu=32.0, memory=128 * GIB, min=2)})
    plan = cold_start(begun, NO_HISTORY, Limits(), SETTINGS)
    assert "2 worker with 16 cores and 65536 MiB each" in plan.reason


def test_memory_that_the_user_gave_is_raised_when_a_node_ran_out_of_it_and_else_never_changed():
    event = OomEvent(node="worker-0", role=Role.WORKER, at=NOW - 5.0, memory=8 * GIB)
    given = {Role.WORKER: role(2, memory=8 * GIB, memory_pinned=True)}
    facts = replace(ring(2), ooms=(event,), roles=given, nodes=())
    assert (
        recover_oom(facts, NO_HISTORY, WIDE, SETTINGS).node_group_resources["worker"].node_resource.memory == 16 * GIB
    )
    idle = replace(ring(2), roles={Role.WORKER: role(2, memory_pinned=True)})
    assert not trim_idle(replace(idle, roles={Role.WORKER: role(2)}), NO_HISTORY, WIDE, SETTINGS).is_empty
    assert "idle" in trim_idle(idle, NO_HISTORY, WIDE, SETTINGS).reason


def test_even_parameter_servers_at_their_limit_become_more():
    event = OomEvent(node="ps-0", role=Role.PS, at=NOW - 5.0, memory=64 * GIB)
    facts = replace(servers(2, 2), ooms=(event,))
    assert recover_oom(facts, NO_HISTORY, WIDE, SETTINGS).node_group_resources["ps"].count == 3


def test_a_slow_worker_is_replaced_elsewhere():
    nodes = (*(node(f"worker-{n}", own=0.5) for n in range(3)), node("worker-3", own=1.4))
    plan = replace_slow(replace(ring(4), nodes=nodes), NO_HISTORY, WIDE, SETTINGS)
    assert plan.replace_nodes == ("worker-3",)
    assert "2.8 times the usual 0.5 s" in plan.reason


def test_of_two_workers_the_slow_one_is_replaced():
    nodes = (node("worker-0", own=1.4), node("worker-1", own=0.5))
    assert replace_slow(replace(ring(2), nodes=nodes), NO_HISTORY, WIDE, SETTINGS).replace_nodes == ("worker-0",)


def test_where_half_of_the_hosts_are_slower_nobody_is_replaced():
    nodes = tuple(node(f"worker-{n}", own=0.5 if n < 2 else 1.1) for n in range(4))
    assert replace_slow(replace(ring(4), nodes=nodes), NO_HISTORY, WIDE, SETTINGS).is_empty


def test_while_a_worker_becomes_slow_nothing_else_is_concluded():
    others = tuple(node(f"worker-{n}", own=0.5) for n in range(3))
    slow = node("worker-3", own=1.4)
    since = [replace(sample, step_seconds=0.5) for sample in slow.samples[:-2]]
    becoming = replace(ring(4), nodes=(*others, replace(slow, samples=(*since, *slow.samples[-2:]))))
    assert "worker-3 has become slow" in scale_workers(becoming, NO_HISTORY, WIDE, SETTINGS).reason
    always = replace(ring(4), nodes=(*others, slow))
    assert "has become slow" not in scale_workers(always, NO_HISTORY, WIDE, SETTINGS).reason


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


def test_the_port_gives_the_best_size_by_the_model_whatever_the_symptoms_are():
    others = tuple(node(f"worker-{n}", own=0.5) for n in range(3))
    slow = node("worker-3", own=1.4)
    since = [replace(sample, step_seconds=0.5) for sample in slow.samples[:-2]]
    becoming = replace(ring(4), nodes=(*others, replace(slow, samples=(*since, *slow.samples[-2:]))))
    question, optimizer = Question(facts=becoming, limits=WIDE), LocalOptimizer()
    assert "has become slow" in scale_workers(becoming, NO_HISTORY, WIDE, SETTINGS).reason
    plan = optimizer.generate_resource_plan_with_optimizer(question)
    assert (plan.algorithm, plan.node_resources, plan.replace_nodes) == ("scale_workers", {}, ())
    assert plan.node_group_resources == scale_workers(ring(4), NO_HISTORY, WIDE, SETTINGS).node_group_resources
    assert plan.predicted_speed is not None
    assert plan.predicted_speed > becoming.speeds[-1].samples_per_second
    assert optimizer.generate_resource_plan_with_optimizer(question) == plan, "asking changes nothing"
    tired = replace(question, history=History(distrusted=frozenset({"scale_workers"}), cooling=frozenset(Kind)))
    assert optimizer.generate_resource_plan_with_optimizer(tired) == plan, "who asks for it has its reasons"

    served = optimizer.generate_resource_plan_with_optimizer(replace(question, facts=servers(4, 1, most=32)))
    assert {which: group.count > 0 for which, group in served.node_group_resources.items()} == {
        "worker": True,
        "ps": True,
    }
    new = optimizer.generate_resource_plan_with_optimizer(replace(question, facts=replace(becoming, speeds=())))
    assert new.is_empty
    assert "fewer than 5 good samples of the job's speed" in new.reason


# How far the fit can be trusted ------------------------------------------------------------------------------------


def test_a_plan_by_the_fit_says_how_far_that_can_be_trusted():
    plan = scale_workers(ring(4), NO_HISTORY, WIDE, SETTINGS)
    assert plan.confidence == pytest.approx(2 / 3, abs=0.05), "two sizes, and hardly an error"
    assert f"confidence {plan.confidence:.2f}: fitted to 20 samples of 2 sizes with" in plan.reason
    assert "not to be trusted" not in plan.reason
    settled = replace(ring(4), roles={Role.WORKER: role(4, most=4, count_pinned=True, cpu_pinned=True)})
    stays = scale_workers(settled, NO_HISTORY, WIDE, SETTINGS)
    assert (stays.is_empty, stays.confidence) == (True, plan.confidence)
    assert "are within 3% of the best speed per cost" in stays.reason
    assert f"confidence {plan.confidence:.2f} by 2 sizes" in stays.reason
    cooling = History(cooling=frozenset({Kind.MEMORY}))
    asked = LocalOptimizer().generate_opt_plan(Stage.RUNNING, Question(facts=settled, limits=WIDE, history=cooling))
    assert (asked.is_empty, asked.confidence) == (True, plan.confidence)


@pytest.mark.parametrize("decide", [scale_workers, size_ps, fit_throughput])
@pytest.mark.parametrize(("measured", "is_doubted"), [(100.0, False), (79.0, True), (140.0, True)])
def test_a_fit_whose_last_prediction_was_far_off_is_said_not_to_be_trusted_alone(decide, measured, is_doubted):
    last = Outcome(algorithm="scale_workers", at=NOW - 900.0, before=50.0, measured=measured, predicted=100.0)
    plan = decide(servers(4, 1, most=32), History(outcomes=(last,)), WIDE, SETTINGS)
    told = f"the last prediction was {last.prediction_error:+.0%} off: the fit is not to be trusted alone"
    assert (told in plan.reason) == is_doubted
    bolder = replace(SETTINGS, error_bound=0.5)
    assert "not to be trusted" not in decide(servers(4, 1), History(outcomes=(last,)), WIDE, bolder).reason


def test_a_fit_that_is_far_from_what_was_measured_is_said_not_to_be_trusted_alone():
    odd = (
        *speeds(1, 4.0, end=NOW - 2_000.0),
        *(replace(s, step_seconds=s.step_seconds * 9) for s in speeds(2, 4.0, end=NOW - 1_000.0)),
        *speeds(4, 4.0),
    )
    plan = fit_throughput(replace(ring(4), speeds=odd), NO_HISTORY, WIDE, SETTINGS)
    assert plan.confidence == 0.0
    assert "off from what was measured: the fit is not to be trusted alone" in plan.reason
