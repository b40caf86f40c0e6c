"""How a job ends, and what is still to be done then.

The master says that training is over; the operator records it once, and from then on creates nothing. It ends a job by
itself when the job ran for too long, when a member that training cannot do without is out of restarts or its master
never gets ready, or when all workers have ended well and no master is there to say so. Pods that ended stay for their
logs until the job is deleted.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from shoal.api.elasticjob import Role
from shoal.api.jobspec import JobSpec
from shoal.api.reasons import Reason
from shoal.core.pods import PodSeen
from shoal.operator.crew import Crew
from shoal.operator.members import MasterLooks
from shoal.operator.memory import Member, MemberState
from shoal.operator.settings import OperatorSettings
from shoal.operator.snapshot import Training, TrainingPhase


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    success: bool
    reason: str
    """One word, for alerts."""
    message: str


def decide_end(
    crew: Crew,
    spec: JobSpec,
    training: Training | None,
    *,
    started: datetime | None,
    exhausted: Sequence[Member],
    looks: MasterLooks,
    no_master: str | None = None,
    settings: OperatorSettings,
) -> Ending | None:
    """Whether the job is over now, and how. `no_master`: why it has none and will not get one."""
    if training is not None and training.is_over:
        return _as_told(training)
    if started is not None and spec.active_deadline is not None and crew.now >= started + spec.active_deadline:
        ran = int(spec.active_deadline.total_seconds())
        why = f"it ran for longer than activeDeadlineSeconds, {ran}"
        return Ending(success=False, reason=Reason.DEADLINE_EXCEEDED, message=why)
    for member in exhausted:
        if member.role is not Role.WORKER:
            why = f"{member.name}: {member.reason}; all {member.relaunches} restarts are used"
            return Ending(success=False, reason=Reason.MEMBER_FAILED, message=why)
    if no_master is not None:
        return Ending(success=False, reason=Reason.MASTER_FAILED, message=no_master)
    workers = crew.seats(Role.WORKER)
    silent = not looks.answers and looks.silent_since is not None
    if workers and silent and all(member.state is MemberState.SUCCEEDED for member in workers):
        last = max(member.ended_at for member in workers if member.ended_at is not None)
        if looks.silent_since is not None and crew.now >= max(last, looks.silent_since) + settings.times.silence:
            return Ending(success=True, reason=Reason.COMPLETED, message="all workers ended well")
    return None


def _as_told(training: Training) -> Ending:
    match training.phase:
        case TrainingPhase.SUCCEEDED:
            return Ending(success=True, reason=Reason.COMPLETED, message=training.reason or "training is done")
        case TrainingPhase.STOPPED:
            return Ending(success=False, reason=Reason.STOPPED, message=training.reason or "it was stopped")
        case _:
            return Ending(success=False, reason=Reason.TRAINING_FAILED, message=training.reason or "training failed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleanup:
    delete: tuple[PodSeen, ...] = ()
    delete_job: bool = False
    next_look: datetime | None = None


def plan_cleanup(
    pods: Sequence[PodSeen],
    spec: JobSpec,
    *,
    ended: datetime,
    by_master: bool,
    settings: OperatorSettings,
    now: datetime,
) -> Cleanup:
    """What to remove of a job that is over: what still runs after a while, the master last, and the job after its ttl.

    Members that the master manages get time to end by themselves, if it was the master that ended the job."""
    if spec.ttl_after_finished is not None and now >= ended + spec.ttl_after_finished:
        return Cleanup(delete_job=True)
    grace = ended + settings.times.ending
    running = [pod for pod in pods if not pod.is_over and not pod.deleting]
    members = [pod for pod in running if pod.role is not None]
    waits = [pod for pod in members if by_master and pod.role in settings.managed_in(spec) and now < grace]
    delete = [pod for pod in members if pod not in waits]
    masters = [pod for pod in running if pod.role is None]
    master_due = now >= grace if by_master else not members
    delete += [pod for pod in masters if master_due and (not members or now >= grace)]
    looks = [grace] if (waits or masters) and now < grace else []
    if spec.ttl_after_finished is not None:
        looks.append(ended + spec.ttl_after_finished)
    return Cleanup(delete=tuple(delete), next_look=min(looks, default=None))
