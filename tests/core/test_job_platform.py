"""A platform that adds nodes by itself: the job adopts what is announced, and asks only for replacements."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from tests.core.job_builders import Story

from shoal.core.exits import ProcessExit
from shoal.core.job import reconcile, refusal
from shoal.core.job.values import (
    AgentDisconnected,
    Announced,
    LeaveNode,
    NodeExited,
    NodeLeft,
    NodesAnnounced,
    PeerLost,
    ScaleAsked,
    SpecChanged,
)
from shoal.core.nodes import NodeId, NodeStatus
from shoal.core.plans import NodeResource
from shoal.core.view import JobPhase
from shoal.core.world import Pause

TWO = ("worker-0", "worker-1")
THREE = (*TWO, "worker-2")


def announced(*nodes: str, memory: int | None = None) -> NodesAnnounced:
    resource = NodeResource(memory=memory)
    return NodesAnnounced(
        nodes=tuple(Announced(node=NodeId(node), seat=seat, resource=resource) for seat, node in enumerate(nodes))
    )


def a_job(*nodes: str, memory: int | None = None, memory_limit: int | None = None) -> Story:
    story = Story(nodes=0, platform_grows=True, memory_limit=memory_limit)
    story.happen(ScaleAsked(count=len(nodes), who="the grant"))
    story.happen(announced(*nodes, memory=memory))
    return story


def test_announced_nodes_are_expected_and_not_launched() -> None:
    story = a_job(*THREE)
    assert story.launched() == []
    story.train(*THREE)
    assert story.world == list(THREE)


def test_the_first_world_waits_for_everybody_who_was_announced() -> None:
    story = a_job(*TWO)
    story.join("worker-0")
    story.ready("worker-0")
    assert story.job.rendezvous.pending is None
    story.join("worker-1")
    story.ready("worker-1")
    assert story.job.rendezvous.pending is not None


def test_growing_is_left_to_the_platform_and_the_newcomer_joins_at_a_step_boundary() -> None:
    story = a_job(*TWO)
    story.train(*TWO)
    story.happen(ScaleAsked(count=3, who="the grant"))
    assert story.launched() == []
    story.happen(announced(*THREE))
    story.join("worker-2")
    story.ready("worker-2")
    assert story.told(Pause)[-1].to == TWO


def test_a_lost_node_is_replaced_under_a_number_that_nobody_had() -> None:
    story = a_job("worker-4", "worker-7")
    story.train("worker-4", "worker-7")
    story.happen(NodeExited(node=NodeId("worker-4"), exit=ProcessExit(code=137)))
    assert story.launched() == ["worker-8"]
    assert story.removed() == ["worker-4"]


def test_out_of_memory_asks_for_more_up_to_the_limit_of_the_job() -> None:
    story = a_job(*TWO, memory=1000, memory_limit=1200)
    story.train(*TWO)
    story.happen(NodeExited(node=NodeId("worker-1"), exit=ProcessExit(code=137, oom=True)))
    assert story.job.nodes[NodeId("worker-2")].resource.memory == 1200


def test_what_a_node_has_may_be_told_after_it_was_announced() -> None:
    story = a_job(*TWO)
    story.train(*TWO)
    story.happen(announced(*TWO, memory=1000))
    story.happen(announced(*TWO))  # an older word
    story.happen(NodeExited(node=NodeId("worker-1"), exit=ProcessExit(code=137, oom=True)))
    assert story.job.nodes[NodeId("worker-2")].resource.memory == 2048


def test_a_grant_above_the_first_maximum_makes_a_world_of_that_size() -> None:
    story = Story(nodes=0, maximum=2, platform_grows=True)
    story.happen(ScaleAsked(count=3, who="the grant"))
    story.happen(announced(*THREE))
    story.train(*THREE)
    assert story.world == list(THREE)


def test_people_ask_the_cluster_for_nodes_and_not_the_master() -> None:
    said = refusal(a_job(*TWO).job, 3)
    assert said is not None
    assert "kubectl scale ej/" in said
    job = a_job(*TWO).job
    said = refusal(replace(job, spec=replace(job.spec, called="tj")), 3)
    assert said is not None
    assert "kubectl scale tj/" in said


def test_the_named_go_first() -> None:
    story = a_job(*THREE)
    story.train(*THREE)
    story.happen(ScaleAsked(count=2, who="the grant", victims=frozenset({NodeId("worker-0")})))
    story.ready(*THREE, step=33)
    assert story.told(LeaveNode)[-1].to == ("worker-0",)


def test_a_suspended_job_is_drained_and_neither_succeeds_nor_fails_for_want_of_nodes() -> None:
    story = a_job(*TWO)
    story.train(*TWO)
    story.happen(ScaleAsked(count=0, who="the grant"))
    story.ready(*TWO, step=33)
    for node in TWO:
        story.happen(NodeLeft(node=NodeId(node)))
    story.wait(3600)
    assert story.job.ending is None
    assert story.removed() == list(TWO)

    story.happen(ScaleAsked(count=1, who="the grant"))
    story.happen(announced("worker-5"))
    story.train("worker-5", step=40)
    assert story.world == ["worker-5"]
    assert story.view.phase is JobPhase.RUNNING


def test_a_node_that_has_ended_stays_ended_however_often_it_is_announced() -> None:
    story = a_job(*TWO)
    story.train(*TWO)
    story.happen(NodeExited(node=NodeId("worker-1"), exit=ProcessExit(code=137)))
    before = story.job
    story.happen(announced(*TWO))
    assert story.job == before
    assert story.job.nodes[NodeId("worker-1")].status is NodeStatus.FAILED


@given(st.lists(st.sets(st.integers(0, 6)), max_size=6))
def test_announcing_is_idempotent_and_numbers_are_never_used_twice(rounds: list[set[int]]) -> None:
    story = Story(nodes=0, maximum=8, platform_grows=True)
    story.happen(ScaleAsked(count=4, who="the grant"))
    for numbers in rounds:
        said = announced(*(f"worker-{number}" for number in sorted(numbers)))
        story.happen(said)
        known = story.job
        story.happen(said)
        assert story.job == known
        assert story.job.next_number > max((node.number for node in story.job.nodes.values()), default=-1)


def gone(story: Story, node: str) -> None:
    """As a killed Pod looks to its master: the socket closes, and a peer's connection to it."""
    story.happen(AgentDisconnected(node=NodeId(node)))
    generation = story.job.rendezvous.generation
    story.happen(PeerLost(node=NodeId("worker-0"), incarnation=1, generation=generation, detail="closed"))


