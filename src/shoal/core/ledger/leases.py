"""The nouns of the dynamic mode: what is asked, leased, reported and answered.

    TODO ──leased──▶ DOING ──completed, with the current attempt──▶ done
      ▲  (front)       │
      └────────────────┘  owner lost, deadline passed: resumes after the records already reported

A *lease* lets one owner train one shard. Its *attempt* is a number that the dataset uses once: not for another shard,
not for the same shard later, not after a restore. So a report needs to name nothing else, and one that comes late, or
twice, or from another life, cannot count. A newer lease of a shard has the higher number.
"""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import NewType

Owner = NewType("Owner", str)
"""Who trains: one training process, named so that its next life has another name."""


ATTEMPTS_PER_TERM = 1 << 40
"""More leases than one master gives in its life."""
MAX_TERM = 1 << 22
"""More masters than a job has. With the last one's attempts every number is below 2**63, as wherever it is kept."""
MAX_ATTEMPT = (MAX_TERM + 1) * ATTEMPTS_PER_TERM


@dataclass(frozen=True, slots=True)
class Lease:
    """One shard in somebody's hands."""

    attempt: int
    epoch: int
    partition: int
    shard: int
    start: int
    """Its positions on the epoch's line (offsets of a stream): from here"""
    stop: int
    """up to here."""
    done: int
    """Records of it that are trained already, counted from its start: go on behind them."""
    failures: int
    """How many owners have failed on it."""
    deadline: datetime
    """When it is given away if nothing is heard of it."""


@dataclass(frozen=True, slots=True)
class Returned:
    """A shard that was leased before, back in TODO."""

    partition: int
    shard: int
    done: int
    failures: int


@dataclass(frozen=True, slots=True)
class Progress:
    attempt: int
    done: int
    """Records of the shard that are trained, counted from its start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One round trip of an owner: what it has done, and how much more it wants."""

    owner: Owner
    dataset: str
    completed: tuple[int, ...] = ()
    """Attempts whose shards are trained."""
    progress: tuple[Progress, ...] = ()
    want: int = 0
    """How many more shards. 0: only reports."""
    epoch: int | None = None
    """Only shards of this epoch; END when it is complete. None: of whichever epoch it is."""


class Verdict(StrEnum):
    GO = "go"
    """Train what you hold."""
    WAIT = "wait"
    """Nothing can be given now, but what others hold may come back. You will be woken."""
    END = "end"
    """Everything is complete."""
    POISONED = "poisoned"
    """A shard fails whoever tries it; the job has to end."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A report or claim that does not count."""

    attempt: int
    reason: str


@dataclass(frozen=True, slots=True)
class Wake:
    """An owner that waits can go on: tell it to ask again."""

    owner: Owner
    dataset: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    verdict: Verdict
    leases: tuple[Lease, ...] = ()
    refused: tuple[Refusal, ...] = ()
    woken: tuple[Wake, ...] = ()
    reason: str = ""
    """Why, when it is poisoned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Poison:
    """The shard that nobody could train."""

    epoch: int
    partition: int
    shard: int
    reason: str
