"""A job with parameter servers, from its first version to its end: what the manager decides, done to the whole job."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from tests.core.ps_stories import CLICKS, MODEL, PSStory

from shoal.core import journal
from shoal.core import ledger as ledgers
from shoal.core.exits import ExitCause, ProcessExit
from shoal.core.facts import Limits
from shoal.core.hang import HangSettings
from shoal.core.job import (
    PSSpec,
    is_later,
    must_be_recorded,
    named,
    plan_refusal,
    resumed,
    taken_over,
    waits_for_record,
)
from shoal.core.job.handle import deadline
from shoal.core.job.values import (
    AgentDisconnected,
    Announced,
    CountPinned,
    DataWoken,
    Effect,
    HeartbeatSeen,
    Job,
    KillProcesses,
    LeaveNode,
    NodeExited,
    NodesAnnounced,
    PlanAsked,
    ProcessExited,
    RestartNode,
    SayWord,
    ScaleAsked,
    SelfSizing,
    ServersGranted,
    StepGained,
    StopNode,
    Tell,
    Ticked,
)
from shoal.core.ledger import Verdict
from shoal.core.nodes import NodeId, NodeStatus, ProcessSeen, Role
from shoal.core.plans import NodeGroupResource, NodeResource, ResourcePlan
from shoal.core.ps.cluster import FromCheckpoint, Partition
from shoal.core.ps.words import (
    CheckpointMade,
    Drain,
    EvaluatorReady,
    Go,
    ModelNamed,
    Move,
    PreparePS,
    Save,
    SaveWanted,
    Scored,
    ServerReady,
    ServerUnreachable,
)
from shoal.core.view import JobPhase


def a_plan(*, ps: int | None = None, worker: int | None = None, cpu: dict[str, float] | None = None) -> ResourcePlan:
    counts = {"ps": ps, "worker": worker}
    return ResourcePlan(
        node_group_resources={r: NodeGroupResource(count=n) for r, n in counts.items() if n is not None},
        node_resources={name: NodeResource(cpu=cores) for name, cores in (cpu or {}).items()},
        reason="a plan",
    )


def trained_through(story: PSStory, *nodes: str) -> None:
    """These workers train all that is left, in turns."""
    story.ask(nodes[0])  # names the dataset
    while not ledgers.is_complete(story.job.ledger):
        for node in nodes:
            (given,) = story.ask(node, want=1).given
            if given.leases:
                story.ask(node, completed=tuple(lease.attempt for lease in given.leases))


def killed(story: PSStory, node: str) -> None:
    story.happen(NodeExited(node=NodeId(node), exit=ProcessExit(code=137)))


# From beginning to end ---------------------------------------------------------------------------------------------


def test_a_job_launches_its_servers_and_its_workers_and_all_who_are_alone_of_their_kind() -> None:
    story = PSStory(workers=2, servers=2, chief=True, evaluator=True)
    assert sorted(story.launched()) == ["chief-2", "evaluator-3", "ps-0", "ps-1", "worker-0", "worker-1"]
    assert {n.role: n.seat for n in story.job.nodes.values() if n.number > 1} == {"chief": 0, "evaluator": 0}
    assert story.job.rendezvous.members == {}, "nobody waits for a world"
    assert story.job.phase is JobPhase.STARTING


def test_workers_train_when_all_servers_are_up() -> None:
    story = PSStory()
    story.name("worker-0", "worker-1")
    assert not story.words(PreparePS)
    story.serve("ps-0", "ps-1")
    story.obey()
    assert story.version == 1
    assert story.serving == ["ps-0", "ps-1"]
    assert sorted(n for tell in story.words(Go) for n in tell.to) == ["worker-0", "worker-1"]
    assert [tell.to for tell in story.words(Move)] == [("worker-0",)], "the senior worker is chief"
    assert story.job.phase is JobPhase.RUNNING


def test_a_node_that_was_launched_to_be_chief_is_chief() -> None:
    story = PSStory(chief=True)
    story.train("worker-0", "chief-2")
    assert story.job.servers is not None
    assert story.job.servers.chief == "chief-2"


def test_data_is_leased_only_to_workers_that_train() -> None:
    story = PSStory()
    story.serve("ps-0", "ps-1")
    story.name("worker-0")
    (given,) = story.ask("worker-0", want=2).given
    assert (given.verdict, given.leases) == (Verdict.WAIT, ())
    story.obey(tuple(story.effects))
    assert [tell.to for tell in story.told(DataWoken)] == [("worker-0",)]
    (given,) = story.ask("worker-0", want=2).given
    assert len(given.leases) == 2


def test_the_job_succeeds_when_all_data_is_trained_and_all_workers_have_ended() -> None:
    story = PSStory(evaluator=True)
    story.train()
    story.join("evaluator-2")
    story.say("evaluator-2", EvaluatorReady())
    trained_through(story, "worker-0", "worker-1")
    story.succeed("worker-1")
    story.say("worker-0", SaveWanted(reason="end"))
    story.obey()
    story.succeed("worker-0")
    (made,) = story.words(CheckpointMade)[-1:]
    assert made.what.word.final, "the evaluator knows that it is the last"  # type: ignore[union-attr]
    assert story.job.phase is JobPhase.RUNNING, "it is not over before the model is scored"
    story.say("evaluator-2", Scored(path=made.what.word.path, metrics={"auc": 0.8}))  # type: ignore[union-attr]
    stopped = {node for tell in story.told(StopNode) for node in tell.to}
    assert stopped == {"ps-0", "ps-1", "evaluator-2"}
    for node in sorted(stopped):
        killed(story, node)
    assert story.job.phase is JobPhase.SUCCEEDED
    assert story.view.servers is not None
    assert story.view.servers.scores[-1][1] == {"auc": 0.8}


def beaten(story: PSStory, seconds: float) -> None:
    """Time passes, and everybody lives."""
    story.now += timedelta(seconds=seconds)
    story.beat()
    story.wait(0)


def test_an_evaluator_that_never_scores_does_not_keep_the_job_for_ever() -> None:
    story = PSStory(evaluator=True)
    story.train()
    story.join("evaluator-2")
    trained_through(story, "worker-0")
    saved(story)
    story.succeed("worker-0", "worker-1")
    beaten(story, 800)
    assert story.job.ending is None
    beaten(story, 200)
    assert story.job.ending is JobPhase.SUCCEEDED
    assert any("1 checkpoints were not scored" in d.reason for d in story.job.decisions)


def test_workers_that_never_name_a_model_fail_the_job_with_a_hint() -> None:
    story = PSStory()
    story.join("worker-0")
    story.serve("ps-0", "ps-1")
    beaten(story, 901)
    assert story.job.ending is JobPhase.FAILED
    assert "does the script call shoal.tensorflow.run?" in story.job.reason


def test_a_worker_that_ends_well_early_leaves_the_rest_to_the_others() -> None:
    story = PSStory()
    story.train()
    story.succeed("worker-1")
    assert story.job.phase is JobPhase.RUNNING
    trained_through(story, "worker-0")
    story.succeed("worker-0")
    assert story.job.ending is JobPhase.SUCCEEDED


def test_losing_the_last_worker_for_good_before_the_data_is_trained_fails_the_job() -> None:
    story = PSStory(workers=1)
    story.train("worker-0")
    story.ask("worker-0", want=1)
    story.crash("worker-0", 76)
    assert story.job.ending is JobPhase.FAILED


# Evicted, and left -------------------------------------------------------------------------------------------------


def test_a_worker_that_is_evicted_is_replaced_at_no_charge_and_the_job_goes_on() -> None:
    """Its agent passes SIGTERM on, and whoever trains takes that for a word to leave: exit 77. Then its node is gone,
    143."""
    story = PSStory(workers=1, chief=True)
    story.train("worker-0", "chief-1")
    story.ask("worker-0", want=1)
    for evicted in ("chief-1", "worker-0"):
        story.crash(evicted, 77)
        story.happen_exit(evicted, 143)
    assert story.job.ending is None
    assert story.launched()[-2:] == ["chief-2", "worker-3"]
    assert story.job.target == 1
    assert not any(budget.used for budget in (*story.job.budgets.values(), *story.job.purses.values()))


def test_a_training_process_that_somebody_terminated_is_started_again() -> None:
    story = PSStory()
    story.train()
    story.crash("worker-1", 77)
    assert [tell.to for tell in story.told(RestartNode)] == [("worker-1",)]
    assert (story.job.target, story.job.nodes[NodeId("worker-1")].status) == (2, NodeStatus.RUNNING)


def test_a_worker_that_was_let_go_has_left_whoever_terminated_it() -> None:
    story = PSStory(workers=3)
    story.train("worker-0", "worker-1", "worker-2")
    story.happen(ScaleAsked(count=2, who="test", victims=frozenset({NodeId("worker-2")})))
    story.crash("worker-2", 77)
    assert story.job.nodes[NodeId("worker-2")].status is NodeStatus.SUCCEEDED
    assert (story.job.target, story.told(RestartNode)) == (2, [])


@pytest.mark.parametrize("dynamic", [True, False])
def test_workers_that_have_left_have_not_done_their_work(dynamic: bool) -> None:
    story = PSStory(workers=1)
    story.train("worker-0")
    if dynamic:
        story.ask("worker-0", want=1)
    story.leave("worker-0")
    assert story.job.ending is JobPhase.FAILED
    assert ("not all data is trained" in story.job.reason) == dynamic


def test_a_script_may_end_training_before_all_data_is_trained() -> None:
    story = PSStory()
    story.train()
    story.ask("worker-0", want=1)
    story.succeed("worker-0", "worker-1")
    assert story.job.ending is JobPhase.SUCCEEDED


# Changes -----------------------------------------------------------------------------------------------------------


def test_more_servers_are_launched_prepared_and_filled_before_workers_go_on_with_them() -> None:
    story = PSStory()
    story.train()
    story.happen(PlanAsked(plan=a_plan(ps=3), who="test"))
    assert story.launched()[-1] == "ps-2"
    story.now += timedelta(seconds=5)
    story.serve("ps-2")
    story.now += timedelta(seconds=1)
    story.obey()
    assert (story.version, story.serving) == (2, ["ps-0", "ps-1", "ps-2"])
    (change,) = [c for c in story.job.changes if c.kind == "resize"]
    assert (change.before, change.after, change.version, change.outcome) == (2, 3, 2, "done")
    assert (change.launch, change.prepare) == (5.0, 1.0)
    assert change.pause == 0.0


def test_a_server_that_is_not_needed_leaves_when_everybody_is_on_a_version_without_it() -> None:
    story = PSStory()
    story.train()
    story.happen(PlanAsked(plan=a_plan(ps=1), who="test"))
    story.obey(but=("worker-1",))
    assert not story.told(LeaveNode)
    story.obey(tuple(story.effects))
    assert [tell.to for tell in story.told(LeaveNode)] == [("ps-1",)]
    story.leave("ps-1")
    assert story.job.nodes[NodeId("ps-1")].status is NodeStatus.SUCCEEDED
    assert story.job.servers is not None
    assert set(story.job.servers.nodes) == {"ps-0"}
    assert story.version == 2, "that it left is no loss"


def test_a_migrated_server_is_replaced_by_one_with_other_resources() -> None:
    story = PSStory()
    story.train()
    story.happen(PlanAsked(plan=a_plan(cpu={"ps-1": 8.0}), who="test"))
    new = story.job.nodes[NodeId("ps-2")]
    assert (new.seat, new.resource.cpu) == (1, 8.0)
    story.serve("ps-2")
    story.obey()
    assert story.serving == ["ps-0", "ps-2"]
    assert [tell.to for tell in story.told(LeaveNode)] == [("ps-1",)]


def test_nodes_are_replaced_as_they_are_on_other_hosts() -> None:
    story = PSStory()
    story.train()
    story.happen(PlanAsked(plan=ResourcePlan(replace_nodes=("ps-1", "worker-1"), reason="slow"), who="test"))
    assert story.launched()[-2:] == ["ps-2", "worker-2"] or story.launched()[-2:] == ["worker-2", "ps-2"]
    for name in ("ps-2", "worker-2"):
        new = story.job.nodes[NodeId(name)]
        assert (new.seat, new.avoid_hosts) == (1, {"h"})
    story.serve("ps-2")
    story.obey(tuple(story.effects))
    assert story.serving == ["ps-0", "ps-2"]
    story.name("worker-2")
    assert {n for tell in story.told(LeaveNode) for n in tell.to} == {"ps-1", "worker-1"}
    story.leave("ps-1")
    assert story.job.servers is not None
    assert (story.job.servers.change, story.job.servers.goal.moves) == (None, frozenset()), "and that was all"


def test_workers_come_and_go_without_a_pause() -> None:
    story = PSStory()
    story.train()
    story.happen(PlanAsked(plan=a_plan(worker=3), who="test"))
    story.name("worker-2")
    story.obey()
    assert (story.version, len(story.words(Drain))) == (1, 0)
    story.happen(ScaleAsked(count=1, who="test"))
    assert {n for tell in story.told(LeaveNode) for n in tell.to} == {"worker-1", "worker-2"}
    story.leave("worker-1")
    story.leave("worker-2")
    assert story.job.phase is JobPhase.RUNNING
    assert [n.id for n in story.job.nodes.values() if n.is_live and n.role == "worker"] == ["worker-0"]


def test_a_worker_with_other_resources_takes_the_seat_of_the_one_before() -> None:
    story = PSStory()
    story.train()
    story.happen(PlanAsked(plan=a_plan(cpu={"worker-1": 8.0}), who="test"))
    assert not story.told(LeaveNode), "not before the other is there"
    story.join("worker-2")
    assert [tell.to for tell in story.told(LeaveNode)] == [("worker-1",)]
    assert story.job.nodes[NodeId("worker-2")].seat == 1


@pytest.mark.parametrize(
    ("plan", "why"),
    [
        (a_plan(ps=0), "ps=0 asked, the job takes 1 to 4"),
        (a_plan(ps=5), "ps=5 asked, the job takes 1 to 4"),
        (a_plan(worker=0), "worker=0 asked, the job takes 1 to 4"),
        (a_plan(cpu={"ps-9": 2.0}), "ps-9 is to be changed, and is not there"),
        (
            ResourcePlan(node_group_resources={"chief": NodeGroupResource(count=1)}, reason="r"),
            "chief=1 asked, the job has ps, worker",
        ),
    ],
)
def test_a_plan_that_the_job_cannot_follow_is_refused_with_the_reason(plan: ResourcePlan, why: str) -> None:
    assert plan_refusal(PSStory().job, plan) == f"job j: {why}"


# Rest --------------------------------------------------------------------------------------------------------------


REST = ScaleAsked(count=0, who="the grant")


def left(story: PSStory) -> list[str]:
    return [node for tell in story.told(LeaveNode) for node in tell.to]


def test_a_job_that_is_to_rest_saves_before_its_workers_go() -> None:
    story = PSStory()
    story.train()
    effects = story.happen(REST)
    assert story.job.is_suspended
    assert left(story) == [], "they are to save first"
    assert story.happen(REST) == (), "said again it changes nothing"
    story.obey(effects)
    assert story.job.servers is not None
    assert [each.fuzzy for each in story.job.servers.checkpoints] == [False]
    assert sorted(left(story)) == ["worker-0", "worker-1"]
    assert story.job.ending is None


def test_a_save_before_a_rest_that_does_not_come_about_keeps_nobody() -> None:
    story = PSStory()
    story.train()
    story.happen(REST)
    killed(story, "worker-0")
    killed(story, "ps-0")
    assert "worker-1" in left(story), "there is nothing left to save"


@pytest.mark.parametrize("directory", [None, "/ckpt"], ids=["without-a-path", "before-anybody-trains"])
def test_where_nothing_can_be_saved_workers_go_at_once(directory: str | None) -> None:
    story = PSStory(directory=directory)
    if directory is None:
        story.train()
    else:
        story.join("worker-0", "worker-1")
    story.happen(REST)
    assert sorted(left(story)) == ["worker-0", "worker-1"]


# Losses ------------------------------------------------------------------------------------------------------------


def saved(story: PSStory) -> None:
    story.say("worker-0", SaveWanted(reason="it is time"))
    story.obey()


def test_a_lost_server_takes_model_and_data_back_to_the_checkpoint_together() -> None:
    story = PSStory()
    story.train()
    (first,) = story.ask("worker-0", want=1).given
    story.ask("worker-0", completed=(first.leases[0].attempt,))
    saved(story)
    (word,) = [tell.what.word for tell in story.words(Save)]  # type: ignore[union-attr]
    assert word.mark == ledgers.checkpoint(story.job.ledger), "the mark is the ledger's when all stood still"
    (later,) = story.ask("worker-1", want=2).given
    story.ask("worker-1", completed=(later.leases[0].attempt,))
    assert ledgers.account_of(story.job.ledger, CLICKS.name).count == 20
    killed(story, "ps-1")
    assert story.launched()[-1] == "ps-2"
    story.serve("ps-2")
    story.obey(tuple(story.effects))
    assert isinstance(story.words(PreparePS)[-1].what.word.cluster.source, FromCheckpoint)  # type: ignore[union-attr]
    assert story.serving == ["ps-0", "ps-2"]
    assert ledgers.account_of(story.job.ledger, CLICKS.name).count == 10
    (again,) = story.ask("worker-1", completed=(later.leases[1].attempt,)).given
    assert again.refused, "what was leased before counts no more"
    trained_through(story, "worker-0", "worker-1")
    assert ledgers.account_of(story.job.ledger, CLICKS.name).count == 100


OUT_OF_MEMORY = ProcessExit(code=137, oom=True)


def in_a_cluster(*, memory: int) -> PSStory:
    """Two servers with this memory and two workers, which the platform has launched."""
    story = PSStory(platform_grows=True)
    story.happen(ScaleAsked(count=2, who="the grant"))
    story.happen(ServersGranted(count=2, are_too_many=False))
    servers = (Announced(node=NodeId(f"ps-{n}"), seat=n, resource=NodeResource(memory=memory)) for n in range(2))
    workers = (Announced(node=NodeId(f"worker-{n}"), seat=n) for n in range(2))
    story.happen(NodesAnnounced(nodes=(*servers, *workers)))
    story.train()
    return story


def process_out_of_memory(story: PSStory) -> None:
    """The kernel takes the server, and leaves its agent alone."""
    exit = ProcessExited(node=NodeId("ps-1"), incarnation=1, local_rank=0, exit=OUT_OF_MEMORY)
    story.happen(exit)


def pod_out_of_memory(story: PSStory) -> None:
    """The kernel takes the whole container."""
    story.happen(NodeExited(node=NodeId("ps-1"), exit=OUT_OF_MEMORY))


def pod_silent_and_then_out_of_memory(story: PSStory) -> None:
    """As before, and the platform says so when the job has long given the server up."""
    story.happen(AgentDisconnected(node=NodeId("ps-1")))
    while story.job.nodes[NodeId("ps-1")].is_live:
        story.beat()
        story.wait(1)
    assert "ps-2" not in story.launched(), "with what, nobody knows yet"
    story.happen(NodeExited(node=NodeId("ps-1"), exit=OUT_OF_MEMORY))


@pytest.mark.parametrize("lose", [process_out_of_memory, pod_out_of_memory, pod_silent_and_then_out_of_memory])
def test_a_server_that_ran_out_of_memory_comes_back_with_more_and_model_and_data_go_back_together(
    lose: Callable[[PSStory], None],
) -> None:
    story = in_a_cluster(memory=1000)
    (first,) = story.ask("worker-0", want=2).given
    story.ask("worker-0", completed=(first.leases[0].attempt,))
    saved(story)
    story.ask("worker-0", completed=(first.leases[1].attempt,))
    assert ledgers.account_of(story.job.ledger, CLICKS.name).count == 20
    lose(story)
    assert story.launched() == ["ps-2"]
    new = story.job.nodes[NodeId("ps-2")]
    assert new.seat == 1
    assert new.resource.memory is not None
    assert new.resource.memory >= 1500
    assert story.job.purses["ps-1"].used == 1, "it is paid for: a model that is too large must not go on for ever"
    story.serve("ps-2")
    story.obey(tuple(story.effects))
    assert story.serving == ["ps-0", "ps-2"]
    assert isinstance(story.words(PreparePS)[-1].what.word.cluster.source, FromCheckpoint)  # type: ignore[union-attr]
    assert ledgers.account_of(story.job.ledger, CLICKS.name).count == 10
    trained_through(story, "worker-0", "worker-1")
    assert ledgers.account_of(story.job.ledger, CLICKS.name).count == 100


def at_its_limit(*, sizes_itself: bool = True) -> PSStory:
    """Two servers of at most four, each with all the memory that it may have."""
    story = in_a_cluster(memory=1000)
    limits = Limits(node_memory=1000)
    spec = replace(story.job.spec, memory_limit=1000, sizing=SelfSizing(limits=limits) if sizes_itself else None)
    story.job = replace(story.job, spec=spec)
    saved(story)
    return story


@pytest.mark.parametrize("lose", [process_out_of_memory, pod_out_of_memory, pod_silent_and_then_out_of_memory])
def test_a_server_that_ran_out_of_all_it_may_have_comes_back_once_for_others_to_share(
    lose: Callable[[PSStory], None],
) -> None:
    story = at_its_limit()
    lose(story)
    assert story.launched() == ["ps-2"]
    assert story.job.nodes[NodeId("ps-1")].exit_cause is ExitCause.OOM, "the optimizer is to ask for more"
    new = story.job.nodes[NodeId("ps-2")]
    assert (new.seat, new.resource.memory, story.job.ending) == (1, 1000, None)
    story.serve("ps-2")
    story.obey(tuple(story.effects))
    story.happen(NodeExited(node=NodeId("ps-2"), exit=OUT_OF_MEMORY))
    assert story.launched() == ["ps-2"]
    assert story.job.ending is not None
    assert "out of memory with 1000 MiB, which is the limit" in story.job.decisions[-1].reason


@pytest.mark.parametrize("sizes_itself", [True, False])
def test_a_server_that_ran_out_of_all_it_may_have_is_not_started_again_where_nobody_adds_others(
    sizes_itself: bool,
) -> None:
    story = at_its_limit(sizes_itself=sizes_itself)
    story.happen(CountPinned(role=Role.PS, by="kubectl scale"))
    pod_out_of_memory(story)
    assert story.launched() == []
    assert story.job.ending is not None


def test_a_server_gets_no_more_memory_than_the_fewest_servers_may_have_each() -> None:
    story = in_a_cluster(memory=1000)
    ps = replace(story.job.spec.ps, min_servers=2)
    story.job = replace(story.job, spec=replace(story.job.spec, memory_limit=2400, ps=ps))
    saved(story)
    pod_out_of_memory(story)
    assert story.job.nodes[NodeId("ps-2")].resource.memory == 1200


def test_a_server_that_ran_out_of_what_a_plan_gave_it_gets_more_than_the_plan_says() -> None:
    story = PSStory()
    story.train()
    saved(story)
    asked = ResourcePlan(node_resources={"ps-1": NodeResource(memory=2000)}, reason="more memory")
    story.happen(PlanAsked(plan=asked, who="test"))
    story.serve("ps-2")
    story.obey()
    story.leave("ps-1")
    story.happen(NodeExited(node=NodeId("ps-2"), exit=OUT_OF_MEMORY))
    memory = story.job.nodes[NodeId("ps-3")].resource.memory
    assert memory is not None
    assert memory >= 3000


def test_a_server_process_that_dies_is_started_again_on_its_node() -> None:
    story = PSStory()
    story.train()
    saved(story)
    story.crash("ps-1", 137)
    assert [tell.to for tell in story.told(RestartNode)] == [("ps-1",)]
    story.say("ps-1", ServerReady(address="ps-1:2"))
    story.obey(tuple(story.effects))
    assert story.version == 2
    assert story.job.servers is not None
    assert story.job.servers.current is not None
    assert story.job.servers.current.addresses == ("ps-0:1", "ps-1:2")


def test_after_a_roll_back_the_job_shows_where_it_is_and_not_where_it_was() -> None:
    story = PSStory(workers=1, servers=1)
    story.train("worker-0")
    story.ask("worker-0", want=1)
    working(story, 40, "worker-0")
    saved(story)
    kept = story.job.servers.checkpoints[-1].step  # type: ignore[union-attr]
    working(story, 40, "worker-0")
    assert (story.view.step or 0) > kept + 1
    killed(story, "ps-0")
    story.obey()
    story.serve("ps-1")
    story.obey()
    assert story.version == 2
    assert (story.view.step, story.job.gain.speed, story.job.gain.at) == (kept, (), story.now)
    story.happen(
        StepGained(
            node=NodeId("worker-0"), incarnation=1, generation=0, step=kept + 1, samples=None, metrics={"l": 2.0}
        )
    )
    assert (story.view.step, story.job.gain.metrics) == (kept + 1, {"l": 2.0})


def test_what_a_roll_back_cost_is_told_by_phase_also_when_phases_pass_at_once() -> None:
    story = PSStory()
    story.train()
    saved(story)
    story.crash("ps-1", 137)
    story.obey()
    story.now += timedelta(seconds=2)
    story.say("ps-1", ServerReady(address="ps-1:2"))
    story.now += timedelta(seconds=1)
    story.obey()
    change = story.job.changes[-1]
    assert (change.kind, change.outcome, change.launch, change.prepare, change.pause) == (
        "rollback",
        "done",
        2.0,
        1.0,
        3.0,
    )
    assert "workers stood still for 3.00 s" in story.job.decisions[-1].reason


def test_a_lost_server_without_a_checkpoint_path_fails_the_job_and_says_why() -> None:
    story = PSStory(directory=None)
    story.train()
    killed(story, "ps-0")
    assert story.job.ending is JobPhase.FAILED
    assert "there is no checkpoint path" in story.job.reason


def test_servers_and_workers_in_the_same_seat_have_budgets_of_their_own() -> None:
    story = PSStory()
    story.train()
    saved(story)
    story.crash("ps-0", 1)
    story.crash("worker-0", 1)
    assert {seat: b.used for seat, b in story.job.budgets.items()} == {0: 1}
    assert {seat: b.used for seat, b in story.job.purses.items()} == {"ps-0": 1}


def test_a_lost_worker_is_replaced_and_its_shards_go_to_others() -> None:
    story = PSStory()
    story.train()
    (given,) = story.ask("worker-1", want=1).given
    killed(story, "worker-1")
    assert story.launched()[-1] == "worker-2"
    assert (story.version, len(story.words(Drain))) == (1, 0), "nobody else notices"
    (next_one,) = story.ask("worker-0", want=1).given
    assert next_one.leases[0].start == given.leases[0].start


def test_another_chief_is_named_when_it_is_lost() -> None:
    story = PSStory()
    story.train()
    killed(story, "worker-0")
    assert story.job.servers is not None
    assert story.job.servers.chief == "worker-1"


def test_a_frozen_server_is_killed() -> None:
    story = PSStory()
    story.train()
    for is_frozen, seconds in ((True, 2.0), (False, 2.0), (True, 2.0)):
        process = replace(a_process(), stopped=is_frozen)
        story.happen(HeartbeatSeen(node=NodeId("ps-0"), incarnation=1, processes=(process,)))
        story.wait(0)
        story.wait(seconds)
        assert not story.told(KillProcesses), "somebody may have pressed Ctrl-Z by mistake"
    story.wait(1)
    story.wait(0.1)
    assert [tell.to for tell in story.told(KillProcesses)] == [("ps-0",)], "once"


def working(story: PSStory, seconds: float, *nodes: str) -> None:
    """Time passes; these make a step every second, and everybody's agent lives."""
    for _ in range(round(seconds)):
        story.now += timedelta(seconds=1)
        for node, seen in list(story.job.seen.items()):
            (process,) = seen.processes or (a_process(),)
            step = (process.step or 0) + 1 if node in nodes else process.step
            incarnation = story.job.nodes[node].incarnation
            story.happen(HeartbeatSeen(node=node, incarnation=incarnation, processes=(replace(process, step=step),)))
            if node in nodes and step is not None:
                story.happen(
                    StepGained(node=node, incarnation=incarnation, generation=0, step=step, samples=None, metrics={})
                )
        story.wait(0)


