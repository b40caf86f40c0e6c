"""Failures that come in company, late, or at an awkward moment."""

from datetime import timedelta

from tests.core.job_builders import Story

from shoal.core.exits import ProcessExit
from shoal.core.hang import HangSettings
from shoal.core.job.values import (
    AgentDisconnected,
    HeartbeatSeen,
    KillProcesses,
    LeaveNode,
    NodeExited,
    NodeLeft,
    NodeReady,
    PeerLost,
    ProcessExited,
    RestartNode,
    Scale,
    Ticked,
)
from shoal.core.nodes import NodeId, NodeStatus, ProcessSeen
from shoal.core.view import JobPhase
from shoal.core.world import Interrupt, Prepare

THREE = ("worker-0", "worker-1", "worker-2")
FOUR = (*THREE, "worker-3")


def plain(story: Story, *nodes: str) -> None:
    story.join(*nodes)
    story.ready(*nodes, sdk=False)
    story.ack()


def test_an_early_error_of_one_of_two_processes_of_a_node_is_not_an_error_on_every_rank() -> None:
    story = Story(nodes=1, maximum=1, nproc=2)
    plain(story, "worker-0")
    story.crash("worker-0", 1, error="ValueError: once")
    story.wait(2)
    assert story.job.ending is None
    assert story.told(RestartNode)[-1].to == ("worker-0",)


def test_an_error_on_every_rank_is_seen_where_nodes_have_other_numbers_of_processes() -> None:
    story = Story(nodes=2, nproc=3)
    story.join("worker-0", "worker-1")
    for node, processes in (("worker-0", 1), ("worker-1", 2)):
        steps = (None,) * processes
        story.happen(NodeReady(node=NodeId(node), incarnation=1, steps=steps, sdk=False))
    story.ack()
    exit = ProcessExit(code=1, error="ValueError: everywhere", uptime_seconds=1)
    for node, local_rank in (("worker-0", 0), ("worker-1", 0), ("worker-1", 1)):
        assert story.job.ending is None
        story.happen(ProcessExited(node=NodeId(node), incarnation=1, local_rank=local_rank, exit=exit))
    assert story.job.ending is not None
    assert "on every rank" in story.view.reason


def test_an_error_beside_a_rank_that_ended_well_is_not_an_error_on_every_rank() -> None:
    story = Story(nodes=2, maximum=2)
    plain(story, "worker-0", "worker-1")
    story.succeed("worker-0")
    story.crash("worker-1", 1, error="ValueError: late")
    story.wait(2)
    assert story.job.ending is None


def test_a_plain_script_that_worked_for_a_while_is_restarted_although_it_reports_no_steps() -> None:
    story = Story(nodes=1, maximum=1)
    plain(story, "worker-0")
    story.crash("worker-0", 1, uptime=8)
    assert story.job.ending is None
    assert story.told(RestartNode)[-1].to == ("worker-0",)


def test_peers_that_die_of_one_members_failure_are_restarted_without_being_charged() -> None:
    story = Story(nodes=4, minimum=4)
    plain(story, *FOUR)
    story.crash("worker-1", 1, error="ValueError: the cause", uptime=30)
    for node in ("worker-0", "worker-2", "worker-3"):
        story.crash(node, 1, error="RuntimeError: Connection closed by peer", uptime=30)
    assert story.job.ending is None
    assert {seat: budget.used for seat, budget in story.job.budgets.items()} == {1: 1}
    assert story.job.without_progress == 1
    assert story.view.error == "ValueError: the cause"
    assert {t.to[0] for t in story.told(RestartNode)} == set(FOUR)


def test_a_process_that_fails_again_before_the_next_world_is_charged_again() -> None:
    story = Story(minimum=3)
    story.train(*THREE)
    story.crash("worker-1", 1)
    story.crash("worker-1", 1)
    assert story.job.budgets[1].used == 2


def test_a_master_that_was_stopped_for_a_while_gives_nobody_up_for_that() -> None:
    story = Story()
    story.train(*THREE)
    story.happen(AgentDisconnected(node=NodeId("worker-2")))
    story.now += timedelta(seconds=60)
    story.happen(Ticked(late=timedelta(seconds=59)))
    assert story.told(Interrupt) == []
    assert story.launched() == list(THREE)
    story.beat()
    story.wait(9)
    assert story.told(Interrupt)[-1].to == ("worker-0", "worker-1")


