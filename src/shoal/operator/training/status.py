"""What people read of a TrainingJob: its phase, its conditions, and the sentence that says why.

| phase     | meaning                                                           | what ends it                       |
| --------- | ----------------------------------------------------------------- | ---------------------------------- |
| Pending   | it waits for the scheduler, or is suspended: nothing of it trains | it is admitted                     |
| Creating  | it is admitted; not all that it needs to train runs yet           | its least number of trainers runs  |
| Running   | it trains with as many trainers as it should have                 | the scheduler, a loss, its end     |
| Scaling   | it trains; trainers or parameter servers come or go               | they have come or gone             |
| Succeeded | its trainers have                                                 |                                    |
| Failed    | more trainers failed than it survives                             |                                    |
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from shoal.api.trainingjob import Phase, TrainingCondition, TrainingRole
from shoal.api.trainingspec import TrainingSpec
from shoal.core.pods import Trouble
from shoal.core.workloads import TrainingPod
from shoal.operator.status import FALSE, TRUE, UNKNOWN, Said, say_priority
from shoal.operator.training.objects import SERVERS_GRACE_SECONDS
from shoal.operator.training.snapshot import RoleCounts, TrainingMemory

_QUOTA = frozenset({"QuotaExceeded", "AboveWholeQuota"})
NO_IMAGE = "no image is named: say spec.image, or give the operator --training-image"
_IDLE = Said(FALSE, "Idle", "")
Conditions = dict[TrainingCondition, Said]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How a job ended."""

    success: bool
    reason: str
    message: str

    @property
    def phase(self) -> Phase:
        return Phase.SUCCEEDED if self.success else Phase.FAILED


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """What there is to be said about a job that is not over."""

    spec: TrainingSpec
    memory: TrainingMemory
    counts: Mapping[TrainingRole, RoleCounts]
    image_missing: bool
    trimmed: str
    """Why its priority counts for less than it says; empty: it does not."""
    changing: bool
    """The number of its Pods is being changed right now."""
    servers_fixed: str
    """Why its parameter servers stay as many as they are; empty: they do not."""
    ending: int
    """Trainers of before that have to end before there are others."""
    pods: Sequence[TrainingPod]
    troubles: Sequence[Trouble]

    def running(self, role: TrainingRole) -> int:
        return self.counts[role].running if role in self.counts else 0

    @property
    def target(self) -> int:
        return self.counts[TrainingRole.TRAINER].target if TrainingRole.TRAINER in self.counts else 0

    @property
    def is_up(self) -> bool:
        """Whether it can train: its least number of trainers runs, and all that serve them."""
        least = min(self.spec.trainer.min, self.target)
        trainers = self.running(TrainingRole.TRAINER) + self._succeeded
        serving = all(self.running(part.role) >= part.min for part in self.spec.parts)
        return self.target > 0 and trainers >= least and (serving or self._succeeded > 0)

    @property
    def is_settled(self) -> bool:
        trainers, servers = self.counts[TrainingRole.TRAINER], self.counts.get(TrainingRole.PSERVER)
        if servers is not None and servers.running < servers.target and not self._succeeded:
            return False
        return not self.changing and trainers.running + self._succeeded >= self.target and not trainers.pending

    @property
    def _succeeded(self) -> int:
        return self.counts[TrainingRole.TRAINER].succeeded if TrainingRole.TRAINER in self.counts else 0


def say(outlook: Outlook) -> tuple[Phase, str, Conditions]:
    """Phase, the sentence that says why, and the conditions."""
    admitted = _admitted(outlook)
    ready = _ready(outlook)
    scaling = _scaling(outlook)
    said = {
        TrainingCondition.ADMITTED: admitted,
        TrainingCondition.QUOTA_EXCEEDED: _quota(outlook),
        TrainingCondition.PRIORITY_TRIMMED: say_priority(outlook.trimmed),
        TrainingCondition.READY: ready,
        TrainingCondition.SCALING: scaling,
        TrainingCondition.IMAGE_MISSING: _image(outlook),
        TrainingCondition.SERVERS_FIXED: _servers(outlook),
        TrainingCondition.STATE_NOT_KEPT: _state(outlook),
        TrainingCondition.DEGRADED: _degraded(outlook),
        TrainingCondition.SUCCEEDED: Said(UNKNOWN, "Suspended" if outlook.spec.suspend else "Running", ""),
    }
    if not outlook.target:
        return Phase.PENDING, admitted.message, said
    if not outlook.is_up:
        return Phase.CREATING, ready.message, said
    if scaling.status == TRUE:
        return Phase.SCALING, scaling.message, said
    return Phase.RUNNING, admitted.message, said


