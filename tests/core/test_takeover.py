"""A new master goes on where the old one died: nobody is restarted, nobody is given up too soon."""

from dataclasses import replace
from datetime import timedelta

import pytest
from tests.core.job_builders import Story

from shoal.core import journal
from shoal.core.exits import ProcessExit
from shoal.core.job import Job, admit, named, reconcile, taken_over, waits_for_record
from shoal.core.job.handle import Admitted, Rejected
from shoal.core.job.values import (
    AgentJoined,
    Announced,
    Command,
    Fence,
    KillProcesses,
    LeaveNode,
    NodeExited,
    NodeReady,
    NodesAnnounced,
    PeerLost,
    Scale,
    ScaleAsked,
    StopAsked,
    StopNode,
    Tell,
)
from shoal.core.nodes import NodeId
from shoal.core.view import JobPhase
from shoal.core.world import Break, Interrupt, Pause, Prepare, Release


def failover(story: Story) -> None:
    """The master dies; another one has its records."""
    job = journal.replay([journal.snapshot(story.job)])
    assert job is not None
    story.job = taken_over(job, story.now, reason="another master took over")
    story.effects.clear()


def forgetful_failover(story: Story, recorded: Job) -> None:
    """The master dies; the next one has records from before its store was away."""
    story.job = recorded
    failover(story)


