"""The PS manager's stories, one at a time."""

import pytest
from tests.core.ps.cast import MODEL, Cast, a_plan

from shoal.core.nodes import NodeId, Role
from shoal.core.plans import NodeResource
from shoal.core.ps import manager
from shoal.core.ps.cluster import Fresh, FromCheckpoint, LiveCopy, Partition, ThroughCheckpoint, Transfer
from shoal.core.ps.values import Kind, Phase, PSSettings, RefuseTrainer
from shoal.core.ps.words import ChiefIs, Go, ModelNamed, Move, PreparePS, ToTrainer


def training(servers: int = 2, trainers: int = 2, **settings: object) -> Cast:
    """A job that trains."""
    cast = Cast(servers=servers, **settings)  # type: ignore[arg-type]
    for _ in range(trainers):
        cast.join()
    cast.settle()
    assert cast.m.change is None
    assert all(t.running for t in cast.trainers.values())
    return cast


def nodes_of(cast: Cast) -> list[str]:
    assert cast.m.current is not None
    return [server.node for server in cast.m.current.servers]


def test_a_job_begins_with_a_version_that_the_chief_has_filled() -> None:
    cast = training()
    assert nodes_of(cast) == ["ps-0", "ps-1"]
    assert cast.m.current is not None
    assert cast.m.current.source == Fresh()
    assert cast.m.chief == "worker-0"
    assert cast.settled == [1]


def test_nobody_is_told_to_train_before_there_is_state() -> None:
    cast = Cast(servers=1)
    worker = cast.join()
    cast.speak(worker)
    cast.come(NodeId("ps-0"))
    words = []
    while cast.trainers[worker].inbox:
        words.append(type(cast.trainers[worker].inbox[0]).__name__)
        cast.hear(worker)
        if cast.trainers[worker].outbox:
            cast.speak(worker)
    assert words == ["ChiefIs", "PreparePS", "Move", "Go", "Settled"]


def test_more_servers_join_when_all_of_them_are_there_and_nothing_is_lost() -> None:
    cast = training(2)
    for _ in range(5):
        cast.step(NodeId("worker-0"))
    cast.plan(a_plan(4))
    cast.come(NodeId("ps-2"))
    cast.settle_words()
    assert nodes_of(cast) == ["ps-0", "ps-1"]
    assert cast.trainers[NodeId("worker-0")].running
    cast.step(NodeId("worker-1"))
    cast.settle()
    assert nodes_of(cast) == ["ps-0", "ps-1", "ps-2", "ps-3"]
    assert cast.m.current is not None
    assert cast.m.current.source == LiveCopy(1)
    cast.step(NodeId("worker-0"))
    assert cast.ledger == 7


def test_servers_that_are_to_go_stay_until_everybody_has_acknowledged() -> None:
    cast = training(3)
    cast.plan(a_plan(2))
    assert cast.m.pre_dropped == {"ps-2"}
    assert cast.m.next_training_ps_cluster is not None
    assert cast.m.next_training_ps_cluster.ranks == (0, 1)
    cast.trainers[NodeId("worker-1")].mute = True
    cast.settle()
    assert cast.m.change is not None
    assert cast.m.change.phase is Phase.PREPARING
    cast.trainers[NodeId("worker-1")].mute = False
    while cast.m.change is not None and cast.m.change.phase is not Phase.RESUMING:
        cast.one_word()
    assert cast.m.pre_dropped == {"ps-2"}
    assert not cast.leaving
    cast.settle()
    assert cast.m.pre_dropped == frozenset()
    assert list(cast.m.nodes) == ["ps-0", "ps-1"]


def test_named_victims_go_first() -> None:
    cast = training(3)
    cast.plan(a_plan(2), frozenset({NodeId("ps-0")}))
    cast.settle()
    assert nodes_of(cast) == ["ps-1", "ps-2"]
    cast.plan(a_plan(3))
    cast.settle()
    assert nodes_of(cast) == ["ps-3", "ps-1", "ps-2"]


