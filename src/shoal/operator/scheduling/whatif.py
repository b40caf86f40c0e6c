"""What would become of a job, and of the others, if it were applied now. Pure: nothing is asked and nothing is done.

The production policy is run on the cluster as it is, with the one job more, and its decisions are carried out on paper:
Pods that have to go are gone after their grace, Pods that may come run at once where they were planned. That is
repeated round by round until the job is admitted, or for as long as somebody wants to know. In step with it the same is
done without the job: what would have come to the others anyway is no doing of it. Nobody ends meanwhile and nobody else
comes, so an answer is a guess, and on the safe side.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from shoal.core.hosts import Amounts, PodUse
from shoal.operator.scheduling.facts import JobFacts
from shoal.operator.scheduling.ledger import filled
from shoal.operator.scheduling.round import Holding, Known, Round, begin, conclude
from shoal.scheduler.decisions import Action, Change, Decisions, Wait
from shoal.scheduler.policies import Policy
from shoal.scheduler.rows import JobKey, Room, Seconds
from shoal.scheduler.settings import SchedulerSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """Another job that would have less."""

    key: JobKey
    before: int
    """What it would have by then without the job."""
    after: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    starts_in: Seconds | None
    """None: not within the time that was looked at."""
    trainers: int = 0
    """With how many it would start."""
    reason: str = ""
    place: int | None = None
    """In the queue, now; None: it would not wait."""
    waits_for: str = ""
    effects: tuple[Effect, ...] = ()
    """Who would have less by then than without it."""


def what_if(
    known: Known,
    pods: Iterable[PodUse],
    job: JobFacts,
    policy: Policy,
    settings: SchedulerSettings,
    *,
    min_v: float = 0.0,
    now: Seconds,
    horizon: Seconds = 3_600.0,
) -> Answer:
    """`pods` are those that `known` has counted."""
    uses = {pod.uid: pod for pod in pods}
    without, with_it = _Paper(known, uses, min_v), _Paper(replace(known, facts=[*known.facts, job]), uses, min_v)
    at, first, gave = now, None, dict[JobKey, Change]()
    while True:
        without.round(policy, settings, at)
        decisions = with_it.round(policy, settings, at)
        wait = next((each for each in decisions.waits if each.key == job.key), None)
        first = first or wait
        gave |= {change.key: change for change in decisions.changes if change.target < change.before}
        mine = next((each for each in decisions.changes if each.key == job.key), None)
        if mine is not None and mine.action is Action.ADMIT:
            return _answer(mine, first, _effects(gave, without.targets(), with_it.targets()), at - now)
        at += settings.interval
        if at > now + horizon:
            return _answer(None, first, _effects(gave, without.targets(), with_it.targets()), None)


def _effects(
    gave: Mapping[JobKey, Change], without: Mapping[JobKey, int], with_it: Mapping[JobKey, int]
) -> tuple[Effect, ...]:
    """Who has given something up, and has less by now than it would have at the same time without the job."""
    return tuple(
        Effect(key=key, before=without[key], after=with_it[key], reason=gave[key].reason.text)
        for key in sorted(gave)
        if key in without and with_it[key] < without[key]
    )


def _answer(
    change: Change | None, first: Wait | None, effects: tuple[Effect, ...], starts_in: Seconds | None
) -> Answer:
    return Answer(
        starts_in=starts_in,
        trainers=change.target if change is not None else 0,
        reason=change.reason.text if change is not None else "",
        place=first.place if first is not None else None,
        waits_for=first.reason.text if first is not None else "",
        effects=effects,
    )


class _Paper:
    """A cluster on which decisions are carried out by writing down what would follow."""

    def __init__(self, known: Known, uses: Mapping[str, PodUse], min_v: float) -> None:
        self._known, self._uses, self._min_v = known, dict(uses), min_v
        self._holding: Holding = {}
        self._made = 0

    def targets(self) -> dict[JobKey, int]:
        return {key: held.allowance.standing.target for key, held in self._holding.items()}

    def round(self, policy: Policy, settings: SchedulerSettings, now: Seconds) -> Decisions:
        self._uses = {uid: use for uid, use in self._uses.items() if use.ends is None or use.ends > now}
        ledger = filled(self._uses.values(), knows_hosts=self._known.hosts is not None)
        taken_up = begin(replace(self._known, ledger=ledger), self._holding, self._min_v, settings, now=now)
        decisions = policy(taken_up.snapshot, now, settings)
        outcome = conclude(taken_up, decisions, now=now)
        self._holding, self._min_v = outcome.holding, decisions.min_v
        for change in outcome.carried_out:
            self._carry_out(taken_up, change, now)
        return decisions

    def _carry_out(self, taken_up: Round, change: Change, now: Seconds) -> None:
        facts = taken_up.facts[change.key]
        held = self._holding[change.key].allowance
        gone = [
            use
            for use in self._uses.values()
            if use.job == facts.uid and use.ends is None and (change.target == 0 or use.name in held.victims)
        ]
        for use in gone:
            self._uses[use.uid] = replace(use, ends=now + facts.drain + facts.grace)
        for host, count in change.hosts.items():
            self._come(facts, facts.trainer_role, facts.each, host, count, now)
        rooms = {part.role: part.each for part in facts.fixed}
        if facts.servers is not None:
            rooms[facts.server_role] = facts.servers.each
        for role, hosts in change.fixed_hosts.items():
            for host, count in hosts.items():
                self._come(facts, role, rooms.get(role, facts.each), host, count, now)

    def _come(self, facts: JobFacts, role: str, each: Room, host: str, count: int, now: Seconds) -> None:
        for _ in range(count):
            self._made += 1
            name = f"paper-{self._made}"
            self._uses[name] = PodUse(
                namespace=facts.key.namespace,
                name=name,
                uid=name,
                amounts=Amounts(*each),
                job=facts.uid,
                role=role,
                host=host,
                runs=True,
                is_ready=True,
                since=now,
            )
