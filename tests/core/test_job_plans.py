"""A ResourcePlan for a job that trains in worlds: counts, other resources, other hosts, and what is refused."""

from hypothesis import given
from hypothesis import strategies as st
from tests.core.job_builders import Story

from shoal.core.job import plan_refusal
from shoal.core.job.values import LeaveNode, PlanAsked
from shoal.core.nodes import NodeId
from shoal.core.plans import NodeGroupResource, NodeResource, ResourcePlan


def workers(count: int, *, cpu: float | None = None) -> ResourcePlan:
    group = NodeGroupResource(count=count, node_resource=NodeResource(cpu=cpu))
    return ResourcePlan(node_group_resources={"worker": group}, reason="a plan")


def asked(story: Story, plan: ResourcePlan) -> None:
    assert plan_refusal(story.job, plan) is None
    story.happen(PlanAsked(plan=plan, who="test"))


def test_a_plan_for_more_workers_launches_them_with_what_it_says() -> None:
    story = Story(nodes=2)
    story.train("worker-0", "worker-1")
    asked(story, ResourcePlan(node_group_resources=workers(4, cpu=2.0).node_group_resources, reason="r"))
    new = [story.job.nodes[NodeId(n)] for n in story.launched()[2:]]
    assert {n.resource.cpu for n in new} == {2.0}
    assert story.job.target == 4


def test_a_plan_for_fewer_workers_lets_the_youngest_leave_at_a_step() -> None:
    story = Story(nodes=3)
    story.train("worker-0", "worker-1", "worker-2")
    asked(story, workers(2))
    story.ready("worker-0", "worker-1", "worker-2", step=31)
    story.ack()
    assert story.world == ["worker-0", "worker-1"]
    assert [tell.to for tell in story.told(LeaveNode)] == [("worker-2",)]


def test_a_worker_with_other_resources_is_ready_before_the_one_it_replaces_leaves() -> None:
    story = Story(nodes=2, maximum=3)
    story.train("worker-0", "worker-1")
    asked(story, ResourcePlan(node_resources={"j-worker-1": NodeResource(memory=4096)}, reason="r"))
    assert story.launched()[-1] == "worker-2"
    story.join("worker-2")
    assert not story.job.rendezvous.members[NodeId("worker-1")].leaving
    story.ready("worker-2")
    assert story.job.rendezvous.members[NodeId("worker-1")].leaving
    story.ready("worker-0", "worker-1", step=31)
    story.ack()
    assert story.world == ["worker-0", "worker-2"]
    assert (story.job.nodes[NodeId("worker-2")].seat, story.job.successors) == (1, {})


def test_a_successor_that_is_lost_is_followed_by_the_next() -> None:
    story = Story(nodes=2, maximum=3)
    story.train("worker-0", "worker-1")
    asked(story, ResourcePlan(replace_nodes=("worker-1",), reason="it is slow"))
    assert story.job.nodes[NodeId("worker-2")].avoid_hosts == {"h"}
    story.join("worker-2")
    story.crash("worker-2", 137)
    story.happen_exit("worker-2")
    assert story.job.successors == {"worker-1": "worker-3"}


def test_a_plan_for_a_job_whose_size_is_the_clusters_to_say_is_refused() -> None:
    story = Story(platform_grows=True)
    said = plan_refusal(story.job, workers(2))
    assert said is not None
    assert "ask there: kubectl scale" in said
    assert plan_refusal(story.job, ResourcePlan(reason="nothing")) is None


@given(st.lists(st.integers(0, 6), max_size=6))
def test_whatever_plans_come_the_job_has_what_the_last_possible_one_asked_for(counts: list[int]) -> None:
    story, wanted = Story(nodes=2), 2
    story.train("worker-0", "worker-1")
    for count in counts:
        plan = workers(count)
        if plan_refusal(story.job, plan) is None:
            asked(story, plan)
            wanted = count
            numbers = [n.number for n in story.job.nodes.values()]
            assert len(numbers) == len(set(numbers)), "no name is used twice"
    members = story.job.rendezvous.members
    staying = [n for n in story.job.nodes.values() if n.is_live and not members[n.id].leaving]
    assert len(staying) == wanted == story.job.target
    assert 1 <= wanted <= 4
