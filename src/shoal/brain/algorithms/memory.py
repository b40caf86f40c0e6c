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
OWN, APART = 512.0, 0.25
"""MiB of a parameter server that are taken to be its own, not its share of the state; or this part, if that is more."""
LOOKED_AT = 4
"""Nodes of a role whose memory is followed."""
FEWEST = 6
"""Samples without which there is no slope."""
SURE = 3.0
"""A slope counts when it is this many times its own standard error; of few samples, which often look like one by
chance, it must be more."""
FEW = 4.0
"""How much more: so many divided by the samples beyond the two that make a line."""


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
    begun = _begun(node, facts)
    samples = _own_samples(node, facts)
    if len(samples) < 3:
        return None
    return Trend(
        used=max(sample.memory for sample in samples),
        slope=_slope([sample for sample in samples if sample.at >= begun + settings.warm_up]),
        watched=samples[-1].at - begun,
    )


def _begun(node: NodeFacts, facts: JobFacts) -> float:
    if node.role is not Role.PS:
        return node.since
    # State moves between them when they change: what one held before is gone.
    return max([node.since, *(cost.at for cost in facts.resizes if cost.ps_changed)])


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
    left = seconds_left(facts)
    ahead = settings.horizon if left is None else left
    used = max(each.used + each.slope * ahead for each in trends)
    used = min(used, 2.0 * max(each.used for each in trends))
    count = count or facts.roles[role].count
    used = _with_margin(used, facts, role, settings, count)
    return math.ceil(max(used, _above_ooms(facts, role, count), settings.floor_memory))


def least_memory(facts: JobFacts, role: Role, settings: OptimizerSettings, *, count: int) -> float:
    """MiB below which no node of a role is to come when there are so many of them: the most that any was measured to
    use, with the margin, and more than what was too little. 0: nothing is known."""
    used = [sample.memory for node in facts.nodes if node.role is role for sample in _own_samples(node, facts)]
    return max(_with_margin(max(used, default=0.0), facts, role, settings, count), _above_ooms(facts, role, count), 0.0)


def _own_samples(node: NodeFacts, facts: JobFacts) -> list[NodeSample]:
    begun = _begun(node, facts)
    return [sample for sample in node.samples if sample.at > begun]


def _with_margin(used: float, facts: JobFacts, role: Role, settings: OptimizerSettings, count: int) -> float:
    """MiB for each of so many nodes, of which one uses so much as many as there are now."""
    if role is not Role.PS:
        return used * (1.0 + settings.memory_margin)
    share = facts.roles[role].count / max(1, count)
    own = 0.0 if share >= 1.0 else max(min(used, OWN), APART * used)
    return (own + (used - own) * share) * (1.0 + settings.ps_memory_margin)


def seconds_left(facts: JobFacts) -> float | None:
    """Of the job, at the speed it has; None: nobody knows."""
    if facts.remaining_samples is None or not facts.speeds:
        return None
    return facts.remaining_samples / facts.speeds[-1].samples_per_second


def _above_ooms(facts: JobFacts, role: Role, count: int) -> float:
    """More than what was too little before; of parameter servers, what was too little for all of them together."""

    def too_little(event: OomEvent) -> float:
        if role is not Role.PS or not event.count:
            return event.memory
        own = min(event.memory, OWN)
        return own + (event.memory - own) * event.count / count

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
    return slope if slope > SURE * (1.0 + FEW / (count - 2)) * error else 0.0
