"""What a job does with its optimizer's word: follow the plan, remember the state, tell people.

    statistics ─▶ `shoal.core.sizing.look_at` ─▶ JobResourceOptimizer ─▶ `Sized` ─▶ `sized`, here

Where the job launches its own nodes a plan goes through the door that a user's goes through (`plans.follow`). Where
the platform makes the nodes (Kubernetes) it is an ask: counts, cores and memory by role, and single nodes that are to
have something else, which the scaler declares and the operator's policy grants, trims or lets wait. A single node is
replaced, the new one first. The ask for it stands until the change is judged or given up.

Who says how many nodes of a role there are to be wins over the optimizer, at once and until it is given back
(`pinned`): what the optimizer had under way is not judged any more, and it plans no other number of that role. The
other roles stay the optimizer's, and it still watches memory. What the user gives each node, by the job's spec or by an
ask of his own (`resource_pinned`), it does not plan: its asks are silent about it, but for memory after somebody ran
out of what was given.
"""

from collections.abc import Mapping
from dataclasses import fields, replace

from shoal.core.exits import ExitCause
from shoal.core.job import failures, plans, servers
from shoal.core.job.members import is_leaving, live
from shoal.core.job.plans import plan_refusal
from shoal.core.job.turn import Turn
from shoal.core.job.values import (
    CountPinned,
    Effect,
    Given,
    Job,
    JobSpec,
    PlanAsked,
    ResourcePinned,
    Scale,
    ScaleAsked,
    SelfSizing,
    Sized,
    Sizing,
)
from shoal.core.nodes import NodeId, Role
from shoal.core.optimizing import Kind, Outcome, Stage
from shoal.core.plans import NodeGroupResource, NodeResource, ResourcePlan, ScalePlan
from shoal.core.resources import overlaid, usual
from shoal.core.stages import OptimizerState, given_back, given_up, outcome_words
from shoal.core.view import says_how_many, says_what_each_has

WHO = "the optimizer"
PLANNED = frozenset({"cpu", "memory"})
"""What the optimizer plans of what each node has."""


def begins(*, platform_grows: bool) -> Sizing:
    """Where the platform makes the nodes the first plan is the optimizer's; elsewhere whoever began the job has chosen
    how many it begins with."""
    if platform_grows:
        return Sizing()
    return Sizing(optimizer=OptimizerState(stage=Stage.WORKER_INITIAL, reason="the job begins as it was started"))


def resumed(before: Sizing) -> Sizing:
    """What was learnt stays learnt; what was under way when the job was lost is not judged any more."""
    return replace(before, optimizer=replace(before.optimizer, pending=None))


def sized(turn: Turn, event: Sized) -> None:
    """Remember what the optimizer decided, tell what is news, follow its plan."""
    if turn.job.ending is not None or turn.job.spec.sizing is None:
        return
    before, after = turn.job.sizing.optimizer, event.state
    news = [f"{WHO}: {outcome_words(outcome)}" for outcome in _judged(before, after)]
    if event.plan is None and after.trimmed != before.trimmed and after.trimmed is not None:
        news.append(f"{WHO}: {after.reason}")
    for each in news:
        turn.say(each)
    turn.job = replace(turn.job, sizing=replace(turn.job.sizing, optimizer=after))
    begins = before.stage is Stage.CREATE and turn.job.spec.platform_grows and not has_trained(turn.job)
    if event.plan is not None:
        _follow(turn, event.plan, least=_least(turn.job.spec) if begins else {})
    elif begins:
        _begin_small(turn, after.reason)
    if turn.job.sizing.optimizer.pending is None and turn.job.sizing.moves:
        turn.job = replace(turn.job, sizing=replace(turn.job.sizing, moves={}))
        _tell(turn, after.reason)


def has_trained(job: Job) -> bool:
    """Whether there is something to measure: a job that sizes itself from some moment on has a size already."""
    return job.rendezvous.committed is not None or (job.servers is not None and job.servers.current is not None)


