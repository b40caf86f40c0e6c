"""Metrics count what happened, also when the job's own history has been cut."""

from dataclasses import replace

from tests.core.job_builders import T0, Story

from shoal.core.job.values import KEPT_RESIZES, Ticked
from shoal.core.view import ResizeView
from shoal.master.metrics import MasterMetrics


def test_changes_of_world_are_counted_beyond_the_ones_that_the_job_remembers() -> None:
    metrics, job = MasterMetrics(), Story().job
    worlds = KEPT_RESIZES + 50
    for generation in range(1, worlds + 1):
        resize = ResizeView(generation=generation, at=T0, reason="", before=generation % 2, after=1 + generation % 2)
        after = replace(job, resizes=(*job.resizes, resize)[-KEPT_RESIZES:])
        metrics.observe(job, Ticked(), after)
        metrics.observe(after, Ticked(), after)
        job = after
    assert f'shoal_resizes_total{{direction="up"}} {float(worlds)}' in metrics.text(job).decode()
