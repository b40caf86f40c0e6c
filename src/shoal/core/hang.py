"""Hangs: nobody gains a step any more although everybody is there (elastic-job §3).

Only for jobs that report steps. The culprits are the processes that the kernel says are stopped, else the ones
that entered the fewest collectives: the others wait for them. When nobody can be told apart the stacks are dumped
and the world is given up only much later, by which time a slow step would have ended.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from shoal.core.nodes import NodeId

NO_STEP = "no step for"
"""In every decision about training that stands still: whoever reads decisions can tell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HangSettings:
    timeout: timedelta | None = None
    """No step for so long is a hang; None: ten times the median step, at least `floor`."""
    floor: timedelta = timedelta(seconds=60)
    factor: float = 10.0
    after_steps: int = 20
    """Off until the job has done so many steps: first steps compile and warm up."""
    patience: float = 5.0
    """How many time-outs to wait when no culprit can be named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessProgress:
    node: NodeId
    local_rank: int
    stopped: bool
    collectives: int
    busy: str | None
    in_world: bool
    """It is (still) in the committed world; False: it came out and waits for the next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HangFacts:
    steps_done: int
    step_seconds: Sequence[float]
    """Recent step times."""
    last_gain: datetime
    """When the last step was gained, or the world was committed, paused or interrupted: whichever is latest."""
    leaving_world: bool
    """The members have been told to come out of the world."""
    warned: bool
    processes: Sequence[ProcessProgress]


@dataclass(frozen=True, slots=True, kw_only=True)
class KillCulprits:
    culprits: tuple[tuple[NodeId, int], ...]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WarnOfHang:
    """Dump everybody's stacks and say so, once."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GiveWorldUp:
    """Nobody can be blamed: form the world anew, killing nobody."""

    reason: str


HangAction = KillCulprits | WarnOfHang | GiveWorldUp


def hang_timeout(step_seconds: Sequence[float], settings: HangSettings) -> timedelta:
    if settings.timeout is not None:
        return settings.timeout
    if not step_seconds:
        return settings.floor
    return max(settings.floor, timedelta(seconds=settings.factor * statistics.median(step_seconds)))


def decide_hang(facts: HangFacts, *, now: datetime, settings: HangSettings) -> HangAction | None:
    if facts.steps_done < settings.after_steps or any(p.busy for p in facts.processes):
        return None
    limit = hang_timeout(facts.step_seconds, settings)
    waited = now - facts.last_gain
    inside = [p for p in facts.processes if p.in_world]
    if waited < limit or not inside:
        return None
    no_step = f"{NO_STEP} {waited.total_seconds():.0f} s (limit {limit.total_seconds():.0f} s)"
    stopped = [p for p in inside if p.stopped]
    if stopped:
        return _kill(stopped, f"{no_step}: stopped by the kernel")
    if facts.leaving_world:
        return _kill(inside, f"{no_step}: still in a world that was given up")
    fewest = min(p.collectives for p in inside)
    behind = [p for p in inside if p.collectives == fewest]
    if len(behind) < len(inside):
        return _kill(behind, f"{no_step}: entered {fewest} collectives, others more")
    if waited >= limit * settings.patience:
        return GiveWorldUp(reason=f"{no_step} and no process stands out")
    if not facts.warned:
        return WarnOfHang(reason=f"{no_step}; no process stands out, stacks are dumped")
    return None


def _kill(culprits: Sequence[ProcessProgress], why: str) -> KillCulprits:
    named = tuple(sorted((p.node, p.local_rank) for p in culprits))
    return KillCulprits(culprits=named, reason=f"{', '.join(f'{n}.{r}' for n, r in named)} hangs: {why}")
