"""What the scheduler allows a job: the value it hands to whoever makes the job's Pods.

The scheduler's loop decides for all jobs at once and holds one allowance for each; the job's own controller reads it,
writes the grant and the standing into the job's status in the same write as everything else, and acts. So a status
has one writer, and a decision that was never written has never been made: the next scheduler decides again.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from shoal.scheduler.actuation import Standing
from shoal.scheduler.rows import JobKey


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowance:
    standing: Standing
    """To be kept in the status. `standing.target` trainers are allowed; 0: the job waits."""
    servers: int | None = None
    """Parameter servers beside them; None: as the job asks."""
    hosts: Mapping[str, int] = field(default_factory=dict)
    """Where new trainers should go, as a preference."""
    victims: tuple[str, ...] = ()
    """The Pods that go first while there are more than allowed."""
    code: str = ""
    """Why, in a word that conditions use: `Admitted`, `QuotaExceeded`, `NoRoom`, ..."""
    reason: str = ""
    trimmed: str = ""
    """Why its priority counts for less than it says; empty: it does not."""
    place: int | None = None
    """In the queue; 1 is next. None: it does not wait."""
    starts_master: bool = True
    """It may hold a master Pod, admitted or not."""

    @property
    def is_admitted(self) -> bool:
        return self.standing.target > 0


class Allowances(Protocol):
    """Where a job's controller finds what it is allowed."""

    def of(self, key: JobKey, uid: str) -> Allowance | None:
        """None: the scheduler has not decided yet. The job keeps what it has, and grows by nothing."""
        ...

    @property
    def trouble(self) -> str | None:
        """Why nothing new is decided at the moment; None: the scheduler works."""
        ...
