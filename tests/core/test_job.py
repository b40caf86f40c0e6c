"""Whole stories of one job, told to the core as events."""

from datetime import timedelta

from tests.core.job_builders import Story

from shoal.core.exits import ProcessExit
from shoal.core.hang import HangSettings
from shoal.core.job import admit, deadline, refusal
from shoal.core.job.handle import Admitted, Rejected
from shoal.core.job.values import (
    AgentDisconnected,
    AgentJoined,
    DumpStacks,
    End,
    Fence,
    HeartbeatSeen,
    KillProcesses,
    LeaveNode,
    NodeExited,
    NodeLeft,
    NodeReady,
    PeerLost,
    ProcessExited,
    ResizeTold,
    RestartNode,
    ScaleAsked,
    StopAsked,
    StopNode,
)
from shoal.core.nodes import NodeId, NodeStatus, ProcessSeen
from shoal.core.view import JobPhase
from shoal.core.world import Interrupt, Pause, Prepare, Release

THREE = ("worker-0", "worker-1", "worker-2")


def test_a_job_launches_its_nodes_and_forms_one_world_when_all_are_ready() -> None:
    story = Story()
    assert story.launched() == list(THREE)
    story.join(*THREE)
    story.ready(*THREE[:2])
    assert story.told(Prepare) == []
    story.ready(THREE[2])
    story.ack()
    assert story.world == list(THREE)
    assert story.view.phase is JobPhase.RUNNING


def test_the_first_sdk_process_turns_a_plain_world_into_one_of_processes_without_interrupting_anybody() -> None:
    story = Story()
    story.join(*THREE)
    story.ready(*THREE, sdk=False)
    story.ack()
    story.ready(*THREE)
    story.ack()
    assert story.told(Interrupt) == []
    assert story.view.sdk
    assert story.view.generation == 2


def test_a_node_that_does_not_know_of_the_sdk_is_told_to_start_its_processes() -> None:
    story = Story()
    story.train(*THREE)
    story.happen(ScaleAsked(count=4, who="me"))
    story.join("worker-3")
    story.ready("worker-3", sdk=False)
    assert [t.what for t in story.told(RestartNode)] == [
        RestartNode(incarnation=1, sdk=True, reason="the job uses the SDK")
    ]
    assert story.told(Pause) == []


def test_a_killed_process_interrupts_the_others_which_go_on_without_waiting_for_it() -> None:
    story = Story()
    story.train(*THREE)
    story.crash("worker-1", 137)
    assert story.told(Interrupt)[-1].to == ("worker-0", "worker-2")
    assert story.told(RestartNode)[-1].to == ("worker-1",)
    story.ready("worker-0", "worker-2", step=31)
    story.ack()
    assert story.world == ["worker-0", "worker-2"]
    story.ready("worker-1")
    assert story.told(Pause)[-1].to == ("worker-0", "worker-2")
    story.ready("worker-0", "worker-2", step=40)
    story.ack()
    assert story.world == ["worker-0", "worker-2", "worker-1"]


def test_late_words_of_an_earlier_incarnation_change_nothing() -> None:
    story = Story()
    story.train(*THREE)
    story.crash("worker-1", 137)
    before = story.job
    story.happen(HeartbeatSeen(node=NodeId("worker-9"), incarnation=1, processes=()))
    known = story.job.nodes[NodeId("worker-1")]
    assert known.incarnation == 2
    story.happen(NodeReady(node=known.id, incarnation=1, steps=(30,), sdk=True))
    story.happen(ProcessExited(node=known.id, incarnation=1, local_rank=0, exit=ProcessExit(code=1)))
    assert story.job == before


def test_a_lost_agent_is_fenced_and_another_node_takes_its_seat() -> None:
    story = Story()
    story.train(*THREE)
    story.happen(NodeExited(node=NodeId("worker-0"), exit=ProcessExit(code=137)))
    assert any(isinstance(e, Fence) and e.node == "worker-0" for e in story.last)
    assert story.launched() == [*THREE, "worker-3"]
    assert story.removed() == ["worker-0"]
    assert story.job.nodes[NodeId("worker-3")].seat == 0
    _, answer = admit(story.job, NodeId("worker-0"), 1, story.now)
    assert isinstance(answer, Rejected)


