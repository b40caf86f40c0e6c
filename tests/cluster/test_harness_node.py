"""The real node: Pods that run, find each other, run out of memory and grow; and nothing of it stays behind."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hack.kube.harness import BUSYBOX, Cluster, Object, tear_down
from hack.kube.harness.pods import python_pod
from hack.kube.harness.teardown import cgroups_of, link_of, processes_of

MakeNamespace = Callable[[Cluster], str]

ROOT = Path(__file__).parents[2]


def shell_pod(name: str, script: str, **resources: Object) -> Object:
    container = {"name": "main", "image": BUSYBOX, "command": ["sh", "-c", script], "resources": resources}
    spec = {"containers": [container], "restartPolicy": "Never", "terminationGracePeriodSeconds": 1}
    return {"metadata": {"name": name, "labels": {"app": name}}, "spec": spec}


def service(name: str, port: int, **more: object) -> Object:
    return {"metadata": {"name": name}, "spec": {"selector": {"app": name}, "ports": [{"port": port}], **more}}


def run(cluster: Cluster, namespace: str, pod: Object) -> None:
    cluster.api.create(f"/api/v1/namespaces/{namespace}/pods", pod)


def test_a_pod_runs_and_is_seen_by_logs_and_exec(real_node: Cluster, make_namespace: MakeNamespace) -> None:
    namespace = make_namespace(real_node)
    run(real_node, namespace, shell_pod("hello", "echo hello from $HOSTNAME; sleep 600"))
    real_node.wait_for_pod(namespace, "hello")
    assert real_node.kubectl("logs", "hello", f"--namespace={namespace}") == "hello from hello\n"
    said = real_node.kubectl("exec", "hello", f"--namespace={namespace}", "--", "sh", "-c", "echo $((6 * 7))")
    assert said == "42\n"


def test_a_pod_reaches_another_by_the_name_of_its_service_and_nothing_beyond_the_machine(
    real_node: Cluster, make_namespace: MakeNamespace
) -> None:
    namespace = make_namespace(real_node)
    script = "mkdir /www && echo found >/www/index.html && exec httpd -f -p 8080 -h /www"
    run(real_node, namespace, shell_pod("web", script))
    real_node.api.create(f"/api/v1/namespaces/{namespace}/services", service("web", 8080))
    real_node.wait_for_pod(namespace, "web")

    inside = "until wget -qO- http://web:8080/; do sleep 0.1; done"
    outside = "timeout 5 nc 192.0.2.1 80 </dev/null && echo a way out || echo no way out"
    asking = f"{inside}; {outside}"
    run(real_node, namespace, shell_pod("asker", asking))
    real_node.wait_for_pod(namespace, "asker", "Succeeded")
    said = real_node.kubectl("logs", "asker", f"--namespace={namespace}").splitlines()
    assert "found" in said
    assert "no way out" in said
    assert "a way out" not in said


def test_a_pod_reaches_the_api_server_with_its_own_token(real_node: Cluster, make_namespace: MakeNamespace) -> None:
    namespace = make_namespace(real_node)
    script = """
