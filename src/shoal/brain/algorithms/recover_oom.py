"""`recover_oom`: what a node that ran out of memory comes back with, and all of its role with it.

Twice what it had, at most the limit (`shoal.core.recovery.raised_memory`, which gives its replacement the same at
once); also where the user gave what it had, for that was too little. A role that ran out before gets the multiple of
the most that was too little; one whose others grow gets what their line leads to, if that is more. Where a node may
have no more, parameter servers that hold as much as each other become more.
"""

import math
from collections.abc import Sequence, Set
from dataclasses import replace

from shoal.brain.algorithms.memory import needed_memory
from shoal.brain.algorithms.proposing import Sizes, Wanted, nothing, proposed
from shoal.core.cleaning import cleaned
from shoal.core.facts import JobFacts, Limits, OomEvent, OptimizerSettings, memory_limit
from shoal.core.nodes import Role
from shoal.core.optimizing import History
from shoal.core.plans import ResourcePlan
from shoal.core.recovery import MEMORY_STEP, raised_memory

NAME = "recover_oom"
MORE = 1.5
"""How many times as many parameter servers there are then."""
RAN_OUT = "ran out of"
EVEN = 1.2
"""Parameter servers whose memory differs by less than this factor are even."""


def recover_oom(facts: JobFacts, history: History, limits: Limits, settings: OptimizerSettings) -> ResourcePlan:
    """For the newest out-of-memory of each role."""
    newest = {event.role: event for event in sorted(facts.ooms, key=lambda event: event.at)}
    return recover(facts, limits, settings, list(newest.values()))


def recover(facts: JobFacts, limits: Limits, settings: OptimizerSettings, events: Sequence[OomEvent]) -> ResourcePlan:
    facts, _ = cleaned(facts)
    facts = _unpinned(facts, {event.role for event in events})
    wanted: dict[Role, Wanted] = {}
    raised: list[OomEvent] = []
    told = []
    for event in events:
        known = facts.roles.get(event.role)
        if known is None or not 0 < event.memory < 2**53:
            told.append(f"{event.node} ran out of memory, and what it had is not known")
            continue
        had = max([event.memory] + [each.memory for each in facts.ooms if each.role is event.role])
        if known.memory_pinned:
            told.append(f"{event.node} ran out of {event.memory} MiB, all that its host let it have")
            continue
        most = memory_limit(known, limits)
        memory = raised_memory(had, most)
        if memory is None:
            more = _more_servers(facts, limits, event)
            if more is None:
                told.append(f"{event.node} ran out of {event.memory} MiB, the most that a node may have")
                continue
            wanted[event.role] = Wanted(count=more, memory=most)
            told.append(f"{event.node} ran out of {event.memory} MiB, all that a node may have: {more} share the load")
            continue
        need = needed_memory(facts, event.role, settings) or 0
        wanted[event.role] = Wanted(memory=min(max(memory, need), most), least=min(had + MEMORY_STEP, most))
        raised.append(event)
    if not wanted:
        return nothing(NAME, "; ".join(told) or "no node ran out of memory")
    plan = proposed(NAME, facts, limits, settings, wanted, reason=lambda sizes: _why(told, raised, sizes))
    if plan.is_empty and RAN_OUT not in plan.reason:
        who = [f"{event.node} {RAN_OUT} {event.memory} MiB" for event in raised]
        return nothing(NAME, "; ".join([*told, *who, plan.reason]))
    return plan


def _unpinned(facts: JobFacts, roles: Set[Role]) -> JobFacts:
    """What the user gave to nodes was too little: it is the least from now on, and not the most."""
    freed = {
        role: replace(known, memory_pinned=False) if role in roles and known.resource.memory is not None else known
        for role, known in facts.roles.items()
    }
    return replace(facts, roles=freed)


def _why(told: Sequence[str], raised: Sequence[OomEvent], sizes: Sizes) -> str:
    gets = []
    for event in raised:
        memory = sizes[event.role].memory or 0
        times = memory / event.memory
        gets.append(f"{event.node} {RAN_OUT} {event.memory} MiB: {memory} MiB ({times:.1f} times)")
    return "; ".join([*told, *gets])


def _more_servers(facts: JobFacts, limits: Limits, event: OomEvent) -> int | None:
    """A number of parameter servers among which the state fits, when they are even."""
    known = facts.roles[event.role]
    if event.role is not Role.PS or known.count_pinned or known.count >= known.max:
        return None
    used = [max(s.memory for s in node.samples) for node in facts.nodes if node.role is Role.PS and node.samples]
    if used and max(used) > EVEN * max(1.0, min(used)):
        return None
    return min(known.max, max(known.count + 1, math.ceil(known.count * MORE)))
