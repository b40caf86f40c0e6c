"""Facts: the values from which a job's resources are decided, by `shoal.brain.algorithms` and by nobody's clock.

Whoever collects statistics (the master from its agents, Brain from its store, the laboratory from a formula) makes a
`JobFacts` of them. It holds what was *measured* and what *is*, never what ought to be. Measurements are kept as they
came: an agent may send not-a-number, a negative or a time of tomorrow. `shoal.core.cleaning` leaves such samples out
and says so; nothing here raises for them.

Times are seconds on one clock of the collector's, any epoch (a master uses its own wall clock, so that agents' clocks
do not matter). Memory is MiB, cpu is cores. `None` is "not known". The words *worker* and *workers* include the
chief: it is the first worker.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from shoal.api.elasticjob import Strategy
from shoal.core.exits import ExitCause
from shoal.core.nodes import Role
from shoal.core.plans import NodeResource

# What was measured -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SpeedSample:
    """How fast the whole job trained over one interval, and what it had then."""

    at: float
    """The end of the interval."""
    step_seconds: float
    """Of one worker's step: the median over workers. All-reduce: of the common step. Of one sample, where steps are not
    counted."""
    samples_per_second: float
    """Of all workers together."""
    workers: int
    """That trained in this interval, with the chief."""
    ps: int = 0
    worker_cpu: float | None = None
    """Cores that each worker was granted (the median, where they differ)."""
    ps_cpu: float | None = None
    """Cores that each parameter server was granted (the median, where they differ)."""
    worker_cpu_used: float | None = None
    """Cores that a worker used: the mean over workers."""
    ps_cpu_used: float | None = None
    """Cores that a parameter server used: the mean over them."""
    ps_busiest: float | None = None
    """The largest part of its own grant that a parameter server used, 0 to 1."""


@dataclass(frozen=True, slots=True)
class NodeSample:
    """What one node used over one interval."""

    at: float
    cpu: float
    memory: float
    """The most in the interval."""
    step_seconds: float | None = None
    """Of its own steps (or shards) without waiting for others, where it can be told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """One live node."""

    name: str
    """As in plans: `worker-3`."""
    role: Role
    resource: NodeResource = field(default_factory=NodeResource)
    """What it was granted."""
    since: float
    """When it began to run."""
    samples: tuple[NodeSample, ...] = ()
    """Oldest first, down-sampled: some 10 to 60 of them over its life."""
    host: str | None = None
    seat: int | None = None
    """Its place in its role, which whoever replaces it takes over; None: whoever replaces it has its name."""

    @property
    def place(self) -> str:
        """The same for a node and for whoever takes its place: `ps 0`."""
        return self.name if self.seat is None else f"{self.role} {self.seat}"


@dataclass(frozen=True, slots=True, kw_only=True)
class OomEvent:
    """A node ran out of memory."""

    node: str
    role: Role
    at: float
    memory: int
    """What it was granted when it died."""
    count: int | None = None
    """How many parameter servers there were, which share what they hold; None: it is no server, or nobody knows."""
    uptime_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeExit:
    node: str
    role: Role
    at: float
    cause: ExitCause


@dataclass(frozen=True, slots=True, kw_only=True)
class ResizeCost:
    """What one change cost: seconds in which nothing was trained."""

    at: float
    seconds: float
    ps_changed: bool = False


