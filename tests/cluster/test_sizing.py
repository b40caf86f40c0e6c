"""Jobs that size themselves on the real node: nothing is deployed but the operator, and nobody says how large they are
to be. Those with parameter servers train with TensorFlow, those without with PyTorch."""

import json
import re
import ssl
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from hack.image.images import SHOAL
from hack.kube.harness import Cluster, Object
from tests.cluster.operators import operator
from tests.cluster.training import PATIENCE, Training

from shoal.api.quantities import parse_quantity

pytestmark = [pytest.mark.tensorflow, pytest.mark.torch, pytest.mark.timeout(1800)]

SERVED = Path(__file__).parents[1] / "tensorflow" / "train_waiting.py"
BATCH = 16
LOOKS, SECONDS = 3, 4
MOST = {"bounded": 60, "plain": 60, "served": 30 * BATCH}
"""Samples that three workers could train in a second if they did nothing but wait."""
AIM, BOUND = 0.9, 0.8
"""Of the speed that a job had before its server became hot. What else a machine has to do makes a look at it uncertain,
so the aim is shown and less of it is held against the best of the looks."""
_DECIDED = re.compile(r"the optimizer(?: \(\w+\))?: .*")
_JUDGED = " took the job from "
_STAGE = re.compile(r'shoal_optimizer_stage\{stage="(\w+)"\} 1\.0')


