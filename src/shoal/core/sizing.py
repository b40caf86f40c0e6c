"""How a job that sizes itself is looked at: its facts and its limits, as a question to `JobResourceOptimizer`. Pure.

`look_at` gathers them in the job's owner, who owns the statistics too; `answered` may then be asked anywhere, for it
takes values only. Its answer is an event (`Sized`) for `shoal.core.job.handle`. It is void if the job has become
another one meanwhile (`is_still`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from statistics import median

from shoal.api.elasticjob import Strategy
from shoal.core.facts import JobFacts, Limits, RoleFacts, SpeedSample
from shoal.core.job.members import staying
from shoal.core.job.sizing import given_to, has_trained
from shoal.core.job.values import Job, PSSpec, Sized
from shoal.core.ledger import Ledger, account_of
from shoal.core.ledger.datasets import Purpose
from shoal.core.measured import facts_of
from shoal.core.measured import speeds as measured_speeds
from shoal.core.nodes import Node, Role
from shoal.core.optimizing import Stage
from shoal.core.resources import overlaid, usual
from shoal.core.stages import JobResourceOptimizer, OptimizerState
from shoal.core.statistics import Statistics

SAME_BATCH = 0.05
"""Steps of two sizes whose samples differ by less than this part have the same number of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """One question about a job."""

    state: OptimizerState
    facts: JobFacts
    limits: Limits
    job: Job
    """As it was asked about."""


def look_at(job: Job, statistics: Statistics, now: datetime) -> Look | None:
    """The question, or None: the job does not size itself, is ending, or is to have no nodes for a while."""
    sizing = job.spec.sizing
    if sizing is None or job.ending is not None or job.ended is not None:
        return None
    state = job.sizing.optimizer
    if state.stage is Stage.CREATE and has_trained(job):
        state = replace(state, stage=Stage.WORKER_INITIAL, reason="the job has a size already")
    if job.is_suspended and state.stage is not Stage.CREATE:
        return None
    facts = facts_of(
        job,
        statistics,
        now,
        strategy=Strategy.ALLREDUCE if job.spec.ps is None else Strategy.PARAMETER_SERVER,
        roles={Role.WORKER: _workers(job)} if job.spec.ps is None else _with_servers(job, job.spec.ps),
        remaining_samples=_remaining(job.ledger),
        global_batch=_global_batch(job, measured_speeds(statistics, statistics.timeline.at(now))),
    )
    return Look(state=state, facts=facts, limits=sizing.limits, job=job)


def answered(look: Look, optimizer: JobResourceOptimizer) -> Sized:
    turn = optimizer.turn(look.state, look.facts, look.limits)
    return Sized(state=turn.state, plan=turn.plan)


def is_still(job: Job, look: Look) -> bool:
    """Whether what was asked about is what there is: nobody has scaled the job, pinned it or begun a change since."""
    asked = look.job
    return job.sizing == asked.sizing and (job.spec, job.target, job.phase) == (asked.spec, asked.target, asked.phase)


def _workers(job: Job) -> RoleFacts:
    """As many as there are to be: one that is lost and comes back is no other size."""
    found = _role(job, Role.WORKER, staying(job), job.spec.min_nodes, job.spec.max_nodes)
    return replace(found, count=job.target)


def _with_servers(job: Job, spec: PSSpec) -> dict[Role, RoleFacts]:
    servers = [node for node in job.nodes.values() if node.role is Role.PS and node.is_live and not node.is_released]
    return {
        Role.WORKER: _workers(job),
        Role.PS: _role(job, Role.PS, servers, spec.min_servers, spec.max_servers),
    }


def _role(job: Job, role: Role, there: Sequence[Node], least: int, most: int) -> RoleFacts:
    given = given_to(job, role)
    settings = job.settings.optimizer
    resource = overlaid(given, usual(node.resource for node in there))
    return RoleFacts(
        count=len(there),
        resource=resource,
        min=least,
        max=most,
        count_pinned=role in job.sizing.pins,
        # What the user gives is not ours to change. Nodes that were given nothing share what their host has: to give
        # them some of it is nobody's to say here.
        cpu_pinned=given.cpu is not None or (resource.cpu is None and settings.start_cpu is None),
        memory_pinned=given.memory is not None or (resource.memory is None and settings.start_memory is None),
        most_memory=job.spec.memory_limit_of(role),
    )


def _global_batch(job: Job, speeds: Sequence[SpeedSample]) -> int | None:
    """Samples in a step, if they are as many whatever the number of workers is; None: each worker adds its own.

    The sizes that the job has had tell; of a job that has had one, the SDK does: it keeps the batch unless workers
    take shards as they come.
    """
    by_size: dict[int, list[float]] = {}
    for sample in speeds:
        by_size.setdefault(sample.workers, []).append(sample.samples_per_second * sample.step_seconds)
    batches = [median(found) for found in by_size.values()]
    if len(batches) > 1:
        is_fixed = max(batches) - min(batches) <= SAME_BATCH * max(batches)
    else:
        is_fixed = job.sdk and job.spec.ps is None and not job.ledger.dynamic
    return max(1, round(batches[-1])) if batches and is_fixed else None


def _remaining(ledger: Ledger) -> float | None:
    """Records that are still to be trained; None: nobody knows, or there is no end."""
    left = 0
    specs = [*(each.spec for each in ledger.ordered.values()), *(each.spec for each in ledger.dynamic.values())]
    for spec in (spec for spec in specs if spec.purpose is Purpose.TRAINING):
        account = account_of(ledger, spec.name)
        if spec.epochs is None or account.line is None:
            return None
        left += max(0, (spec.epochs - account.epoch) * account.line - account.count)
    return float(left) if specs else None