def _begin_small(turn: Turn, why: str) -> None:
    """Nothing was planned for a job that has nothing: it begins as small as it can be, with what its spec gives."""
    least = _least(turn.job.spec)
    told = ", ".join(f"{group.count} of {role}" for role, group in least.items())
    turn.say(f"{WHO} has no plan to begin with ({why}): {told}, with what the job's spec gives")
    _ask(turn, least, {}, why)


def bounds(spec: JobSpec) -> dict[str, tuple[int, int]]:
    """How many nodes there are to be at least and at most, of each role that the optimizer plans."""
    found: dict[str, tuple[int, int]] = {Role.WORKER: (spec.min_nodes, spec.max_nodes)}
    return found if spec.ps is None else {**found, Role.PS: (spec.ps.min_servers, spec.ps.max_servers)}


def _least(spec: JobSpec) -> dict[str, NodeGroupResource]:
    """What a job needs of each role, to begin at all."""
    return {role: NodeGroupResource(count=low) for role, (low, _) in bounds(spec).items()}


def _ask(turn: Turn, groups: Mapping[str, NodeGroupResource], moves: Mapping[str, NodeResource], reason: str) -> None:
    job, before = turn.job, turn.job.sizing.asked or _there(turn.job)
    kept = {role: _not_less(job, role, group, before.get(role)) for role, group in groups.items()}
    seats = {(str(node.role), node.seat) for name in moves if (node := job.nodes.get(NodeId(name))) is not None}
    sizing = replace(
        job.sizing,
        asked={**before, **kept},
        moves={**job.sizing.moves, **moves},
        singled=job.sizing.singled | seats,
    )
    turn.job = replace(job, sizing=sizing)
    _tell(turn, reason)


def _there(job: Job) -> dict[str, NodeGroupResource]:
    """What a job that was never asked for has, of all that it is sized by: the first ask leaves it as it is."""
    servers_there = [node for node in live(job, Role.PS) if not node.is_released]
    counts = {Role.WORKER: job.target, **({} if job.spec.ps is None else {Role.PS: len(servers_there)})}
    return {role: NodeGroupResource(count=count) for role, count in counts.items()}


def given_anew(turn: Turn, before: JobSpec) -> None:
    """The spec has changed. What is asked for is told again where the user gives nodes something else by it."""
    job, had = turn.job, before.sizing
    if had is None or job.spec.sizing is None or _gives_as(had, job.spec.sizing):
        return
    asked = {role: _without_given_memory(role, group, had, job.spec.sizing) for role, group in job.sizing.asked.items()}
    turn.job = replace(job, sizing=replace(job.sizing, asked=asked))
    if asked or job.sizing.moves:
        _tell(turn, job.sizing.optimizer.reason)


def _without_given_memory(role: str, group: NodeGroupResource, had: SelfSizing, has: SelfSizing) -> NodeGroupResource:
    """What is asked for, without memory that is the spec's to give now. Only more than it gave before stays, for
    somebody ran out of that."""
    asked, gave, gives = group.node_resource.memory, had.given(role).memory, has.given(role).memory
    if asked is None or gives in (None, gave) or (gave is not None and asked > gave):
        return group
    return replace(group, node_resource=replace(group.node_resource, memory=None))


def _gives_as(one: SelfSizing, other: SelfSizing) -> bool:
    return (one.resource, one.ps_resource) == (other.resource, other.ps_resource)


def asked_again(job: Job) -> tuple[Effect, ...]:
    """What a master that takes over says again to its platform: what the one before had asked for still counts."""
    if job.spec.sizing is None or job.ended is not None:
        return ()
    plan = _statement(job, job.sizing.optimizer.reason)
    return (Scale(plan=plan),) if plan.is_ask else ()


def _tell(turn: Turn, reason: str) -> None:
    said = _said(turn.job)
    wanted = {**turn.job.wanted, **{Role(role): group.node_resource for role, group in said.items()}}
    turn.job = replace(turn.job, wanted=wanted)
    if Role.PS in wanted and turn.job.spec.fills_grant:
        servers.sized(turn, wanted[Role.PS])
    turn.effects.append(Scale(plan=_statement(turn.job, reason)))