class Sized(Training):
    """Jobs whose steps wait rather than compute, so that a small machine has room for a few of their Pods."""

    def begin(self, name: str, **spec: Any) -> None:
        template = self.template("--size", "10000000", "--pace", "0", "--wait", "0.1")
        self.put(name, {"distributionStrategy": "ring-allreduce", "worker": {"template": template}, **spec})

    def begin_served(
        self, name: str, *words: str, ps: Object | None = None, worker: Object | None = None, **spec: Any
    ) -> None:
        script = ("exec", sys.executable, str(SERVED), "--log", "/log", "--batch-size", str(BATCH), *words)
        template = {"template": self.shell(" ".join(script), TF_CPP_MIN_LOG_LEVEL="3", OMP_NUM_THREADS="1")}
        roles = {"parameterServer": {**template, **(ps or {})}, "worker": {**template, **(worker or {})}}
        self.put(name, {"distributionStrategy": "parameter_server", **roles, **spec})

    def shell(self, script: str, **environment: str) -> Object:
        template = self.template()
        container = template["spec"]["containers"][0]
        container["command"] = ["/bin/sh", "-c", script]
        container["env"] += [{"name": name, "value": value} for name, value in environment.items()]
        return template

    def put(self, name: str, spec: Object) -> None:
        meta = {"name": name, "namespace": self.namespace}
        body = {"apiVersion": "elastic.iml.github.io/v1alpha1", "kind": "ElasticJob", "metadata": meta, "spec": spec}
        self.cluster.kubectl("apply", "-f", "-", stdin=json.dumps(body))

    def trains(self, name: str) -> None:
        """Until two workers do."""
        self.until(name, lambda report, _: report.get("worldSize", 0) >= 2 and _trained(report), "two workers train")

    def judges(self, name: str) -> None:
        """Until a change was judged."""
        self.trains(name)
        self.until(name, lambda *_: any(_JUDGED in word for word in self.decided(name)), "a change was judged")

    def settles(self, name: str) -> list[str]:
        """Until the last stage is reached, and then nothing was changed for the time of a few looks; all that was
        decided."""
        self.until(name, lambda *_: self.stage(name) == "running", "it knows what it needs")
        while True:
            decided = self.decided(name)
            more = LOOKS * SECONDS * MOST[name]
            more += _trained(self.until(name, lambda said, _: _trained(said), "it trains"))
            self.until(name, lambda said, _: _trained(said) > more, "it trains on")  # noqa: B023
            if self.decided(name) == decided:
                return decided

    def decided(self, name: str) -> list[str]:
        """What the optimizer planned, and what came of it."""
        return _DECIDED.findall(self.kubectl("logs", f"{name}-master-1"))

    def recovered(self, unloaded: float, loaded: float) -> list[float]:
        """Its speeds afterwards, until one reaches the aim, or of five the best the bound: what else a machine has to
        do comes and goes, but a server that keeps its company stays slow."""
        assert loaded < unloaded, "what is to be recovered from"
        found, until = list[float](), time.monotonic() + PATIENCE
        while not found or max(found) < (AIM if len(found) < 5 else BOUND) * unloaded:
            assert time.monotonic() < until, f"{unloaded:.1f} steps/s became {loaded:.1f}, and then {found}"
            found.append(self.speed())
        return found

    def speed(self, steps: int = 50) -> float:
        """Steps a second of all workers, over the next so many."""
        first = len(self.steps())
        until = time.monotonic() + PATIENCE
        while len(found := self.steps()) < first + steps:
            assert time.monotonic() < until, f"{len(found) - first} steps in {PATIENCE} s"
            time.sleep(0.2)
        return (len(found) - first) / (found[-1] - found[first])

    def steps(self) -> list[float]:
        """When each ended."""
        lines = [line for path in self.folder.glob("*.steps") for line in path.read_text().split("\n")[:-1]]
        return sorted(map(float, lines))

    def stage(self, name: str) -> str:
        """As its master's metrics tell it."""
        (pod,) = (pod for pod in self.items() if pod["metadata"]["name"] == f"{name}-master-1")
        anyone = ssl._create_unverified_context()
        url = f"https://{pod['status']['podIP']}:7077/metrics"
        try:
            with urllib.request.urlopen(url, context=anyone, timeout=PATIENCE) as answer:
                (stage,) = _STAGE.findall(answer.read().decode())
        except OSError:
            return ""  # it does not listen yet
        return str(stage)

    def has(self, pod: str) -> Object:
        """What the kubelet gives its container now; a container may train before the kubelet says that it runs."""

        def look(items: list[Object]) -> list[Object]:
            containers = items[0]["status"].get("containerStatuses", [])
            assert all(container["restartCount"] == 0 for container in containers)
            return [container["resources"] for container in containers if "resources" in container]

        (found,) = self.cluster.api.wait(
            self.pods, look, what=f"{pod} runs", timeout=PATIENCE, fieldSelector=f"metadata.name={pod}"
        )
        return dict(found)

    def worlds(self, name: str) -> dict[str, list[int]]:
        """Pod → sizes of the worlds that it made steps in, in this order, as its only process wrote it down."""
        found = dict[str, list[int]]()
        assert all(len(processes) == 1 for processes in self.processes().values()), "somebody was started again"
        for pod, line in self.lines():
            if pod.startswith(f"{name}-") and found.setdefault(pod, [])[-1:] != [line.size]:
                found[pod].append(line.size)
        return found

    def items(self) -> list[Object]:
        return list(self.cluster.api.get(self.pods)["items"])


def _trained(report: Object) -> int:
    """Samples, or steps where nobody counts those."""
    return int(report.get("samples") or report.get("step") or 0)


@pytest.fixture
def sized(shoal_node: Cluster, make_namespace: Callable[[Cluster], str], tmp_path: Path) -> Iterator[Sized]:
    namespace = make_namespace(shoal_node)
    small = ("--autoscale-every", str(SECONDS), "--max-members", "3", "--master-cpu", "10m")
    flags = ("--image", SHOAL, "--drain", "60", "--silence", "60", *small)
    with shoal_node.node.machine.weighing(20), operator(shoal_node, namespace, tmp_path, *flags):
        yield Sized(shoal_node, namespace, tmp_path / "log")


