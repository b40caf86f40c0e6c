"""From statistics to facts: no sample across a change, the newest finest, never too many."""

from dataclasses import replace
from datetime import timedelta
from itertools import pairwise

import pytest
from tests.core.job_builders import T0, Story
from tests.core.ps_stories import MODEL, PSStory

from shoal.api.elasticjob import Strategy
from shoal.core.cleaning import cleaned
from shoal.core.exits import ExitCause
from shoal.core.facts import JobFacts, RoleFacts
from shoal.core.job.looks import training_nodes
from shoal.core.job.values import Announced, NodesAnnounced, PlanAsked, ScaleAsked
from shoal.core.measured import MOST, facts_of, node_samples, speeds
from shoal.core.nodes import Node, NodeId, NodeSeen, NodeStatus, ProcessSeen, Role, Trained
from shoal.core.plans import NodeGroupResource, NodeResource, ResourcePlan
from shoal.core.ps.words import ModelNamed
from shoal.core.statistics import Heard, Now, Statistics
from shoal.core.statistics_kept import packed, unpacked
from shoal.core.view import JobPhase

MIB = 1024 * 1024


def train(statistics: Statistics, story: Story, *, begin: int, seconds: int, workers: int, speed: float) -> None:
    """`workers` nodes that make ten steps a second, with so many samples each."""
    live = [node for node in story.job.nodes.values() if node.is_live][:workers]
    for second in range(begin, begin + seconds, 2):
        now = T0 + timedelta(seconds=second)
        for node in live:
            process = ProcessSeen(
                local_rank=0,
                pid=1,
                stopped=False,
                cpu=1.5,
                memory_bytes=(100 + second) * MIB,
                step=None,
                collectives=0,
                busy=None,
                trained=Trained(steps=10 * second, samples=None, step_seconds=second, work_seconds=second * 0.4),
            )
            statistics.heard(node.id, Heard(node=NodeSeen(memory_limit=2048 * MIB), processes=(process,)), now)
        statistics.progressed(10 * second, int(speed * workers * 10 * second), now)
        statistics.ticked(lambda: Now(workers=workers, nodes=live), now)


def facts(story: Story, statistics: Statistics, seconds: float) -> JobFacts:
    roles = {Role.WORKER: RoleFacts(count=2, min=1, max=4)}
    return facts_of(story.job, statistics, T0 + timedelta(seconds=seconds), strategy=Strategy.ALLREDUCE, roles=roles)


def test_speeds_tell_what_the_job_had_and_none_is_taken_across_a_change() -> None:
    story, statistics = Story(nodes=3), Statistics()
    train(statistics, story, begin=0, seconds=310, workers=2, speed=8)
    statistics.broken()
    train(statistics, story, begin=316, seconds=300, workers=3, speed=8)
    found = speeds(statistics, T0.timestamp() + 616)
    assert {sample.workers for sample in found} == {2, 3}
    for sample in found:
        assert sample.samples_per_second == pytest.approx(80 * sample.workers, rel=0.02)
        assert sample.step_seconds == pytest.approx(0.1, rel=0.02)
        assert sample.worker_cpu_used == pytest.approx(1.5)
    assert [sample.at for sample in found] == sorted(sample.at for sample in found)


def test_samples_are_as_long_as_the_statistics_were_told_also_when_they_were_written_down_meanwhile() -> None:
    story, statistics = Story(nodes=1), Statistics(4)
    train(statistics, story, begin=0, seconds=20, workers=1, speed=8)
    statistics = unpacked(packed(statistics), 4)
    train(statistics, story, begin=20, seconds=20, workers=1, speed=8)
    node = story.job.nodes[NodeId("worker-0")]
    for found in (speeds(statistics, T0.timestamp() + 40), node_samples(statistics, node, T0.timestamp() + 40)):
        assert len(found) >= 9
        assert {after.at - before.at for before, after in pairwise(found)} == {4.0}
    assert speeds(unpacked(packed(statistics)), T0.timestamp() + 40) == (), "half minutes cannot be made of them"