def a_process() -> ProcessSeen:
    return ProcessSeen(local_rank=0, pid=1, stopped=False, cpu=0.0, memory_bytes=0, step=None, collectives=0, busy=None)


def test_a_server_that_one_worker_cannot_reach_and_others_can_stays() -> None:
    story = PSStory(workers=3)
    story.train("worker-0", "worker-1", "worker-2")
    for node in ("worker-0", "worker-1", "worker-2"):
        story.ask(node, want=1)
    story.say("worker-2", ServerUnreachable(version=1, rank=0, detail="no route"))
    working(story, 12, "worker-0")
    assert (story.version, story.told(LeaveNode)) == (1, [])
    assert [tell.to for tell in story.told(KillProcesses)] == [("worker-2",)]


def test_a_worker_that_cannot_reach_a_server_gives_its_data_to_those_who_have_none() -> None:
    """Nobody makes steps, because nobody has anything to do: that says nothing about the server."""
    story = PSStory()
    story.train()
    story.ask("worker-0", want=1)
    story.say("worker-0", ServerUnreachable(version=1, rank=0, detail="no route"))
    working(story, 12)
    assert [tell.to for tell in story.told(KillProcesses)] == [("worker-0",)]


@pytest.mark.parametrize(("timeout", "patience"), [(90, 90), (None, 300)])
def test_a_worker_that_has_data_and_makes_no_step_is_killed_and_charged(timeout: int | None, patience: int) -> None:
    story = PSStory(directory=None, hang=HangSettings(timeout=timeout and timedelta(seconds=timeout)))
    story.train()
    story.ask("worker-0", want=1)
    story.ask("worker-1", want=1)
    working(story, 30, "worker-0", "worker-1")
    working(story, patience - 2, "worker-0")
    assert not story.told(KillProcesses)
    working(story, 4, "worker-0")
    assert [tell.to for tell in story.told(KillProcesses)] == [("worker-1",)]
    story.crash("worker-1", 137)
    assert [tell.to for tell in story.told(RestartNode)] == [("worker-1",)]
    assert story.job.budgets[1].used == 1


