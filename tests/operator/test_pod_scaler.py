"""With `pod_scaler` the job's master makes the Pods: what the operator still decides, and what it leaves alone."""

from dataclasses import replace
from typing import Any

import pytest
from tests.operator.builders import SETTINGS, a_job, a_move, a_plan, a_role, an_auto_plan, an_order
from tests.operator.world import World

from shoal.api.elasticjob import Role
from shoal.core.errors import BadInput
from shoal.core.pods import PodPhase, PodSeen
from shoal.operator.memory import MemberState
from shoal.operator.objects import fixed_objects
from shoal.operator.pods import member_pod, pod_settings, settings_of
from shoal.operator.settings import OperatorSettings
from shoal.operator.snapshot import Training

W = Role.WORKER
MAKING = replace(SETTINGS, pod_scaler=True)
RUNS = Training(phase="running")


class Making(World):
    """A job whose master makes the Pods; the test is that master."""

    def __init__(self, count: int, **spec: Any) -> None:
        super().__init__(a_job(worker=a_role(replicas=count, max=16), **spec), MAKING)
        self.job = replace(self.job, training=RUNS)

    def master_makes(self, number: int, rank: int | None = None) -> None:
        name = f"mnist-worker-{number}"
        self.pods[name] = PodSeen(
            name=name,
            uid=f"{name}-uid",
            role=W,
            id=number,
            rank=number if rank is None else rank,
            phase=PodPhase.RUNNING,
            ready=True,
            created_at=self.now,
        )

    def asks_for(self, count: int) -> None:
        spec = self.job.spec
        assert spec is not None
        roles = {**spec.roles, W: replace(spec.worker, replicas=count)}
        self.job = replace(self.job, spec=replace(spec, roles=roles), generation=self.job.generation + 1)

    def condition(self, kind: str) -> tuple[str, str]:
        found = self.job.status.conditions[kind]
        return found.status, found.reason


def a_world(count: int = 3) -> Making:
    world = Making(count)
    world.settle()
    for number in range(count):
        world.master_makes(number)
    world.settle()
    world.log.clear()
    return world


def test_the_grant_is_written_and_no_member_is_made() -> None:
    world = Making(3)
    world.settle()
    assert world.born == ["mnist-master-1"]
    assert world.job.memory.grant.counts == {W: 3}
    assert world.job.memory.members == ()


def test_pods_that_the_master_makes_are_counted_in_whatever_order_they_are_seen() -> None:
    world = Making(3)
    world.settle()
    for number in (2, 0, 1):
        world.master_makes(number)
        world.settle()
    assert world.job.status.counts[W].running == 3
    assert world.condition("Ready") == ("True", "AllMembersUp")
    assert "delete" not in " ".join(world.log)


def test_roles_that_no_master_manages_are_still_the_operators() -> None:
    world = Making(1, evaluator=a_role(replicas=1))
    world.settle()
    assert world.names(Role.EVALUATOR) == ["mnist-evaluator-0"]
    assert world.names(W) == []


def test_in_a_job_with_parameter_servers_the_master_makes_all_pods() -> None:
    world = Making(1, parameterServer=a_role(replicas=2), evaluator=a_role(replicas=1))
    world.settle()
    assert world.born == ["mnist-master-1"]
    assert world.job.memory.grant.counts == {W: 1, Role.PS: 2, Role.EVALUATOR: 1}


def test_a_failed_member_is_replaced_by_nobody_but_the_master() -> None:
    world = a_world(2)
    world.end("mnist-worker-1", 1)
    world.settle()
    world.job = replace(world.job, training=None)  # and that one falls silent
    world.settle()
    world.passes(3600)
    world.settle()
    assert world.log == []
    assert world.condition("Degraded") == ("True", "MasterSilent")
    assert "--pod-scaler" in world.job.status.conditions["Degraded"].message
    world.job = replace(world.job, training=RUNS)
    world.master_makes(2, rank=1)
    world.settle()
    assert [(member.name, member.rank) for member in world.job.memory.members] == [
        ("mnist-worker-0", 0),
        ("mnist-worker-2", 1),
    ]
    assert world.job.status.restarts == 1
    assert world.condition("Degraded") == ("False", "AtTargetSize")


def test_it_is_looked_at_again_when_the_silence_has_lasted() -> None:
    world = a_world(1)
    world.job = replace(world.job, training=None)
    plan = world.step()
    assert plan.recheck_at == world.now + MAKING.times.silence