def test_a_migrated_server_is_replaced_on_its_rank_and_only_then_ended() -> None:
    cast = training(2)
    placement = cast.m.current.placement if cast.m.current else ()
    cast.plan(a_plan(cpu={"my-job-ps-1": 8.0}))
    assert "ps-1" in cast.servers
    cast.settle()
    assert nodes_of(cast) == ["ps-0", "ps-2"]
    assert cast.m.nodes[NodeId("ps-2")].resource == NodeResource(cpu=8.0)
    assert cast.m.current is not None
    assert cast.m.current.placement == placement
    assert "ps-1" not in cast.servers
    cast.plan(a_plan(cpu={"my-job-ps-1": 8.0}))
    assert cast.m.change is None


def test_a_server_that_never_comes_up_is_given_up_and_training_goes_on() -> None:
    cast = training(2)
    cast.plan(a_plan(3, reason="more throughput"))
    cast.settle_words()
    assert cast.wait_for_deadline()
    cast.settle()
    assert nodes_of(cast) == ["ps-0", "ps-1"]
    assert cast.m.goal.count == 2
    assert list(cast.m.nodes) == ["ps-0", "ps-1"]
    assert "ps-2 did not come up within 0:15:00; training goes on with 2 parameter servers" in cast.said[-1]
    cast.step(NodeId("worker-0"))


def test_a_trainer_that_does_not_drain_ends_the_change_and_the_others_go_on() -> None:
    cast = training(2)
    cast.plan(a_plan(1))
    while cast.m.change is not None and cast.m.change.phase is not Phase.DRAINING:
        cast.one_word()
    cast.trainers[NodeId("worker-1")].mute = True
    cast.settle()
    assert not cast.trainers[NodeId("worker-0")].running
    assert cast.wait_for_deadline()
    cast.settle()
    assert cast.m.change is None
    assert nodes_of(cast) == ["ps-0", "ps-1"]
    cast.step(NodeId("worker-0"))


def test_an_answer_to_an_earlier_barrier_is_none_to_this_one() -> None:
    """It stood still, was let go, and its word about the first pause comes when the second was asked for."""
    cast = training(2)
    chief, worker = NodeId("worker-0"), NodeId("worker-1")
    cast.save()
    cast.speak(chief)
    cast.hear(worker)  # Drain; what it says is on its way
    assert cast.wait_for_deadline()
    assert cast.m.change is None
    while cast.trainers[chief].inbox or cast.trainers[chief].outbox:
        (cast.hear if cast.trainers[chief].inbox else cast.speak)(chief)
    cast.save()
    while cast.trainers[chief].outbox or cast.trainers[chief].inbox:
        (cast.hear if cast.trainers[chief].inbox else cast.speak)(chief)
    cast.hear(worker)  # Go; it has not heard the second Drain
    cast.speak(worker)  # that it stood still at the first
    assert cast.trainers[worker].running
    assert cast.m.change is not None
    assert cast.m.change.phase is Phase.DRAINING
    cast.step(worker)
    cast.settle()
    assert [checkpoint.step for checkpoint in cast.m.checkpoints] == [1]


def test_a_copy_that_does_not_work_goes_through_a_checkpoint() -> None:
    cast = training(1)
    cast.trainers[NodeId("worker-0")].copies = False
    moves: list[Transfer] = []
    cast.plan(a_plan(2))
    cast.settle(watch=lambda word: moves.append(word.transfer) if isinstance(word, Move) else None)
    assert [type(move) for move in moves] == [LiveCopy, ThroughCheckpoint]
    assert nodes_of(cast) == ["ps-0", "ps-1"]


def test_without_a_path_a_copy_that_does_not_work_ends_the_change() -> None:
    cast = training(1, directory=None)
    cast.trainers[NodeId("worker-0")].copies = False
    cast.plan(a_plan(2))
    cast.settle()
    assert nodes_of(cast) == ["ps-0"]
    assert "the state could not be moved: it does not work" in cast.said[-1]
    cast.step(NodeId("worker-1"))