def test_a_node_that_is_gone_is_replaced_when_the_platform_has_said_how_it_ended() -> None:
    story = a_job(*TWO, memory=1000)
    story.train(*TWO)
    gone(story, "worker-1")
    assert story.job.nodes[NodeId("worker-1")].status is NodeStatus.FAILED  # the others go on at once
    assert story.launched() == []
    story.happen(NodeExited(node=NodeId("worker-1"), exit=ProcessExit(code=137, oom=True)))
    assert story.launched() == ["worker-2"]
    assert story.job.nodes[NodeId("worker-2")].resource.memory == 2048
    story.happen(NodeExited(node=NodeId("worker-1"), exit=ProcessExit(code=137, oom=True)))
    assert story.launched() == ["worker-2"]


def test_a_platform_that_does_not_say_how_a_node_ended_is_not_waited_for_long() -> None:
    story = a_job(*TWO)
    story.train(*TWO)
    gone(story, "worker-1")
    story.wait(story.job.settings.explained_after.total_seconds())
    assert story.launched() == ["worker-2"]
    assert story.removed() == ["worker-1"]


def test_a_node_that_was_given_up_and_then_refused_does_not_fail_the_job() -> None:
    story = a_job(*TWO)
    story.train(*TWO)
    gone(story, "worker-1")
    story.happen(NodeExited(node=NodeId("worker-1"), exit=ProcessExit(code=76)))
    assert story.job.ending is None
    assert story.launched() == ["worker-2"]


def test_a_node_that_dies_while_it_leaves_is_not_replaced() -> None:
    story = a_job(*THREE)
    story.train(*THREE)
    story.happen(ScaleAsked(count=2, who="the grant"))
    story.happen(NodeExited(node=NodeId("worker-2"), exit=ProcessExit(code=137)))
    assert story.launched() == []
    assert story.removed() == ["worker-2"]
    assert len([node for node in story.job.nodes.values() if node.is_live]) == 2


def test_only_what_the_platform_has_told_of_can_be_missing() -> None:
    story = a_job(*TWO)
    story.train(*TWO)
    story.happen(NodeExited(node=NodeId("worker-1"), exit=ProcessExit(code=137)))  # worker-2 is asked for
    found = reconcile(story.job, [NodeId("worker-0")], known=[NodeId("worker-0")], reason="seen")
    assert ([n.id for n in found.gone], [n.id for n in found.plan.launch_nodes]) == ([], ["worker-2"])
    found = reconcile(story.job, [], known=[NodeId("worker-0"), NodeId("worker-2")], reason="seen")
    assert ([n.id for n in found.gone], found.plan.launch_nodes) == (["worker-0", "worker-2"], ())


# A platform that says only how many: the master makes the Pods ------------------------------------------------------


def test_a_job_that_fills_its_grant_launches_by_itself_and_never_more_than_granted() -> None:
    story = Story(nodes=0, platform_grows=True, fills_grant=True)
    story.happen(ScaleAsked(count=2, who="the grant"))
    assert story.launched() == list(TWO)
    story.happen(announced(*TWO))  # what it launched comes back as the platform's word
    story.train(*TWO)
    story.happen(ScaleAsked(count=3, who="the grant"))
    assert story.launched() == list(THREE)
    assert "kubectl scale" in (refusal(story.job, 5) or "")


def test_a_seat_of_a_granted_node_that_left_by_itself_is_not_filled_again() -> None:
    story = Story(nodes=0, platform_grows=True, fills_grant=True)
    story.happen(ScaleAsked(count=2, who="the grant"))
    story.train(*TWO)
    story.happen(NodeLeft(node=NodeId("worker-1")))
    assert story.job.target == 2  # so the grant is no news
    assert story.launched() == list(TWO)


def test_who_fills_the_grant_may_change_from_master_to_master() -> None:
    story = a_job(*TWO)
    story.happen(SpecChanged(spec=replace(story.job.spec, fills_grant=True)))
    story.happen(ScaleAsked(count=3, who="the grant"))
    assert story.launched() == ["worker-2"]