def test_a_closed_socket_alone_is_suspicion_for_ten_seconds() -> None:
    story = Story()
    story.train(*THREE)
    story.happen(AgentDisconnected(node=NodeId("worker-2")))
    assert story.told(Interrupt) == []
    assert deadline(story.job) == story.now + timedelta(seconds=10)
    story.wait(9.9)
    assert story.told(Interrupt) == []
    story.beat()
    story.wait(0.2)
    assert story.told(Interrupt)[-1].to == ("worker-0", "worker-1")


def test_a_closed_socket_and_a_peer_that_lost_its_connection_are_proof() -> None:
    story = Story()
    story.train(*THREE)
    story.happen(AgentDisconnected(node=NodeId("worker-2")))
    story.happen(
        PeerLost(node=NodeId("worker-0"), incarnation=1, generation=story.job.rendezvous.generation, detail="closed")
    )
    assert story.told(Interrupt)[-1].to == ("worker-0", "worker-1")


def test_an_agent_that_comes_back_in_time_disturbs_nobody() -> None:
    story = Story()
    story.train(*THREE)
    story.happen(AgentDisconnected(node=NodeId("worker-2")))
    story.now += timedelta(seconds=5)
    story.happen(
        AgentJoined(
            node=NodeId("worker-2"),
            incarnation=1,
            generation=story.job.rendezvous.generation,
            pid=1,
            host="h",
            address="a",
        )
    )
    story.beat()
    story.wait(9)
    assert story.told(Interrupt) == []


def test_an_agent_that_slept_through_a_new_world_leads_to_another_one() -> None:
    story = Story()
    story.train(*THREE)
    story.happen(AgentDisconnected(node=NodeId("worker-2")))
    story.happen(AgentJoined(node=NodeId("worker-2"), incarnation=1, generation=0, pid=1, host="h", address="a"))
    assert len(story.told(Interrupt)) == 1


def test_a_broken_connection_between_members_forms_the_world_anew_and_kills_nobody() -> None:
    story = Story()
    story.train(*THREE)
    story.happen(PeerLost(node=NodeId("worker-0"), incarnation=1, generation=1, detail="closed"))
    assert story.told(Interrupt) == []
    story.wait(1)
    assert set(story.told(Interrupt)[-1].to) == set(THREE)
    assert story.launched() == list(THREE)


def test_silence_is_death_after_ten_seconds() -> None:
    story = Story()
    story.train(*THREE)
    story.now += timedelta(seconds=9)
    for node in THREE[:2]:
        story.happen(HeartbeatSeen(node=NodeId(node), incarnation=1, processes=()))
    story.wait(2)
    assert story.launched() == [*THREE, "worker-3"]


def test_scaling_down_drains_the_youngest_at_a_step_boundary() -> None:
    story = Story()
    story.train(*THREE)
    story.happen(ScaleAsked(count=2, who="me"))
    assert story.told(Pause)[-1].to == THREE
    assert story.told(LeaveNode) == []
    story.ready(*THREE, step=33)
    assert story.told(LeaveNode)[-1].to == ("worker-2",)
    story.ack()
    assert story.world == ["worker-0", "worker-1"]
    story.happen(NodeLeft(node=NodeId("worker-2")))
    assert story.job.nodes[NodeId("worker-2")].status is NodeStatus.SUCCEEDED
    assert story.view.phase is JobPhase.RUNNING


def test_scaling_up_launches_first_and_pauses_only_when_the_newcomer_is_ready() -> None:
    story = Story()
    story.train(*THREE)
    story.happen(ScaleAsked(count=4, who="me"))
    assert story.launched() == [*THREE, "worker-3"]
    story.join("worker-3")
    assert story.told(Pause) == []
    story.ready("worker-3")
    assert story.told(Pause)[-1].to == THREE


def test_a_count_outside_the_range_or_the_unit_is_refused_with_the_reason() -> None:
    story = Story()
    assert "takes 1 to 4" in (refusal(story.job, 5) or "")
    assert "takes 1 to 4" in (refusal(story.job, 0) or "")
    assert refusal(story.job, 4) is None


def test_the_job_succeeds_when_all_members_of_the_world_do_and_whoever_was_still_coming_is_stopped() -> None:
    story = Story()
    story.train(*THREE)
    story.happen(ScaleAsked(count=4, who="me"))
    story.join("worker-3")
    story.finish(*THREE)
    assert story.told(Release)[-1].to == THREE
    story.succeed(*THREE)
    assert story.told(StopNode)[-1].to == ("worker-3",)
    story.happen(NodeExited(node=NodeId("worker-3"), exit=ProcessExit(code=143)))
    assert story.view.phase is JobPhase.SUCCEEDED
    assert any(isinstance(e, End) for e in story.effects)


