"""Who is a member: the master's orders, what the operator does without it, and the grant carried out.

- The master decides who is replaced (`createPods` with `replaces`) and who leaves (`removePods`).
- A failed member is replaced without its word only when nobody manages its role, or when no master has answered for a
  while. Each such replacement waits longer than the one before; one that fails by its own fault too often is left.
- Where masters make the Pods of a role (`made_by_master`), none is added or replaced here, whoever answers.
- Members are added up to the grant, never beyond it, and none while the master ends the job. Seats whose members have
  ended are given up first when there are too many, then running ones: by the master until `drainBy`, by the operator
  after it or when no master can. Parameter servers that the master knows stay for longer: see `servers`.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from shoal.api.elasticjob import Role
from shoal.api.jobspec import JobSpec
from shoal.api.resources import Resource
from shoal.core.exits import ExitCause
from shoal.core.nodes import NodeId
from shoal.core.recovery import Budget, Failure, RecoverySettings, RelaunchNode, decide_recovery
from shoal.operator.asks import ROLES, needs_of
from shoal.operator.crew import Crew, pod_name, was_own_fault
from shoal.operator.memory import SILENT, Grant, Member, MemberState, Move, MoveState
from shoal.operator.settings import OperatorSettings
from shoal.operator.snapshot import PlanSeen, PodOrder

NOTHING_KEPT: Mapping[tuple[Role, int], Resource] = {}
_FURTHEST_ID = 10_000
"""How far ahead of the next id a master may pick one: a slip must not use up all ids."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """An order of the master that is not carried out."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MasterLooks:
    """What matters about the master when members are decided on."""

    answers: bool
    """It is ready and has reported: it drains, and it decides on replacements."""
    silent_since: datetime | None = None


def obey(crew: Crew, auto: PlanSeen | None, granted: Mapping[Role, int], *, suspended: bool) -> list[Refusal]:
    """Carry out the master's orders. Carried out again they change nothing: names are never used twice."""
    if auto is None:
        return []
    for name in auto.remove:
        member = crew.get(name)
        if member is not None and member.has_seat:
            crew.leave(member, "the master let it go")
    if suspended:
        return []
    refused = [Refusal(name=order.name, reason=why) for order in auto.create if (why := _obey(crew, order, granted))]
    for order in auto.create:
        if _is_plausible(crew, order):
            crew.reserve(order.role, order.id)
    return refused


def _is_plausible(crew: Crew, order: PodOrder) -> bool:
    return (
        order.name == pod_name(crew.job, order.role, order.id) and order.id <= crew.next_id(order.role) + _FURTHEST_ID
    )


def _obey(crew: Crew, order: PodOrder, granted: Mapping[Role, int]) -> str | None:
    """Carry out one `createPods` entry, or say why not."""
    known = crew.get(order.name)
    if known is not None:
        return None if known.replaces == order.replaces else f"{order.name} is another member already"
    if not _is_plausible(crew, order):
        return f"{order.name} is no name for {order.role} {order.id} of job {crew.job}"
    old = crew.get(order.replaces) if order.replaces else None
    if order.id < crew.next_id(order.role):
        if old is not None and old.has_seat:
            return f"{order.name} cannot be used any more: name a later one for {old.name}"
        if order.replaces is None and len(crew.seats(order.role)) >= granted.get(order.role, 0):
            return f"all {granted.get(order.role, 0)} granted of {order.role} are there"
        return None  # carried out before; that member is gone
    avoid = frozenset(order.avoid_hosts)
    if old is not None and old.has_seat:
        crew.replace(old, number=order.id, resource=order.resource, avoid_hosts=avoid, reason="the master asked for it")
    elif len(crew.seats(order.role)) < granted.get(order.role, 0):
        crew.add(
            order.role,
            rank=order.rank if order.rank not in {m.rank for m in crew.seats(order.role)} else None,
            number=order.id,
            resource=order.resource,
            avoid_hosts=avoid,
            replaces=order.replaces,
            reason="the master asked for it",
        )
    else:
        return f"all {granted.get(order.role, 0)} granted of {order.role} are there"
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Alone:
    """What became of failed members that no master decides on."""

    next_look: datetime | None = None
    exhausted: tuple[Member, ...] = ()
    """Out of budget: nobody will replace them."""


def replace_alone(
    crew: Crew, spec: JobSpec, moves: Sequence[Move], looks: MasterLooks, settings: OperatorSettings
) -> Alone:
    """Replace failed members for which no master's word is to be had."""
    next_looks: list[datetime] = []
    exhausted = []
    managed = settings.managed_in(spec)
    moving = {move.replacement for move in moves if move.state is MoveState.STARTING}
    for member in crew.members:
        if member.state is not MemberState.FAILED or member.name in moving:
            continue
        needs = needs_of(spec, member.role)
        charged = was_own_fault(member, tuple(crew.pods.values()))
        is_masters = looks.answers and member.role in managed  # it counts by its own budget
        if needs is not None and charged and member.relaunches >= needs.restart_count and not is_masters:
            exhausted.append(member)
            continue
        due = _due(member, looks, settings, managed)
        if due is None:
            continue
        if crew.now >= due:
            more = _more_memory(crew, member, spec)
            given = "" if more.memory is None else f", and gets {more.memory} MiB"
            silent = "; no master answers" if member.role in managed else ""
            crew.replace(member, charged=charged, resource=more, reason=f"{member.reason}{given}{silent}")
        else:
            next_looks.append(due)
    return Alone(next_look=min(next_looks, default=None), exhausted=tuple(exhausted))


