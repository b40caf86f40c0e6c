"""Two operators that both take themselves for the leader: each has a memory of its own, they share the statuses.

A decision is a swap. It is written only where the status still has what it was decided on, so neither undoes what the
other one decided, and when nobody asks for anything new any more both come to rest. A job may be suspended and resumed
while one of them looks elsewhere: whoever has heard of it takes nothing back from whoever has not.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from shoal.api.scheduling import SchedulingStatus
from shoal.core.hosts import Amounts, HostSeen, PodUse
from shoal.operator.allowances import Allowance
from shoal.operator.scheduling.facts import JobFacts
from shoal.operator.scheduling.ledger import filled
from shoal.operator.scheduling.round import Holding, Known, begin, conclude
from shoal.operator.standings import of_status, to_status
from shoal.scheduler.policies import policy
from shoal.scheduler.rows import JobKey, Room, Servers
from shoal.scheduler.settings import SchedulerSettings

SETTINGS = SchedulerSettings(freezing_window=30.0)
CFS = policy("cfs")
NAMES = ("a", "b")
SERVED = frozenset({"b"})
"""Those that have parameter servers, one for each two trainers."""
HOSTS = [HostSeen(name="h", capacity=Amounts(8_000, 2**38, 0, 100))]


@dataclass(frozen=True, kw_only=True)
class Stored:
    """A job as the API server has it."""

    version: int = 0
    most: int = 2
    suspended: bool = False
    written: SchedulingStatus | None = None
    granted: int = 0
    """Trainers that the job's controller has recorded; whoever is recorded runs."""
    servers: int = 0
    victims: tuple[str, ...] = ()
    pods: tuple[str, ...] = ()
    """Trainers, the oldest first."""
    names: int = 0
    """How many were ever given."""

    @property
    def target(self) -> int:
        return (self.written.target if self.written is not None else 0) or 0


def facts(name: str, stored: Stored) -> JobFacts:
    return JobFacts(
        key=JobKey("default", name),
        uid=name,
        trainer_role="trainer",
        each=Room(1_000),
        min=1,
        max=stored.most,
        suspended=stored.suspended,
        servers=Servers(each=Room(500), min=1, max=4, per_trainer=0.5) if name in SERVED else None,
        server_role="ps",
        victims=stored.victims,
        written=stored.written,
        standing=of_status(stored.written),
        code=(stored.written.code if stored.written else None) or "",
        reason=(stored.written.reason if stored.written else None) or "",
    )


def pods_of(stored: Mapping[str, Stored]) -> list[PodUse]:
    """Whatever is written runs."""
    return [
        PodUse(
            namespace="default", name=pod, uid=pod, amounts=Amounts(millicores, pods=1),
            job=name, role=role, host="h", runs=True, is_ready=True, since=float(number),
        )
        for name, job in stored.items()
        for role, millicores, pods in (("trainer", 1_000, job.pods), ("ps", 500, servers_of(name, job)))
        for number, pod in enumerate(pods)
    ]  # fmt: skip


def servers_of(name: str, job: Stored) -> tuple[str, ...]:
    return tuple(f"{name}-ps-{number}" for number in range(job.servers))


def with_members(name: str, job: Stored, granted: int, victims: tuple[str, ...]) -> Stored:
    """The members that a controller makes of what is granted: those who are named go first, then the newest."""
    going = sorted(job.pods, key=lambda pod: (pod not in victims, -job.pods.index(pod)))[: len(job.pods) - granted]
    kept = tuple(pod for pod in job.pods if pod not in going) if len(job.pods) > granted else job.pods
    fresh = tuple(f"{name}-{job.names + number}" for number in range(granted - len(kept)))
    live = tuple(victim for victim in victims if victim in kept)
    return replace(job, granted=granted, pods=kept + fresh, names=job.names + len(fresh), victims=live)


@dataclass
class Server:
    jobs: dict[str, Stored] = field(default_factory=lambda: {name: Stored() for name in NAMES})
    targets: dict[str, list[int]] = field(default_factory=lambda: {name: [0] for name in NAMES})
    writes: int = 0
    put_back: list[str] = field(default_factory=list)
    """Jobs that lost all their members though nobody had suspended them. There is always room for one."""

    def ask(self, name: str, most: int) -> None:
        self._change(name, most=most)

    def suspend(self, name: str, suspended: bool) -> None:
        self._change(name, suspended=suspended)

    def _change(self, name: str, **spec: Any) -> None:
        job = self.jobs[name]
        self.jobs[name] = replace(job, **spec, version=job.version + 1)

    def write(self, name: str, new: Stored) -> None:
        job = self.jobs[name]
        if job.version != new.version:
            return  # a conflict: whoever writes has to look again
        self.jobs[name] = replace(new, version=job.version + 1)
        self.writes += 1
        if job.granted and not new.granted and not job.suspended:
            self.put_back.append(name)
        if self.targets[name][-1] != new.target:
            self.targets[name].append(new.target)


