"""A job's figures: whose ranks are whose, and what is left out when only sums are wanted."""

from datetime import timedelta

from tests.core.job_builders import T0, Story

from shoal.core.figures import figures
from shoal.core.job.values import NodeReady
from shoal.core.nodes import NodeId, ProcessSeen
from shoal.core.statistics import Heard, Statistics


def a_job_of_two_and_three_processes() -> Story:
    story = Story(nodes=2, nproc=2)
    story.join("worker-0", "worker-1")
    for number, processes in enumerate((3, 2)):
        story.happen(NodeReady(node=NodeId(f"worker-{number}"), incarnation=1, steps=(None,) * processes, sdk=True))
    story.ack()
    return story


def test_a_node_has_as_many_ranks_as_processes() -> None:
    story = a_job_of_two_and_three_processes()
    found = figures(story.job, Statistics(), T0)
    assert found.world_size == 5
    assert {node.node: node.ranks for node in found.nodes} == {"worker-0": (0, 1, 2), "worker-1": (3, 4)}


def test_small_pictures_are_drawn_only_where_they_are_wanted() -> None:
    story, statistics = a_job_of_two_and_three_processes(), Statistics()
    process = ProcessSeen(
        local_rank=0, pid=1, stopped=False, cpu=1.0, memory_bytes=1, step=None, collectives=0, busy=None
    )
    now = T0 + timedelta(seconds=4)
    for second in (0, 2, 4):
        at = T0 + timedelta(seconds=second)
        statistics.heard(NodeId("worker-0"), Heard(processes=(process,)), at)
        statistics.progressed(second, None, at)
    drawn = figures(story.job, statistics, now)
    plain = figures(story.job, statistics, now, with_history=False, with_sparks=False)
    assert drawn.recent_speed
    assert drawn.nodes[0].recent_cpu
    assert (plain.recent_speed, plain.nodes[0].recent_cpu, plain.history) == ((), (), ())
    assert plain.nodes[0].cpu == drawn.nodes[0].cpu == 1.0
