"""What a job asks for, and what was decided for it before: the same words for every kind of job."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from shoal.api.scheduling import SchedulingStatus
from shoal.core.hosts import ANYWHERE, Placement
from shoal.scheduler.actuation import Standing
from shoal.scheduler.rows import NOTHING, JobKey, Part, Priority, Room, Seconds, Servers


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFacts:
    key: JobKey
    uid: str
    priority: Priority = Priority.NORMAL
    created: Seconds = 0.0
    asks: bool = True
    """Whether anybody has said what it should have. One of which nobody has takes no part yet."""
    lacks: tuple[str, str] | None = None
    """What has to be said first, as a code and a sentence; None: how many members it should have."""
    suspended: bool = False
    """By its owner."""
    min: int = 1
    max: int = 1
    unit: int = 1
    trainer_role: str = ""
    """Of the Pods whose number is decided."""
    each: Room = NOTHING
    placement: Placement = ANYWHERE
    """Of a trainer."""
    placements: Mapping[str, Placement] = field(default_factory=dict)
    """By role, of its other Pods. A role that is not named may be anywhere."""
    fixed: tuple[Part, ...] = ()
    servers: Servers | None = None
    server_role: str = ""
    freezing_window: Seconds | None = None
    drain: Seconds = 0.0
    """What Pods get between the word that they have to go and the order to end."""
    grace: Seconds = 30.0
    """What they get after it."""

    written: SchedulingStatus | None = None
    """What its status has of earlier decisions."""
    standing: Standing | None = None
    """That, as far as it can be read; None: the scheduler has never met the job."""
    code: str = ""
    reason: str = ""
    victims: tuple[str, ...] = ()
    """The Pods that were named to go."""
    spared: frozenset[str] = field(default_factory=frozenset)
    """Pods that are trainers no longer: they have ended, and their places are not filled again."""
    spares_succeeded: bool = False
    """So is every trainer that ended well: Kubernetes' batch Jobs make none in its place."""

    @property
    def takes_part(self) -> bool:
        return self.asks and not self.suspended