def _statement(job: Job, reason: str) -> ScalePlan:
    """All that is asked for. Who was to be replaced and is gone was."""
    found = {name: job.nodes.get(NodeId(name)) for name in job.sizing.moves}
    moved = tuple(
        replace(node, resource=overlaid(node.resource, job.sizing.moves[name]))
        for name, node in found.items()
        if node is not None and node.is_live and not node.is_released
    )
    return ScalePlan(node_group_resources=_said(job), migrate_nodes=moved, reason=reason)


def _said(job: Job) -> dict[str, NodeGroupResource]:
    """What is asked for, and no word of what the user gives: an ask goes before the spec, which may change."""
    return {
        role: replace(group, node_resource=_beyond(group.node_resource, given_to(job, role)))
        for role, group in job.sizing.asked.items()
    }


def given_to(job: Job, role: str) -> NodeResource:
    """What users give each node of a role that is sized: what an ask says goes before the spec."""
    by_spec = job.spec.sizing.given(role) if job.spec.sizing is not None else NodeResource()
    asked = job.sizing.given.get(role)
    return by_spec if asked is None else overlaid(by_spec, asked.resource)


def _not_less(job: Job, role: str, group: NodeGroupResource, before: NodeGroupResource | None) -> NodeGroupResource:
    """Where memory is given, only running out of it asks for more: that stays, whatever the nodes have got of it. While
    they have more than they are given, for they had it before, that is no reason to keep it."""
    known = None if before is None else before.node_resource.memory
    given, asked, pending = given_to(job, role).memory, job.sizing.given.get(role), job.sizing.optimizer.pending
    if given is None:
        return group
    if pending is not None and pending.kind is Kind.OOM and _has_run_out(job, role):
        memory: int | None = max(known or 0, group.node_resource.memory or 0)
    elif known is None and (asked is None or asked.resource.memory is None):
        memory = given  # by the spec: should it give none some day, they keep this
    else:
        memory = known
    return replace(group, node_resource=replace(group.node_resource, memory=memory))


def _has_run_out(job: Job, role: str) -> bool:
    """Whether nodes of a role ran out of memory, as far back as is known."""
    return any(node.role == role and node.exit_cause is ExitCause.OOM for node in job.nodes.values())


def _beyond(asked: NodeResource, given: NodeResource) -> NodeResource:
    """What is not given; and more memory than is given, for somebody ran out of that."""
    is_more = given.memory is not None and asked.memory is not None and asked.memory > given.memory
    return replace(asked, **dict.fromkeys(_named(given) - ({"memory"} if is_more else set())))


def _named(resource: NodeResource) -> set[str]:
    """What of it is said."""
    return {each.name for each in fields(resource) if getattr(resource, each.name) is not None}


def _judged(before: OptimizerState, after: OptimizerState) -> tuple[Outcome, ...]:
    """The outcomes that were not known before; those that were taken back are told by the plan that does it."""
    known = before.outcomes[-1] if before.outcomes else None
    fresh: list[Outcome] = []
    for outcome in reversed(after.outcomes):
        if outcome == known:
            break
        fresh.append(outcome)
    return tuple(outcome for outcome in reversed(fresh) if not outcome.rolled_back)