def test_workers_that_count_records_and_no_steps_have_a_speed_too() -> None:
    story, statistics = Story(nodes=2), Statistics()
    for second in range(0, 300, 2):
        now = T0 + timedelta(seconds=second)
        for node in story.job.nodes.values():
            trained = Trained(steps=0, samples=5 * second, step_seconds=0.0, work_seconds=0.0)
            process = ProcessSeen(
                local_rank=0,
                pid=1,
                stopped=False,
                cpu=1.0,
                memory_bytes=MIB,
                step=None,
                collectives=0,
                busy=None,
                trained=trained,
            )
            statistics.heard(node.id, Heard(processes=(process,)), now)
        statistics.ticked(lambda: Now(workers=2, nodes=tuple(story.job.nodes.values())), now)
    found = speeds(statistics, T0.timestamp() + 300)[-1]
    assert found.samples_per_second == pytest.approx(10.0, rel=0.05)
    assert found.step_seconds == pytest.approx(0.2, rel=0.05), "each of two workers takes that for a record"


def test_steps_on_parameter_servers_are_those_of_all_workers_and_a_speed_where_nobody_counts_samples() -> None:
    story, statistics = Story(nodes=2), Statistics()
    server = replace(story.job.nodes[NodeId("worker-0")], role=Role.PS)
    for second in range(0, 300, 2):
        now = T0 + timedelta(seconds=second)
        for name in (*story.job.nodes, server.id):
            statistics.heard(name, Heard(), now)
        statistics.progressed(10 * second, None, now)
        statistics.ticked(lambda: Now(workers=2, nodes=(*story.job.nodes.values(), server)), now)
    found = speeds(statistics, T0.timestamp() + 300)[-1]
    assert (found.workers, found.ps) == (2, 1)
    assert found.samples_per_second == pytest.approx(10.0, rel=0.05), "steps, as large whoever makes them"
    assert found.step_seconds == pytest.approx(0.2, rel=0.05), "ten a second in all, five of each"


def test_a_server_that_was_let_go_counts_no_more_however_long_it_takes_to_end() -> None:
    story, statistics = Story(nodes=1), Statistics()
    serves = Node(role=Role.PS, number=1, seat=0, since=T0, reason="", resource=NodeResource(cpu=1.0))
    goes = replace(serves, number=0, is_released=True, resource=NodeResource(cpu=0.5))
    story.job = replace(story.job, nodes={**story.job.nodes, goes.id: goes, serves.id: serves})
    for second in range(0, 300, 2):
        now = T0 + timedelta(seconds=second)
        for name, cpu in ((NodeId("worker-0"), 0.1), (serves.id, 0.3), (goes.id, 0.5)):
            process = ProcessSeen(
                local_rank=0, pid=1, stopped=False, cpu=cpu, memory_bytes=MIB, step=None, collectives=0, busy=None
            )
            statistics.heard(name, Heard(processes=(process,)), now)
        statistics.progressed(10 * second, None, now)
        statistics.ticked(lambda: Now(workers=1, nodes=tuple(story.job.nodes.values())), now)
    found = facts(story, statistics, 300)
    assert [node.name for node in found.nodes] == ["worker-0", "ps-1"]
    speed = found.speeds[-1]
    assert (speed.ps, speed.ps_cpu) == (1, 1.0)
    assert (speed.ps_cpu_used, speed.ps_busiest) == (pytest.approx(0.3), pytest.approx(0.3))