def test_jobs_find_their_size_by_themselves_and_what_runs_is_resized_in_place(
    sized: Sized, figures: Callable[[str], None]
) -> None:
    """One says how much it may have in all, so cores and memory are planned for it too; two say nothing at all."""
    sized.begin("bounded", resourceLimits={"cpu": "1500m", "memory": "1800Mi"})
    sized.trains("bounded")
    first, pair = sized.uids(), ("bounded-worker-0", "bounded-worker-1")
    given = {"requests": {"cpu": "700m", "memory": "896Mi"}, "limits": {"memory": "896Mi"}}
    assert [sized.has(pod) for pod in pair] == [given, given]

    for job, begin in (("plain", sized.begin), ("served", sized.begin_served)):
        begin(job)
    sized.judges("bounded")
    planned = sized.cluster.api.get(f"{sized.scale_plans}/bounded-auto")["spec"]["replicaResourceSpecs"]["worker"]
    figures(f"bounded: each of three is to have {planned['resource']}")
    assert planned["resource"]["cpu"] == "500m"
    assert parse_quantity(planned["resource"]["memory"]) < parse_quantity("896Mi")
    for pod in pair:
        assert sized.uids()[pod] == first[pod]
        assert sized.has(pod)["requests"] == planned["resource"]
    assert "bounded-worker-2" in sized.uids()

    for job in ("plain", "served"):
        sized.judges(job)
        assert sized.has(f"{job}-worker-0") == {}
    for job in ("bounded", "plain", "served"):
        told = sized.settles(job)
        figures(f"{job}: " + "; ".join(told))
        assert told[0].startswith("the optimizer (cold_start): nothing is known of the job: 2 worker")
        assert told[1].startswith("the optimizer (probe_workers): 2 workers take")
        assert told[2].startswith("the optimizer: probe_workers took the job from")
    for job in ("bounded", "plain"):
        worlds = sized.worlds(job)
        figures(f"{job}: worlds that each process trained in: {worlds}")
        assert worlds.keys() == {f"{job}-worker-{rank}" for rank in range(3)}
        assert all(sizes == sorted(sizes) and sizes[-1] == 3 for sizes in worlds.values()), "it grew, and stays"
        assert {2, 3} <= set(worlds[f"{job}-worker-0"]) & set(worlds[f"{job}-worker-1"])


def test_a_server_that_others_take_the_cpu_from_is_moved_to_more_of_it(
    sized: Sized, figures: Callable[[str], None]
) -> None:
    """One server with half a core, of which it uses the half. It gets company in its Pod; what takes its place has
    none."""
    busy = sized.folder / "busy"
    works = ("--crosses", "750000", "--busy", "/log/busy", "--company", "30")
    workers = {"replicas": 2, "resource": {"cpu": "100m"}}
    sized.begin_served("x", *works, ps={"max": 1}, worker=workers, resourceLimits={"cpu": "1500m"})
    sized.until("x", lambda *_: "x-master-1" in sized.names() and sized.stage("x") == "running", "it knows its speed")
    assert sized.has("x-ps-0")["requests"]["cpu"] == "500m"
    unloaded = median(sized.speed() for _ in range(3))  # what else the machine does comes and goes
    busy.write_text("ps-0")
    sized.until("x", lambda *_: "has company" in sized.kubectl("logs", "x-ps-0"), "it has company")
    loaded = sized.speed(20)
    moved_to = ["x-master-1", "x-ps-1", "x-worker-0", "x-worker-1"]
    sized.until("x", lambda *_: sized.names() == moved_to, "another server, and the first one is gone")
    after = ", ".join(f"{speed:.1f} ({speed / unloaded:.0%})" for speed in sized.recovered(unloaded, loaded))
    figures(f"steps/s: {unloaded:.1f} unloaded, {loaded:.1f} loaded, after: {after}; the aim is {AIM:.0%}")
    (moved,) = (word for word in sized.decided("x") if "relieve_hot_ps)" in word)
    figures(moved)
    assert moved.startswith("the optimizer (relieve_hot_ps): hot parameter servers: ps-0 uses")
    assert parse_quantity(sized.has("x-ps-1")["requests"]["cpu"]) >= 0.6
