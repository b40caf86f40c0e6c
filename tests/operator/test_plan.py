"""What the operator decides about one job, look by look."""

import itertools
from dataclasses import replace
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from tests.operator.builders import (
    KEY,
    NOW,
    SETTINGS,
    a_job,
    a_move,
    a_plan,
    a_plan_for,
    a_pod,
    a_role,
    an_auto_plan,
    an_order,
)
from tests.operator.world import World

from shoal.api.elasticjob import ElasticJobStatus, JobCondition, Role
from shoal.api.quantities import cores
from shoal.api.reasons import Reason
from shoal.api.resources import Resource
from shoal.core.nodes import Role as NodeRole
from shoal.core.pods import PodPhase, Trouble
from shoal.operator.allowances import Allowance
from shoal.operator.memory import Accepted, MemberState
from shoal.operator.plan import plan_job
from shoal.operator.snapshot import JobSeen, JobStatus, PlanKind, PlanSeen, RoleAsk, Training
from shoal.operator.writing import write_job, write_plan
from shoal.platforms.kubernetes.scaler import given_by, pinned_by
from shoal.scheduler.actuation import Standing

RUNS = Training(phase="running")
W = Role.WORKER


def condition(world: World, kind: str) -> tuple[str, str]:
    found = world.job.status.conditions[kind]
    return found.status, found.reason


def message(world: World, kind: str = "Degraded") -> str:
    return world.job.status.conditions[kind].message


def a_world(count: int | None = 3, *, answers: bool = False, **spec: object) -> World:
    """A job with so many running workers. `answers`: its master has reported."""
    world = World(a_job(worker=a_role(replicas=count, max=16) if count is not None else a_role(max=16), **spec))
    if answers:
        world.job = replace(world.job, training=RUNS)
    world.settle()
    return world


def rescale(world: World, count: int) -> None:
    spec = world.job.spec
    assert spec is not None
    roles = {**spec.roles, W: replace(spec.worker, replicas=count)}
    world.job = replace(world.job, spec=replace(spec, roles=roles), generation=world.job.generation + 1)


def suspend(world: World, yes: bool) -> None:
    assert world.job.spec is not None
    world.job = replace(world.job, spec=replace(world.job.spec, suspend=yes), generation=world.job.generation + 1)


# The beginning -------------------------------------------------------------------------------------------------------


def test_a_job_that_nobody_sized_gets_a_master_and_no_members() -> None:
    world = a_world(None)
    assert sorted(world.pods) == ["mnist-master-1"]
    assert condition(world, "Admitted") == ("False", "WaitingForPlan")


def test_all_conditions_are_set_from_the_first_visit_on() -> None:
    world = World(a_job())
    world.step(actions=1)
    assert set(world.job.status.conditions) == set(JobCondition)


def test_a_count_in_the_spec_makes_so_many_members() -> None:
    world = a_world(3)
    assert world.names(W) == ["mnist-worker-0", "mnist-worker-1", "mnist-worker-2"]
    assert condition(world, "Ready") == ("True", "AllMembersUp")
    assert condition(world, "Resizing") == ("False", "Idle")


def test_members_are_recorded_before_their_pods_are_made() -> None:
    world = World(a_job(worker=a_role(replicas=2)))
    world.step(actions=1)
    assert [member.name for member in world.job.memory.members] == ["mnist-worker-0", "mnist-worker-1"]
    assert not world.pods


def test_a_settled_job_asks_for_nothing() -> None:
    world = a_world(3, answers=True)
    plan = world.step()
    assert plan.status == world.job.status
    assert not (plan.create)
    assert not (plan.delete)
    assert not (plan.ensure)
    assert not (plan.plan_statuses)
    assert not (plan.notices)
    assert plan.recheck_at is None


def test_fixed_objects_are_made_before_the_first_master_and_seen_to_again_for_each_next_one() -> None:
    world = World(a_job())
    kinds = [each["kind"] for each in world.step().ensure]
    assert kinds.count("Secret") == 2
    assert {"ScalePlan", "Role", "RoleBinding", "ServiceAccount", "Service", "NetworkPolicy"} < set(kinds)
    world.settle()
    world.end("mnist-master-1", 1)
    assert [each["kind"] for each in world.step().ensure] == kinds


def test_a_new_operator_sees_to_the_fixed_objects_once_and_nobody_waits_for_it() -> None:
    world = a_world(2)
    world.prepared = None
    world.delete("mnist-worker-0")
    plan = world.step()
    assert not plan.ensure
    assert {"Secret", "Role", "NetworkPolicy"} < {each["kind"] for each in plan.check}
    assert not world.step().check


@pytest.mark.parametrize("deleting", [True, False], ids=["being-deleted", "managed-by-another"])
def test_a_job_that_is_not_ours_to_run_is_left_alone(deleting: bool) -> None:
    job = a_job(worker=a_role(replicas=2), managedBy=None if deleting else "kueue")
    plan = a_plan_for(replace(job, deleting=deleting))
    assert plan.status == JobStatus()
    assert not (plan.create)
    assert not (plan.ensure)
    assert not (plan.delete)


def test_a_spec_that_cannot_be_read_is_said_and_nothing_is_made() -> None:
    job = JobSeen(key=KEY, uid="u", generation=4, created_at=NOW, spec=None, invalid="spec.worker.template: required")
    plan = a_plan_for(job)
    assert plan.status.conditions["Degraded"].message.startswith("spec.worker.template: required; ")
    assert plan.status.observed_generation == 4
    assert not (plan.create)
    assert not (plan.ensure)


# Asks ----------------------------------------------------------------------------------------------------------------


def test_the_last_changed_ask_wins() -> None:
    world = a_world(2)
    world.put(a_plan("a", worker=4))
    world.settle()
    assert len(world.live(W)) == 4
    world.passes(1)
    rescale(world, 1)
    world.settle()
    assert world.names(W) == ["mnist-worker-0"]
    world.passes(1)
    world.put(a_plan("a", worker=3, generation=2))
    world.settle()
    assert len(world.live(W)) == 3


def test_a_plan_that_is_deleted_gives_way_to_the_ask_before_it() -> None:
    world = a_world(2)
    world.passes(1)
    world.put(a_plan("a", worker=4))
    world.settle()
    world.plans.clear()
    world.settle()
    assert len(world.live(W)) == 2


def test_when_the_last_ask_is_taken_back_the_members_stay() -> None:
    world = a_world(None)
    world.put(a_plan("a", worker=3))
    world.settle()
    world.plans.clear()
    world.settle()
    assert len(world.live(W)) == 3


def test_a_users_ask_goes_before_the_masters_and_both_before_nothing() -> None:
    world = a_world(None)
    world.put(an_auto_plan(worker=4))
    world.settle()
    assert len(world.live(W)) == 4
    world.put(a_plan("mine", worker=2))
    world.settle()
    assert len(world.live(W)) == 2
    del world.plans["ScalePlan/mine"]
    world.settle()
    assert len(world.live(W)) == 4


def test_a_change_of_mode_voids_the_asks_before_it() -> None:
    world = a_world(None)
    world.put(a_plan("mine", worker=2))
    world.put(an_auto_plan(worker=4))
    world.settle()
    assert len(world.live(W)) == 2
    world.passes(1)
    assert world.job.spec is not None
    world.job = replace(world.job, spec=replace(world.job.spec, optimize_mode="cluster"))
    world.settle()
    assert len(world.live(W)) == 4


@pytest.mark.parametrize("plan", [a_plan("a", worker=9), an_auto_plan(worker=9)], ids=["a-users", "the-masters"])
def test_more_than_the_most_is_trimmed_and_said_on_the_plan(plan: PlanSeen) -> None:
    world = World(a_job(worker=a_role(max=3)))
    world.put(plan)
    world.settle()
    assert len(world.live(W)) == 3
    trim = world.plans[plan.ask].status.trims[0]
    assert (trim.what, trim.asked, trim.got) == ("worker.replicas", "9", "3")
    assert "at most 3" in trim.reason


