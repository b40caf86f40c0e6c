"""From decisions to what stands in the objects: the JSON of a job's status and of a plan's.

What is written is compared with what is there in this form, so that nothing is written twice. The server keeps lists
that are maps by key in an order of its own; `canonical` makes two such lists comparable.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from shoal.api import elasticjob as api
from shoal.api.elasticjob import ElasticJobStatus, Role
from shoal.api.fields import MAX_ENTRIES, MAX_REPLICAS, MAX_TEXT
from shoal.api.jobresource import JobResourceStatus
from shoal.api.labels import JOB_UID, ROLE
from shoal.api.meta import Condition as ApiCondition
from shoal.api.meta import Done as ApiDone
from shoal.api.resources import Resource, to_spec
from shoal.api.scaleplan import PodReport as ApiPodReport
from shoal.api.scaleplan import ScalePlanStatus, Trimmed
from shoal.core.pods import PodPhase
from shoal.operator.asks import ROLES
from shoal.operator.memory import Grant, MasterRecord, Member, Memory
from shoal.operator.snapshot import Condition, JobSeen, JobStatus, PlanKind, PlanSeen, PlanStatus, PodReport

Json = dict[str, Any]
_ON_ITS_WAY = (PodPhase.PENDING, PodPhase.RUNNING)
_COUNTS_STARTS = {"conditions": ("message",), "roles": ("pending", "running"), "members": ("uid",)}
"""What of a status changes with every Pod that starts. A condition that turns has another status or reason."""
_KEYS = ("name", "role", "ask", "type", "what", "entry", "rank", "plan", "generation")


def write_job(job: JobSeen, status: JobStatus) -> Json:
    """All of a job's status but the master's report."""
    memory = status.memory
    workers = status.counts.get(Role.WORKER)
    decided = status.decision is not None and status.decided_at is not None
    written = ElasticJobStatus(
        conditions=_conditions(status.conditions),
        observed_generation=status.observed_generation,
        replicas=workers.pending + workers.running if workers else 0,
        selector=f"{JOB_UID}={job.uid},{ROLE}={Role.WORKER}",
        roles=_roles(status) or None,
        world=status.world,
        grant=_grant(memory.grant) if memory.grant.generation else None,
        scheduling=status.scheduling,
        last_decision=api.Decision(reason=_cut(status.decision or ""), at=status.decided_at) if decided else None,  # type: ignore[arg-type]
        accepted_at=_accepted(memory) or None,
        members=[_member(each) for each in memory.members[:MAX_REPLICAS]] or None,
        moves=_moves(memory) or None,
        seats=_seats(memory) or None,
        master=_master(memory.master),
        prepared=memory.prepared,
        term=memory.master.term or None,
        restarts=status.restarts or None,
        start_time=memory.start_time,
        finish_time=memory.finish_time,
    )
    return _json(written)


def write_plan(plan: PlanSeen, status: PlanStatus) -> Json:
    shape = JobResourceStatus if plan.kind is PlanKind.JOB_RESOURCE else ScalePlanStatus
    trims = {trim.what: trim for trim in status.trims}
    common: dict[str, Any] = {
        "conditions": _conditions(status.conditions),
        "observed_generation": status.observed_generation,
        "trimmed": [
            Trimmed(
                what=each.what[:320], asked=each.asked[:64] or None, got=each.got[:64] or None, reason=_cut(each.reason)
            )
            for each in list(trims.values())[:64]
        ]
        or None,
        "done": [
            ApiDone(
                uid=plan.uid, generation=plan.generation, entry=each.entry, pod=each.pod, outcome=_cut(each.outcome)
            )
            for each in status.done[:MAX_ENTRIES]
        ]
        or None,
        "start_time": status.started_at,
        "finish_time": status.finished_at,
    }
    if shape is ScalePlanStatus:
        common["pods"] = [_report(each) for each in status.pods[:MAX_REPLICAS]] or None
    return _json(shape(**common))


def canonical(value: Any) -> Any:
    """The same for two values that differ only in the order of their keyed lists."""
    if isinstance(value, Mapping):
        return {key: canonical(each) for key, each in value.items()}
    if isinstance(value, list):
        items = [canonical(each) for each in value]
        if all(isinstance(each, Mapping) for each in items):
            return sorted(items, key=lambda item: [str(item.get(key, "")) for key in _KEYS])
        return items
    return value


def differs(written: Json, there: Any, *, without: str | None = None) -> bool:
    """Whether a status must be written: whether what is there is something else."""
    there = there if isinstance(there, Mapping) else {}
    return bool(canonical(written) != canonical({key: each for key, each in there.items() if key != without}))


def tells_of_starts_only(written: Json, there: Any) -> bool:
    """Whether all that a plan's status would say anew is which Pods are on their way."""
    return not differs(_without_starts(written), _without_starts(there if isinstance(there, Mapping) else {}))


def tells_of_new_pods(written: Json, there: Any) -> bool:
    """Whether a plan's status would name a Pod that it has not named yet."""
    return not _pods_in(written) <= _pods_in(there if isinstance(there, Mapping) else {})


def _pods_in(status: Mapping[str, Any]) -> set[tuple[Any, Any]]:
    return {(pod.get("name"), pod.get("uid")) for pod in status.get("pods") or () if isinstance(pod, Mapping)}


