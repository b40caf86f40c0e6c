"""The job's master Pod: which term it is in, when the next one starts, and whether anybody answers.

Master Pods are `<job>-master-<term>`. A term is recorded before its Pod is made and never used twice. A master that
ends, or whose host is lost, is followed by the next term: at once if it had been ready, after a growing wait if it
ended by its own fault and never was. Training cannot do without one: too many of those in a row, or one that does not
become ready for too long, end the job.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from shoal.api.reasons import Reason
from shoal.core.pods import PodSeen
from shoal.operator.crew import host_lost, how_it_ended, is_own_fault
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
    record: MasterRecord, pods: Sequence[PodSeen], training: Training | None, *, needed: bool = True, now: datetime
) -> tuple[MasterRecord, MasterLooks]:
    """Whether the newest master answers. One that is ready and has not reported yet does not: nobody may be listening
    there, and what an earlier one said is not its word. `needed`: the job should train now. Time in which there is no
    Pod, or no room for it, does not count as waiting for it: neither is its fault, and both may pass."""
    current = next((pod for pod in pods if pod.role is None and pod.id == record.term), None)
    is_awaited = needed and current is not None and not _waits_for_room(current)
    ready = current is not None and current.ready and not current.deleting and not current.is_over
    answers = ready and training is not None and training.term == record.term
    record = replace(
        record,
        uid=current.uid if current else record.uid,
        was_ready=record.was_ready or ready,
        needed_since=(record.needed_since or now) if is_awaited and not (ready or record.was_ready) else None,
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
    leads_since: datetime | None = None,
    now: datetime,
) -> MasterPlan:
    """`makes_pods`: as masters are to be now; one that is not is followed by one that is. `leads_since`: see
    `why_no_master`."""
    masters = _masters(pods)
    running = tuple(pod for pod in masters if not pod.is_over and not pod.deleting)
    if not wanted:
        if record.stopped:  # nothing is to be recorded that could be refused: one of a later term is somebody else's
            running = tuple(pod for pod in running if pod.id <= record.term)
        return MasterPlan(record=replace(record, stopped=True), delete=running)
    if record.term == 0 or record.stopped:
        begun = max([record.term, *(pod.id for pod in masters)]) + 1
        return MasterPlan(record=replace(_next(record, now), term=begun, silent_since=now), create=True, delete=running)
    # The last one's log may be wanted; those before it, and any that still runs, are not.
    old = tuple(
        pod
        for pod in masters
        if not pod.deleting and (pod.id < record.term - 1 or (pod.id < record.term and not pod.is_over))
    )
    current = next((pod for pod in masters if pod.id == record.term), None)
    if current is None and record.uid is None:
        return MasterPlan(record=record, create=True, delete=old)
    if current is not None and _is_there(current, times, now):
        if current.makes_pods is makes_pods:
            return MasterPlan(record=record, delete=old, next_look=_patience(record, current, times, leads_since))
        following = _next(record, now)
        why = "the operator's --pod-scaler was changed"
        return MasterPlan(record=following, create=True, delete=(*old, current), lost=why)
    failures = _failures(record, current)
    due = (record.since or now) + (timedelta(0) if record.was_ready else _wait(record, failures, times))
    if now < due:
        return MasterPlan(record=record, delete=old, next_look=due)
    following = replace(_next(record, now), failures=failures)
    return MasterPlan(record=following, create=True, delete=old, lost=_how_it_went(current))


def why_no_master(
    record: MasterRecord,
    pods: Sequence[PodSeen],
    *,
    most: int,
    times: JobTimes,
    leads_since: datetime | None = None,
    now: datetime,
) -> str | None:
    """Why a job has to do without a master for good: `most` in a row ended by their own fault before they were ever
    ready, or this one is not ready for longer than a Pod is waited for. None: it has one, or is still to get one.
    `leads_since`: nobody is blamed for what did not happen before that; the API server may have been down."""
    current = next((pod for pod in _masters(pods) if pod.id == record.term), None)
    if record.term == 0 or record.stopped or record.was_ready or current is None:
        return None
    if _is_there(current, times, now):
        due = _due(record, times, leads_since)
        if due is None or now < due:
            return None
        why = current.trouble.message if current.trouble else f"its Pod is {current.phase} and not ready"
        return f"{current.name} was not ready after {times.pending.total_seconds():.0f} s: {why}"
    failures = _failures(record, current)
    if failures <= record.failures or failures < most:
        return None
    return (
        f"{failures} masters in a row ended before they were ready, the last, {current.name}: {how_it_ended(current)}"
    )


def _masters(pods: Sequence[PodSeen]) -> list[PodSeen]:
    return [pod for pod in pods if pod.role is None]


def _is_there(pod: PodSeen, times: JobTimes, now: datetime) -> bool:
    return not pod.is_over and not pod.deleting and not pod.has_lost_host(times.host_grace, now)


def _waits_for_room(pod: PodSeen) -> bool:
    return pod.trouble is not None and pod.trouble.reason == Reason.UNSCHEDULABLE


def _patience(record: MasterRecord, pod: PodSeen, times: JobTimes, leads_since: datetime | None) -> datetime | None:
    """When something is to be decided about a master that is there; None: all is well."""
    dues = [_due(record, times, leads_since), None if pod.host_down is None else pod.host_down + times.host_grace]
    return min((due for due in dues if due is not None), default=None)


def _due(record: MasterRecord, times: JobTimes, leads_since: datetime | None) -> datetime | None:
    """Until when this master is waited for; None: nobody waits for it."""
    if record.needed_since is None:
        return None
    return max(record.needed_since, leads_since or record.needed_since) + times.pending


def _failures(record: MasterRecord, ended: PodSeen | None) -> int:
    """Masters in a row that ended by their own fault and were never ready, with one that is no longer there."""
    if record.was_ready:
        return 0
    return record.failures + (ended is not None and is_own_fault(ended))


def _how_it_went(pod: PodSeen | None) -> str:
    if pod is None or pod.deleting:
        return "its Pod is gone"
    return (pod.reason or "its Pod ended") if pod.is_over else host_lost(pod)


def _next(record: MasterRecord, now: datetime) -> MasterRecord:
    """The next term. How long it may take counts from when its Pod is there."""
    return MasterRecord(term=record.term + 1, since=now, silent_since=record.silent_since or now)


def _wait(record: MasterRecord, failures: int, times: JobTimes) -> timedelta:
    """Between the begin of a master that was never ready and that of the next."""
    if failures == record.failures:  # somebody ended it: a host is drained, or too full; ever later, as well
        began = record.since or record.silent_since
        silence = timedelta(0) if began is None or record.silent_since is None else began - record.silent_since
        return min(max(times.master_backoff, silence / 2), times.master_backoff_most)
    doubled: timedelta = times.master_backoff * (1 << min(failures - 1, 16))
    return min(doubled, times.master_backoff_most)
