"""One job, decided: `handle(job, event, now)` says what the job is next and what must be done.

`values` has the nouns, `handle` the one door for events, `failures` what a loss leads to, `members` who is launched
and who leaves, `plans` how a ResourcePlan is followed, `sizing` what comes of its optimizer's, `servers` what a job
with parameter servers does besides (`ending` when it is over, `pauses` what its changes cost), `forgetting` what is
left of those who ended long ago, `respecify` what may change in a job that has begun, `takeover` how a new master
begins, `resume` how a job does of which nothing runs, `looks` the view for people. The master is a shell around
`handle`; so is the simulation.
"""

from shoal.core.job.forgetting import is_forgotten
from shoal.core.job.handle import admit, deadline, handle, new_job
from shoal.core.job.looks import training_nodes, view
from shoal.core.job.members import is_news, refusal, staying
from shoal.core.job.plans import plan_refusal
from shoal.core.job.respecify import following
from shoal.core.job.resume import resumed
from shoal.core.job.servers import grants_news
from shoal.core.job.sizing import asked_again
from shoal.core.job.takeover import (
    fenced,
    is_later,
    must_be_recorded,
    named,
    noted,
    reconcile,
    taken_over,
    waits_for_record,
)
from shoal.core.job.values import Effect, Event, Job, JobSettings, JobSpec, PSSpec, Strategy

__all__ = [
    "Effect",
    "Event",
    "Job",
    "JobSettings",
    "JobSpec",
    "PSSpec",
    "Strategy",
    "admit",
    "asked_again",
    "deadline",
    "fenced",
    "following",
    "grants_news",
    "handle",
    "is_forgotten",
    "is_later",
    "is_news",
    "must_be_recorded",
    "named",
    "new_job",
    "noted",
    "plan_refusal",
    "reconcile",
    "refusal",
    "resumed",
    "staying",
    "taken_over",
    "training_nodes",
    "view",
    "waits_for_record",
]
