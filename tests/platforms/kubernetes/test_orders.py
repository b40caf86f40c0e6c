"""Reports read and orders written: what a master's plan means in Pods, and when it is carried out."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from shoal.api.elasticjob import ResourceSpec
from shoal.api.elasticjob import Role as ApiRole
from shoal.api.fields import MAX_ENTRIES
from shoal.api.scaleplan import PodMeta, PodReport
from shoal.api.validation import problems
from shoal.core.exits import ExitCause, cause_of
from shoal.core.nodes import Node, NodeId, Role
from shoal.core.plans import NodeResource, ScalePlan
from shoal.platforms.kubernetes.orders import Orders, asked, exit_of, node_named, ordered, settled, sighting

T0 = datetime(2026, 1, 1, tzinfo=UTC)


def a_report(number: int, phase: str = "Running", **words: Any) -> PodReport:
    return PodReport(name=f"j-worker-{number}", role="worker", id=number, phase=phase, **{"rank": number, **words})


def a_server(number: int, phase: str, **words: Any) -> PodReport:
    return PodReport(name=f"j-ps-{number}", role="ps", id=number, phase=phase, **{"rank": number, **words})


def a_node(number: int, seat: int, **words: Any) -> Node:
    return Node(role=Role.WORKER, number=number, seat=seat, since=T0, reason="", **words)


def replacing(old: Node, new: Node) -> ScalePlan:
    return ScalePlan(launch_nodes=(new,), remove_nodes=(old,), reason="it was killed")


@pytest.mark.parametrize(
    ("report", "cause"),
    [
        pytest.param(a_report(1, "Failed", exit_code=137, oom_killed=True), ExitCause.OOM, id="oom"),
        pytest.param(a_report(1, "Failed", exit_code=1), ExitCause.USER_ERROR, id="crash"),
        pytest.param(a_report(1, "Failed", reason="Evicted"), ExitCause.KILLED, id="evicted"),
        pytest.param(a_report(1, "Deleted"), ExitCause.KILLED, id="deleted"),
        pytest.param(a_report(1, "Deleted", exit_code=0), ExitCause.KILLED, id="deleted-while-it-ended"),
        pytest.param(a_report(1, "Succeeded"), ExitCause.SUCCEEDED, id="well"),
    ],
)
def test_how_a_pod_ended(report: PodReport, cause: ExitCause) -> None:
    assert cause_of(exit_of(report)) is cause


def test_members_are_announced_with_seat_and_resource_also_those_that_failed_meanwhile() -> None:
    reports = [
        a_report(4, "Failed", rank=1, exit_code=1),
        a_report(2, "Pending", rank=0, resource=ResourceSpec(memory="1Gi", cpu=2)),
        a_report(1, "Deleted", rank=2),
        PodReport(name="j-ps-0", role="ps", id=0, rank=0, phase="Running"),
    ]
    found = sighting(reports)
    assert [(each.node, each.seat) for each in found.announced] == [("worker-2", 0), ("worker-4", 1)]
    assert found.announced[0].resource == NodeResource(cpu=2, memory=1024)
    assert found.running == {"worker-2"}
    assert set(found.ended) == {"worker-4", "worker-1"}


def test_where_the_master_knows_servers_they_are_announced_with_whom_they_replace() -> None:
    reports = [
        a_server(0, "Running"),
        a_server(2, "Pending", rank=0, replaces="j-ps-0"),
        a_server(3, "Pending", rank=1, replaces="j-ps-1"),
        a_server(4, "Deleted"),
    ]
    found = sighting(reports, frozenset(ApiRole))
    announced = {each.node: (each.seat, each.replaces) for each in found.announced}
    assert announced == {"ps-0": (0, None), "ps-2": (0, "ps-0"), "ps-3": (1, None)}  # nobody tells of ps-1 any more
    assert set(found.ended) == {"ps-4"}


def test_a_server_does_not_take_the_place_of_a_worker_in_the_same_seat() -> None:
    server = Node(role=Role.PS, number=7, seat=1, since=T0, reason="")
    plan = ScalePlan(launch_nodes=(server,), remove_nodes=(a_node(1, 1),), reason="both are gone")
    orders = ordered(Orders(), plan, job="j", reports=[a_report(1), a_server(1, "Failed")])
    assert orders.create["j-ps-7"].replaces == "j-ps-1"
    assert orders.remove == {"j-worker-1"}


@pytest.mark.parametrize("name", ["j-worker-", "j-boss-3", "other-worker-3", "j-worker-x", "jworker-3", "j-worker-³"])
def test_names_that_are_no_members(name: str) -> None:
    assert node_named("j", name) is None


def test_a_replacement_names_whom_it_replaces_and_what_it_should_have() -> None:
    old = a_node(1, 1, resource=NodeResource(memory=1000))
    new = replace(a_node(5, 1, resource=NodeResource(memory=1500)), avoid_hosts=frozenset({"j-worker-1", "node-9"}))
    reports = [a_report(1, "Failed", host="node-3", resource=ResourceSpec(memory="1000Mi"))]
    orders = ordered(Orders(), replacing(old, new), job="j", reports=reports)
    (entry,) = orders.create.values()
    assert (entry.name, entry.id, entry.rank_index, entry.replaces) == ("j-worker-5", 5, 1, "j-worker-1")
    assert entry.resource == ResourceSpec(memory="1500Mi")
    assert entry.avoid_hosts == ["node-3", "node-9"]
    assert orders.remove == frozenset()  # it has ended: its logs may be wanted


def test_a_replacement_like_the_one_before_leaves_its_resource_to_the_operator() -> None:
    old, new = (a_node(n, 0, resource=NodeResource(memory=1000)) for n in (0, 1))
    reports = [a_report(0, "Failed", resource=ResourceSpec(memory="1000Mi"))]
    orders = ordered(Orders(), replacing(old, new), job="j", reports=reports)
    assert orders.create["j-worker-1"].resource is None


def test_a_replacement_with_more_memory_says_nothing_of_what_is_as_before() -> None:
    """A later plan may give the role other devices: they are for this one too."""
    old, new = (a_node(n, 0, resource=NodeResource(cpu=2.0, memory=m, gpu_num=1)) for n, m in ((0, 1024), (1, 1536)))
    reports = [a_report(0, "Failed", resource=ResourceSpec(cpu="2", memory="1024Mi", gpu=1))]
    orders = ordered(Orders(), replacing(old, new), job="j", reports=reports)
    assert orders.create["j-worker-1"].resource == ResourceSpec(memory="1536Mi")


def test_a_pod_that_still_runs_is_removed() -> None:
    orders = ordered(Orders(), replacing(a_node(1, 1), a_node(5, 1)), job="j", reports=[a_report(1)])
    assert orders.remove == {"j-worker-1"}


def test_the_same_plan_again_changes_nothing() -> None:
    plan = replacing(a_node(1, 1), a_node(5, 1))
    once = ordered(Orders(), plan, job="j", reports=[a_report(1)])
    assert ordered(once, plan, job="j", reports=[a_report(1)]) == once
    again = ordered(once, replace(plan, remove_nodes=()), job="j", reports=[a_report(1)])
    assert again.create["j-worker-5"].replaces == "j-worker-1"


@pytest.mark.parametrize("phase", ["Failed", "Deleted"])
def test_who_replaces_whom_is_found_by_the_seat_when_nobody_remembers(phase: str) -> None:
    plan = ScalePlan(launch_nodes=(a_node(5, 1),), reason="a new master found it missing")
    orders = ordered(Orders(), plan, job="j", reports=[a_report(0), a_report(1, phase)])
    assert orders.create["j-worker-5"].replaces == "j-worker-1"


def test_who_replaces_whom_is_added_when_it_is_said_later() -> None:
    once = ordered(Orders(), ScalePlan(launch_nodes=(a_node(5, 1),), reason="missing"), job="j", reports=[a_report(1)])
    assert once.create["j-worker-5"].replaces is None
    again = ordered(once, replacing(a_node(1, 1), a_node(5, 1)), job="j", reports=[a_report(1)])
    assert again.create["j-worker-5"].replaces == "j-worker-1"


def test_orders_end_when_they_are_carried_out_and_not_before() -> None:
    orders = ordered(Orders(), replacing(a_node(1, 1), a_node(5, 1)), job="j", reports=[a_report(1)])
    still = settled(orders, [a_report(1)], seen=frozenset({"j-worker-1"}))
    assert still is orders
    created = settled(orders, [a_report(1), a_report(5, "Pending", replaces="j-worker-1")], seen=frozenset())
    assert created.create == {}
    assert created.remove == {"j-worker-1"}
    assert settled(created, [a_report(1, "Deleted")], seen=frozenset()).remove == frozenset()
    assert settled(created, [], seen=frozenset({"j-worker-1"})).remove == frozenset()


def test_a_name_that_the_operator_used_for_another_seat_frees_the_one_it_was_meant_for() -> None:
    orders = ordered(Orders(), replacing(a_node(1, 1), a_node(5, 1)), job="j", reports=[a_report(1, "Failed")])
    after = settled(orders, [a_report(1, "Failed"), a_report(5, rank=2)], seen=frozenset())
    assert after.create == {}
    assert after.remove == {"j-worker-1"}
    assert NodeId("worker-5") in sighting([a_report(5, rank=2)]).running


def test_more_orders_than_a_plan_takes_are_declared_one_part_after_the_other() -> None:
    reports = [a_report(number, "Failed", exit_code=137) for number in range(600)]
    orders = Orders()
    for number in range(600):
        old, new = a_node(number, number), a_node(600 + number, number)
        orders = ordered(orders, replacing(old, new), job="j", reports=reports)
    orders = replace(orders, remove=frozenset(f"j-worker-{number}" for number in range(2000, 2600)))
    first = orders.up_to(MAX_ENTRIES)
    assert not problems(declared(first))
    reports += [a_report(number, "Pending", replaces=entry.replaces) for number, entry in entries(first)]
    seen = frozenset({report.name for report in reports} | first.remove)
    rest = settled(orders, reports, seen=seen).up_to(MAX_ENTRIES)
    assert [number for number, _ in entries(first)] + [number for number, _ in entries(rest)] == list(range(600, 1200))
    assert first.remove | rest.remove == orders.remove
    assert not problems(declared(rest))


def entries(orders: Orders) -> list[tuple[int, PodMeta]]:
    return [(entry.id or 0, entry) for entry in orders.create.values()]


def declared(orders: Orders) -> dict[str, Any]:
    spec = {
        "ownerJob": "j",
        "createPods": [msgspec.to_builtins(entry) for entry in orders.create.values()],
        "removePods": [{"name": name} for name in sorted(orders.remove)],
    }
    labels = {"scale-type": "auto", "elasticjob-name": "j"}
    return {
        "apiVersion": "elastic.iml.github.io/v1alpha1",
        "kind": "ScalePlan",
        "metadata": {"name": "j-auto", "labels": labels},
        "spec": spec,
    }


def test_no_more_hosts_are_avoided_than_a_plan_takes() -> None:
    hosts = frozenset(f"host-{number}" for number in range(100))
    orders = ordered(Orders(), replacing(a_node(0, 0), a_node(1, 0, avoid_hosts=hosts)), job="j", reports=[])
    assert not problems(declared(orders))


# Moves -------------------------------------------------------------------------------------------------------------


def moving(cpu: float = 8.0) -> ScalePlan:
    node = Node(role=Role.PS, number=0, seat=0, since=T0, reason="", resource=NodeResource(cpu=cpu, memory=1024))
    return ScalePlan(migrate_nodes=(node,), reason="ps-0 is hot")


HAS = {"resource": ResourceSpec(cpu=4, memory="1Gi")}
MOVED = PodMeta(name="j-ps-0", resource=ResourceSpec(cpu=8))


def test_a_move_names_the_pod_and_what_is_new_of_what_it_has() -> None:
    reports = [a_server(0, "Running", **HAS)]
    orders = asked(Orders(), moving(), job="j", reports=reports)
    (entry,) = orders.migrate.values()
    assert (entry.name, entry.resource) == ("j-ps-0", ResourceSpec(cpu="8"))
    assert orders.reason == "ps-0 is hot"
    assert settled(orders, reports, seen=frozenset({"j-ps-0"})) is orders, "as long as it is not done"
    assert asked(orders, replace(moving(), migrate_nodes=()), job="j", reports=reports).migrate == {}, "called off"


@pytest.mark.parametrize(
    ("reports", "failed"),
    [
        pytest.param([a_server(0, "Deleted"), a_server(2, "Running", rank=0, replaces="j-ps-0")], (), id="done"),
        pytest.param([a_server(2, "Running", rank=0, replaces="j-ps-0")], (), id="done-and-forgotten"),
        pytest.param([a_server(0, "Failed", exit_code=1)], (), id="it-ended-by-itself"),
        pytest.param([a_server(0, "Running")], ("j-ps-0",), id="failed"),
    ],
)
def test_a_move_stands_until_it_is_done_or_cannot_be(reports: list[PodReport], failed: tuple[str, ...]) -> None:
    orders = Orders(migrate={"j-ps-0": MOVED})
    assert settled(orders, reports, seen=frozenset({"j-ps-0"}), failed=failed).migrate == {}


def test_who_lets_a_replacement_go_asks_for_no_other_one() -> None:
    reports = [a_server(0, "Running"), a_server(2, "Pending", rank=0, replaces="j-ps-0")]
    late = Node(role=Role.PS, number=2, seat=0, since=T0, reason="")
    given_up = ScalePlan(remove_nodes=(late,), reason="it did not come up")
    orders = ordered(Orders(migrate={"j-ps-0": MOVED}), given_up, job="j", reports=reports)
    assert (orders.remove, orders.migrate) == ({"j-ps-2"}, {})
