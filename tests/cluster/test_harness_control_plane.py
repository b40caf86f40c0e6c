"""The control plane as tests get it: real, its users told apart, and gone when its owner is."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hack.kube.harness import ApiError, Cluster
from hack.kube.harness.processes import ComponentDied, Processes
from hack.kube.harness.teardown import processes_of

ROOT = Path(__file__).parents[2]

OWNER = """
import sys, time
from pathlib import Path
from hack.kube.harness.processes import Processes

processes = Processes(Path(sys.argv[1]), kept=False)
processes.start("sleeper", ["sh", "-c", "sleep 600 & sleep 600"])
print("started", flush=True)
time.sleep(600)
"""

READER = {
    "kind": "Role",
    "apiVersion": "rbac.authorization.k8s.io/v1",
    "metadata": {"name": "reader"},
    "rules": [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "list"]}],
}


def test_kubectl_speaks_with_a_server_of_the_version_that_was_built(control_plane: Cluster) -> None:
    version = control_plane.kubectl("version")
    assert version.count("v1.35.4") == 2, version


def test_a_service_account_may_do_what_its_role_says_and_nothing_else(
    control_plane: Cluster, make_namespace: Callable[[Cluster], str]
) -> None:
    namespace = make_namespace(control_plane)
    operator = control_plane.service_account(namespace, "operator")
    whoami = control_plane.kubectl("auth", "whoami", kubeconfig=operator)
    assert f"system:serviceaccount:{namespace}:operator" in whoami
    with pytest.raises(RuntimeError, match="forbidden"):
        control_plane.kubectl("get", "configmaps", kubeconfig=operator)

    control_plane.api.create(f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/roles", READER)
    words = ["create", "rolebinding", "reader", "--role=reader", f"--serviceaccount={namespace}:operator"]
    control_plane.kubectl(*words, f"--namespace={namespace}")
    assert "kube-root-ca.crt" in control_plane.kubectl("get", "configmaps", kubeconfig=operator)
    with pytest.raises(RuntimeError, match="forbidden"):
        control_plane.kubectl("get", "secrets", kubeconfig=operator)


def test_a_person_is_known_by_name_and_groups(control_plane: Cluster) -> None:
    whoami = control_plane.kubectl("auth", "whoami", kubeconfig=control_plane.user("jane", ["trainers"]))
    assert "jane" in whoami
    assert "trainers" in whoami


def test_a_pod_stays_pending_where_there_is_no_node(
    control_plane: Cluster, make_namespace: Callable[[Cluster], str]
) -> None:
    namespace = make_namespace(control_plane)
    control_plane.kubectl("run", "lonely", "--image=localhost/none:1", f"--namespace={namespace}")

    def unschedulable(pods: list[dict]) -> bool:  # type: ignore[type-arg]
        conditions = [each for pod in pods for each in pod["status"].get("conditions", ())]
        return any(each.get("reason") == "Unschedulable" for each in conditions)

    control_plane.api.wait(f"/api/v1/namespaces/{namespace}/pods", unschedulable, what="the scheduler's verdict")


def test_the_server_says_no_with_a_status_and_a_reason(control_plane: Cluster) -> None:
    with pytest.raises(ApiError, match="not found") as refused:
        control_plane.api.get("/api/v1/namespaces/default/pods/nobody")
    assert (refused.value.status, refused.value.reason) == (404, "NotFound")


def test_the_api_server_may_crash_and_come_back_with_everything_it_knew(
    control_plane: Cluster, make_namespace: Callable[[Cluster], str]
) -> None:
    namespace = make_namespace(control_plane)
    control_plane.processes.kill("kube-apiserver")
    with pytest.raises(OSError, match="refused"):
        control_plane.api.get("/version")
    control_plane.processes.restart("kube-apiserver")
    control_plane.wait_until_ready()
    assert control_plane.api.get(f"/api/v1/namespaces/{namespace}")["status"]["phase"] == "Active"


def test_a_part_that_dies_is_reported_with_its_last_words(tmp_path: Path) -> None:
    processes = Processes(tmp_path, kept=False)
    try:
        os.waitid(os.P_PID, processes.start("etcd", ["sh", "-c", "echo disk on fire; exit 3"]), os.WEXITED | os.WNOWAIT)
        with pytest.raises(ComponentDied, match=r"(?s)etcd ended with status 3.*disk on fire"):
            processes.check()
    finally:
        processes.stop()


def test_nothing_outlives_an_owner_that_is_killed(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", OWNER, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "started\n"
        assert processes_of(tmp_path)
        owner.send_signal(signal.SIGKILL)
    while processes_of(tmp_path):  # pytest's own time-out is the limit
        time.sleep(0.01)
