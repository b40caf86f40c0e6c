"""What a cluster's owner may choose about scheduling: one tree, with the reason for each default."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from shoal.scheduler.rows import NOTHING, Priority, Quota, Room, Seconds


class ScoreMode(StrEnum):
    PRICE = "price"
    """A Pod costs what its parts cost, by the weights."""
    DOMINANT_SHARE = "dominant-share"
    """A Pod costs the largest share of the cluster that it takes of any resource."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """How full a resource may be."""

    grow: float
    """Jobs grow only while no more than this share is asked for (L)."""
    reclaim: float
    """Above this share jobs have to shrink (U). Never below `grow`, or they would do both by turns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """What a second of each costs, about as their rents compare."""

    gpu: int = 500
    core: int = 10
    gibibyte: int = 1
    pod: int = 1
    """A place on a host: so even a Pod that asks for nothing costs something, or its job would always deserve more."""
    mode: ScoreMode = ScoreMode.PRICE


WEIGHTS: Mapping[Priority, int] = {
    Priority.EXPERIMENT: 10,
    Priority.OFFLINE: 100,
    Priority.NORMAL: 1_000,
    Priority.PRODUCTION: 10_000,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerSettings:
    policy: str = "cfs"
    interval: Seconds = 5.0
    """A round at least this often."""
    spacing: Seconds = 1.0
    """And never two within this: events that come together are one round."""
    round_timeout: Seconds = 60.0
    """A round that takes longer than this is trouble, and is told as such."""
    weights: Mapping[Priority, int] = field(default_factory=lambda: dict(WEIGHTS))
    """Shares of what jobs compete for; neighbours differ tenfold."""
    base_weight: int = 1_000
    """W0: the weight at which a second of service counts as one."""
    scores: Scores = Scores()
    horizon: Seconds = 7_200.0
    """H: how far ahead the cost of a size is looked at. With a short one, jobs pay back at once what they had more, and
    sizes go up and down; with a long one, the past counts little beside the present. Two hours is about as long as jobs
    of mixed clusters run, and better than ten minutes in all that was measured (docs/decisions/0020)."""
    start_debit: Seconds = 5.0
    """D: what a newcomer is charged in advance, so that arriving again and again gains nothing."""
    lag_cap: Seconds = 7_200.0
    """A job that waited is never thought to be owed more than this: as long as the horizon."""
    freezing_window: Seconds = 60.0
    max_moves: int = 40
    """Voluntary moves in one round, or a tenth of all trainers, whichever is more."""
    fairness_margin: float = 0.0
    """Added to the rule that a move may not turn the order of two jobs around."""
    reserve_after: Seconds = 60.0
    max_wait: Seconds = 1_800.0
    """A job that has waited this long takes room from any job above its minimum."""
    cpu: Load = Load(grow=0.97, reclaim=1.0)
    memory: Load = Load(grow=0.97, reclaim=1.0)
    gpu: Load = Load(grow=1.0, reclaim=1.0)
    cpu_per_gpu: int = 2_000
    """Thousandths of a core that each device needs beside it; kept free for devices that are free."""
    optimistic_cpu: bool = False
    """Start CPU jobs although their gang does not fit, as the first design document has it."""
    service_priority_floor: int = 0
    """Pods that are not ours, with at least this priority, are services: training gives way to them."""
    service_headroom: Room = NOTHING
    """Room that growing jobs leave free for services."""
    headroom_by_hour: tuple[Room, ...] = ()
    """24 rooms that replace `service_headroom` by the hour (UTC). Empty: it is the same all day."""
    max_starting_masters: int = 10
    """Waiting jobs that may hold a master Pod, in the order of the queue."""
    quotas: Mapping[str, Quota] = field(default_factory=dict)
    """By namespace, beside Kubernetes' own ResourceQuotas; the smaller limit of each kind holds."""
    priorities: frozenset[str] = frozenset()
    """The namespaces whose jobs may have a priority above Normal; "*": all. Whoever may create a job could take the
    most of a cluster by a word otherwise."""
    gang: bool = True
    """Of `static`: whether a job starts only when all of it fits."""
