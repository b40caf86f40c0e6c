"""A job's way through its stages, and the rails that keep its optimizer from doing harm.

`JobResourceOptimizer.turn` is called now and then with what the job remembers (`OptimizerState`) and the facts of the
moment. It returns what to remember next, and maybe a plan. It reads no clock and holds nothing: the state is a plain
value for the job's journal, and another master goes on with it.

    CREATE ──▶ WORKER_INITIAL ──▶ PS_INITIAL ──▶ RUNNING
                     └──────── all-reduce ─────────▲

The rails:

- One change at a time. While one is under way, or was not judged yet, nothing is planned but memory for a node that
  ran out of it.
- A change is judged when what was asked is there and was measured; what it did is kept beside what was predicted
  (`Outcome.prediction_error`).
- A change that made the job worse by more than a tenth is taken back, once, and its algorithm is not asked again for
  this job. The probe is exempt: it is there to learn, not to gain.
- After each change its kind cools down. Who replaces a slow node and gains nothing by it leaves that place alone for a
  time, twice as long each time: it may be the work of that place that is slow.
- An ask that was granted in part is not repeated until the grant, the free room or the promise of the plan changes, or
  until that was long ago: not every platform tells of free room.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

from shoal.core.cleaning import SLACK, cleaned
from shoal.core.facts import JobFacts, Limits, NodeFacts, OomEvent, OptimizerSettings, RoleFacts
from shoal.core.nodes import Role
from shoal.core.optimizing import (
    ALL_BUSY,
    Canary,
    History,
    Kind,
    Outcome,
    Question,
    Replaced,
    ResourceOptimizer,
    Stage,
)
from shoal.core.plans import NodeGroupResource, NodeResource, ResourcePlan

KEPT_OUTCOMES = 20
CLOSE = 0.01
FIT_MOVED = 0.10
"""A plan whose predicted speed has changed by more than this is another plan."""
TOLD = 0.97
"""Workers whose own step times are more than this part of the job's wait for nobody, or do not tell."""
FORGOTTEN = 4.0
"""How many times as long as a place is left alone after a replacement in vain that replacement counts."""
LESS = 0.8
"""The part of what a node was asked to have, and did not get, that is asked for next."""
ROLL_BACK = "roll_back"
UNJUDGED = frozenset({"cold_start", "probe_workers", "recover_oom", "avoid_oom", "replace_slow", ROLL_BACK})
"""Made to learn or to survive, not to gain."""

