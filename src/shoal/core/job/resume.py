"""How a job goes on of which nothing runs any more: the machine went down, or it was stopped, or it failed.

A takeover finds nodes that train on; here there are none, so the job begins as a new one does, with new nodes. What
it keeps is what must never be used twice (names of nodes, generations) and the ledger, as the last master recorded it.
That is where the data goes on if nobody restores a model. Whoever restores one brings along where the ledger stood at
that moment, and that wins: what the restored model has not seen is trained again.
"""

from dataclasses import replace
from datetime import datetime

from shoal.core import ledger
from shoal.core.errors import BadInput
from shoal.core.job import data, servers, sizing
from shoal.core.job.handle import Turned, begun, fresh_job
from shoal.core.job.takeover import noted
from shoal.core.job.values import Job, JobSettings, JobSpec
from shoal.core.view import JobPhase


def resumed(
    before: Job,
    spec: JobSpec,
    settings: JobSettings,
    *,
    nodes: int,
    awaited_joins: int = 0,
    term: int,
    now: datetime,
) -> Turned:
    """The job begun again, with `nodes` nodes. Raises `BadInput` when there is nothing left to do."""
    if before.phase is JobPhase.SUCCEEDED:
        raise BadInput(f"job {before.spec.name} has succeeded: there is nothing to resume")
    fresh = fresh_job(spec, settings, now)
    job = replace(
        fresh,
        reason="the job is resumed",
        why="the job is resumed",
        started=before.started,
        next_number=before.next_number,
        rendezvous=replace(
            fresh.rendezvous,
            generation=before.rendezvous.generation,
            next_seniority=before.rendezvous.next_seniority,
        ),
        gain=replace(fresh.gain, samples=before.gain.samples),
        ledger=ledger.resumed(before.ledger, term),
        resumed=before.resumed + 1,
        statistics=before.statistics,
        sizing=sizing.resumed(before.sizing) if spec.sizing is not None else fresh.sizing,
    )
    job = servers.resumed(job, before)
    if spec.sizing is not None and before.spec.sizing is not None and not awaited_joins:
        nodes = min(max(before.target, spec.min_nodes), spec.max_nodes)  # what it had found to be its size
    return begun(noted(job, _words(before, term), now), nodes=nodes, awaited_joins=awaited_joins, now=now)


def _words(before: Job, term: int) -> str:
    how = f"{before.phase}: {before.reason}" if before.ended is not None else "it was lost"
    reached = [] if before.gain.step is None else [f"step {before.gain.step}"]
    for dataset in data.views(before.ledger):
        of = "" if dataset.records is None else f" of {dataset.records}"
        reached.append(f"{dataset.name}: epoch {dataset.epoch}, {dataset.done}{of} records trained")
    return f"master {term} resumes the job ({'; '.join((how, *reached))})"
