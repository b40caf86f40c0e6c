"""What the operator remembers of a job, in the job's own status: nothing is kept anywhere else.

The *members* are the heart of it. A member is recorded before its Pod is made, under a name that is never used again;
so making it twice makes one, and a Pod that is missing is either still to be made (its uid was never seen) or lost
(its uid is known). A member that failed keeps its *seat* until somebody decides what follows.

| state     | meaning                                             | what ends it                               |
| --------- | --------------------------------------------------- | ------------------------------------------ |
| live      | its Pod is to be there                              | its Pod ends, is lost, or it has to leave  |
| failed    | its Pod ended badly or is gone; its seat waits      | a replacement, a removal, a smaller grant  |
| succeeded | its Pod ended well; its seat is not filled again    | a removal, a smaller grant                 |
| leaving   | no longer a member; its Pod is deleted if it runs   | the Pod is gone: the record is dropped     |
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum

from shoal.api.elasticjob import Role
from shoal.api.resources import Resource
from shoal.core.errors import InvalidMove

SILENT = Resource()
"""Nothing is said about what a member gets."""


class MemberState(StrEnum):
    LIVE = "live"
    FAILED = "failed"
    SUCCEEDED = "succeeded"
    LEAVING = "leaving"


MOVES: Mapping[MemberState, frozenset[MemberState]] = {
    MemberState.LIVE: frozenset({MemberState.FAILED, MemberState.SUCCEEDED, MemberState.LEAVING}),
    MemberState.FAILED: frozenset({MemberState.LEAVING}),
    MemberState.SUCCEEDED: frozenset({MemberState.LEAVING}),
    MemberState.LEAVING: frozenset(),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    name: str
    role: Role
    id: int
    rank: int
    """Which of its role's seats it fills; kept by a replacement."""
    state: MemberState = MemberState.LIVE
    uid: str | None = None
    """Of its Pod, once that was seen."""
    resource: Resource = SILENT
    """What it has instead of its role's: after an OOM, a migration. Kept by its replacements."""
    avoid_hosts: frozenset[str] = frozenset()
    replaces: str | None = None
    relaunches: int = 0
    """How often this seat was filled again because its member failed by its own fault."""
    ended_at: datetime | None = None
    reason: str = ""

    @property
    def is_live(self) -> bool:
        return self.state is MemberState.LIVE

    @property
    def has_seat(self) -> bool:
        return self.state is not MemberState.LEAVING

    @property
    def has_pod(self) -> bool:
        """Whether it matters that its Pod is there: the Pod of one that ended may be gone, and nothing follows."""
        return self.state in (MemberState.LIVE, MemberState.LEAVING)

    def moved(self, to: MemberState, *, now: datetime, reason: str) -> "Member":
        if to not in MOVES[self.state]:
            raise InvalidMove(f"{self.name}: {self.state} -> {to}: {reason}")
        return replace(self, state=to, ended_at=self.ended_at or now, reason=reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """How many members of each role the job may have now."""

    generation: int = 0
    counts: Mapping[Role, int] = field(default_factory=dict)
    victims: tuple[str, ...] = ()
    """Who should go first; they count only while there are more members than granted."""
    drain_by: datetime | None = None
    """When the operator deletes by itself what has to go."""
    reason: str = ""


class MoveState(StrEnum):
    WAITING = "waiting"
    """The member it is about does not run yet."""
    STARTING = "starting"
    """The replacement is on its way; the old member goes on."""
    REMOVING = "removing"
    """The replacement runs; the old member has to go."""
    DONE = "done"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """One entry of `migratePods` or `resource_updation`: carried out once per plan, generation and name."""

    plan: str
    """The uid of the plan."""
    generation: int
    name: str
    state: MoveState
    replacement: str | None = None
    reason: str = ""

    @property
    def is_open(self) -> bool:
        return self.state in (MoveState.STARTING, MoveState.REMOVING)


@dataclass(frozen=True, slots=True, kw_only=True)
class MasterRecord:
    term: int = 0
    """The newest master is `<job>-master-<term>`; recorded before its Pod is made. 0: there was none yet."""
    since: datetime | None = None
    uid: str | None = None
    failures: int = 0
    """How many masters ended in a row by their own fault, without ever having been ready."""
    was_ready: bool = False
    """This term's master has been ready."""
    needed_since: datetime | None = None
    """Since when this term's master, whose Pod is there and has room but has not been ready, keeps a job from training
    that should."""
    silent_since: datetime | None = None
    """Since when no master answers; None: one does."""
    stopped: bool = False
    """It is not wanted now: the job is suspended or over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """When an ask was first seen in its present form: the last changed wins."""

    ask: str
    """`spec` (its mode), `spec.worker` and so on (a count in it), `ScalePlan/NAME`, `JobResource/NAME`."""
    uid: str | None = None
    generation: int = 0
    at: datetime
    counts: Mapping[Role, int] = field(default_factory=dict)
    """What it pins, worked out once: `createPods` and `removePods` count from what there was then."""
    resources: Mapping[Role, Resource] = field(default_factory=dict)
    """What it gives each member, of the roles of which it says that: the master is to know."""
    optimize_mode: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    members: tuple[Member, ...] = ()
    next_id: Mapping[Role, int] = field(default_factory=dict)
    wanted: Mapping[Role, int] = field(default_factory=dict)
    """The counts asked for; kept when the last ask is taken back."""
    grant: Grant = Grant()
    moves: tuple[Move, ...] = ()
    master: MasterRecord = MasterRecord()
    accepted: tuple[Accepted, ...] = ()
    seats: Mapping[tuple[Role, int], Resource] = field(default_factory=dict)
    """What members at some ranks had beyond their role's when they left, as after an OOM: the next one there gets it. A
    job that was scaled down, or suspended, would run out of the same memory again."""
    prepared: str | None = None
    """Which form of the job's fixed objects was made."""
    start_time: datetime | None = None
    finish_time: datetime | None = None

    def of(self, role: Role) -> list[Member]:
        return [member for member in self.members if member.role is role]