@pytest.mark.parametrize(("asked", "got"), [(5, 4), (4, 4), (1, 2), (9, 8)])
def test_workers_come_in_whole_units(asked: int, got: int) -> None:
    world = World(a_job(worker=a_role(max=16), nodeUnit=2))
    world.put(a_plan("a", worker=asked))
    world.settle()
    assert len(world.live(W)) == got
    if asked != got:
        assert "units of 2" in world.plans["ScalePlan/a"].status.trims[0].reason


def test_a_role_without_template_is_trimmed_and_the_rest_is_done() -> None:
    world = World(a_job())
    world.put(a_plan("a", worker=2, ps=2))
    world.settle()
    assert not world.live(Role.PS)
    assert len(world.live(W)) == 2
    assert "no template for ps" in world.plans["ScalePlan/a"].status.trims[0].reason


def test_an_evaluator_without_template_runs_the_workers() -> None:
    world = World(a_job())
    world.put(a_plan("a", worker=1, evaluator=1))
    world.settle()
    assert world.names(Role.EVALUATOR) == ["mnist-evaluator-0"]


def test_a_plan_that_contradicts_itself_is_refused_with_a_reason() -> None:
    world = World(a_job())
    world.put(a_plan("a", worker=2, refused="ownerJob says x, the label y"))
    world.settle()
    assert not world.live(W)
    accepted = world.plans["ScalePlan/a"].status.conditions["Accepted"]
    assert (accepted.status, accepted.reason) == ("False", "Contradiction")


def test_a_superseded_plan_says_so() -> None:
    world = World(a_job())
    world.put(a_plan("a", worker=2))
    world.settle()
    world.passes(1)
    world.put(a_plan("b", worker=3))
    world.settle()
    assert world.plans["ScalePlan/a"].status.conditions["Admitted"].reason == "Superseded"
    assert world.plans["ScalePlan/b"].status.conditions["Completed"].status == "True"


def test_a_users_remove_pods_removes_those_once_and_lowers_the_count() -> None:
    world = a_world(4)
    world.passes(1)
    world.put(a_plan("a", remove=("mnist-worker-1",)))
    world.settle()
    assert world.names(W) == ["mnist-worker-0", "mnist-worker-2", "mnist-worker-3"]
    world.settle()
    assert len(world.live(W)) == 3


def test_a_users_create_pods_adds_one_with_its_resource() -> None:
    world = a_world(1)
    world.passes(1)
    world.put(a_plan("a", create=(an_order(W, 5, resource=Resource(memory=2048)),)))
    world.settle()
    assert world.names(W) == ["mnist-worker-0", "mnist-worker-5"]
    assert next(m for m in world.job.memory.members if m.id == 5).resource.memory == 2048


def test_count_and_resource_are_two_asks() -> None:
    world = a_world(1)
    world.put(a_plan("sized", roles={W: RoleAsk(resource=Resource(cpu=2.0, memory=512))}))
    world.settle()
    assert len(world.live(W)) == 1
    rescale(world, 2)
    made = world.step().create
    requests = made[0]["spec"]["containers"][0]["resources"]["requests"]
    assert requests == {"cpu": "2", "memory": "512Mi"}


def test_the_status_says_which_resources_are_pinned_also_where_an_older_operator_stamped_the_ask() -> None:
    world = a_world(1)
    given = {W: Resource(cpu=2.0, memory=512)}
    world.put(a_plan("sized", roles={W: RoleAsk(resource=given[W]), Role.CHIEF: RoleAsk(replicas=0)}))
    world.settle()

    def stamp() -> Accepted:
        return next(each for each in world.job.memory.accepted if each.ask == "ScalePlan/sized")

    first = stamp()
    assert (first.resources, first.counts) == (given, {Role.CHIEF: 0})
    written = write_job(world.job, world.job.status)["acceptedAt"]
    assert next(each["resources"] for each in written if each["ask"] == "ScalePlan/sized") == [
        {"role": "worker", "resource": {"cpu": "2", "memory": "512Mi"}}
    ]
    older = tuple(replace(each, resources={}) for each in world.job.memory.accepted)
    status = replace(world.job.status, memory=replace(world.job.memory, accepted=older))
    world.job = replace(world.job, status=status)
    world.settle()
    assert stamp() == first, "it is as old as it was"


@pytest.mark.parametrize(
    ("mode", "given", "gets"),
    [("single-job", 1024, 2048), ("single-job", 4096, 4096), ("manual", 1024, 1024), ("manual", None, 2048)],
)
def test_more_memory_than_a_plan_gives_is_the_masters_word_where_it_sizes_the_job(
    mode: str, given: int | None, gets: int
) -> None:
    world = a_world(1, optimizeMode=mode)
    world.can_resize = True
    world.put(an_auto_plan(roles={W: RoleAsk(replicas=1, resource=Resource(cpu=4.0, memory=2048))}))
    world.put(a_plan("sized", roles={W: RoleAsk(resource=Resource(cpu=2.0, memory=given))}))
    world.settle()
    has = world.pods[f"{KEY.name}-worker-0"].resource
    assert (has.cpu, has.memory) == (2.0, gets)
    told = world.plans["ScalePlan/sized"].status.conditions["Admitted"].message
    why = "each worker gets 2048Mi of memory: one ran out of what was given"
    assert told == (why if given is not None and gets > given else "")


@pytest.mark.parametrize("names", [("a", "b"), ("b", "a")])
@pytest.mark.parametrize("kinds", [(PlanKind.SCALE_PLAN, PlanKind.SCALE_PLAN), tuple(PlanKind), tuple(PlanKind)[::-1]])
def test_of_plans_that_are_first_seen_in_one_look_the_master_counts_the_one_that_the_operator_follows(
    names: tuple[str, str], kinds: tuple[PlanKind, PlanKind]
) -> None:
    world = a_world(1)
    for name, kind, cpu in zip(names, kinds, (2.0, 3.0), strict=True):
        ask = RoleAsk(replicas=int(cpu), resource=Resource(cpu=cpu))
        world.put(a_plan(name, kind=kind, roles={W: ask}))
    world.settle()
    status = msgspec.convert(write_job(world.job, world.job.status), ElasticJobStatus)
    stamps = status.accepted_at or []
    assert len({each.at for each in stamps}) == len(stamps)
    followed = world.pods[f"{KEY.name}-worker-1"].resource.cpu
    assert given_by(stamps)[NodeRole.WORKER].resource.cpu == followed
    who = next(plan for plan in world.plans.values() if plan.roles[W].resource.cpu == followed)
    assert pinned_by(stamps) == {NodeRole.WORKER: who.title}
    assert len(world.live(W)) == followed


# Shrinking -----------------------------------------------------------------------------------------------------------


def test_without_a_master_that_answers_the_newest_go_at_once() -> None:
    world = a_world(3)
    rescale(world, 1)
    world.settle()
    assert world.names(W) == ["mnist-worker-0"]


def test_a_master_that_answers_drains_and_says_who_has_gone() -> None:
    world = a_world(3, answers=True)
    rescale(world, 2)
    world.settle()
    assert len(world.live(W)) == 3
    assert world.job.memory.grant.counts == {W: 2}
    assert condition(world, "Resizing") == ("True", "ScalingDown")
    world.put(an_auto_plan(remove=("mnist-worker-0",)))
    world.settle()
    assert world.names(W) == ["mnist-worker-1", "mnist-worker-2"]


def test_after_drain_by_the_operator_deletes_by_itself() -> None:
    world = a_world(3, answers=True)
    rescale(world, 2)
    plan = world.step()
    assert plan.recheck_at == plan.status.memory.grant.drain_by
    world.passes(121)
    world.settle()
    assert world.names(W) == ["mnist-worker-0", "mnist-worker-1"]


def test_growing_back_while_draining_deletes_nobody() -> None:
    world = a_world(3, answers=True)
    rescale(world, 2)
    world.step()
    rescale(world, 3)
    world.settle()
    world.passes(500)
    world.settle()
    assert len(world.live(W)) == 3
    assert world.job.memory.grant.drain_by is None