def test_a_lost_server_is_replaced_and_model_and_ledger_go_back_together() -> None:
    cast = training(2)
    cast.step(NodeId("worker-0"))
    cast.save()
    cast.settle()
    for _ in range(3):
        cast.step(NodeId("worker-1"))
    cast.gone(NodeId("ps-1"))
    cast.settle()
    assert nodes_of(cast) == ["ps-0", "ps-2"]
    assert cast.m.current is not None
    assert cast.m.current.ranks == (0, 1)
    assert isinstance(cast.m.current.source, FromCheckpoint)
    assert cast.ledger == 1
    cast.step(NodeId("worker-0"))


def test_a_server_that_is_lost_before_anything_was_saved_starts_training_over() -> None:
    cast = training(2)
    cast.step(NodeId("worker-0"))
    cast.gone(NodeId("ps-0"))
    cast.settle()
    assert cast.ledger == 0
    cast.step(NodeId("worker-0"))


def test_without_a_path_a_lost_server_ends_the_job_with_a_reason() -> None:
    cast = training(2, directory=None)
    cast.gone(NodeId("ps-0"))
    assert cast.failed == ("ps-0 is gone: what it held is lost, and there is no checkpoint path to restore it from")


def test_a_process_that_started_again_on_its_node_has_lost_its_state_too() -> None:
    cast = training(2)
    cast.crash(NodeId("ps-1"))
    assert cast.m.change is not None
    assert cast.m.change.kind is Kind.ROLLBACK
    cast.settle()
    assert cast.m.change is not None
    cast.up_again(NodeId("ps-1"))
    cast.settle()
    assert nodes_of(cast) == ["ps-0", "ps-1"]
    cast.step(NodeId("worker-0"))


def test_a_checkpoint_that_cannot_be_read_is_passed_over_for_the_one_before() -> None:
    cast = training(2)
    for _ in range(2):
        cast.step(NodeId("worker-0"))
        cast.save()
        cast.settle()
    del cast.disk[cast.m.checkpoints[-1].path]
    cast.gone(NodeId("ps-1"))
    cast.settle()
    assert cast.ledger == 1
    cast.step(NodeId("worker-0"))


def test_a_job_whose_checkpoints_are_all_unreadable_fails_and_says_which() -> None:
    cast = training(2)
    cast.save()
    cast.settle()
    path = cast.m.checkpoints[-1].path
    cast.disk.clear()
    cast.gone(NodeId("ps-1"))
    cast.settle()
    assert cast.failed == f"{path} could not be restored: it does not work"


def test_a_resize_that_a_loss_interrupts_is_done_afterwards() -> None:
    cast = training(2)
    cast.plan(a_plan(3))
    cast.gone(NodeId("ps-0"))
    cast.settle()
    assert len(nodes_of(cast)) == 3
    assert cast.m.current is not None
    assert isinstance(cast.m.current.source, LiveCopy)


def test_a_second_plan_takes_the_place_of_one_that_nobody_has_noticed() -> None:
    cast = training(2)
    cast.plan(a_plan(4))
    cast.come(NodeId("ps-2"))
    cast.plan(a_plan(3))
    cast.settle()
    assert nodes_of(cast) == ["ps-0", "ps-1", "ps-2"]
    assert cast.published == [1, 2]


def test_a_second_plan_waits_for_a_change_that_is_under_way() -> None:
    cast = training(2)
    cast.plan(a_plan(3))
    cast.come(NodeId("ps-2"))
    cast.plan(a_plan(1))
    cast.settle()
    assert nodes_of(cast) == ["ps-0"]
    assert cast.published == [1, 2, 3]


def test_a_chief_that_is_lost_while_it_moves_state_is_followed_by_another_with_another_number() -> None:
    cast = training(2)
    cast.plan(a_plan(1))
    while cast.m.change is not None and cast.m.change.phase is not Phase.MOVING:
        cast.one_word()
    cast.die(NodeId("worker-0"))
    cast.settle()
    assert cast.published == [1, 3]
    assert cast.m.chief == "worker-1"
    assert nodes_of(cast) == ["ps-0"]


