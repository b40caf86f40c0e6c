"""A job whose spec is changed while it runs, or between two masters."""

from dataclasses import replace

import pytest
from tests.core.job_builders import Story
from tests.core.ps_stories import PSStory

from shoal.core import journal
from shoal.core.exits import ProcessExit
from shoal.core.job import JobSpec, PSSpec, plan_refusal, taken_over
from shoal.core.job.values import NodeExited, ScaleAsked, SpecChanged
from shoal.core.nodes import NodeId
from shoal.core.plans import NodeGroupResource, ResourcePlan

TWO = ("worker-0", "worker-1")


def a_job(**words: int) -> Story:
    story = Story(nodes=2, **words)  # type: ignore[arg-type]
    story.train(*TWO)
    return story


def asked(story: Story, **words: object) -> JobSpec:
    return replace(story.job.spec, **words)  # type: ignore[arg-type]


def test_bounds_reach_the_job_and_its_worlds() -> None:
    story = a_job()
    story.happen(SpecChanged(spec=asked(story, min_nodes=2, max_nodes=6, node_unit=2)))
    settings = story.job.rendezvous.settings
    assert (settings.min_nodes, settings.max_nodes, settings.node_unit) == (2, 6, 2)
    assert (story.job.spec.min_nodes, story.job.spec.max_nodes, story.job.spec.node_unit) == (2, 6, 2)
    assert story.job.decisions[-1].reason == (
        "the job's spec has changed: at least 2 nodes, at most 6 nodes, nodes in units of 2, 4 micro-batches in a step"
    )


def test_nodes_that_are_enough_now_begin_to_train() -> None:
    story = Story(nodes=3, minimum=3)
    story.join(*TWO)
    story.ready(*TWO)
    story.wait(5)
    assert story.job.rendezvous.pending is None
    story.happen(SpecChanged(spec=asked(story, min_nodes=2)))
    assert story.job.rendezvous.pending is not None


def test_what_a_seat_has_spent_stays_spent_of_the_new_budget() -> None:
    story = a_job()
    story.crash("worker-1")
    (budget,) = [budget for budget in story.job.budgets.values() if budget.used]
    assert budget.limit == 3
    story.happen(SpecChanged(spec=asked(story, max_restarts=1)))
    (budget,) = [budget for budget in story.job.budgets.values() if budget.used]
    assert (budget.limit, budget.is_spent) == (1, True)


def test_memory_after_a_loss_goes_up_to_the_new_limit() -> None:
    story = a_job(memory_limit=1000)
    story.happen(SpecChanged(spec=asked(story, memory_limit=None)))
    assert story.job.spec.memory_limit is None
    assert story.job.decisions[-1].reason.endswith("no limit of memory")


def test_bounds_of_parameter_servers_reach_a_job_that_runs() -> None:
    story = PSStory(servers=2, most=2)
    story.train()
    ps = replace(story.job.spec.ps, min_servers=3, max_servers=6, servers=None, checkpoint_dir="/other", chief=True)
    story.happen(SpecChanged(spec=asked(story, ps=ps)))
    spec, manager = story.job.spec.ps, story.job.servers
    assert spec == PSSpec(min_servers=3, max_servers=6, servers=3, checkpoint_dir="/ckpt")
    assert manager is not None
    assert (manager.settings.min_servers, manager.settings.max_servers) == (3, 6)
    assert story.job.decisions[-1].reason == "the job's spec has changed: 3 to 6 parameter servers"
    decided = len(story.job.decisions)
    story.happen(SpecChanged(spec=asked(story, ps=ps)))
    assert len(story.job.decisions) == decided
    plan = ResourcePlan(node_group_resources={"ps": NodeGroupResource(count=4)}, reason="four")
    assert plan_refusal(story.job, plan) is None


def test_whether_a_job_has_parameter_servers_does_not_change() -> None:
    story = PSStory()
    before = story.job.spec
    story.happen(SpecChanged(spec=replace(before, ps=None)))
    assert story.job.spec == before
    ring = a_job()
    ring.happen(SpecChanged(spec=asked(ring, ps=PSSpec(max_servers=2))))
    assert ring.job.spec.ps is None


def test_who_the_job_is_and_what_it_runs_does_not_change() -> None:
    story = a_job()
    spec = story.job.spec
    story.happen(SpecChanged(spec=asked(story, name="other", uid="v", command=("rm",), platform_grows=True)))
    assert story.job.spec == spec


def test_how_many_processes_a_node_has_changes_when_there_is_none() -> None:
    story = Story(nodes=0, platform_grows=True)
    story.happen(SpecChanged(spec=asked(story, nproc=4)))
    assert story.job.spec.nproc == 4
    busy = a_job()
    busy.happen(SpecChanged(spec=asked(busy, nproc=4)))
    assert busy.job.spec.nproc == 1


def test_the_batch_of_a_job_that_trains_stays_what_it_is() -> None:
    busy = a_job()
    before = busy.job.spec.micro_batches
    busy.happen(SpecChanged(spec=asked(busy, max_nodes=9, global_batch=33)))
    assert (busy.job.spec.max_nodes, busy.job.spec.micro_batches) == (9, before)
    assert busy.job.decisions[-1].reason.endswith(f"at most 9 nodes, {before} micro-batches in a step")
    decided = len(busy.job.decisions)
    busy.happen(SpecChanged(spec=asked(busy, max_nodes=9, global_batch=33)))
    assert len(busy.job.decisions) == decided


def test_the_batch_of_a_job_without_nodes_is_what_is_asked_for() -> None:
    story = Story(nodes=0, platform_grows=True)
    story.happen(SpecChanged(spec=asked(story, global_batch=33)))
    assert story.job.spec.micro_batches == 33
    story.happen(SpecChanged(spec=asked(story, global_batch=None, max_nodes=5)))
    assert story.job.spec.micro_batches == 5
    assert "as many micro-batches in a step as there can be processes" in story.job.decisions[-1].reason


def test_said_again_it_changes_nothing() -> None:
    story = a_job()
    spec = asked(story, min_nodes=2)
    story.happen(SpecChanged(spec=spec))
    before = story.job
    assert story.happen(SpecChanged(spec=spec)) == ()
    assert story.job == before


def test_the_next_master_takes_over_with_what_is_asked_for_now() -> None:
    story = a_job()
    story.happen(ScaleAsked(count=0, who="the grant"))
    for node in TWO:
        story.happen(NodeExited(node=NodeId(node), exit=ProcessExit(code=0)))
    spec = asked(story, min_nodes=2, max_nodes=8, nproc=4, max_restarts=9)
    found = journal.replay([journal.snapshot(story.job)])
    assert found is not None
    job = taken_over(found, story.now, reason="master 2 took over", term=2, asked=spec)
    assert job.spec == spec
    assert job.rendezvous.settings.min_nodes == 2
    assert "4 processes per node" in job.decisions[-1].reason


@pytest.mark.parametrize("change", [{"min_nodes": 2}, {"max_restarts": 0}, {"node_unit": 2}])
def test_it_is_written_down_before_anybody_acts_upon_it(change: dict[str, int]) -> None:
    story = a_job()
    before = story.job
    story.happen(SpecChanged(spec=asked(story, **change)))
    written = journal.change(before, story.job)
    assert written is not None
    assert not written.is_replayed
    assert journal.replay([journal.snapshot(before), written.record]) == journal.kept(story.job)
