"""A new master goes on where the old one died: nobody is restarted, nobody is given up too soon."""

from dataclasses import replace
from datetime import timedelta

from tests.core.job_builders import Story

from shoal.core import journal
from shoal.core.job import admit, reconcile, taken_over
from shoal.core.job.handle import Admitted, Rejected
from shoal.core.job.values import AgentJoined, Fence, KillProcesses, NodeReady, PeerLost, Scale, StopAsked, StopNode
from shoal.core.nodes import NodeId
from shoal.core.view import JobPhase
from shoal.core.world import Break, Interrupt, Prepare


def failover(story: Story) -> None:
    """The master dies; another one has its records."""
    job = journal.replay([journal.snapshot(story.job)])
    assert job is not None
    story.job = taken_over(job, story.now, reason="another master took over")
    story.effects.clear()


def back(story: Story, *nodes: str, generation: int | None = None) -> None:
    """Agents come back and tell the world they are in."""
    committed = story.job.rendezvous.committed
    current = committed.generation if committed is not None else 0
    for name in nodes:
        known = story.job.nodes[NodeId(name)]
        story.happen(
            AgentJoined(
                node=known.id,
                incarnation=known.incarnation,
                generation=current if generation is None else generation,
                pid=1,
                host="h",
                address="127.0.0.1",
            )
        )


def trained(nodes: int = 3) -> Story:
    story = Story(nodes=nodes)
    story.train(*(f"worker-{n}" for n in range(nodes)))
    return story


def test_members_that_come_back_train_on_in_the_same_world() -> None:
    story = trained()
    before = story.job.rendezvous
    failover(story)
    back(story, "worker-0", "worker-1", "worker-2")
    story.wait(1)
    assert story.job.rendezvous == before
    assert story.effects == []
    story.gain(31)
    assert story.view.step == 31


def test_nobody_is_given_up_for_a_minute() -> None:
    story = trained()
    failover(story)
    back(story, "worker-0", "worker-1")
    for _ in range(11):
        story.wait(5)
        story.beat()
    assert story.view.phase is JobPhase.RUNNING
    story.wait(6)
    assert story.launched() == ["worker-3"]
    assert "worker-2: disconnected for 60 s" in story.job.decisions[-1].reason


def test_a_closed_connection_between_members_gives_nobody_up_who_has_not_come_back() -> None:
    story = trained()
    failover(story)
    back(story, "worker-0")
    story.happen(PeerLost(node=NodeId("worker-0"), incarnation=1, generation=1, detail="closed"))
    assert not [e for e in story.effects if isinstance(e, Fence | Scale)]
    assert story.job.seen[NodeId("worker-1")].unheard


def test_a_world_that_was_being_formed_is_formed() -> None:
    story = Story(nodes=2)
    story.join("worker-0", "worker-1")
    story.ready("worker-0", "worker-1")
    assert story.job.rendezvous.pending is not None
    failover(story)
    back(story, "worker-0", "worker-1", generation=0)
    assert [tell.to for tell in story.told(Prepare)] == [("worker-0",), ("worker-1",)]
    story.ack()
    assert story.world == ["worker-0", "worker-1"]


def test_a_commit_that_reached_nobody_leads_to_the_next_world() -> None:
    story = trained(2)
    failover(story)
    back(story, "worker-0", "worker-1", generation=0)
    assert story.job.rendezvous.breaking is Break.INTERRUPT
    assert story.told(Interrupt)
    for name in ("worker-0", "worker-1"):
        story.happen(NodeReady(node=NodeId(name), incarnation=1, steps=(None,), sdk=True))
    story.ack()
    assert story.job.rendezvous.committed is not None
    assert story.job.rendezvous.committed.generation == 2


def test_a_process_that_hangs_is_told_to_die_again() -> None:
    story = trained(2)
    story.job = replace(story.job, hanging=frozenset({(NodeId("worker-1"), 1, 0)}))
    failover(story)
    assert story.job.hanging == frozenset()
    assert not story.told(KillProcesses)


def test_an_outage_is_no_hang() -> None:
    story = trained(2)
    story.now += timedelta(hours=1)
    failover(story)
    assert story.job.gain.at == story.now


def test_a_member_that_comes_back_to_an_ending_job_has_the_rest_of_its_grace_period() -> None:
    story = trained(2)
    story.happen(StopAsked(reason="enough", grace=timedelta(seconds=20)))
    story.now += timedelta(seconds=5)
    failover(story)
    job, answer = admit(story.job, NodeId("worker-0"), 1, story.now)
    assert isinstance(answer, Admitted)
    back(story, "worker-0")
    (told,) = story.told(StopNode)
    assert isinstance(told.what, StopNode)
    assert told.what.grace == timedelta(seconds=15)
    assert isinstance(admit(job, None, 1, story.now)[1], Rejected)


def test_an_ended_job_is_not_touched() -> None:
    story = trained(1)
    story.finish("worker-0")
    story.succeed("worker-0")
    assert story.view.phase is JobPhase.SUCCEEDED
    assert taken_over(story.job, story.now, reason="late") is story.job


# What exists ---------------------------------------------------------------------------------------------


def test_nodes_that_were_asked_for_and_do_not_exist_are_launched() -> None:
    story = Story(nodes=3)
    found = reconcile(story.job, {NodeId("worker-1")}, reason="look")
    assert [node.id for node in found.plan.launch_nodes] == ["worker-0", "worker-2"]
    assert (found.gone, found.plan.remove_nodes) == ((), ())


def test_nodes_that_ran_and_exist_no_more_are_gone() -> None:
    story = trained(2)
    found = reconcile(story.job, {NodeId("worker-1")}, reason="look")
    assert [node.id for node in found.gone] == ["worker-0"]
    assert found.plan.is_empty


def test_nodes_that_are_done_with_and_still_exist_are_removed() -> None:
    story = trained(2)
    story.wait(11)
    assert {"worker-0", "worker-1"} <= set(story.removed())
    found = reconcile(story.job, {NodeId(f"worker-{n}") for n in range(4)}, reason="look")
    assert [node.id for node in found.plan.remove_nodes] == ["worker-0", "worker-1"]
    assert found.plan.launch_nodes == ()


def test_nodes_that_joined_by_themselves_are_not_the_platforms_concern() -> None:
    story = Story(nodes=1, joins=1)
    story.join("worker-0", "worker-1")
    found = reconcile(story.job, {NodeId("worker-0")}, reason="look")
    assert found.gone == ()
    assert found.plan.is_empty
