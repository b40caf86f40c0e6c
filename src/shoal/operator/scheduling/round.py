"""One round without its surroundings: what is known becomes a snapshot, and decisions become allowances. Pure.

`begin` takes every job up where it stands: newcomers arrive, time passes for the others. `conclude` carries the
decisions out on the standings; a job that is in none of them keeps what it was allowed before.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from shoal.api.scheduling import SchedulingStatus
from shoal.core.hosts import HostSeen, PodUse, QuotaSeen
from shoal.operator.allowances import Allowance
from shoal.operator.scheduling.facts import JobFacts
from shoal.operator.scheduling.kept import Kept
from shoal.operator.scheduling.ledger import ANY_HOST, Ledger
from shoal.operator.scheduling.reading import (
    ENDLESS,
    JobView,
    Pools,
    host_rows,
    look_at,
    quota_rows,
    service_rows,
    waiting_services,
)
from shoal.scheduler.actuation import Standing, advance, arrive, carry_out, name_victims
from shoal.scheduler.columns import check_numbers
from shoal.scheduler.decisions import Change, Code, Decisions, Wait
from shoal.scheduler.rows import NOTHING, Attained, JobKey, Part, Priority, Room, Seconds
from shoal.scheduler.settings import SchedulerSettings
from shoal.scheduler.snapshot import Snapshot

SUSPENDED = "Suspended"
NO_PLAN = "WaitingForPlan"
NOT_COUNTED = "NotCounted"
"""Its numbers make no sense: it is left out of the rounds, and everybody else goes on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What a job was allowed, and which job it was: another of the same name is a newcomer."""

    uid: str
    allowance: Allowance


Holding = Mapping[JobKey, Held]


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """The cluster at one moment."""

    hosts: Sequence[HostSeen] | None
    """None: they may not be looked at."""
    quotas: Sequence[QuotaSeen] = ()
    facts: Sequence[JobFacts] = ()
    ledger: Ledger


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    snapshot: Snapshot
    facts: Mapping[JobKey, JobFacts]
    views: Mapping[JobKey, JobView] = field(default_factory=dict)
    holding: Holding = field(default_factory=dict)
    """All jobs, also those that take no part, with time passed."""


@dataclass(frozen=True, slots=True)
class Looked:
    """A look at a job that need not be repeated while nothing it was based on has changed."""

    facts: JobFacts
    standing: Standing
    victims: tuple[str, ...] | None
    version: int
    """Of its Pods."""
    view: JobView


Looks = dict[JobKey, Looked]


def begin(
    known: Known,
    before: Holding,
    min_v: float,
    settings: SchedulerSettings,
    *,
    looks: Looks | None = None,
    kept: Kept | None = None,
    by: str = "",
    now: Seconds,
) -> Round:
    """`looks` and `kept`: of earlier rounds on the same ledger, brought up to date here. Few jobs change in a while.
    `by`: who decides. Of a job whose status somebody else has written since, that is what holds."""
    looks = {} if looks is None else looks
    capacity = _capacity(known.hosts)
    holding: dict[JobKey, Held] = {}
    views: dict[JobKey, JobView] = {}
    without_plan = 0
    for facts in sorted(known.facts, key=lambda each: (each.created, each.key)):
        saved = _saved(before.get(facts.key), facts, by)
        if facts.takes_part:
            try:
                allowance, view = _taken_up(facts, saved, known.ledger, looks, min_v, capacity, settings, now)
                views[facts.key] = view
            except (ValueError, ArithmeticError) as exc:
                allowance = _left_out(saved, exc, now)
        else:
            allowance = _set_aside(facts, saved, known.ledger, capacity, settings, now)
            if not facts.suspended and facts.lacks is None:  # a master will say how many members it should have
                without_plan += 1
                allowance = replace(allowance, starts_master=without_plan <= settings.max_starting_masters)
        holding[facts.key] = Held(
            uid=facts.uid, allowance=_signed(allowance, facts.written if saved is None else saved.follows, by)
        )
    for key in looks.keys() - views.keys():
        del looks[key]
    facts_of = {facts.key: facts for facts in known.facts}
    services = waiting_services(known.ledger, settings.service_priority_floor)
    snapshot, views = _snapshot(known, views, facts_of, services, min_v, settings, Kept() if kept is None else kept)
    return Round(snapshot=snapshot, facts=facts_of, views=views, holding=holding)


def _snapshot(
    known: Known,
    views: Mapping[JobKey, JobView],
    facts: Mapping[JobKey, JobFacts],
    services: Sequence[PodUse],
    min_v: float,
    settings: SchedulerSettings,
    kept: Kept,
) -> tuple[Snapshot, dict[JobKey, JobView]]:
    placements = [each for key in views for each in (facts[key].placement, *facts[key].placements.values())]
    pools = Pools(known.hosts or (), [*placements, *(pod.placement for pod in services)], kept)
    placed = {key: _in_pools(view, facts[key], pools) for key, view in views.items()}
    scheduled = frozenset((key.namespace, facts[key].uid) for key in views)
    snapshot = kept.snapshot(
        host_rows(known.hosts, known.ledger, placed.values(), scheduled, pools),
        (view.row for view in placed.values()),
        service_rows(services, pools),
        quota_rows(known.quotas, settings.quotas, known.ledger, scheduled),
        min_v,
    )
    return snapshot, placed


def _in_pools(view: JobView, facts: JobFacts, pools: Pools) -> JobView:
    """With the pools in which each part of the job may be. A look knows of none, and most parts may be anywhere."""
    trainers = pools.admitting(facts.placement)
    others = {role: found for role, each in facts.placements.items() if (found := pools.admitting(each)) is not None}
    if trainers is None and not others:
        return view
    row = replace(view.row, pools=trainers)
    if others:
        servers = row.servers
        row = replace(
            row,
            fixed=_parts_in_pools(row.fixed, others),
            fixed_pending=_parts_in_pools(row.fixed_pending, others),
            servers=None if servers is None else replace(servers, pools=others.get(facts.server_role)),
        )
    return replace(view, row=row)


def _parts_in_pools(parts: tuple[Part, ...], pools: Mapping[str, frozenset[str]]) -> tuple[Part, ...]:
    return tuple(replace(part, pools=pools.get(part.role)) for part in parts)


def _look(
    facts: JobFacts,
    standing: Standing,
    victims: tuple[str, ...] | None,
    ledger: Ledger,
    looks: Looks,
    now: Seconds,
) -> JobView:
    known, version = looks.get(facts.key), ledger.version(facts.uid, facts.key.namespace)
    if (
        known is not None
        and known.facts is facts
        and known.version == version
        and (known.standing, known.victims) == (standing, victims)
    ):
        return known.view
    view = look_at(facts, standing, ledger.of(facts.uid, facts.key.namespace), ledger, victims=victims, now=now)
    check_numbers(view.row)
    if view.going:  # it says until when, which moves on
        looks.pop(facts.key, None)
    else:
        looks[facts.key] = Looked(facts, standing, victims, version, view)
    return view


def _taken_up(
    facts: JobFacts,
    saved: Allowance | None,
    ledger: Ledger,
    looks: Looks,
    min_v: float,
    capacity: Room,
    settings: SchedulerSettings,
    now: Seconds,
) -> tuple[Allowance, JobView]:
    priority, trimmed = _priority(facts, settings)
    standing = saved.standing if saved is not None else None
    if standing is None or (standing.target == 0 and standing.waiting_since is None):
        blank = replace(look_at(facts, Standing(), (), ledger, now=now).row, priority=priority)
        standing = arrive(blank, standing, min_v, capacity, now, settings)
    view = _look(facts, standing, None if saved is None else saved.victims, ledger, looks, now)
    view = _of_priority(view, priority)
    after = advance(standing, view.row, view.running, capacity, now, settings)
    if after != standing:
        row = replace(view.row, attained=after.attained, frozen_until=after.frozen_until, short_since=after.short_since)
        view = replace(view, row=row)
    allowance = _with_standing(saved, after)
    servers = _servers(facts, after.target)  # another number may be asked for beside as many trainers
    if (allowance.trimmed, allowance.servers) != (trimmed, servers):
        allowance = replace(allowance, trimmed=trimmed, servers=servers)
    return allowance, view


def _servers(facts: JobFacts, trainers: int) -> int | None:
    return facts.servers.beside(trainers) if facts.servers is not None and trainers else None


def _priority(facts: JobFacts, settings: SchedulerSettings) -> tuple[Priority, str]:
    """The priority that counts, and why it is not the one that the job says: more than Normal is for the namespaces
    that the cluster's owner names."""
    if facts.priority is not Priority.PRODUCTION or settings.priorities & {"*", facts.key.namespace}:
        return facts.priority, ""
    why = f"namespace {facts.key.namespace} is not in the list `priorities` of the scheduler's settings"
    return Priority.NORMAL, f"priority {facts.priority} counts as Normal: {why}"


