"""`avoid_oom`: memory that grows towards its limit gets more before it is there.

A node whose memory will reach its limit within the horizon, by the straight line through what it used, gets what it
will need for the rest of the job, or for an hour if nobody knows how long that is. All nodes of its role get it: they
do the same work.
"""

import math

from shoal.brain.algorithms.memory import largest, needed_memory, trend
from shoal.brain.algorithms.proposing import Wanted, nothing, proposed, round_memory
from shoal.core.cleaning import cleaned
from shoal.core.facts import JobFacts, Limits, OptimizerSettings
from shoal.core.nodes import Role
from shoal.core.optimizing import History
from shoal.core.plans import ResourcePlan

NAME = "avoid_oom"
FULL = 0.93
"""The part of its memory above which a node is in danger whether it grows or not."""
LEAST_MORE = 1.25


def avoid_oom(facts: JobFacts, history: History, limits: Limits, settings: OptimizerSettings) -> ResourcePlan:
    facts, note = cleaned(facts)
    wanted: dict[Role, Wanted] = {}
    told = []
    for role, known in facts.roles.items():
        has = known.resource.memory
        if has is None or known.memory_pinned:
            continue
        danger = _danger(facts, role, has, settings)
        if danger is None:
            continue
        need = max(needed_memory(facts, role, settings) or 0, math.ceil(has * LEAST_MORE))
        if has >= limits.node_memory:
            told.append(f"{danger}, and {has} MiB is the most that a node may have")
            continue
        wanted[role] = Wanted(memory=need)
        told.append(f"{danger}: {round_memory(min(need, limits.node_memory))} MiB instead")
    if not wanted:
        why = "; ".join(told) or f"no memory reaches its limit within {settings.oom_horizon:.0f} s"
        return nothing(NAME, f"{why}; {note}" if note else why)
    return proposed(NAME, facts, limits, settings, wanted, reason="; ".join(told))


def _danger(facts: JobFacts, role: Role, has: int, settings: OptimizerSettings) -> str | None:
    for node in largest(facts, role):
        granted = node.resource.memory or has
        recent = trend(node, facts, settings)
        if recent is None:
            continue
        ahead = recent.used + recent.slope * settings.oom_horizon
        if recent.used >= FULL * granted or ahead >= granted:
            growth = f", {recent.slope * 60.0:.0f} MiB more each minute" if recent.slope > 0.0 else ""
            return f"{node.name} uses {recent.used:.0f} of {granted} MiB{growth}"
    return None
