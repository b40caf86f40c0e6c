"""Workers, chief and evaluator: from what a plan asks for to which nodes are launched and which go."""

from dataclasses import dataclass
from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.core.managers import group
from shoal.core.managers.group import ChiefManager, EvaluatorManager, NodeManager, WorkerManager
from shoal.core.nodes import NodeId, NodeStatus, Role
from shoal.core.plans import NodeGroupResource, NodeResource, ResourcePlan, ScalePlan

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SMALL, LARGE = NodeResource(cpu=1, memory=512), NodeResource(cpu=4, memory=4096)


def a_plan(
    count: int | None = None,
    resource: NodeResource | None = None,
    *,
    role: Role = Role.WORKER,
    nodes: dict[str, NodeResource] | None = None,
) -> ResourcePlan:
    groups = {} if count is None else {role: NodeGroupResource(count=count, node_resource=resource or NodeResource())}
    return ResourcePlan(node_group_resources=groups, node_resources=nodes or {}, reason="a plan")


@dataclass
class Story:
    m: NodeManager
    plan: ScalePlan | None = None

    def after(self, turned: tuple[NodeManager, ScalePlan | None]) -> None:
        self.m, self.plan = turned

    @property
    def launched(self) -> list[str]:
        return [] if self.plan is None else [node.id for node in self.plan.launch_nodes]

    @property
    def removed(self) -> list[str]:
        return [] if self.plan is None else [node.id for node in self.plan.remove_nodes]

    @property
    def staying(self) -> list[str]:
        return [node.id for node in self.m.staying]


def workers(count: int = 3) -> Story:
    story = Story(WorkerManager(max_nodes=8))
    story.after(group.planned(story.m, a_plan(count, SMALL), now=NOW))
    for node in list(story.m.nodes):
        story.after(group.running(story.m, node, now=NOW))
    return story


def test_what_is_missing_is_launched_with_what_the_role_should_have() -> None:
    story = workers(2)
    story.after(group.planned(story.m, a_plan(4, LARGE), now=NOW))
    assert story.launched == ["worker-2", "worker-3"]
    assert story.plan is not None
    assert [node.resource for node in story.plan.launch_nodes] == [LARGE, LARGE]
    assert story.m.nodes[NodeId("worker-0")].resource == SMALL
    assert story.plan.node_group_resources[Role.WORKER].count == 4


def test_what_is_too_much_is_released_and_not_launched_again() -> None:
    story = workers(3)
    story.after(group.planned(story.m, a_plan(1), now=NOW))
    assert story.removed == ["worker-2", "worker-1"]
    released = story.m.nodes[NodeId("worker-2")]
    assert (released.relaunchable, released.is_released) == (False, True)
    story.after(group.lost(story.m, NodeId("worker-2"), reason="it ended", now=NOW))
    assert story.plan is None
    assert "worker-2" not in story.m.nodes


def test_victims_go_first_and_then_who_is_not_there_yet() -> None:
    story = workers(3)
    story.after(group.planned(story.m, a_plan(4), now=NOW))
    story.after(group.planned(story.m, a_plan(2), victims=frozenset({NodeId("worker-0")}), now=NOW))
    assert story.removed == ["worker-0", "worker-3"]


def test_a_lost_worker_is_followed_by_one_with_another_name_in_its_seat() -> None:
    story = workers(2)
    story.after(group.lost(story.m, NodeId("worker-0"), reason="killed", avoid=frozenset({"host-1"}), now=NOW))
    assert story.launched == ["worker-2"]
    new = story.m.nodes[NodeId("worker-2")]
    assert (new.seat, new.resource, new.avoid_hosts) == (0, SMALL, {"host-1"})


def test_a_worker_that_ran_out_of_memory_comes_back_with_more() -> None:
    story = workers(1)
    more = NodeResource(cpu=1, memory=768)
    story.after(group.lost(story.m, NodeId("worker-0"), reason="out of memory", resource=more, now=NOW))
    assert story.m.nodes[NodeId("worker-1")].resource == more


def test_a_worker_that_did_its_work_is_not_launched_again_and_blocks_nobody() -> None:
    story = workers(2)
    story.after(group.succeeded(story.m, NodeId("worker-0")))
    assert story.plan is None
    assert story.m.succeeded == 1
    story.after(group.lost(story.m, NodeId("worker-1"), reason="killed", now=NOW))
    assert story.launched == ["worker-2"]


