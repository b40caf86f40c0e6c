"""What a policy decided: changes of jobs, who waits for what, and where service Pods are to go.

A job that is in no change keeps what it has. Every change and every wait has a reason: a word for programs (`code`)
and a sentence for people (`text`), with the numbers that decided.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from shoal.scheduler.rows import JobKey, Seconds

STRONGEST = 100
"""Kubernetes weighs the hosts that a Pod prefers from 1 to this."""


class Action(StrEnum):
    ADMIT = "admit"
    GROW = "grow"
    SHRINK = "shrink"
    SUSPEND = "suspend"
    """All Pods leave; it waits to be admitted again."""


class Code(StrEnum):
    """Why, in one word. Conditions, metrics and events use it; the docs list it."""

    ADMITTED = "Admitted"
    FREE_ROOM = "FreeRoom"
    """It grows into room that nobody deserves more."""
    FAIRNESS = "Fairness"
    """It has had more than its share, or less."""
    MAKE_ROOM = "MakeRoom"
    """A waiting job's gang needs the room."""
    SERVICE = "OnlineService"
    """A service Pod needs the room."""
    UNSCHEDULABLE = "Unschedulable"
    """Kubernetes finds no host for what it was given."""
    PRESSURE = "Pressure"
    """More is asked for than may be in use."""
    ABOVE_MAX = "AboveMax"
    QUOTA = "QuotaExceeded"
    NO_ROOM = "NoRoom"
    """Its gang does not fit now."""
    RESERVED = "Reserved"
    """Its gang does not fit yet; room that becomes free is kept for it."""
    QUEUED = "Queued"
    """Others are before it."""
    TOO_LARGE = "TooLarge"
    """Its gang would not fit into the empty cluster."""
    OVER_QUOTA = "AboveWholeQuota"
    """Its gang is above the namespace's whole quota: it can never start."""
    CPU_PER_GPU = "TooLittleCpu"
    """It asks for devices without enough cores beside them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    code: Code
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    key: JobKey
    action: Action
    target: int
    """Trainers from now on: an absolute number, never a difference."""
    before: int
    """The target this was decided on; another one now means that the decision is void."""
    hosts: Mapping[str, int] = field(default_factory=dict)
    """Where the additional trainers should go."""
    fixed_hosts: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Of an admission: where the fixed Pods should go, by role."""
    victims: Mapping[str, int] = field(default_factory=dict)
    """From which hosts how many trainers go. The actuation names the Pods."""
    mandatory: bool = False
    """It passes a freezing window."""
    reason: Reason
    beneficiary: str | None = None
    """Of a job that gives something up: who gets it."""
    holds_for: Seconds | None = None
    """Of a job that was given what it could not use: for so long it is given no more than `target` now."""
    attained: float | None = None
    """Of an admission: the service it is taken to have had so far. More than it had if it waited for very long: what it
    is owed for waiting has an end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    key: JobKey
    place: int
    """1 is next."""
    reason: Reason
    starts_master: bool = False
    """It is near enough to its turn to hold a master Pod already."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Nomination:
    """A host for a service Pod."""

    namespace: str
    name: str
    host: str | None
    """None: it is ignored, and the reason says why."""
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Decisions:
    changes: tuple[Change, ...] = ()
    waits: tuple[Wait, ...] = ()
    """In the order of the queue."""
    nominations: tuple[Nomination, ...] = ()
    min_v: float = 0.0
    """The least attained service of an admitted job, which never falls: where newcomers begin."""
    steps: int = 0
    """Trainers given or taken, starts and suspensions, and tries that came to nothing, for the bound on them."""
    problems: tuple[str, ...] = ()
    """What went wrong while deciding, in sentences: `upstream` would never have come to an end."""