def back(
    story: Story,
    *nodes: str,
    generation: int | None = None,
    prepared: int = 0,
    incarnation: int | None = None,
) -> None:
    """Agents come back and tell the world they are in."""
    committed = story.job.rendezvous.committed
    current = committed.generation if committed is not None else 0
    for name in nodes:
        known = story.job.nodes[NodeId(name)]
        story.happen(
            AgentJoined(
                node=known.id,
                incarnation=known.incarnation if incarnation is None else incarnation,
                generation=current if generation is None else generation,
                prepared=prepared,
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


# What was done while nothing could be written down --------------------------------------------------------


def told_to_come_out(story: Story) -> dict[str, int]:
    """Who was told to come out of which world."""
    return {node: tell.what.generation for tell in story.told(Interrupt) for node in tell.to}  # type: ignore[union-attr]


def test_agents_of_a_world_that_was_not_written_down_form_the_next_one_under_a_new_number() -> None:
    story = trained()
    recorded = story.job
    story.crash("worker-2", 137)
    story.ready("worker-0", "worker-1", step=30)
    story.ack()
    assert story.view.generation == 2
    forgetful_failover(story, recorded)
    back(story, "worker-0", "worker-1", generation=2, prepared=2)
    assert told_to_come_out(story) == {"worker-0": 2, "worker-1": 2, "worker-2": 1}
    story.ready("worker-0", "worker-1", step=31)
    assert story.job.rendezvous.pending is None, "worker-2 may be in yet another world"
    back(story, "worker-2", generation=0, prepared=1, incarnation=2)
    story.ack()
    assert (story.world, story.view.generation) == (["worker-0", "worker-1"], 3)
    story.ready("worker-2")
    assert [tell.to for tell in story.told(Pause)] == [("worker-0", "worker-1")], "it joins as soon as it is up"
    assert [line.reason for line in story.job.decisions if "not written down" in line.reason] == [
        "worker-0 knows what was not written down: it has heard of world 2, not only of 1",
        "worker-2 knows what was not written down: its processes are incarnation 2, not 1",
    ]


def test_who_never_comes_back_does_not_hold_the_next_world_up_for_ever() -> None:
    story = trained()
    recorded = story.job
    forgetful_failover(story, recorded)
    back(story, "worker-0", "worker-1", generation=0, prepared=5)
    story.ready("worker-0", "worker-1", step=30)
    story.happen(NodeExited(node=NodeId("worker-2"), exit=ProcessExit(code=137)))
    story.wait(4)
    assert story.job.rendezvous.pending is not None
    assert story.job.rendezvous.pending.generation == 6


def test_a_world_whose_commit_was_not_written_down_trains_on() -> None:
    story = Story(nodes=2)
    story.join("worker-0", "worker-1")
    story.ready("worker-0", "worker-1")
    recorded = story.job
    story.ack()
    forgetful_failover(story, recorded)
    back(story, "worker-0", "worker-1", generation=1, prepared=1)
    assert story.effects == []
    assert (story.view.phase, story.world) == (JobPhase.RUNNING, ["worker-0", "worker-1"])


def test_a_member_that_did_not_hear_of_that_commit_ends_the_world() -> None:
    story = Story(nodes=2)
    story.join("worker-0", "worker-1")
    story.ready("worker-0", "worker-1")
    recorded = story.job
    story.ack()
    forgetful_failover(story, recorded)
    back(story, "worker-0", generation=1, prepared=1)
    back(story, "worker-1", generation=0, prepared=1)
    assert told_to_come_out(story) == {"worker-0": 1, "worker-1": 1}


def test_a_member_that_joins_with_a_higher_number_does_not_disturb_the_world_that_trains() -> None:
    story = trained(2)
    story.happen(ScaleAsked(count=3, who="test"))
    recorded = story.job
    forgetful_failover(story, recorded)
    back(story, "worker-0", "worker-1", prepared=1)
    story.effects.clear()
    back(story, "worker-2", generation=7, prepared=7)
    assert told_to_come_out(story) == {"worker-2": 7}
    story.happen(PeerLost(node=NodeId("worker-0"), incarnation=1, generation=1, detail="closed"))
    story.wait(2)
    assert told_to_come_out(story) == {"worker-2": 7, "worker-0": 1, "worker-1": 1}, "its own members still count"


def test_a_node_that_was_started_and_not_written_down_is_taken_over_with_its_seat() -> None:
    story = trained()
    recorded = story.job
    story.happen(NodeExited(node=NodeId("worker-1"), exit=ProcessExit(code=137)))
    assert story.launched() == ["worker-0", "worker-1", "worker-2", "worker-3"]
    forgetful_failover(story, recorded)
    story.happen(NodesAnnounced(nodes=(Announced(node=NodeId("worker-3"), seat=1),)))
    story.happen(NodeExited(node=NodeId("worker-1"), exit=ProcessExit(code=137)))
    assert (story.launched(), story.removed()) == ([], ["worker-1"])
    assert admit(story.job, NodeId("worker-3"), 1, story.now)[1] == Admitted(node=NodeId("worker-3"), incarnation=1)


@pytest.mark.parametrize("name", ["worker-x", "nobody-7", "worker--1", "worker-" + "9" * 400])
def test_names_that_are_no_nodes_change_nothing(name: str) -> None:
    story = trained(2)
    before = story.job
    story.happen(NodesAnnounced(nodes=(Announced(node=NodeId(name), seat=1),)))
    assert (story.job.nodes, named(story.job, [NodeId(name)])) == (before.nodes, story.job)


def test_names_that_the_platform_has_seen_are_not_given_away_again() -> None:
    story = trained(2)
    story.job = named(story.job, [NodeId("worker-6"), NodeId("worker-0")])
    story.happen(ScaleAsked(count=3, who="test"))
    assert story.launched()[-1] == "worker-7"


@pytest.mark.parametrize(
    ("command", "waits"),
    [
        (Release(1, (NodeId("worker-0"),)), True),
        (LeaveNode(reason="enough", grace=timedelta(0)), True),
        (StopNode(reason="over", grace=timedelta(0)), False),
        (Interrupt(1, (NodeId("worker-0"),), "lost"), False),
    ],
)
def test_only_who_is_let_go_waits_for_the_record(command: Command, waits: bool) -> None:
    assert waits_for_record(Tell(to=(NodeId("worker-0"),), what=command)) is waits


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