def _without_starts(status: Mapping[str, Any]) -> Json:
    pods = status.get("pods")
    ended = [pod for pod in pods if pod.get("phase") not in _ON_ITS_WAY] if isinstance(pods, list) else []
    return {**status, "pods": ended}


def counts_starts_only(written: Json, there: Any) -> bool:
    """Whether all that a job's status would say anew is how many of its Pods have started, and which."""
    there = there if isinstance(there, Mapping) else {}
    return not differs(_without_counts(written), _without_counts(there), without="training")


def _without_counts(status: Mapping[str, Any]) -> Json:
    lists = {
        key: [_less(entry, left_out) for entry in status.get(key) or () if isinstance(entry, Mapping)]
        for key, left_out in _COUNTS_STARTS.items()
    }
    return {**_less(status, ("replicas",)), **lists}


def _less(entry: Mapping[str, Any], left_out: Iterable[str]) -> Json:
    return {key: value for key, value in entry.items() if key not in left_out}


def _json(status: msgspec.Struct) -> Json:
    """As JSON has it, times too: what comes back from the server is compared with it."""
    found: Json = msgspec.json.decode(msgspec.json.encode(status))
    return found


def _cut(text: str) -> str:
    return text[:MAX_TEXT]


def _conditions(conditions: Mapping[str, Condition]) -> list[ApiCondition]:
    return [
        ApiCondition(
            type=each.type,
            status=each.status,
            reason=each.reason,
            message=_cut(each.message),
            last_transition_time=each.since,
            observed_generation=each.generation,
        )
        for each in conditions.values()
    ]


def _roles(status: JobStatus) -> list[api.RoleStatus]:
    memory = status.memory
    return [
        api.RoleStatus(
            role=role,
            asked=memory.wanted.get(role),
            granted=memory.grant.counts.get(role),
            pending=counts.pending if (counts := status.counts.get(role)) else None,
            running=counts.running if counts else None,
            succeeded=counts.succeeded if counts else None,
            failed=counts.failed if counts else None,
            next_id=memory.next_id.get(role),
        )
        for role in ROLES
        if role in memory.wanted or role in memory.grant.counts or role in status.counts or role in memory.next_id
    ]


def _counts(counts: Mapping[Role, int]) -> list[api.RoleCount] | None:
    return [api.RoleCount(role=role, count=counts[role]) for role in ROLES if role in counts] or None


def _given(resources: Mapping[Role, Resource]) -> list[api.RoleGiven] | None:
    return [api.RoleGiven(role=role, resource=to_spec(resources[role])) for role in ROLES if role in resources] or None


def _grant(grant: Grant) -> api.Grant:
    return api.Grant(
        generation=grant.generation,
        counts=_counts(grant.counts),
        victims=list(grant.victims[:MAX_ENTRIES]) or None,
        drain_by=grant.drain_by,
        reason=_cut(grant.reason),
    )


def _accepted(memory: Memory) -> list[api.Accepted]:
    return [
        api.Accepted(
            ask=each.ask,
            uid=each.uid,
            generation=each.generation,
            at=each.at,
            counts=_counts(each.counts),
            resources=_given(each.resources),
            optimize_mode=each.optimize_mode,
        )
        for each in memory.accepted[:MAX_ENTRIES]
    ]


def _member(member: Member) -> api.Member:
    return api.Member(
        name=member.name,
        role=member.role,
        id=member.id,
        rank=member.rank,
        state=member.state,
        uid=member.uid,
        resource=_resource(member.resource),
        avoid_hosts=sorted(member.avoid_hosts)[:64] or None,
        replaces=member.replaces,
        relaunches=member.relaunches or None,
        ended_at=member.ended_at,
        reason=None if member.is_live else _cut(member.reason) or None,  # why it is there, the grant says for all
    )


def _moves(memory: Memory) -> list[api.Move]:
    return [
        api.Move(
            plan=each.plan,
            generation=each.generation,
            name=each.name,
            state=each.state,
            replacement=each.replacement,
            reason=_cut(each.reason) or None,
        )
        for each in memory.moves[:MAX_ENTRIES]
    ]


def _seats(memory: Memory) -> list[api.Seat]:
    return [
        api.Seat(role=role, rank=rank, resource=to_spec(resource))
        for (role, rank), resource in sorted(memory.seats.items())[:MAX_REPLICAS]
    ]


def _master(record: MasterRecord) -> api.MasterRecord:
    return api.MasterRecord(
        since=record.since,
        uid=record.uid,
        failures=record.failures or None,
        was_ready=record.was_ready or None,
        needed_since=record.needed_since,
        silent_since=record.silent_since,
        stopped=record.stopped or None,
    )


def _report(pod: PodReport) -> ApiPodReport:
    return ApiPodReport(
        name=pod.name,
        uid=pod.uid,
        role=pod.role,
        id=pod.id,
        rank=pod.rank,
        phase=pod.phase,
        exit_code=pod.exit_code,
        oom_killed=pod.oom_killed or None,
        reason=_cut(pod.reason) or None,
        host=pod.host or None,
        resource=_resource(pod.resource),
        replaces=pod.replaces,
    )


def _resource(resource: Resource) -> api.ResourceSpec | None:
    return None if resource.is_silent else to_spec(resource)