def test_a_worker_that_should_have_more_is_replaced_first_and_released_then() -> None:
    story = workers(2)
    wish = a_plan(nodes={"my-job-worker-1": NodeResource(cpu=8)})
    story.after(group.planned(story.m, wish, now=NOW))
    assert (story.launched, story.removed) == (["worker-2"], [])
    assert story.plan is not None
    assert [node.id for node in story.plan.migrate_nodes] == ["worker-1"]
    assert story.m.nodes[NodeId("worker-2")].resource == NodeResource(cpu=8, memory=512)
    assert story.staying == ["worker-0", "worker-1"]
    story.after(group.planned(story.m, wish, now=NOW))
    assert story.plan is None
    story.after(group.running(story.m, NodeId("worker-2"), now=NOW))
    assert story.removed == ["worker-1"]
    assert story.staying == ["worker-0", "worker-2"]


def test_a_wish_that_is_taken_back_ends_the_replacement() -> None:
    story = workers(1)
    story.after(group.planned(story.m, a_plan(nodes={"worker-0": NodeResource(cpu=8)}), now=NOW))
    story.after(group.planned(story.m, a_plan(nodes={"worker-0": SMALL}), now=NOW))
    assert story.removed == ["worker-1"]
    assert story.staying == ["worker-0"]
    assert not story.m.successors


def test_a_worker_that_dies_while_its_successor_starts_is_followed_by_that_one() -> None:
    story = workers(1)
    story.after(group.planned(story.m, a_plan(nodes={"worker-0": LARGE}), now=NOW))
    story.after(group.lost(story.m, NodeId("worker-0"), reason="killed", now=NOW))
    assert story.plan is None
    assert story.staying == ["worker-1"]


@pytest.mark.parametrize("count", [0, 9])
def test_a_count_outside_the_range_is_refused(count: int) -> None:
    story = workers(2)
    plan = a_plan(count)
    assert group.refusal(story.m, plan) == f"worker={count} asked, the job takes 1 to 8"
    assert group.planned(story.m, plan, now=NOW) == (story.m, None)


def test_a_job_has_one_evaluator_or_none_and_a_killed_one_comes_back() -> None:
    story = Story(EvaluatorManager())
    assert story.m.is_critical
    story.after(group.planned(story.m, a_plan(1, role=Role.EVALUATOR), now=NOW))
    story.after(group.lost(story.m, NodeId("evaluator-0"), reason="killed", now=NOW))
    assert story.launched == ["evaluator-1"]
    assert group.refusal(story.m, a_plan(2, role=Role.EVALUATOR)) == "evaluator=2 asked, the job takes 0 to 1"
    with pytest.raises(ValueError, match="at most one chief"):
        ChiefManager(max_nodes=2)


moves = st.lists(
    st.one_of(
        st.tuples(st.just("count"), st.integers(0, 6)),
        st.tuples(st.sampled_from(["run", "lose", "succeed", "grow", "shrink"]), st.integers(0, 9)),
    ),
    max_size=25,
)


@given(moves)
@settings(max_examples=150)
def test_whatever_happens_every_seat_has_one_node_and_no_name_comes_twice(steps: list[tuple[str, int]]) -> None:
    story, wanted, names = workers(3), 3, {"worker-0", "worker-1", "worker-2"}
    for what, number in steps:
        live = list(story.m.nodes)
        node = live[number % len(live)] if live else NodeId("worker-0")
        before = story.m
        match what:
            case "count":
                story.after(group.planned(story.m, a_plan(number), now=NOW))
                wanted = number if 1 <= number <= 8 else wanted
            case "run":
                story.after(group.running(story.m, node, now=NOW))
            case "lose":
                story.after(group.lost(story.m, node, reason="killed", now=NOW))
            case "succeed":
                known = story.m.nodes.get(node)
                if known is not None and not known.is_released and known.status is NodeStatus.RUNNING:
                    story.after(group.succeeded(story.m, node))
                    wanted -= 1
            case _:
                size = LARGE if what == "grow" else SMALL
                story.after(group.planned(story.m, a_plan(nodes={node: size}), now=NOW))
        fresh = set(story.launched) if story.m is not before else set()
        assert not fresh & names
        names |= fresh
        assert len(story.m.staying) == wanted
        seats = [n.seat for n in story.m.staying]
        assert len(set(seats)) == len(seats)
        for old, new in story.m.successors.items():
            assert story.m.nodes[old].seat == story.m.nodes[new].seat
            assert not story.m.nodes[old].is_released
            assert not story.m.nodes[new].is_released
