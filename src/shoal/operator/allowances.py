"""What the scheduler allows a job: the value it hands to whoever makes the job's Pods.

The scheduler's loop decides for all jobs at once and holds one allowance for each; the job's own controller reads it,
writes the grant and the standing into the job's status in the same write as everything else, and acts. So a status
has one writer, and a decision that was never written has never been made: the next scheduler decides again.

An allowance is a swap: it holds only where the status still says what it was decided on, or what its own scheduler has
written since. Two operators that both take themselves for the leader so cannot undo each other's decisions. And what
was decided of a job that took no part, say of a suspended one, says nothing of it once it takes part again: another
leader may not have heard of the suspension at all, and gone on with what is written.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from shoal.api.scheduling import SchedulingStatus
from shoal.scheduler.actuation import Standing
from shoal.scheduler.rows import JobKey


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowance:
    standing: Standing
    """To be kept in the status. `standing.target` trainers are allowed; 0: the job waits."""
    servers: int | None = None
    """Parameter servers beside them; None: it knew of none that were asked for, and the job gets none more."""
    hosts: Mapping[str, int] = field(default_factory=dict)
    """Where new trainers should go, as a preference."""
    fixed_hosts: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Where new Pods of the other roles should go, by role."""
    victims: tuple[str, ...] = ()
    """The Pods that go first while there are more than allowed."""
    code: str = ""
    """Why, in a word that conditions use: `Admitted`, `QuotaExceeded`, `NoRoom`, ..."""
    reason: str = ""
    trimmed: str = ""
    """Why its priority counts for less than it says; empty: it does not."""
    place: int | None = None
    """In the queue; 1 is next. None: it does not wait."""
    aside: bool = False
    """Decided of a job that took no part: its owner had suspended it, or nobody had asked for anything."""
    starts_master: bool = True
    """It may hold a master Pod, admitted or not."""
    by: str = ""
    """Whose it is: what the status has by the same is no news."""
    follows: SchedulingStatus | None = None
    """What the status had, by somebody else, when this was decided; None: nothing."""

    def hosts_for(self, role: str, *, trains: bool) -> Mapping[str, int]:
        """Where new Pods of a role should go, and how many there."""
        return self.hosts if trains else self.fixed_hosts.get(role, {})

    @property
    def is_admitted(self) -> bool:
        return self.standing.target > 0

    def is_overtaken(self, written: SchedulingStatus | None) -> bool:
        """Whether the status says by now what somebody else has decided since."""
        return written is not None and (written.by or "") != self.by and written != self.follows

    def is_about(self, *, takes_part: bool) -> bool:
        """Whether it says anything of the job as it is asked for now."""
        return not (self.aside and takes_part)


class Allowances(Protocol):
    """Where a job's controller finds what it is allowed."""

    def of(self, key: JobKey, uid: str, written: SchedulingStatus | None) -> Allowance | None:
        """`written`: what the job's status has. None: the scheduler has not decided yet, or on something else than
        that. The job keeps what it has, and grows by nothing."""
        ...

    @property
    def trouble(self) -> str | None:
        """Why nothing new is decided at the moment; None: the scheduler works."""
        ...