def test_a_worker_without_data_or_at_a_barrier_does_not_hang() -> None:
    story = PSStory(hang=HangSettings(timeout=timedelta(seconds=20)))
    story.train()
    story.ask("worker-0", want=1)
    (given,) = story.ask("worker-1", want=1).given
    working(story, 30, "worker-0", "worker-1")
    story.ask("worker-1", completed=(given.leases[0].attempt,))
    working(story, 30, "worker-0")
    story.say("worker-0", SaveWanted(reason="it is time"))
    working(story, 30)
    assert not story.told(KillProcesses)


def test_a_worker_that_does_not_go_on_is_killed_and_started_again() -> None:
    story = PSStory()
    story.train()
    story.happen(PlanAsked(plan=a_plan(ps=1), who="test"))
    story.obey(but=("worker-1",), unheard=Go)
    assert story.version == 2
    due = deadline(story.job)
    assert due is not None
    story.now = due
    for node in story.job.seen:
        story.happen(HeartbeatSeen(node=node, incarnation=1, processes=()))
    story.wait(0)
    assert [tell.to for tell in story.told(KillProcesses)] == [("worker-1",)]
    story.crash("worker-1", 137)
    assert [tell.to for tell in story.told(RestartNode)] == [("worker-1",)]
    story.say("worker-1", ModelNamed(partitions=MODEL))
    story.obey()
    assert story.job.servers is not None
    assert story.job.servers.trainers[NodeId("worker-1")].resumed


