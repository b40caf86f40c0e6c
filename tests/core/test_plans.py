"""Plans: values that cannot say nonsense."""

from datetime import UTC, datetime

import pytest

from shoal.core.nodes import Node, Role
from shoal.core.plans import NodeGroupResource, NodeResource, Priority, ResourcePlan, ScalePlan

A_NODE = Node(role=Role.WORKER, number=0, seat=0, since=datetime(2030, 1, 1, tzinfo=UTC), reason="asked")


def test_what_is_not_said_is_none() -> None:
    said = NodeResource()
    assert {said.cpu, said.memory, said.disk, said.gpu_num, said.gpu_type, said.priority} == {None}


@pytest.mark.parametrize("field", ["cpu", "memory", "disk"])
@pytest.mark.parametrize("value", [0, -1])
def test_nothing_is_never_zero(field: str, value: int) -> None:
    with pytest.raises(ValueError, match=f"{field} must be above 0 when it is said, got {value}"):
        NodeResource(**{field: value})


def test_no_gpu_can_be_said() -> None:
    assert NodeResource(gpu_num=0, priority=Priority.LOW).gpu_num == 0
    with pytest.raises(ValueError, match="gpu_num must not be negative, got -1"):
        NodeResource(gpu_num=-1)


def test_a_group_may_be_empty_but_not_negative() -> None:
    assert NodeGroupResource(count=0).count == 0
    with pytest.raises(ValueError, match="count must not be negative, got -1"):
        NodeGroupResource(count=-1)


@pytest.mark.parametrize(
    ("plan", "empty"),
    [
        pytest.param(ScalePlan(reason="nothing to do"), True, id="nothing"),
        pytest.param(
            ScalePlan(node_group_resources={"worker": NodeGroupResource(count=2)}, reason="as it is"), True, id="wanted"
        ),
        pytest.param(ScalePlan(launch_nodes=(A_NODE,), reason="grow"), False, id="launch"),
        pytest.param(ScalePlan(remove_nodes=(A_NODE,), reason="shrink"), False, id="remove"),
        pytest.param(ScalePlan(migrate_nodes=(A_NODE,), reason="move"), False, id="migrate"),
    ],
)
def test_a_plan_is_empty_when_there_is_nothing_to_carry_out(plan: ScalePlan, empty: bool) -> None:
    assert plan.is_empty == empty


@pytest.mark.parametrize("kind", [ScalePlan, ResourcePlan])
def test_no_plan_without_a_reason(kind: type) -> None:
    with pytest.raises(TypeError, match="reason"):
        kind()