def _more_memory(crew: Crew, member: Member, spec: JobSpec) -> Resource:
    """What one that ran out of memory gets instead, by the rule that masters have; of others nothing is said."""
    pod, needs, limit = crew.pods.get(member.name), needs_of(spec, member.role), spec.limits.memory
    if pod is None or not pod.oom_killed or needs is None:
        return SILENT
    failure = Failure(
        node=NodeId(f"{member.role}-{member.id}"),
        cause=ExitCause.OOM,
        detail=member.reason,
        node_lost=True,
        critical=False,
        memory=pod.resource.memory,
        memory_limit=None if limit is None else max(1, limit // max(1, needs.min)),
    )
    budget = Budget(limit=needs.restart_count)
    decided = decide_recovery(failure, budget, without_progress=0, now=crew.now, settings=RecoverySettings())
    return Resource(memory=decided.memory) if isinstance(decided, RelaunchNode) else SILENT


def _due(member: Member, looks: MasterLooks, settings: OperatorSettings, managed: frozenset[Role]) -> datetime | None:
    """When the operator replaces a failed member by itself; None: that is the master's to decide, or to do."""
    assert member.ended_at is not None
    times = settings.times
    if settings.pod_scaler and member.role in managed:
        return None
    if member.role not in managed:
        wait = times.relaunch_backoff * (1 << min(member.relaunches - 1, 16)) if member.relaunches else timedelta(0)
        return member.ended_at + min(wait, times.relaunch_backoff_most)
    if looks.answers or looks.silent_since is None:
        return None
    return max(looks.silent_since, member.ended_at) + times.silence


def fit(
    crew: Crew,
    grant: Grant,
    looks: MasterLooks,
    *,
    managed: frozenset[Role],
    made_elsewhere: frozenset[Role] = frozenset(),
    takes_servers: bool = False,
    orders: Sequence[PodOrder] = (),
    seats: Mapping[tuple[Role, int], Resource] = NOTHING_KEPT,
    adds: bool = True,
    resting: str = "",
) -> None:
    """Make the members as many as granted. `managed`: roles that the master drains; `made_elsewhere`: of which it makes
    the Pods. `takes_servers`: those of them that are parameter servers have waited for it long enough. `orders` say
    what some of the new ones are to be, `seats` what the members at some ranks had before they left. `adds`: somebody
    may be; while a master ends its job it lets all go, and would let go whoever came. `resting`: why nobody is to be
    there."""
    for role in ROLES:
        granted = grant.counts.get(role, 0)
        _give_up_ended(crew, role, granted, grant.victims)
        _give_up_unborn(crew, role, granted, grant.victims)
        excess = len(crew.seats(role)) - granted
        if excess > 0:
            by_hand = not looks.answers or (grant.drain_by is not None and crew.now >= grant.drain_by)
            if role not in managed or (takes_servers if role is Role.PS else by_hand):
                why = resting or f"{granted} of {role} are granted"
                for member in first_to_go(crew.live(role), grant.victims)[:excess]:
                    crew.leave(member, why)
        if role in made_elsewhere or not adds:
            continue
        waiting = deque(sorted((each for each in orders if each.role is role), key=lambda order: order.id))
        for rank in crew.free_ranks(role, max(0, -excess)):
            while waiting and waiting[0].id < crew.next_id(role):
                waiting.popleft()
            order, kept = waiting[0] if waiting else None, seats.get((role, rank), SILENT)
            if order is not None and _is_plausible(crew, order):
                crew.add(role, rank=rank, number=order.id, resource=order.resource.over(kept), reason=grant.reason)
            else:
                crew.add(role, rank=rank, resource=kept, reason=grant.reason)


def _give_up_ended(crew: Crew, role: Role, granted: int, victims: Sequence[str]) -> None:
    ended = [member for member in crew.seats(role) if not member.is_live]
    ended.sort(key=lambda member: (member.name not in victims, member.state is MemberState.SUCCEEDED, -member.id))
    for member in ended[: _beyond(crew, role, granted, victims)]:
        crew.leave(member, f"{granted} of {role} are granted")


def _give_up_unborn(crew: Crew, role: Role, granted: int, victims: Sequence[str]) -> None:
    """Members whose Pods were never made: there is nothing to drain."""
    unborn = crew.unborn(role)
    unborn.sort(key=lambda member: (member.name not in victims, member.replaces is not None, -member.id))
    for member in unborn[: _beyond(crew, role, granted, victims)]:
        crew.leave(member, f"{granted} of {role} are granted")


def _beyond(crew: Crew, role: Role, granted: int, victims: Sequence[str]) -> int:
    """How many seats too many there will be when the victims that run are gone. Theirs are not paid for with somebody
    else's seat: then nobody would be too many any more, and they would stay for good."""
    unborn = {member.name for member in crew.unborn(role)}
    going = sum(member.name in victims and member.name not in unborn for member in crew.live(role))
    return max(0, len(crew.seats(role)) - going - granted)


def first_to_go(members: Sequence[Member], victims: Sequence[str]) -> list[Member]:
    """Named ones first, then the newest."""
    return sorted(members, key=lambda member: (member.name not in victims, -member.id))