def test_a_worker_with_another_model_leaves_and_the_job_goes_on() -> None:
    story = PSStory()
    story.train("worker-0")
    story.ask("worker-0", want=1)
    story.join("worker-1")
    story.say("worker-1", ModelNamed(partitions=(Partition(name="other", nbytes=1),)))
    assert story.job.nodes[NodeId("worker-1")].status is NodeStatus.FAILED
    assert [tell.to for tell in story.told(LeaveNode)] == [("worker-1",)]
    assert story.job.ending is None


# Masters -----------------------------------------------------------------------------------------------------------


def restarted(story: PSStory) -> Job:
    """The job as the next master has it from the records."""
    job = journal.replay([journal.snapshot(story.job)])
    assert job is not None
    assert job.servers == story.job.servers
    return taken_over(job, story.now, reason="master 2 took over", term=2)


def test_the_next_master_says_again_what_was_not_answered() -> None:
    story = PSStory()
    story.train()
    story.happen(PlanAsked(plan=a_plan(ps=3), who="test"))
    story.serve("ps-2")
    asked = len(story.words(PreparePS))
    story.job = restarted(story)
    story.join("worker-0", "worker-1", "ps-0", "ps-1", "ps-2")
    again = story.words(PreparePS)[asked:]
    assert sorted(n for tell in again for n in tell.to) == ["worker-0", "worker-1"]
    story.obey(tuple(story.effects))
    assert (story.version, story.serving) == (2, ["ps-0", "ps-1", "ps-2"])


