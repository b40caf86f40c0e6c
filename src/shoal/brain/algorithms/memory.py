"""How much memory a role needs: the most that was used, where it is heading, and a margin.

Memory is cheap beside cores, and having too little of it stops the job; so everything here errs upwards. What once was
too little is never planned again.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import nlargest

from shoal.core.facts import JobFacts, NodeFacts, NodeSample, OomEvent, OptimizerSettings
from shoal.core.nodes import Role

ABOVE_OOM = 1.3
"""How many times the memory that was too little is the least that is planned afterwards."""
APART = 0.25
"""The part of a parameter server's memory that is taken to be its own, not its share of the state."""
LOOKED_AT = 4
"""Nodes of a role whose memory is followed."""
FEWEST = 6
"""Samples without which there is no slope."""
SURE = 3.0
"""A slope counts when it is this many times its own standard error."""


@dataclass(frozen=True, slots=True)
class Trend:
    """Where one node's memory is heading."""

    used: float
    """The most so far, MiB."""
    slope: float
    """MiB in a second; 0 when it is not clear that it grows."""
    watched: float
    """Seconds."""


def trend(node: NodeFacts, facts: JobFacts, settings: OptimizerSettings) -> Trend | None:
    """Of a node with a few samples; what it did while it started counts only for the most it used."""
    begun = node.since
    if node.role is Role.PS:  # state moves between them when they change: what one held before is gone
        begun = max([begun, *(cost.at for cost in facts.resizes if cost.ps_changed)])
    samples = [sample for sample in node.samples if sample.at > begun]
    if len(samples) < 3:
        return None
    return Trend(
        used=max(sample.memory for sample in samples),
        slope=_slope([sample for sample in samples if sample.at >= begun + settings.warm_up]),
        watched=samples[-1].at - begun,
    )


def largest(facts: JobFacts, role: Role) -> list[NodeFacts]:
    """The nodes of a role that hold most now: if these are safe, all are."""
    nodes = [node for node in facts.nodes if node.role is role and node.samples]
    return nlargest(LOOKED_AT, nodes, key=lambda node: (node.samples[-1].memory, node.name))


def needed_memory(facts: JobFacts, role: Role, settings: OptimizerSettings, *, count: int | None = None) -> int | None:
    """MiB that each node of a role should have for the rest of the job; None: nobody has watched it long enough.

    `count`: how many parameter servers there will be; together they hold what those that are there hold now.
    """
    trends = [found for node in largest(facts, role) if (found := trend(node, facts, settings)) is not None]
    if not any(each.watched >= settings.warm_up for each in trends):
        return None
    ahead = _ahead(facts, settings)
    used = max(each.used + each.slope * ahead for each in trends)
    used = min(used, 2.0 * max(each.used for each in trends))
    now = facts.roles[role].count
    if role is Role.PS and count is not None and count != now:
        share = now / count
        used *= share if share > 1.0 else APART + (1.0 - APART) * share
    return math.ceil(
        max(used * (1.0 + settings.memory_margin), _above_ooms(facts, role, count or now), settings.floor_memory)
    )


def _ahead(facts: JobFacts, settings: OptimizerSettings) -> float:
    if facts.remaining_samples is None or not facts.speeds:
        return settings.horizon
    return facts.remaining_samples / facts.speeds[-1].samples_per_second


def _above_ooms(facts: JobFacts, role: Role, count: int) -> float:
    """More than what was too little before; of parameter servers, what was too little for all of them together."""

    def too_little(event: OomEvent) -> float:
        return event.memory * (event.count / count if role is Role.PS and event.count else 1.0)

    return ABOVE_OOM * max((too_little(event) for event in facts.ooms if event.role is role), default=0.0)


def _slope(samples: Sequence[NodeSample]) -> float:
    """Least squares; 0 unless it is clearly above."""
    count = len(samples)
    if count < FEWEST:
        return 0.0
    start = samples[0].at
    at = [sample.at - start for sample in samples]
    held = [sample.memory for sample in samples]
    mean_at, mean_held = sum(at) / count, sum(held) / count
    spread = sum([each * each for each in at]) - count * mean_at**2
    if spread <= 1e-9:
        return 0.0
    slope = (sum([one * other for one, other in zip(at, held, strict=True)]) - count * mean_at * mean_held) / spread
    if slope <= 0.0:
        return 0.0
    base = mean_held - slope * mean_at
    rest = sum([(one - base - slope * other) ** 2 for one, other in zip(held, at, strict=True)])
    error = math.sqrt(rest / max(1, count - 2) / spread)
    return slope if slope > SURE * error else 0.0