def test_the_next_worker_is_chief_when_the_chief_is_lost_and_nobody_else_notices() -> None:
    cast = training(2, trainers=3)
    cast.die(NodeId("worker-0"))
    assert cast.m.chief == "worker-1"
    assert [t.running for t in cast.trainers.values()] == [True, True]
    assert cast.m.change is None


def test_a_node_that_was_launched_as_chief_is_chief_once_it_trains() -> None:
    cast = training(1, trainers=1)
    chief = cast.join(Role.CHIEF)
    cast.speak(chief)
    assert cast.m.chief == "worker-0"
    cast.settle()
    assert cast.m.chief == chief


def test_a_worker_that_joins_disturbs_nobody() -> None:
    cast = training(2)
    worker = cast.join()
    heard: list[ToTrainer] = []
    cast.settle(watch=heard.append)
    assert [type(word) for word in heard] == [ChiefIs, PreparePS, Go]
    assert cast.trainers[worker].running
    assert cast.published == [1]


def test_a_trainer_that_joins_while_all_stand_still_waits() -> None:
    cast = training(2)
    cast.plan(a_plan(1))
    while cast.m.change is not None and cast.m.change.phase is not Phase.MOVING:
        cast.one_word()
    worker = cast.join()
    cast.speak(worker)
    assert not any(isinstance(word, PreparePS) for word in cast.trainers[worker].inbox)
    cast.settle()
    assert cast.trainers[worker].running


def test_a_trainer_with_another_model_is_refused() -> None:
    cast = training(2)
    other = (*MODEL[1:], Partition(name="w", nbytes=4))
    _, effects = manager.heard(cast.m, NodeId("worker-9"), 1, Role.WORKER, ModelNamed(partitions=other), now=cast.now)
    assert effects == (
        RefuseTrainer(
            node=NodeId("worker-9"),
            reason="worker-9: its model is not the one that the job trains: it differs in v0, w",
        ),
    )


def test_a_server_that_cannot_be_reached_is_given_up_after_a_while() -> None:
    cast = training(2)
    cast.unreach(NodeId("worker-0"), rank=1)
    cast.settle_words()
    assert cast.m.change is None
    cast.wait(11)
    cast.settle()
    assert nodes_of(cast) == ["ps-0", "ps-2"]
    assert "ps-1" not in cast.servers


def test_a_server_that_can_be_reached_again_stays() -> None:
    cast = training(2)
    cast.unreach(NodeId("worker-0"), rank=1)
    cast.settle_words()
    cast.reach(NodeId("worker-0"))
    cast.settle_words()
    cast.wait(11)
    assert cast.m.change is None


@pytest.mark.parametrize("count", [0, 5])
def test_a_count_that_the_job_does_not_take_is_refused_with_the_reason(count: int) -> None:
    cast = training(2)
    before = cast.m
    cast.plan(a_plan(count, reason="an idea"))
    assert cast.m == before
    assert cast.said[-1] == f"not done: an idea, because ps={count} asked, the job takes 1 to 4"


def test_a_first_count_below_the_minimum_is_an_error() -> None:
    with pytest.raises(ValueError, match="ps=1 asked, the job takes 2 to 4"):
        manager.new_manager(PSSettings(min_servers=2, max_servers=4), servers=1, now=Cast().now)


def test_a_plan_for_a_server_that_is_not_there_changes_nothing() -> None:
    cast = training(2)
    before = cast.m
    cast.plan(a_plan(cpu={"ps-7": 4.0, "worker-0": 4.0, "nonsense": 4.0}))
    assert cast.m == before


def test_a_trainer_that_does_not_go_on_is_restarted_and_the_old_servers_go() -> None:
    cast = training(2)
    cast.plan(a_plan(1))
    while cast.m.change is not None and cast.m.change.phase is not Phase.RESUMING:
        cast.one_word()
    cast.trainers[NodeId("worker-1")].mute = True
    cast.settle()
    assert "ps-1" in cast.servers
    assert cast.wait_for_deadline()
    assert cast.returning == {NodeId("worker-1"): (2, Role.WORKER)}
    cast.settle()
    assert "ps-1" not in cast.servers
    assert all(t.running for t in cast.trainers.values())
