"""The PS manager's stories, one at a time."""

from datetime import timedelta

import pytest
from tests.core.ps.cast import MODEL, Cast, a_plan

from shoal.core.nodes import NodeId, Role
from shoal.core.plans import NodeGroupResource, NodeResource, ResourcePlan
from shoal.core.ps import manager
from shoal.core.ps.cluster import Fresh, FromCheckpoint, LiveCopy, Partition, ThroughCheckpoint, Transfer
from shoal.core.ps.values import Kind, Phase, PSSettings, RefuseTrainer
from shoal.core.ps.versions import errand
from shoal.core.ps.words import ChiefIs, Go, ModelNamed, Move, PreparePS, Save, ToTrainer


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


def test_what_a_plan_says_of_the_role_holds_for_all_servers_but_those_that_are_named() -> None:
    cast = training(2)
    group = NodeGroupResource(count=3, node_resource=NodeResource(cpu=4.0))
    plan = ResourcePlan(
        node_group_resources={Role.PS: group}, node_resources={"ps-1": NodeResource(cpu=8.0)}, reason="a plan"
    )
    cast.plan(plan)
    cast.settle()
    assert [cast.m.nodes[NodeId(node)].resource.cpu for node in nodes_of(cast)] == [4.0, 8.0, 4.0]
    assert cast.published == [1, 2]


def test_a_later_plan_for_the_role_takes_an_earlier_wish_for_one_server_back() -> None:
    cast = training(2)
    cast.plan(a_plan(cpu={"ps-1": 8.0}))
    group = NodeGroupResource(count=2, node_resource=NodeResource(cpu=4.0))
    cast.plan(ResourcePlan(node_group_resources={Role.PS: group}, reason="another plan"))
    cast.settle()
    assert [cast.m.nodes[NodeId(node)].resource.cpu for node in nodes_of(cast)] == [4.0, 4.0]
    assert set(cast.servers) == set(nodes_of(cast))


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


def test_nobody_goes_back_to_a_checkpoint_that_does_not_outlive_its_nodes() -> None:
    cast = training(2, fleeting="checkpoint.path /ckpt is on no volume")
    cast.save()
    cast.settle()
    assert cast.m.checkpoints  # it may be of use to others
    cast.gone(NodeId("ps-0"))
    assert cast.failed == "ps-0 is gone: what it held is lost, and checkpoint.path /ckpt is on no volume"


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


def given_up(cast: Cast) -> None:
    """What cannot be restored is tried for as long as a server may be gone that nobody misses yet."""
    cast.settle()
    began = cast.now
    while cast.failed is None and cast.m.change is not None and cast.now - began < timedelta(minutes=2):
        cast.wait_for_deadline()
        cast.settle()


def test_a_server_that_is_gone_before_anybody_knows_does_not_end_the_job_that_begins() -> None:
    cast = Cast(servers=2)
    for node in sorted(cast.coming):
        cast.come(node)
    cast.join()
    lost = cast.servers.pop(NodeId("ps-1"))
    cast.settle()
    cast.wait(1)
    cast.settle()
    assert (cast.failed, cast.m.current) == (None, None), "the chief has tried and failed, twice"
    cast.gone(lost.node)
    cast.settle()
    assert nodes_of(cast) == ["ps-0", "ps-2"]
    cast.step(NodeId("worker-0"))


def test_a_checkpoint_that_cannot_be_read_is_passed_over_for_the_one_before() -> None:
    cast = training(2)
    for _ in range(2):
        cast.step(NodeId("worker-0"))
        cast.save()
        cast.settle()
    del cast.disk[cast.m.checkpoints[-1].path]
    cast.gone(NodeId("ps-1"))
    given_up(cast)
    assert cast.ledger == 1
    cast.step(NodeId("worker-0"))


def test_a_job_whose_checkpoints_are_all_unreadable_fails_and_says_which() -> None:
    cast = training(2)
    cast.save()
    cast.settle()
    path = cast.m.checkpoints[-1].path
    cast.disk.clear()
    cast.gone(NodeId("ps-1"))
    given_up(cast)
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
    for node in list(cast.trainers):
        cast.unreach(node, rank=1)
    cast.settle_words()
    assert cast.m.change is None
    cast.wait(11)
    cast.settle()
    assert nodes_of(cast) == ["ps-0", "ps-2"]
    assert "ps-1" not in cast.servers


