"""Simulated hosts: real scheduling onto them, and Pods on them that come, fail and go as a test says."""

from collections.abc import Callable, Iterator

import pytest
from hack.kube.harness import Cluster, Object

MakeNamespace = Callable[[Cluster], str]


@pytest.fixture
def hosts(kwok: Cluster) -> Iterator[list[str]]:
    names = kwok.hosts.add(2, prefix="gpu", cpu=32, gpus=8)
    yield names
    kwok.hosts.remove(names)


def a_pod(name: str, *, gpus: int = 1) -> Object:
    limits = {"nvidia.com/gpu": str(gpus)}
    container = {"name": "main", "image": "localhost/anything:1", "resources": {"limits": limits}}
    return {"metadata": {"name": name}, "spec": {"containers": [container], "restartPolicy": "Never"}}


def test_a_hundred_hosts_come_up(kwok: Cluster) -> None:
    names = kwok.hosts.add(100, prefix="many", gpus=8)
    assert len(kwok.kubectl("get", "nodes", "-o=name").split()) >= 100
    kwok.hosts.remove(names)


def test_pods_run_where_gpus_are_free_and_wait_where_none_are(
    kwok: Cluster, hosts: list[str], make_namespace: MakeNamespace
) -> None:
    namespace = make_namespace(kwok)
    pods = f"/api/v1/namespaces/{namespace}/pods"
    for number in range(2):
        kwok.api.create(pods, a_pod(f"big-{number}", gpus=8))
    for number in range(2):
        kwok.wait_for_pod(namespace, f"big-{number}")
    used = {pod["spec"]["nodeName"] for pod in kwok.api.get(pods)["items"]}
    assert used == set(hosts)

    kwok.api.create(pods, a_pod("late"))
    kwok.api.delete(f"{pods}/big-0")
    assert kwok.wait_for_pod(namespace, "late")["spec"]["nodeName"] in hosts


@pytest.mark.parametrize(
    ("exit_code", "reason", "phase", "told"),
    [
        pytest.param(0, "", "Succeeded", "Completed", id="ends-well"),
        pytest.param(1, "", "Failed", "Error", id="fails"),
        pytest.param(137, "OOMKilled", "Failed", "OOMKilled", id="runs-out-of-memory"),
    ],
)
def test_a_pod_ends_as_it_is_told(
    kwok: Cluster,
    hosts: list[str],
    make_namespace: MakeNamespace,
    exit_code: int,
    reason: str,
    phase: str,
    told: str,
) -> None:
    namespace = make_namespace(kwok)
    kwok.api.create(f"/api/v1/namespaces/{namespace}/pods", a_pod("worker"))
    kwok.wait_for_pod(namespace, "worker")
    kwok.hosts.end_pod(namespace, "worker", exit_code, reason)
    [container] = kwok.wait_for_pod(namespace, "worker", phase)["status"]["containerStatuses"]
    ended = container["state"]["terminated"]
    assert (ended["exitCode"], ended["reason"]) == (exit_code, told)


def test_a_pod_that_is_held_starts_when_it_is_let_go(
    kwok: Cluster, hosts: list[str], make_namespace: MakeNamespace
) -> None:
    namespace = make_namespace(kwok)
    pods = f"/api/v1/namespaces/{namespace}/pods"
    held = a_pod("held")
    held["metadata"]["annotations"] = {"simulated/hold": "true"}
    kwok.api.create(pods, held)
    kwok.api.create(pods, a_pod("free"))
    kwok.wait_for_pod(namespace, "free")
    scheduled = kwok.api.wait(
        pods,
        lambda items: next((p for p in items if p["metadata"]["name"] == "held" and p["spec"].get("nodeName")), None),
        what="the held Pod has a host",
    )
    assert scheduled["status"]["phase"] == "Pending"
    kwok.api.patch(f"{pods}/held", {"metadata": {"annotations": {"simulated/hold": None}}})
    kwok.wait_for_pod(namespace, "held")


def test_a_lost_host_is_tainted_and_its_pods_are_not_ready_and_cannot_be_deleted_until_it_is_back(
    kwok: Cluster, hosts: list[str], make_namespace: MakeNamespace
) -> None:
    namespace = make_namespace(kwok)
    pods = f"/api/v1/namespaces/{namespace}/pods"
    kwok.api.create(pods, a_pod("worker"))
    host = kwok.wait_for_pod(namespace, "worker")["spec"]["nodeName"]

    kwok.hosts.lose(host)
    kwok.api.wait("/api/v1/nodes", lambda nodes: "unreachable" in taints_of(nodes, host), what="the taint")
    kwok.api.wait(pods, lambda items: "False" in [readiness(each) for each in items], what="the Pod is not ready")

    kwok.api.delete(f"{pods}/worker")
    kwok.api.create(pods, a_pod("later"))
    assert kwok.wait_for_pod(namespace, "later")["spec"]["nodeName"] != host
    assert "deletionTimestamp" in kwok.api.get(f"{pods}/worker")["metadata"]

    kwok.hosts.bring_back(host)
    kwok.api.wait(
        pods, lambda items: "worker" not in [each["metadata"]["name"] for each in items], what="it is deleted"
    )
    kwok.api.wait("/api/v1/nodes", lambda nodes: not taints_of(nodes, host), what="the taint is gone")


def test_pods_of_a_host_that_comes_back_are_ready_again(
    kwok: Cluster, hosts: list[str], make_namespace: MakeNamespace
) -> None:
    namespace = make_namespace(kwok)
    kwok.api.create(f"/api/v1/namespaces/{namespace}/pods", a_pod("worker"))
    host = kwok.wait_for_pod(namespace, "worker")["spec"]["nodeName"]
    kwok.hosts.lose(host)
    kwok.hosts.bring_back(host)
    kwok.wait_for_pod(namespace, "worker")


def taints_of(nodes: list[Object], name: str) -> str:
    return " ".join(
        t["key"] for node in nodes if node["metadata"]["name"] == name for t in node["spec"].get("taints", ())
    )


def readiness(pod: Object) -> str:
    return next(each["status"] for each in pod["status"]["conditions"] if each["type"] == "Ready")
