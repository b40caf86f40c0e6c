"""What the operator wrote into a status, read back as what it remembers. The other half of `writing`."""

from collections.abc import Mapping, Sequence

from shoal.api import elasticjob as api
from shoal.api.elasticjob import ElasticJobStatus, Role
from shoal.api.jobresource import JobResourceStatus
from shoal.api.meta import Condition as ApiCondition
from shoal.api.resources import of_spec
from shoal.api.scaleplan import ScalePlanStatus
from shoal.operator.memory import Accepted, Grant, MasterRecord, Member, MemberState, Memory, Move, MoveState
from shoal.operator.snapshot import Condition, Done, JobStatus, PlanStatus, RoleCounts, Trim


def job_status(status: ElasticJobStatus) -> JobStatus:
    roles = {Role(each.role): each for each in status.roles or ()}
    return JobStatus(
        memory=_memory(status, roles),
        conditions=_conditions(status.conditions),
        counts={
            role: RoleCounts(
                pending=each.pending,
                running=each.running or 0,
                succeeded=each.succeeded or 0,
                failed=each.failed or 0,
            )
            for role, each in roles.items()
            if each.pending is not None
        },
        observed_generation=status.observed_generation,
        decision=status.last_decision.reason if status.last_decision else None,
        decided_at=status.last_decision.at if status.last_decision else None,
        world=status.world,
        restarts=status.restarts or 0,
        scheduling=status.scheduling,
    )


def plan_status(status: ScalePlanStatus | JobResourceStatus) -> PlanStatus:
    """What was written of a plan. The report for the master is not read back: it is compared as it is written."""
    return PlanStatus(
        conditions=_conditions(status.conditions),
        observed_generation=status.observed_generation,
        trims=tuple(
            Trim(what=each.what, asked=each.asked or "", got=each.got or "", reason=each.reason)
            for each in status.trimmed or ()
        ),
        done=tuple(Done(entry=each.entry, pod=each.pod, outcome=each.outcome or "") for each in status.done or ()),
        started_at=status.start_time,
        finished_at=status.finish_time,
    )


def _memory(status: ElasticJobStatus, roles: Mapping[Role, api.RoleStatus]) -> Memory:
    return Memory(
        members=tuple(_member(each) for each in status.members or ()),
        next_id={role: each.next_id for role, each in roles.items() if each.next_id is not None},
        wanted={role: each.asked for role, each in roles.items() if each.asked is not None},
        grant=_grant(status.grant),
        moves=tuple(
            Move(
                plan=each.plan,
                generation=each.generation,
                name=each.name,
                state=MoveState(each.state),
                replacement=each.replacement,
                reason=each.reason or "",
            )
            for each in status.moves or ()
        ),
        master=_master(status),
        accepted=tuple(
            Accepted(
                ask=each.ask,
                uid=each.uid,
                generation=each.generation,
                at=each.at,
                counts={Role(pair.role): pair.count for pair in each.counts or ()},
                resources={Role(said.role): of_spec(said.resource) for said in each.resources or ()},
                optimize_mode=each.optimize_mode,
            )
            for each in status.accepted_at or ()
        ),
        seats={(Role(each.role), each.rank): of_spec(each.resource) for each in status.seats or ()},
        prepared=status.prepared,
        start_time=status.start_time,
        finish_time=status.finish_time,
    )


def _member(each: api.Member) -> Member:
    return Member(
        name=each.name,
        role=Role(each.role),
        id=each.id,
        rank=each.rank,
        state=MemberState(each.state),
        uid=each.uid,
        resource=of_spec(each.resource),
        avoid_hosts=frozenset(each.avoid_hosts or ()),
        replaces=each.replaces,
        relaunches=each.relaunches or 0,
        ended_at=each.ended_at,
        reason=each.reason or "",
    )


def _grant(grant: api.Grant | None) -> Grant:
    if grant is None:
        return Grant()
    return Grant(
        generation=grant.generation,
        counts={Role(each.role): each.count for each in grant.counts or ()},
        victims=tuple(grant.victims or ()),
        drain_by=grant.drain_by,
        reason=grant.reason,
    )


def _master(status: ElasticJobStatus) -> MasterRecord:
    record = status.master or api.MasterRecord()
    return MasterRecord(
        term=status.term or 0,
        since=record.since,
        uid=record.uid,
        failures=record.failures or 0,
        was_ready=bool(record.was_ready),
        needed_since=record.needed_since,
        silent_since=record.silent_since,
        stopped=bool(record.stopped),
    )


def _conditions(conditions: Sequence[ApiCondition] | None) -> dict[str, Condition]:
    return {
        each.type: Condition(
            type=each.type,
            status=each.status,
            reason=each.reason,
            message=each.message,
            since=each.last_transition_time,
            generation=each.observed_generation or 0,
        )
        for each in conditions or ()
    }