def test_words_wait_for_a_store_that_is_away() -> None:
    """A version that was told of and not written down would be used twice."""
    story = PSStory()
    story.train()
    assert all(waits_for_record(tell) for tell in story.told(SayWord))


def test_nobody_is_late_with_what_it_has_not_been_told() -> None:
    """Words wait for a store that is away. The time that is given for an answer begins when they are said."""
    story = PSStory()
    story.train()
    story.happen(PlanAsked(plan=a_plan(ps=1), who="test"))
    story.obey(but=("worker-0", "worker-1"), unheard=Go)
    for _ in range(60):
        story.now += timedelta(seconds=5)
        story.beat()
        story.happen(Ticked(are_words_held=True))
    beaten(story, 50)
    assert not story.told(KillProcesses)
    beaten(story, 11)
    assert sorted(n for tell in story.told(KillProcesses) for n in tell.to) == ["worker-0", "worker-1"]


def test_versions_are_never_told_before_they_are_written_down() -> None:
    story = PSStory()
    story.train()
    before, said = story.job, len(story.effects)
    story.happen(PlanAsked(plan=a_plan(ps=1), who="test"))
    published, told = story.job, len(story.effects)
    assert [type(e.what.word) for e in vital(story.effects[said:], before)] == [PreparePS]
    assert vital(story.effects[said:], published) == []
    story.obey()
    assert [type(e.what.word) for e in vital(story.effects[told:], published)] == [Go]
    assert vital(story.effects[said:], story.job) == []
    assert vital(story.effects[said:], None) == [], "there is no record from which another master would go on"


