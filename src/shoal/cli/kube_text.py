"""A cluster's jobs in words: rows of `shoal get`, the pages of `shoal describe` and `shoal why`. Pure.

What is shown is what stands on the objects: nothing is computed that `kubectl` would not show as well.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from shoal.api.elasticjob import ElasticJob, ElasticJobStatus, JobCondition, Score
from shoal.api.meta import Condition, condition
from shoal.api.scaleplan import PodReport, ScalePlan
from shoal.api.scheduling import SchedulingStatus
from shoal.api.trainingjob import TrainingCondition, TrainingJob, TrainingJobStatus
from shoal.cli.text import age, clean

TITLES = ("JOB", "STATE", "WORKERS", "ASKED", "WORLD", "STEP", "RESTARTS", "DONE", "AGE")
WIDE = ("STRATEGY", "MODE", "DECISION")
NAMESPACE = "NAMESPACE"


@dataclass(frozen=True, slots=True, kw_only=True)
class EventLine:
    """One event about a job or a Pod of it."""

    at: datetime
    kind: str
    """Normal or Warning."""
    reason: str
    about: str
    note: str
    count: int = 1

    @property
    def is_about_job(self) -> bool:
        """Not about one of its Pods, of which every start and pull is told."""
        return self.about.startswith(("ElasticJob ", "TrainingJob "))


def _status(job: ElasticJob) -> ElasticJobStatus:
    return job.status or ElasticJobStatus()


def state(job: ElasticJob) -> str:
    """One word for where the job stands."""
    status = _status(job)
    done = condition(status.conditions, JobCondition.SUCCEEDED)
    if job.metadata.deletion_timestamp is not None:
        return "Deleting"
    if done is not None and done.status != "Unknown":
        return "Succeeded" if done.status == "True" else done.reason
    ready = condition(status.conditions, JobCondition.READY)
    return ready.reason if ready is not None else "New"


def _text(value: object) -> str:
    return "" if value is None else f"{value:,}" if isinstance(value, int) else str(value)


def row(job: ElasticJob | TrainingJob, now: datetime, *, wide: bool, namespaces: bool) -> tuple[str, ...]:
    if isinstance(job, TrainingJob):
        return _training_row(job, now, wide=wide, namespaces=namespaces)
    status = _status(job)
    workers = next((each for each in status.roles or () if each.role == "worker"), None)
    done = condition(status.conditions, JobCondition.SUCCEEDED)
    training = status.training
    created = job.metadata.creation_timestamp or now
    cells = [
        job.metadata.name,
        state(job),
        _text(workers.running if workers else None),
        _text(workers.asked if workers else None),
        _text(status.world),
        _text(training.step if training else None),
        _text(status.restarts or (training.restarts if training else None)),
        done.status if done else "Unknown",
        age(now - created),
    ]
    if wide:
        decision = status.last_decision
        spec = job.spec
        cells += [spec.distribution_strategy or "", spec.optimize_mode or "", decision.reason if decision else ""]
    return tuple([job.metadata.namespace or "", *cells] if namespaces else cells)


def _training_row(job: TrainingJob, now: datetime, *, wide: bool, namespaces: bool) -> tuple[str, ...]:
    """A TrainingJob in the same columns: its trainers are its workers, and its world is its master's to know."""
    status = job.status or TrainingJobStatus()
    trainers = next((each for each in status.replica_statuses or () if each.role == "trainer"), None)
    done = condition(status.conditions, TrainingCondition.SUCCEEDED)
    cells = [
        job.metadata.name,
        training_state(job),
        _text(trainers.running if trainers else None),
        _text(job.spec.trainer.max_instance or job.spec.trainer.min_instance or 1),
        "",
        "",
        _text(trainers.failed if trainers else None),
        done.status if done else "Unknown",
        age(now - (job.metadata.creation_timestamp or now)),
    ]
    if wide:
        cells += ["", "", status.reason or ""]
    return tuple([job.metadata.namespace or "", *cells] if namespaces else cells)


def training_state(job: TrainingJob) -> str:
    if job.metadata.deletion_timestamp is not None:
        return "Deleting"
    return (job.status.phase if job.status else None) or "New"


def titles(*, wide: bool, namespaces: bool) -> tuple[str, ...]:
    return (*((NAMESPACE,) if namespaces else ()), *TITLES, *(WIDE if wide else ()))


