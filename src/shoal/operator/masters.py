"""The job's master Pod: which term it is in, when the next one starts, and whether anybody answers.

Master Pods are `<job>-master-<term>`. A term is recorded before its Pod is made and never used twice. A master that
ends is followed by the next term: at once if it had been ready, after a growing wait if it never was.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from shoal.core.pods import PodSeen
from shoal.operator.members import MasterLooks
from shoal.operator.memory import MasterRecord
from shoal.operator.settings import JobTimes
from shoal.operator.snapshot import Training


@dataclass(frozen=True, slots=True, kw_only=True)
class MasterPlan:
    record: MasterRecord
    create: bool = False
    delete: tuple[PodSeen, ...] = ()
    next_look: datetime | None = None
    lost: str | None = None
    """Why the last one was followed by another, when it was just now."""


def master_name(job: str, term: int) -> str:
    return f"{job}-master-{term}"


def look_at_master(
    record: MasterRecord, pods: Sequence[PodSeen], training: Training | None, *, now: datetime
) -> tuple[MasterRecord, MasterLooks]:
    """Whether the newest master answers. One that is ready and has not reported yet does not: nobody may be listening
    there, and what an earlier one said is not its word."""
    current = next((pod for pod in pods if pod.role is None and pod.id == record.term), None)
    ready = current is not None and current.ready and not current.deleting and not current.is_over
    answers = ready and training is not None and training.term == record.term
    record = replace(
        record,
        uid=current.uid if current else record.uid,
        was_ready=record.was_ready or ready,
        silent_since=None if answers else record.silent_since or now,
    )
    return record, MasterLooks(answers=answers, silent_since=record.silent_since)


def plan_master(
    record: MasterRecord,
    pods: Sequence[PodSeen],
    *,
    wanted: bool,
    makes_pods: bool = False,
    times: JobTimes,
    now: datetime,
) -> MasterPlan:
    """`makes_pods`: as masters are to be now; one that is not is followed by one that is."""
    masters = [pod for pod in pods if pod.role is None]
    running = tuple(pod for pod in masters if not pod.is_over and not pod.deleting)
    if not wanted:
        return MasterPlan(record=replace(record, stopped=True), delete=running)
    if record.term == 0 or record.stopped:
        begun = max([record.term, *(pod.id for pod in masters)]) + 1
        return MasterPlan(record=_term(begun, now, silent_since=now), create=True, delete=running)
    # The last one's log may be wanted; those before it, and any that still runs, are not.
    old = tuple(
        pod
        for pod in masters
        if not pod.deleting and (pod.id < record.term - 1 or (pod.id < record.term and not pod.is_over))
    )
    current = next((pod for pod in masters if pod.id == record.term), None)
    if current is None and record.uid is None:
        return MasterPlan(record=record, create=True, delete=old)
    if current is not None and not current.is_over and not current.deleting:
        if current.makes_pods is makes_pods:
            return MasterPlan(record=record, delete=old)
        following = _term(record.term + 1, now, silent_since=record.silent_since or now)
        why = "the operator's --pod-scaler was changed"
        return MasterPlan(record=following, create=True, delete=(*old, current), lost=why)
    failures = 0 if record.was_ready else record.failures + 1
    due = (record.since or now) + _wait(failures, times)
    if now < due:
        return MasterPlan(record=record, delete=old, next_look=due)
    why = "its Pod is gone" if current is None or current.deleting else (current.reason or "its Pod ended")
    following = replace(_term(record.term + 1, now, silent_since=record.silent_since or now), failures=failures)
    return MasterPlan(record=following, create=True, delete=old, lost=why)


def _term(term: int, now: datetime, *, silent_since: datetime) -> MasterRecord:
    return MasterRecord(term=term, since=now, silent_since=silent_since)


def _wait(failures: int, times: JobTimes) -> timedelta:
    if failures == 0:
        return timedelta(0)
    doubled: timedelta = times.master_backoff * (1 << min(failures - 1, 16))
    return min(doubled, times.master_backoff_most)
