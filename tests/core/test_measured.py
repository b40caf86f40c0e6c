"""From statistics to facts: no sample across a change, the newest finest, never too many."""

from dataclasses import replace
from datetime import timedelta
from itertools import pairwise

import pytest
from tests.core.job_builders import T0, Story

from shoal.api.elasticjob import Strategy
from shoal.core.cleaning import cleaned
from shoal.core.exits import ExitCause
from shoal.core.facts import JobFacts, RoleFacts
from shoal.core.measured import MOST, facts_of, node_samples, speeds
from shoal.core.nodes import NodeId, NodeSeen, NodeStatus, ProcessSeen, Role, Trained
from shoal.core.plans import NodeResource
from shoal.core.statistics import Heard, Now, Statistics

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
