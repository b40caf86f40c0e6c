"""The grant: how many members a job may have now. The one place that decides it.

The scheduler's allowance trims what is asked for: workers to as many as it allows, parameter servers to as many as go
with those. Where no scheduler arbitrates everything is granted; where it has not decided yet the job keeps what it has.
Whoever creates or removes members looks at the grant, and neither at the asks nor at the allowance.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from shoal.api.elasticjob import Role
from shoal.operator.allowances import Allowance
from shoal.operator.asks import ROLES, Asks
from shoal.operator.memory import Grant
from shoal.operator.settings import JobTimes


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """What the scheduler says of a job."""

    is_scheduled: bool = False
    allowance: Allowance | None = None
    """None: nothing yet."""

    def held(self, asked: Mapping[Role, int], before: Mapping[Role, int]) -> dict[Role, int]:
        """As many of what is asked for as are allowed; `before` is what it has, replacements not counted.

        Parameter servers follow the workers, upwards and downwards. None is taken from a job for that: the master moves
        what it holds first, and lets it go then (`servers`)."""
        if not self.is_scheduled:
            return dict(asked)
        allowance = self.allowance
        if allowance is None:
            return {role: min(count, before.get(role, 0)) for role, count in asked.items()}
        if not allowance.is_admitted:
            return dict.fromkeys(asked, 0)
        held = dict(asked)
        if Role.WORKER in held:
            held[Role.WORKER] = min(held[Role.WORKER], allowance.standing.target)
        if Role.PS in held:  # servers that it has not counted yet are none that it has found room for
            servers = before.get(Role.PS, 0) if allowance.servers is None else allowance.servers
            held[Role.PS] = min(held[Role.PS], servers)
        return held

    @property
    def victims(self) -> tuple[str, ...]:
        return () if self.allowance is None else self.allowance.victims

    @property
    def reason(self) -> str:
        if self.allowance is None:
            return "the scheduler has not decided yet"
        return self.allowance.reason or "the scheduler allows no more"


UNLIMITED = Limit()
NOBODY: Mapping[Role, int] = {}


def decide_grant(
    before: Grant,
    asks: Asks,
    *,
    limit: Limit = UNLIMITED,
    kept: Mapping[Role, int] | None = None,
    surge: Mapping[Role, int],
    victims: tuple[str, ...],
    live: Mapping[Role, int],
    replaced: Mapping[Role, int] = NOBODY,
    suspended: bool,
    times: JobTimes,
    now: datetime,
) -> Grant:
    """Grant what is asked for as far as it is allowed, and one more for each replacement that has not taken its place
    yet. `suspended`: by its owner. `kept`: the seats there are, but for replacements; None: as granted before.
    `replaced`: how many have a seat although their replacement runs. They go first: a job that may grow meanwhile grows
    after that, or what is granted would be what there is, and they would stay for good."""
    asked = {role: want.count for role, want in asks.roles.items() if want.count is not None}
    kept = before.counts if kept is None else kept
    held = dict.fromkeys(asked, 0) if suspended else limit.held(asked, kept)
    first = {role: min(count, kept.get(role, 0)) if replaced.get(role) else count for role, count in held.items()}
    rests = suspended or not any(held.values())
    counts = {role: first[role] + (0 if rests else surge.get(role, 0)) for role in ROLES if role in held}
    victims = () if rests else victims
    if before.generation == 0 and rests and not suspended:
        return before  # it was never granted anything: waiting is not worth a grant
    too_many = any(replaced.values()) or any(live.get(role, 0) > count for role, count in counts.items())
    if (counts, victims) == (dict(before.counts), before.victims):
        drain_by = (before.drain_by or now + times.drain) if too_many else None
        return before if drain_by == before.drain_by else replace(before, drain_by=drain_by)
    return Grant(
        generation=before.generation + 1,
        counts=counts,
        victims=victims,
        drain_by=now + times.drain if too_many else None,
        reason=_reason(before, asks, limit, counts, held, first, {} if rests else surge, suspended=suspended),
    )


def _reason(
    before: Grant,
    asks: Asks,
    limit: Limit,
    counts: Mapping[Role, int],
    held: Mapping[Role, int],
    first: Mapping[Role, int],
    surge: Mapping[Role, int],
    *,
    suspended: bool,
) -> str:
    if suspended:
        return "the job is suspended"
    changed = [role for role in counts if counts[role] != before.counts.get(role)]
    words = [asks.roles[role].reason for role in changed or counts if asks.roles[role].reason]
    if any(held[role] < (asks.roles[role].count or 0) for role in changed or counts):
        words.append(limit.reason)
    words += [f"those of {role} that were replaced go first" for role in ROLES if first.get(role) != held.get(role)]
    words += [f"{count} more of {role} while a replacement starts" for role, count in sorted(surge.items())]
    return "; ".join(dict.fromkeys(words))