def say_over(ending: Ending) -> Conditions:
    return {
        TrainingCondition.ADMITTED: Said(FALSE, "Finished", "the job is over"),
        TrainingCondition.QUOTA_EXCEEDED: Said(FALSE, "Finished", ""),
        TrainingCondition.PRIORITY_TRIMMED: Said(FALSE, "Finished", ""),
        TrainingCondition.READY: Said(FALSE, "Completed" if ending.success else ending.reason, ending.message),
        TrainingCondition.SCALING: _IDLE,
        TrainingCondition.IMAGE_MISSING: Said(FALSE, "Finished", ""),
        TrainingCondition.SERVERS_FIXED: Said(FALSE, "Finished", ""),
        TrainingCondition.STATE_NOT_KEPT: Said(FALSE, "Finished", ""),
        TrainingCondition.DEGRADED: Said(FALSE, "Finished", ""),
        TrainingCondition.SUCCEEDED: Said(TRUE if ending.success else FALSE, ending.reason, ending.message),
    }


def say_invalid(why: str) -> Conditions:
    unknown = Said(UNKNOWN, "InvalidSpec", "")
    return {
        TrainingCondition.ADMITTED: Said(FALSE, "InvalidSpec", why),
        TrainingCondition.QUOTA_EXCEEDED: unknown,
        TrainingCondition.PRIORITY_TRIMMED: unknown,
        TrainingCondition.READY: Said(FALSE, "InvalidSpec", why),
        TrainingCondition.SCALING: _IDLE,
        TrainingCondition.IMAGE_MISSING: unknown,
        TrainingCondition.SERVERS_FIXED: unknown,
        TrainingCondition.STATE_NOT_KEPT: unknown,
        TrainingCondition.DEGRADED: Said(TRUE, "InvalidSpec", why),
        TrainingCondition.SUCCEEDED: unknown,
    }


def _admitted(outlook: Outlook) -> Said:
    if outlook.spec.suspend:
        return Said(FALSE, "Suspended", "spec.suspend is true")
    if outlook.image_missing:
        return Said(FALSE, "ImageMissing", _image(outlook).message)
    word = outlook.memory.scheduling
    if word is None:
        return Said(FALSE, "WaitingForScheduler", "the scheduler has not looked at it yet")
    reason = word.reason or ""
    if outlook.target:
        return Said(TRUE, "Admitted", reason)
    place = f"place {word.place} in the queue" if word.place is not None else ""
    return Said(FALSE, word.code or "Queued", ": ".join(part for part in (place, reason) if part))


def _quota(outlook: Outlook) -> Said:
    word = outlook.memory.scheduling
    if word is not None and word.code in _QUOTA and not outlook.target:
        return Said(TRUE, word.code or "QuotaExceeded", word.reason or "")
    refused = next((each for each in outlook.troubles if each.reason == "QuotaExceeded"), None)
    if refused is not None:
        return Said(TRUE, refused.reason, refused.message)
    return Said(FALSE, "WithinQuota", "")


def _image(outlook: Outlook) -> Said:
    if outlook.image_missing:
        return Said(TRUE, "ImageMissing", NO_IMAGE)
    return Said(FALSE, "ImageNamed", "")


def _servers(outlook: Outlook) -> Said:
    servers = outlook.spec.pserver
    if servers is None or servers.min == servers.max:
        return Said(FALSE, "AsAsked", _hasty(outlook.spec))
    if not outlook.servers_fixed:
        return Said(FALSE, "TrainersFollow", _hasty(outlook.spec))
    count = outlook.counts[TrainingRole.PSERVER].target if TrainingRole.PSERVER in outlook.counts else 0
    many = f"{max(count, servers.min)} parameter servers, however many trainers there are"
    return Said(TRUE, "TrainersCannotFollow", f"{many}: {outlook.servers_fixed}")


