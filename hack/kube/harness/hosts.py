"""Simulated hosts: Node objects of any size, for which kwok says what a kubelet would say.

Scheduler, garbage collector and everything else are the real ones; only nothing runs in the Pods. What happens to a Pod
is written in `stages/pod.yaml`, and driven by annotations of the Pod. A host fails by `lose`, and returns by
`bring_back`.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

from .api import Api, Object
from .processes import Processes

STAGES = Path(__file__).parents[1] / "stages"

MANAGED = "type"
"""The label by which kwok knows its hosts (value: kwok)."""

GPU = "nvidia.com/gpu"


class Hosts:
    """The simulated hosts of one cluster."""

    def __init__(self, processes: Processes, programs: Path) -> None:
        self._processes = processes
        self._programs = programs

    def start(self, api: Api, kubeconfig: Path) -> None:
        self._api = api
        command: list[str | Path] = [
            self._programs / "kwok",
            f"--kubeconfig={kubeconfig}",
            f"--manage-nodes-with-label-selector={MANAGED}=kwok",
            "--manage-all-nodes=false",
            "--node-lease-duration-seconds=40",
            "--v=WARN",  # else a line for every Pod
            *(f"--config={stage}" for stage in sorted(STAGES.glob("*.yaml"))),
        ]
        self._processes.start("kwok", command)

    def add(
        self,
        count: int,
        *,
        prefix: str = "host",
        cpu: int = 64,
        memory: str = "512Gi",
        gpus: int = 0,
        pods: int = 110,
        labels: Mapping[str, str] | None = None,
        taints: Sequence[Object] = (),
    ) -> list[str]:
        """Add hosts of one kind, named PREFIX-0 and so on, wait until they are ready, and return their names."""
        names = [f"{prefix}-{number}" for number in range(count)]
        capacity = {"cpu": str(cpu), "memory": memory, "pods": str(pods), "ephemeral-storage": "1Ti"}
        if gpus:
            capacity[GPU] = str(gpus)

        def create(name: str) -> None:
            marks = {**(labels or {}), MANAGED: "kwok", "kubernetes.io/hostname": name, "kubernetes.io/os": "linux"}
            host: Object = {
                "metadata": {"name": name, "labels": marks},
                "spec": {"taints": list(taints)},
                "status": {"capacity": capacity, "allocatable": capacity},
            }
            self._api.create("/api/v1/nodes", host)

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(create, names))
        self._wait_for(names, "True")
        return names

    def lose(self, name: str) -> None:
        """The host falls silent: nobody answers for it and its Pods any more, and the cluster has noticed.

        Left alone, the controller manager notices after 50 s without a lease. Here we say what it would then say, and
        it goes on from there: taints, and after their time evictions.
        """
        self._api.patch(f"/api/v1/nodes/{name}", {"metadata": {"labels": {MANAGED: None}}})
        self._say_ready(f"/api/v1/nodes/{name}", "Unknown", "NodeStatusUnknown")
        for pod in self._api.get("/api/v1/pods", fieldSelector=f"spec.nodeName={name},status.phase=Running")["items"]:
            meta = pod["metadata"]
            self._say_ready(f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}", "False", "NodeNotReady")

    def bring_back(self, name: str) -> None:
        self._api.patch(f"/api/v1/nodes/{name}", {"metadata": {"labels": {MANAGED: "kwok"}}})
        self._wait_for([name], "True")

    def remove(self, names: Sequence[str]) -> None:
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda name: self._api.delete(f"/api/v1/nodes/{name}"), names))

    def end_pod(self, namespace: str, name: str, exit_code: int, reason: str = "") -> None:
        """The Pod's containers end with this code."""
        marks = {"simulated/exit-code": str(exit_code), **({"simulated/reason": reason} if reason else {})}
        self._api.patch(f"/api/v1/namespaces/{namespace}/pods/{name}", {"metadata": {"annotations": marks}})

    def _say_ready(self, path: str, status: str, reason: str) -> None:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        condition = {"type": "Ready", "status": status, "reason": reason, "lastTransitionTime": now}
        self._api.patch(f"{path}/status", {"status": {"conditions": [condition]}}, "strategic-merge-patch")

    def _wait_for(self, names: Sequence[str], ready: str) -> None:
        wanted = set(names)
        self._api.wait(
            "/api/v1/nodes",
            lambda nodes: wanted <= {node["metadata"]["name"] for node in nodes if readiness(node) == ready},
            what=f"hosts {names[0]}..{names[-1]} with Ready={ready}",
        )


def readiness(node: Object) -> str:
    """The status of a node's Ready condition."""
    conditions = node.get("status", {}).get("conditions", ())
    return next((each["status"] for each in conditions if each["type"] == "Ready"), "Unknown")