# What is -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleFacts:
    """What one role has now, and what is not ours to change."""

    count: int
    """Live nodes."""
    resource: NodeResource = field(default_factory=NodeResource)
    """Of each; nodes that differ say so in their `NodeFacts`."""
    min: int = 1
    max: int = 1
    count_pinned: bool = False
    """The user said how many."""
    cpu_pinned: bool = False
    memory_pinned: bool = False
    most_memory: int | None = None
    """MiB of one node, where it may have less than any node may."""
    roomy_cpu: float | None = None
    """Cores of one node, if an ask has shown that no host has room for more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFacts:
    """All that is known of one job at one moment."""

    job: str
    strategy: Strategy
    now: float
    roles: Mapping[Role, RoleFacts]
    """WORKER always (it counts the chief), PS for parameter servers."""
    nodes: tuple[NodeFacts, ...] = ()
    speeds: tuple[SpeedSample, ...] = ()
    """Oldest first, bounded and down-sampled: none across a change of what the job has."""
    ooms: tuple[OomEvent, ...] = ()
    exits: tuple[NodeExit, ...] = ()
    resizes: tuple[ResizeCost, ...] = ()
    remaining_samples: float | None = None
    """Work that is left, if anybody knows."""
    global_batch: int | None = None
    """Set: a step is this many samples whatever the number of workers is. None: each worker adds its own batch."""
    node_unit: int = 1
    """Worker counts are multiples of it."""
    changed_at: float | None = None
    """When the last change of what the job has was complete: samples before it tell of another job."""
    in_change: bool = False
    """What is live is not what was granted: nodes start, drain or move."""
    is_clean: bool = False
    """Samples that cannot be were left out. Only `shoal.core.cleaning` says so."""

    @property
    def is_ps(self) -> bool:
        return self.strategy is Strategy.PARAMETER_SERVER

    @property
    def workers(self) -> RoleFacts:
        return self.roles[Role.WORKER]


# What is allowed ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The most that may be planned. None: no limit of that kind."""

    cpu: float | None = None
    """Of all nodes together."""
    memory: int | None = None
    """Of all nodes together."""
    node_cpu: float = 16.0
    """Of one node: what fits a host."""
    node_memory: int = 65_536
    free_cpu: float | None = None
    """What the cluster could still give this job; the scheduler's word, if there is one."""
    free_memory: int | None = None


def cpu_limit(known: RoleFacts, limits: Limits) -> float:
    """Cores that one node of the role may have."""
    return limits.node_cpu if known.roomy_cpu is None else min(limits.node_cpu, known.roomy_cpu)


def memory_limit(known: RoleFacts, limits: Limits) -> int:
    """MiB that one node of the role may have."""
    return limits.node_memory if known.most_memory is None else min(limits.node_memory, known.most_memory)


# How it is decided -------------------------------------------------------------------------------------------------

