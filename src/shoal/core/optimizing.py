"""The port through which a job asks for its size: stages, what is asked, who answers.

A `ResourceOptimizer` has the three methods of the design that Shoal grew from. It is asked with all it may know
(`Question`) and answers with a `ResourcePlan`; an empty one means "nothing", and says why. Asking changes nothing:
what was asked before, what came of it and whom not to trust any more is in the question's `History`.
`shoal.core.stages` walks a job through its stages over this port.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from shoal.core.facts import JobFacts, Limits, OomEvent, OptimizerSettings
from shoal.core.plans import ResourcePlan

ALL_BUSY = 0.9
"""Workers that keep more than this part of their cores busy may be able to use more."""


REST, MOST_TIMES = 6.0, 12
"""How many times as long as it takes to find a slow node its place is left alone after the first replacement that
brought nothing; and after how many of them that becomes no longer."""


class Stage(StrEnum):
    CREATE = "create"
    """Nothing was measured yet."""
    WORKER_INITIAL = "worker_initial"
    """The first worker trains; a few more show how they get in each other's way."""
    PS_INITIAL = "ps_initial"
    """A few workers load the parameter servers; these are sized."""
    RUNNING = "running"
    """Whatever holds the job back is looked for and mended."""


class Kind(StrEnum):
    """What a change is about; each kind has a cool-down of its own."""

    SIZE = "size"
    """Counts and cores."""
    HOT_PS = "hot_ps"
    MEMORY = "memory"
    OOM = "oom"
    REPLACE = "replace"
    ROLL_BACK = "roll_back"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of one change."""

    algorithm: str
    at: float
    """When it was judged."""
    before: float
    """Samples per second before it."""
    measured: float
    """And after it."""
    predicted: float | None = None
    gain: float = 0.0
    """Of speed per cost, as the settings weigh them: 0.1 is ten per cent better."""
    rolled_back: bool = False

    @property
    def prediction_error(self) -> float | None:
        """How far the prediction was off, as a part of what was measured; positive: it promised too much."""
        if self.predicted is None or self.measured <= 0.0:
            return None
        return (self.predicted - self.measured) / self.measured


@dataclass(frozen=True, slots=True, kw_only=True)
class Replaced:
    """Slow nodes that were replaced in one place, and nothing has shown that it helped."""

    times: int
    at: float
    """The last time."""

    def rest(self, settings: OptimizerSettings) -> float:
        """Seconds for which the place is left alone: twice as long each time."""
        return REST * settings.slow_seconds * 2.0 ** (min(self.times, MOST_TIMES) - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Canary:
    """What workers have shown of how many cores they can use: one that has more than the others, or all of them."""

    tried: float
    """Their cores."""
    busy: float
    """Cores that they keep busy while they compute."""

    @property
    def has_shown_all(self) -> bool:
        """Whether they had more cores than they can use."""
        return self.busy < ALL_BUSY * self.tried


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """What an algorithm may know beside the statistics."""

    outcomes: tuple[Outcome, ...] = ()
    """Of this job's changes, oldest first."""
    distrusted: frozenset[str] = frozenset()
    """Algorithms that made this job worse."""
    cooling: frozenset[Kind] = frozenset()
    """Kinds of change that were made a moment ago."""
    canary: Canary | None = None
    """Of those with the most cores; None: nothing was shown yet, or step times are not told by node."""
    replaced: Mapping[str, Replaced] = field(default_factory=dict)
    """By place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    facts: JobFacts
    limits: Limits
    history: History = field(default_factory=History)
    settings: OptimizerSettings = field(default_factory=OptimizerSettings)


class ResourceOptimizer(Protocol):
    """Who sizes a job. Every method may be called at any time and again; the same question has the same answer."""

    def generate_opt_plan(self, stage: Stage, config: Question) -> ResourcePlan:
        """What the job should have in this stage; empty: what it has, and why."""
        ...

    def generate_oom_recovery_plan(self, oom_nodes: Sequence[OomEvent], stage: Stage, config: Question) -> ResourcePlan:
        """What nodes that ran out of memory come back with; empty: more cannot help or is not allowed, and why."""
        ...

    def generate_resource_plan_with_optimizer(self, config: Question) -> ResourcePlan:
        """The best size by the fitted model alone, whatever the symptoms are."""
        ...