def test_a_nodes_newest_samples_are_fine_and_older_ones_coarse_and_few() -> None:
    story, statistics = Story(nodes=1), Statistics()
    train(statistics, story, begin=0, seconds=4800, workers=1, speed=8)
    node = story.job.nodes[NodeId("worker-0")]
    samples = node_samples(statistics, node, T0.timestamp() + 4800, 24)
    gaps = [b.at - a.at for a, b in pairwise(samples)]
    assert len(samples) <= 24
    assert set(gaps[-15:]) == {30}
    assert 600 in gaps[:9]
    assert [sample.at for sample in samples] == sorted({sample.at for sample in samples})
    assert all(sample.step_seconds == pytest.approx(0.04) for sample in samples[1:])
    assert samples[-1].memory == pytest.approx(4898, abs=40)


def test_the_facts_of_a_job_are_bounded_and_name_who_ran_out_of_memory() -> None:
    story, statistics = Story(nodes=3), Statistics()
    train(statistics, story, begin=0, seconds=2400, workers=3, speed=8)
    dead = replace(
        story.job.nodes[NodeId("worker-2")],
        status=NodeStatus.FAILED,
        exit_cause=ExitCause.OOM,
        resource=NodeResource(memory=512),
    )
    story.job = replace(story.job, nodes={**story.job.nodes, dead.id: dead})
    found = facts(story, statistics, 2400)
    assert [node.name for node in found.nodes] == ["worker-0", "worker-1"]
    assert all(10 < len(node.samples) <= MOST for node in found.nodes)
    assert [(oom.node, oom.memory) for oom in found.ooms] == [("worker-2", 512)]
    assert found.exits[0].cause is ExitCause.OOM
    assert found.in_change
    assert found.now >= found.speeds[-1].at - 30


def test_a_job_is_in_change_until_everybody_trains() -> None:
    """One that has come may load its modules for minutes: what is measured meanwhile tells of a smaller job."""
    story = Story(nodes=2)
    story.train("worker-0", "worker-1")
    assert not facts(story, Statistics(), 10).in_change
    story.happen(ScaleAsked(count=3, who="somebody"))
    story.join("worker-2")
    assert len([node for node in story.job.nodes.values() if node.is_live]) == story.job.target == 3
    assert facts(story, Statistics(), 20).in_change
    story.ready("worker-2")
    story.ready("worker-0", "worker-1", step=30)
    story.ack()
    assert len(story.job.rendezvous.committed.members) == 3
    assert not facts(story, Statistics(), 30).in_change


def test_what_was_measured_before_a_new_worker_trained_on_the_servers_is_of_another_job() -> None:
    """It runs for a minute until it does: so long it loads its modules."""
    story, statistics = PSStory(workers=1, servers=1), Statistics(4)
    story.train("worker-0")
    workers = tuple(node for node in story.job.nodes.values() if node.role is Role.WORKER)

    def trains(begin: int, end: int) -> JobFacts:
        for second in range(begin, end, 2):
            now = T0 + timedelta(seconds=second)
            statistics.heard(NodeId("worker-0"), Heard(), now)
            statistics.progressed(10 * second, None, now)
            statistics.ticked(lambda: Now(workers=training_nodes(story.job), nodes=workers), now)
        return facts(story, statistics, end)

    trains(0, 40)
    story.happen(ScaleAsked(count=2, who="somebody"))
    story.now = T0 + timedelta(seconds=40)
    story.join("worker-1")
    assert trains(40, 100).in_change
    story.now = T0 + timedelta(seconds=100)
    story.say("worker-1", ModelNamed(partitions=MODEL))
    story.obey()
    found = facts(story, statistics, 100)
    assert not found.in_change
    assert found.changed_at == found.speeds[-1].at, "there is nothing yet that two have trained"
    later = trains(100, 140)
    assert {sample.workers for sample in later.speeds if sample.at > later.changed_at} == {2}
    assert {sample.workers for sample in later.speeds if sample.at <= later.changed_at} == {1}


