"""Which statistics can be believed: agents send what they measured, and some of it cannot be.

Samples may be not a number, negative or of tomorrow. Such samples are left out, never mended, and a sentence says how
many there were and what was wrong with them, so that it can stand in the reason of whatever is decided from the rest.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from shoal.core.facts import JobFacts, NodeFacts, NodeSample, ResizeCost, SpeedSample

SLACK = 1.0
"""Seconds by which a sample may be ahead of `now`: clocks of one machine that were read in another order."""
LONGEST = 1e9
"""Seconds, samples per second, MiB, cores: nothing real is larger."""

NOT_A_NUMBER, NEGATIVE, FUTURE, BACKWARDS = (
    "not a number",
    "not above zero",
    "from the future",
    "older than the one before",
)


def cleaned(facts: JobFacts) -> tuple[JobFacts, str]:
    """The facts without the samples that cannot be, and a sentence about those; empty: there were none."""
    if facts.is_clean:
        return facts, ""
    if not math.isfinite(facts.now):
        return replace(
            facts, now=0.0, speeds=(), nodes=(), resizes=(), is_clean=True
        ), f"the clock says {facts.now}: no sample counts"
    wrong: Counter[str] = Counter()
    speeds = _speeds(facts.speeds, facts.now, wrong)
    nodes = tuple(_clean_node(node, facts.now, wrong) for node in facts.nodes)
    resizes = tuple(each for each in facts.resizes if _is_cost(each))
    remaining = facts.remaining_samples
    if remaining is not None and not 0.0 <= remaining < math.inf:
        wrong["work left that is no amount"] += 1
        remaining = None
    changed_at = facts.changed_at
    if changed_at is not None and not changed_at <= facts.now + SLACK:
        wrong["a last change that is yet to come"] += 1
        changed_at = None
    found = replace(
        facts,
        speeds=speeds,
        nodes=nodes,
        resizes=resizes,
        remaining_samples=remaining,
        changed_at=changed_at,
        is_clean=True,
    )
    return found, _sentence(wrong)


def _speeds(samples: Sequence[SpeedSample], now: float, wrong: Counter[str]) -> tuple[SpeedSample, ...]:
    kept = []
    before = -math.inf
    for sample in samples:
        trouble = _when(sample.at, before, now) or _speed_trouble(sample)
        if trouble:
            wrong[trouble] += 1
        else:
            before = sample.at
            kept.append(sample)
    return tuple(kept)


def _clean_node(node: NodeFacts, now: float, wrong: Counter[str]) -> NodeFacts:
    before, latest = -math.inf, now + SLACK
    for at, cpu, memory, step in [(s.at, s.cpu, s.memory, s.step_seconds) for s in node.samples]:
        if not (
            before <= at <= latest
            and 0.0 <= cpu < LONGEST
            and 0.0 <= memory < LONGEST
            and (step is None or 0.0 < step < LONGEST)
        ):
            return _mended(node, now, wrong)
        before = at
    return node


def _mended(node: NodeFacts, now: float, wrong: Counter[str]) -> NodeFacts:
    kept = []
    before = -math.inf
    for sample in node.samples:
        trouble = _when(sample.at, before, now) or _node_trouble(sample)
        if trouble:
            wrong[trouble] += 1
        else:
            before = sample.at
            kept.append(sample)
    return replace(node, samples=tuple(kept))


def _when(at: float, before: float, now: float) -> str | None:
    if before <= at <= now + SLACK:
        return None
    return NOT_A_NUMBER if math.isnan(at) else FUTURE if at > now else BACKWARDS


def _speed_trouble(sample: SpeedSample) -> str | None:
    granted, granted_ps = sample.worker_cpu, sample.ps_cpu
    used, used_ps, busiest = sample.worker_cpu_used, sample.ps_cpu_used, sample.ps_busiest
    if (
        0.0 < sample.step_seconds < LONGEST
        and 0.0 < sample.samples_per_second < LONGEST
        and 1 <= sample.workers < LONGEST
        and 0 <= sample.ps < LONGEST
        and (granted is None or 0.0 < granted < LONGEST)
        and (granted_ps is None or 0.0 < granted_ps < LONGEST)
        and (used is None or 0.0 <= used < LONGEST)
        and (used_ps is None or 0.0 <= used_ps < LONGEST)
        and (busiest is None or 0.0 <= busiest < LONGEST)
    ):
        return None
    told = (sample.step_seconds, sample.samples_per_second, granted, granted_ps, used, used_ps, busiest)
    return _kind(*(amount for amount in told if amount is not None))


def _node_trouble(sample: NodeSample) -> str | None:
    if not (0.0 <= sample.cpu < LONGEST and 0.0 <= sample.memory < LONGEST):
        return _kind(sample.cpu, sample.memory)
    if sample.step_seconds is not None and not 0.0 < sample.step_seconds < LONGEST:
        return _kind(sample.step_seconds)
    return None


def _kind(*amounts: float) -> str:
    return NEGATIVE if all(math.isfinite(amount) for amount in amounts) else NOT_A_NUMBER


def _is_cost(cost: ResizeCost) -> bool:
    return 0.0 <= cost.seconds < LONGEST and math.isfinite(cost.at)


def _sentence(wrong: Counter[str]) -> str:
    if not wrong:
        return ""
    told = ", ".join(f"{count} {what}" for what, count in sorted(wrong.items()))
    return f"left out of the statistics: {told}"