# describe --------------------------------------------------------------------------------------------------------


def describe(
    job: ElasticJob, plans: Sequence[ScalePlan], pods: Sequence[PodReport], events: Sequence[EventLine], now: datetime
) -> list[str]:
    """Everything about one job, for people."""
    meta, status = job.metadata, _status(job)
    lines = [f"job {meta.name} in namespace {meta.namespace}: {state(job)}"]
    if meta.creation_timestamp is not None:
        lines.append(f"  created {age(now - meta.creation_timestamp)} ago")
    lines += [f"  {line}" for line in _training(status)]
    lines += ["", "members"]
    lines += _members(status)
    lines += [f"  {line}" for line in _pods(pods)]
    if status.grant is not None:
        counts = ", ".join(f"{each.role} {each.count}" for each in status.grant.counts or ()) or "nothing"
        lines += ["", f"granted: {counts}" + (f" ({status.grant.reason})" if status.grant.reason else "")]
    manual = [plan for plan in plans if plan.metadata.name != f"{meta.name}-auto"]
    if manual:
        lines += ["", "plans", *(f"  {_plan(plan)}" for plan in manual)]
    lines += ["", "conditions", *(f"  {_condition(each)}" for each in status.conditions or ())]
    if status.training is not None and status.training.error:
        lines += ["", "last error", *(f"  {line}" for line in status.training.error.rstrip().splitlines())]
    lines += ["", "events", *(f"  {_event(each, now)}" for each in events)] if events else []
    return [clean(line) for line in lines]


def describe_training(job: TrainingJob, events: Sequence[EventLine], now: datetime) -> list[str]:
    """Everything about one TrainingJob, for people."""
    meta, status = job.metadata, job.status or TrainingJobStatus()
    lines = [f"job {meta.name} in namespace {meta.namespace}: {training_state(job)}"]
    lines += [f"  {status.reason}"] if status.reason else []
    if meta.creation_timestamp is not None:
        lines.append(f"  created {age(now - meta.creation_timestamp)} ago")
    lines += ["", "members"]
    lines += [
        f"  {each.role}: {each.running or 0} run, {each.pending or 0} pending, {each.succeeded or 0} ended well, "
        f"{each.failed or 0} failed; {each.target or 0} allowed"
        for each in status.replica_statuses or ()
    ] or ["  none yet"]
    records = [
        f"  {age(now - each.at)} ago  {each.from_} -> {each.to} trainers: {each.reason or ''}"
        for each in status.scale_records or ()
    ]
    lines += ["", "resizes", *records] if records else []
    told = scheduled(status.scheduling, now)
    lines += ["", *told] if told else []
    lines += ["", "conditions", *(f"  {_condition(each)}" for each in status.conditions or ())]
    lines += ["", "events", *(f"  {_event(each, now)}" for each in events)] if events else []
    return [clean(line) for line in lines]


def _training(status: ElasticJobStatus) -> list[str]:
    training = status.training
    if training is None:
        return ["its master has not reported yet"]
    world = f"world {training.world}: {training.world_size or 0} processes" if training.world else "no world yet"
    progress = "" if training.step is None else f", step {training.step:,}"
    said = f" ({training.reason})" if training.reason else ""
    return [f"{training.phase or 'starting'}{said}", f"{world}{progress}", *map(_score, training.scores or ())]


def _score(score: Score) -> str:
    figures = ", ".join(f"{metric.name} {metric.value}" for metric in score.metrics or ())
    return f"scored at step {score.step}: {figures or 'not'}"


def _members(status: ElasticJobStatus) -> list[str]:
    return [
        f"  {each.role}: {each.running or 0} run, {each.pending or 0} pending, {each.succeeded or 0} ended well, "
        f"{each.failed or 0} failed; {_text(each.asked) or 'none'} asked for, {_text(each.granted) or 'none'} granted"
        for each in status.roles or ()
    ] or ["  none yet"]


def _pods(pods: Sequence[PodReport]) -> list[str]:
    return [
        f"{pod.name}: {pod.phase}"
        + (f" on {pod.host}" if pod.host else "")
        + (f", exit {pod.exit_code}" if pod.exit_code is not None else "")
        + (", out of memory" if pod.oom_killed else "")
        + (f", takes the place of {pod.replaces}" if pod.replaces else "")
        + (f": {pod.reason}" if pod.reason else "")
        for pod in pods
    ]