SHORTEST_SAMPLE, LONGEST_SAMPLE = 4, 300
"""Seconds. Agents speak every two: less than two words are no sample. Longer ones would hide changes in them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerSettings:
    """How bold the optimizer is. Times in seconds."""

    marginal_speedup: float = 0.5
    """What one per cent more cost must bring at least, in per cent of speed. 0.5: twice the resources are worth it for
    1.41 times the speed. 1: nothing but speed per cost counts, and jobs stay small. 0: nothing but speed."""
    cost_per_core: float = 10.0
    cost_per_gib: float = 1.0
    cost_per_gpu: float = 500.0
    """Of an hour, in the units of the scheduler's scores."""
    worth: float = 0.03
    """A change must promise at least this much more speed per cost, or it is not made."""
    min_samples: int = 5
    """Good speed samples of what the job has now, before anything is decided from its speed."""
    max_samples: int = 100
    """Of each size of the job that are looked at, the newest ones: the fit does not get better by more of them."""
    sample: int = 30
    """How long one sample takes, of the job's speed and of what a node uses. The times below that wait for samples are
    given for this one: `paced` changes them together."""
    cool_down: float = 120.0
    """Between two changes of one kind."""
    settle: float = 60.0
    """After a change, before samples count."""
    granted_within: float = 60.0
    """How long a platform may take to grant what was asked for; what is not there then was granted in part. Nothing
    that samples could tell."""
    refusal_holds: float = 1_800.0
    """How long an ask that was granted in part is not repeated, and no node is asked to have as many cores as were
    refused, where nobody tells of free room: hosts come and go, and others end. Nothing that samples could tell."""
    judge_samples: int = 5
    """Good samples after a change, before it is judged."""
    worse: float = 0.10
    """A change that made the job worse by more than this is taken back, once."""
    error_bound: float = 0.25
    """How far the last prediction may have been off, or the fit from what was measured, before the reason says that the
    fit is not to be trusted alone. How much more a plan must promise then, its own errors say (`overpromised`)."""
    reach: float = 4.0
    """How many times more workers than were ever measured one change may ask for."""
    cpu_reach: float = 2.0
    """The same for the cores of one node."""
    horizon: float = 3_600.0
    """How long a change has to pay back, when nobody knows how much work is left."""
    resize_seconds: float = 30.0
    """What a change costs, until one was measured."""
    probe_workers: int = 4
    """Workers to look at the job with, before anything is fitted. Two to four tell how they get in each other's way."""
    canary: bool = True
    """Whether one worker may be given more cores than the others, to show how many they can use. Where workers are all
    alike it may not: then all of them show it."""
    start_workers: int = 1
    """Workers to begin with: one shows what it needs at the least cost. Two can lose one."""
    start_cpu: float | None = 4.0
    start_memory: int | None = 16_384
    """Of each node, when nothing is known. Memory is cheap to have and dear to lack; it is trimmed when it is known.
    None: nodes are given nothing, because nobody can say what fits a host; they share what theirs have."""
    hot_ps: float = 0.8
    """The part of its cores above which a parameter server is hot."""
    hot_seconds: float = 120.0
    """For so long without a break."""
    skewed: float = 1.3
    """A parameter server with so many times the mean's load is hotter than the others."""
    warm_up: float = 240.0
    """How long a new node fills its memory: that is no trend, and less was not worth looking at."""
    memory_margin: float = 0.15
    ps_memory_margin: float = 0.2
    """Above the most that was ever used; what parameter servers hold moves among them."""
    oom_horizon: float = 900.0
    """How far ahead memory is watched."""
    trim: float = 0.3
    """The part of memory or cores that must lie idle before it is reclaimed."""
    trim_after: float = 600.0
    """For so long it must have been watched."""
    floor_cpu: float = 0.5
    floor_memory: int = 512
    """No node is planned smaller."""
    slow_factor: float = 2.0
    slow_seconds: float = 300.0
    """A node that takes more than so many times the median for so long is replaced."""

    def __post_init__(self) -> None:
        if not 0.0 <= self.marginal_speedup <= 1.0:
            raise ValueError(f"marginal_speedup must be from 0 to 1, got {self.marginal_speedup}")
        if self.start_workers < 1:
            raise ValueError(f"start_workers must be at least 1, got {self.start_workers}")
        if not self.refusal_holds > 0.0:
            raise ValueError(f"refusal_holds must be above 0, got {self.refusal_holds}")
        if self.reach <= 1.0 or self.cpu_reach <= 1.0:
            raise ValueError(f"reach and cpu_reach must be above 1, got {self.reach} and {self.cpu_reach}")
        if not SHORTEST_SAMPLE <= self.sample <= LONGEST_SAMPLE or self.sample % 2:
            raise ValueError(
                f"sample must be an even number of seconds from {SHORTEST_SAMPLE} to {LONGEST_SAMPLE}, "
                f"got {self.sample}"
            )

    def paced(self, sample: int) -> "OptimizerSettings":
        """As bold as these, with samples that take so long: what waits for samples waits for as many as before."""
        return replace(
            self, sample=sample, **{name: getattr(self, name) * sample / self.sample for name in _IN_SAMPLES}
        )


_IN_SAMPLES = ("cool_down", "settle", "hot_seconds", "warm_up", "trim_after", "slow_seconds")
"""Times that are there to see enough samples. The others are about the job or about its platform."""


def counts_only() -> OptimizerSettings:
    """How a job on one machine is sized: its nodes share the machine's cores and memory, and what each may have is not
    ours to say."""
    return OptimizerSettings(start_cpu=None, start_memory=None, canary=False)
