"""A simulated cluster under a scheduler of ours: what a decision becomes there is what the operator makes of it."""

import random
from dataclasses import replace

import pytest
from tests.sim.test_kube import run_until

from shoal.scheduler.decisions import Action, Change, Code, Decisions, Reason
from shoal.scheduler.policies import policy
from shoal.scheduler.rows import Job, JobKey, Part, Room, Seconds
from shoal.scheduler.settings import Load, SchedulerSettings
from shoal.scheduler.snapshot import Snapshot
from shoal.sim.clock import VirtualClock
from shoal.sim.kube import PUBLISHED, Kube
from shoal.sim.operated import Operated

KEY = JobKey("default", "job")
CORE = Room(cpu=1_000, memory=1)
WHY = Reason(code=Code.ADMITTED, text="the test says so")
ADMITTED = Change(
    key=KEY,
    action=Action.ADMIT,
    target=1,
    before=0,
    hosts={"host-1": 1},
    fixed_hosts={"master": {"host-2": 1}},
    reason=WHY,
)
GROWN = Change(key=KEY, action=Action.GROW, target=2, before=1, hosts={"host-2": 1}, reason=WHY)


def decided(snapshot: Snapshot, now: Seconds, settings: SchedulerSettings) -> Decisions:
    (job,) = snapshot.jobs
    return Decisions(changes=(ADMITTED if not job.target else GROWN,))


@pytest.mark.parametrize("seed", range(4))
def test_trainers_that_come_later_prefer_the_hosts_of_the_first(seed: int) -> None:
    """The template of a batch Job is fixed: what the growth was planned for is not known to the Pods."""
    hosts = {"host-0": Room(cpu=9_000, memory=9), "host-1": Room(cpu=2_000, memory=9), "host-2": Room(2_000, 9)}
    kube = Kube(VirtualClock(), hosts, PUBLISHED, random.Random(seed))
    cluster = Operated(kube, decided, SchedulerSettings())
    master = Part(role="master", each=CORE, count=1)
    training = cluster.submit(Job(key=KEY, min=1, max=2, each=CORE, fixed=(master,)), grace=30)
    cluster.round()
    run_until(kube, 5)
    cluster.round()
    run_until(kube, 10)
    assert [pod.host for pod in training.fixed["master"].pods.values()] == [2]
    assert [pod.host for pod in training.trainers.pods.values()] == [1, 1]


def test_a_trainer_that_asks_for_more_than_is_counted_is_given_up_and_its_room_is_used() -> None:
    kube = Kube(VirtualClock(), {"host-0": Room(cpu=8_000, memory=99)}, PUBLISHED, random.Random(1))
    settings = replace(SchedulerSettings(), cpu=Load(grow=1.0, reclaim=1.0), freezing_window=0.0, max_wait=100.0)
    cluster = Operated(kube, policy("cfs"), settings)
    stuck = cluster.submit(Job(key=JobKey("default", "stuck"), min=1, max=3, each=CORE), grace=1)
    other = cluster.submit(Job(key=JobKey("default", "other"), min=1, max=4, each=CORE), grace=1)
    cluster.every(0.0)
    run_until(kube, 20)
    stuck.trainers.each = Room(cpu=9_000, memory=1)  # what is made from here on
    stuck.row = replace(stuck.row, max=4)
    run_until(kube, 40)
    other.row = replace(other.row, max=9)
    run_until(kube, 90)
    assert (stuck.standing.target, other.standing.target) == (4, 4)
    run_until(kube, 200)
    assert (stuck.standing.target, other.standing.target) == (3, 5)
    assert sum(pod.runs for pod in other.pods()) == 5
