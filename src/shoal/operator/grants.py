"""The grant: how many members a job may have now. The one place that decides it.

Until a scheduler arbitrates between jobs everything that is asked for is granted. The scheduler will replace
`decide_grant` and nothing else: whoever creates or removes members looks at the grant and not at the asks.
"""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime

from shoal.api.elasticjob import Role
from shoal.operator.asks import ROLES, Asks
from shoal.operator.memory import Grant
from shoal.operator.settings import JobTimes


def decide_grant(
    before: Grant,
    asks: Asks,
    *,
    surge: Mapping[Role, int],
    victims: tuple[str, ...],
    live: Mapping[Role, int],
    suspended: bool,
    times: JobTimes,
    now: datetime,
) -> Grant:
    """Grant what is asked for, and one more for each replacement that has not taken its place yet."""
    asked = {role: want.count for role, want in asks.roles.items() if want.count is not None}
    counts = {role: 0 if suspended else asked[role] + surge.get(role, 0) for role in ROLES if role in asked}
    victims = () if suspended else victims
    too_many = any(live.get(role, 0) > count for role, count in counts.items())
    if (counts, victims) == (dict(before.counts), before.victims):
        drain_by = (before.drain_by or now + times.drain) if too_many else None
        return before if drain_by == before.drain_by else replace(before, drain_by=drain_by)
    return Grant(
        generation=before.generation + 1,
        counts=counts,
        victims=victims,
        drain_by=now + times.drain if too_many else None,
        reason=_reason(before, asks, counts, surge, suspended=suspended),
    )


def _reason(
    before: Grant, asks: Asks, counts: Mapping[Role, int], surge: Mapping[Role, int], *, suspended: bool
) -> str:
    if suspended:
        return "the job is suspended"
    changed = [role for role in counts if counts[role] != before.counts.get(role)]
    words = [asks.roles[role].reason for role in changed or counts if asks.roles[role].reason]
    words += [f"{count} more of {role} while a replacement starts" for role, count in sorted(surge.items())]
    return "; ".join(dict.fromkeys(words))
