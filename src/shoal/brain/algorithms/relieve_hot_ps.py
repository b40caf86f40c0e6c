"""`relieve_hot_ps`: a parameter server that is persistently short of cores holds every worker up.

One that is hotter than the others is moved to more cores, as many as its load asks for. When all are hot, more of them
share the load. Cores that a host does not have cannot be given, nor others than the user gives: then too there are more
of them.
"""

import math

from shoal.brain.algorithms.proposing import Wanted, nothing, proposed
from shoal.core.cleaning import cleaned
from shoal.core.facts import JobFacts, Limits, NodeFacts, OptimizerSettings, cpu_limit
from shoal.core.nodes import Role
from shoal.core.optimizing import History
from shoal.core.plans import ResourcePlan

NAME = "relieve_hot_ps"
TARGET = 0.5
"""The part of its cores that a relieved parameter server should use."""
LEAST_MORE = 1.2
"""How many times the cores a move must give, to be worth it."""


def relieve_hot_ps(facts: JobFacts, history: History, limits: Limits, settings: OptimizerSettings) -> ResourcePlan:
    known = facts.roles.get(Role.PS)
    if not facts.is_ps or known is None:
        return nothing(NAME, "the job has no parameter servers")
    facts, note = cleaned(facts)
    servers = [node for node in facts.nodes if node.role is Role.PS and node.resource.cpu is not None]
    heat = {node.name: found for node in servers if (found := _heat(node, facts, settings)) is not None}
    hot = [node for node in servers if node.name in heat]
    if not hot:
        why = f"no parameter server used more than {settings.hot_ps:.0%} of its cores for {settings.hot_seconds:.0f} s"
        return nothing(NAME, f"{why}; {note}" if note else why)
    if len(hot) == len(servers) and len(servers) > 1:
        return _more(facts, limits, settings, heat)
    return _move(facts, limits, settings, hot, heat)


def heating_up(facts: JobFacts, settings: OptimizerSettings) -> str | None:
    """A parameter server that is above what it should use and was not for long enough to be hot; None: there is none.
    What is measured meanwhile tells neither of the job as it was nor of the one that comes of it. Facts are clean."""
    for node in facts.nodes:
        if node.role is not Role.PS or node.resource.cpu is None:
            continue
        recent = [sample.cpu for sample in node.samples if sample.at >= facts.now - settings.hot_seconds]
        limit = settings.hot_ps * node.resource.cpu
        if recent and recent[-1] > limit >= min(recent):
            return node.name
    return None


def _move(
    facts: JobFacts, limits: Limits, settings: OptimizerSettings, hot: list[NodeFacts], heat: dict[str, float]
) -> ResourcePlan:
    known = facts.roles[Role.PS]
    if known.cpu_pinned:
        return _more(facts, limits, settings, heat)
    nodes = {}
    for node in hot:
        cpu = min((node.resource.cpu or 1.0) * heat[node.name] / TARGET, cpu_limit(known, limits))
        if cpu >= (node.resource.cpu or 1.0) * LEAST_MORE:
            nodes[node.name] = Wanted(cpu=cpu)
    if not nodes:
        return _more(facts, limits, settings, heat)
    told = ", ".join(f"{name} uses {heat[name]:.0%} of its cores, gets {nodes[name].cpu:.1f}" for name in nodes)
    return proposed(NAME, facts, limits, settings, {}, nodes=nodes, reason=f"hot parameter servers: {told}")


def _more(facts: JobFacts, limits: Limits, settings: OptimizerSettings, heat: dict[str, float]) -> ResourcePlan:
    known = facts.roles[Role.PS]
    mean = sum(heat.values()) / len(heat)
    count = min(known.max, math.ceil(known.count * mean / TARGET))
    reason = f"{_who_is_hot(known.count, mean, heat)}: {count} share the load"
    return proposed(NAME, facts, limits, settings, {Role.PS: Wanted(count=count)}, reason=reason)


def _who_is_hot(count: int, mean: float, heat: dict[str, float]) -> str:
    if len(heat) == count > 1:
        return f"all {count} parameter servers use {mean:.0%} of their cores"
    hottest = max(heat, key=heat.__getitem__)
    among = f", the hottest of {count} parameter servers," if count > 1 else ""
    return f"{hottest}{among} uses {heat[hottest]:.0%} of its cores"


def _heat(node: NodeFacts, facts: JobFacts, settings: OptimizerSettings) -> float | None:
    """The part of its cores that it used all the time; None: it is not hot, or was not watched long enough."""
    since = facts.now - settings.hot_seconds
    cores = node.resource.cpu or 1.0
    recent = [sample for sample in node.samples if sample.at >= since]
    starts = max(node.since, facts.changed_at or node.since)
    if len(recent) < 2 or starts > since + settings.hot_seconds * 0.25:
        return None
    parts = [sample.cpu / cores for sample in recent]
    return min(1.0, sum(parts) / len(parts)) if min(parts) > settings.hot_ps else None