def test_a_worker_that_does_not_come_for_minutes_is_no_change_any_more() -> None:
    story = Story(nodes=2)
    story.train("worker-0", "worker-1")
    story.happen(ScaleAsked(count=4, who="somebody"))
    assert [facts(story, Statistics(), seconds).in_change for seconds in (299, 301)] == [True, False]
    story.now = T0 + timedelta(seconds=290)
    story.join("worker-3")
    assert facts(story, Statistics(), 301).in_change, "one of them has come, and loads its modules"
    assert not facts(story, Statistics(), 600).in_change


def test_a_worker_of_which_the_platform_never_says_anything_is_no_change_any_more() -> None:
    """A quota, an admission rule or a cluster without room can keep its Pod from ever being made."""
    story = Story(nodes=0, platform_grows=True)
    story.happen(ScaleAsked(count=2, who="the grant"))
    nodes = tuple(Announced(node=NodeId(f"worker-{n}"), seat=n) for n in range(2))
    story.happen(NodesAnnounced(nodes=nodes))
    story.train("worker-0", "worker-1")
    assert not facts(story, Statistics(), 10).in_change
    story.now = T0 + timedelta(seconds=1000)
    story.happen(ScaleAsked(count=3, who="the grant"))
    assert story.job.target == 3
    assert [facts(story, Statistics(), seconds).in_change for seconds in (1001, 1299, 1301)] == [True, True, False]
    story.now = T0 + timedelta(seconds=1500)
    story.happen(NodesAnnounced(nodes=(Announced(node=NodeId("worker-2"), seat=2),)))
    assert facts(story, Statistics(), 1501).in_change, "there it is after all"


def test_a_job_of_which_nobody_trains_is_in_change_however_long_that_takes() -> None:
    story = Story(nodes=2)
    story.job = replace(story.job, phase=JobPhase.RUNNING)
    assert facts(story, Statistics(), 4000).in_change


def test_the_facts_of_a_healthy_job_need_no_cleaning_at_any_moment() -> None:
    story, statistics = Story(nodes=2), Statistics()
    for begin in range(0, 1300, 26):
        train(statistics, story, begin=begin, seconds=26, workers=2, speed=8)
        found = facts(story, statistics, begin + 25)
        assert cleaned(found)[1] == ""
        assert all(sample.at <= found.now for node in found.nodes for sample in node.samples)
        assert all(sample.at <= found.now for sample in found.speeds)
    assert found.speeds[-1].at > found.now - 60


def test_a_job_of_which_nothing_is_known_has_facts_all_the_same() -> None:
    found = facts(Story(), Statistics(), 0)
    assert (found.speeds, found.ooms, found.exits) == ((), (), ())
    assert all(node.samples == () for node in found.nodes)


def test_a_server_that_ran_out_of_memory_is_told_with_how_many_there_were_then() -> None:
    """What all of them held was too little: of more servers each needs less."""
    story, statistics = PSStory(workers=1, servers=2), Statistics()
    story.train("worker-0")
    story.now = T0 + timedelta(seconds=100)
    group = NodeGroupResource(count=3)
    story.happen(PlanAsked(plan=ResourcePlan(node_group_resources={"ps": group}, reason="more"), who="test"))
    story.now = T0 + timedelta(seconds=120)
    story.serve("ps-2")
    story.obey()
    assert len(story.serving) == 3

    def lost(number: int, seconds: float) -> Node:
        return Node(
            role=Role.PS,
            number=number,
            seat=0,
            status=NodeStatus.FAILED,
            exit_cause=ExitCause.OOM,
            since=T0 + timedelta(seconds=seconds),
            reason="",
            resource=NodeResource(memory=512),
        )

    dead = {node.id: node for node in (lost(7, 50), lost(8, 110), lost(9, 200))}
    story.job = replace(story.job, nodes={**story.job.nodes, **dead})
    found = facts(story, statistics, 300).ooms
    assert [(oom.node, oom.count) for oom in found] == [("ps-7", 2), ("ps-8", 2), ("ps-9", 3)]
