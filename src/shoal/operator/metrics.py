"""The operator's Prometheus metrics, in a registry of its own. What can be counted when asked is counted then."""

from collections import Counter as Tally
from collections.abc import Iterable, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from shoal import __version__, commit
from shoal.api.elasticjob import JobCondition
from shoal.api.meta import ConditionStatus
from shoal.api.reasons import Reason
from shoal.api.trainingjob import TrainingCondition
from shoal.operator.actions import JobPlan
from shoal.operator.counting import Resized

_BUCKETS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30)
_WAITS = (1, 5, 15, 60, 300, 900, 1800, 3600, 4 * 3600, 24 * 3600)
STATES = ("waiting", "pending", "ready", "resizing", "degraded", "suspended", "succeeded", "failed")


class OperatorMetrics:
    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        build = Gauge("shoal_build_info", "The version that runs.", ["version", "commit"], registry=self._registry)
        build.labels(version=__version__, commit=commit()).set(1)
        self._jobs = Gauge("shoal_jobs", "Jobs by state.", ["state"], registry=self._registry)
        self._resizes = Counter(
            "shoal_resizes",
            "Changes of what jobs may have: which way, on whose word, and whether it is all that was asked for.",
            ["direction", "trigger", "result"],
            registry=self._registry,
        )
        self._failures = Counter(
            "shoal_member_failures",
            "Lost members of ElasticJobs and failed trainers of TrainingJobs, by cause.",
            ["class"],
            registry=self._registry,
        )
        self._looks = Histogram(
            "shoal_reconcile_duration_seconds",
            "How long one look at a job took.",
            ["controller", "result"],
            buckets=_BUCKETS,
            registry=self._registry,
        )
        self._staleness = Gauge(
            "shoal_informer_staleness_seconds",
            "How long ago the API server was last heard about a kind.",
            ["resource"],
            registry=self._registry,
        )
        self._waiting = Gauge("shoal_queue_length", "Jobs that wait to be looked at.", registry=self._registry)
        self._leader = Gauge("shoal_leader", "Whether this replica leads.", ["replica_role"], registry=self._registry)
        self._requests = Counter(
            "shoal_api_requests",
            "Calls to the API server by verb, resource and answer.",
            ["verb", "resource", "code"],
            registry=self._registry,
        )
        self._lag = Gauge(
            "shoal_event_loop_lag_seconds", "How late the last tick of the event loop was.", registry=self._registry
        )

        self._rounds = Histogram(
            "shoal_scheduler_cycle_duration_seconds",
            "How long one round of the scheduler took.",
            ["result"],
            buckets=_BUCKETS,
            registry=self._registry,
        )
        self._last_round = Gauge(
            "shoal_scheduler_last_round_timestamp_seconds",
            "When the scheduler's last round ended that did not fail; 0: there was none, as on replicas that wait.",
            registry=self._registry,
        )
        self._decisions = Counter(
            "shoal_scheduler_decisions",
            "What the scheduler decided for jobs, and why.",
            ["action", "reason"],
            registry=self._registry,
        )
        self._waits = Histogram(
            "shoal_queue_wait_seconds",
            "How long jobs waited until they were admitted, by namespace and priority.",
            ["queue", "priority"],
            buckets=_WAITS,
            registry=self._registry,
        )
        self._goodput = Gauge(
            "shoal_goodput_ratio",
            "The part of what a namespace's jobs hold, by what it costs, that trains.",
            ["queue"],
            registry=self._registry,
        )
        self._settings = Gauge(
            "shoal_scheduler_settings_valid",
            "Whether the scheduler's settings are those in the ConfigMap; 0: they were refused, older ones hold.",
            registry=self._registry,
        )
        self._settings.set(1)

    def recorded(self, plan: JobPlan) -> None:
        """A decision stands in its job's status now."""
        self.counted(plan.resized, plan.lost)

    def counted(self, resized: Resized | None, lost: Iterable[str]) -> None:
        """What became of a job's size, and why members were lost, stands in its status now."""
        if resized is not None:
            self._resizes.labels(resized.direction, resized.trigger, resized.result).inc()
        for cause in lost:
            self._failures.labels(cause).inc()

    def scheduled(self, result: str, seconds: float) -> None:
        self._rounds.labels(result).observe(seconds)
        if result == "ok":
            self._last_round.set_to_current_time()

    def decided(self, action: str, reason: str) -> None:
        self._decisions.labels(action, reason).inc()

    def waited(self, queue: str, priority: str, seconds: float) -> None:
        self._waits.labels(queue, priority).observe(seconds)

    def settings_are_valid(self, valid: bool) -> None:
        self._settings.set(valid)

    def looked(self, result: str, seconds: float, controller: str = "elasticjob") -> None:
        self._looks.labels(controller, result).observe(seconds)

    def called(self, verb: str, resource: str, code: int, seconds: float) -> None:
        self._requests.labels(verb, resource, str(code)).inc()

    def lag(self, seconds: float) -> None:
        self._lag.set(seconds)

    def text(
        self,
        jobs: Iterable[Mapping[str, Any]],
        *,
        staleness: Mapping[str, float | None],
        waiting: int,
        leads: bool,
        goodput: Mapping[str, float] | None = None,
    ) -> bytes:
        """What Prometheus reads, as of now. `goodput`: by namespace; None: who does not lead does not know."""
        self._goodput.clear()
        for queue, ratio in (goodput or {}).items():
            self._goodput.labels(queue).set(ratio)
        states = Tally(state_of(job) for job in jobs)
        for state in STATES:
            self._jobs.labels(state).set(states[state])
        for resource, seconds in staleness.items():
            self._staleness.labels(resource).set(float("nan") if seconds is None else seconds)
        self._waiting.set(waiting)
        self._leader.labels("leader").set(leads)
        self._leader.labels("standby").set(not leads)
        return generate_latest(self._registry)


def state_of(job: Mapping[str, Any]) -> str:
    """One word for a job, from its conditions."""
    status = job.get("status")
    said = status.get("conditions") if isinstance(status, Mapping) else None
    conditions = {each.get("type"): each for each in said or () if isinstance(each, Mapping)}

    def is_(kind: JobCondition | TrainingCondition, value: ConditionStatus) -> bool:
        return conditions.get(kind, {}).get("status") == value

    if is_(JobCondition.SUCCEEDED, ConditionStatus.TRUE):
        return "succeeded"
    if is_(JobCondition.SUCCEEDED, ConditionStatus.FALSE):
        return "failed"
    if conditions.get(JobCondition.READY, {}).get("reason") == Reason.SUSPENDED:
        return "suspended"
    if conditions.get(JobCondition.READY, {}).get("reason") == Reason.WAITING:
        return "waiting"
    if is_(JobCondition.DEGRADED, ConditionStatus.TRUE):
        return "degraded"
    if is_(JobCondition.RESIZING, ConditionStatus.TRUE) or is_(TrainingCondition.SCALING, ConditionStatus.TRUE):
        return "resizing"
    return "ready" if is_(JobCondition.READY, ConditionStatus.TRUE) else "pending"