import json, os, ssl, urllib.request
own = "/var/run/secrets/kubernetes.io/serviceaccount"
address = f"https://{os.environ['KUBERNETES_SERVICE_HOST']}:{os.environ['KUBERNETES_SERVICE_PORT']}"
path = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
body = json.dumps({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}).encode()
headers = {"Authorization": "Bearer " + open(f"{own}/token").read(), "Content-Type": "application/json"}
request = urllib.request.Request(address + path, body, headers)
trust = ssl.create_default_context(cafile=f"{own}/ca.crt")
print(json.load(urllib.request.urlopen(request, context=trust))["status"]["userInfo"]["username"])
"""
    run(real_node, namespace, python_pod("asker", ["-c", script]))
    real_node.wait_for_pod(namespace, "asker", "Succeeded")
    said = real_node.kubectl("logs", "asker", f"--namespace={namespace}")
    assert said == f"system:serviceaccount:{namespace}:default\n"


@pytest.mark.torch
def test_two_pods_sum_a_tensor_with_gloo(real_node: Cluster, make_namespace: MakeNamespace) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    namespace = make_namespace(real_node)
    script = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
value = torch.full((1000,), float(dist.get_rank() + 1))
dist.all_reduce(value)
print("sum", value.sum().item())
dist.destroy_process_group()
"""
    real_node.api.create(
        f"/api/v1/namespaces/{namespace}/services",
        service("rank-0", 29500, clusterIP="None", publishNotReadyAddresses=True),
    )
    common = {"MASTER_ADDR": "rank-0", "MASTER_PORT": "29500", "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
    for rank in range(2):
        environment = {**common, "RANK": str(rank)}
        run(real_node, namespace, python_pod(f"rank-{rank}", ["-c", script], environment=environment))
    for rank in range(2):
        real_node.wait_for_pod(namespace, f"rank-{rank}", "Succeeded", timeout=120)
        assert real_node.kubectl("logs", f"rank-{rank}", f"--namespace={namespace}") == "sum 3000.0\n"


def test_a_pod_that_exceeds_its_memory_is_reported_as_killed_for_it(
    real_node: Cluster, make_namespace: MakeNamespace
) -> None:
    namespace = make_namespace(real_node)
    greedy = python_pod("greedy", ["-c", "x = bytearray(2**29)"], resources={"limits": {"memory": "64Mi", "cpu": "1"}})
    run(real_node, namespace, greedy)
    [container] = real_node.wait_for_pod(namespace, "greedy", "Failed")["status"]["containerStatuses"]
    ended = container["state"]["terminated"]
    assert (ended["exitCode"], ended["reason"]) == (137, "OOMKilled")


def test_a_pod_gets_more_cpu_and_memory_in_place(real_node: Cluster, make_namespace: MakeNamespace) -> None:
    namespace = make_namespace(real_node)
    pods = f"/api/v1/namespaces/{namespace}/pods"
    small, large = ({"cpu": cpu, "memory": memory} for cpu, memory in (("100m", "64Mi"), ("200m", "128Mi")))
    run(real_node, namespace, shell_pod("grows", "sleep 600", limits=small, requests=small))
    before = real_node.wait_for_pod(namespace, "grows")["status"]["containerStatuses"][0]

    wanted = {"containers": [{"name": "main", "resources": {"limits": large, "requests": large}}]}
    real_node.api.patch(f"{pods}/grows/resize", {"spec": wanted}, "strategic-merge-patch")

    def grown(items: list[Object]) -> Object | None:
        [status] = items[0]["status"]["containerStatuses"]
        return status if status.get("resources", {}).get("limits") == large else None

    after = real_node.api.wait(pods, grown, what="the kubelet has resized the container")
    assert after["containerID"] == before["containerID"]
    assert after["restartCount"] == 0
    limit = "cat /sys/fs/cgroup/memory/memory.limit_in_bytes /sys/fs/cgroup/memory.max 2>/dev/null || true"
    said = real_node.kubectl("exec", "grows", f"--namespace={namespace}", "--", "sh", "-c", limit)
    assert said.strip() == str(2**27)


def test_nothing_of_a_cluster_with_a_node_is_left_when_it_is_stopped(tmp_path: Path, real_node: Cluster) -> None:
    before = traces()
    cluster = Cluster(tmp_path / "cluster", node=True)  # beside the one that runs: they share nothing
    with cluster:
        run(cluster, cluster.namespace("last"), shell_pod("sleeper", "sleep 600"))
        cluster.wait_for_pod("last", "sleeper")
        assert link_of(cluster.folder).exists()
        assert cgroups_of(cluster.folder)
    assert_gone(cluster.folder)
    assert traces() == before
    tear_down(cluster.folder)  # may be repeated


def test_nothing_of_a_cluster_with_a_node_is_left_when_its_owner_is_killed(tmp_path: Path, real_node: Cluster) -> None:
    before = traces()
    folder = tmp_path / "cluster"
    command = [sys.executable, "-c", OWNER, str(folder)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(ROOT)}, text=True
    ) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "started\n"
        owner.send_signal(signal.SIGKILL)
    while (folder / "data").exists():  # which the guard removes last
        time.sleep(0.05)
    assert_gone(folder)
    assert traces() == before


OWNER = """
import sys, time
from pathlib import Path
from hack.kube.harness import BUSYBOX, Cluster

with Cluster(Path(sys.argv[1]), node=True) as cluster:
    cluster.kubectl("run", "sleeper", f"--image={BUSYBOX}", "--command", "--", "sleep", "600")
    cluster.wait_for_pod("default", "sleeper")
    print("started", flush=True)
    time.sleep(600)
"""


def assert_gone(folder: Path) -> None:
    assert processes_of(folder) == []
    assert cgroups_of(folder) == []
    assert not link_of(folder).exists()
    assert str(folder) not in Path("/proc/self/mounts").read_text()
    assert sorted(path.name for path in folder.iterdir()) == ["logs", "users"]


def traces() -> dict[str, object]:
    """What a node could leave on the machine besides: packet filter rules, network namespaces, settings, folders."""
    return {
        "rules": subprocess.run(["nft", "list", "tables"], check=True, capture_output=True, text=True).stdout,
        "namespaces": [path.name for path in Path("/run/netns").glob("*")],
        "forwarding": Path("/proc/sys/net/ipv4/ip_forward").read_text(),
        "folders": [
            name
            for name in ("cni", "containerd", "kubelet")
            for top in ("/run", "/var/lib")
            if Path(top, name).exists()
        ],
    }
