"""How many trainers: the batch Job's parallelism, and who goes when it has to be less.

Kubernetes' Job controller chooses by itself whom it removes when the parallelism is lowered: first those that do not
run yet, then the youngest. We choose: the scheduler has named victims on the hosts that it wants, and the oldest member
leads its world. So a shrink has two steps. The chosen are *evicted*, which is no failure to the Job; and while they end
the parallelism is lowered to what is left, so that nobody is removed and nobody is replaced. Each look checks again
where things stand: a victim that died by itself, or a Pod that was made in between, changes only who is next.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from shoal.core.pods import PodPhase
from shoal.core.workloads import TrainingPod, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainersPlan:
    parallelism: int | None = None
    """What the Job's parallelism should become; None: it stays."""
    evict: tuple[TrainingPod, ...] = ()


def plan_trainers(job: Workload, pods: Sequence[TrainingPod], target: int, victims: Sequence[str] = ()) -> TrainersPlan:
    """`pods`: the Job's own. `victims`: names, in the order in which they should go."""
    if job.wanted < target:
        # A Job without completions makes no more Pods once one has succeeded: it is about to end.
        return TrainersPlan(parallelism=target if not job.succeeded else None)
    if job.wanted == target:
        return TrainersPlan()
    evict = tuple(pod for pod in _first_to_go(pods, target, victims) if not is_waiting(pod))
    if evict:
        return TrainersPlan(evict=evict)
    return TrainersPlan(parallelism=target)  # what goes is what the Job controller would take first anyway


def _first_to_go(pods: Sequence[TrainingPod], target: int, victims: Sequence[str]) -> list[TrainingPod]:
    """Those that were named, those without a host, then the youngest: as the scheduler counts their hosts as free."""
    live = [pod for pod in pods if pod.is_live]
    named = {name: place for place, name in enumerate(victims)}
    youngest_first = sorted(live, key=lambda pod: (pod.created_at, len(pod.name), pod.name), reverse=True)
    youngest_first.sort(key=lambda pod: (named.get(pod.name, len(named)), not is_waiting(pod)))
    return youngest_first[: max(0, len(live) - target)]


def is_waiting(pod: TrainingPod) -> bool:
    """It has no host: it goes without a trace, and first."""
    return pod.phase is PodPhase.PENDING and not pod.host