def test_ids_are_never_used_again() -> None:
    world = a_world(3)
    rescale(world, 1)
    world.settle()
    rescale(world, 3)
    world.settle()
    assert world.names(W) == ["mnist-worker-0", "mnist-worker-3", "mnist-worker-4"]
    assert sorted(member.rank for member in world.job.memory.members) == [0, 1, 2]


# Losses --------------------------------------------------------------------------------------------------------------


def test_a_failed_member_waits_for_the_masters_word() -> None:
    world = a_world(3, answers=True)
    world.end("mnist-worker-1", 1)
    world.settle()
    world.passes(3600)
    world.settle()
    assert world.names(W) == ["mnist-worker-0", "mnist-worker-2"]
    assert condition(world, "Degraded") == ("True", "MemberFailed")
    order = an_order(W, 3, replaces=1, resource=Resource(memory=4096), avoid_hosts=("bad",))
    world.put(an_auto_plan(create=(order,)))
    manifest = world.step().create[0]
    world.settle()
    assert world.names(W) == ["mnist-worker-0", "mnist-worker-2", "mnist-worker-3"]
    new = next(member for member in world.job.memory.members if member.id == 3)
    assert (new.rank, new.resource.memory, new.replaces) == (1, 4096, "mnist-worker-1")
    (wish,) = manifest["spec"]["affinity"]["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert wish["preference"]["matchFields"] == [{"key": "metadata.name", "operator": "NotIn", "values": ["bad"]}]


def test_the_masters_order_is_carried_out_once() -> None:
    world = a_world(2, answers=True)
    world.end("mnist-worker-1", 1)
    world.put(an_auto_plan(create=(an_order(W, 2, replaces=1),)))
    world.settle()
    world.end("mnist-worker-2", 1)
    world.settle()
    assert world.names(W) == ["mnist-worker-0"]
    assert world.seats(W) == 2


def test_a_deleted_pod_is_a_lost_member() -> None:
    world = a_world(2, answers=True)
    world.delete("mnist-worker-0")
    world.vanish()
    world.settle()
    assert world.has_state("mnist-worker-0") is MemberState.FAILED
    world.put(an_auto_plan())
    world.settle()
    told = {pod.name: pod.phase for pod in world.plans["ScalePlan/mnist-auto"].status.pods}
    assert told == {"mnist-worker-0": "Deleted", "mnist-worker-1": "Running"}


def test_a_pod_that_came_and_went_unseen_is_a_lost_member_and_not_made_again() -> None:
    world = World(a_job(worker=a_role(replicas=1)))
    world.step()
    world.pods.clear()
    world.passes(2)
    world.step()
    assert world.has_state("mnist-worker-0") is MemberState.FAILED
    assert world.job.memory.master.term == 2


def test_after_silence_the_operator_replaces_by_itself() -> None:
    world = a_world(2)
    world.passes(100)
    world.end("mnist-worker-1", 137)
    plan = world.step()
    assert plan.recheck_at is not None
    assert not plan.create
    world.passes(61)
    world.settle()
    assert world.names(W) == ["mnist-worker-0", "mnist-worker-2"]
    assert world.job.memory.of(W)[-1].rank == 1


def test_alone_the_operator_stops_after_the_allowed_restarts() -> None:
    world = World(a_job(worker=a_role(replicas=1, restartCount=1)))
    world.settle()
    for number in range(4):
        name = f"mnist-worker-{number}"
        if name in world.pods:
            world.end(name, 1)
        world.settle()
        world.passes(3600)
        world.settle()
    assert [name for name in world.born if "worker" in name] == ["mnist-worker-0", "mnist-worker-1"]


@pytest.mark.parametrize(("limits", "got"), [({}, 2048), ({"memory": "1200Mi"}, 1200), ({"memory": "1Gi"}, None)])
def test_alone_the_operator_gives_more_memory_to_one_that_ran_out_of_it(
    limits: dict[str, str], got: int | None
) -> None:
    evaluator = a_role(replicas=1, resource={"memory": "1Gi"})
    world = World(a_job(evaluator=evaluator, resourceLimits=limits or None))
    world.settle()
    world.end("mnist-evaluator-0", 137, oom_killed=True)
    plan = world.step()
    (member,) = world.job.memory.of(Role.EVALUATOR)
    assert member.name == "mnist-evaluator-1"
    assert member.resource.memory == got
    (made,) = plan.create
    assert made["spec"]["containers"][0]["resources"]["requests"]["memory"] == f"{got or 1024}Mi"
    assert (f"gets {got} MiB" in (plan.status.decision or "")) is (got is not None)


def test_an_order_for_a_taken_name_is_refused_on_the_auto_plan() -> None:
    world = a_world(3, answers=True)
    world.end("mnist-worker-1", 1)
    world.put(an_auto_plan(create=(an_order(W, 2, replaces=1),)))
    world.settle()
    trim = world.plans["ScalePlan/mnist-auto"].status.trims[0]
    assert trim.what == "createPods/mnist-worker-2"
    assert "another member" in trim.reason


def test_an_order_above_the_grant_is_refused() -> None:
    world = a_world(2, answers=True)
    world.put(an_auto_plan(create=(an_order(W, 7),)))
    world.settle()
    assert len(world.live(W)) == 2
    assert "granted" in world.plans["ScalePlan/mnist-auto"].status.trims[0].reason


def test_the_next_id_is_above_every_id_the_master_has_named() -> None:
    world = a_world(2, answers=True)
    world.put(an_auto_plan(create=(an_order(W, 7),)))
    world.settle()
    rescale(world, 3)
    world.settle()
    assert world.names(W)[-1] == "mnist-worker-8"


def test_a_status_that_was_lost_is_made_again_from_the_pods() -> None:
    world = a_world(3)
    world.job = replace(world.job, status=JobStatus())
    born = list(world.born)
    world.settle()
    assert [name for name in world.born[len(born) :] if "worker" in name] == []
    assert world.job.memory.next_id[W] == 3


def test_a_pod_of_a_member_given_up_is_deleted_when_it_shows_up() -> None:
    world = a_world(2)
    rescale(world, 1)
    world.settle()
    world.pods["mnist-worker-1"] = a_pod(W, 1)
    world.settle()
    assert world.names(W) == ["mnist-worker-0"]


# Moves ---------------------------------------------------------------------------------------------------------------


def test_a_replacement_comes_first_and_the_old_one_goes_after() -> None:
    world = World(a_job(parameterServer=a_role()))
    plan = a_plan(
        "r",
        kind=PlanKind.JOB_RESOURCE,
        roles={Role.PS: RoleAsk(replicas=2, resource=Resource(cpu=4.0)), W: RoleAsk(replicas=1)},
        migrate=(a_move(Role.PS, 0, cpu=8.0), a_move(Role.PS, 1, cpu=16.0)),
    )
    world.put(plan)
    world.settle()
    assert world.names(Role.PS) == ["mnist-ps-2", "mnist-ps-3"]
    for old, new in (("mnist-ps-0", "mnist-ps-2"), ("mnist-ps-1", "mnist-ps-3")):
        assert world.log.index(f"run {new}") < world.log.index(f"delete {old}")
    resources = {member.name: member.resource.cpu for member in world.job.memory.of(Role.PS)}
    assert resources == {"mnist-ps-2": 8.0, "mnist-ps-3": 16.0}
    assert world.plans["JobResource/r"].status.conditions["Completed"].status == "True"
    ranks = sorted(member.rank for member in world.job.memory.of(Role.PS))
    assert ranks == [0, 1]


def test_the_grant_is_one_higher_while_a_replacement_starts() -> None:
    world = a_world(2)
    world.put(a_plan("m", migrate=(a_move(W, 0, memory=2048),)))
    world.step()
    assert world.job.memory.grant.counts == {W: 3}
    assert condition(world, "Resizing") == ("True", "Migrating")
    world.run_all()
    world.step()
    assert world.job.memory.grant.counts == {W: 2}
    assert world.job.memory.grant.victims == ("mnist-worker-0",)


@pytest.mark.parametrize("master", ["silent", "answers"])
@pytest.mark.parametrize("actions", range(1, 8))
def test_a_move_is_not_paid_for_with_the_seat_of_a_member_that_is_not_there_yet(master: str, actions: int) -> None:
    """The replacement runs before the Pod of one that was asked for with it could be made: the old member goes."""
    world = a_world(2, answers=master == "answers")
    world.put(a_plan("p", worker=3, migrate=(a_move(W, 1, memory=2048),)))
    world.step(actions=actions)
    world.run_all()
    for _ in range(20):
        made = world.step().create
        assert not made or len(world.live(W)) <= world.job.memory.grant.counts[W]
        world.run_all()
        world.vanish()
        world.passes(60)
    assert world.names(W) == ["mnist-worker-0", "mnist-worker-2", "mnist-worker-3"]
    assert sorted(member.rank for member in world.job.memory.of(W)) == [0, 1, 2]
    assert world.plans["ScalePlan/p"].status.conditions["Completed"].status == "True"


@pytest.mark.parametrize("master", ["silent", "answers"])
def test_a_move_goes_on_when_more_are_asked_for_while_the_old_member_drains(master: str) -> None:
    """As many would be granted as there are, the old member among them: it goes first, then somebody else comes."""
    world = a_world(2, answers=True)
    world.put(a_plan("m", migrate=(a_move(W, 1, memory=2048),)))
    world.step()
    world.run_all()
    world.step()
    assert world.job.memory.grant.victims == ("mnist-worker-1",)
    if master == "silent":
        world.end("mnist-master-1")
    world.put(a_plan("p", worker=3))
    world.step()
    assert world.job.memory.grant.counts == {W: 2}, "it grows when the old member is gone"
    assert world.job.memory.grant.drain_by is not None, "nobody is asked to go"
    assert len(world.names(W)) <= 3
    world.settle()
    world.passes(world.settings.times.drain.total_seconds())
    world.settle()
    assert world.names(W) == ["mnist-worker-0", "mnist-worker-2", "mnist-worker-3"]
    assert sorted(member.rank for member in world.job.memory.of(W)) == [0, 1, 2]
    for name in ("m", "p"):
        assert world.plans[f"ScalePlan/{name}"].status.conditions["Completed"].status == "True"
    assert world.job.memory.grant.drain_by is None


def test_a_move_is_not_paid_for_with_the_seat_of_a_member_that_has_failed() -> None:
    world = a_world(2)
    world.put(a_plan("m", migrate=(a_move(W, 1, memory=2048),)))
    world.step()
    world.end("mnist-worker-0", 137)
    world.run("mnist-worker-2")
    world.passes(61)
    world.settle()
    world.passes(61)
    world.settle()
    assert sorted(member.rank for member in world.job.memory.of(W)) == [0, 1]
    assert world.names(W) == ["mnist-worker-2", "mnist-worker-3"]


def test_a_replacement_that_fails_leaves_the_old_one_in_place() -> None:
    world = a_world(2)
    world.put(a_plan("m", migrate=(a_move(W, 0, memory=2048),)))
    world.step()
    world.end("mnist-worker-2", 1)
    world.settle()
    assert world.names(W) == ["mnist-worker-0", "mnist-worker-1"]
    assert world.plans["ScalePlan/m"].status.conditions["Completed"].reason == "MigrationFailed"


def test_a_replacement_that_does_not_run_in_time_is_given_up_and_the_old_one_stays() -> None:
    world = a_world(2)
    world.put(a_plan("m", migrate=(a_move(W, 0, memory=2048),)))
    plan = world.step()
    for _ in range(3):
        plan = world.step()
    assert plan.recheck_at == world.now + world.settings.times.pending
    world.passes(world.settings.times.pending.total_seconds() - 1)
    world.settle(runs=False)
    assert "mnist-worker-2" in world.names(W)
    world.passes(1)
    world.settle(runs=False)
    assert world.names(W) == ["mnist-worker-0", "mnist-worker-1"]
    assert world.job.memory.grant.counts == {W: 2}
    said = world.plans["ScalePlan/m"].status.conditions["Completed"]
    assert said.reason == "MigrationFailed"
    assert said.message.startswith("mnist-worker-0: mnist-worker-2 did not run within 900 s; ")


@pytest.mark.parametrize("how", ["deleted", "taken-back", "changed"])
def test_a_replacement_that_no_plan_asks_for_any_more_is_given_up_before_it_runs(how: str) -> None:
    world = a_world(2)
    move = a_move(W, 0, memory=2048)
    world.put(a_plan("m", migrate=(move,)))
    world.settle(runs=False)
    assert "mnist-worker-2" in world.names(W)
    if how == "deleted":
        del world.plans["ScalePlan/m"]
    else:
        world.put(a_plan("m", generation=2, migrate=(move,) if how == "changed" else (a_move(W, 9),)))
    world.settle(runs=False)
    more = ["mnist-worker-2"] if how == "changed" else []
    assert world.names(W) == ["mnist-worker-0", "mnist-worker-1", *more]


def test_a_move_is_done_once_per_generation() -> None:
    world = a_world(1)
    world.put(a_plan("m", migrate=(a_move(W, 0, memory=2048),)))
    world.settle()
    assert world.names(W) == ["mnist-worker-1"]
    world.put(a_plan("m", generation=2, migrate=(a_move(W, 0, memory=2048),)))
    world.settle()
    assert world.names(W) == ["mnist-worker-1"]
    assert "no member any more" in world.plans["ScalePlan/m"].status.done[0].outcome


def test_a_replacement_keeps_its_resource_through_relaunches() -> None:
    world = a_world(1)
    world.put(a_plan("m", migrate=(a_move(W, 0, memory=2048),)))
    world.settle()
    world.passes(100)
    world.end("mnist-worker-1", 137)
    world.step()
    world.passes(61)
    world.settle()
    assert [(m.id, m.resource.memory) for m in world.job.memory.members] == [(2, 2048)]


# Suspending and ending -----------------------------------------------------------------------------------------------


def test_a_suspended_job_has_no_pods_and_comes_back_with_new_ones() -> None:
    world = a_world(2)
    suspend(world, True)
    world.settle()
    assert not world.pods
    assert condition(world, "Ready") == ("False", "Suspended")
    suspend(world, False)
    world.settle()
    assert sorted(world.pods) == ["mnist-master-2", "mnist-worker-2", "mnist-worker-3"]


def test_the_master_goes_last_when_a_job_is_suspended() -> None:
    world = a_world(2, answers=True)
    suspend(world, True)
    world.settle()
    assert "mnist-master-1" in world.pods
    world.put(an_auto_plan(remove=("mnist-worker-0", "mnist-worker-1")))
    world.settle()
    assert not world.pods
    assert world.log[-1] == "delete mnist-master-1"


@pytest.mark.parametrize(
    ("phase", "status", "reason"),
    [
        ("succeeded", "True", "Completed"),
        ("failed", "False", "TrainingFailed"),
        ("stopped", "False", "Stopped"),
    ],
)
def test_the_master_says_how_it_ended(phase: str, status: str, reason: str) -> None:
    world = a_world(2, answers=True)
    world.job = replace(world.job, training=Training(phase=phase, reason="because"))
    world.settle()
    assert condition(world, "Succeeded") == (status, reason)
    assert message(world, "Succeeded") == "because"


def test_a_finished_job_creates_nothing_whatever_is_asked() -> None:
    world = a_world(2, answers=True)
    world.job = replace(world.job, training=Training(phase="succeeded"))
    world.settle()
    born = list(world.born)
    rescale(world, 8)
    world.put(a_plan("late", worker=8))
    world.settle()
    world.passes(3600)
    world.settle()
    assert world.born == born
    assert world.plans["ScalePlan/late"].status.conditions["Accepted"].reason == "JobFinished"


def test_pods_that_ended_stay_and_what_still_runs_goes_the_master_last() -> None:
    world = a_world(2, answers=True)
    world.end("mnist-worker-0")
    world.job = replace(world.job, training=Training(phase="succeeded"))
    world.settle()
    assert not [line for line in world.log if line.startswith("delete")]
    world.passes(31)
    world.settle()
    assert sorted(world.pods) == ["mnist-worker-0"]
    assert [line for line in world.log if line.startswith("delete")] == [
        "delete mnist-worker-1",
        "delete mnist-master-1",
    ]


def test_a_job_is_deleted_after_its_ttl() -> None:
    world = a_world(1, answers=True, ttlSecondsAfterFinished=100)
    world.job = replace(world.job, training=Training(phase="succeeded"))
    world.settle()
    assert not world.is_deleted
    assert world.step().recheck_at is not None
    world.passes(101)
    assert world.step().delete_job


def test_a_job_that_runs_for_too_long_fails() -> None:
    world = a_world(1, activeDeadlineSeconds=600)
    assert world.step().recheck_at is not None
    world.passes(601)
    world.settle()
    assert condition(world, "Succeeded") == ("False", "DeadlineExceeded")
    assert not world.pods


def test_all_workers_ended_well_and_no_master_answers() -> None:
    world = a_world(2)
    for name in world.names(W):
        world.end(name)
    world.settle()
    assert condition(world, "Succeeded")[0] == "Unknown"
    world.passes(61)
    world.settle()
    assert condition(world, "Succeeded") == ("True", "Completed")


def test_a_parameter_server_out_of_restarts_fails_the_job() -> None:
    world = World(a_job(parameterServer=a_role(restartCount=0, replicas=1), worker=a_role(replicas=1)))
    world.settle()
    world.end("mnist-ps-0", 1)
    world.settle()
    assert condition(world, "Succeeded") == ("False", "MemberFailed")


# The master ----------------------------------------------------------------------------------------------------------


def test_a_master_that_was_ready_is_followed_at_once() -> None:
    world = a_world(1, answers=True)
    world.end("mnist-master-1", 137)
    world.step()
    assert "mnist-master-2" in world.pods
    assert (world.job.memory.master.term, world.job.memory.master.failures) == (2, 0)


def test_a_master_that_never_gets_ready_is_followed_ever_later() -> None:
    world = World(a_job())
    world.settle(runs=False)
    begun = []
    for _ in range(200):
        current = f"mnist-master-{world.job.memory.master.term}"
        if current in world.pods and not world.pods[current].is_over:
            begun.append((world.now - NOW).total_seconds())
            world.end(current, 1)
        world.step()
        world.vanish()
        world.passes(1)
    gaps = [after - before for before, after in itertools.pairwise(begun)]
    assert gaps[:5] == sorted(gaps[:5])
    assert max(gaps) <= 62
    assert condition(world, "Degraded") == ("True", "MasterFailing")
    assert sum("master" in name for name in world.pods) <= 3


def end_masters(world: World, many: int, **how: Any) -> None:
    """So many masters in a row end as soon as they are there."""
    for _ in range(many):
        name = f"mnist-master-{world.job.memory.master.term}"
        world.pods[name] = replace(world.pods[name], ready=False, **how)
        world.passes(120)
        world.step()
        world.vanish()


def test_a_job_whose_masters_fail_before_they_are_ready_fails_with_the_last_cause() -> None:
    world = World(a_job(worker=a_role(replicas=1)))
    world.settle(runs=False)
    failed = {"phase": PodPhase.FAILED, "exit_code": 2}
    end_masters(world, SETTINGS.master_restarts - 1, **failed)
    assert condition(world, "Succeeded")[0] == "Unknown"
    assert world.job.memory.master.term == SETTINGS.master_restarts
    end_masters(world, 1, **failed, reason="cannot read /secrets")
    assert condition(world, "Succeeded") == ("False", "MasterFailed")
    said = message(world, "Succeeded")
    assert "10 masters in a row" in said
    assert "mnist-master-10: exit code 2, cannot read /secrets" in said


@pytest.mark.parametrize(
    "how",
    [
        pytest.param({"phase": PodPhase.FAILED, "reason": "Evicted: The node was low on memory"}, id="evicted"),
        pytest.param({"phase": PodPhase.FAILED, "exit_code": 143}, id="drained"),
        pytest.param({"phase": PodPhase.FAILED, "exit_code": 137, "reason": "Error"}, id="frozen"),
        pytest.param({"deleting": True}, id="deleted"),
    ],
)
def test_masters_that_somebody_ends_never_fail_a_job_and_follow_each_other_ever_later(how: dict[str, Any]) -> None:
    world = World(a_job(worker=a_role(replicas=1)))
    world.settle(runs=False)
    end_masters(world, 3 * SETTINGS.master_restarts, **how)
    assert condition(world, "Succeeded")[0] == "Unknown"
    assert world.job.memory.master.failures == 0
    begun = world.job.memory.master.since
    assert begun is not None
    name = f"mnist-master-{world.job.memory.master.term}"
    world.pods[name] = replace(world.pods[name], **how)
    assert world.step().recheck_at == begun + SETTINGS.times.master_backoff_most


@pytest.mark.parametrize("reason", ["ImagePullFailed", None])
def test_a_job_whose_master_does_not_get_ready_fails_after_a_while_and_says_why(reason: str | None) -> None:
    world = World(a_job(worker=a_role(replicas=1)))
    world.settle(runs=False)
    if reason is not None:
        trouble = Trouble(reason=reason, message="the image nope:1 cannot be had")
        world.pods["mnist-master-1"] = replace(world.pods["mnist-master-1"], trouble=trouble)
    pending = SETTINGS.times.pending.total_seconds()
    world.passes(pending - 1)
    plan = world.step()
    assert condition(world, "Succeeded")[0] == "Unknown"
    assert plan.recheck_at == world.now + timedelta(seconds=1)
    world.passes(1)
    world.step()
    assert condition(world, "Succeeded") == ("False", "MasterFailed")
    assert ("nope:1" if reason else "Pending") in message(world, "Succeeded")


def test_a_job_whose_master_finds_no_room_waits_and_says_so() -> None:
    world = World(a_job(worker=a_role(replicas=1)))
    world.settle(runs=False)
    no_room = Trouble(reason="Unschedulable", message="0/3 nodes are available")
    world.pods["mnist-master-1"] = replace(world.pods["mnist-master-1"], trouble=no_room)
    pending = SETTINGS.times.pending.total_seconds()
    world.step()
    world.passes(2 * pending)
    world.step()
    assert condition(world, "Succeeded")[0] == "Unknown"
    assert condition(world, "Degraded") == ("True", "Unschedulable")
    world.pods["mnist-master-1"] = replace(world.pods["mnist-master-1"], trouble=None)  # there is room now
    assert world.step().recheck_at == world.now + SETTINGS.times.pending
    world.passes(pending)
    world.step()
    assert condition(world, "Succeeded") == ("False", "MasterFailed")


def test_time_without_a_master_pod_is_not_its_fault() -> None:
    """The server refuses to make it, for longer than one is waited for; then it is made."""
    world = World(a_job(worker=a_role(replicas=1)))
    pending = SETTINGS.times.pending.total_seconds()
    for _ in range(3):
        plan = world.step(actions=1)  # what is decided is recorded, and nothing is made
        assert plan.create
        world.passes(pending)
    world.settle(runs=False)
    assert "mnist-master-1" in world.pods
    assert condition(world, "Succeeded")[0] == "Unknown"
    made = world.now
    assert world.step().recheck_at == made + SETTINGS.times.pending


def test_time_in_which_nobody_decided_is_not_the_masters_fault() -> None:
    """The API server was down: nothing could become of its Pod."""
    world = World(a_job(worker=a_role(replicas=1)))
    world.settle(runs=False)
    world.passes(2 * SETTINGS.times.pending.total_seconds())
    back = replace(world.snapshot(), leads_since=world.now)
    plan = plan_job(back, SETTINGS, now=world.now)
    assert plan.status.conditions["Succeeded"].status == "Unknown"
    assert plan.recheck_at == world.now + SETTINGS.times.pending
    plan = plan_job(back, SETTINGS, now=world.now + SETTINGS.times.pending)
    assert plan.status.conditions["Succeeded"].reason == "MasterFailed"


def test_a_master_that_was_ready_once_may_take_its_time() -> None:
    world = a_world(1, answers=True)
    world.pods["mnist-master-1"] = replace(world.pods["mnist-master-1"], ready=False)
    world.passes(2 * SETTINGS.times.pending.total_seconds())
    world.step()
    assert condition(world, "Succeeded")[0] == "Unknown"


def test_a_job_that_waits_in_the_queue_does_not_lose_patience_with_its_master() -> None:
    """Its time begins when the job may run: until then there may be no room for it."""
    waits = Allowance(standing=Standing(), place=1)
    job = a_job(worker=a_role(replicas=1))
    told: dict[str, Any] = {"is_scheduled": True, "allowance": waits}
    job = replace(job, status=a_plan_for(job, **told).status)
    pod = a_pod(None, 1, PodPhase.PENDING)
    late = SETTINGS.times.pending.total_seconds() + 1
    job = replace(job, status=a_plan_for(job, pods=(pod,), seconds=late, **told).status)
    told["allowance"] = Allowance(standing=Standing(target=1))
    admitted = a_plan_for(job, pods=(pod,), seconds=late, **told)
    assert admitted.status.memory.finish_time is None
    job = replace(job, status=admitted.status)
    ended = a_plan_for(job, pods=(pod,), seconds=2 * late, **told)
    assert ended.status.conditions["Succeeded"].reason == "MasterFailed"


# Troubles ------------------------------------------------------------------------------------------------------------


def test_what_the_server_refused_stands_in_the_status() -> None:
    job = a_job(worker=a_role(replicas=1))
    refused = Trouble(reason="QuotaExceeded", message='pods "x" is forbidden: exceeded quota: small')
    plan = a_plan_for(job, troubles=(refused,))
    degraded = plan.status.conditions["Degraded"]
    assert (degraded.status, degraded.reason) == ("True", "QuotaExceeded")
    assert degraded.message == f"{refused.message}; {Reason.QUOTA_EXCEEDED.hint}"
    assert [notice.reason for notice in plan.notices if notice.warning] == ["QuotaExceeded"]


def test_an_image_that_cannot_be_had_is_named() -> None:
    world = a_world(1)
    pod = world.pods["mnist-worker-0"]
    trouble = Trouble(reason="ImagePullFailed", message="mnist-worker-0: image nope:1 cannot be pulled: not found")
    world.pods[pod.name] = replace(pod, phase="Pending", ready=False, trouble=trouble)
    world.step()
    assert condition(world, "Degraded") == ("True", "ImagePullFailed")
    assert condition(world, "Ready") == ("False", "ImagePullFailed")
    assert "nope:1" in message(world)


# Bounds, clocks and late words ---------------------------------------------------------------------------------------


def test_only_the_newest_master_answers_and_ends_the_job() -> None:
    world = a_world(2, answers=True)
    world.end("mnist-master-1", 1)
    world.passes(5)
    world.settle()
    assert world.job.memory.master.term == 2
    world.job = replace(world.job, training=Training(phase="succeeded", term=1))
    world.step()
    assert world.job.memory.finish_time is None
    assert world.job.memory.master.silent_since is not None
    world.job = replace(world.job, training=Training(phase="succeeded", term=2))
    world.step()
    assert world.job.memory.finish_time is not None


def test_nobody_is_added_while_the_newest_master_ends_the_job_whatever_an_older_one_did() -> None:
    world = a_world(2, answers=True)
    world.end("mnist-master-1", 1)
    world.passes(5)
    world.settle()
    assert world.job.memory.master.term == 2
    for term, count in ((2, 2), (1, 3)):
        world.job = replace(world.job, training=Training(phase="stopping", term=term))
        rescale(world, 3)
        world.step()
        assert len(world.names(W)) == count, f"the master of term {term} is ending it"


def test_members_that_were_never_made_are_not_made_when_fewer_are_wanted_by_then() -> None:
    world = a_world(2, answers=True)
    rescale(world, 8)
    world.step(actions=4)
    born = len(world.pods)
    assert len(world.job.memory.members) == 8
    rescale(world, 2)
    plan = world.step()
    assert not plan.create
    assert len(world.pods) == born
    assert len(world.job.memory.of(W)) == born - 1


def test_victims_are_members_and_no_more_than_can_be_written_down() -> None:
    world = a_world(2)
    for first in (0, 1000, 2000):
        names = tuple(f"mnist-worker-{number}" for number in range(first, first + 512))
        world.put(a_plan(f"r{first}", remove=names, worker=2))
    world.settle()
    generation = world.job.memory.grant.generation
    assert set(world.job.memory.grant.victims) <= {member.name for member in world.job.memory.members}
    world.settle()
    world.step()
    assert world.job.memory.grant.generation == generation


def test_more_plans_than_can_be_remembered_are_refused_and_say_so() -> None:
    world = a_world(None)
    world.put(a_plan("first", worker=2))
    world.settle()
    for number in range(520):
        world.put(a_plan(f"b{number:03d}", worker=2))
    world.put(a_plan("more", create=(an_order(W, 700),)))
    for _ in range(4):
        world.step()
        world.run_all()
    assert len(world.live(W)) == 2
    refused = [plan for plan in world.plans.values() if plan.status.conditions["Accepted"].reason == "TooManyPlans"]
    assert 0 < len(refused) < 20
    assert "ScalePlan/first" not in {plan.ask for plan in refused}
    assert len(world.job.memory.accepted) <= 512


def test_plans_that_pin_nothing_need_no_stamp() -> None:
    world = a_world(2)
    world.put(a_plan("m", migrate=(a_move(W, 0, memory=100),)))
    world.settle()
    assert "ScalePlan/m" not in {each.ask for each in world.job.memory.accepted}


def test_a_move_that_failed_is_remembered_before_those_that_are_done() -> None:
    world = a_world(2)
    world.put(a_plan("z", migrate=(a_move(W, 0, memory=100),)))
    world.step()
    world.end("mnist-worker-2", 1)
    world.settle()
    spec = world.job.spec
    assert spec is not None
    world.job = replace(
        world.job, status=replace(world.job.status, memory=replace(world.job.memory, next_id={W: 2000}))
    )
    for name, first in (("a", 100), ("b", 700)):
        world.put(a_plan(name, migrate=tuple(a_move(W, number, memory=1) for number in range(first, first + 512))))
    world.settle()
    moves = world.job.memory.moves
    assert len(moves) <= 512
    assert [move.name for move in moves if move.state == "failed"] == ["mnist-worker-0"]
    assert len(world.live(W)) == 2


@pytest.mark.parametrize("together", [True, False], ids=["as-it-resumes", "while-suspended"])
def test_create_pods_adds_to_what_a_suspended_job_had(together: bool) -> None:
    world = a_world(None)
    world.put(a_plan("a", worker=4))
    world.settle()
    suspend(world, True)
    for _ in range(4):
        world.settle()
        world.passes(200)
    assert not world.live(W)
    world.put(a_plan("b", create=(an_order(W, 9),)))
    if not together:
        world.step()
    suspend(world, False)
    world.settle()
    assert len(world.live(W)) == 5


def test_the_last_changed_ask_wins_also_when_the_clock_went_back() -> None:
    world = a_world(None)
    world.passes(3600)
    world.put(a_plan("a", worker=5))
    world.settle()
    world.passes(-3000)
    world.put(a_plan("b", worker=2))
    world.settle()
    assert len(world.live(W)) == 2


def test_a_pod_with_an_id_that_nobody_gave_out_is_no_member() -> None:
    world = a_world(2)
    world.pods["mnist-worker-99999999999"] = a_pod(W, 99999999999)
    world.step()
    assert world.job.memory.next_id[W] == 2
    assert world.has_state("mnist-worker-99999999999") is None


def test_a_resumed_job_has_the_memory_that_it_was_given_before() -> None:
    world = a_world(2, answers=True)
    an_oom(world)
    suspend(world, True)
    for _ in range(4):
        world.settle()
        world.passes(200)
    assert not world.job.memory.members
    suspend(world, False)
    world.settle()
    assert memory_by_rank(world) == {0: None, 1: 9000}
    assert not world.job.memory.seats


def an_oom(world: World) -> None:
    """The worker at rank 1 of two runs out of memory, and its replacement, number 2, gets 9,000 MiB."""
    world.end("mnist-worker-1", 137, oom_killed=True)
    world.step()
    world.put(an_auto_plan(create=(an_order(W, 2, replaces=1, resource=Resource(memory=9000)),)))
    world.settle()


def memory_by_rank(world: World) -> dict[int, int | None]:
    return {member.rank: member.resource.memory for member in world.job.memory.of(W)}


def test_a_job_that_is_scaled_down_and_up_has_the_memory_that_it_was_given_before() -> None:
    world = a_world(2, answers=True)
    an_oom(world)
    world.put(an_auto_plan(remove=("mnist-worker-2",)))
    rescale(world, 1)
    world.settle()
    assert memory_by_rank(world) == {0: None}
    world.put(an_auto_plan())
    world.settle()
    rescale(world, 3)
    world.settle()
    assert memory_by_rank(world) == {0: None, 1: 9000, 2: None}
    assert world.pods["mnist-worker-3"].resource.memory == 9000
    assert not world.job.memory.seats


@pytest.mark.parametrize(("memory", "got"), [(4_000, 9_000), (16_000, 16_000)])
def test_a_member_with_more_memory_after_an_oom_gets_what_a_later_plan_gives_its_role(memory: int, got: int) -> None:
    world = a_world(2, answers=True)
    world.can_resize = True
    an_oom(world)
    world.put(a_plan("more", roles={W: RoleAsk(resource=Resource(memory=memory))}))
    world.settle()
    assert {pod.id: pod.resource.memory for pod in world.live(W)} == {0: memory, 2: got}


def test_a_member_that_is_moved_to_less_memory_than_its_role_has_gets_that() -> None:
    world = a_world(2)
    world.can_resize = True
    world.put(a_plan("role", roles={W: RoleAsk(resource=Resource(memory=4096))}))
    world.settle()
    world.put(a_plan("one", migrate=(a_move(W, 1, memory=1024),)))
    world.settle()
    assert {pod.id: pod.resource.memory for pod in world.live(W)} == {0: 4096, 2: 1024}


def test_an_oom_replacement_that_is_moved_for_devices_gets_its_roles_memory_where_that_is_more() -> None:
    world = a_world(2)
    an_oom(world)
    world.put(a_plan("more", roles={W: RoleAsk(resource=Resource(gpu_num=4, memory=16_000))}))
    world.settle()
    assert [(pod.resource.gpu_num, pod.resource.memory) for pod in world.live(W)] == [(4, 16_000)] * 2


def test_a_pod_that_a_user_names_gets_what_its_place_has_kept() -> None:
    world = a_world(2, answers=True)
    an_oom(world)
    world.put(an_auto_plan(remove=("mnist-worker-2",)))
    rescale(world, 1)
    world.settle()
    world.put(an_auto_plan())
    world.put(a_plan("one-more", create=(an_order(W, 3, resource=Resource(cpu=2.0)),)))
    world.settle()
    (new,) = (member for member in world.job.memory.of(W) if member.id == 3)
    assert (new.rank, new.resource) == (1, Resource(cpu=2.0, memory=9000))


def test_a_place_gets_what_its_role_has_by_now_where_that_is_more() -> None:
    world = a_world(2, answers=True)
    an_oom(world)
    suspend(world, True)
    for _ in range(4):
        world.settle()
        world.passes(200)
    world.put(a_plan("more", roles={W: RoleAsk(resource=Resource(memory=16_000))}))
    suspend(world, False)
    world.settle()
    assert {pod.resource.memory for pod in world.live(W)} == {16_000}


def test_a_job_has_no_more_members_than_its_status_has_room_for() -> None:
    world = World(a_job(worker=a_role(max=10_000), parameterServer=a_role(max=10_000)))
    world.put(an_auto_plan())
    world.put(a_plan("huge", worker=9000, ps=500))
    for _ in range(8):
        world.step()
        world.run_all()
    assert len(world.job.memory.members) == 2000
    (trim,) = world.plans["ScalePlan/huge"].status.trims
    assert (trim.what, trim.asked, trim.got) == ("worker.replicas", "9000", "1500")
    for written in (
        write_job(world.job, world.job.status)["members"],
        write_plan(an_auto_plan(), world.plans["ScalePlan/mnist-auto"].status)["pods"],
    ):
        long = [{**each, "uid": "0" * 36, "name": "n" * 63, "host": "h" * 40} for each in written]
        noted = sum(len(f'"f:{name}":{{}},') for name in long[0]) + len(long[0]["name"]) + 24
        assert len(msgspec.json.encode(long)) + noted * len(long) < 1_200_000


def test_a_live_members_record_says_no_more_than_it_must() -> None:
    world = a_world(1)
    (member,) = write_job(world.job, world.job.status)["members"]
    assert set(member) == {"name", "role", "id", "rank", "state", "uid"}


@pytest.mark.parametrize(
    ("asked", "got", "trimmed"),
    [
        (Resource(cpu=2, memory=4096), Resource(cpu=2, memory=4096), {}),
        (
            Resource(cpu=4, memory=8192),
            Resource(cpu=2.5, memory=5120),
            {"worker.resource.cpu": ("4", "2500m"), "worker.resource.memory": ("8192Mi", "5120Mi")},
        ),
    ],
    ids=["it-fits", "too-much"],
)
def test_a_plans_resource_is_trimmed_to_the_jobs_limits(asked: Resource, got: Resource, trimmed: dict) -> None:
    world = World(a_job(worker=a_role(replicas=4, max=4), resourceLimits={"cpu": 10, "memory": "20Gi"}))
    world.put(a_plan("p", roles={W: RoleAsk(resource=asked)}))
    plan = world.step()
    world.settle()
    requests = next(
        pod["spec"]["containers"][0]["resources"]["requests"]
        for pod in plan.create
        if pod["metadata"]["name"] == "mnist-worker-0"
    )
    assert (cores(requests["cpu"]), requests["memory"]) == (got.cpu, f"{got.memory}Mi")
    trims = world.plans["ScalePlan/p"].status.trims
    assert {trim.what: (trim.asked, trim.got) for trim in trims} == trimmed


def test_one_member_more_than_there_are_devices_for_is_trimmed_and_replaces_nobody() -> None:
    world = World(a_job(worker=a_role(replicas=2, max=8), resourceLimits={"gpu": 8}))
    world.put(a_plan("four", roles={W: RoleAsk(resource=Resource(gpu_num=4))}))
    world.settle()
    assert [pod.resource.gpu_num for pod in world.live(W)] == [4, 4]
    before = world.names(W)
    rescale(world, 3)
    world.settle()
    assert (world.names(W), world.job.memory.grant.counts) == (before, {W: 2})
    (trim,) = world.plans["ScalePlan/four"].status.trims
    assert (trim.what, trim.asked, trim.got) == ("worker.replicas", "3", "2")
    assert trim.reason == "resourceLimits has devices for 2 of worker with 4 each"
    rescale(world, 1)
    world.settle()
    assert world.plans["ScalePlan/four"].status.trims == ()


def test_devices_are_divided_where_the_job_would_have_fewer_members_than_its_least() -> None:
    world = World(a_job(worker=a_role(replicas=3, min=3, max=8), resourceLimits={"gpu": 8}))
    world.put(a_plan("four", roles={W: RoleAsk(resource=Resource(gpu_num=4))}))
    world.settle()
    assert [pod.resource.gpu_num for pod in world.live(W)] == [2, 2, 2]


def test_a_priority_without_a_class_is_said() -> None:
    world = World(a_job(worker=a_role(replicas=1, priority="high")))
    world.settle()
    assert "worker.priority high has no effect" in message(world, "Admitted")
    assert world.notices.count("PriorityIgnored") == 1
    settings = replace(world.settings, priority_classes={"high": "urgent"})
    served = World(a_job(worker=a_role(replicas=1, priority="high")), settings)
    pod = next(each for each in served.step().create if each["metadata"]["name"] == "mnist-worker-0")
    assert pod["spec"]["priorityClassName"] == "urgent"
    served.settle()
    assert "priority" not in message(served, "Admitted")
    assert "PriorityIgnored" not in served.notices


def test_running_members_get_a_roles_new_resource_in_place_where_the_server_can() -> None:
    world = World(a_job(worker=a_role(replicas=2, resource={"cpu": 1, "memory": "1Gi"})))
    world.can_resize = True
    world.settle()
    assert not world.step().resize
    world.put(a_plan("more", roles={W: RoleAsk(resource=Resource(memory=4096))}))
    plan = world.step()
    assert [each.pod.name for each in plan.resize] == ["mnist-worker-0", "mnist-worker-1"]
    status = plan.plan_statuses["ScalePlan/more"]
    assert (status.conditions["Completed"].reason, status.finished_at) == ("InProgress", None)
    assert status.conditions["Completed"].message == "it waits until 2 running members have what they are given"
    assert plan.resize[0].resources["requests"] == {"memory": "4096Mi"}
    assert not plan.delete
    world.settle()
    assert {(pod.resource.cpu, pod.resource.memory) for pod in world.live(W)} == {(1.0, 4096)}
    assert world.plans["ScalePlan/more"].status.conditions["Admitted"].message == ""
    assert condition_of(world, "ScalePlan/more", "Completed") == ("True", "Completed")
    assert not world.step().resize


@pytest.mark.parametrize(
    ("seen", "reason"),
    [
        ({"resize_waits": "Infeasible: Node didn't have enough capacity: memory"}, "ResizeRefused"),
        ({"resize_waits": "Deferred: Node didn't have enough resource: memory"}, "InProgress"),
        ({"is_resizing": True}, "InProgress"),
    ],
)
def test_a_plan_is_not_done_before_the_hosts_have_given_what_it_gives(seen: dict[str, Any], reason: str) -> None:
    world = World(a_job(worker=a_role(replicas=2, resource={"memory": "1Gi"})))
    world.can_resize = True
    world.settle()
    world.put(a_plan("more", roles={W: RoleAsk(resource=Resource(memory=4096))}))
    world.step()
    world.pods = {name: replace(pod, **(seen if pod.role is W else {})) for name, pod in world.pods.items()}
    world.settle()
    assert condition_of(world, "ScalePlan/more", "Completed") == ("False", reason)
    assert world.plans["ScalePlan/more"].status.finished_at is None
    world.pods = {name: replace(pod, resize_waits="", is_resizing=False) for name, pod in world.pods.items()}
    world.settle()
    assert condition_of(world, "ScalePlan/more", "Completed") == ("True", "Completed")


def test_what_a_host_cannot_give_in_place_is_said_with_its_reason() -> None:
    world = World(a_job(worker=a_role(replicas=2, resource={"memory": "1Gi"})))
    world.can_resize = True
    world.settle()
    world.put(a_plan("more", roles={W: RoleAsk(resource=Resource(memory=4096))}))
    world.settle()
    for name, pod in list(world.pods.items()):
        if pod.role is W:
            world.pods[name] = replace(pod, resize_waits="Infeasible: Node didn't have enough capacity: memory")
    world.settle()
    said = world.plans["ScalePlan/more"].status.conditions["Admitted"].message
    assert said.startswith("mnist-worker-0, and 1 more: keeps what it has")
    assert said.endswith("enough capacity: memory")


def test_where_the_server_cannot_members_are_replaced_the_new_ones_first() -> None:
    world = World(a_job(worker=a_role(replicas=2, max=3, resource={"memory": "1Gi"})))
    world.settle()
    before = len(world.log)
    world.put(a_plan("more", worker=3, roles={W: RoleAsk(replicas=3, resource=Resource(memory=4096))}))
    world.settle()
    assert [pod.resource.memory for pod in world.live(W)] == [4096] * 3
    done = [line for line in world.log[before:] if "worker" in line]
    gone = [line for line in done if line.startswith("delete")]
    assert gone == ["delete mnist-worker-0", "delete mnist-worker-1"]
    assert sum(line.startswith("run") for line in done[: done.index(gone[0])]) >= 1
    assert condition_of(world, "ScalePlan/more", "Completed") == ("True", "Completed")
    settled = len(world.log)
    world.settle()
    assert len(world.log) == settled


@pytest.mark.parametrize("kind", list(PlanKind))
@pytest.mark.parametrize("can_resize", [True, False])
def test_another_number_of_devices_comes_with_replacements_the_new_ones_first(kind: PlanKind, can_resize: bool) -> None:
    world = a_world(2)
    world.can_resize = can_resize
    before = len(world.log)
    plan = a_plan("more", kind=kind, roles={W: RoleAsk(resource=Resource(gpu_num=2))})
    world.put(plan)
    world.settle()
    assert [(pod.id, pod.resource.gpu_num) for pod in world.live(W)] == [(2, 2), (3, 2)]
    done = [line for line in world.log[before:] if "worker" in line]
    for old, new in ((0, 2), (1, 3)):
        assert done.index(f"run mnist-worker-{new}") < done.index(f"delete mnist-worker-{old}")
    status = world.plans[plan.ask].status
    assert (status.conditions["Completed"].status, status.conditions["Admitted"].message) == ("True", "")
    world.put(replace(plan, generation=2, roles={W: RoleAsk(resource=Resource(gpu_num=2, cpu=1.0))}))
    world.settle()
    assert [pod.id for pod in world.live(W)] == ([2, 3] if can_resize else [4, 5])


def test_a_replacement_with_other_devices_that_fails_is_not_tried_for_ever() -> None:
    world = a_world(1)
    world.put(a_plan("more", roles={W: RoleAsk(resource=Resource(gpu_num=2))}))
    world.step()
    world.end("mnist-worker-1", 1)
    world.settle()
    assert world.names(W) == ["mnist-worker-0"]
    assert condition_of(world, "ScalePlan/more", "Completed") == ("False", "MigrationFailed")


def test_a_replacement_that_does_not_show_its_devices_is_not_replaced_in_turn() -> None:
    """A webhook may have given them another name."""
    world = a_world(2)
    world.put(a_plan("more", roles={W: RoleAsk(resource=Resource(gpu_num=2))}))
    for _ in range(40):
        world.step()
        world.pods = {name: replace(pod, resource=Resource()) for name, pod in world.pods.items()}
        world.run_all()
        world.vanish()
    assert world.names(W) == ["mnist-worker-2", "mnist-worker-3"]
    assert condition_of(world, "ScalePlan/more", "Completed") == ("True", "Completed")


def test_devices_of_which_a_pod_does_not_tell_move_nobody() -> None:
    world = World(a_job(worker=a_role(replicas=1)), replace(SETTINGS, gpu_resource="example.com/device"))
    world.settle()
    world.put(a_plan("more", roles={W: RoleAsk(resource=Resource(gpu_num=2))}))
    world.settle()
    assert world.names(W) == ["mnist-worker-0"]
    said = world.plans["ScalePlan/more"].status.conditions["Admitted"].message
    assert said == "running members keep the devices that they have until they are replaced; new ones get it"


def condition_of(world: World, ask: str, kind: str) -> tuple[str, str]:
    found = world.plans[ask].status.conditions[kind]
    return found.status, found.reason


def test_what_nobody_asked_for_is_not_changed_back() -> None:
    """A webhook or an autoscaler may have given a Pod something else than its template says."""
    world = World(a_job(worker=a_role(replicas=1, resource={"memory": "1Gi"})))
    world.can_resize = True
    world.settle()
    pod = world.pods["mnist-worker-0"]
    world.pods["mnist-worker-0"] = replace(pod, resource=Resource(memory=2048))
    assert not world.step().resize