@dataclass
class Leader:
    by: str
    server: Server
    seen: dict[str, Stored] = field(default_factory=dict)
    holding: Holding = field(default_factory=dict)
    min_v: float = 0.0

    def look(self, name: str) -> None:
        self.seen[name] = self.server.jobs[name]

    def round(self, now: float) -> None:
        known = Known(
            hosts=HOSTS, facts=[facts(*each) for each in self.seen.items()], ledger=filled(pods_of(self.server.jobs))
        )
        taken_up = begin(known, self.holding, self.min_v, SETTINGS, by=self.by, now=now)
        decisions = CFS(taken_up.snapshot, now, SETTINGS)
        self.holding, self.min_v = conclude(taken_up, decisions, now=now).holding, decisions.min_v

    def write(self, name: str) -> None:
        """The job's controller: what it takes up of the allowance, and what it grants by that."""
        seen = self.seen.get(name)
        if seen is None:
            return
        allowance = self._allowance(name, seen)
        allowed, servers, victims = seen.granted, seen.servers, seen.victims
        if allowance is not None:
            allowed, servers, victims = allowance.standing.target, allowance.servers or 0, allowance.victims
        granted = 0 if seen.suspended else min(allowed, seen.most)
        new = replace(with_members(name, seen, granted, victims), servers=servers if granted else 0)
        if allowance is not None:
            new = replace(new, written=to_status(allowance, seen.written))
        if new != seen:
            self.server.write(name, new)

    def _allowance(self, name: str, seen: Stored) -> Allowance | None:
        held = self.holding.get(JobKey("default", name))
        if held is None or held.allowance.is_overtaken(seen.written):
            return None
        return held.allowance if held.allowance.is_about(takes_part=not seen.suspended) else None


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), st.sampled_from(NAMES), st.integers(1, 8)),
        st.tuples(st.just("suspend"), st.sampled_from(NAMES), st.integers(0, 1)),
        st.tuples(st.sampled_from(("look", "write", "see to")), st.sampled_from(NAMES), st.integers(0, 1)),
        st.tuples(st.just("round"), st.just("a"), st.integers(0, 1)),
    ),
    max_size=60,
)


@given(steps=STEPS)
@settings(max_examples=60, deadline=None)
def test_two_leaders_do_not_undo_each_other_and_come_to_rest(steps: list[tuple[str, str, int]]) -> None:
    server, now = Server(), 1_000.0
    leaders = [Leader("one", server), Leader("other", server)]
    _is_quiet_cycle(server, leaders, 0.0)
    for what, name, number in steps:
        now += 1.0
        if what == "ask":
            server.ask(name, number)
        elif what == "suspend":
            server.suspend(name, bool(number))
        elif what == "look":
            leaders[number].look(name)
        elif what == "write":
            leaders[number].write(name)
        elif what == "see to":
            leaders[number].look(name)
            leaders[number].write(name)
        else:
            leaders[number].round(now)
    for name in NAMES:
        server.suspend(name, False)
    seen = {name: len(targets) for name, targets in server.targets.items()}
    assert any(_is_quiet_cycle(server, leaders, now + 100.0 * cycle) for cycle in range(20)), "they write for ever"
    for name, job in server.jobs.items():
        later = server.targets[name][seen[name] - 1 :]
        assert len(later) == len(set(later)), f"{name} went to and fro: {later}"
        assert 1 <= job.target == job.granted == len(job.pods)
        assert job.servers == (0 if name not in SERVED else max(1, math.ceil(job.granted * 0.5)))
    assert not server.put_back
    used = sum(job.granted + 0.5 * job.servers for job in server.jobs.values())
    assert used <= 8.0
    assert used >= 6.0 or all(job.granted == job.most for job in server.jobs.values())


def _is_quiet_cycle(server: Server, leaders: list[Leader], now: float) -> bool:
    """Everybody does everything, with a freezing window in between. Returns whether nothing was written."""
    writes = server.writes
    for turn, leader in enumerate((*leaders, *leaders)):
        for name in NAMES:
            leader.look(name)
        leader.round(now + turn * 25.0)
        for name in NAMES:
            leader.write(name)
    return server.writes == writes


def test_what_is_only_said_by_somebody_else_is_not_said_again() -> None:
    server = Server()
    one, other = Leader("one", server), Leader("other", server)
    for leader in (one, other):
        for _ in range(3):
            for name in NAMES:
                leader.look(name)
            leader.round(1_000.0)
            for name in NAMES:
                leader.write(name)
    assert {job.written.by for job in server.jobs.values() if job.written is not None} == {"one"}


def test_a_status_that_nobody_can_read_does_not_shut_out_its_reader() -> None:
    server = Server()
    for name in NAMES:
        server.jobs[name] = Stored(written=SchedulingStatus(target=3, by="somebody"))
    one = Leader("one", server)
    for name in NAMES:
        one.look(name)
    one.round(1_000.0)
    for name in NAMES:
        one.write(name)
    assert {job.written.by for job in server.jobs.values() if job.written is not None} == {"one"}


TURNS = st.lists(st.tuples(st.integers(0, 1), st.sampled_from(("see to", "round", "both"))), max_size=4)


@given(pauses=st.lists(st.tuples(st.sampled_from(NAMES), TURNS, TURNS), min_size=1, max_size=4))
@example(pauses=[("a", [(1, "see to"), (0, "round")], [(1, "see to"), (0, "see to"), (0, "both"), (1, "both")])])
@settings(max_examples=60, deadline=None)
def test_who_has_heard_of_a_suspension_puts_nobody_back_who_was_resumed(
    pauses: list[tuple[str, list[tuple[int, str]], list[tuple[int, str]]]],
) -> None:
    """In the example one has decided that the job rests, and not written it; the other has not heard of it, and goes on
    by what is written."""
    server, now = Server(), 1_000.0
    leaders = [Leader("one", server), Leader("other", server)]
    _is_quiet_cycle(server, leaders, 0.0)
    for name, meanwhile, afterwards in pauses:
        for suspended, turns in ((True, meanwhile), (False, afterwards)):
            server.suspend(name, suspended)
            for number, what in turns:
                now += 1.0
                leaders[number].look(name)
                if what != "see to":
                    leaders[number].round(now)
                if what != "round":
                    leaders[number].write(name)
    assert not server.put_back
    assert any(_is_quiet_cycle(server, leaders, now + 100.0 * cycle) for cycle in range(20)), "they write for ever"
    assert not server.put_back
