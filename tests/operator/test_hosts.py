"""Hosts that are lost: who was on them is replaced elsewhere, and nothing is done about a host that may be back."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.operator.builders import NOW, SETTINGS, a_job, a_role, an_auto_plan, an_order
from tests.operator.stage import a_stage, quick
from tests.operator.world import World

from shoal.api.elasticjob import Role
from shoal.core.exits import ExitCause, cause_of
from shoal.operator.memory import MemberState
from shoal.operator.snapshot import Training
from shoal.platforms.kubernetes.cache import Added, Removed, Updated
from shoal.platforms.kubernetes.events import Recorder
from shoal.platforms.kubernetes.hosts import HostBook
from shoal.platforms.kubernetes.kinds import ELASTIC_JOBS
from shoal.platforms.kubernetes.objects import Condition, Node, NodeStatus, ObjectMeta
from shoal.platforms.kubernetes.orders import exit_of
from shoal.platforms.kubernetes.room import KubernetesRoom

W = Role.WORKER
GRACE = SETTINGS.times.host_grace.total_seconds()


def a_world(count: int = 2, **spec: Any) -> World:
    """A job whose master answers; its members are on hosts of their own."""
    world = World(a_job(worker=a_role(replicas=count), training=Training(phase="running"), **spec))
    world.put(an_auto_plan())
    world.settle()
    for number, name in enumerate(sorted(world.pods)):
        world.pods[name] = replace(world.pods[name], host=f"host-{number}")
    world.settle()
    return world


def lose_host_of(world: World, name: str) -> str:
    world.pods[name] = replace(world.pods[name], host_down=world.now)
    return world.pods[name].host


def avoided(manifest: dict[str, Any]) -> list[str]:
    """Hosts that every other is preferred to; and it can run on any."""
    nodes = manifest["spec"].get("affinity", {}).get("nodeAffinity", {})
    assert "requiredDuringSchedulingIgnoredDuringExecution" not in nodes
    terms = nodes.get("preferredDuringSchedulingIgnoredDuringExecution", [])
    assert all(term["weight"] == 100 for term in terms)
    fields = [field for term in terms for field in term["preference"]["matchFields"]]
    return [host for field in fields if field["operator"] == "NotIn" for host in field["values"]]


def test_a_member_whose_host_is_lost_is_reported_to_the_master_as_a_hardware_fault() -> None:
    world = a_world()
    host = lose_host_of(world, "mnist-worker-1")
    plan = world.step()
    assert world.has_state("mnist-worker-1") is MemberState.LIVE  # it may be back in a moment
    assert plan.recheck_at == world.now + SETTINGS.times.host_grace
    world.passes(GRACE)
    plan = world.step()
    assert world.has_state("mnist-worker-1") is MemberState.FAILED
    assert plan.lost == ("hardware",)
    (said,) = [each for each in plan.plan_statuses["ScalePlan/mnist-auto"].pods if each.name == "mnist-worker-1"]
    assert (said.phase, said.host) == ("Failed", host)
    assert host in said.reason
    assert cause_of(exit_of(said)) is ExitCause.HARDWARE  # type: ignore[arg-type]
    assert "MemberLost" in [notice.reason for notice in plan.notices]


def test_whoever_takes_its_place_avoids_the_host_whatever_the_master_knows_of_it() -> None:
    world = a_world()
    host = lose_host_of(world, "mnist-worker-1")
    world.passes(GRACE)
    world.step()
    world.put(an_auto_plan(generation=2, create=(an_order(W, 2, replaces=1),)))
    plan = world.step()
    (made,) = plan.create
    assert avoided(made) == [host]
    assert [ref.name for ref in plan.delete] == ["mnist-worker-1"]
    assert world.job.memory.members[-1].relaunches == 0  # it costs no restart


def test_a_host_that_comes_back_in_time_has_lost_nobody() -> None:
    world = a_world()
    lose_host_of(world, "mnist-worker-1")
    world.passes(GRACE / 2)
    world.step()
    world.pods["mnist-worker-1"] = replace(world.pods["mnist-worker-1"], host_down=None)
    world.passes(GRACE)
    world.settle()
    assert world.names(W) == ["mnist-worker-0", "mnist-worker-1"]


def test_one_that_nobody_manages_is_replaced_at_once_and_again_elsewhere() -> None:
    world = a_world(1, evaluator=a_role(replicas=1))
    first = lose_host_of(world, "mnist-evaluator-0")
    world.passes(GRACE)
    (made,) = world.step().create
    assert (made["metadata"]["name"], avoided(made)) == ("mnist-evaluator-1", [first])
    world.run_all()
    world.pods["mnist-evaluator-1"] = replace(world.pods["mnist-evaluator-1"], host="other", host_down=world.now)
    world.passes(GRACE)
    (made,) = world.step().create
    assert (made["metadata"]["name"], avoided(made)) == ("mnist-evaluator-2", [first, "other"])


def test_one_that_is_on_an_avoided_host_because_no_other_had_room_is_not_lost() -> None:
    """As in a place of one host: it comes back, and the replacement is put there."""
    world = a_world()
    host = lose_host_of(world, "mnist-worker-1")
    world.passes(GRACE)
    world.step()
    world.put(an_auto_plan(generation=2, create=(an_order(W, 2, replaces=1, avoid_hosts=(host,)),)))
    world.step()
    world.run("mnist-worker-2")
    world.pods["mnist-worker-2"] = replace(world.pods["mnist-worker-2"], host=host)
    plan = world.step()
    (said,) = [each for each in plan.plan_statuses["ScalePlan/mnist-auto"].pods if each.name == "mnist-worker-2"]
    assert (said.phase, said.exit_code, said.host) == ("Running", None, host)
    assert plan.lost == ()
    world.delete("mnist-worker-2")  # somebody drains the host: it is no fault of it
    plan = world.step()
    (said,) = [each for each in plan.plan_statuses["ScalePlan/mnist-auto"].pods if each.name == "mnist-worker-2"]
    assert (said.phase, said.exit_code) == ("Deleted", None)


def test_one_that_is_lost_with_an_avoided_host_is_a_hardware_fault_again() -> None:
    world = a_world(1, evaluator=a_role(replicas=1))
    host = lose_host_of(world, "mnist-evaluator-0")
    world.passes(GRACE)
    world.step()
    world.run("mnist-evaluator-1")
    world.pods["mnist-evaluator-1"] = replace(world.pods["mnist-evaluator-1"], host=host)
    world.step()
    lose_host_of(world, "mnist-evaluator-1")
    world.passes(GRACE)
    plan = world.step()
    assert plan.lost == ("hardware",)
    assert avoided(plan.create[0]) == [host]


def test_a_lost_host_holds_up_no_suspension() -> None:
    """Who is deleted there may stay as it is for ever: nobody is there to end it."""
    world = a_world()
    lose_host_of(world, "mnist-worker-1")
    world.passes(GRACE)
    world.step()
    world.put(an_auto_plan(generation=2, create=(an_order(W, 2, replaces=1),)))
    world.step()
    world.run_all()
    world.step()
    world.step()
    assert world.pods["mnist-worker-1"].deleting
    assert world.job.status.conditions["Resizing"].status == "False"
    assert world.has_state("mnist-worker-1") is None


def test_one_that_leaves_a_host_that_may_be_back_is_still_waited_for() -> None:
    world = a_world()
    world.put(an_auto_plan(generation=2, create=(an_order(W, 2, replaces=1),)))
    world.step()
    lose_host_of(world, "mnist-worker-1")
    world.passes(GRACE / 2)
    world.step()
    assert world.has_state("mnist-worker-1") is MemberState.LEAVING


def test_a_master_whose_host_is_lost_is_followed_by_the_next() -> None:
    world = a_world()
    lose_host_of(world, "mnist-master-1")
    assert "mnist-master-2" not in world.pods
    plan = world.step()
    assert plan.recheck_at == world.now + SETTINGS.times.host_grace
    world.passes(GRACE)
    world.step()
    assert world.job.memory.master.term == 2
    world.step()
    assert world.pods["mnist-master-1"].deleting
    assert world.job.memory.master.failures == 0


async def test_members_of_a_host_that_is_not_ready_are_replaced_elsewhere() -> None:
    settings = quick(silence=timedelta(0), host_grace=timedelta(0))
    async with a_stage(settings) as stage, stage.operator(sees_hosts=True):
        await stage.host("good")
        await stage.host("bad")
        await stage.apply(ELASTIC_JOBS, "mnist", {"worker": a_role(replicas=2)})
        await stage.until(lambda: len(stage.running()) == 2, "two workers")
        stage.server.bind("default", "mnist-worker-0", "good")
        stage.server.bind("default", "mnist-worker-1", "bad")
        await stage.host("bad", ready="Unknown")
        await stage.until(lambda: stage.running() == ["mnist-worker-0", "mnist-worker-2"], "another takes its place")
        assert avoided(stage.pods()["mnist-worker-2"]) == ["bad"]
        assert "MemberLost" in stage.events()


def a_node(name: str, ready: str = "True", since: datetime = NOW) -> Node:
    said = Condition(type="Ready", status=ready, last_transition_time=since)
    return Node(metadata=ObjectMeta(name=name), status=NodeStatus(conditions=[said]))


def a_book(*nodes: Node, heard: datetime = NOW - timedelta(days=1)) -> HostBook:
    """What is known by one who has heard of the API server since then."""
    book = HostBook()
    book.hears(heard)
    for node in nodes:
        book.happened(Added(node))
    return book


def test_the_book_knows_since_when_a_host_is_down_and_tells_of_every_change_once() -> None:
    book, told = a_book(a_node("b")), []
    book.on_change(told.append)
    up, down = a_node("a"), a_node("a", "Unknown")
    for change in (Added(up), Updated(up, up), Updated(up, down), Updated(down, down)):
        book.happened(change)
    assert told == ["a"]
    assert (book.down_since("a"), book.down_since("b")) == (NOW, None)
    book.happened(Removed(down))
    assert (told, book.down_since("a")) == (["a", "a"], None)


@pytest.mark.parametrize("up", [0, 1])
def test_where_most_hosts_are_silent_none_is_lost(up: int) -> None:
    """It is not this host or that one then: they cannot reach the API server."""
    book, told = a_book(*(a_node(name, "Unknown") for name in "ab"), *(a_node(f"up-{n}") for n in range(up))), []
    book.on_change(told.append)
    assert [book.down_since(name) for name in "ab"] == [None, None]
    for n in range(up, 2):
        book.happened(Added(a_node(f"up-{n}")))
    assert [book.down_since(name) for name in "ab"] == [NOW, NOW]
    assert told == ["a", "b"]  # who is on them has to be looked at again


def test_a_host_that_says_itself_that_it_is_not_ready_is_there() -> None:
    book = a_book(a_node("a", "False"), a_node("b"))
    assert book.down_since("a") is None


def test_silence_counts_from_when_the_api_server_is_heard_again() -> None:
    book, told = a_book(a_node("a", "Unknown"), a_node("b")), []
    book.on_change(told.append)
    book.hears_nothing(NOW + timedelta(seconds=5))
    assert book.down_since("a") is None  # who knows
    book.hears_nothing(NOW + timedelta(seconds=50))
    back = NOW + timedelta(seconds=60)
    book.hears(back)
    assert (book.down_since("a"), told) == (back, ["a"])
    book.hears(back + timedelta(seconds=9))
    assert book.down_since("a") == back


def test_a_watch_that_is_cut_off_and_back_at_once_changes_nothing() -> None:
    book = a_book(a_node("a", "Unknown"), a_node("b"))
    book.hears_nothing(NOW + timedelta(seconds=5))
    book.hears(NOW + timedelta(seconds=6))
    assert book.down_since("a") == NOW


def test_one_who_has_just_begun_to_look_gives_every_host_its_time() -> None:
    book = a_book(a_node("a", "Unknown"), a_node("b"), heard=NOW + timedelta(minutes=1))
    assert book.down_since("a") == NOW + timedelta(minutes=1)
    assert HostBook().down_since("a") is None


def test_a_host_that_has_said_nothing_yet_is_not_down() -> None:
    new = Node(metadata=ObjectMeta(name="new", creation_timestamp=datetime(2026, 1, 1, tzinfo=UTC)))
    assert a_book(new, a_node("b")).down_since("new") is None


async def test_a_room_counts_the_silence_of_hosts_from_its_first_look() -> None:
    async with a_stage() as stage:
        await stage.host("a", ready="Unknown")
        await stage.host("b")
        recorder = Recorder(stage.client, controller="test", instance="test")
        room = KubernetesRoom(
            stage.client, recorder=recorder, home="default", config_map="none", namespace=None, sees_hosts=True
        )
        began = datetime.now(UTC)
        task = asyncio.create_task(room.run())
        try:
            await room.synced()
            since = room.book.down_since("a")
            assert since is not None
            assert since >= began
            assert room.book.down_since("b") is None
        finally:
            task.cancel()
            await asyncio.wait({task})