def _follow(turn: Turn, plan: ResourcePlan, *, least: Mapping[str, NodeGroupResource]) -> None:
    """The one place where a plan of the optimizer becomes something that is done. `least`: what a platform is asked for
    of roles that the plan does not name, and of all where it cannot be followed."""
    why_not = refusal(turn.job, plan)
    if why_not is not None:
        turn.say(f"{WHO} wants {plan.reason}; that cannot be followed: {why_not}")
        sizing = turn.job.sizing
        turn.job = replace(turn.job, sizing=replace(sizing, optimizer=given_up(sizing.optimizer, why_not)))
        if least:
            _begin_small(turn, why_not)
        return
    who = f"{WHO} ({plan.algorithm})"
    if not turn.job.spec.platform_grows:
        plans.follow(turn, PlanAsked(plan=plan, who=who))
        return
    turn.say(f"{who}: {plan.reason}")
    groups, moves = {**least, **plan.node_group_resources}, _moves(turn.job, plan)
    if groups or moves:
        _ask(turn, groups, moves, plan.reason)
    for name in plan.replace_nodes:
        node = turn.job.nodes.get(NodeId(name))
        if node is not None and node.is_live and not turn.is_ending:
            failures.node_lost(turn, node.id, ExitCause.HARDWARE, "its host is slow")


def _moves(job: Job, plan: ResourcePlan) -> dict[str, NodeResource]:
    """What single nodes are to have that they have not: those that the plan names; and those that an earlier one named,
    where this one says what all of their role have."""
    wanted = dict(plan.node_resources)
    for node in job.nodes.values():
        group, is_singled = plan.node_group_resources.get(node.role), (str(node.role), node.seat) in job.sizing.singled
        if group is not None and is_singled and node.id not in wanted and _is_there(job, node.id):
            wanted[node.id] = group.node_resource
    return {
        name: resource
        for name, resource in wanted.items()
        if (known := job.nodes.get(NodeId(name))) is not None and overlaid(known.resource, resource) != known.resource
    }


def refusal(job: Job, plan: ResourcePlan) -> str | None:
    """Why a plan cannot be followed; None: it can. Half a plan is nobody's."""
    if not job.spec.platform_grows:
        return _pin_refusal(job, plan) or plan_refusal(job, plan)
    known, unit = bounds(job.spec), job.spec.node_unit
    for role, asked in plan.node_group_resources.items():
        if role not in known:
            return f"the job has no {role}"
        low, high = known[role]
        if not low <= asked.count <= high:
            return f"{role}={asked.count} asked, the job takes {low} to {high}"
        if role == Role.WORKER and asked.count % unit:
            return f"worker={asked.count} asked, the job takes multiples of {unit}"
    moves = _moves(job, plan)
    if moves and job.spec.fills_grant:
        return f"{next(iter(moves))} is to have something else, and the master of this job replaces nobody that runs"
    unknown = [name for name in plan.node_resources if not _is_there(job, name)]
    return f"{unknown[0]} is to be changed, and is not there" if unknown else None


def _is_there(job: Job, name: str) -> bool:
    known = job.nodes.get(NodeId(name))
    return known is not None and known.is_live and not is_leaving(job, known.id)


def _pin_refusal(job: Job, plan: ResourcePlan) -> str | None:
    """Why a plan has another number of some role than somebody has said; None: it has not."""
    has = {Role.WORKER: job.target, **({} if job.servers is None else {Role.PS: job.servers.goal.count})}
    for role, group in plan.node_group_resources.items():
        if role in job.sizing.pins and group.count != has.get(Role(role)):
            return says_how_many(job.sizing.pins[role], role)
    return None


def pinned(turn: Turn, event: CountPinned) -> None:
    """Somebody says how many nodes of a role there are, or nobody does any more."""
    spec, sizing, role = turn.job.spec, turn.job.sizing, str(event.role)
    before = sizing.pins.get(role)
    if spec.sizing is None or event.by == before or turn.job.ending is not None or role not in bounds(spec):
        return
    others = {other: by for other, by in sizing.pins.items() if other != role}
    if event.by is None:
        turn.say(f"{says_how_many(WHO, role)} again: {before} does not any more")
        turn.job = replace(turn.job, sizing=replace(sizing, pins=others, optimizer=given_back(sizing.optimizer)))
        return
    back = "deleting that ask" if spec.platform_grows else f"`shoal scale {spec.name} {role}=auto`"
    why = says_how_many(event.by, role)
    turn.say(f"{why}, {WHO} does not any more; {back} gives it back")
    state = given_up(sizing.optimizer, why)
    turn.job = replace(turn.job, sizing=replace(sizing, pins={**others, role: event.by}, optimizer=state))


