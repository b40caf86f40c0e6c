"""From Pods and hosts to the rows of a policy: nothing is counted twice, nothing is forgotten."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.core.hosts import Amounts, Demand, HostSeen, Placement, PodUse, QuotaSeen, Taint, Toleration
from shoal.operator.scheduling.facts import JobFacts
from shoal.operator.scheduling.ledger import ANY_HOST, Ledger, filled
from shoal.operator.scheduling.reading import Pools, host_rows, look_at, quota_rows, waiting_services
from shoal.scheduler.actuation import Standing
from shoal.scheduler.rows import JobKey, Part, Quota, Room, Servers

HOSTS = ("a", "b", "c")
JOB = "job-uid"
KEY = JobKey("default", "mnist")


def a_use(number: int = 0, **more: object) -> PodUse:
    given = {"namespace": "default", "name": f"p-{number}", "uid": f"u-{number}", "amounts": Amounts(1000, 10, 1, 1)}
    return PodUse(**{**given, **more})  # type: ignore[arg-type]


def a_trainer(number: int, host: str = "a", **more: object) -> PodUse:
    return a_use(number, job=JOB, role="worker", host=host, runs=bool(host), since=float(number), **more)


def facts(**more: object) -> JobFacts:
    given = {"key": KEY, "uid": JOB, "trainer_role": "worker", "each": Room(1000, 10, 1), "max": 8}
    return JobFacts(**{**given, **more})  # type: ignore[arg-type]


uses = st.builds(
    a_use,
    st.integers(0, 12),
    job=st.sampled_from(("", JOB, "other")),
    role=st.sampled_from(("worker", "master", "ps")),
    host=st.sampled_from(("", *HOSTS)),
    runs=st.booleans(),
    is_over=st.booleans(),
    ends=st.sampled_from((None, None, 5.0)),
    amounts=st.builds(Amounts, st.integers(0, 4000), st.integers(0, 100), st.integers(0, 4)),
)
steps = st.lists(st.one_of(uses, st.integers(0, 12)), max_size=40)


@given(steps)
def test_a_ledger_that_was_changed_step_by_step_is_one_that_was_filled_at_once(story: list[PodUse | int]) -> None:
    ledger, there = Ledger(), dict[str, PodUse]()
    for step in story:
        if isinstance(step, int):
            ledger.gone(f"u-{step}")
            there.pop(f"u-{step}", None)
        else:
            ledger.saw(step)
            there[step.uid] = step
    at_once = filled(there.values())
    for host in HOSTS:
        assert ledger.strangers(host) == at_once.strangers(host)
        assert sorted(ledger.ending(host), key=str) == sorted(at_once.ending(host), key=str)
    assert ledger.used("default") == at_once.used("default")
    assert sorted(ledger.jobs()) == sorted(at_once.jobs())
    assert ledger.of(JOB, "default") == at_once.of(JOB, "default")
    assert sorted(ledger.homeless(), key=lambda use: use.uid) == sorted(at_once.homeless(), key=lambda use: use.uid)


@given(steps, steps)
def test_a_ledger_as_it_was_is_not_reached_by_what_happens_later(
    before: list[PodUse | int], after: list[PodUse | int]
) -> None:
    def told(ledger: Ledger, story: list[PodUse | int]) -> None:
        for step in story:
            if isinstance(step, int):
                ledger.gone(f"u-{step}")
            else:
                ledger.saw(step)

    ledger, same = Ledger(), Ledger()
    told(ledger, before)
    told(same, before)
    as_it_was = ledger.as_it_is()
    assert all_of(as_it_was) == all_of(same)
    told(ledger, after)
    assert all_of(as_it_was) == all_of(same)
    told(same, after)
    assert all_of(ledger) == all_of(same)


def all_of(ledger: Ledger) -> object:
    owners = sorted(ledger.jobs())
    return (
        [(owner, ledger.of(owner[1], owner[0]), ledger.version(owner[1], owner[0])) for owner in owners],
        [(host, ledger.strangers(host), sorted(map(str, ledger.ending(host)))) for host in HOSTS],
        sorted(map(str, ledger.homeless())),
        ledger.used("default"),
    )


@given(st.lists(uses, max_size=20))
def test_a_ledger_of_whom_nobody_is_left_keeps_nothing(seen: list[PodUse]) -> None:
    ledger = Ledger()
    for use in seen:
        ledger.saw(use)
    for use in seen:
        ledger.gone(use.uid)
    kept = {name: value for name, value in vars(ledger).items() if isinstance(value, dict)}
    assert not any(kept.values())
    assert not list(ledger.jobs())


def test_jobs_that_come_and_go_have_no_version_twice() -> None:
    ledger = Ledger()
    versions = []
    for number in range(4):
        ledger.saw(a_trainer(number))
        versions.append(ledger.version(JOB, "default"))
        ledger.gone(f"u-{number}")
    assert len(set(versions)) == 4


def test_a_pod_of_another_namespace_is_no_trainer_whatever_its_label_says() -> None:
    mine, foreign = a_trainer(1), a_use(2, namespace="elsewhere", job=JOB, role="worker", host="a", runs=True)
    ledger = filled([mine, foreign])
    view = look_at(facts(), Standing(target=1), ledger.of(JOB, "default"), ledger, now=0.0)
    assert [pod.name for pod in view.trainers] == [mine.name]
    assert not view.row.resizing
    seen = [HostSeen(name="a", capacity=Amounts(8000, 100, 8, 110))]
    (row,) = host_rows(seen, ledger, [view], frozenset({("default", JOB)}), Pools(seen, ()))
    assert row.others == Room(*foreign.amounts), "its room is taken, by nobody who is decided for"


@pytest.mark.parametrize(("host", "resizing"), [("", False), ("a", True)])
def test_a_replacement_that_finds_no_host_is_no_change_that_others_wait_for(host: str, resizing: bool) -> None:
    old = [a_use(n, job=JOB, role="worker", host="a", runs=True) for n in (1, 2)]
    ledger = filled([*old, a_use(3, job=JOB, role="worker", host=host, since=9.0)])
    row = look_at(facts(), Standing(target=2), ledger.of(JOB, "default"), ledger, now=10.0).row
    assert (row.running, row.leaving, row.resizing) == (2, 1, resizing)


@settings(max_examples=200)
@given(st.lists(uses, unique_by=lambda use: use.uid, max_size=13), st.integers(0, 8))
def test_all_that_is_taken_on_a_host_is_counted_there_once(there: list[PodUse], target: int) -> None:
    ledger = filled(there)
    view = look_at(facts(), Standing(target=target), ledger.of(JOB, "default"), ledger, now=0.0)
    seen = [HostSeen(name=name, capacity=Amounts(10**6, 10**6, 10**3, 110)) for name in HOSTS]
    rows = host_rows(seen, ledger, [view], frozenset({("default", JOB)}), Pools(seen, ()))
    for row in rows:
        taken = row.others.plus(view.row.fixed_placed.get(row.name, Room()))
        for leaving in row.leaving:
            taken = taken.plus(leaving.room)
        stay = [use for use in there if use.host == row.name and not use.is_over]
        mine = [use for use in stay if use.job == JOB and use.role == "worker" and use.ends is None]
        others = [use for use in stay if use not in mine]
        goes = sum(1 for host, _ in view.going if host == row.name)
        assert view.row.placed.get(row.name, 0) + goes == len(mine)
        total = Room()
        for use in others:
            total = total.plus(Room(*use.amounts))
        for host, leaving in view.going:
            total = total.plus(leaving.room) if host == row.name else total
        assert taken == total


@given(st.lists(uses, unique_by=lambda use: use.uid, max_size=13), st.integers(0, 8))
def test_a_job_has_no_more_trainers_than_it_may_and_the_rest_is_going(there: list[PodUse], target: int) -> None:
    ledger = filled(there)
    view = look_at(facts(), Standing(target=target), ledger.of(JOB, "default"), ledger, now=0.0)
    placed = sum(view.row.placed.values())
    assert placed <= target
    assert placed + view.row.pending == target
    if view.going:
        assert view.row.resizing


def test_victims_that_were_named_go_before_the_youngest() -> None:
    ledger = filled([a_trainer(0), a_trainer(1, "b"), a_trainer(2, "c")])
    standing = Standing(target=2)
    view = look_at(facts(victims=("p-0",)), standing, ledger.of(JOB, "default"), ledger, now=10.0)
    assert [host for host, _ in view.going] == ["a"]
    view = look_at(facts(), standing, ledger.of(JOB, "default"), ledger, now=10.0)
    assert [host for host, _ in view.going] == ["c"]


def test_what_is_still_missing_of_a_gang_is_said() -> None:
    parts = (Part(role="master", each=Room(100), count=1),)
    servers = Servers(each=Room(500), min=1, max=4, per_trainer=0.5)
    job = facts(fixed=parts, servers=servers, server_role="ps")
    ledger = filled([a_use(1, job=JOB, role="ps", host="a"), a_trainer(2)])
    row = look_at(job, Standing(target=4), ledger.of(JOB, "default"), ledger, now=0.0).row
    assert [(part.role, part.count) for part in row.fixed_pending] == [("master", 1), ("ps", 1)]
    assert (row.pending, row.resizing) == (3, True)
    assert look_at(job, Standing(), ledger.of(JOB, "default"), ledger, now=0.0).row.fixed_pending == ()


def test_a_job_at_its_size_is_settled() -> None:
    ledger = filled([a_trainer(0), a_trainer(1)])
    row = look_at(facts(), Standing(target=2), ledger.of(JOB, "default"), ledger, now=0.0).row
    assert not row.resizing
    assert (row.running, row.pending, dict(row.placed)) == (2, 0, {"a": 2})


def test_trainers_that_ended_well_are_not_missed() -> None:
    ledger = filled([a_trainer(0), a_trainer(1, succeeded=True, is_over=True)])
    row = look_at(facts(spared=frozenset({"p-1"})), Standing(target=2), ledger.of(JOB, "default"), ledger, now=0.0).row
    assert (row.ended, row.pending, row.resizing) == (1, 0, False)
    row = look_at(facts(spares_succeeded=True), Standing(target=2), ledger.of(JOB, "default"), ledger, now=0.0).row
    assert (row.ended, row.pending, row.resizing) == (1, 0, False)
    row = look_at(facts(), Standing(target=2), ledger.of(JOB, "default"), ledger, now=0.0).row
    assert (row.ended, row.pending, row.resizing) == (0, 1, True)


# Hosts -----------------------------------------------------------------------------------------------------------

GPU_ONLY = Placement(((Demand("kind", "In", ("gpu",)),),), (Toleration("dedicated", "Exists"),))


def test_hosts_that_everybody_takes_alike_are_one_pool() -> None:
    hosts = [HostSeen(name=f"h-{n}", capacity=Amounts(1), labels={"hostname": f"h-{n}"}) for n in range(100)]
    pools = Pools(hosts, [Placement()])
    assert len({pools.of_host(host.name) for host in hosts}) == 1
    assert pools.admitting(Placement()) is None


def test_labels_and_taints_make_pools() -> None:
    plain = HostSeen(name="plain", capacity=Amounts(1))
    gpu = HostSeen(name="gpu", capacity=Amounts(1), labels={"kind": "gpu"}, taints=(Taint("dedicated"),))
    pools = Pools([plain, gpu], [Placement(), GPU_ONLY])
    assert pools.admitting(Placement()) == frozenset({pools.of_host("plain")})
    assert pools.admitting(GPU_ONLY) == frozenset({pools.of_host("gpu")})


@pytest.mark.parametrize(
    ("demand", "labels", "holds"),
    [
        pytest.param(Demand("a", "In", ("1", "2")), {"a": "2"}, True, id="in"),
        pytest.param(Demand("a", "NotIn", ("1",)), {}, True, id="not-in-without-the-label"),
        pytest.param(Demand("a", "Exists"), {}, False, id="exists"),
        pytest.param(Demand("a", "DoesNotExist"), {}, True, id="does-not-exist"),
        pytest.param(Demand("a", "Gt", ("3",)), {"a": "4"}, True, id="greater"),
        pytest.param(Demand("a", "Lt", ("3",)), {"a": "x"}, False, id="no-number"),
        pytest.param(Demand("a", "Newest"), {}, True, id="a-word-that-came-later"),
    ],
)
def test_demands_on_hosts_are_those_of_kubernetes(demand: Demand, labels: dict[str, str], holds: bool) -> None:
    assert demand.holds(labels) is holds


def test_a_daemons_pod_is_for_its_own_host() -> None:
    mine = Placement(((Demand("metadata.name", "In", ("b",)),),))
    hosts = [HostSeen(name=name, capacity=Amounts(1)) for name in HOSTS]
    pools = Pools(hosts, [mine])
    assert pools.admitting(mine) == frozenset({pools.of_host("b")})
    assert pools.of_host("a") == pools.of_host("c") != pools.of_host("b")


def test_without_a_look_at_hosts_there_is_one_that_holds_everything() -> None:
    ledger = filled([a_trainer(0, "somewhere")], knows_hosts=False)
    view = look_at(facts(), Standing(target=1), ledger.of(JOB, "default"), ledger, now=0.0)
    (row,) = host_rows(None, ledger, [view], frozenset({("default", JOB)}), Pools((), ()))
    assert row.name == ANY_HOST
    assert dict(view.row.placed) == {ANY_HOST: 1}
    assert row.capacity.holds(Room(cpu=10**9, memory=2**50, gpu=10**6))


# Services and quotas ---------------------------------------------------------------------------------------------


def test_a_service_is_what_is_no_jobs_and_finds_no_host_and_is_important_enough() -> None:
    waiting = a_use(0, is_unschedulable=True)
    not_yet = a_use(1)
    unimportant = a_use(2, is_unschedulable=True, priority=-10)
    training = a_use(3, is_unschedulable=True, job="other")
    ending = a_use(4, is_unschedulable=True, ends=3.0)
    found = waiting_services(filled([waiting, not_yet, unimportant, training, ending]), 0)
    assert found == [waiting]


def test_of_two_limits_the_smaller_holds_and_kubernetes_own_counts_other_pods_too() -> None:
    ledger = filled([a_use(0, host="a"), a_use(1, job=JOB, host="a")])
    seen = [
        QuotaSeen(namespace="default", name="one", cpu=8000, pods=5),
        QuotaSeen(namespace="default", name="two", cpu=9000),
    ]
    found = quota_rows(
        seen, {"default": Quota(cpu=7000, gpu=3), "team": Quota(gpu=1)}, ledger, frozenset({("default", JOB)})
    )
    assert found["default"] == Quota(cpu=7000, gpu=3, pods=5, used_by_others=Room(*a_use(0).amounts), pods_of_others=1)
    assert found["team"] == replace(Quota(), gpu=1)


def test_pods_of_jobs_that_take_no_part_count_against_the_quota_until_they_are_gone() -> None:
    """As Kubernetes counts them: what else is let in meanwhile would be refused."""
    resting = [a_use(0, job="resting", host="a", ends=30.0), a_use(1, job="resting", host="a")]
    over = a_use(2, job="resting", host="a", is_over=True)
    elsewhere = a_use(3, job="resting", namespace="team", host="a")
    seen = [QuotaSeen(namespace="default", name="one", gpu=4)]
    ledger = filled([*resting, over, elsewhere, a_use(4, job=JOB, host="a")])
    found = quota_rows(seen, {}, ledger, frozenset({("default", JOB)}))
    assert found == {"default": Quota(gpu=4, leaving=Room(2000, 20, 2, 2))}


def test_trainers_count_as_what_they_have_whatever_is_asked_for_since() -> None:
    """A plan that no host can follow takes nothing from anybody, nor from the job itself."""
    there = [a_trainer(number, amounts=Amounts(1_000, 2 * 2**30)) for number in range(2)]
    asked = facts(each=Room(1_000, 900 * 2**30))
    ledger = filled(there)
    assert look_at(asked, Standing(target=2), there, ledger, now=0.0).row.each == Room(1_000, 2 * 2**30)
    assert look_at(asked, Standing(target=2), [], ledger, now=0.0).row.each == asked.each


def test_servers_and_fixed_pods_count_as_what_they_have_whatever_is_asked_for_since() -> None:
    has = Amounts(1_000, 2 * 2**30)
    there = [
        a_trainer(0),
        a_use(1, job=JOB, role="ps", host="a", amounts=has),
        a_use(2, job=JOB, role="chief", host="a"),
    ]
    huge = Room(1_000, 900 * 2**30)
    asked = facts(
        fixed=(Part(role="chief", each=huge, count=1), Part(role="evaluator", each=huge, count=1)),
        servers=Servers(each=huge, min=2, max=2, per_trainer=0.0),
        server_role="ps",
    )
    ledger = filled(there)
    row = look_at(asked, Standing(target=1), there, ledger, now=0.0).row
    assert row.servers == Servers(each=Room(*has), min=2, max=2, per_trainer=0.0)
    assert [part.each for part in row.fixed] == [Room(*there[2].amounts), huge], "nobody is there of the second"
    assert [(part.role, part.each) for part in row.fixed_pending] == [("evaluator", huge), ("ps", Room(*has))]
    nobody = look_at(asked, Standing(target=1), [], ledger, now=0.0).row
    assert (nobody.servers, nobody.fixed) == (asked.servers, asked.fixed)
