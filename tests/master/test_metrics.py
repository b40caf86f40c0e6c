"""Metrics count what happened, also when the job's own history has been cut."""

from dataclasses import replace
from datetime import timedelta

from tests.core.job_builders import T0, Story
from tests.core.ps_stories import PSStory

from shoal.core.figures import figures
from shoal.core.job import Event, Job
from shoal.core.job.values import KEPT_RESIZES, Effect, HeartbeatSeen, ResizeTold, Ticked
from shoal.core.nodes import NodeId, NodeSeen, NodeStatus, ProcessSeen
from shoal.core.ps.words import SaveWanted
from shoal.core.statistics import Heard, Statistics
from shoal.core.view import ResizeView
from shoal.master.metrics import MasterMetrics

RESIZED_UP = 'shoal_resizes_total{direction="up"'


def text_of(metrics: MasterMetrics, job: Job, statistics: Statistics | None = None) -> str:
    return metrics.text(job, figures(job, statistics or Statistics(), T0 + timedelta(seconds=5))).decode()


def test_changes_of_world_are_counted_beyond_the_ones_that_the_job_remembers() -> None:
    metrics, job = MasterMetrics(), Story().job
    worlds = KEPT_RESIZES + 50
    for generation in range(1, worlds + 1):
        resize = ResizeView(generation=generation, at=T0, reason="", before=generation % 2, after=1 + generation % 2)
        after = replace(job, resizes=(*job.resizes, resize)[-KEPT_RESIZES:])
        metrics.observe(job, Ticked(), after, T0)
        metrics.observe(after, Ticked(), after, T0)
        job = after
    found = [
        float(line.rpartition(" ")[2]) for line in text_of(metrics, job).splitlines() if line.startswith(RESIZED_UP)
    ]
    assert sum(found) == worlds


class Counted(Story):
    """A story of which everything is counted."""

    def __init__(self, nodes: int) -> None:
        self.metrics: MasterMetrics | None = None
        super().__init__(nodes=nodes)
        self.metrics = MasterMetrics()

    def happen(self, event: Event) -> tuple[Effect, ...]:
        before, told = self.job, super().happen(event)
        if self.metrics is not None:
            self.metrics.observe(before, event, self.job, self.now)
        return told

    def tell(self, node: str, lost_steps: int) -> None:
        committed = self.job.rendezvous.committed
        assert committed is not None
        told = {"drain": 1.0, "rendezvous": 1.0, "restore": 1.0, "first_step": 1.0, "lost_steps": lost_steps}
        self.happen(ResizeTold(node=NodeId(node), generation=committed.generation, **told))  # type: ignore[arg-type]

    def text(self) -> str:
        assert self.metrics is not None
        return text_of(self.metrics, self.job)


def test_a_world_is_counted_by_what_triggered_it_and_lost_steps_by_the_failure() -> None:
    story = Counted(nodes=2)
    story.train("worker-0", "worker-1")
    assert 'shoal_resizes_total{direction="up",result="granted",trigger="start"} 1.0' in story.text()
    story.crash("worker-1", 137)
    story.ready("worker-0", "worker-1")
    story.ack()
    story.tell("worker-0", lost_steps=3)
    text = story.text()
    assert 'trigger="failure"} 1.0' in text
    assert 'shoal_lost_steps_total{class="preemption"} 3.0' in text
    assert 'phase="detect"' not in text, "an agent tells at once that a process has ended"


def test_how_long_a_silent_node_went_unnoticed_is_counted() -> None:
    story = Counted(nodes=2)
    story.train("worker-0", "worker-1")
    heard = story.now
    while story.job.nodes[NodeId("worker-1")].status is NodeStatus.RUNNING:
        story.now += timedelta(seconds=5)
        known = story.job.nodes[NodeId("worker-0")]
        story.happen(HeartbeatSeen(node=known.id, incarnation=known.incarnation, processes=()))
        story.wait(0)
    text = story.text()
    assert 'shoal_resize_duration_seconds_count{phase="detect"} 1.0' in text
    assert f'shoal_resize_duration_seconds_sum{{phase="detect"}} {(story.now - heard).total_seconds()}' in text


def test_changes_of_the_servers_are_counted_by_kind_and_phase() -> None:
    metrics, story = MasterMetrics(), PSStory()
    before = story.job
    for step in (story.train, lambda: (story.say("worker-0", SaveWanted(reason="now")), story.obey())):
        step()
        metrics.observe(before, Ticked(), story.job, T0)
        metrics.observe(story.job, Ticked(), story.job, T0)
        before = story.job
    text = text_of(metrics, story.job)
    assert 'shoal_ps_changes_total{kind="start",outcome="done"} 1.0' in text
    assert 'shoal_ps_changes_total{kind="save",outcome="done"} 1.0' in text
    assert 'shoal_ps_change_duration_seconds_count{kind="save",phase="drain"} 1.0' in text
    assert "shoal_ps_version 1.0" in text
    assert "shoal_ps_servers 2.0" in text
    assert "shoal_world_size 2.0" in text


def test_use_and_limits_are_summed_by_role_and_what_is_not_known_is_no_number() -> None:
    metrics, job, statistics = MasterMetrics(), Story(nodes=2).job, Statistics()
    for node, cpu in zip(job.nodes, (0.5, 1.0), strict=True):
        process = ProcessSeen(
            local_rank=0, pid=1, stopped=False, cpu=cpu, memory_bytes=100, step=None, collectives=0, busy=None
        )
        limits = NodeSeen(cpu_limit=2.0, memory_limit=400)
        statistics.heard(node, Heard(node=limits, processes=(process,)), T0 + timedelta(seconds=4))
    text = text_of(metrics, job, statistics)
    for line in (
        'shoal_nodes{role="worker"} 2.0',
        'shoal_cpu_cores{role="worker"} 1.5',
        'shoal_cpu_limit_cores{role="worker"} 4.0',
        'shoal_memory_bytes{role="worker"} 200.0',
        'shoal_memory_used_ratio{role="worker"} 0.25',
        "shoal_samples_per_second NaN",
    ):
        assert line in text
    assert 'shoal_gpu_busy{role="worker"}' not in text