def test_a_server_that_most_cannot_reach_is_given_up_though_somebody_can() -> None:
    cast = training(2, trainers=3)
    cast.unreach(NodeId("worker-0"), rank=1)
    cast.unreach(NodeId("worker-1"), rank=1)
    cast.settle_words()
    cast.wait(9)
    cast.step(NodeId("worker-2"))
    cast.wait(2)
    assert "ps-1" in cast.m.removing


def test_a_server_that_one_cannot_reach_and_others_can_stays_and_that_one_is_started_again() -> None:
    cast = training(2, trainers=3)
    cast.unreach(NodeId("worker-0"), rank=1)
    cast.settle_words()
    cast.wait(9)
    cast.step(NodeId("worker-2"))
    cast.wait(2)
    assert (cast.m.change, cast.m.removing) == (None, frozenset())
    assert "worker-0" in cast.returning
    cast.settle()
    assert nodes_of(cast) == ["ps-0", "ps-1"]


def test_a_server_that_one_cannot_reach_is_given_up_later_when_nobody_steps() -> None:
    """Others may be in a long step, or wait for the same server and get no error."""
    cast = training(2, trainers=3)
    began = cast.now
    cast.unreach(NodeId("worker-0"), rank=1)
    cast.settle_words()
    cast.wait(11)
    assert not cast.m.removing
    while cast.m.change is None:
        assert cast.wait_for_deadline()
    assert "ps-1" in cast.m.removing
    assert cast.now - began < timedelta(seconds=100)


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


def test_a_trainer_that_never_stands_still_is_started_again_so_that_others_can_save() -> None:
    cast = training(2)
    cast.join()
    cast.settle()
    cast.trainers[NodeId("worker-1")].mute = True
    for _ in range(3):
        assert cast.m.checkpoints == ()
        cast.save()
        cast.settle()
        cast.wait_for_deadline()
    assert set(cast.returning) == {"worker-1"}
    cast.settle()
    cast.save()
    cast.settle()
    assert len(cast.m.checkpoints) == 1


# A chief that never reports ----------------------------------------------------------------------------------------


def to_phase(cast: Cast, phase: Phase) -> None:
    """The change comes so far, and then the chief hears and says nothing any more."""
    while cast.m.change is None or cast.m.change.phase is not phase:
        assert cast.one_word() or cast.one_node()
    assert cast.m.chief is not None
    cast.trainers[cast.m.chief].mute = True
    cast.settle()


def test_a_chief_that_never_reports_a_move_ends_the_change_and_is_named() -> None:
    cast = training(2)
    cast.plan(a_plan(1, reason="less is enough"))
    to_phase(cast, Phase.MOVING)
    assert cast.wait_for_deadline()
    assert cast.said[-1] == (
        "given up: from 2 to 1 parameter server, because worker-0, the chief, was to move the state to the servers of "
        "version 2 and did not report within 0:05:00; training goes on with 2 parameter servers"
    )
    cast.settle()
    assert nodes_of(cast) == ["ps-0", "ps-1"]
    cast.step(NodeId("worker-1"))


def test_a_chief_that_never_reports_a_save_is_named_with_what_it_was_to_write_and_what_there_is() -> None:
    cast = training(2)
    cast.save()
    to_phase(cast, Phase.SAVING)
    task = errand(cast.m)
    assert isinstance(task, Save)
    assert cast.wait_for_deadline()
    silent = f"worker-0, the chief, was to save {task.path} and did not report within 0:05:00"
    assert cast.said[-1] == (f"a checkpoint: it is time is given up: {silent}; training goes on, and there is none yet")
    assert cast.m.unsaved == silent, "should the job end without one, this is why"
    cast.settle()
    cast.step(NodeId("worker-1"))
    cast.trainers[NodeId("worker-0")].mute = False
    cast.settle()
    cast.save()
    cast.settle()
    cast.save()
    to_phase(cast, Phase.SAVING)
    assert cast.wait_for_deadline()
    assert cast.said[-1].endswith("; training goes on, and the last one is of step 1")


