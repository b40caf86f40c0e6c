"""What becomes of a plan, said on the plan itself: is it accepted, is it admitted, is it done, what was trimmed.

A plan for a job that is not there waits, and says for what. One that names no job, that is for a job that is over, or
that contradicts itself is refused. One that somebody changed his mind about later is superseded; it comes back into
force when the later one goes.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from shoal.api.elasticjob import Role
from shoal.api.reasons import Reason
from shoal.api.scaleplan import JOB_LABEL, PlanCondition
from shoal.core.exits import EXITS_HARDWARE
from shoal.core.pods import PodPhase, PodSeen
from shoal.operator.asks import MOST_PLANS, Asks
from shoal.operator.crew import has_lost_host
from shoal.operator.grants import UNLIMITED, Limit
from shoal.operator.members import Refusal
from shoal.operator.memory import Member, MemberState, Memory, MoveState
from shoal.operator.snapshot import Done, Key, PlanSeen, PlanStatus, PodReport, RoleCounts, Trim
from shoal.operator.status import FALSE, TRUE, UNKNOWN, Said, conditions

_GONE = "Deleted"


def judge(
    plan: PlanSeen,
    asks: Asks,
    memory: Memory,
    counts: Mapping[Role, RoleCounts],
    *,
    granted: Mapping[Role, int],
    limit: Limit = UNLIMITED,
    refusals: Sequence[Refusal] = (),
    remark: str = "",
    unmet: Said | None = None,
    held: str = "",
    pods: tuple[PodReport, ...] = (),
    now: datetime,
) -> PlanStatus:
    """The status of a plan whose job is there and not over. `granted`: replacements on their way not counted. `unmet`:
    what running members have not got of what it gives them. `held`: which parameter servers are to go, and why they
    have not."""
    why = plan.invalid or plan.refused
    if why is not None:
        return _refused(plan, Reason.INVALID_PLAN if plan.invalid else Reason.CONTRADICTION, why, now=now)
    if plan.ask in asks.too_many:
        why = f"there are {MOST_PLANS} plans for this job already"
        return _refused(plan, Reason.TOO_MANY_PLANS, why, now=now)
    trims = one_each([*asks.trims.get(plan.ask, ()), *_not_granted(plan, asks, granted, limit)])
    trims += tuple(Trim(what=f"createPods/{each.name}", reason=each.reason) for each in refusals)
    done = tuple(
        Done(entry=move.name, pod=move.replacement, outcome=f"{move.state}: {move.reason}")
        for move in memory.moves
        if (move.plan, move.generation) == (plan.uid, plan.generation)
    )
    in_force = plan.auto or plan.ask in asks.winning or not plan.roles
    said = {
        PlanCondition.ACCEPTED: Said(TRUE, Reason.ACCEPTED, ""),
        PlanCondition.ADMITTED: _admitted(in_force=in_force, trims=trims, remark=remark),
        PlanCondition.COMPLETED: _completed(plan, asks, memory, counts, unmet, held, in_force=in_force),
    }
    return _status(plan, said, trims=trims, done=done, pods=pods, now=now)


def judge_over(plan: PlanSeen, job: str, *, now: datetime) -> PlanStatus:
    """The status of a plan whose job has ended. What was done by then stays said."""
    completed = plan.status.conditions.get(PlanCondition.COMPLETED)
    if completed is not None and completed.status == TRUE and plan.status.observed_generation == plan.generation:
        return plan.status
    return _refused(plan, Reason.JOB_FINISHED, f"job {job} is over; a plan changes nothing any more", now=now)


def judge_orphan(plan: PlanSeen, key: Key, elsewhere: Sequence[str], *, now: datetime) -> PlanStatus:
    """The status of a plan whose job is not there, or that names none: then the key has no name."""
    if not key.name and not plan.invalid:
        why = f"it has neither `spec.ownerJob` nor the label `{JOB_LABEL}`"
        return _refused(plan, Reason.NO_JOB_NAMED, why, now=now)
    if plan.invalid or plan.refused:
        reason = Reason.INVALID_PLAN if plan.invalid else Reason.CONTRADICTION
        return _refused(plan, reason, plan.invalid or plan.refused or "", now=now)
    hint = (
        f"; there is one in {', '.join(elsewhere[:3])}, but a plan is for jobs of its own namespace"
        if elsewhere
        else ""
    )
    waits = Said(UNKNOWN, Reason.JOB_NOT_FOUND, f"there is no ElasticJob {key.name} in namespace {key.namespace}{hint}")
    return _status(plan, dict.fromkeys(PlanCondition, waits), now=now)


def report(members: Sequence[Member], pods: Mapping[str, PodSeen]) -> tuple[PodReport, ...]:
    """What the master is told of its members."""
    return tuple(_report(member, pods.get(member.name)) for member in members)


def _report(member: Member, pod: PodSeen | None) -> PodReport:
    lost_host = has_lost_host(member, pod)
    if member.state is MemberState.LEAVING or (pod is None and not member.is_live):
        phase = _GONE
    elif lost_host:
        phase = PodPhase.FAILED
    elif pod is None:
        phase = PodPhase.PENDING
    else:
        phase = _GONE if pod.deleting else pod.phase
    return PodReport(
        name=member.name,
        uid=member.uid,
        role=member.role,
        id=member.id,
        rank=member.rank,
        phase=phase,
        exit_code=min(EXITS_HARDWARE) if lost_host else pod.exit_code if pod else None,
        oom_killed=pod.oom_killed if pod else False,
        reason=(pod.trouble.message if pod and pod.trouble else member.reason if not member.is_live else "")[:1024],
        host=pod.host if pod else "",
        resource=pod.resource if pod else member.resource,
        replaces=member.replaces,
    )


def _not_granted(plan: PlanSeen, asks: Asks, granted: Mapping[Role, int], limit: Limit) -> list[Trim]:
    """What the scheduler has left of the counts that this plan has pinned."""
    if not limit.is_scheduled:
        return []
    asked = {role: each.count for role, each in asks.roles.items() if each.source == plan.ask and each.count}
    return [
        Trim(what=f"{role}.replicas", asked=str(count), got=str(granted.get(role, 0)), reason=limit.reason)
        for role, count in asked.items()
        if granted.get(role, 0) < count
    ]


def one_each(trims: Iterable[Trim]) -> tuple[Trim, ...]:
    """What was cut more than once, told as one: from what was asked for to what was left, and every reason."""
    found: dict[str, Trim] = {}
    for trim in trims:
        first = found.get(trim.what)
        if first is not None:
            trim = replace(first, got=trim.got, reason="; ".join(dict.fromkeys((first.reason, trim.reason))))
        found[trim.what] = trim
    return tuple(found.values())


def _admitted(*, in_force: bool, trims: tuple[Trim, ...], remark: str) -> Said:
    if not in_force:
        return Said(FALSE, Reason.SUPERSEDED, "a later ask names the same roles")
    if trims:
        words = [f"{trim.what}: {trim.reason}" for trim in trims[:4]] + ([remark] if remark else [])
        return Said(TRUE, Reason.TRIMMED, "; ".join(words))
    return Said(TRUE, Reason.GRANTED, remark)


def _completed(
    plan: PlanSeen,
    asks: Asks,
    memory: Memory,
    counts: Mapping[Role, RoleCounts],
    unmet: Said | None,
    held: str,
    *,
    in_force: bool,
) -> Said:
    if not in_force:
        return Said(FALSE, Reason.SUPERSEDED, "a later ask names the same roles")
    waiting = []
    for role in plan.roles:
        wanted, there = asks.roles[role].count, counts.get(role, RoleCounts())
        if wanted is not None and (there.running + there.succeeded != wanted or there.pending):
            waiting.append(f"it waits until {wanted} {role} run")  # how many do, the job says: it is written anyway
    moves = [move for move in memory.moves if (move.plan, move.generation) == (plan.uid, plan.generation)]
    waiting += [
        f"{m.name}: {m.reason}" for m in moves if m.state is not MoveState.DONE and m.state is not MoveState.FAILED
    ]
    if unmet is not None and unmet.reason == Reason.IN_PROGRESS:
        waiting.append(unmet.message)
    if waiting:
        return Said(FALSE, Reason.IN_PROGRESS, "; ".join([*waiting[:4], *([held] if held else [])]))
    failed = [f"{move.name}: {move.reason}" for move in moves if move.state is MoveState.FAILED]
    if failed:
        return Said(FALSE, Reason.MIGRATION_FAILED, "; ".join(failed[:4]))
    if unmet is not None:
        return unmet
    return Said(TRUE, Reason.COMPLETED, "")


def _refused(plan: PlanSeen, reason: str, why: str, *, now: datetime) -> PlanStatus:
    return _status(plan, dict.fromkeys(PlanCondition, Said(FALSE, reason, why)), now=now)


def _status(
    plan: PlanSeen,
    said: Mapping[PlanCondition, Said],
    *,
    trims: tuple[Trim, ...] = (),
    done: tuple[Done, ...] = (),
    pods: tuple[PodReport, ...] = (),
    now: datetime,
) -> PlanStatus:
    same = plan.status.observed_generation == plan.generation
    started = plan.status.started_at if same else None
    finished = plan.status.finished_at if same else None
    if said[PlanCondition.ACCEPTED].status is TRUE:
        started = started or now
    if said[PlanCondition.COMPLETED].status is TRUE:
        finished = finished or now
    return PlanStatus(
        conditions=conditions(
            plan.status.conditions, {str(k): v for k, v in said.items()}, generation=plan.generation, now=now
        ),
        observed_generation=plan.generation,
        trims=trims,
        done=done,
        started_at=started,
        finished_at=finished,
        pods=pods,
    )