def _of_priority(view: JobView, priority: Priority) -> JobView:
    return view if view.row.priority is priority else replace(view, row=replace(view.row, priority=priority))


def _set_aside(
    facts: JobFacts,
    saved: Allowance | None,
    ledger: Ledger,
    capacity: Room,
    settings: SchedulerSettings,
    now: Seconds,
) -> Allowance:
    """A job that its owner has suspended, or that nobody has asked anything for: it keeps what it attained."""
    standing = saved.standing if saved is not None else Standing(attained=Attained(at=now))
    standing = replace(standing, target=0, waiting_since=None, settling=False, frozen_until=0.0)
    priority, trimmed = _priority(facts, settings)
    view = _of_priority(look_at(facts, standing, ledger.of(facts.uid, facts.key.namespace), ledger, now=now), priority)
    standing = advance(standing, view.row, view.running, capacity, now, settings)
    if facts.suspended:
        code, reason = SUSPENDED, "its owner has suspended it"
    else:
        code, reason = facts.lacks or (NO_PLAN, "nobody has said how many members it should have")
    return Allowance(standing=standing, code=code, reason=reason, trimmed=trimmed, aside=True)


def _left_out(saved: Allowance | None, why: Exception, now: Seconds) -> Allowance:
    """It keeps what it has; its Pods count as nobody's."""
    standing = saved.standing if saved is not None else Standing(attained=Attained(at=now))
    before = saved if saved is not None else Allowance(standing=standing, starts_master=False)
    return replace(before, code=NOT_COUNTED, reason=f"it takes no part in scheduling: {why}")


