"""Asks: what everybody wants of a job, and who wins.

For each role, in this order: the manual asks (`spec.<role>.replicas`, manual ScalePlans, JobResources), of which the
one that *changed* last wins; the master's auto plan; what the spec has by default. Count and resource are two asks: a
plan that names only a resource pins no count. The result is held within the role's `min` and `max`. More memory than a
manual ask gives is the auto plan's word: somebody ran out of what was given.

When nobody asks for anything a job has no training Pods yet; when the last ask is taken back it keeps what it has,
because nobody asked for less.

What changed last is known by a stamp: the operator notes when it first saw a plan's generation, or a new number in
the spec. A change of `optimizeMode` voids the stamps before it.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from shoal.api.elasticjob import OptimizeMode, Role, Strategy
from shoal.api.fields import MAX_ENTRIES
from shoal.api.jobspec import JobSpec, RoleNeeds
from shoal.api.quantities import format_cores, format_mebibytes
from shoal.api.resources import Resource
from shoal.operator.memory import SILENT, Accepted, Memory
from shoal.operator.snapshot import PlanKind, PlanSeen, RoleAsk, Trim

ROLES = (Role.CHIEF, Role.PS, Role.WORKER, Role.EVALUATOR)
MOST_MEMBERS = 2_000
"""Members of one job, all roles together. Their records, with what the API server notes of who wrote them, take up to
700 bytes each; an object may have 1.5 MB."""
MOST_PLANS = MAX_ENTRIES - len(ROLES) - 1
"""Manual plans of one job that are counted: so many stamps are kept, beside those of the spec."""
_MODE = "spec"
_STANDS_IN = frozenset({Role.CHIEF, Role.EVALUATOR})
"""Roles that run the worker's template when they have none: one script, told by its role what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What the winning asks want of one role."""

    count: int | None = None
    """None: nobody has said."""
    resource: Resource = SILENT
    source: str = ""
    """Whose count it is: `spec.worker`, `ScalePlan/x`."""
    sized_by: str = ""
    """Whose resource it is, when it is not the spec's."""
    raised_by: str = ""
    """Whose memory it is, when that is more than `sized_by` gives: somebody ran out of that."""
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asks:
    roles: Mapping[Role, Wanted]
    accepted: tuple[Accepted, ...]
    trims: Mapping[str, tuple[Trim, ...]] = field(default_factory=dict)
    """By `PlanSeen.ask`."""
    winning: frozenset[str] = frozenset()
    """The plans that pin something now; the others are superseded."""
    too_many: frozenset[str] = frozenset()
    """Plans that cannot be counted: there are too many before them."""


def needs_of(spec: JobSpec, role: Role) -> RoleNeeds | None:
    """What a role needs; for a chief or evaluator that is asked for and not described, what the worker does."""
    own = spec.roles.get(role)
    if own is None and role in _STANDS_IN:
        return replace(spec.worker, role=role, replicas=None, min=0, max=1, resource=Resource())
    return own


def asks_for_members(spec: JobSpec, asks: Asks) -> bool:
    """Whether anybody has said what the job should have, or its master is going to."""
    count = asks.roles[Role.WORKER].count
    return bool(count) or (count is None and spec.optimize_mode is not OptimizeMode.MANUAL)


