"""One job, decided: `handle(job, event, now)` says what the job is next and what must be done.

`values` has the nouns, `handle` the one door for events, `failures` what a loss leads to, `members` who is launched
and who leaves, `forgetting` what is left of those who ended long ago, `respecify`
what may change in a job that has begun, `takeover` how a new master begins, `resume` how
a job does of which nothing runs, `looks` the view for people. The master is a shell around `handle`; so is the
simulation.
"""

from shoal.core.job.forgetting import is_forgotten
from shoal.core.job.handle import admit, deadline, handle, new_job
from shoal.core.job.looks import view
from shoal.core.job.members import is_news, refusal, staying
from shoal.core.job.respecify import following
from shoal.core.job.resume import resumed
from shoal.core.job.takeover import fenced, is_later, named, noted, reconcile, taken_over, waits_for_record
from shoal.core.job.values import Effect, Event, Job, JobSettings, JobSpec

__all__ = [
    "Effect",
    "Event",
    "Job",
    "JobSettings",
    "JobSpec",
    "admit",
    "deadline",
    "fenced",
    "following",
    "handle",
    "is_forgotten",
    "is_later",
    "is_news",
    "named",
    "new_job",
    "noted",
    "reconcile",
    "refusal",
    "resumed",
    "staying",
    "taken_over",
    "view",
    "waits_for_record",
]
