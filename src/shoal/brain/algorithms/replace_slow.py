"""`replace_slow`: a node that is much slower than the others, for long, is replaced on another host.

Its own step time is compared, without the time it waits for others, so that in all-reduce the one that holds the ring
up is found and not those that wait for it. Where all are slow none is.
"""

from statistics import median

from shoal.brain.algorithms.proposing import nothing, proposed
from shoal.core.cleaning import cleaned
from shoal.core.facts import JobFacts, Limits, NodeFacts, OptimizerSettings
from shoal.core.nodes import Role
from shoal.core.optimizing import History
from shoal.core.plans import ResourcePlan

NAME = "replace_slow"
FEWEST = 3
"""Workers without which there is no median worth the name."""


def replace_slow(facts: JobFacts, history: History, limits: Limits, settings: OptimizerSettings) -> ResourcePlan:
    facts, note = cleaned(facts)
    since = facts.now - settings.slow_seconds
    means = {}
    for node in facts.nodes:
        times = _recent(node, since) if node.role in (Role.WORKER, Role.CHIEF) else []
        if times:
            means[node.name] = median(times)
    if len(means) < FEWEST:
        why = f"{len(means)} workers told their own step times: too few to find a slow one among"
        return nothing(NAME, f"{why}; {note}" if note else why)
    usual = median(means.values())
    slow = [node for node in facts.nodes if node.name in means and _is_slow(node, usual, since, settings)]
    if not slow:
        why = f"no worker took more than {settings.slow_factor:g} times the usual {usual:.3g} s for a step"
        return nothing(NAME, f"{why}; {note}" if note else why)
    worst = max(slow, key=lambda node: (means[node.name], node.name))
    where = f" on {worst.host}" if worst.host else ""
    reason = (
        f"{worst.name}{where} took {means[worst.name]:.3g} s for a step for {settings.slow_seconds:.0f} s, "
        f"{means[worst.name] / usual:.1f} times the usual {usual:.3g} s: replaced elsewhere"
    )
    return proposed(NAME, facts, limits, settings, {}, replace=(worst.name,), reason=reason)


def _recent(node: NodeFacts, since: float) -> list[float]:
    return [s.step_seconds for s in node.samples if s.at >= since and s.step_seconds is not None]


def _is_slow(node: NodeFacts, usual: float, since: float, settings: OptimizerSettings) -> bool:
    """All the time, and watched all the time."""
    if node.since > since:
        return False
    times = _recent(node, since)
    return len(times) >= 2 and all(each > settings.slow_factor * usual for each in times)