def decide_asks(spec: JobSpec, memory: Memory, plans: Sequence[PlanSeen], *, now: datetime) -> Asks:
    readable = [plan for plan in plans if plan.refused is None and plan.invalid is None]
    every = [plan for plan in readable if not plan.auto]
    too_many = _too_many(memory, every)
    manual = [plan for plan in every if plan.ask not in too_many]
    accepted = _stamped(spec, memory, manual, now)
    by_ask = {each.ask: each for each in accepted}
    counting = [each for each in accepted if each.ask != _MODE and each.at >= by_ask[_MODE].at]
    order = {plan.ask: _rank(plan) for plan in manual}
    counting.sort(key=lambda each: (each.at, order.get(each.ask, (False, 0.0, ""))), reverse=True)
    auto = next((plan for plan in readable if plan.auto), None)
    resources = {plan.ask: plan.roles for plan in manual}
    roles, trims, winning = {}, dict[str, list[Trim]](), set[str]()
    for role in ROLES:
        wanted, pinned_by = _wanted(spec, memory, role, counting, resources, auto)
        roles[role] = _held(spec, role, wanted, trims)
        winning |= pinned_by
    if roles[Role.CHIEF].count is None and Role.CHIEF in spec.roles and any(each.count for each in roles.values()):
        roles[Role.CHIEF] = replace(roles[Role.CHIEF], count=1, source="default", reason="a job has one chief")
    _within_room(spec, roles, trims)
    _within_limits(spec, roles, trims)
    for plan in (*manual, *([auto] if auto else ())):
        for role in plan.roles:
            if needs_of(spec, role) is None:
                trims.setdefault(plan.ask, []).append(_no_template(spec, role, plan))
    done = {ask: tuple(dict.fromkeys(each)) for ask, each in trims.items()}
    return Asks(roles=roles, accepted=tuple(accepted), trims=done, winning=frozenset(winning), too_many=too_many)


def _too_many(memory: Memory, manual: Sequence[PlanSeen]) -> frozenset[str]:
    """Who gets no stamp: the newest beyond what can be remembered. A plan whose stamp was lost would look new at every
    look, and win each time."""
    known = {each.ask for each in memory.accepted}
    pinning = [plan for plan in manual if plan.pins]
    pinning.sort(key=lambda plan: (plan.ask not in known, plan.created_at, plan.ask))
    return frozenset(plan.ask for plan in pinning[MOST_PLANS:])


def _rank(plan: PlanSeen) -> tuple[bool, float, str]:
    """Of plans that are first seen in one look the last by this wins."""
    return plan.kind is PlanKind.SCALE_PLAN, plan.created_at.timestamp(), plan.name


def _stamped(spec: JobSpec, memory: Memory, manual: Iterable[PlanSeen], now: datetime) -> list[Accepted]:
    """The stamps of what is asked now: those that stand, and new ones for what has changed. No two new ones are the
    same: who reads them, as the master does, follows whom we follow."""
    known = {each.ask: each for each in memory.accepted}
    newest = max((each.at for each in memory.accepted), default=now)
    now = max(now, newest + timedelta(microseconds=1))  # another operator's clock may have been ahead of ours
    fresh = [Accepted(ask=_MODE, at=now, optimize_mode=spec.optimize_mode)]
    fresh += [
        Accepted(ask=f"spec.{role}", at=now, counts={role: needs.replicas})
        for role, needs in sorted(spec.roles.items())
        if needs.replicas is not None
    ]
    fresh += [
        Accepted(
            ask=plan.ask,
            uid=plan.uid,
            generation=plan.generation,
            at=now,
            counts=_pins(plan, memory),
            resources={role: ask.resource for role, ask in plan.roles.items() if not ask.resource.is_silent},
        )
        for plan in sorted(manual, key=_rank)
        if plan.pins
    ]
    return [
        replace(known[each.ask], resources=each.resources)
        if _is_same(known.get(each.ask), each)
        else replace(each, at=now + timedelta(microseconds=number))
        for number, each in enumerate(fresh)
    ]


def _is_same(known: Accepted | None, fresh: Accepted) -> bool:
    if known is None or (known.uid, known.generation, known.optimize_mode) != (
        fresh.uid,
        fresh.generation,
        fresh.optimize_mode,
    ):
        return False
    return fresh.uid is not None or known.counts == fresh.counts


def _pins(plan: PlanSeen, memory: Memory) -> dict[Role, int]:
    """The counts a plan pins, worked out when it is first seen: `createPods` and `removePods` add to what is wanted by
    then, which a suspended job keeps."""
    pins = {role: ask.replicas for role, ask in plan.roles.items() if ask.replicas is not None}
    removed = [member for member in memory.members if member.has_seat and member.name in plan.remove]
    for role in ROLES:
        more = sum(order.role is role for order in plan.create) - sum(member.role is role for member in removed)
        if role not in pins and more:
            pins[role] = max(0, memory.wanted.get(role, 0) + more)
    return pins


