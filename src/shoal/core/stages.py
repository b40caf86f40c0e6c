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
- After each change its kind cools down.
- An ask that was granted in part is not repeated until the grant, the free room or the promise of the plan changes.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

from shoal.core.cleaning import SLACK, cleaned
from shoal.core.facts import JobFacts, Limits, NodeFacts, OomEvent, OptimizerSettings, RoleFacts
from shoal.core.nodes import Role
from shoal.core.optimizing import Canary, History, Kind, Outcome, Question, ResourceOptimizer, Stage
from shoal.core.plans import NodeGroupResource, NodeResource, ResourcePlan

KEPT_OUTCOMES = 20
CLOSE = 0.01
FIT_MOVED = 0.10
"""A plan whose predicted speed has changed by more than this is another plan."""
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
    before_nodes: Mapping[str, Had] = field(default_factory=dict)
    """Of single nodes that differ from their role."""
    speed_before: float | None = None
    score_before: float | None = None
    predicted: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Trimmed:
    """An ask that was granted in part."""

    asked: Mapping[str, Had]
    granted: Mapping[str, Had]
    free_cpu: float | None
    free_memory: int | None
    predicted: float | None


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
    """Nodes that ran out of memory and have been seen to, each with when: a clock that jumps does not matter."""
    canary: Canary | None = None
    changes: int = 0
    """Plans made after the first."""
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
        state = _rebased(state, clean.now)
        state = replace(state, canary=seen_canary(clean, self._settings) or state.canary)
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
            before=_has(facts),
            before_nodes=_nodes_before(plan, facts),
            speed_before=speed,
            score_before=None if speed is None else speed / cost(facts, self._settings) ** _exponent(self._settings),
            predicted=plan.predicted_speed,
        )
        after = replace(
            state,
            pending=pending,
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
        )
        return Question(facts=facts, limits=limits, history=history, settings=self._settings)

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
        if not _same(pending.asked, _has(facts)):
            if facts.now - pending.at < self._settings.settle:
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
        )
        if not took_back:
            return _wait(after, outcome_words(outcome))
        return self._issue(after, _roll_back(pending, facts, outcome), facts, Kind.ROLL_BACK)

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


def _nodes_before(plan: ResourcePlan, facts: JobFacts) -> dict[str, Had]:
    """What nodes have that differ from their role, or would by the plan."""
    return {
        node.name: Had(cpu=node.resource.cpu, memory=node.resource.memory)
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
    """A worker that has more cores than its role, compared with the others by its own step times."""
    usual = facts.workers.resource.cpu
    if usual is None or facts.in_change or facts.changed_at is None:
        return None
    since = facts.changed_at + settings.settle
    odd = [n for n in facts.nodes if n.role is Role.WORKER and (n.resource.cpu or 0.0) > usual * (1.0 + CLOSE)]
    if not odd:
        return None
    others = [n for n in facts.nodes if n.role is Role.WORKER and n.resource.cpu == usual]
    own, theirs = _own_times(odd[:1], since), _own_times(others, since)
    if len(own) < settings.min_samples or len(theirs) < settings.min_samples:
        return None
    tried = odd[0].resource.cpu or usual
    return Canary(tried=tried, busy=min(tried, usual * max(1.0, median(theirs) / median(own))))


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


def _rebased(state: OptimizerState, now: float) -> OptimizerState:
    """A clock that jumped back must not make the job wait for a time that may never come."""
    ahead = now + SLACK
    pending = state.pending
    if pending is not None and pending.at > ahead:
        pending = replace(pending, at=now)
    changed = {kind: min(at, now) if at > ahead else at for kind, at in state.changed.items()}
    return replace(state, pending=pending, changed=changed)


def _name(event: OomEvent) -> str:
    return f"{event.node} at {event.at}"


def _roll_back(pending: Pending, facts: JobFacts, outcome: Outcome) -> ResourcePlan:
    has = _has(facts)
    return ResourcePlan(
        node_group_resources={
            role: NodeGroupResource(
                count=max(1, each.count), node_resource=_with(facts.roles[Role(role)].resource, each)
            )
            for role, each in pending.before.items()
            if role in has and not _same({role: each}, {role: has[role]})
        },
        node_resources={
            node.name: _with(node.resource, pending.before_nodes[node.name])
            for node in facts.nodes
            if node.name in pending.before_nodes
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
        granted=_has(facts),
        free_cpu=limits.free_cpu,
        free_memory=limits.free_memory,
        predicted=pending.predicted,
    )
    return replace(state, pending=None, trimmed=trimmed)


def _trim_words(pending: Pending, facts: JobFacts) -> str:
    has = _has(facts)
    differing = [
        f"{role}: {each.count} asked, {has[role].count} granted" if each.count != has[role].count else f"{role}: less"
        for role, each in pending.asked.items()
        if role in has and not _same({role: each}, {role: has[role]})
    ]
    return f"the ask of {pending.algorithm} was granted in part ({'; '.join(differing)}) and is not judged"


def _trimmed_before(state: OptimizerState, plan: ResourcePlan, facts: JobFacts, limits: Limits) -> str | None:
    """Why this plan would only repeat an ask that was trimmed; None: something has changed since."""
    before = state.trimmed
    if before is None or not _same(before.asked, _asked(plan, facts)):
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
