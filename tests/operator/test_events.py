"""Events for people: what the master reports and the scheduler decides is told when it becomes so, and once."""

from dataclasses import replace
from datetime import timedelta

import pytest
from tests.operator.builders import a_job, a_role
from tests.operator.test_scheduling_plan import Scheduled, allowed, waits
from tests.operator.world import World

from shoal.core.hang import HangFacts, HangSettings, KillCulprits, ProcessProgress, decide_hang
from shoal.core.nodes import NodeId
from shoal.operator.snapshot import Training


def a_world() -> World:
    world = World(a_job(worker=a_role(replicas=2), training=Training(phase="running", world=3)))
    world.settle()
    return world


def hears(world: World, /, **said: object) -> list[str]:
    """What is told of a report, at the first look and at later ones."""
    assert world.job.training is not None
    world.job = replace(world.job, training=replace(world.job.training, **said))  # type: ignore[arg-type]
    world.notices.clear()
    for _ in range(3):
        world.passes(1)
        world.step()
    return world.notices


def test_a_new_world_is_told_once() -> None:
    world = a_world()
    assert world.notices.count("RendezvousCompleted") == 1
    assert hears(world, world=4, decision="worker-1 to join") == ["RendezvousCompleted"]
    assert hears(world, world=4) == []


@pytest.mark.parametrize("ahead", [-30, 0, 30], ids=["behind", "equal", "ahead"])
def test_a_hang_is_told_once_whatever_the_masters_clock_says(ahead: int) -> None:
    world = a_world()
    world.passes(60)
    at = world.now + timedelta(seconds=ahead, microseconds=700_000)
    assert hears(world, decision="worker-1.0 hangs: no step for 90 s (limit 60 s)", decided_at=at) == ["HangDetected"]
    assert "worker-1.0 hangs" in (world.job.status.decision or "")
    assert hears(world, decision="worker-1: restarting its processes", decided_at=at + timedelta(seconds=5)) == []
    later = at + timedelta(seconds=120)
    assert hears(world, decision="no step for 300 s (limit 60 s) and no process stands out", decided_at=later) == [
        "HangDetected"
    ]


def test_what_a_master_says_of_a_hang_is_known_for_one() -> None:
    """The words are the master's own; the test makes it say them."""
    world = a_world()
    now = world.now
    culprit = ProcessProgress(
        node=NodeId("worker-1"), local_rank=0, collectives=3, stopped=True, busy=None, in_world=True
    )
    facts = HangFacts(
        steps_done=100,
        step_seconds=(0.1,) * 30,
        last_gain=now - timedelta(hours=1),
        leaving_world=False,
        warned=False,
        processes=(culprit,),
    )
    decided = decide_hang(facts, now=now, settings=HangSettings())
    assert isinstance(decided, KillCulprits)
    assert hears(world, decision=decided.reason, decided_at=now + timedelta(seconds=2)) == ["HangDetected"]


def test_what_the_scheduler_takes_is_told_as_preemption_and_what_the_user_gives_up_is_not() -> None:
    world = Scheduled(a_job(worker=a_role(replicas=4, max=8)), allowed(4))
    world.settle()
    world.notices.clear()
    world.allowance = allowed(2, reason="a job of more weight needs the room")
    world.settle()
    assert world.notices.count("Preempted") == 1
    world = Scheduled(a_job(worker=a_role(replicas=4, max=8)), allowed(4))
    world.settle()
    world.notices.clear()
    spec = world.job.spec
    assert spec is not None
    roles = {role: replace(needs, replicas=2) for role, needs in spec.roles.items()}
    world.job = replace(world.job, spec=replace(spec, roles=roles), generation=2)
    world.settle()
    assert "Resized" in world.notices
    assert "Preempted" not in world.notices


def test_waiting_for_a_quota_is_told_once() -> None:
    world = Scheduled(a_job(worker=a_role(replicas=1)), waits(code="QuotaExceeded", reason="team-a has 0 GPUs left"))
    world.settle()
    world.allowance = waits(2, code="QuotaExceeded", reason="team-a has 0 GPUs left")
    world.settle()
    assert world.notices.count("QuotaPending") == 1
