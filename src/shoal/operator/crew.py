"""The members of a job while one decision is made: a working copy, and what may be done to it.

`Crew` is the only door to the members. It never gives an id twice, never takes a member's place away without saying
why, and keeps count of the seats: a role has as many as it has members that are not leaving.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import islice

from shoal.api.elasticjob import Role
from shoal.api.reasons import Reason
from shoal.api.resources import Resource
from shoal.core.pods import PodPhase, PodSeen
from shoal.operator.counting import HARDWARE, lost_class
from shoal.operator.memory import SILENT, Member, MemberState, Memory

_KILLED = frozenset({137, 143})
"""Exit codes of Pods that were ended from outside."""

_LAST_ID = 2**30
"""Ids end far below where a status has no room for them. A Pod above was named by somebody else: it is let be."""


def pod_name(job: str, role: Role, number: int) -> str:
    return f"{job}-{role}-{number}"


class Crew:
    def __init__(
        self,
        job: str,
        memory: Memory,
        pods: Iterable[PodSeen],
        *,
        made: Mapping[str, str] | None = None,
        made_elsewhere: frozenset[Role] = frozenset(),
        host_grace: timedelta = timedelta.max,
        now: datetime,
    ) -> None:
        """`made`: names and uids of Pods that this process made. `made_elsewhere`: roles whose Pods the job's master
        makes: who is a member of them is read off the Pods. `host_grace`: how long a host is waited for."""
        self.job = job
        self.made_elsewhere = made_elsewhere
        self._host_grace = host_grace
        self.now = now
        self.pods = {pod.name: pod for pod in pods if pod.role is not None and pod.id < _LAST_ID}
        made = made or {}
        self._members = {
            member.name: replace(member, uid=made[member.name]) if not member.uid and member.name in made else member
            for member in memory.members
        }
        self._next_id = dict(memory.next_id)
        self.said: list[tuple[str, str]] = []
        """Events: a reason in one word, and a sentence."""
        self.lost: list[str] = []
        """Of each member that was lost, the class of its failure."""

    # Looking ---------------------------------------------------------------------------------------------------

    @property
    def members(self) -> tuple[Member, ...]:
        return tuple(sorted(self._members.values(), key=lambda member: (member.role, member.id)))

    @property
    def next_ids(self) -> dict[Role, int]:
        return dict(self._next_id)

    def get(self, name: str) -> Member | None:
        return self._members.get(name)

    def seats(self, role: Role) -> list[Member]:
        return [member for member in self.members if member.role is role and member.has_seat]

    def live(self, role: Role) -> list[Member]:
        return [member for member in self.members if member.role is role and member.is_live]

    def is_running(self, name: str) -> bool:
        pod = self.pods.get(name)
        return pod is not None and pod.phase is PodPhase.RUNNING and not pod.deleting

    def next_id(self, role: Role) -> int:
        return self._next_id.get(role, 0)

    def free_ranks(self, role: Role, count: int) -> list[int]:
        """The lowest so many that nobody has."""
        taken = {member.rank for member in self._members.values() if member.role is role and member.has_seat}
        return list(islice((rank for rank in range(len(taken) + count) if rank not in taken), count))

    def unborn(self, role: Role) -> list[Member]:
        """Members whose Pods were never made."""
        return [member for member in self.live(role) if member.uid is None and member.name not in self.pods]

    def to_create(self, granted: Mapping[Role, int]) -> list[Member]:
        """Members whose Pods are to be made. None while there are as many as granted: somebody has to leave first."""
        found: list[Member] = []
        for role in sorted(Role):
            unborn = self.unborn(role)
            found += unborn[: max(0, granted.get(role, 0) - (len(self.live(role)) - len(unborn)))]
        return found

    def to_delete(self) -> list[PodSeen]:
        leaving = (self.pods.get(m.name) for m in self.members if m.state is MemberState.LEAVING)
        return [pod for pod in leaving if pod is not None and not pod.deleting and not pod.is_over]

    # Changing --------------------------------------------------------------------------------------------------

    def observe(self) -> None:
        """Take in what became of the Pods."""
        for member in self.members:
            self._observe(member, self.pods.get(member.name))
        for pod in sorted(self.pods.values(), key=lambda pod: (pod.role or "", pod.id)):
            if pod.name not in self._members and not pod.is_over and not pod.deleting:
                self._take_in(pod)
        for pod in self.pods.values():
            if pod.role is not None and pod.id >= self.next_id(pod.role):
                self._next_id[pod.role] = pod.id + 1  # also above what our own record has lost

    def add(
        self,
        role: Role,
        *,
        rank: int | None = None,
        number: int | None = None,
        resource: Resource = SILENT,
        avoid_hosts: frozenset[str] = frozenset(),
        replaces: str | None = None,
        relaunches: int = 0,
        reason: str,
    ) -> Member:
        """A new member. Its id is the next one, or `number` if that was never used."""
        number = self.next_id(role) if number is None else number
        assert number >= self.next_id(role), f"{role} {number} was used before"
        self._next_id[role] = number + 1
        member = Member(
            name=pod_name(self.job, role, number),
            role=role,
            id=number,
            rank=self.free_ranks(role, 1)[0] if rank is None else rank,
            resource=resource,
            avoid_hosts=avoid_hosts,
            replaces=replaces,
            relaunches=relaunches,
            reason=reason,
        )
        self._members[member.name] = member
        return member

    def replace(
        self,
        old: Member,
        *,
        number: int | None = None,
        resource: Resource = SILENT,
        avoid_hosts: frozenset[str] = frozenset(),
        charged: bool = False,
        reason: str,
    ) -> Member:
        """Somebody else takes the seat of a member, with what that one had where nothing else is said."""
        self.leave(old, reason)
        new = self.add(
            old.role,
            rank=old.rank,
            number=number,
            resource=resource.over(old.resource),
            avoid_hosts=avoid_hosts | old.avoid_hosts,
            replaces=old.name,
            relaunches=old.relaunches + charged,
            reason=reason,
        )
        self.say(Reason.MEMBER_REPLACED, f"{new.name} takes the place of {old.name}: {reason}")
        return new

    def leave(self, member: Member, reason: str) -> None:
        """Give up a seat. What still runs there is deleted; what has ended stays for its logs."""
        pod = self.pods.get(member.name)
        if pod is None or pod.is_over:
            del self._members[member.name]
        else:
            self._members[member.name] = member.moved(MemberState.LEAVING, now=self.now, reason=reason)

    def say(self, reason: str, sentence: str) -> None:
        self.said.append((reason, sentence))

    def reserve(self, role: Role, number: int) -> None:
        """Never give out this id or a lower one."""
        self._next_id[role] = max(self.next_id(role), number + 1)

    # -----------------------------------------------------------------------------------------------------------

    def _observe(self, member: Member, pod: PodSeen | None) -> None:
        if pod is None:
            if member.state is MemberState.LEAVING or (member.is_live and member.role in self.made_elsewhere):
                del self._members[member.name]
            elif member.is_live and member.uid is not None:
                self._end(member, MemberState.FAILED, "its Pod is gone")
            return
        if member.uid != pod.uid:
            member = self._members[member.name] = replace(member, uid=pod.uid)
        if member.is_live and pod.host in member.avoid_hosts:  # no other had room: it is not lost for being there
            member = self._members[member.name] = replace(member, avoid_hosts=member.avoid_hosts - {pod.host})
        has_lost_host = pod.has_lost_host(self._host_grace, self.now)
        if member.state is MemberState.LEAVING and (pod.is_over or (pod.deleting and has_lost_host)):
            del self._members[member.name]  # who is deleted on a lost host may stay in the books for ever
        elif not member.is_live:
            return
        elif pod.phase is PodPhase.SUCCEEDED:
            self._end(member, MemberState.SUCCEEDED, "its Pod ended well")
        elif pod.phase is PodPhase.FAILED:
            self._end(member, MemberState.FAILED, how_it_ended(pod))
        elif has_lost_host:
            self._lose_host(member, pod)
        elif pod.deleting and member.role in self.made_elsewhere:
            self.leave(member, "its Pod is being deleted")
        elif pod.deleting:
            self._end(member, MemberState.FAILED, "its Pod is being deleted")

    def _end(self, member: Member, state: MemberState, reason: str) -> None:
        self._members[member.name] = member.moved(state, now=self.now, reason=reason)
        if state is MemberState.FAILED:
            pod = self.pods.get(member.name)
            self.lost.append(HARDWARE if has_lost_host(member, pod) else lost_class(pod))
            self.say(Reason.MEMBER_LOST, f"{member.name}: {reason}")

    def _lose_host(self, member: Member, pod: PodSeen) -> None:
        """Its Pod may stay for ever as it is: nobody is there to end it. Who takes its place avoids the host, which may
        come back and be lost again."""
        why = host_lost(pod)
        if member.role in self.made_elsewhere:
            self.leave(member, why)  # the master hears that it is deleted, and makes another
            return
        self._end(replace(member, avoid_hosts=member.avoid_hosts | {pod.host}), MemberState.FAILED, why)

    def _take_in(self, pod: PodSeen) -> None:
        """A Pod of ours that no record names. A newer one than all we know of: the record was lost, so it is a member.
        An older one has been given up before: it goes. One that the master made is a member whatever its number, and
        has the seat that the master gave it."""
        assert pod.role is not None
        elsewhere = pod.role in self.made_elsewhere
        known = pod.id < self.next_id(pod.role) and not elsewhere
        if elsewhere:
            self._give_way(pod)
        taken = {member.rank for member in self.seats(pod.role)}
        self._members[pod.name] = Member(
            name=pod.name,
            role=pod.role,
            id=pod.id,
            rank=pod.rank if pod.rank not in taken else self.free_ranks(pod.role, 1)[0],
            state=MemberState.LEAVING if known else MemberState.LIVE,
            uid=pod.uid,
            ended_at=self.now if known else None,
            reason="it was given up before" if known else "it was found running",
        )

    def _give_way(self, pod: PodSeen) -> None:
        """Whoever had the seat of a new Pod and has ended is no member any more."""
        for member in self.seats(pod.role) if pod.role is not None else ():
            if member.rank == pod.rank and not member.is_live:
                self.leave(member, f"{pod.name} has its seat")
                self.say(Reason.MEMBER_REPLACED, f"{pod.name} takes the place of {member.name}: {member.reason}")


def has_lost_host(member: Member, pod: PodSeen | None) -> bool:
    """Whether a member was given up with its host: while it is live, it avoids no host that it is on."""
    return pod is not None and not pod.is_over and bool(pod.host) and pod.host in member.avoid_hosts


def host_lost(pod: PodSeen) -> str:
    since = "" if pod.host_down is None else f" since {pod.host_down.isoformat(timespec='seconds')}"
    return f"its host {pod.host} has not been ready{since}"


def how_it_ended(pod: PodSeen) -> str:
    if pod.oom_killed:
        return "it was killed for using more memory than it has"
    code = "" if pod.exit_code is None else f"exit code {pod.exit_code}"
    return ", ".join(part for part in (code, pod.reason) if part) or "its Pod failed"


def was_own_fault(member: Member, pods: Sequence[PodSeen]) -> bool:
    """Whether a failed member ended by itself, and not because somebody ended it."""
    pod = next((pod for pod in pods if pod.name == member.name), None)
    return pod is not None and is_own_fault(pod)


def is_own_fault(pod: PodSeen) -> bool:
    """The same of a Pod."""
    if pod.phase is not PodPhase.FAILED:
        return False
    return pod.oom_killed or (pod.exit_code is not None and pod.exit_code not in _KILLED)
