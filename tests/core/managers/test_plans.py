"""A plan for a whole job is followed as a whole or not at all."""

from datetime import UTC, datetime

import pytest

from shoal.core.managers import group, plans
from shoal.core.managers.group import EvaluatorManager, WorkerManager
from shoal.core.nodes import Role
from shoal.core.plans import NodeGroupResource, ResourcePlan
from shoal.core.ps.manager import new_manager
from shoal.core.ps.values import PSManager, PSSettings

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def a_plan(**counts: int) -> ResourcePlan:
    groups = {role: NodeGroupResource(count=count) for role, count in counts.items()}
    return ResourcePlan(node_group_resources=groups, reason="a plan")


def a_ps_manager() -> PSManager:
    return new_manager(PSSettings(max_servers=3), servers=1, now=NOW)[0]


@pytest.mark.parametrize(
    ("plan", "reason"),
    [
        pytest.param(a_plan(worker=2, ps=2, evaluator=1), None, id="all-fits"),
        pytest.param(a_plan(worker=2, ps=0), "ps=0 asked, the job takes 1 to 3", id="no-server"),
        pytest.param(a_plan(worker=9, ps=2), "worker=9 asked, the job takes 1 to 4", id="too-many-workers"),
        pytest.param(a_plan(chief=1), "chief=1 asked, the job has evaluator, ps, worker", id="no-such-role"),
    ],
)
def test_a_plan_is_refused_when_one_role_cannot_follow_it(plan: ResourcePlan, reason: str | None) -> None:
    managers = (WorkerManager(max_nodes=4), EvaluatorManager())
    assert plans.refusal(plan, managers, a_ps_manager()) == reason


def test_what_the_roles_want_done_is_one_plan() -> None:
    plan = a_plan(worker=2, evaluator=1)
    _, workers = group.planned(WorkerManager(max_nodes=4), plan, now=NOW)
    _, evaluators = group.planned(EvaluatorManager(), plan, now=NOW)
    whole = plans.merged((workers, None, evaluators), "a plan")
    assert [node.id for node in whole.launch_nodes] == ["worker-0", "worker-1", "evaluator-0"]
    assert {role: g.count for role, g in whole.node_group_resources.items()} == {Role.WORKER: 2, Role.EVALUATOR: 1}
