"""The board: whatever events bring, its columns are those that would be made from the rows."""

import random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.scheduler.clusters import random_events, random_host, random_job
from tests.scheduler.world import World, a_job, hosts, room

from shoal.scheduler.board import Board
from shoal.scheduler.columns import Columns, columns_from
from shoal.scheduler.policies import policy
from shoal.scheduler.rows import JobKey
from shoal.scheduler.settings import SchedulerSettings
from shoal.scheduler.snapshot import Snapshot


def decoded(columns: Columns) -> tuple[list, list]:
    """Records with the values that their numbers stand for: two boards number them differently."""
    words = columns.vocabulary
    jobs = [
        {
            **{name: job[name] for name in job.dtype.names if name != "waiting_since"},
            "shape": words.shapes.values[job["shape"]],
            "namespace": words.namespaces.values[job["namespace"]],
            "waiting_since": None if np.isnan(job["waiting_since"]) else job["waiting_since"],
        }
        for job in columns.jobs
    ]
    hosts = [
        (words.pools.values[host["pool"]], *(host[name] for name in host.dtype.names if name != "pool"))
        for host in columns.hosts
    ]
    return jobs, hosts


@settings(max_examples=30)
@given(st.integers(0, 2**32))
def test_columns_that_follow_events_are_those_made_from_the_rows(seed: int) -> None:
    chance = random.Random(seed)
    world = World.of([random_host(f"host-{n}", chance) for n in range(chance.randint(1, 12))], [])
    board = Board()
    known: set[JobKey] = set()
    for number in range(8):
        for _ in range(chance.randint(0, 3)):
            world.arrive(random_job(f"job-{number}-{chance.randint(0, 99)}", chance))
        for key in known - set(world.jobs):
            board.drop_job(key)
        known = set(world.jobs)
        for row in world.rows():
            board.put_job(row)
        for host in world.hosts.values():
            board.put_host(host)
        if chance.random() < 0.3:
            board.drop_host("host-0")
            board.put_host(world.hosts["host-0"])
        for pod in world.services:
            board.put_service(pod)
        snapshot = board.snapshot(world.min_v)
        plain = Snapshot.of(world.hosts.values(), world.rows(), world.services, min_v=world.min_v)
        assert snapshot == plain
        assert decoded(snapshot.columns()) == decoded(columns_from(plain.hosts, plain.jobs))
        decide = policy("cfs")
        decisions = decide(snapshot, world.now, world.settings)
        assert decisions == decide(plain, world.now, world.settings)
        world.carry_out(decisions)
        for pod in world.services:
            board.drop_service(pod.namespace, pod.name)
        world.services.clear()
        world.wait(chance.choice([5.0, 70.0]))
        random_events(world, chance)


def test_a_snapshot_does_not_follow_later_events() -> None:
    board = Board()
    for host in hosts(2):
        board.put_host(host)
    board.put_job(a_job("job", 1, 4))
    before = board.snapshot()
    first = policy("cfs")(before, 0.0, SchedulerSettings())
    board.put_job(a_job("job", 2, 9, each=room(2, 2)))
    board.put_job(a_job("another", 1, 1))
    board.drop_host("host-0001")
    board.snapshot()
    assert policy("cfs")(before, 0.0, SchedulerSettings()) == first


def test_a_job_that_is_over_or_suspended_leaves_the_board() -> None:
    board = Board()
    board.put_host(hosts(1)[0])
    board.put_job(a_job("job", 1, 4, target=2, placed={"host-0000": 2}))
    assert board.snapshot().columns().hosts["taken_cpu"].tolist() == [2_000]
    board.put_job(a_job("job", 1, 4, suspended=True))
    assert board.snapshot().jobs == ()
    assert board.snapshot().columns().hosts["taken_cpu"].tolist() == [0]


def test_room_on_a_host_that_comes_later_is_known() -> None:
    board = Board()
    board.put_job(a_job("job", 1, 4, target=2, placed={"host-0000": 2}))
    board.put_host(hosts(1)[0])
    assert board.snapshot().columns().hosts["taken_cpu"].tolist() == [2_000]
