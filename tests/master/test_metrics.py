"""Metrics count what happened, also when the job's own history has been cut."""

from dataclasses import replace
from datetime import timedelta

from tests.core.job_builders import T0, Story

from shoal.core.figures import figures
from shoal.core.job import Job
from shoal.core.job.values import KEPT_RESIZES, Ticked
from shoal.core.nodes import NodeSeen, ProcessSeen
from shoal.core.statistics import Heard, Statistics
from shoal.core.view import ResizeView
from shoal.master.metrics import MasterMetrics


def text_of(metrics: MasterMetrics, job: Job, statistics: Statistics | None = None) -> str:
    return metrics.text(job, figures(job, statistics or Statistics(), T0 + timedelta(seconds=5))).decode()


def test_changes_of_world_are_counted_beyond_the_ones_that_the_job_remembers() -> None:
    metrics, job = MasterMetrics(), Story().job
    worlds = KEPT_RESIZES + 50
    for generation in range(1, worlds + 1):
        resize = ResizeView(generation=generation, at=T0, reason="", before=generation % 2, after=1 + generation % 2)
        after = replace(job, resizes=(*job.resizes, resize)[-KEPT_RESIZES:])
        metrics.observe(job, Ticked(), after)
        metrics.observe(after, Ticked(), after)
        job = after
    assert f'shoal_resizes_total{{direction="up"}} {float(worlds)}' in text_of(metrics, job)


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