NEXT: Mapping[Stage, Stage] = {
    Stage.CREATE: Stage.WORKER_INITIAL,
    Stage.WORKER_INITIAL: Stage.PS_INITIAL,
    Stage.PS_INITIAL: Stage.RUNNING,
    Stage.RUNNING: Stage.RUNNING,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Had:
    """What one role, or one node, had or is to have."""

    count: int = 1
    cpu: float | None = None
    memory: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pending:
    """A change that was asked for and not judged yet."""

    algorithm: str
    kind: Kind
    at: float
    asked: Mapping[str, Had]
    """By role."""
    before: Mapping[str, Had]
    asked_nodes: Mapping[str, Had] = field(default_factory=dict)
    """Of single nodes that are to differ from their role, by place: who takes one over has another name."""
    before_nodes: Mapping[str, Had] = field(default_factory=dict)
    """Of single nodes that differed, or are to, by place."""
    speed_before: float | None = None
    score_before: float | None = None
    predicted: float | None = None
    replaced: tuple[str, ...] = ()
    """The places of nodes that are replaced as they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trimmed:
    """An ask that was granted in part."""

    asked: Mapping[str, Had]
    asked_nodes: Mapping[str, Had] = field(default_factory=dict)
    granted: Mapping[str, Had]
    free_cpu: float | None
    free_memory: int | None
    predicted: float | None
    refused_cpu: Mapping[str, float] = field(default_factory=dict)
    """By role: the most cores of one node that were asked for and not given. Without a role whose cores were given, or
    not waited for."""
    at: float | None = None
    """When that was seen; None: it is no matter of room, and time does not change it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerState:
    """What a job remembers of its own sizing."""

    stage: Stage = Stage.CREATE
    since: float | None = None
    """When it entered the stage."""
    pending: Pending | None = None
    changed: Mapping[Kind, float] = field(default_factory=dict)
    """When each kind of change was last made."""
    outcomes: tuple[Outcome, ...] = ()
    distrusted: tuple[str, ...] = ()
    trimmed: Trimmed | None = None
    ooms_seen: tuple[str, ...] = ()
    """Nodes that ran out of memory and have been seen to, each with what it had: ids are not used again, and times are
    others after a clock was set."""
    canary: Canary | None = None
    replaced: Mapping[str, Replaced] = field(default_factory=dict)
    """By place: replacements of slow nodes that are not known to have helped."""
    changes: int = 0
    """Plans made after the first."""
    confidence: float | None = None
    """From 0 to 1: of the last fit of the job's speed by which the size was changed, or left; None: none yet."""
    reason: str = "nothing was decided yet"


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """What comes of one look."""

    state: OptimizerState
    plan: ResourcePlan | None = None
    """None: nothing is to be changed; the state's `reason` says why."""


class JobResourceOptimizer:
    """Walks one job through its stages, asking a `ResourceOptimizer`."""

    def __init__(self, optimizer: ResourceOptimizer, settings: OptimizerSettings | None = None) -> None:
        self._optimizer = optimizer
        self._settings = settings or OptimizerSettings()

    def turn(self, state: OptimizerState, facts: JobFacts, limits: Limits) -> Turn:
        """One look at the job. Safe to call at any time, twice, or late."""
        clean, note = cleaned(facts)
        state = self._without_old_refusal(_rebased(state, clean.now), clean.now)
        state = replace(state, canary=_better_known(state.canary, seen_canary(clean, self._settings)))
        turn = self._out_of_memory(state, clean, limits) or self._look(state, clean, limits)
        if note and turn.plan is None:
            return replace(turn, state=replace(turn.state, reason=f"{turn.state.reason}; {note}"))
        return turn

    def _look(self, state: OptimizerState, facts: JobFacts, limits: Limits) -> Turn:
        if state.stage is Stage.CREATE:
            return self._create(state, facts, limits)
        if facts.in_change:
            return _wait(state, "a change is under way: nodes start, drain or move")
        if state.pending is not None:
            return self._judged(state, state.pending, facts, limits)
        speed = _speed_since(facts, _settled(facts, self._settings), self._settings.min_samples)
        if speed is None:
            return _wait(state, f"fewer than {self._settings.min_samples} good samples since the last change")
        return self._ask(state, facts, limits)

    # The stages ------------------------------------------------------------------------------------------------

    def _create(self, state: OptimizerState, facts: JobFacts, limits: Limits) -> Turn:
        plan = self._optimizer.generate_opt_plan(Stage.CREATE, self._question(state, facts, limits))
        after = _entered(state, _next(Stage.CREATE, facts), facts.now, plan.reason)
        return Turn(state=after, plan=None if plan.is_empty else plan)

    def _ask(self, state: OptimizerState, facts: JobFacts, limits: Limits) -> Turn:
        plan = self._optimizer.generate_opt_plan(state.stage, self._question(state, facts, limits))
        if plan.confidence is not None:
            state = replace(state, confidence=plan.confidence)
        if plan.is_empty:
            if state.stage is Stage.RUNNING:
                return _wait(state, plan.reason)
            return Turn(state=_entered(state, _next(state.stage, facts), facts.now, plan.reason))
        refused = _trimmed_before(state, plan, facts, limits)
        if refused:
            return _wait(state, refused)
        return self._issue(state, plan, facts)

    def _issue(self, state: OptimizerState, plan: ResourcePlan, facts: JobFacts, kind: Kind | None = None) -> Turn:
        kind = kind or kind_of(plan, facts)
        speed = _speed_since(facts, _settled(facts, self._settings), 1)
        pending = Pending(
            algorithm=plan.algorithm or "plan",
            kind=kind,
            at=facts.now,
            asked=_asked(plan, facts),
            asked_nodes=_asked_nodes(plan, facts),
            before=_has(facts),
            before_nodes=_nodes_before(plan, facts),
            speed_before=speed,
            score_before=None if speed is None else speed / cost(facts, self._settings) ** _exponent(self._settings),
            predicted=plan.predicted_speed,
            replaced=tuple(node.place for node in facts.nodes if node.name in plan.replace_nodes),
        )
        after = replace(
            state,
            pending=pending,
            replaced={
                **state.replaced,
                **{
                    place: _once_more(state.replaced.get(place), facts.now, self._settings)
                    for place in pending.replaced
                },
            },
            changed={**state.changed, kind: facts.now},
            changes=state.changes + 1,
            reason=plan.reason,
        )
        if kind in (Kind.SIZE, Kind.HOT_PS) and state.stage is not Stage.RUNNING:
            after = _entered(after, _next(state.stage, facts), facts.now, plan.reason)
        return Turn(state=after, plan=plan)

    def _question(self, state: OptimizerState, facts: JobFacts, limits: Limits) -> Question:
        cooling = frozenset(
            kind for kind, at in state.changed.items() if 0.0 <= facts.now - at < self._settings.cool_down
        )
        history = History(
            outcomes=state.outcomes,
            distrusted=frozenset(state.distrusted),
            cooling=cooling,
            canary=state.canary,
            replaced=state.replaced,
        )
        return Question(
            facts=_as_granted(facts, limits, state.trimmed), limits=limits, history=history, settings=self._settings
        )

    def _without_old_refusal(self, state: OptimizerState, now: float) -> OptimizerState:
        at = None if state.trimmed is None else state.trimmed.at
        return state if at is None or now - at < self._settings.refusal_holds else replace(state, trimmed=None)

    # The rails -------------------------------------------------------------------------------------------------

    def _out_of_memory(self, state: OptimizerState, facts: JobFacts, limits: Limits) -> Turn | None:
        """Memory for nodes that ran out of it since the last look: that cannot wait for anything."""
        events = [event for event in facts.ooms if _name(event) not in state.ooms_seen]
        if not events:
            return None
        state = replace(state, ooms_seen=tuple(_name(event) for event in facts.ooms))
        question = self._question(state, facts, limits)
        plan = self._optimizer.generate_oom_recovery_plan(events, state.stage, question)
        return _wait(state, plan.reason) if plan.is_empty else self._issue(state, plan, facts, Kind.OOM)

    def _judged(self, state: OptimizerState, pending: Pending, facts: JobFacts, limits: Limits) -> Turn:
        if not _same(pending.asked, _has(facts)) or _unlike(pending.asked_nodes, facts):
            if facts.now - pending.at < self._settings.granted_within:
                return _wait(state, "what was asked for is not there yet")
            return _wait(_after_trim(state, pending, facts, limits), _trim_words(pending, facts))
        since = max(pending.at, facts.changed_at if facts.changed_at is not None else pending.at)
        speed = _speed_since(facts, since + self._settings.settle, self._settings.judge_samples)
        if speed is None:
            return _wait(state, f"the change by {pending.algorithm} is not measured yet")
        outcome = self._outcome(pending, facts, speed)
        took_back = outcome.rolled_back
        after = replace(
            state,
            pending=None,
            outcomes=(*state.outcomes, outcome)[-KEPT_OUTCOMES:],
            distrusted=(*state.distrusted, pending.algorithm) if took_back else state.distrusted,
            replaced=self._still_in_vain(state, pending, outcome),
        )
        if not took_back:
            return _wait(after, outcome_words(outcome))
        return self._issue(after, _roll_back(pending, facts, outcome), facts, Kind.ROLL_BACK)

    def _still_in_vain(self, state: OptimizerState, pending: Pending, outcome: Outcome) -> Mapping[str, Replaced]:
        """Without the places whose change has helped."""
        if outcome.gain < self._settings.worth:
            return state.replaced
        return {place: each for place, each in state.replaced.items() if place not in pending.replaced}

    def _outcome(self, pending: Pending, facts: JobFacts, speed: float) -> Outcome:
        score = speed / cost(facts, self._settings) ** _exponent(self._settings)
        gain = score / pending.score_before - 1.0 if pending.score_before else 0.0
        return Outcome(
            algorithm=pending.algorithm,
            at=facts.now,
            before=pending.speed_before or speed,
            measured=speed,
            predicted=pending.predicted,
            gain=gain,
            rolled_back=gain < -self._settings.worse and pending.algorithm not in UNJUDGED,
        )


# What a job has and costs ------------------------------------------------------------------------------------------


def cost(facts: JobFacts, settings: OptimizerSettings) -> float:
    """Of all that the job holds, in the settings' units."""
    total = 0.0
    for role, known in facts.roles.items():
        total += known.count * _node_cost(known.resource, settings)
        total += sum(
            _node_cost(node.resource, settings) - _node_cost(known.resource, settings)
            for node in facts.nodes
            if node.role is role and _is_odd(node, facts)
        )
    return max(total, 1e-9)


def _node_cost(resource: NodeResource, settings: OptimizerSettings) -> float:
    return (
        (resource.cpu if resource.cpu is not None else 1.0) * settings.cost_per_core
        + (resource.memory or 0) / 1024.0 * settings.cost_per_gib
        + (resource.gpu_num or 0) * settings.cost_per_gpu
    )


def _exponent(settings: OptimizerSettings) -> float:
    return settings.marginal_speedup


def kind_of(plan: ResourcePlan, facts: JobFacts) -> Kind:
    """What a plan is about, by what it changes."""
    for name, group in plan.node_group_resources.items():
        known = facts.roles.get(Role(name))
        if known is None or known.count != group.count or not _close(known.resource.cpu, group.node_resource.cpu):
            return Kind.SIZE
        if any(
            node.role == name and node.name not in plan.node_resources and _is_odd_cpu(node, known)
            for node in facts.nodes
        ):
            return Kind.SIZE
    if plan.node_resources:
        return Kind.HOT_PS
    return Kind.REPLACE if plan.replace_nodes else Kind.MEMORY


def _has(facts: JobFacts) -> dict[str, Had]:
    return {
        role.value: Had(count=known.count, cpu=known.resource.cpu, memory=known.resource.memory)
        for role, known in facts.roles.items()
    }


def _asked(plan: ResourcePlan, facts: JobFacts) -> dict[str, Had]:
    groups = {
        name: Had(count=group.count, cpu=group.node_resource.cpu, memory=group.node_resource.memory)
        for name, group in plan.node_group_resources.items()
    }
    return {**_has(facts), **groups}


def _asked_nodes(plan: ResourcePlan, facts: JobFacts) -> dict[str, Had]:
    wanted = {node.place: plan.node_resources[node.name] for node in facts.nodes if node.name in plan.node_resources}
    return {place: Had(cpu=each.cpu, memory=each.memory) for place, each in wanted.items()}


def _unlike(asked: Mapping[str, Had], facts: JobFacts) -> list[str]:
    """The places whose nodes have not what was asked for them. Where nobody is any more, nothing is missing."""
    has = {node.place: node.resource for node in facts.nodes}  # of two in one place the newer
    return [
        place
        for place, had in asked.items()
        if place in has and not (_close(had.cpu, has[place].cpu) and _close(had.memory, has[place].memory))
    ]


def _nodes_before(plan: ResourcePlan, facts: JobFacts) -> dict[str, Had]:
    """What nodes have that differ from their role, or would by the plan."""
    return {
        node.place: Had(cpu=node.resource.cpu, memory=node.resource.memory)
        for node in facts.nodes
        if node.name in plan.node_resources or _is_odd(node, facts)
    }


def _is_odd_cpu(node: NodeFacts, known: RoleFacts) -> bool:
    return not _close(node.resource.cpu, known.resource.cpu)


def _is_odd(node: NodeFacts, facts: JobFacts) -> bool:
    known = facts.roles.get(node.role)
    return known is not None and node.resource is not known.resource and node.resource != known.resource


def _same(one: Mapping[str, Had], other: Mapping[str, Had]) -> bool:
    return one.keys() == other.keys() and all(
        each.count == other[role].count
        and _close(each.cpu, other[role].cpu)
        and _close(each.memory, other[role].memory)
        for role, each in one.items()
    )


def _close(one: float | None, other: float | None) -> bool:
    if one is None or other is None:
        return one is other
    return abs(one - other) <= CLOSE * max(abs(one), abs(other))


# What was measured -------------------------------------------------------------------------------------------------


def _settled(facts: JobFacts, settings: OptimizerSettings) -> float:
    return -math.inf if facts.changed_at is None else facts.changed_at + settings.settle


def seen_canary(facts: JobFacts, settings: OptimizerSettings) -> Canary | None:
    """How many cores workers keep busy while they compute.

    A worker that has more cores than its role is compared with the others by its own step times. Where all have the
    same, what they use in a step is divided by the time in which they compute."""
    usual = facts.workers.resource.cpu
    if usual is None or facts.in_change or facts.changed_at is None:
        return None
    since = facts.changed_at + settings.settle
    workers = [node for node in facts.nodes if node.role is Role.WORKER]
    others = [node for node in workers if node.resource.cpu == usual]
    theirs = _own_times(others, since)
    if len(theirs) < settings.min_samples:
        return None
    odd = [node for node in workers if (node.resource.cpu or 0.0) > usual * (1.0 + CLOSE)]
    if not odd:
        return _alike(facts, usual, median(theirs), since, settings)
    own = _own_times(odd[:1], since)
    if len(own) < settings.min_samples:
        return None
    tried = odd[0].resource.cpu or usual
    return Canary(tried=tried, busy=min(tried, usual * max(1.0, median(theirs) / median(own))))


def _alike(facts: JobFacts, cpu: float, own: float, since: float, settings: OptimizerSettings) -> Canary | None:
    recent = [s for s in facts.speeds[-settings.max_samples :] if s.at >= since and s.worker_cpu_used is not None]
    if len(recent) < settings.min_samples:
        return None
    # Core-seconds, and seconds, of a step.
    used = median((sample.worker_cpu_used or 0.0) * sample.step_seconds for sample in recent)
    step = median(sample.step_seconds for sample in recent)
    if used / step >= ALL_BUSY * cpu:
        return Canary(tried=cpu, busy=cpu)
    if facts.is_ps or own > TOLD * step:  # waiting for parameter servers is told as part of a worker's own step
        return None
    return Canary(tried=cpu, busy=min(cpu, used / own))


def _better_known(before: Canary | None, now: Canary | None) -> Canary | None:
    """Who had more cores has shown more."""
    return before if now is None or (before is not None and before.tried > now.tried * (1.0 + CLOSE)) else now


def _own_times(nodes: Sequence[NodeFacts], since: float) -> list[float]:
    return [s.step_seconds for node in nodes for s in node.samples if s.at >= since and s.step_seconds is not None]


def _speed_since(facts: JobFacts, since: float, least: int) -> float | None:
    found: list[float] = []
    for sample in reversed(facts.speeds):
        if sample.at < since or len(found) >= 60:
            break
        found.append(sample.samples_per_second)
    return median(found) if len(found) >= least else None


# Steps -------------------------------------------------------------------------------------------------------------


def _next(stage: Stage, facts: JobFacts) -> Stage:
    after = NEXT[stage]
    return NEXT[after] if after is Stage.PS_INITIAL and not facts.is_ps else after


def _entered(state: OptimizerState, stage: Stage, now: float, reason: str) -> OptimizerState:
    return replace(state, stage=stage, since=now, reason=reason)


def _wait(state: OptimizerState, reason: str) -> Turn:
    return Turn(state=replace(state, reason=reason))


def _once_more(before: Replaced | None, now: float, settings: OptimizerSettings) -> Replaced:
    """One that was well for long after it had been left alone is another case."""
    is_old = before is None or now - before.at > FORGOTTEN * before.rest(settings)
    return Replaced(times=1 if before is None or is_old else before.times + 1, at=now)


def _rebased(state: OptimizerState, now: float) -> OptimizerState:
    """A clock that jumped back must not make the job wait for a time that may never come."""
    ahead = now + SLACK
    pending = state.pending
    if pending is not None and pending.at > ahead:
        pending = replace(pending, at=now)
    changed = {kind: min(at, now) if at > ahead else at for kind, at in state.changed.items()}
    trimmed = state.trimmed
    if trimmed is not None and trimmed.at is not None and trimmed.at > ahead:
        trimmed = replace(trimmed, at=now)
    replaced = {place: replace(each, at=min(each.at, now)) for place, each in state.replaced.items()}
    return replace(state, pending=pending, changed=changed, trimmed=trimmed, replaced=replaced)


def _name(event: OomEvent) -> str:
    return f"{event.node} with {event.memory} MiB"


def given_up(state: OptimizerState, why: str) -> OptimizerState:
    """The state when what is under way is somebody else's now, or cannot be had. It is not judged, and not asked for
    again as long as the job is what it is."""
    pending = state.pending
    if pending is None:
        return replace(state, reason=why)
    trimmed = Trimmed(
        asked=pending.asked,
        asked_nodes=pending.asked_nodes,
        granted=pending.before,
        free_cpu=None,
        free_memory=None,
        predicted=pending.predicted,
    )
    return replace(state, pending=None, trimmed=trimmed, reason=why)


def given_back(state: OptimizerState) -> OptimizerState:
    """The state when what was somebody else's is the optimizer's again: what was given up for that may be asked for."""
    return replace(state, trimmed=None) if state.trimmed is not None and state.trimmed.at is None else state


def _roll_back(pending: Pending, facts: JobFacts, outcome: Outcome) -> ResourcePlan:
    has, changed = _has(facts), _unlike(pending.before_nodes, facts)
    groups = {
        role: NodeGroupResource(count=max(1, each.count), node_resource=_with(facts.roles[Role(role)].resource, each))
        for role, each in pending.before.items()
        if role in has and not _same({role: each}, {role: has[role]})
    }
    return ResourcePlan(
        node_group_resources=groups,
        node_resources={
            node.name: _with(node.resource, pending.before_nodes[node.place])
            for node in {node.place: node for node in facts.nodes}.values()
            if node.place in pending.before_nodes and (node.place in changed or node.role.value in groups)
        },
        reason=f"taken back: {outcome_words(outcome)}",
        algorithm=ROLL_BACK,
        predicted_speed=pending.speed_before,
    )


def _with(resource: NodeResource, had: Had) -> NodeResource:
    return replace(resource, cpu=had.cpu, memory=had.memory)


def outcome_words(outcome: Outcome) -> str:
    """What came of a change, for people."""
    error = outcome.prediction_error
    told = "" if error is None else f", predicted {outcome.predicted:.4g} ({error:+.0%})"
    return (
        f"{outcome.algorithm} took the job from {outcome.before:.4g} to {outcome.measured:.4g} samples/s{told}, "
        f"{outcome.gain:+.0%} speed per cost"
    )


def _after_trim(state: OptimizerState, pending: Pending, facts: JobFacts, limits: Limits) -> OptimizerState:
    trimmed = Trimmed(
        asked=pending.asked,
        asked_nodes=pending.asked_nodes,
        granted=_has(facts),
        free_cpu=limits.free_cpu,
        free_memory=limits.free_memory,
        predicted=pending.predicted,
        refused_cpu=_refused_cpu(pending, facts),
        at=facts.now,
    )
    return replace(state, pending=None, trimmed=trimmed)


def _refused_cpu(pending: Pending, facts: JobFacts) -> dict[str, float]:
    has = {**_has(facts), **{node.place: Had(cpu=node.resource.cpu) for node in facts.nodes}}
    roles = {node.place: node.role.value for node in facts.nodes}
    refused: dict[str, float] = {}
    for where, each in {**pending.asked, **pending.asked_nodes}.items():
        if each.cpu is not None and where in has and (has[where].cpu or math.inf) < each.cpu * (1.0 - CLOSE):
            role = roles.get(where, where)
            refused[role] = max(refused.get(role, 0.0), each.cpu)
    return refused


def _as_granted(facts: JobFacts, limits: Limits, trimmed: Trimmed | None) -> JobFacts:
    """The facts, with how many cores a node may have of a role for which an ask has shown that no host has room for
    more, as long as the room is as it was then. What its nodes have is never too much."""
    if trimmed is None or not trimmed.refused_cpu:
        return facts
    if (trimmed.free_cpu, trimmed.free_memory) != (limits.free_cpu, limits.free_memory):
        return facts
    roles = {
        role: replace(known, roomy_cpu=max(LESS * trimmed.refused_cpu[role.value], _most_had(facts, role)))
        for role, known in facts.roles.items()
        if role.value in trimmed.refused_cpu
    }
    return replace(facts, roles={**facts.roles, **roles})


def _most_had(facts: JobFacts, role: Role) -> float:
    own = (node.resource.cpu or 0.0 for node in facts.nodes if node.role is role)
    return max(facts.roles[role].resource.cpu or 0.0, *own, 0.0)


def _trim_words(pending: Pending, facts: JobFacts) -> str:
    has = _has(facts)
    differing = [
        f"{role}: {each.count} asked, {has[role].count} granted" if each.count != has[role].count else f"{role}: less"
        for role, each in pending.asked.items()
        if role in has and not _same({role: each}, {role: has[role]})
    ]
    differing += [f"{place}: as it was" for place in _unlike(pending.asked_nodes, facts)]
    return f"the ask of {pending.algorithm} was granted in part ({'; '.join(differing)}) and is not judged"


def _trimmed_before(state: OptimizerState, plan: ResourcePlan, facts: JobFacts, limits: Limits) -> str | None:
    """Why this plan would only repeat an ask that was trimmed; None: something has changed since."""
    before = state.trimmed
    if before is None or not _same(before.asked, _asked(plan, facts)):
        return None
    if not _same(before.asked_nodes, _asked_nodes(plan, facts)):
        return None
    if not _same(before.granted, _has(facts)):
        return None
    if (before.free_cpu, before.free_memory) != (limits.free_cpu, limits.free_memory):
        return None
    if before.predicted is not None and plan.predicted_speed is not None:
        moved = abs(plan.predicted_speed - before.predicted) / max(before.predicted, 1e-9)
        if moved > FIT_MOVED:
            return None
    return "the same was asked for and granted in part; grant, free room and prediction are as they were"