def _saved(held: Held | None, facts: JobFacts, by: str) -> Allowance | None:
    """What it was allowed: by this scheduler, or by another one, whose word is in the status. A job that takes part
    again goes on from its status: that it took none for a while holds only if it was written."""
    if (
        held is not None
        and held.uid == facts.uid
        and not held.allowance.is_overtaken(facts.written)
        and held.allowance.is_about(takes_part=facts.takes_part)
    ):
        return held.allowance
    if facts.standing is None:
        return None
    return Allowance(
        standing=facts.standing,
        servers=_servers(facts, facts.standing.target),
        victims=facts.victims,
        code=facts.code,
        reason=facts.reason,
        by=by,
        follows=facts.written,
    )


def _signed(allowance: Allowance, follows: SchedulingStatus | None, by: str) -> Allowance:
    if allowance.by == by and allowance.follows is follows:
        return allowance
    return replace(allowance, by=by, follows=follows)


def _with_standing(saved: Allowance | None, standing: Standing) -> Allowance:
    if saved is not None and saved.standing is standing:
        return saved
    if saved is None:
        return Allowance(standing=standing, code=Code.QUEUED, reason="it was just seen", starts_master=False)
    return replace(saved, standing=standing)


def _capacity(hosts: Iterable[HostSeen] | None) -> Room:
    total = NOTHING
    for host in hosts if hosts is not None else ():
        total = total.plus(Room(*host.capacity))
    return total if hosts is not None else Room(*ENDLESS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    holding: Holding
    carried_out: tuple[Change, ...] = ()
    """The decisions that hold; others were made on a target that is no longer."""


def conclude(round: Round, decisions: Decisions, *, now: Seconds) -> Outcome:
    holding = dict(round.holding)
    carried_out = []
    for change in decisions.changes:
        held = holding.get(change.key)
        allowance = None if held is None else _changed(round, held.allowance, change, now)
        if held is not None and allowance is not None:
            holding[change.key] = replace(held, allowance=allowance)
            carried_out.append(change)
    for wait in decisions.waits:
        held = holding.get(wait.key)
        if held is not None and not held.allowance.is_admitted:
            holding[wait.key] = replace(held, allowance=_waits(held.allowance, wait))
    return Outcome(holding=holding, carried_out=tuple(carried_out))


def _changed(round: Round, before: Allowance, change: Change, now: Seconds) -> Allowance | None:
    facts, view = round.facts[change.key], round.views[change.key]
    standing = carry_out(before.standing, change, now, asked=facts.max)
    if standing is None:
        return None
    return Allowance(
        standing=standing,
        servers=_servers(facts, change.target),
        hosts=_named(change.hosts),
        fixed_hosts={role: _named(hosts) for role, hosts in change.fixed_hosts.items()},
        victims=_victims(change, view, before.victims),
        code=change.reason.code,
        reason=change.reason.text,
        trimmed=before.trimmed,
        starts_master=change.target > 0,
        by=before.by,
        follows=before.follows,
    )


def _victims(change: Change, view: JobView, before: Sequence[str]) -> tuple[str, ...]:
    """Who goes: those that were named before and are still there, for they were counted as gone, and those that this
    change takes beyond them. A job that may have more again spares all of them."""
    if change.target >= change.before:
        return ()
    there = {pod.name for pod in view.trainers}
    named = tuple(name for name in before if name in there)
    return (*named, *name_victims(change, [pod for pod in view.trainers if pod.name not in named]))


def _named(hosts: Mapping[str, int]) -> dict[str, int]:
    """Those that Pods can be sent to: the one that stands for all has no name that Kubernetes knows."""
    return {host: count for host, count in hosts.items() if host != ANY_HOST}


def _waits(before: Allowance, wait: Wait) -> Allowance:
    return replace(
        before,
        code=wait.reason.code,
        reason=wait.reason.text,
        place=wait.place,
        starts_master=wait.starts_master,
        hosts={},
        fixed_hosts={},
    )