def vital(effects: list[Effect], written: Job | None) -> list[Any]:
    return [effect for effect in effects if must_be_recorded(effect, written)]


def test_records_of_changes_make_the_same_job_as_a_snapshot() -> None:
    story = PSStory(evaluator=True)
    records, written = [journal.snapshot(story.job)], story.job

    def keep() -> None:
        nonlocal written
        made = journal.change(written, story.job)
        if made is not None:
            records.append(made.record)
            written = story.job

    story.train()
    keep()
    saved(story)
    keep()
    killed(story, "ps-0")
    keep()
    assert journal.replay(records) == journal.kept(story.job)
    assert len(records) == 4


def test_a_word_costs_a_small_record_however_large_the_model_is() -> None:
    model = tuple(Partition(name=f"variable/{n}", nbytes=1000) for n in range(2000))
    story = PSStory()
    story.join("worker-0", "worker-1")
    for node in ("worker-0", "worker-1"):
        story.say(node, ModelNamed(partitions=model))
    story.serve("ps-0", "ps-1")
    first, sizes, records, written = story.last, [], [journal.snapshot(story.job)], story.job
    todo = list(first)
    while todo:
        effect = todo.pop(0)
        if not isinstance(effect, Tell) or not isinstance(effect.what, SayWord):
            continue
        for node in effect.to:
            if (answer := story.answer(node, effect.what.word)) is not None:
                todo += story.say(node, answer)
                made = journal.change(written, story.job)
                if made is not None:
                    sizes.append(len(made.record))
                    records.append(made.record)
                    written = story.job
    assert story.version == 1
    assert journal.replay(records) == journal.kept(story.job)
    assert len(records[0]) > 50_000, "the model is written once, and once more when its version is committed"
    assert sorted(sizes)[-2] < 2_000
    assert sum(sizes) < 2 * len(records[0])


