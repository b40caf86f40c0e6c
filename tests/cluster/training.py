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
