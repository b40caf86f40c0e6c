"""A real Kubernetes for benchmarks (`hack/kube`), Shoal's definitions in it, and operators beside it."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import psutil

from _common import Options, end_tree, report_nothing

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT))

from hack.image.images import SHOAL, shoal_image  # noqa: E402
from hack.kube.harness import Cluster, Unavailable  # noqa: E402
from hack.kube.harness.images import BUSYBOX  # noqa: E402
from hack.kube.harness.parts import BUILD  # noqa: E402
from hack.kube.harness.pods import python_environment, python_mounts, python_volumes  # noqa: E402

__all__ = ["Cluster", "Unavailable"]

CRDS = ROOT / "deploy" / "chart" / "templates" / "crds"
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), os.environ.get("PYTHONPATH", "")))}
PARTS = ("kubernetes", "kwok")
PATIENCE = 60.0
IMAGE = SHOAL
"""Shoal's own, where Pods run."""
TEMPLATE = {
    "spec": {
        "containers": [{"name": "main", "image": "localhost/anything:1", "command": ["python", "train.py"]}],
        "tolerations": [{"operator": "Exists"}],
    }
}


@contextlib.contextmanager
def simulated(name: str, options: Options) -> Iterator[Cluster]:
    """A cluster that simulated hosts can be added to, with our definitions. Ends the benchmark where there is none.

    Building Kubernetes takes minutes: at a small scale that is not done here, but taken as it is found.
    """
    if options.quick and not _is_built():
        _skip(name, "no Kubernetes has been built here (make kube; wants Go)", options)
    with contextlib.ExitStack() as stack:
        try:
            cluster = stack.enter_context(_with_definitions(simulated_hosts=True))
        except Unavailable as error:
            _skip(name, str(error), options)
        yield cluster


@contextlib.contextmanager
def with_a_node() -> Iterator[Cluster]:
    """A cluster whose Pods run, with our definitions and our image. Raises `Unavailable`."""
    with _with_definitions(node=True) as cluster:
        cluster.node.load(shoal_image(cluster.folder / "bundle"))
        yield cluster


@contextlib.contextmanager
def _with_definitions(**what: bool) -> Iterator[Cluster]:
    folder = Path(tempfile.mkdtemp(prefix="shoal-bench-"))
    try:
        with Cluster(folder, **what) as cluster:
            for path in sorted(CRDS.glob("*.yaml")):
                cluster.kubectl("apply", "--server-side", "-f", str(path))
            cluster.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=60s")
            yield cluster
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _is_built() -> bool:
    if shutil.which("go") is None:  # the folder's name has Go's version in it
        return False
    where = subprocess.run([BUILD, "--where"], check=True, capture_output=True, text=True).stdout.strip()
    return all((Path(where) / part).exists() for part in PARTS)


def _skip(name: str, why: str, options: Options) -> NoReturn:
    report_nothing(name, why, options)
    sys.exit(0 if options.quick else 1)


def elastic_job(name: str, namespace: str, *, most: int, replicas: int | None = None) -> dict[str, Any]:
    worker: dict[str, Any] = {"template": TEMPLATE, "max": most}
    if replicas is not None:
        worker["replicas"] = replicas
    return {
        "apiVersion": "elastic.iml.github.io/v1alpha1",
        "kind": "ElasticJob",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"optimizeMode": "manual", "worker": worker},
    }


def training_template(script: Path, *flags: str, log: Path) -> dict[str, Any]:
    """A Pod that trains with this machine's Python and PyTorch, over an image that has neither. It has a folder of its
    own in `log`, named for it, at /log."""
    name = {"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}
    container = {
        "name": "main",
        "image": BUSYBOX,
        "command": [sys.executable, str(script), *flags],
        "env": [*({"name": each, "value": value} for each, value in python_environment().items()), name],
        "volumeMounts": [*python_mounts(), {"name": "log", "mountPath": "/log", "subPathExpr": "$(POD)"}],
    }
    volumes = [*python_volumes(), {"name": "log", "hostPath": {"path": str(log)}}]
    return {"spec": {"containers": [container], "volumes": volumes, "terminationGracePeriodSeconds": 5}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What an operator has spent since its start."""

    calls: Counter[str]
    """Of the API server, by verb and resource; renewals of its lease aside."""
    cpu: float
    """Seconds."""
    at: float


class Operator:
    """One `shoal operator` on this machine."""

    _serves = re.compile(r"serves (http://\S+)/metrics")
    _calls = re.compile(r"^shoal_api_requests_total\{(.*)\} (\S+)$", re.MULTILINE)
    _label = re.compile(r'(\w+)="(.*?)"')

    def __init__(self, cluster: Cluster, home: str, log: Path, *flags: str) -> None:
        words = [sys.executable, "-m", "shoal", "operator", f"--kubeconfig={cluster.kubeconfig}", f"--home={home}"]
        words += ["--listen=127.0.0.1:0", "--image=localhost/shoal:1", *flags]
        self._log = log
        with log.open("wb") as out:
            self._process = subprocess.Popen(
                words, env=ENVIRONMENT, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
            )
        self.view = psutil.Process(self._process.pid)

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def tell_to_end(self) -> None:
        self._process.send_signal(signal.SIGTERM)

    def end(self) -> None:
        end_tree(self._process.pid, grace_seconds=10.0)
        self._process.wait()

    def is_alive(self) -> bool:
        return self._process.poll() is None

    def metrics(self) -> str:
        return str(urllib.request.urlopen(f"{self._address()}/metrics", timeout=PATIENCE).read().decode())

    def leads(self) -> bool:
        return 'shoal_leader{replica_role="leader"} 1.0' in self.metrics()

    def is_busy(self) -> bool:
        return "\nshoal_queue_length 0.0" not in self.metrics()

    def cost(self) -> Cost:
        calls: Counter[str] = Counter()
        for labels, count in self._calls.findall(self.metrics()):
            said = dict(self._label.findall(labels))
            if said["resource"] != "leases":
                calls[f"{said['verb']} {said['resource']}"] += int(float(count))
        spent = self.view.cpu_times()
        return Cost(calls=calls, cpu=spent.user + spent.system, at=time.monotonic())

    def _address(self) -> str:
        until = time.monotonic() + PATIENCE
        while True:
            text = self._log.read_text()
            if found := self._serves.search(text):
                return found[1]
            if not self.is_alive() or time.monotonic() > until:
                raise RuntimeError(f"the operator does not serve: {text[-2000:]}")
            time.sleep(0.05)
