"""Rounds of the scheduler with the production policy: newcomers, restarts, decisions that are void, what-if."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.core.hosts import Amounts, HostSeen, PodUse, QuotaSeen
from shoal.operator.allowances import Allowance
from shoal.operator.scheduling.facts import JobFacts
from shoal.operator.scheduling.kept import Kept
from shoal.operator.scheduling.ledger import Ledger, filled
from shoal.operator.scheduling.round import Held, Holding, Known, Looks, begin, conclude
from shoal.operator.scheduling.whatif import Answer, what_if
from shoal.operator.standings import of_status, to_status
from shoal.scheduler.actuation import Standing
from shoal.scheduler.decisions import Action, Change, Code, Decisions, Reason
from shoal.scheduler.policies import policy
from shoal.scheduler.rows import Attained, JobKey, Kind, Part, Priority, Room, Servers
from shoal.scheduler.settings import SchedulerSettings

SETTINGS = SchedulerSettings(freezing_window=0.0)
CFS = policy("cfs")


def hosts(count: int, gpus: int = 8) -> list[HostSeen]:
    return [HostSeen(name=f"h-{n}", capacity=Amounts(64_000, 2**38, gpus)) for n in range(count)]


def a_job(name: str, least: int = 1, most: int = 4, **more: object) -> JobFacts:
    given = {
        "key": JobKey("default", name),
        "uid": f"{name}-uid",
        "trainer_role": "trainer",
        "each": Room(8_000, 2**30, 4),
        "min": least,
        "max": most,
    }
    return JobFacts(**{**given, **more})  # type: ignore[arg-type]


class Cluster:
    """Hosts and jobs on paper: whatever is allowed runs a second later, where it was planned."""

    def __init__(self, *jobs: JobFacts, count: int = 2, settings: SchedulerSettings = SETTINGS) -> None:
        self.jobs, self.settings = list(jobs), settings
        self.hosts = hosts(count)
        self.pods: dict[str, PodUse] = {}
        self.holding: Holding = {}
        self.min_v, self.now, self._made = 0.0, 1_000.0, 0
        self.ledger, self.looks, self.counted = Ledger(), Looks(), dict[str, PodUse]()
        self.kept, self.last = Kept(), Decisions()

    @property
    def known(self) -> Known:
        return Known(hosts=self.hosts, facts=self.jobs, ledger=filled(self.pods.values()))

    def round(self, seconds: float = 5.0) -> Decisions:
        self.now += seconds
        for uid in self.counted.keys() - self.pods.keys():
            self.ledger.gone(uid)
        for uid, use in self.pods.items():
            if self.counted.get(uid) != use:
                self.ledger.saw(use)
        self.counted = dict(self.pods)
        known = replace(self.known, ledger=self.ledger)
        held = (self.holding, self.min_v, self.settings)
        taken_up = begin(known, *held, looks=self.looks, kept=self.kept, now=self.now)
        assert taken_up == begin(self.known, *held, now=self.now), "a look was outdated"
        decisions = CFS(taken_up.snapshot, self.now, self.settings)
        outcome = conclude(taken_up, decisions, now=self.now)
        self.holding, self.min_v, self.last = outcome.holding, decisions.min_v, decisions
        for change in outcome.carried_out:
            facts = taken_up.facts[change.key]
            allowance = self.allowance(change.key.name)
            for name in [use.name for use in self.pods.values() if use.job == facts.uid]:
                if change.target == 0 or name in allowance.victims:
                    del self.pods[name]
            for host, number in change.hosts.items():
                for _ in range(number):
                    self._made += 1
                    name = f"{change.key.name}-{self._made}"
                    self.pods[name] = PodUse(
                        namespace="default", name=name, uid=name, amounts=Amounts(*facts.each), job=facts.uid,
                        role="trainer", host=host, runs=True, is_ready=True, since=self.now,
                    )  # fmt: skip
        return decisions

    def settle(self) -> None:
        for _ in range(60):
            if not self.round().changes:
                return
        raise AssertionError("it does not settle")

    def allowance(self, name: str) -> Allowance:
        return self.holding[JobKey("default", name)].allowance

    def size(self, name: str) -> int:
        return sum(use.job == f"{name}-uid" for use in self.pods.values())

    def restart(self) -> None:
        """Another operator: what it knows stands in the statuses."""
        self.jobs = [
            replace(job, standing=of_status(to_status(held.allowance)), victims=held.allowance.victims)
            for job in self.jobs
            if (held := self.holding.get(job.key)) is not None
        ]
        self.holding = {}


def test_a_job_with_room_has_all_it_asks_for() -> None:
    cluster = Cluster(a_job("a"))
    cluster.settle()
    assert cluster.size("a") == 4
    assert cluster.allowance("a").place is None


@pytest.mark.parametrize("kind", list(Kind))
def test_a_priority_above_normal_is_for_the_namespaces_that_may_have_it(kind: Kind) -> None:
    job = a_job("a", key=JobKey("team", "a", kind), priority=Priority.PRODUCTION)
    known = Known(hosts=hosts(2), facts=[job], ledger=Ledger())

    def counts(*names: str) -> tuple[Priority, str]:
        taken_up = begin(known, {}, 0.0, replace(SETTINGS, priorities=frozenset(names)), now=1.0)
        return taken_up.views[job.key].row.priority, taken_up.holding[job.key].allowance.trimmed

    assert counts("team") == counts("*") == (Priority.PRODUCTION, "")
    priority, why = counts("another")
    assert priority is Priority.NORMAL
    assert "namespace team is not in the list `priorities`" in why


def test_whoever_says_production_without_the_right_to_it_gets_what_normal_gets() -> None:
    def sizes(priority: Priority) -> list[int]:
        cluster = Cluster(a_job("a"), a_job("b", priority=priority, created=1.0))
        cluster.settle()
        return [cluster.size("a"), cluster.size("b")]

    assert sizes(Priority.PRODUCTION) == sizes(Priority.NORMAL)


@pytest.mark.parametrize("priority", [Priority.NORMAL, Priority.OFFLINE, Priority.EXPERIMENT])
def test_whoever_wants_no_more_than_normal_is_not_trimmed(priority: Priority) -> None:
    cluster = Cluster(a_job("a", priority=priority))
    cluster.settle()
    assert cluster.allowance("a").trimmed == ""


def test_a_newcomer_gets_its_share_of_a_full_cluster() -> None:
    cluster = Cluster(a_job("a"))
    cluster.settle()
    cluster.jobs.append(a_job("b", created=5.0))
    cluster.settle()
    assert (cluster.size("a"), cluster.size("b")) == (2, 2)


def test_who_waits_says_for_what_and_at_which_place() -> None:
    cluster = Cluster(a_job("a", 4, 4))
    cluster.settle()
    cluster.jobs += [a_job("b", 3, 3, created=1.0), a_job("huge", 9, 9, created=2.0)]
    cluster.settle()
    assert cluster.size("a") == 4
    waiting = {name: cluster.allowance(name) for name in ("b", "huge")}
    assert all(each.standing.target == 0 and each.place for each in waiting.values())
    assert waiting["huge"].code == Code.TOO_LARGE
    assert waiting["b"].reason


def test_a_restart_keeps_what_everybody_attained_and_moves_nobody() -> None:
    cluster = Cluster(a_job("a"), a_job("b", created=1.0), a_job("c", 4, 4, created=2.0))
    cluster.settle()
    before = dict(cluster.holding)
    cluster.restart()
    for _ in range(3):
        assert not cluster.round(1.0).changes
    for key, held in before.items():
        earlier, later = held.allowance.standing, cluster.holding[key].allowance.standing
        assert later.target == earlier.target
        assert later.waiting_since == earlier.waiting_since
        assert later.attained.now(cluster.now) >= earlier.attained.now(cluster.now) - 1e-3


def test_a_job_that_its_owner_suspends_keeps_what_it_attained() -> None:
    cluster = Cluster(a_job("a"))
    cluster.settle()
    cluster.round(100.0)
    attained = cluster.allowance("a").standing.attained.now(cluster.now)
    cluster.jobs, cluster.pods = [a_job("a", suspended=True)], {}
    cluster.round()
    resting = cluster.allowance("a")
    assert (resting.code, resting.standing.target, resting.standing.waiting_since) == ("Suspended", 0, None)
    cluster.round(1_000.0)
    cluster.jobs = [a_job("a")]
    cluster.settle()
    assert cluster.size("a") == 4
    assert cluster.allowance("a").standing.attained.now(cluster.now) >= attained


def test_who_asks_for_more_has_it_at_once_although_a_window_is_not_over() -> None:
    cluster = Cluster(a_job("a", most=2), settings=SchedulerSettings(freezing_window=1e6))
    cluster.settle()
    cluster.restart()
    cluster.jobs = [replace(cluster.jobs[0], max=3)]
    cluster.settle()
    assert cluster.size("a") == 3


def test_a_window_outlives_the_operator() -> None:
    cluster = Cluster(a_job("a"), count=1, settings=SchedulerSettings(freezing_window=1e6))
    cluster.settle()
    cluster.restart()
    cluster.hosts = hosts(2)  # room for all that it asks for
    cluster.settle()
    assert cluster.size("a") == 2


def test_another_job_of_the_same_name_is_a_newcomer() -> None:
    cluster = Cluster(a_job("a"))
    cluster.settle()
    cluster.jobs, cluster.pods = [a_job("a", uid="another")], {}
    cluster.round()
    assert cluster.allowance("a").standing.attained.at == cluster.now


def test_a_job_that_nobody_asked_anything_for_takes_no_part_and_may_hold_a_master() -> None:
    few = replace(SETTINGS, max_starting_masters=1)
    jobs = [a_job("a", asks=False), a_job("b", asks=False, created=1.0)]
    taken_up = begin(Known(hosts=hosts(1), facts=jobs, ledger=filled([])), {}, 0.0, few, now=9.0)
    assert taken_up.snapshot.jobs == ()
    allowances = [held.allowance for held in taken_up.holding.values()]
    assert [each.code for each in allowances] == ["WaitingForPlan"] * 2
    assert [each.starts_master for each in allowances] == [True, False]


def test_a_decision_on_another_target_than_there_is_is_void() -> None:
    cluster = Cluster(a_job("a"))
    cluster.settle()
    taken_up = begin(cluster.known, cluster.holding, 0.0, SETTINGS, now=cluster.now)
    reason = Reason(code=Code.FAIRNESS, text="it has had more")
    stale = Change(key=JobKey("default", "a"), action=Action.SHRINK, target=1, before=3, reason=reason)
    outcome = conclude(taken_up, Decisions(changes=(stale,)), now=cluster.now)
    assert outcome.carried_out == ()
    assert outcome.holding == taken_up.holding


def test_victims_that_are_still_there_stay_named_when_more_have_to_go() -> None:
    job = a_job("a", 1, 4)
    pods = [
        PodUse(namespace="default", name=f"p-{n}", uid=f"p-{n}", amounts=Amounts(*job.each), job=job.uid,
               role="trainer", host=f"h-{n}", runs=True, since=float(n))
        for n in range(4)
    ]  # fmt: skip
    known = Known(hosts=hosts(4), facts=[job], ledger=filled(pods))
    before = Allowance(standing=Standing(target=3, attained=Attained(at=1.0)), victims=("p-0",))
    taken_up = begin(known, {job.key: Held(uid=job.uid, allowance=before)}, 0.0, SETTINGS, now=2.0)
    assert [host for host, _ in taken_up.views[job.key].going] == ["h-0"]
    reason = Reason(code=Code.SERVICE, text="a service needs it")
    change = Change(
        key=job.key, action=Action.SHRINK, target=2, before=3, victims={"h-1": 1}, reason=reason, mandatory=True
    )
    held = conclude(taken_up, Decisions(changes=(change,)), now=2.0).holding[job.key]
    assert held.allowance.victims == ("p-0", "p-1")


def test_servers_that_are_asked_to_be_larger_than_the_quota_take_nothing_from_anybody() -> None:
    """Nobody has what was asked for since, so nobody has to give it back."""
    gib, quota = 2**30, QuotaSeen(namespace="default", name="memory", memory=64 * 2**30)
    huge = Servers(each=Room(1_000, 900 * gib), min=1, max=1, per_trainer=0.0)
    ps, other = a_job("ps", 1, 4, servers=huge, server_role="ps"), a_job("other", 1, 2)
    roles = [(ps, "ps", 1), (ps, "trainer", 4), (other, "trainer", 2)]
    pods = [
        PodUse(namespace="default", name=name, uid=name, amounts=Amounts(1_000, gib), job=job.uid, role=role,
               host="h-0", runs=True)
        for job, role, count in roles for name in [f"{job.key.name}-{role}-{n}" for n in range(count)]
    ]  # fmt: skip
    held = {
        job.key: Held(uid=job.uid, allowance=Allowance(standing=Standing(target=job.max, attained=Attained(at=1.0))))
        for job in (ps, other)
    }
    known = Known(hosts=hosts(1), quotas=[quota], facts=[ps, other], ledger=filled(pods))
    taken_up = begin(known, held, 0.0, SETTINGS, now=2.0)
    assert not CFS(taken_up.snapshot, 2.0, SETTINGS).changes


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 3), st.integers(0, 5)), min_size=1, max_size=8),
    st.integers(1, 6),
    st.lists(st.integers(0, 7), max_size=4),
)
def test_jobs_that_come_and_go_never_have_more_than_there_is(
    sizes: list[tuple[int, int]], count: int, ends: list[int]
) -> None:
    jobs = [a_job(f"j{n}", least, least + more, created=float(n)) for n, (least, more) in enumerate(sizes)]
    cluster = Cluster(count=count)
    for job in jobs:
        cluster.jobs.append(job)
        cluster.round()
    cluster.settle()
    for number in ends:
        gone = {job.key for job in jobs[number : number + 1]}
        cluster.jobs = [job for job in cluster.jobs if job.key not in gone]
        cluster.pods = {n: use for n, use in cluster.pods.items() if use.job in {job.uid for job in cluster.jobs}}
        cluster.restart()
        cluster.settle()
    for host in cluster.hosts:
        assert sum(use.amounts.gpu for use in cluster.pods.values() if use.host == host.name) <= host.capacity.gpu
    for job in cluster.jobs:
        size = cluster.size(job.key.name)
        assert size == 0 or job.min <= size <= job.max
        assert size == cluster.allowance(job.key.name).standing.target


# What if ---------------------------------------------------------------------------------------------------------


def ask(cluster: Cluster, job: JobFacts, **more: float) -> Answer:
    pods, chosen = cluster.pods.values(), cluster.settings
    return what_if(cluster.known, pods, job, CFS, chosen, min_v=cluster.min_v, now=cluster.now, **more)


def test_with_room_a_job_would_start_at_once_and_nobody_shrinks() -> None:
    cluster = Cluster(a_job("a", 1, 2))
    cluster.settle()
    answer = ask(cluster, a_job("new", 1, 2))
    assert (answer.starts_in, answer.trainers, answer.effects) == (0, 2, ())


def test_without_room_it_is_said_who_would_shrink() -> None:
    cluster = Cluster(a_job("a", 1, 4))
    cluster.settle()
    cluster.restart()
    answer = ask(cluster, a_job("new", 2, 2, created=9e9))
    assert answer.starts_in is not None
    assert [(each.key.name, each.before, each.after) for each in answer.effects] == [("a", 4, 2)]


def test_what_would_never_start_is_said_with_the_reason() -> None:
    cluster = Cluster(a_job("a", 4, 4))
    cluster.settle()
    cluster.restart()
    answer = ask(cluster, a_job("new", 9, 9), horizon=60.0)
    assert answer.starts_in is None
    assert answer.waits_for
    assert answer.place is not None


def about_to_move() -> Cluster:
    """One with three of four places and one with the fourth, who will be even when their windows are over."""
    cluster = Cluster(a_job("rich", 1, 4), settings=SchedulerSettings(freezing_window=60.0))
    cluster.settle()
    cluster.jobs.append(a_job("poor", 1, 4, created=1.0))
    cluster.round()
    cluster.round()
    assert (cluster.size("rich"), cluster.size("poor")) == (3, 1)
    cluster.restart()
    return cluster


def test_what_comes_to_others_anyway_is_no_effect_of_a_job() -> None:
    cluster = about_to_move()
    answer = ask(cluster, a_job("never", 9, 9, created=2.0), horizon=300.0)
    assert (answer.starts_in, answer.effects) == (None, ())
    for _ in range(60):
        cluster.round()
    assert (cluster.size("rich"), cluster.size("poor")) == (2, 2), "it comes"


@settings(max_examples=15, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 5)), min_size=1, max_size=5), st.integers(1, 4))
def test_a_job_that_can_never_start_takes_nothing_from_anybody(sizes: list[tuple[int, int]], count: int) -> None:
    cluster = Cluster(count=count, settings=SchedulerSettings(freezing_window=20.0))
    for n, (least, more) in enumerate(sizes):
        cluster.jobs.append(a_job(f"j{n}", least, least + more, created=float(n)))
        cluster.round()
    cluster.restart()
    answer = ask(cluster, a_job("never", 99, 99, created=99.0), horizon=150.0)
    assert (answer.starts_in, answer.effects) == (None, ())


def test_a_job_that_lost_its_host_goes_back_into_the_queue_when_no_other_has_room() -> None:
    """Until then nobody grows; afterwards it waits like everybody, and may be kept room for."""
    cluster = Cluster(a_job("rigid", 2, 2), a_job("lost", 2, 2, created=1.0))
    cluster.settle()
    gone = next(use.host for use in cluster.pods.values() if use.job == "lost-uid")
    cluster.hosts = [host for host in cluster.hosts if host.name != gone]
    cluster.pods = {name: use for name, use in cluster.pods.items() if use.host != gone}
    while cluster.allowance("lost").is_admitted and cluster.now < 1_200.0:
        cluster.round(10.0)
    assert cluster.allowance("lost").standing.target == 0
    assert cluster.allowance("lost").standing.short_since is None
    assert cluster.size("rigid") == 2
    cluster.round()
    assert (cluster.allowance("lost").place, cluster.allowance("lost").code) == (1, Code.NO_ROOM)


def test_trainers_that_find_no_host_are_given_up_whoever_leads_and_not_given_again_at_once() -> None:
    """How long they have waited is told by their Pods, and how long they are not tried again by the job's status."""
    cluster = Cluster(a_job("stuck", 1, 2), a_job("hungry", 1, 3, created=1.0))
    cluster.settle()
    assert (cluster.size("stuck"), cluster.size("hungry")) == (2, 2)
    young = max((use for use in cluster.pods.values() if use.job == "stuck-uid"), key=lambda use: use.name)
    cluster.pods[young.name] = replace(young, host="", runs=False, is_ready=False)
    for _ in range(17):
        assert not cluster.round(100.0).changes
        cluster.restart()
    cluster.round(100.0)
    assert (cluster.size("stuck"), cluster.size("hungry")) == (1, 3)
    assert cluster.allowance("stuck").code == Code.UNSCHEDULABLE
    cluster.jobs = [job for job in cluster.jobs if job.key.name == "stuck"]
    cluster.pods = {name: use for name, use in cluster.pods.items() if use.job == "stuck-uid"}
    for _ in range(17):
        cluster.restart()
        assert not cluster.round(100.0).changes, "there is room, and it is held"
    cluster.round(100.0)
    cluster.settle()
    assert cluster.size("stuck") == 2
    assert cluster.allowance("stuck").standing.held_until == 0.0


def test_an_allowance_says_where_room_was_found_for_each_role() -> None:
    servers = Servers(each=Room(4_000, 2**30), min=2, max=2, per_trainer=0.0)
    master = Part(role="master", each=Room(1_000, 2**20), count=1)
    cluster = Cluster(a_job("one", 2, 2, fixed=(master,), servers=servers, server_role="pserver"))
    cluster.round()
    allowance = cluster.allowance("one")
    assert sum(allowance.hosts.values()) == 2
    assert {role: sum(hosts.values()) for role, hosts in allowance.fixed_hosts.items()} == {"master": 1, "pserver": 2}
    assert {host for hosts in allowance.fixed_hosts.values() for host in hosts} <= {"h-0", "h-1"}