def test_a_chief_that_never_reports_a_restore_is_started_again_and_another_does_it() -> None:
    cast = training(2)
    cast.save()
    cast.settle()
    path = cast.m.checkpoints[-1].path
    cast.gone(NodeId("ps-1"))
    to_phase(cast, Phase.MOVING)
    assert cast.wait_for_deadline()
    assert cast.restarted[NodeId("worker-0")] == (
        f"worker-0, the chief, was to restore {path} onto the servers of version 2 and did not report within 0:05:00: "
        "it is started again, and whoever is chief then does it"
    )
    cast.settle()
    assert cast.m.chief == "worker-1"
    assert nodes_of(cast) == ["ps-0", "ps-2"]
    cast.step(NodeId("worker-1"))


def test_a_chief_that_never_reports_a_beginning_is_started_again() -> None:
    cast = Cast(servers=1)
    cast.join()
    cast.join()
    while cast.m.change is not None and cast.m.change.phase is not Phase.MOVING:
        assert cast.one_word() or cast.one_node()
    cast.trainers[NodeId("worker-0")].mute = True
    cast.settle()
    assert cast.wait_for_deadline()
    assert "was to initialise the model on the servers of version 1" in cast.restarted[NodeId("worker-0")]


# Fuzzy checkpoints -------------------------------------------------------------------------------------------------


def test_nobody_stands_still_for_a_fuzzy_checkpoint() -> None:
    cast = training(2)
    heard: list[ToTrainer] = []
    cast.save(fuzzy=True)
    cast.settle(watch=heard.append)
    assert [type(word) for word in heard] == [Save]
    (made,) = cast.m.checkpoints
    assert made.fuzzy
    assert cast.m.change is None
    assert all(t.running for t in cast.trainers.values())


def test_what_is_restored_from_a_fuzzy_checkpoint_is_said() -> None:
    cast = training(2)
    cast.step(NodeId("worker-0"))
    cast.save(fuzzy=True)
    cast.settle()
    cast.gone(NodeId("ps-1"))
    cast.settle()
    assert "its checkpoint of step 1 is fuzzy, saved while training went on" in cast.said[-1]
    cast.save()
    cast.settle()
    cast.gone(NodeId("ps-0"))
    cast.settle()
    assert "version 3" in cast.said[-1]
    assert "fuzzy" not in cast.said[-1]


def test_a_change_waits_for_a_fuzzy_checkpoint_and_a_chief_that_dies_ends_it() -> None:
    cast = training(2)
    cast.save(fuzzy=True)
    cast.speak(NodeId("worker-0"))
    cast.plan(a_plan(1))
    assert cast.m.change is not None
    assert cast.m.change.fuzzy
    cast.step(NodeId("worker-1"))
    cast.die(NodeId("worker-0"))
    assert any(said.startswith("a fuzzy checkpoint: it is time is given up: worker-0") for said in cast.said)
    cast.settle()
    assert nodes_of(cast) == ["ps-0"]
    assert cast.m.checkpoints == ()


def test_who_comes_while_a_fuzzy_checkpoint_is_written_trains_with_the_others() -> None:
    cast = training(2)
    cast.save(fuzzy=True)
    cast.speak(NodeId("worker-0"))
    new = cast.join()
    for _ in range(2):
        cast.speak(new)
        while cast.trainers[new].inbox:
            cast.hear(new)
    assert cast.m.change is not None
    assert cast.m.change.fuzzy
    assert cast.trainers[new].running
    cast.settle()
    assert cast.m.change is None
    assert [made.fuzzy for made in cast.m.checkpoints] == [True]
    assert all(t.running for t in cast.trainers.values())


def test_a_job_that_is_to_rest_is_saved_whole_though_a_fuzzy_checkpoint_is_under_way() -> None:
    cast = training(2)
    cast.save(fuzzy=True)
    cast.speak(NodeId("worker-0"))
    cast.after(manager.save_first(cast.m, "it is to rest", now=cast.now))
    assert manager.save_first(cast.m, "it is to rest", now=cast.now) == (cast.m, ())
    cast.settle()
    assert [made.fuzzy for made in cast.m.checkpoints] == [True, False]
