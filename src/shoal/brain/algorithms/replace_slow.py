"""`replace_slow`: a node that is much slower than the others, for long, is replaced on another host.

Its own step time is compared, without the time it waits for others, so that in all-reduce the one that holds the ring
up is found and not those that wait for it. Of two, the slower one is compared with the other. Where all are slow none
is.

A node that takes the place of a slow one and is as slow may have the same work to do, and not the same host: when a
replacement brought the job nothing, whoever is in that place is left alone, each time for twice as long.
"""

from collections.abc import Collection
from statistics import median

from shoal.brain.algorithms.proposing import nothing, proposed
from shoal.core.cleaning import cleaned
from shoal.core.facts import JobFacts, Limits, NodeFacts, OptimizerSettings
from shoal.core.nodes import Role
from shoal.core.optimizing import History
from shoal.core.plans import ResourcePlan

NAME = "replace_slow"
FEWEST = 2
"""Workers without which there is nobody to compare with."""
PATIENCE = 2.0
"""How many times as long as it takes to replace one nothing else is concluded while a worker is slow."""


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
    usual = _usual(means.values())
    slow = [node for node in facts.nodes if node.name in means and _is_slow(node, usual, since, settings)]
    if not slow:
        why = f"no worker took more than {settings.slow_factor:g} times the usual {usual:.3g} s for a step"
        return nothing(NAME, f"{why}; {note}" if note else why)
    resting = {node.name: left for node in slow if (left := _rests(node, facts, history, settings)) > 0.0}
    if len(resting) == len(slow):
        told = [_left_alone(node, means[node.name] / usual, resting[node.name], history) for node in slow]
        return nothing(NAME, "; ".join([*told, note] if note else told))
    worst = max((node for node in slow if node.name not in resting), key=lambda node: (means[node.name], node.name))
    where = f" on {worst.host}" if worst.host else ""
    reason = (
        f"{worst.name}{where} took {means[worst.name]:.3g} s for a step for {settings.slow_seconds:.0f} s, "
        f"{means[worst.name] / usual:.1f} times the usual {usual:.3g} s: replaced elsewhere"
    )
    return proposed(NAME, facts, limits, settings, {}, replace=(worst.name,), reason=reason)


def _rests(node: NodeFacts, facts: JobFacts, history: History, settings: OptimizerSettings) -> float:
    """For how many seconds yet its place is left alone."""
    before = history.replaced.get(node.place)
    return 0.0 if before is None else before.at + before.rest(settings) - facts.now


def _left_alone(node: NodeFacts, times: float, left: float, history: History) -> str:
    tried = history.replaced[node.place].times
    how_often = "once" if tried == 1 else f"{tried} times"
    return (
        f"{node.name} takes {times:.1f} times as long as usual for a step, and replacing it {how_often} brought "
        f"nothing: left alone for {left:.0f} s"
    )


def _usual(times: Collection[float]) -> float:
    """The median; of two, whose median neither can be twice as slow as, the faster one's."""
    return median(times) if len(times) > 2 else min(times)


def _recent(node: NodeFacts, since: float) -> list[float]:
    return [s.step_seconds for s in node.samples if s.at >= since and s.step_seconds is not None]


def _is_slow(node: NodeFacts, usual: float, since: float, settings: OptimizerSettings) -> bool:
    """All the time, and watched all the time."""
    if node.since > since:
        return False
    times = _recent(node, since)
    return len(times) >= 2 and all(each > settings.slow_factor * usual for each in times)


def slowing(facts: JobFacts, settings: OptimizerSettings) -> str | None:
    """A worker that has become slow: the job's speed tells of it now, not of the job's size. One that has been slow for
    long enough to be replaced, and then for as long again, stays so: it is part of the job."""
    since = facts.now - PATIENCE * settings.slow_seconds
    told = {
        node.name: times
        for node in facts.nodes
        if node.role in (Role.WORKER, Role.CHIEF) and (times := _recent(node, since))
    }
    if len(told) < FEWEST:
        return None
    slow = settings.slow_factor * _usual([times[-1] for times in told.values()])
    name, times = max(told.items(), key=lambda item: (item[1][-1], item[0]))
    return name if times[-1] > slow >= min(times) else None
