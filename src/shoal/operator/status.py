"""What people read: the job's conditions, and the sentence that says why.

All conditions are set from the first visit on. `Degraded` carries the one trouble that matters most, with the
words of whoever refused; the others follow from members and grant.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from shoal.api.elasticjob import JobCondition, Role
from shoal.api.meta import ConditionStatus
from shoal.api.reasons import Reason, explained
from shoal.core.pods import PodSeen, Trouble
from shoal.operator.asks import ROLES, Asks
from shoal.operator.ending import Ending
from shoal.operator.grants import UNLIMITED, Limit
from shoal.operator.memory import Member, MemberState, Memory, MoveState
from shoal.operator.snapshot import Condition, Training

TRUE, FALSE, UNKNOWN = ConditionStatus.TRUE, ConditionStatus.FALSE, ConditionStatus.UNKNOWN
LONGEST = 1024


@dataclass(frozen=True, slots=True)
class Said:
    """One condition without its history."""

    status: ConditionStatus
    reason: str
    message: str


def conditions(
    before: Mapping[str, Condition], said: Mapping[str, Said], *, generation: int, now: datetime
) -> dict[str, Condition]:
    """The conditions with their times: a condition is as old as its status."""
    after = {}
    for kind, new in said.items():
        old = before.get(kind)
        since = old.since if old is not None and old.status == new.status else now.replace(microsecond=0)
        after[str(kind)] = Condition(
            type=kind,
            status=new.status,
            reason=new.reason,
            message=explained(new.reason, new.message, LONGEST),
            since=since,
            generation=generation,
        )
    return after


def say_invalid(why: str) -> dict[JobCondition, Said]:
    return {
        JobCondition.ADMITTED: Said(FALSE, Reason.INVALID_SPEC, why),
        JobCondition.READY: Said(FALSE, Reason.INVALID_SPEC, why),
        JobCondition.RESIZING: Said(FALSE, Reason.IDLE, ""),
        JobCondition.PRIORITY_TRIMMED: Said(UNKNOWN, Reason.INVALID_SPEC, ""),
        JobCondition.DEGRADED: Said(TRUE, Reason.INVALID_SPEC, why),
        JobCondition.SUCCEEDED: Said(UNKNOWN, Reason.INVALID_SPEC, ""),
    }


def say_over(ending: Ending, troubles: Sequence[Trouble]) -> dict[JobCondition, Said]:
    word = Reason.COMPLETED if ending.success else ending.reason
    degraded = Said(TRUE, troubles[0].reason, troubles[0].message) if troubles else Said(FALSE, Reason.FINISHED, "")
    return {
        JobCondition.ADMITTED: Said(FALSE, Reason.FINISHED, "the job is over"),
        JobCondition.READY: Said(FALSE, word, ending.message),
        JobCondition.RESIZING: Said(FALSE, Reason.IDLE, ""),
        JobCondition.PRIORITY_TRIMMED: Said(FALSE, Reason.FINISHED, ""),
        JobCondition.DEGRADED: degraded,
        JobCondition.SUCCEEDED: Said(TRUE if ending.success else FALSE, ending.reason, ending.message),
    }


def say(
    memory: Memory,
    asks: Asks,
    pods: Sequence[PodSeen],
    training: Training | None,
    troubles: Sequence[Trouble],
    *,
    suspended: bool,
    limit: Limit = UNLIMITED,
    master_answers: bool,
    remarks: Sequence[str] = (),
    master_missed: str = "",
    held: str = "",
) -> dict[JobCondition, Said]:
    """The conditions of a job that is not over. `master_missed`: what does not get on because no master answers.
    `held`: which parameter servers are to go, and why they have not."""
    by_name = {pod.name: pod for pod in pods}
    running = [m for m in memory.members if m.is_live and _runs(by_name.get(m.name))]
    granted = sum(memory.grant.counts.values())
    return {
        JobCondition.ADMITTED: _admitted(memory, asks, limit, remarks, suspended=suspended),
        JobCondition.READY: _ready(memory, running, granted, pods, limit, suspended=suspended, answers=master_answers),
        JobCondition.RESIZING: _resizing(memory, running, granted, held),
        JobCondition.PRIORITY_TRIMMED: say_priority("" if limit.allowance is None else limit.allowance.trimmed),
        JobCondition.DEGRADED: _degraded(memory, pods, troubles, answers=master_answers, missed=master_missed),
        JobCondition.SUCCEEDED: Said(
            UNKNOWN,
            Reason.SUSPENDED if suspended else Reason.RUNNING if training else Reason.STARTING,
            training.reason if training else "",
        ),
    }


def say_priority(trimmed: str) -> Said:
    """Of jobs of both kinds. `trimmed`: why it counts for less than it says."""
    return Said(TRUE, Reason.NOT_IN_PRIORITIES, trimmed) if trimmed else Said(FALSE, Reason.AS_ASKED, "")


def _runs(pod: PodSeen | None) -> bool:
    return pod is not None and pod.is_running


def _admitted(memory: Memory, asks: Asks, limit: Limit, remarks: Sequence[str], *, suspended: bool) -> Said:
    if suspended:
        return Said(FALSE, Reason.SUSPENDED, "spec.suspend is true")
    allowance = limit.allowance
    if allowance is not None and not allowance.is_admitted and allowance.place is not None:
        return Said(FALSE, allowance.code or Reason.QUEUED, f"place {allowance.place} in the queue: {limit.reason}")
    if not any(wanted.count is not None for wanted in asks.roles.values()):
        return Said(FALSE, Reason.WAITING_FOR_PLAN, "nobody has said how many members it should have")
    if allowance is not None and not allowance.is_admitted:
        return Said(FALSE, allowance.code or Reason.QUEUED, limit.reason)
    if limit.is_scheduled and allowance is None and not any(memory.grant.counts.values()):
        return Said(FALSE, Reason.QUEUED, limit.reason)
    asked, granted = asks.roles[Role.WORKER].count or 0, memory.grant.counts.get(Role.WORKER, 0)
    if limit.is_scheduled and granted < asked:
        return Said(TRUE, Reason.TRIMMED, "; ".join((f"{granted} of {asked} workers: {limit.reason}", *remarks)))
    return Said(TRUE, Reason.GRANTED, "; ".join((memory.grant.reason, *remarks)))


def counts_text(memory: Memory, counts: Mapping[Role, int]) -> str:
    return ", ".join(f"{counts.get(role, 0)} {role}" for role in ROLES if role in memory.grant.counts) or "no members"


def _ready(
    memory: Memory,
    running: Sequence[Member],
    granted: int,
    pods: Sequence[PodSeen],
    limit: Limit,
    *,
    suspended: bool,
    answers: bool,
) -> Said:
    left = sum(member.is_live for member in memory.members)
    if suspended:
        rests = f"{left} members still have to leave" if left else "no Pods while suspended"
        return Said(FALSE, Reason.SUSPENDED, rests)
    if limit.allowance is not None and limit.allowance.place is not None and not granted:
        return Said(FALSE, Reason.WAITING, f"{left} members still have to leave" if left else "it waits in the queue")
    if not granted:
        return Said(FALSE, Reason.WAITING_FOR_PLAN, "it has no members yet")
    settled = sum(member.state is MemberState.SUCCEEDED for member in memory.members)
    if len(running) + settled >= granted and running:
        return Said(TRUE, Reason.ALL_MEMBERS_UP, f"{len(running)} members run")
    waiting = next((pod.trouble for pod in pods if pod.trouble and not pod.is_over and not pod.deleting), None)
    if waiting is not None:
        return Said(FALSE, waiting.reason, waiting.message)
    reason = Reason.MEMBERS_MISSING if running else Reason.STARTING
    return Said(FALSE, reason, f"{len(running)} of {granted} members run")


def _resizing(memory: Memory, running: Sequence[Member], granted: int, held: str) -> Said:
    moving = [move for move in memory.moves if move.state in (MoveState.STARTING, MoveState.REMOVING)]
    if moving:
        words = [f"{move.name}: {move.reason}" for move in moving[:4]] + ([held] if held else [])
        return Said(TRUE, Reason.MIGRATING, "; ".join(words))
    excess = sum(len([m for m in memory.of(role) if m.is_live]) for role in ROLES) - granted
    leaving = sum(member.state is MemberState.LEAVING for member in memory.members)
    if excess > 0 or leaving:
        words = [f"{max(excess, 0) + leaving} members have to leave: {memory.grant.reason}"] + ([held] if held else [])
        return Said(TRUE, Reason.SCALING_DOWN, "; ".join(words))
    starting = sum(member.is_live for member in memory.members) - len(running)
    if starting:
        return Said(TRUE, Reason.SCALING_UP, f"{starting} members are starting")
    return Said(FALSE, Reason.IDLE, "")


def _degraded(
    memory: Memory, pods: Sequence[PodSeen], troubles: Sequence[Trouble], *, answers: bool, missed: str
) -> Said:
    if troubles:
        return Said(TRUE, troubles[0].reason, troubles[0].message)
    stuck = next((pod.trouble for pod in pods if pod.trouble and not pod.is_over and not pod.deleting), None)
    if stuck is not None:
        return Said(TRUE, stuck.reason, stuck.message)
    if missed:
        return Said(TRUE, Reason.MASTER_SILENT, missed)
    failed = [member for member in memory.members if member.state is MemberState.FAILED]
    if failed:
        return Said(TRUE, Reason.MEMBER_FAILED, "; ".join(f"{m.name}: {m.reason}" for m in failed[:4]))
    if memory.master.failures > 1 and not answers:
        many = memory.master.failures
        return Said(TRUE, Reason.MASTER_FAILING, f"the last {many} masters ended before they were ready")
    return Said(FALSE, Reason.AT_TARGET_SIZE, "")