def _hasty(spec: TrainingSpec) -> str:
    """What may happen to servers that are given less time to leave than they may need; empty: they have enough."""
    own = spec.pserver.written.grace_period_seconds if spec.servers_follow and spec.pserver is not None else None
    if own is None or own >= SERVERS_GRACE_SECONDS:
        return ""
    lost = "one that takes longer to hand over its parameters is killed, and what it held is lost"
    return f"pserver.grace_period_seconds is {own}, and {SERVERS_GRACE_SECONDS} without it: {lost}"


def _state(outlook: Outlook) -> Said:
    spec = outlook.spec
    if outlook.memory.start_time is None:
        return Said(FALSE, "AsAsked", "")
    if spec.servers_follow and spec.checkpoint_path is None and not outlook.target:
        why = "there is no checkpoint.path from which to restore it: the job fails when it comes back"
        return Said(TRUE, "NoCheckpointPath", f"what its parameter servers held is lost, and {why}")
    if not spec.suspend or spec.etcd is None or spec.etcd_storage is not None:
        return _servers_state(outlook)
    why = "its etcd has no volume: name master.etcd-storage to keep the state over a suspension"
    return Said(TRUE, "NoVolume", f"what its master knew is lost, the job will begin its data anew; {why}")


def _servers_state(outlook: Outlook) -> Said:
    """Parameter servers end with the job's trainers, whoever takes the job back: it is said before and after."""
    spec = outlook.spec
    if spec.pserver is None or (spec.servers_follow and spec.checkpoint_path is not None):
        return Said(FALSE, "AsAsked", "")
    if outlook.target:
        what = "its parameter servers hold their state only while the job runs"
        lost = "it is lost: there is no checkpoint.path" if spec.servers_follow else "what they have not saved is lost"
        return Said(FALSE, "WhileItRuns", f"{what}: when it is put back or suspended they end, and {lost}")
    who = "suspended" if spec.suspend else "put back by the scheduler"
    lost = "what its parameter servers had not saved to a volume is lost"
    return Said(TRUE, "ServersEnded", f"the job was {who}, and its parameter servers have ended: {lost}")


def _ready(outlook: Outlook) -> Said:
    if outlook.spec.suspend:
        left = sum(pod.is_live for pod in outlook.pods)
        return Said(FALSE, "Suspended", f"{left} Pods still have to go" if left else "no Pods while suspended")
    if not outlook.target:
        return Said(FALSE, "Waiting", _admitted(outlook).message)
    trainers = outlook.running(TrainingRole.TRAINER)
    if outlook.is_up:
        return Said(TRUE, "Running", f"{trainers} of {outlook.target} trainers run")
    if outlook.ending:
        before = f"{outlook.ending} trainer{'s' if outlook.ending != 1 else ''} of before"
        return Said(FALSE, "TrainersEnding", f"{before} still have to end: no two sets of trainers run at once")
    waiting = next((pod.trouble for pod in outlook.pods if pod.trouble and pod.is_live), None)
    if waiting is not None:
        return Said(FALSE, waiting.reason, waiting.message)
    run = [f"{outlook.running(role)} of {counts.target} {role}" for role, counts in outlook.counts.items()]
    return Said(FALSE, "Creating", f"{', '.join(run)} run")


def _scaling(outlook: Outlook) -> Said:
    if not outlook.target or not outlook.is_up or outlook.is_settled:
        return _IDLE
    running, target = outlook.running(TrainingRole.TRAINER), outlook.target
    servers = outlook.counts.get(TrainingRole.PSERVER)
    if running == target and servers is not None and servers.running != servers.target:
        word = "ScalingDown" if servers.running > servers.target else "ScalingUp"
        many = f"{servers.running} of {servers.target} parameter servers run"
        return Said(TRUE, word, f"{many}: {_admitted(outlook).message}")
    word = "ScalingDown" if running > target else "ScalingUp"
    return Said(TRUE, word, f"{running} of {target} trainers run: {_admitted(outlook).message}")


def _degraded(outlook: Outlook) -> Said:
    if outlook.image_missing:
        return _image(outlook)
    if outlook.troubles:
        return Said(TRUE, outlook.troubles[0].reason, outlook.troubles[0].message)
    stuck = next((pod.trouble for pod in outlook.pods if pod.trouble and pod.is_live), None)
    if stuck is not None:
        return Said(TRUE, stuck.reason, stuck.message)
    return Said(FALSE, "AsExpected", "")
