"""The TrainingJobs of one namespace, asked of the API server as its administrator."""

from collections.abc import Callable
from typing import Any

from hack.kube.harness import Cluster, Object
from tests.cluster.operators import PATIENCE, condition


class TrainingJobs:
    def __init__(self, cluster: Cluster, namespace: str, *, patience: float = PATIENCE) -> None:
        self.cluster, self.namespace, self._patience = cluster, namespace, patience
        self.path = f"/apis/paddlepaddle.org/v1/namespaces/{namespace}/trainingjobs"
        self.pods = f"/api/v1/namespaces/{namespace}/pods"

    def make(self, name: str, *, trainer: dict[str, Any] | None = None, **spec: Any) -> Object:
        trainer = {"entrypoint": "python train.py", "min-instance": 1, "max-instance": 1, **(trainer or {})}
        body = {
            "apiVersion": "paddlepaddle.org/v1",
            "kind": "TrainingJob",
            "metadata": {"name": name, "namespace": self.namespace},
            "spec": {
                "image": "localhost/anything:1",
                "freezingWindow": "0s",
                "tolerations": [{"operator": "Exists"}],
                "trainer": trainer,
                **spec,
            },
        }
        return self.cluster.api.create(self.path, body)

    def change(self, name: str, **spec: Any) -> None:
        self.cluster.api.patch(f"{self.path}/{name}", {"spec": spec})

    def kubectl(self, *words: str) -> str:
        return self.cluster.kubectl("--namespace", self.namespace, *words)

    # Waiting -----------------------------------------------------------------------------------------------------

    def until(self, name: str, so: Callable[[Object], Any], what: str) -> Object:
        """Until it is so of the job's status. Returns the job."""

        def look(items: list[Object]) -> Object | None:
            job = next((item for item in items if item["metadata"]["name"] == name), None)
            return job if job and so(job.get("status") or {}) else None

        found: Object = self.cluster.api.wait(self.path, look, what=f"{name}: {what}", timeout=self._patience)
        return found

    def is_in(self, name: str, phase: str, trainers: int | None = None) -> Object:
        def so(status: Object) -> bool:
            return status.get("phase") == phase and trainers in (None, status.get("replicas"))

        return self.until(name, so, f"phase {phase}" + ("" if trainers is None else f" with {trainers} trainers"))

    def says(self, name: str, kind: str, status: str, reason: str) -> Object:
        def so(_: Object, job: Object) -> bool:
            found = condition(job, kind)
            return (found.get("status"), found.get("reason")) == (status, reason)

        def look(items: list[Object]) -> Object | None:
            job = next((item for item in items if item["metadata"]["name"] == name), None)
            return job if job and so({}, job) else None

        found: Object = self.cluster.api.wait(
            self.path, look, what=f"{name}: {kind}={status} {reason}", timeout=self._patience
        )
        return found

    def roles(self, count: dict[str, int]) -> list[Object]:
        """Until so many Pods of each role run, and no others are there. Returns them."""

        def look(items: list[Object]) -> list[Object] | None:
            ours = [pod for pod in items if "elastic.iml.github.io/job-kind" in pod["metadata"]["labels"]]
            live = [pod for pod in ours if "deletionTimestamp" not in pod["metadata"]]
            live = [pod for pod in live if pod["status"].get("phase") not in ("Succeeded", "Failed")]
            found: dict[str, int] = {}
            for pod in live:
                role = pod["metadata"]["labels"]["elastic.iml.github.io/role"]
                found[role] = found.get(role, 0) + (pod["status"].get("phase") == "Running")
            return live or [{}] if found == {role: n for role, n in count.items() if n} else None

        what = ", ".join(f"{n} {role}" for role, n in count.items()) or "no Pods"
        found: list[Object] = self.cluster.api.wait(self.pods, look, what=what, timeout=self._patience)
        return [pod for pod in found if pod]

    def trainers(self) -> list[Object]:
        return [
            pod
            for pod in self.cluster.api.get(self.pods)["items"]
            if pod["metadata"]["labels"].get("elastic.iml.github.io/role") == "trainer"
        ]

    def ends(self, pod: str, code: int) -> None:
        """A simulated Pod's process ends."""
        self.cluster.api.patch(f"{self.pods}/{pod}", {"metadata": {"annotations": {"simulated/exit-code": str(code)}}})
