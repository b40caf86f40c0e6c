"""`recover_oom`: what a node that ran out of memory comes back with.

At least half as much again, at most the limit. How much more depends on what is known: a node that died at once never
showed what it needs, so it gets a multiple; one that grew slowly gets what its line leads to. A role that ran out
before gets the multiple of the most that was too little. Where a node may have no more, parameter servers that hold as
much as each other become more.
"""

import math
from collections.abc import Sequence

from shoal.brain.algorithms.memory import needed_memory
from shoal.brain.algorithms.proposing import Wanted, nothing, proposed
from shoal.core.cleaning import cleaned
from shoal.core.facts import JobFacts, Limits, OomEvent, OptimizerSettings
from shoal.core.nodes import Role
from shoal.core.optimizing import History
from shoal.core.plans import ResourcePlan

NAME = "recover_oom"
LEAST = 1.5
EVEN = 1.2
"""Parameter servers whose memory differs by less than this factor are even."""


def recover_oom(facts: JobFacts, history: History, limits: Limits, settings: OptimizerSettings) -> ResourcePlan:
    """For the newest out-of-memory of each role."""
    newest = {event.role: event for event in sorted(facts.ooms, key=lambda event: event.at)}
    return recover(facts, limits, settings, list(newest.values()))


def recover(facts: JobFacts, limits: Limits, settings: OptimizerSettings, events: Sequence[OomEvent]) -> ResourcePlan:
    facts, _ = cleaned(facts)
    wanted: dict[Role, Wanted] = {}
    told = []
    for event in events:
        known = facts.roles.get(event.role)
        if known is None or not 0 < event.memory < 2**53:
            told.append(f"{event.node} ran out of memory, and what it had is not known")
            continue
        had = max([event.memory] + [each.memory for each in facts.ooms if each.role is event.role])
        need = max(had * settings.oom_factor, needed_memory(facts, event.role, settings) or 0)
        if known.memory_pinned:
            told.append(f"{event.node} ran out of {event.memory} MiB, which the user pinned")
            continue
        if had >= limits.node_memory:
            more = _more_servers(facts, limits, event)
            if more is None:
                told.append(f"{event.node} ran out of {event.memory} MiB, the most that a node may have")
                continue
            wanted[event.role] = Wanted(count=more, memory=limits.node_memory)
            told.append(f"{event.node} ran out of {event.memory} MiB, all that a node may have: {more} share the load")
            continue
        memory = min(math.ceil(max(need, had * LEAST)), limits.node_memory)
        wanted[event.role] = Wanted(memory=memory)
        told.append(f"{event.node} ran out of {event.memory} MiB: {memory} MiB ({memory / event.memory:.1f} times)")
    if not wanted:
        return nothing(NAME, "; ".join(told) or "no node ran out of memory")
    plan = proposed(NAME, facts, limits, settings, wanted, reason="; ".join(told))
    for role, each in wanted.items():
        group = plan.node_group_resources.get(role.value)
        lost = max(event.memory for event in facts.ooms or events if event.role is role)
        if group is not None and each.count is None and (group.node_resource.memory or 0) <= lost:
            return nothing(NAME, f"{'; '.join(told)}; the limits of the job leave no more than {lost} MiB for each")
    return plan


def _more_servers(facts: JobFacts, limits: Limits, event: OomEvent) -> int | None:
    """A number of parameter servers among which the state fits, when they are even."""
    known = facts.roles[event.role]
    if event.role is not Role.PS or known.count_pinned or known.count >= known.max:
        return None
    used = [max(s.memory for s in node.samples) for node in facts.nodes if node.role is Role.PS and node.samples]
    if used and max(used) > EVEN * max(1.0, min(used)):
        return None
    return min(known.max, max(known.count + 1, math.ceil(known.count * LEAST)))
