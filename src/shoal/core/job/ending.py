"""Where a job with parameter servers stands: whether it has begun, trains, stands still; and when it is over.

Workers end by themselves when all data is trained, the chief last, for it saves the model; or before that, when their
script is through (exit 0): that is its word. Workers that leave, by whosever wish, end no job well. Then the evaluator
scores what there is to score, and when that is done the servers are stopped: the job has succeeded.
"""

from dataclasses import replace
from datetime import datetime

from shoal.core import ledger as ledgers
from shoal.core.exits import ExitCause
from shoal.core.job import failures, servers
from shoal.core.job.members import live
from shoal.core.job.turn import Turn
from shoal.core.job.values import Job, JobSpec
from shoal.core.nodes import Node, NodeStatus, Role
from shoal.core.ps.values import Kind, Phase
from shoal.core.view import JobPhase


def alone(spec: JobSpec) -> tuple[Role, ...]:
    """The roles of which the job has one node."""
    if spec.ps is None:
        return ()
    wanted = {Role.CHIEF: spec.ps.chief, Role.EVALUATOR: spec.ps.evaluator}
    return tuple(role for role, is_wanted in wanted.items() if is_wanted)


def has_begun(job: Job) -> bool:
    return job.servers is not None and job.servers.current is not None


def workers_counted(job: Job) -> int:
    """Workers that run, or have done their work."""
    good = (NodeStatus.RUNNING, NodeStatus.SUCCEEDED)
    return sum(1 for n in job.nodes.values() if n.role is Role.WORKER and n.status in good)


def phased(job: Job) -> Job:
    """The job in the phase that its servers are in. A pause for a checkpoint is part of training."""
    m = job.servers
    assert m is not None
    change = m.change
    standing = change is not None and (
        change.kind is Kind.ROLLBACK
        or (change.kind is Kind.RESIZE and change.phase in (Phase.DRAINING, Phase.MOVING, Phase.RESUMING))
    )
    if m.current is None:
        phase, reason = JobPhase.STARTING, "waiting for the parameter servers and a worker"
    elif standing:
        assert change is not None
        phase, reason = JobPhase.RESIZING, change.reason
    else:
        phase, reason = JobPhase.RUNNING, f"version {m.current.version} trains"
    return job if (phase, reason) == (job.phase, job.reason) else replace(job, phase=phase, reason=reason)


def settle(turn: Turn) -> None:
    """End the job when it cannot go on, or has done all."""
    job = turn.job
    assert job.servers is not None
    if job.servers.failed is not None:
        failures.fail(turn, job.servers.failed)
    elif _nobody_trains(job, turn.now):
        waited = job.settings.pending_timeout.total_seconds()
        reason = f"workers run, and none has named its model for {waited:.0f} s: does the script call"
        failures.fail(turn, f"{reason} shoal.tensorflow.run?")
    elif not job.is_suspended and not live(job, *servers.TRAINERS):
        _without_workers(turn)


def _nobody_trains(job: Job, now: datetime) -> bool:
    """Servers and workers are there, but the job has no model, and has waited for one as long as for a node."""
    m = job.servers
    assert m is not None
    if m.partitions or m.change is None or now - m.change.since < job.settings.pending_timeout:
        return False
    return any(n.status is NodeStatus.RUNNING for n in live(job, *servers.TRAINERS))


def _without_workers(turn: Turn) -> None:
    """All have ended. A checkpoint that the chief wanted and that is not there is no success: what was trained is gone
    with the servers."""
    job = turn.job
    if job.unexplained:
        return  # one of them may be replaced yet
    trainers = [n for n in job.nodes.values() if n.role in servers.TRAINERS]
    if job.spec.platform_grows and all(_may_come_again(n) for n in _last(trainers)):
        return  # the platform has yet to add them, or to add them again
    is_trained = job.ledger.dynamic and ledgers.is_complete(job.ledger)
    if not any(n.status is NodeStatus.SUCCEEDED for n in trainers):
        failures.fail(turn, "no worker is left, and none has done its work")
    elif job.ledger.dynamic and not is_trained and not (_all_well(trainers) and _is_done(trainers)):
        failures.fail(turn, "no worker is left, and not all data is trained")
    elif not is_trained and not _is_done(trainers):
        failures.fail(turn, "all workers have left, and none has done its work")
    elif job.servers is not None and job.servers.unsaved is not None:
        where = f"{job.servers.settings.checkpoint_dir} has no checkpoint of it"
        failures.fail(turn, f"the model is trained, but not saved: {where}: {job.servers.unsaved}")
    else:
        servers.training_over(turn)
        if servers.is_evaluated(turn.job, turn.now):
            if turn.job.evaluation.waiting:
                turn.say(f"{len(turn.job.evaluation.waiting)} checkpoints were not scored")
            done = "all data is trained" if is_trained else "training ended"
            failures.end(turn, JobPhase.SUCCEEDED, f"{done} and all workers have ended well")


def _may_come_again(trainer: Node) -> bool:
    """Whether the platform adds one in its seat by itself. Of those that join it replaces all that have not done their
    work, and it decides whether too many have failed."""
    if not trainer.external:
        return trainer.status is NodeStatus.DELETED
    return trainer.status is not NodeStatus.SUCCEEDED or trainer.exit_cause is ExitCause.LEFT


def _all_well(trainers: list[Node]) -> bool:
    """Whether in every seat the last one has done its work."""
    return all(n.status is NodeStatus.SUCCEEDED for n in _last(trainers))


def _is_done(trainers: list[Node]) -> bool:
    """Whether somebody has ended because its script was through. Who was let go or has left was not."""
    return any(
        n.status is NodeStatus.SUCCEEDED and not n.is_released and n.exit_cause is not ExitCause.LEFT for n in trainers
    )


def _last(trainers: list[Node]) -> list[Node]:
    """In every seat the last one."""
    return list({(n.role, n.seat): n for n in sorted(trainers, key=lambda n: n.number)}.values())