def test_a_first_success_does_not_stop_the_recovery_of_others() -> None:
    story = Story()
    story.join(*THREE)
    story.ready(*THREE, sdk=False)
    story.ack()
    story.succeed("worker-0")
    story.crash("worker-1", 137)
    assert story.told(RestartNode)[-1].to == ("worker-1",)
    story.ready("worker-1", "worker-2", sdk=False)
    story.ack()
    assert story.world == ["worker-1", "worker-2"] or story.world == ["worker-2", "worker-1"]
    story.succeed("worker-1", "worker-2")
    assert story.view.phase is JobPhase.SUCCEEDED


def test_the_same_error_on_every_rank_before_the_first_step_fails_the_job_at_once() -> None:
    story = Story()
    story.join(*THREE)
    story.ready(*THREE, sdk=False)
    story.ack()
    for node in THREE:
        story.crash(node, 1, error="Traceback ...\nModuleNotFoundError: No module named 'nope'")
    assert story.told(RestartNode) == []
    assert story.job.ending is JobPhase.FAILED
    assert "No module named 'nope'" in story.view.reason
    assert "every rank" in story.view.reason


def test_an_early_error_of_one_rank_is_recovered_after_a_short_wait() -> None:
    story = Story()
    story.join(*THREE)
    story.ready(*THREE, sdk=False)
    story.ack()
    story.crash("worker-1", 1)
    assert story.told(RestartNode) == []
    story.wait(2)
    assert story.told(RestartNode)[-1].to == ("worker-1",)
    assert story.job.ending is None


def test_a_crash_loop_ends_with_the_traceback_in_the_view() -> None:
    story = Story(minimum=3)
    story.train(*THREE)
    for _ in range(3):
        story.crash("worker-1", 1, error="ValueError: bad")
        assert story.job.ending is None
    story.crash("worker-1", 1, error="ValueError: bad")
    assert story.job.ending is JobPhase.FAILED
    assert story.view.error == "ValueError: bad"


def test_a_step_gained_in_between_resets_the_count_of_recoveries_without_progress() -> None:
    story = Story(minimum=1)
    story.train(*THREE)
    for round_ in range(3):
        story.crash("worker-1", 1)
        story.ready("worker-0", "worker-2", step=30 + round_)
        story.ack()
        story.gain(31 + round_)
    assert story.job.without_progress == 0


def test_do_not_restart_fails_the_job_and_stops_everybody() -> None:
    story = Story()
    story.train(*THREE)
    story.crash("worker-0", 76)
    assert story.told(StopNode)[-1].to == THREE
    for node in THREE:
        story.happen(NodeExited(node=NodeId(node), exit=ProcessExit(code=143)))
    assert story.view.phase is JobPhase.FAILED
    assert story.view.exit_code == 1


def test_a_member_that_left_is_not_replaced() -> None:
    story = Story()
    story.train(*THREE)
    story.crash("worker-2", 77)
    assert story.launched() == list(THREE)
    assert story.told(RestartNode) == []
    story.ready("worker-0", "worker-1", step=30)
    story.ack()
    assert story.world == ["worker-0", "worker-1"]


def test_a_stopped_process_is_killed_as_a_hang_and_charged() -> None:
    story = Story(hang=HangSettings(timeout=timedelta(seconds=5)))
    story.train(*THREE, step=0)
    story.now += timedelta(seconds=1)
    story.gain(40)
    for node in THREE:
        seen = ProcessSeen(
            local_rank=0,
            pid=9,
            stopped=node == "worker-1",
            cpu=0,
            memory_bytes=1,
            step=40,
            collectives=80,
            busy=None,
        )
        story.happen(HeartbeatSeen(node=NodeId(node), incarnation=1, processes=(seen,)))
    story.wait(6)
    kill = story.told(KillProcesses)
    assert kill[-1].to == ("worker-1",)
    story.wait(1)
    assert story.told(KillProcesses) == kill
    story.crash("worker-1", 137)
    assert story.job.budgets[1].used == 1
    assert story.told(DumpStacks) == []