def _plan(plan: ScalePlan) -> str:
    conditions = plan.status.conditions if plan.status is not None else None
    return f"{plan.metadata.name}: " + (
        "; ".join(f"{each.type} {each.status} ({each.message or each.reason})" for each in conditions or ())
        or "not looked at yet"
    )


def _condition(each: Condition) -> str:
    return f"{each.type:<10} {each.status:<8} {each.reason}" + (f": {each.message}" if each.message else "")


def _event(each: EventLine, now: datetime) -> str:
    times = f" (x{each.count})" if each.count > 1 else ""
    return f"{age(now - each.at)} ago  {each.kind}  {each.reason}{times}  {each.about}: {each.note}"


# why -------------------------------------------------------------------------------------------------------------


def why(job: ElasticJob, plans: Sequence[ScalePlan], events: Sequence[EventLine], now: datetime) -> list[str]:
    """What was decided about a job and why, the newest first, then what it waits for."""
    status = _status(job)
    said: list[tuple[datetime, str]] = []
    if status.last_decision is not None:
        said.append((status.last_decision.at, f"operator: {status.last_decision.reason}"))
    if status.training is not None and status.training.last_decision is not None:
        said.append((status.training.last_decision.at, f"master: {status.training.last_decision.reason}"))
    said += [(each.at, f"{each.reason}: {each.note}") for each in events]
    said.sort(key=lambda line: (line[0], line[1]), reverse=True)
    lines = [f"job {job.metadata.name}: {state(job)}"]
    lines += [f"  {age(now - at)} ago  {text}" for at, text in said] or ["  nothing has been decided yet"]
    lines += scheduled(status.scheduling, now)
    waiting = [each for each in status.conditions or () if _holds_up(each)]
    if waiting:
        lines += ["it waits for", *(f"  {each.reason}: {each.message or each.type}" for each in waiting)]
    asked = [each for each in status.roles or () if each.asked is not None and each.asked != each.granted]
    if asked:
        lines += [
            "trimmed",
            *(f"  {each.role}: {each.asked} asked for, {_text(each.granted) or 'none'} granted" for each in asked),
        ]
    for plan in plans:
        trimmed = plan.status.trimmed if plan.status is not None else None
        lines += [
            f"  {plan.metadata.name}: {each.what} {each.asked or '?'} became {each.got or 'nothing'}: {each.reason}"
            for each in trimmed or ()
        ]
    return [clean(line) for line in lines]


def scheduled(told: SchedulingStatus | None, now: datetime) -> list[str]:
    """What the cluster's scheduler decided last."""
    if told is None or told.target is None:
        return []
    since = "" if told.waiting_since is None else f", for {age(now - told.waiting_since)}"
    stands = f"{told.target} allowed" if told.target else f"it waits{since}"
    place = "" if told.place is None or told.target else f", place {told.place} in the queue"
    frozen = ""
    if told.frozen_until is not None and told.frozen_until > now:
        frozen = f"; not resized without need for {age(told.frozen_until - now)}"
    return ["the scheduler", f"  {stands}{place}: {told.code or 'Queued'}: {told.reason or ''}{frozen}"]


def why_training(job: TrainingJob, events: Sequence[EventLine], now: datetime) -> list[str]:
    """The same of a TrainingJob."""
    status = job.status or TrainingJobStatus()
    said = [(each.at, f"{each.reason}: {each.note}") for each in events]
    said += [
        (each.at, f"{each.from_} -> {each.to} trainers: {each.reason or ''}") for each in status.scale_records or ()
    ]
    said.sort(key=lambda line: (line[0], line[1]), reverse=True)
    lines = [f"job {job.metadata.name}: {status.phase or 'New'}" + (f" ({status.reason})" if status.reason else "")]
    lines += [f"  {age(now - at)} ago  {text}" for at, text in said] or ["  nothing has been decided yet"]
    lines += scheduled(status.scheduling, now)
    waiting = [each for each in status.conditions or () if _holds_up(each)]
    if waiting:
        lines += ["it waits for", *(f"  {each.reason}: {each.message or each.type}" for each in waiting)]
    return [clean(line) for line in lines]


def _holds_up(each: Condition) -> bool:
    bad_when_false = each.type in (JobCondition.ADMITTED, JobCondition.READY)
    return (bad_when_false and each.status != "True") or (each.type == JobCondition.DEGRADED and each.status == "True")