def test_names_that_were_given_away_unrecorded_are_not_given_again_in_any_role() -> None:
    job = named(PSStory().job, [NodeId("ps-5"), NodeId("worker-9")])
    assert job.servers is not None
    assert (job.servers.next_number, job.next_number) == (6, 10)
    assert (is_later(job, NodeId("ps-6")), is_later(job, NodeId("ps-5"))) == (True, False)
    assert (is_later(job, NodeId("worker-10")), is_later(job, NodeId("worker-9"))) == (True, False)


def test_a_server_that_a_master_before_could_not_write_down_is_let_go() -> None:
    story = PSStory()
    story.train()
    story.happen(NodesAnnounced(nodes=(Announced(node=NodeId("ps-7"), seat=2), Announced(node=NodeId("ps-0"), seat=0))))
    assert story.removed() == ["ps-7"]
    assert story.job.nodes[NodeId("ps-7")].status is NodeStatus.DELETED
    assert story.version == 1


def lost_and_resumed(story: PSStory) -> None:
    """All of it is gone, and begun again from its records."""
    spec, settings = story.job.spec, story.job.settings
    story.job, story.last = resumed(story.job, spec, settings, nodes=2, term=2, now=story.now)
    story.effects = list(story.last)


def test_a_job_of_which_nothing_was_left_goes_on_from_its_checkpoint() -> None:
    story = PSStory()
    story.train()
    (given,) = story.ask("worker-0", want=2).given
    story.ask("worker-0", completed=(given.leases[0].attempt,))
    saved(story)
    story.ask("worker-0", completed=(given.leases[1].attempt,))
    lost_and_resumed(story)
    assert sorted(story.launched()) == ["ps-2", "ps-3", "worker-2", "worker-3"], "no name is used twice"
    story.train("worker-2", "worker-3")
    assert story.version == 2, "nor a version's number"
    assert isinstance(story.words(PreparePS)[0].what.word.cluster.source, FromCheckpoint)  # type: ignore[union-attr]
    assert ledgers.account_of(story.job.ledger, CLICKS.name).count == 10, "the data stands where the model does"
    trained_through(story, "worker-2", "worker-3")


def test_a_resumed_job_that_never_saved_trains_all_data_again() -> None:
    story = PSStory()
    story.train()
    (given,) = story.ask("worker-0", want=1).given
    story.ask("worker-0", completed=(given.leases[0].attempt,))
    lost_and_resumed(story)
    assert ledgers.account_of(story.job.ledger, CLICKS.name).count == 0
    story.train("worker-2")
    trained_through(story, "worker-2")
    assert ledgers.account_of(story.job.ledger, CLICKS.name).count == 100


def test_a_spec_with_no_servers_is_refused() -> None:
    with pytest.raises(ValueError, match="1 <= min <= first <= max"):
        PSSpec(min_servers=1, max_servers=2, servers=0)
