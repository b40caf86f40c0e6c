"""What is counted of a decision about a TrainingJob: a resize, and trainers that failed.

Failures are those that its batch Job counts. Pods that were evicted, or lost with their host, are none of them:
Kubernetes replaces those without a word.
"""

from collections.abc import Iterable

from shoal.api.trainingjob import TrainingRole
from shoal.core.pods import PodPhase
from shoal.core.workloads import TrainingPod
from shoal.operator.counting import Direction, Resized, Result, Trigger, lost_class
from shoal.operator.training.snapshot import ScaleRecord, TrainingMemory, TrainingSeen, TrainingStatus
from shoal.scheduler.decisions import Code


def resize_of(job: TrainingSeen, after: TrainingStatus) -> Resized | None:
    """What became of the number of trainers between two records; None: nothing."""
    before, last = _last(job.memory), _last(after.memory)
    if job.spec is None or last is None or last == before:
        return None
    word = after.memory.scheduling
    by_user = job.spec.suspend or (word is not None and word.code == Code.ABOVE_MAX)
    asked = 0 if job.spec.suspend else job.spec.trainer.max
    return Resized(
        Direction.UP if last.after > last.before else Direction.DOWN,
        Trigger.USER if by_user else Trigger.SCHEDULER,
        Result.GRANTED if last.after >= asked else Result.TRIMMED,
    )


def _last(memory: TrainingMemory) -> ScaleRecord | None:
    """The last change of the number of trainers."""
    return next((each for each in reversed(memory.records) if each.role is TrainingRole.TRAINER), None)


def lost_by(job: TrainingSeen, after: TrainingStatus, pods: Iterable[TrainingPod]) -> tuple[str, ...]:
    """The classes of the trainers that have failed since the last record. Those are the youngest; of one whose Pod is
    gone by now nobody knows why."""
    count = max(0, after.memory.failures - job.memory.failures)
    failed = [pod for pod in pods if pod.role is TrainingRole.TRAINER and pod.phase is PodPhase.FAILED]
    failed.sort(key=lambda pod: (pod.created_at, pod.name), reverse=True)
    known = [lost_class(pod) for pod in failed[:count]]
    return (*known, *["unknown"] * (count - len(known)))
