"""Jobs that really train on the real node, and what they wrote down."""

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hack.kube.harness import Cluster, Object
from hack.kube.harness.images import BUSYBOX
from hack.kube.harness.pods import python_environment, python_mounts, python_volumes
from tests.cluster.operators import Jobs, condition

from shoal.core.ledger import GlobalBatch, micro_batch, records, total_steps
from shoal.trainer.job import dataset_spec

SCRIPT = Path(__file__).with_name("train_pods.py")
PATIENCE = 420.0
"""Pods import torch on a machine that does other things too."""


@dataclass(frozen=True, slots=True)
class Line:
    """One micro-batch, as the process that trained it wrote it down."""

    step: int
    number: int
    rank: int
    size: int
    records: tuple[int, ...]


class Training(Jobs):
    """The jobs of one namespace, with a folder that their Pods write into."""

    def __init__(self, cluster: Cluster, namespace: str, folder: Path) -> None:
        super().__init__(cluster, namespace)
        self.folder = folder
        folder.mkdir(mode=0o777)
        folder.chmod(0o777)

    def template(self, *words: str, resources: Object | None = None) -> Object:
        """A Pod that runs the script: the user's image, which knows nothing of Shoal but its SDK."""
        container = {
            "name": "main",
            "image": BUSYBOX,
            "command": [sys.executable, str(SCRIPT), "--log", "/log", *words],
            "env": [{"name": name, "value": value} for name, value in python_environment().items()],
            "volumeMounts": [*python_mounts(), {"name": "log", "mountPath": "/log"}],
            "resources": resources or {},
        }
        volumes = [*python_volumes(), {"name": "log", "hostPath": {"path": str(self.folder)}}]
        return {"spec": {"containers": [container], "volumes": volumes, "terminationGracePeriodSeconds": 5}}

    def apply(self, name: str, template: Object, **worker: Any) -> None:
        """As people do: with kubectl."""
        job = {
            "apiVersion": "elastic.iml.github.io/v1alpha1",
            "kind": "ElasticJob",
            "metadata": {"name": name, "namespace": self.namespace},
            "spec": {"distributionStrategy": "ring-allreduce", "worker": {"template": template, **worker}},
        }
        self.cluster.kubectl("apply", "-f", "-", stdin=json.dumps(job))

    def kubectl(self, *words: str) -> str:
        return self.cluster.kubectl("--namespace", self.namespace, *words)

    def fast(self) -> None:
        (self.folder / "fast").touch()

    # What the job says ------------------------------------------------------------------------------------

    def until(self, name: str, so: Callable[[Object, Object], object], what: str) -> Object:
        """Until it is so of the master's report and the job. Returns the report."""

        def look(items: list[Object]) -> Object | None:
            job = next((item for item in items if item["metadata"]["name"] == name), None)
            report: Object = ((job or {}).get("status") or {}).get("training") or {}
            return report if job and so(report, job) else None

        found: Object = self.cluster.api.wait(self.jobs, look, what=f"{name}: {what}", timeout=PATIENCE)
        return found

    def trains_with(self, name: str, size: int, *, after: int = 0) -> Object:
        """Until a world of so many processes trains, one later than `after`, and has gained a step."""

        def so(report: Object, _: Object) -> bool:
            world, step = report.get("world", 0), report.get("step")
            is_right = report.get("sdk") and report.get("worldSize") == size and world > after
            return bool(is_right and report.get("phase") == "running" and step is not None)

        found = self.until(name, so, f"a world of {size} after world {after}")
        return self.gains(name, found["step"])

    def gains(self, name: str, step: int) -> Object:
        """Until it has gone beyond a step."""
        return self.until(name, lambda report, _: (report.get("step") or 0) > step + 5, f"a step beyond {step}")

    def counts(self, name: str, *, term: int, beyond: int = 0) -> int:
        """Until the master of this term has counted more samples than that; how many."""

        def so(report: Object, _: Object) -> bool:
            return report.get("term") == term and (report.get("samples") or 0) > beyond

        return int(self.until(name, so, f"master {term} counts more than {beyond} samples")["samples"])

    def ended(self, name: str) -> Object:
        """Until the job is over; returns its condition Succeeded."""
        job: Object = self.cluster.api.wait(
            self.jobs,
            lambda items: next(
                (
                    item
                    for item in items
                    if item["metadata"]["name"] == name
                    and condition(item, "Succeeded").get("status") in ("True", "False")
                ),
                None,
            ),
            what=f"{name} ends",
            timeout=PATIENCE,
        )
        return condition(job, "Succeeded")

    def uids(self) -> dict[str, str]:
        """Of the members' Pods, by name."""
        items = self.cluster.api.get(self.pods)["items"]
        found = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in items}
        return {name: uid for name, uid in found.items() if "-master-" not in name}

    def makers(self) -> dict[str, str]:
        """Who made the members' Pods that there are, by name of Pod."""
        items = self.cluster.api.get(self.pods)["items"]
        members = [pod["metadata"] for pod in items if "-master-" not in pod["metadata"]["name"]]
        return {meta["name"]: meta["managedFields"][0]["manager"] for meta in members}

    def end_of(self, pod: str) -> tuple[int, str]:
        """Until a member's training container has ended: its exit code, and what the kubelet calls it."""

        def look(items: list[Object]) -> tuple[int, str] | None:
            statuses = items[0]["status"].get("containerStatuses", []) if items else []
            ends = [status["state"].get("terminated") for status in statuses]
            return next(((end["exitCode"], end["reason"]) for end in ends if end), None)

        found: tuple[int, str] = self.cluster.api.wait(
            self.pods, look, what=f"{pod} ends", timeout=PATIENCE, fieldSelector=f"metadata.name={pod}"
        )
        return found

    def given(self, pod: str, memory: str) -> Object:
        """Until the kubelet has given a member this memory, in place; all that it has."""

        def look(items: list[Object]) -> Object | None:
            status = items[0]["status"]["containerStatuses"][0]
            has = status.get("resources", {})
            assert status["restartCount"] == 0
            return has if has.get("limits", {}).get("memory") == memory else None

        found: Object = self.cluster.api.wait(
            self.pods, look, what=f"{pod} has {memory}", timeout=PATIENCE, fieldSelector=f"metadata.name={pod}"
        )
        return found

    def resize_plan(self, plan: str, *, memory: str) -> None:
        """Have a plan ask for another memory of the workers."""
        change = {"spec": {"replicaResourceSpecs": {"worker": {"resource": {"memory": memory}}}}}
        self.cluster.api.patch(f"{self.scale_plans}/{plan}", change)

    def until_plan_says(self, plan: str, words: str) -> str:
        """Until its condition Admitted begins with these words; all of it."""

        def look(items: list[Object]) -> str | None:
            said = next((condition(item, "Admitted") for item in items if item["metadata"]["name"] == plan), {})
            message = str(said.get("message", ""))
            return message if message.startswith(words) else None

        return str(self.cluster.api.wait(self.scale_plans, look, what=f"{plan} says: {words}", timeout=PATIENCE))

    def memory_limit(self, pod: str) -> int:
        """What the kernel lets a member's training container have, in bytes."""
        files = "/sys/fs/cgroup/memory.max /sys/fs/cgroup/memory/memory.limit_in_bytes"
        said = self.kubectl("exec", pod, "--container=main", "--", "sh", "-c", f"cat {files} 2>/dev/null || true")
        return int(said)

    # What its processes wrote -----------------------------------------------------------------------------

    def processes(self) -> dict[str, list[str]]:
        """The training processes that each Pod has had, by name of Pod."""
        found: dict[str, list[str]] = {}
        for path in sorted(self.folder.glob("*.log")):
            if path.stat().st_size:  # one that was started before the job was known to use the SDK trains nothing
                pod, _, process = path.stem.partition(".")
                found.setdefault(pod, []).append(process)
        return found

    def lines(self) -> list[tuple[str, Line]]:
        found = []
        for path in sorted(self.folder.glob("*.log")):
            for text in path.read_text().splitlines(keepends=True):
                if text.endswith("\n"):
                    step, number, rank, size, *rest = map(int, text.split())
                    found.append((path.stem.partition(".")[0], Line(step, number, rank, size, tuple(rest))))
        return found

    def pod_of_rank(self, rank: int) -> str:
        """The Pod whose process had this rank in the last step that was written down."""
        return max((line.step, pod) for pod, line in self.lines() if line.rank == rank)[1]

    def audit(self, size: int) -> None:
        """Every record of the epoch was trained, in its own micro-batch, whoever died meanwhile."""
        spec = dataset_spec(
            "train",
            size=size,
            epochs=1,
            shuffle="samples",
            seed=5,
            drop_last=True,
            batch=GlobalBatch(micro_batches=6, micro_batch_size=2),
        )
        steps = total_steps(spec)
        assert steps is not None
        expected = {}
        for step in range(steps):
            for number in range(6):
                stretch = micro_batch(spec, step, number)
                expected[step, number] = {tuple(records(spec, stretch.epoch, [(stretch.start, stretch.stop)]))}
        trained: dict[tuple[int, int], set[tuple[int, ...]]] = {}
        for _, line in self.lines():
            trained.setdefault((line.step, line.number), set()).add(line.records)
        assert trained == expected