def _wanted(
    spec: JobSpec,
    memory: Memory,
    role: Role,
    counting: Sequence[Accepted],
    resources: Mapping[str, Mapping[Role, RoleAsk]],
    auto: PlanSeen | None,
) -> tuple[Wanted, set[str]]:
    """What is wanted of a role, and the manual asks that pin it."""
    needs = needs_of(spec, role)
    if needs is None:
        return Wanted(), set()
    pin = next((each for each in counting if role in each.counts), None)
    said = {each.ask: ask.resource for each in counting if (ask := resources.get(each.ask, {}).get(role))}
    sizer = next((ask for ask, resource in said.items() if not resource.is_silent), None)
    automatic = auto.roles.get(role, RoleAsk()) if auto else RoleAsk()
    given = said[sizer] if sizer else Resource()
    is_raised = auto is not None and _is_raised(spec, given, automatic.resource)
    if is_raised:
        given = replace(given, memory=automatic.resource.memory)
    resource = given.over(automatic.resource).over(needs.resource)
    winning = ({pin.ask} if pin else set()) | ({sizer} if sizer else set())
    if pin is not None:
        count: int | None = pin.counts[role]
        source, reason = pin.ask, f"{_title(pin.ask)} asks for {count} of {role}"
    elif auto is not None and automatic.replicas is not None:
        count, source, reason = automatic.replicas, auto.ask, f"the master asks for {automatic.replicas} of {role}"
    elif role in memory.wanted:
        count, source = memory.wanted[role], "kept"
        reason = f"nobody asks for another number of {role} than {count}"
    else:
        count, source, reason = None, "", ""
    sized_by = sizer or (auto.ask if auto is not None and not automatic.resource.is_silent else "")
    raised_by = auto.ask if auto is not None and is_raised else ""
    wanted = Wanted(
        count=count, resource=resource, source=source, sized_by=sized_by, raised_by=raised_by, reason=reason
    )
    return wanted, winning


def _is_raised(spec: JobSpec, given: Resource, automatic: Resource) -> bool:
    """Whether the master asks for more memory than a manual ask gives. A master that sizes its job says no word of
    memory that is given, until somebody ran out of it; one that does not knows of no ask, and its old words stand."""
    if spec.optimize_mode is OptimizeMode.MANUAL or given.memory is None or automatic.memory is None:
        return False
    return automatic.memory > given.memory


def _held(spec: JobSpec, role: Role, wanted: Wanted, trims: dict[str, list[Trim]]) -> Wanted:
    """The wanted count within what the spec allows. Chief and evaluator may also be left out, and parameter servers
    where the strategy does without."""
    needs = needs_of(spec, role)
    is_needed = role is Role.WORKER or (role is Role.PS and spec.strategy is Strategy.PARAMETER_SERVER)
    if wanted.count is None or needs is None or (wanted.count == 0 and not is_needed):
        return wanted
    least = max(needs.min, 1) if role is Role.PS else needs.min
    held = min(max(wanted.count, least), max(least, needs.max))
    why = f"job {spec.name} has at {'most' if held < wanted.count else 'least'} {held} of {role}"
    if role is Role.WORKER and held % spec.node_unit:
        held, why = _whole(held, needs, spec.node_unit), f"workers come in units of {spec.node_unit}"
    if held == wanted.count:
        return wanted
    trims.setdefault(wanted.source, []).append(
        Trim(what=f"{role}.replicas", asked=str(wanted.count), got=str(held), reason=why)
    )
    return replace(wanted, count=held, reason=f"{wanted.reason}; {why}")


def _whole(count: int, needs: RoleNeeds, unit: int) -> int:
    """The next lower multiple of the unit; the next higher one where the lower would be too few."""
    lower = count - count % unit
    return lower if lower >= max(needs.min, 1) else lower + unit


def _within_room(spec: JobSpec, roles: dict[Role, Wanted], trims: dict[str, list[Trim]]) -> None:
    """All roles together no more than can be written down."""
    left = MOST_MEMBERS
    for role in ROLES:
        wanted = roles[role]
        if wanted.count is not None and wanted.count > left:
            got = left - left % spec.node_unit if role is Role.WORKER else left
            why = f"a job has at most {MOST_MEMBERS} members: its status has no room for more"
            trims.setdefault(wanted.source, []).append(
                Trim(what=f"{role}.replicas", asked=str(wanted.count), got=str(got), reason=why)
            )
            roles[role] = wanted = replace(wanted, count=got, reason=f"{wanted.reason}; {why}")
        left -= wanted.count or 0