def resource_pinned(turn: Turn, event: ResourcePinned) -> None:
    """Somebody says by an ask what each node of a role has, or nobody does any more: then they keep what they have,
    and it is the optimizer's again. Of what the optimizer does not plan, as disks, nothing is taken from it."""
    spec, sizing, role = turn.job.spec, turn.job.sizing, str(event.role)
    before, now = sizing.given.get(role), event.given
    if spec.sizing is None or now == before or turn.job.ending is not None or role not in bounds(spec):
        return
    others = {other: given for other, given in sizing.given.items() if other != role}
    state, asked, why = sizing.optimizer, _asked_beside(turn.job, role, before, now), ""
    if now is not None and _given_anew(turn.job, role, now) & PLANNED:
        why = f"{says_what_each_has(now.by, role)}, {WHO} does not any more; deleting that ask gives it back"
        state = given_up(state, says_what_each_has(now.by, role))
    elif before is not None and _left_out(before, now) & PLANNED:
        is_free = _freed(turn.job, role, before, now) & PLANNED
        whose = f"{WHO} may change it again" if is_free else "the job's spec does"
        why = f"{says_what_each_has(before.by, role)} no more, {whose}"
        state = given_back(state)
    if why:
        turn.say(why)
    given = others if now is None else {**others, role: now}
    turn.job = replace(turn.job, sizing=replace(sizing, given=given, optimizer=state, asked=asked))
    if asked:
        _tell(turn, why or state.reason)


def _asked_beside(job: Job, role: str, before: Given | None, now: Given | None) -> dict[str, NodeGroupResource]:
    """What the optimizer asks for when somebody else gives the nodes of a role something: nothing of what he gives
    anew. Of what is given no more it asks for what they have, unless the spec gives it. More memory after somebody ran
    out of what was given stays, until something else is given."""
    asked, group = dict(job.sizing.asked), job.sizing.asked.get(role)
    if group is None:
        return asked
    had = group.node_resource
    has = usual(node.resource for node in live(job, Role(role)) if not node.is_released) or NodeResource()
    amounts = {name: getattr(has, name) for name in _freed(job, role, before, now)}
    if "memory" in amounts and had.memory is not None:
        amounts["memory"] = max(had.memory, has.memory or 0)
    amounts |= dict.fromkeys(_given_anew(job, role, now))
    return {**asked, role: replace(group, node_resource=replace(had, **amounts))}


def _given_anew(job: Job, role: str, now: Given | None) -> set[str]:
    """What an ask gives the nodes of a role that nobody gave them before, or another amount of it."""
    if now is None:
        return set()
    known, said = given_to(job, role), now.resource
    return {name for name in _named(said) if getattr(said, name) != getattr(known, name)}


def _freed(job: Job, role: str, before: Given | None, now: Given | None) -> set[str]:
    """What an ask gave the nodes of a role that nobody gives them any more."""
    by_spec = set() if job.spec.sizing is None else _named(job.spec.sizing.given(role))
    return _left_out(before, now) - by_spec


def _left_out(before: Given | None, now: Given | None) -> set[str]:
    """What was given by an ask and is no more."""
    had, has = (set() if each is None else _named(each.resource) for each in (before, now))
    return had - has


def scaled(turn: Turn, asked: ScaleAsked) -> None:
    """A user has said how many. On other platforms that is said there, and told by `CountPinned`."""
    if not turn.job.spec.platform_grows:
        pinned(turn, CountPinned(role=Role.WORKER, by=f"{asked.who} worker={asked.count}"))


def planned(turn: Turn, asked: PlanAsked) -> None:
    """A user has a plan. Of the roles of which it says how many, the optimizer does not any more."""
    for role, group in asked.plan.node_group_resources.items():
        pinned(turn, CountPinned(role=Role(role), by=f"{asked.who} {role}={group.count}"))
