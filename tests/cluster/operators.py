"""`shoal operator` as a process on a real cluster, and what tests ask about its jobs.

Each test has a namespace and an operator of its own, which watches that namespace only: tests do not meet.
"""

import atexit
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from hack.kube.harness import Cluster, Object, teardown

ROOT = Path(__file__).parents[2]
CRDS = ROOT / "deploy" / "chart" / "templates" / "crds"
PATIENCE = 120.0
TEMPLATE = {
    "spec": {
        "containers": [{"name": "main", "image": "localhost/anything:1", "command": ["python", "train.py"]}],
        "tolerations": [{"operator": "Exists"}],
    }
}
T = TypeVar("T")
_SERVES = re.compile(r"serves (http://\S+)/metrics")


def install(cluster: Cluster) -> None:
    """Our definitions, once per cluster."""
    for path in sorted(CRDS.glob("*.yaml")):
        cluster.kubectl("apply", "--server-side", "-f", str(path))
    cluster.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=30s")


@cache
def marked() -> Mapping[str, str]:
    """What processes carry in their environment that must not outlive this one, whichever way it ends."""
    folder = Path(tempfile.mkdtemp(prefix="shoal-operators-"))
    command = [sys.executable, "-I", "-S", teardown.__file__, str(folder.resolve())]
    guard = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)

    def end() -> None:
        guard.communicate()
        folder.rmdir()

    atexit.register(end)
    return {teardown.MARK: str(folder.resolve())}