def test_the_master_lets_go_until_drain_by_and_the_operator_after_it() -> None:
    world = a_world(3)
    world.asks_for(2)
    world.settle()
    assert world.log == []
    assert world.job.memory.grant.drain_by == world.now + MAKING.times.drain
    world.passes(MAKING.times.drain.total_seconds() + 1)
    world.settle()
    assert world.log == ["delete mnist-worker-2"]


def test_a_pod_that_the_master_deletes_is_no_loss() -> None:
    world = a_world(3)
    world.asks_for(2)
    world.settle()
    world.delete("mnist-worker-0")
    world.settle()
    assert "MemberLost" not in world.notices
    assert [member.name for member in world.job.memory.members] == ["mnist-worker-1", "mnist-worker-2"]


def test_orders_in_the_masters_plan_are_not_carried_out() -> None:
    world = a_world(1)
    world.put(an_auto_plan(create=(an_order(W, 5, replaces=0),), remove=("mnist-worker-0",)))
    world.settle()
    assert world.log == []


def test_a_move_of_a_running_member_is_refused_with_the_reason() -> None:
    world = a_world(1)
    plan = a_plan(migrate=(a_move(W, 0, memory=2048),))
    world.put(plan)
    world.settle()
    assert world.log == []
    (done,) = world.plans[plan.ask].status.done
    assert "made by the job's master" in done.outcome


def test_what_remains_when_the_job_is_suspended_or_over_is_deleted() -> None:
    world = a_world(2)
    assert world.job.spec is not None
    world.job = replace(world.job, spec=replace(world.job.spec, suspend=True), training=None)
    world.settle()
    assert sorted(world.log) == ["delete mnist-master-1", "delete mnist-worker-0", "delete mnist-worker-1"]
    over = a_world(2)
    over.job = replace(over.job, training=Training(phase="succeeded"))
    over.settle()
    over.passes(MAKING.times.ending.total_seconds() + 1)
    over.settle()
    assert sorted(over.log) == ["delete mnist-master-1", "delete mnist-worker-0", "delete mnist-worker-1"]


@pytest.mark.parametrize("before", [SETTINGS, MAKING])
def test_when_the_setting_changes_the_next_master_follows_and_the_members_stay(before: OperatorSettings) -> None:
    after = MAKING if before is SETTINGS else SETTINGS
    world = a_world(2) if before is MAKING else Making(2)
    world.settings = SETTINGS if before is SETTINGS else MAKING
    world.settle()
    members = [member.name for member in world.job.memory.members]
    world.log.clear()
    world.settings = after
    world.settle()
    assert world.log == ["delete mnist-master-1", "create mnist-master-2", "run mnist-master-2"]
    assert [member.name for member in world.job.memory.members] == members
    assert world.pods["mnist-master-2"].makes_pods is after.pod_scaler


def test_members_that_were_only_recorded_are_left_to_the_master() -> None:
    world = Making(2)
    world.settings = SETTINGS
    world.step(actions=1)
    assert world.seats(W) == 2
    world.settings = MAKING
    world.settle()
    assert world.names(W) == []
    assert world.seats(W) == 0


# What a master gets ----------------------------------------------------------------------------------------------


def test_only_then_may_a_master_touch_pods() -> None:
    def rules(settings: OperatorSettings) -> list[dict[str, Any]]:
        (role,) = [each for each in fixed_objects(a_job(), 1, settings) if each["kind"] == "Role"]
        return [rule for rule in role["rules"] if rule["resources"] == ["pods"]]

    assert rules(SETTINGS) == []
    assert rules(MAKING) == [
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch", "create", "delete"]}
    ]


def test_a_master_can_make_the_pods_that_the_operator_would_and_is_told_no_secret() -> None:
    settings = replace(
        MAKING,
        image_pull_secrets=("regcred",),
        shared_memory="1Gi",
        gpu_resource="amd.com/gpu",
        priority_classes={"high": "first"},
    )
    told = pod_settings(settings)
    assert "install_key" not in told
    world = World(a_job(worker=a_role(replicas=1, priority="high", resource={"gpu": 1})))
    world.step()
    (member,) = world.job.memory.members
    job, spec = world.job, world.job.spec
    assert spec is not None
    needs = spec.worker
    pods = [member_pod(job, spec, needs, member, needs.resource, each) for each in (settings, settings_of(told))]
    assert pods[0] == pods[1]
    with pytest.raises(BadInput, match="no settings of Pods"):
        settings_of("[]")


def test_a_member_that_ended_well_keeps_its_seat() -> None:
    world = a_world(2)
    world.end("mnist-worker-1", 0)
    world.settle()
    assert world.has_state("mnist-worker-1") is MemberState.SUCCEEDED