def _within_limits(spec: JobSpec, roles: dict[Role, Wanted], trims: dict[str, list[Trim]]) -> None:
    """What plans give to each member, no more than `resourceLimits` has for it beside the others: of devices fewer
    members, of all else less for each. What the spec itself gives to a role stands."""
    for role in ROLES:
        wanted, needs = roles[role], needs_of(spec, role)
        if not wanted.count or not wanted.sized_by or needs is None:
            continue
        wanted = roles[role] = _with_whole_devices(spec, role, roles, needs, trims)
        given = {}
        for kind in _KINDS:
            limit, asked = getattr(spec.limits, kind.name), getattr(wanted.resource, kind.name)
            if limit is None or asked is None or not wanted.count:
                continue
            share = max(limit - _of_others(roles, role, kind.name), 0) / wanted.count
            most = max(kind.down(share), getattr(needs.resource, kind.name) or 0, kind.least)
            if most < asked:
                why = f"resourceLimits has {kind.text(kind.down(share))} for each of {wanted.count} of {role}"
                what = f"{role}.resource.{kind.word}"
                trim = Trim(what=what, asked=kind.text(asked), got=kind.text(most), reason=why)
                whose = wanted.raised_by if kind.name == "memory" else ""
                trims.setdefault(whose or wanted.sized_by, []).append(trim)
                given[kind.name] = most
        roles[role] = replace(wanted, resource=replace(wanted.resource, **given))


def _with_whole_devices(
    spec: JobSpec, role: Role, roles: Mapping[Role, Wanted], needs: RoleNeeds, trims: dict[str, list[Trim]]
) -> Wanted:
    """As many members as there are devices for, each with those that a plan gives it: to divide them again for one
    member more would replace all that run. Where that would be fewer than `min`, they are divided."""
    wanted, limit = roles[role], spec.limits.gpu_num
    each = wanted.resource.gpu_num or 0
    if limit is None or wanted.count is None or each <= (needs.resource.gpu_num or 0):
        return wanted
    most = max(int(limit - _of_others(roles, role, "gpu_num")), 0) // each
    most -= most % spec.node_unit if role is Role.WORKER else 0
    if not max(needs.min, 1) <= most < wanted.count:
        return wanted
    why = f"resourceLimits has devices for {most} of {role} with {each} each"
    trim = Trim(what=f"{role}.replicas", asked=str(wanted.count), got=str(most), reason=why)
    for ask in {wanted.source, wanted.sized_by}:
        trims.setdefault(ask, []).append(trim)
    return replace(wanted, count=most, reason=f"{wanted.reason}; {why}")


def _of_others(roles: Mapping[Role, Wanted], role: Role, kind: str) -> float:
    """What the members of all other roles have of something."""
    return sum((w.count or 0) * (getattr(w.resource, kind) or 0) for r, w in roles.items() if r is not role)


@dataclass(frozen=True, slots=True)
class _Kind:
    """One kind of thing that members get."""

    name: str
    word: str
    down: Callable[[float], Any]
    """To what Kubernetes can give."""
    text: Callable[[Any], str]
    least: float


_KINDS = (
    _Kind("cpu", "cpu", lambda cores: int(cores * 1000) / 1000, format_cores, 0.001),
    _Kind("memory", "memory", int, format_mebibytes, 1),
    _Kind("disk", "disk", int, format_mebibytes, 1),
    _Kind("gpu_num", "gpu", int, str, 0),
)


def _no_template(spec: JobSpec, role: Role, plan: PlanSeen) -> Trim:
    there = ", ".join(sorted(spec.roles)) or "no role"
    asked = plan.roles[role].replicas
    return Trim(
        what=f"{role}.replicas",
        asked="" if asked is None else str(asked),
        got="0",
        reason=f"job {spec.name} has no template for {role} (it has {there})",
    )


def _title(ask: str) -> str:
    kind, _, name = ask.partition("/")
    return f"{kind} {name}" if name else f"{ask}.replicas"