def test_stopping_gives_the_grace_period_and_ends_when_everybody_is_gone() -> None:
    story = Story()
    story.train(*THREE)
    story.happen(StopAsked(reason="Ctrl-C"))
    assert story.told(StopNode)[-1].to == THREE
    assert not any(isinstance(e, End) for e in story.effects)
    for node in THREE:
        story.happen(AgentDisconnected(node=NodeId(node)))
    assert story.view.phase is JobPhase.STOPPED
    assert any(isinstance(e, End) for e in story.effects)


def test_stopping_ends_at_the_deadline_even_if_nobody_listens() -> None:
    story = Story()
    story.train(*THREE)
    story.happen(StopAsked(reason="Ctrl-C", grace=timedelta(seconds=1)))
    story.wait(5)
    assert story.view.phase is JobPhase.STOPPING
    story.wait(1.5)
    assert story.view.phase is JobPhase.STOPPED


def test_too_few_nodes_for_too_long_fail_the_job() -> None:
    story = Story(nodes=2, minimum=2, pending_timeout=timedelta(seconds=30))
    story.wait(1)
    story.wait(31)
    assert story.job.ending is JobPhase.FAILED
    assert "2 are needed" in story.view.reason


def test_nodes_that_join_by_themselves_are_named_and_the_next_one_too_many_is_refused() -> None:
    story = Story(nodes=1, maximum=2)
    story.train("worker-0")
    story.job, answer = admit(story.job, None, 1, story.now)
    assert isinstance(answer, Admitted)
    assert answer.node == "worker-1"
    story.join("worker-1")
    story.ready("worker-1")
    assert story.told(Pause)[-1].to == ("worker-0",)
    _, answer = admit(story.job, None, 1, story.now)
    assert isinstance(answer, Rejected)
    assert "all of its 2 nodes" in answer.reason


def test_the_first_round_waits_for_nodes_that_were_promised_but_only_until_the_last_call() -> None:
    story = Story(nodes=1, maximum=3, joins=2)
    story.join("worker-0")
    story.ready("worker-0", sdk=False)
    assert story.told(Prepare) == []
    story.job, answer = admit(story.job, None, 1, story.now)
    assert isinstance(answer, Admitted)
    story.join(answer.node)
    story.ready(answer.node, sdk=False)
    assert story.told(Prepare) == []
    story.wait(3)
    story.ack()
    assert story.world == ["worker-0", "worker-1"]
    assert story.job.nodes[NodeId("worker-2")].status is NodeStatus.DELETED


def test_a_lost_node_that_joined_by_itself_is_not_relaunched() -> None:
    story = Story(nodes=1, maximum=2)
    story.train("worker-0")
    story.job, _ = admit(story.job, None, 1, story.now)
    story.join("worker-1")
    story.ready("worker-1")
    story.ready("worker-0", step=31)
    story.ack()
    launched = story.launched()
    story.happen(AgentDisconnected(node=NodeId("worker-1")))
    story.now += timedelta(seconds=9)
    story.beat()
    story.wait(2)
    assert story.launched() == launched
    assert story.told(Interrupt)[-1].to == ("worker-0",)


def test_a_change_of_world_costs_what_its_slowest_member_says_and_only_those_count_who_went_through_it() -> None:
    story = Story()
    story.train(*THREE)
    story.crash("worker-0", 137)
    story.ready("worker-1", "worker-2", step=30)
    story.ack()
    story.ready("worker-0")
    story.ready("worker-1", "worker-2", step=40)
    story.ack()
    for node, seconds in zip(THREE, (9.0, 0.3, 0.2), strict=True):
        story.happen(
            ResizeTold(
                node=NodeId(node),
                generation=3,
                drain=seconds,
                rendezvous=1 - seconds,
                restore=0,
                first_step=0.5,
                lost_steps=0,
            )
        )
    resize = story.view.resizes[-1]
    assert (resize.before, resize.after, resize.continuing) == (2, 3, 2)
    assert (resize.drain, resize.rendezvous, resize.reported) == (0.3, 0.8, 2)


def test_a_failure_after_training_had_finished_fails_the_job_instead_of_training_again() -> None:
    story = Story()
    story.train(*THREE)
    story.finish(*THREE)
    story.crash("worker-0", 1, error="OSError: disk full")
    assert story.job.ending is JobPhase.FAILED
    assert "after training had finished" in story.view.reason
