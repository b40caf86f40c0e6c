"""`avoid_oom`: memory that grows towards its limit gets more before it is there.

A node whose memory will reach its limit within the horizon, by the straight line through what it used, gets what it
will need for the rest of the job, or for an hour if nobody knows how long that is. All nodes of its role get it: they
do the same work.
"""

import math
from collections.abc import Mapping, Sequence

from shoal.brain.algorithms.memory import Trend, largest, needed_memory, seconds_left, trend
from shoal.brain.algorithms.proposing import Sizes, Wanted, nothing, proposed
from shoal.core.cleaning import cleaned
from shoal.core.facts import JobFacts, Limits, OptimizerSettings, memory_limit
from shoal.core.nodes import Role
from shoal.core.optimizing import History
from shoal.core.plans import ResourcePlan

NAME = "avoid_oom"
FULL = 0.93
"""The part of its memory above which a node is in danger whether it grows or not."""
ENOUGH = 0.97
"""The part that one whose growth is known until the job's end may come to."""
LEAST_MORE = 1.1


def avoid_oom(facts: JobFacts, history: History, limits: Limits, settings: OptimizerSettings) -> ResourcePlan:
    facts, note = cleaned(facts)
    wanted: dict[Role, Wanted] = {}
    dangers: dict[Role, str] = {}
    told = []
    for role, known in facts.roles.items():
        has = known.resource.memory
        if has is None or known.memory_pinned:
            continue
        danger = _danger(facts, role, has, settings)
        if danger is None:
            continue
        need = max(needed_memory(facts, role, settings) or 0, math.ceil(has * LEAST_MORE))
        if has >= memory_limit(known, limits):
            told.append(f"{danger}, and {has} MiB is the most that a node may have")
            continue
        wanted[role] = Wanted(memory=need)
        dangers[role] = danger
    if not wanted:
        why = "; ".join(told) or f"no memory reaches its limit within {settings.oom_horizon:.0f} s"
        return nothing(NAME, f"{why}; {note}" if note else why)
    return proposed(NAME, facts, limits, settings, wanted, reason=lambda sizes: _why(told, dangers, sizes))


def _why(told: Sequence[str], dangers: Mapping[Role, str], sizes: Sizes) -> str:
    gets = [f"{danger}: {sizes[role].memory} MiB instead" for role, danger in dangers.items()]
    return "; ".join([*told, *gets])


def _danger(facts: JobFacts, role: Role, has: int, settings: OptimizerSettings) -> str | None:
    for node in largest(facts, role):
        granted = node.resource.memory or has
        recent = trend(node, facts, settings)
        if recent is None:
            continue
        if recent.slope > 0.0 and _at_the_end(recent, facts) <= ENOUGH * granted:
            continue
        ahead = recent.used + recent.slope * settings.oom_horizon
        if recent.used >= FULL * granted or ahead >= granted:
            growth = f", {recent.slope * 60.0:.0f} MiB more each minute" if recent.slope > 0.0 else ""
            return f"{node.name} uses {recent.used:.0f} of {granted} MiB{growth}"
    return None


def _at_the_end(recent: Trend, facts: JobFacts) -> float:
    """MiB, if it goes on like this; infinite: nobody knows when that is."""
    left = seconds_left(facts)
    return math.inf if left is None else recent.used + recent.slope * left