def test_what_was_seen_of_a_killed_process_is_not_held_against_the_next_one() -> None:
    story = Story(hang=HangSettings(timeout=timedelta(seconds=5)))
    story.train(*THREE)

    def stopped(incarnation: int) -> None:
        seen = ProcessSeen(local_rank=0, pid=9, stopped=True, cpu=0, memory_bytes=1, step=1, collectives=1, busy=None)
        story.happen(HeartbeatSeen(node=NodeId("worker-1"), incarnation=incarnation, processes=(seen,)))

    story.now += timedelta(seconds=1)
    story.gain(60)
    stopped(1)
    story.wait(6)
    assert len(story.told(KillProcesses)) == 1
    story.crash("worker-1", 137)
    stopped(1)  # a late word of the earlier incarnation
    for _ in range(4):
        story.beat()
        story.wait(0.5)
    assert len(story.told(KillProcesses)) == 1
    assert story.job.budgets[1].used == 1


def test_a_newcomer_that_does_not_fit_goes_and_the_job_goes_on() -> None:
    story = Story(nodes=2, maximum=3)
    story.train("worker-0", "worker-1")
    story.crash("worker-1", 137)
    story.ready("worker-0", step=31)
    story.ack()
    story.ready("worker-1")
    story.ready("worker-0", step=40)
    story.ack()
    story.crash("worker-1", 76, error="the training state differs")
    assert story.job.ending is None
    assert story.told(LeaveNode)[-1].to == ("worker-1",)
    story.ready("worker-0", step=40)
    story.ack()
    assert story.world == ["worker-0"]


def test_when_somebody_ended_well_and_too_few_are_left_the_job_fails_at_once() -> None:
    story = Story(nodes=2, minimum=2, maximum=2)
    plain(story, "worker-0", "worker-1")
    story.succeed("worker-0")
    story.crash("worker-1", 1, uptime=90)
    assert story.job.ending is JobPhase.FAILED
    assert "ended well" in story.view.reason


def test_who_ended_well_is_not_missed_by_one_who_still_works() -> None:
    story = Story(nodes=2, minimum=2, maximum=2, pending_timeout=timedelta(seconds=30))
    plain(story, "worker-0", "worker-1")
    story.succeed("worker-0")
    for _ in range(10):
        story.beat()
        story.wait(9)
    assert story.job.ending is None
    story.succeed("worker-1")
    assert story.job.ending is JobPhase.SUCCEEDED


def test_a_job_that_fails_on_the_first_of_many_losses_launches_nobody_for_the_others() -> None:
    story = Story()
    story.train(*THREE)
    story.finish(*THREE)  # a loss after the release fails the job
    story.now += timedelta(seconds=11)
    story.happen(Ticked())
    assert story.job.ending is JobPhase.FAILED
    assert not [e for e in story.last if isinstance(e, Scale) and e.plan.launch_nodes]


def test_a_node_that_leaves_by_itself_is_let_go_and_the_others_are_interrupted() -> None:
    story = Story()
    story.train(*THREE)
    story.happen(NodeLeft(node=NodeId("worker-2")))
    assert story.job.nodes[NodeId("worker-2")].status is NodeStatus.SUCCEEDED
    assert story.told(Interrupt)[-1].to == ("worker-0", "worker-1")
    story.ready("worker-0", "worker-1", step=30)
    story.ack()
    assert story.world == ["worker-0", "worker-1"]
    assert story.launched() == list(THREE)


def test_a_plain_job_that_lost_a_node_waits_for_its_replacement_instead_of_restarting_twice() -> None:
    story = Story()
    plain(story, *THREE)
    story.happen(NodeExited(node=NodeId("worker-0"), exit=ProcessExit(code=137)))
    story.ready("worker-1", "worker-2", sdk=False)
    assert len(story.told(Prepare)) == 1
    story.join("worker-3")
    story.ready("worker-3", sdk=False)
    story.ack()
    assert story.world == ["worker-1", "worker-2", "worker-3"]


def test_a_peers_report_after_the_job_has_failed_changes_nothing() -> None:
    story = Story()
    story.train(*THREE)
    for node in ("worker-1", "worker-2"):
        story.happen(AgentDisconnected(node=NodeId(node)))
    story.crash("worker-0", 76)
    launched = story.launched()
    story.happen(PeerLost(node=NodeId("worker-0"), incarnation=1, generation=1, detail="closed"))
    assert story.launched() == launched


def test_an_early_error_in_both_processes_of_the_only_node_fails_the_job() -> None:
    story = Story(nodes=1, maximum=1, nproc=2)
    plain(story, "worker-0")
    for rank in (0, 1):
        exit = ProcessExit(code=1, error="ImportError: no", uptime_seconds=1)
        story.happen(ProcessExited(node=NodeId("worker-0"), incarnation=1, local_rank=rank, exit=exit))
    assert story.job.ending is JobPhase.FAILED
    assert "on every rank" in story.view.reason
