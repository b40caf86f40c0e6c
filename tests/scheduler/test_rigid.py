"""`fifo` and `static`: gangs start whole and in their turn, and nobody is ever resized."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.scheduler.world import a_host, a_job, hosts, room

from shoal.scheduler import fifo, static
from shoal.scheduler.decisions import Action, Code, Decisions
from shoal.scheduler.rows import Host, Job, JobKey, Leaving, Part, Quota, Servers
from shoal.scheduler.settings import SchedulerSettings
from shoal.scheduler.snapshot import Snapshot

SETTINGS = SchedulerSettings()
GPU = room(4, 16, 1)


def gpu_job(name: str, size: int, created: float = 0.0, **more: object) -> Job:
    return a_job(name, 1, 64, each=GPU, size=size, created=created, **more)


def gpu_hosts(count: int) -> list[Host]:
    return hosts(count, cores=48, gib=192, gpus=4)


def placed(decisions: Decisions) -> dict[str, dict[str, int]]:
    return {change.key.name: dict(change.hosts) for change in decisions.changes}


def waits(decisions: Decisions) -> list[tuple[str, int, Code]]:
    return [(wait.key.name, wait.place, wait.reason.code) for wait in decisions.waits]


def test_nobody_overtakes_in_fifo_and_the_small_overtake_in_static() -> None:
    jobs = [gpu_job("first", 6, 1), gpu_job("large", 4, 2), gpu_job("small", 2, 3)]
    snapshot = Snapshot.of(gpu_hosts(2), jobs)
    strict, loose = fifo.plan(snapshot, 0.0, SETTINGS), static.plan(snapshot, 0.0, SETTINGS)
    assert set(placed(strict)) == {"first"}
    assert waits(strict) == [("large", 1, Code.NO_ROOM), ("small", 2, Code.QUEUED)]
    assert strict.waits[1].reason.text == "TrainingJob team/large came first and waits for room"
    assert set(placed(loose)) == {"first", "small"}
    assert waits(loose) == [("large", 1, Code.NO_ROOM)]


def test_what_can_never_start_holds_nobody_up() -> None:
    snapshot = Snapshot.of(gpu_hosts(2), [gpu_job("huge", 9, 1), gpu_job("small", 1, 2)])
    found = fifo.plan(snapshot, 0.0, SETTINGS)
    assert set(placed(found)) == {"small"}
    assert waits(found) == [("huge", 1, Code.TOO_LARGE)]


def test_a_job_without_a_size_gets_its_most() -> None:
    found = fifo.plan(Snapshot.of(gpu_hosts(1), [a_job("a", 1, 3, each=GPU)]), 0.0, SETTINGS)
    assert [(change.target, change.action) for change in found.changes] == [(3, Action.ADMIT)]


def test_trainers_are_packed_on_as_few_hosts_as_possible() -> None:
    there = replace(gpu_job("there", 2), target=2, placed={"host-0001": 2})
    found = fifo.plan(Snapshot.of(gpu_hosts(3), [there, gpu_job("pair", 2, 1), gpu_job("five", 5, 2)]), 0.0, SETTINGS)
    assert placed(found) == {"pair": {"host-0001": 2}, "five": {"host-0000": 4, "host-0002": 1}}


def test_closed_hosts_leaving_pods_and_other_pools_are_no_room() -> None:
    open_hosts = [
        a_host("closed", 48, 192, 4, open=False),
        a_host("leaving", 48, 192, 4, leaving=(Leaving(room=room(8, 8, 4), until=99.0),)),
        a_host("other", 48, 192, 4, pool="special"),
        a_host("taken", 48, 192, 4, others=room(1, 1, 3)),
    ]
    job = gpu_job("a", 2, pools=frozenset({""}))
    assert waits(static.plan(Snapshot.of(open_hosts, [job]), 0.0, SETTINGS)) == [("a", 1, Code.NO_ROOM)]
    one = replace(job, size=1)
    assert placed(static.plan(Snapshot.of(open_hosts, [one]), 0.0, SETTINGS)) == {"a": {"taken": 1}}


def test_pods_that_lost_their_host_come_before_new_gangs() -> None:
    hurt = replace(gpu_job("hurt", 4), target=4, placed={"host-0000": 2}, pending=2)
    found = static.plan(Snapshot.of(gpu_hosts(1), [hurt, gpu_job("new", 1, 1)]), 0.0, SETTINGS)
    assert waits(found) == [("new", 1, Code.NO_ROOM)]


def test_fixed_pods_that_have_no_host_yet_come_before_new_gangs() -> None:
    part = Part(role="pserver", each=room(4, 4), count=1)
    short = replace(a_job("short", 2, 2, each=room(2, 1), fixed=(part,)), target=2, placed={"host-0000": 2})
    snapshot = Snapshot.of(hosts(1, cores=8), [replace(short, fixed_pending=(part,)), a_job("new", 2, 2)])
    for policy in (fifo.plan, static.plan):
        assert waits(policy(snapshot, 0.0, SETTINGS)) == [("new", 1, Code.NO_ROOM)]


def test_fixed_pods_and_servers_are_part_of_the_gang() -> None:
    fixed = (Part(role="master", each=room(1, 1), count=1),)
    servers = Servers(each=room(4, 4), min=1, max=4, per_trainer=0.5)
    job = a_job("a", 2, 2, each=room(5, 5), fixed=fixed, servers=servers)
    found = fifo.plan(Snapshot.of(hosts(1, cores=15), [job]), 0.0, SETTINGS)
    assert found.changes[0].fixed_hosts == {"master": {"host-0000": 1}, "pserver": {"host-0000": 1}}
    assert waits(fifo.plan(Snapshot.of(hosts(1, cores=14), [job]), 0.0, SETTINGS)) == [("a", 1, Code.TOO_LARGE)]


def test_hosts_have_places_for_so_many_pods() -> None:
    there = [a_host("a", pods=3, others=room(pods=1)), a_host("b", pods=2)]
    job = a_job("a", 1, 9, each=room(pods=1), size=4)
    assert placed(static.plan(Snapshot.of(there, [job]), 0.0, SETTINGS)) == {"a": {"a": 2, "b": 2}}
    assert waits(static.plan(Snapshot.of(there, [replace(job, size=5)]), 0.0, SETTINGS)) == [("a", 1, Code.NO_ROOM)]


def test_static_without_gangs_starts_everybody_and_lets_pods_wait() -> None:
    snapshot = Snapshot.of(gpu_hosts(1), [gpu_job("a", 3, 1), gpu_job("b", 3, 2)])
    found = static.plan(snapshot, 0.0, replace(SETTINGS, gang=False))
    assert [(change.key.name, change.target) for change in found.changes] == [("a", 3), ("b", 3)]
    assert placed(found) == {"a": {"host-0000": 3}, "b": {"host-0000": 1}}
    assert found.waits == ()


def test_a_quota_that_is_used_up_holds_up_its_own_namespace_only() -> None:
    running = replace(gpu_job("running", 2), target=2, placed={"host-0000": 2})
    jobs = [running, gpu_job("more", 3, 1), gpu_job("never", 9, 2), gpu_job("other", 1, 3, namespace="else")]
    snapshot = Snapshot.of(gpu_hosts(4), jobs, quotas={"team": Quota(gpu=4)})
    found = fifo.plan(snapshot, 0.0, SETTINGS)
    assert set(placed(found)) == {"other"}
    assert waits(found) == [("more", 1, Code.QUOTA), ("never", 2, Code.OVER_QUOTA)]


@st.composite
def snapshots(draw: st.DrawFn) -> Snapshot:
    count = draw(st.integers(1, 5))
    free = [4] * count
    jobs = []
    for number in range(draw(st.integers(0, 12))):
        size = draw(st.integers(1, 10))
        job = gpu_job(f"j{number}", size, created=draw(st.integers(0, 5)))
        at = draw(st.integers(0, count - 1))
        if draw(st.booleans()) and free[at] >= size:
            free[at] -= size
            job = replace(job, target=size, placed={f"host-{at:04}": size})
        jobs.append(job)
    return Snapshot.of(gpu_hosts(count), jobs)


@pytest.mark.parametrize("policy", [fifo.plan, static.plan], ids=["fifo", "static"])
@given(snapshot=snapshots())
@settings(max_examples=60)
def test_gangs_start_whole_on_hosts_that_have_room_and_nobody_is_resized(policy, snapshot: Snapshot) -> None:  # type: ignore[no-untyped-def]
    found = policy(snapshot, 0.0, SETTINGS)
    jobs = {job.key: job for job in snapshot.jobs}
    used = {host.name: 0 for host in snapshot.hosts}
    for job in snapshot.jobs:
        for name, count in job.placed.items():
            used[name] += count
    for change in found.changes:
        assert change.action is Action.ADMIT
        assert change.before == jobs[change.key].target == 0
        assert sum(change.hosts.values()) == change.target == jobs[change.key].size
        for name, count in change.hosts.items():
            used[name] += count
    assert max(used.values()) <= 4
    assert {wait.key for wait in found.waits} | {change.key for change in found.changes} == {
        key for key, job in jobs.items() if not job.is_admitted
    }
    assert [wait.place for wait in found.waits] == list(range(1, len(found.waits) + 1))
    assert policy(Snapshot.of(snapshot.hosts[::-1], snapshot.jobs[::-1]), 5.0, SETTINGS) == found


@given(snapshot=snapshots())
@settings(max_examples=60)
def test_static_leaves_nobody_waiting_who_fits(snapshot: Snapshot) -> None:
    found = static.plan(snapshot, 0.0, SETTINGS)
    free = 4 * len(snapshot.hosts)
    free -= sum(sum(job.placed.values()) for job in snapshot.jobs) + sum(change.target for change in found.changes)
    sizes = {job.key: job.size for job in snapshot.jobs}
    assert all((sizes[wait.key] or 0) > free for wait in found.waits)


def test_the_key_of_a_job_breaks_ties() -> None:
    jobs = [gpu_job("b", 4, 1), gpu_job("a", 4, 1)]
    found = fifo.plan(Snapshot.of(gpu_hosts(1), jobs), 0.0, SETTINGS)
    assert [change.key for change in found.changes] == [JobKey("team", "a")]