class Process:
    """One `shoal operator`."""

    def __init__(self, kubeconfig: Path, namespace: str, log: Path, *flags: str) -> None:
        words = [sys.executable, "-m", "shoal", "operator", "--kubeconfig", str(kubeconfig), "--namespace", namespace]
        words += ["--home", namespace, "--listen", "127.0.0.1:0", "--image", "localhost/shoal:1", *flags]
        self.log = log
        path = os.pathsep.join((str(ROOT / "src"), str(ROOT)))
        with log.open("ab") as out:
            self._process = subprocess.Popen(
                words,
                stdout=out,
                stderr=out,
                env={**os.environ, "PYTHONPATH": path, **marked()},
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def is_alive(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def end(self) -> int:
        if self.is_alive():
            self._process.send_signal(signal.SIGTERM)
        try:
            return self._process.wait(20)
        except subprocess.TimeoutExpired:
            self.kill()
            raise

    def wait(self) -> int:
        return self._process.wait(PATIENCE)

    def address(self) -> str:
        """Where it serves its metrics."""

        def serves() -> str | None:
            assert self.is_alive(), self.log.read_text()[-2000:]
            found = _SERVES.search(self.log.read_text())
            return found and found[1]

        return until(serves, "it serves")


def until(look: Callable[[], T | None], what: str, patience: float = PATIENCE) -> T:
    """Wait for something that nobody tells of: what a process writes into its log, say."""
    end = time.monotonic() + patience
    while time.monotonic() < end:
        if found := look():
            return found
        time.sleep(0.05)
    raise AssertionError(f"not within {patience:.0f} s: {what}")


@contextmanager
def operator(
    cluster: Cluster, namespace: str, folder: Path, *flags: str, kubeconfig: Path | None = None
) -> Iterator[Process]:
    quick = ("--drain", "5", "--ending", "1", "--silence", "3", "--skip-checks")
    process = Process(kubeconfig or cluster.kubeconfig, namespace, folder / "operator.log", *quick, *flags)
    try:
        yield process
    finally:
        if process.is_alive():
            assert process.end() == 0, process.log.read_text()[-3000:]
        assert "Traceback" not in process.log.read_text(), process.log.read_text()[-6000:]


class Jobs:
    """The jobs of one namespace, asked of the API server as its administrator."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self.cluster, self.namespace = cluster, namespace
        self.jobs = f"/apis/elastic.iml.github.io/v1alpha1/namespaces/{namespace}/elasticjobs"
        self.scale_plans = f"/apis/elastic.iml.github.io/v1alpha1/namespaces/{namespace}/scaleplans"
        self.job_resources = f"/apis/elastic.easydl.org/v1alpha1/namespaces/{namespace}/jobresources"
        self.pods = f"/api/v1/namespaces/{namespace}/pods"
        self.patience = PATIENCE

    # Writing -----------------------------------------------------------------------------------------------------

    def make(self, name: str, *, worker: dict[str, Any] | None = None, **spec: Any) -> Object:
        body = {
            "apiVersion": "elastic.iml.github.io/v1alpha1",
            "kind": "ElasticJob",
            "metadata": {"name": name},
            "spec": {"worker": {"template": TEMPLATE, **(worker or {})}, **spec},
        }
        return self.cluster.api.create(self.jobs, body)

    def plan(self, name: str, job: str | None, **spec: Any) -> Object:
        body = {
            "apiVersion": "elastic.iml.github.io/v1alpha1",
            "kind": "ScalePlan",
            "metadata": {"name": name, "labels": {"scale-type": "manual"}},
            "spec": {**({} if job is None else {"ownerJob": job}), **spec},
        }
        return self.cluster.api.create(self.scale_plans, body)

    def change(self, name: str, spec: dict[str, Any]) -> None:
        self.cluster.api.patch(f"{self.jobs}/{name}", {"spec": spec})

    def report(self, name: str, phase: str, reason: str = "") -> None:
        """Be the job's newest master: report."""
        term = self.cluster.api.get(f"{self.jobs}/{name}")["status"]["term"]
        status = {"status": {"training": {"phase": phase, "reason": reason, "term": term}}}
        self.cluster.api.patch(f"{self.jobs}/{name}/status", status)

    # Waiting -----------------------------------------------------------------------------------------------------

    def wait(self, path: str, so: Callable[[list[Object]], Any], what: str) -> Any:
        return self.cluster.api.wait(path, so, what=what, timeout=self.patience)

    def wait_for(self, name: str, kind: str, status: str, reason: str | None = None) -> Object:
        """Until a job's condition is so."""

        def so(items: list[Object]) -> Object | None:
            job = next((item for item in items if item["metadata"]["name"] == name), None)
            return job if job and is_so(job, kind, status, reason) else None

        found: Object = self.wait(self.jobs, so, f"{name}: {kind}={status} {reason or ''}")
        return found

    def wait_for_plan(
        self, name: str, kind: str, status: str, reason: str | None = None, path: str | None = None
    ) -> Object:
        def so(items: list[Object]) -> Object | None:
            plan = next((item for item in items if item["metadata"]["name"] == name), None)
            return plan if plan and is_so(plan, kind, status, reason) else None

        found: Object = self.wait(path or self.scale_plans, so, f"{name}: {kind}={status} {reason or ''}")
        return found

    def wait_for_pods(self, *names: str) -> None:
        """Until exactly these Pods of members and masters run."""

        def so(items: list[Object]) -> bool:
            return sorted(running(items)) == sorted(names)

        self.wait(self.pods, so, f"Pods {', '.join(names) or 'none'}")

    def settled(self, name: str, *pods: str) -> Object:
        """Until these Pods run, and the job says that nothing is left to do."""
        self.wait_for_pods(*pods)

        def so(items: list[Object]) -> Object | None:
            job = next((item for item in items if item["metadata"]["name"] == name), None)
            ready = job and is_so(job, "Ready", "True") and is_so(job, "Resizing", "False")
            return job if ready and job["status"]["observedGeneration"] == job["metadata"]["generation"] else None

        found: Object = self.wait(self.jobs, so, f"{name} is settled")
        return found

    def names(self) -> list[str]:
        return sorted(running(self.cluster.api.get(self.pods)["items"]))


def running(items: list[Object]) -> list[str]:
    return [
        pod["metadata"]["name"]
        for pod in items
        if pod.get("status", {}).get("phase") == "Running" and "deletionTimestamp" not in pod["metadata"]
    ]


def condition(obj: Object, kind: str) -> Object:
    found = (obj.get("status") or {}).get("conditions") or []
    return next((each for each in found if each["type"] == kind), {})


def is_so(obj: Object, kind: str, status: str, reason: str | None = None) -> bool:
    found = condition(obj, kind)
    return found.get("status") == status and reason in (None, found.get("reason"))


class Watcher:
    """What happens to the Pods of a namespace, in the order of a watch of kubectl's own."""

    def __init__(self, cluster: Cluster, namespace: str, log: Path) -> None:
        self._log = log
        what = "{.object.metadata.name} {.object.metadata.uid} {.object.status.phase}"
        form = f"{{.type}} {what} {{.object.metadata.deletionTimestamp}}"
        words = ["get", "pods", f"--namespace={namespace}", "--watch", "--output-watch-events"]
        with log.open("wb") as out:
            self._process = subprocess.Popen(
                [
                    str(cluster.programs / "kubectl"),
                    f"--kubeconfig={cluster.kubeconfig}",
                    *words,
                    f'-o=jsonpath={form}{{"\\n"}}',
                ],
                stdout=out,
                stderr=out,
            )

    def __enter__(self) -> "Watcher":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()

    def stop(self, *, deleted: tuple[str, ...] = ()) -> list[str]:
        """`Running NAME` and `Deleted NAME`, each once, in order. No name may have been given to two Pods, but those
        of jobs that were deleted: who had decided before makes one after it, and it is collected as garbage."""
        self.__exit__()
        lines, uids = [], dict[str, str]()
        for line in self._log.read_text().splitlines():
            _, name, uid, phase, *ending = line.split(" ")
            assert uids.setdefault(name, uid) == uid or name in deleted, f"{name} was made twice"
            lines.append(f"{'Deleted' if any(ending) else phase} {name}")
        return list(dict.fromkeys(lines))
