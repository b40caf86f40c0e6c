"""Parameter servers on the real node: operator, master Pod, agents in Pods, TensorFlow. Plans change the servers while
it trains, and a server, a worker, the chief and the master are lost on the way."""

import json
import math
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psutil
import pytest
from hack.image.images import SHOAL
from hack.kube.harness import Cluster, Object
from hack.kube.harness.images import BUSYBOX
from hack.kube.harness.pods import python_environment, python_mounts, python_volumes
from tests.cluster.operators import condition, operator, running
from tests.cluster.training import PATIENCE, Training
from tests.tensorflow.nodes import in_worker

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(1800)]

SCRIPT = Path(__file__).parents[1] / "tensorflow" / "train_ctr.py"
OLD_SCRIPT = SCRIPT.with_name("train_tf_config.py")
STEPS = 1000
BATCH = 64
RECORDS = 600 * BATCH


@dataclass(frozen=True, slots=True)
class Trains:
    """A version of the servers that all workers have acknowledged."""

    version: int
    servers: int
    at: datetime


@dataclass(frozen=True, slots=True, order=True)
class Saved:
    """A checkpoint: which one, of what version, and the Pod of the chief that made it."""

    number: int
    version: int
    chief: str
    path: Path

    @property
    def step(self) -> int:
        return int(json.loads((self.path / "manifest.json").read_text())["step"])


class Serving(Training):
    """Jobs with parameter servers."""

    def __init__(self, cluster: Cluster, namespace: str, folder: Path) -> None:
        super().__init__(cluster, namespace, folder)
        self.term = 1
        self._earlier = ""
        """What masters wrote whose Pods are gone."""

    def apply_servers(self, name: str) -> None:
        template = self.script("--gate", "/log/gate", "--records", str(RECORDS), "--batch-size", str(BATCH))
        spec = {
            "distributionStrategy": "parameter_server",
            "optimizeMode": "manual",
            "checkpoint": {"path": "/log/ckpt", "everySeconds": 5, "keep": 100},
            "parameterServer": {"template": template, "max": 3},
            "worker": {"template": template, "max": 2},
            "evaluator": {"template": template, "replicas": 1},
        }
        self.put("elastic.iml.github.io/v1alpha1", "ElasticJob", name, spec)

    def apply_tf_config(self, name: str) -> None:
        """One that knows nothing of Shoal."""
        template = self.script("--gate", "/log/gate", "--steps", str(STEPS), script=OLD_SCRIPT)
        spec = {
            "distributionStrategy": "parameter_server",
            "optimizeMode": "manual",
            "tfConfig": True,
            "checkpoint": {"path": "/log/ckpt"},
            "parameterServer": {"template": template, "max": 2, "replicas": 1},
            "worker": {"template": template, "max": 1, "replicas": 1},
        }
        self.put("elastic.iml.github.io/v1alpha1", "ElasticJob", name, spec)

    def script(self, *words: str, script: Path = SCRIPT) -> Object:
        environment = {**python_environment(), "TF_CPP_MIN_LOG_LEVEL": "2", "OMP_NUM_THREADS": "1"}
        container = {
            "name": "main",
            "image": BUSYBOX,
            "command": [sys.executable, str(script), *words],
            "env": [{"name": key, "value": value} for key, value in environment.items()],
            "volumeMounts": [*python_mounts(), {"name": "log", "mountPath": "/log"}],
        }
        volumes = [*python_volumes(), {"name": "log", "hostPath": {"path": str(self.folder)}}]
        return {"spec": {"containers": [container], "volumes": volumes, "terminationGracePeriodSeconds": 5}}

    def put(self, version: str, kind: str, name: str, spec: Object) -> None:
        meta = {"name": name, "namespace": self.namespace}
        body = {"apiVersion": version, "kind": kind, "metadata": meta, "spec": spec}
        self.cluster.kubectl("apply", "-f", "-", stdin=json.dumps(body))

    # What becomes of it -----------------------------------------------------------------------------------

    def trains_on(self, name: str, count: int, *, after: int = 0) -> Trains:
        """Until two workers train on a version with so many servers, one later than `after`."""

        def look(report: Object, _: Object) -> bool:
            found = re.fullmatch(r"version (\d+) trains", report.get("reason") or "")
            is_new = found is not None and report.get("term") == self.term and int(found[1]) > after
            return is_new and report.get("worldSize") == 2 and self.acknowledged(name)[-1].servers == count

        self.until(name, look, f"{count} servers hold the model, in a version after {after}")
        return self.acknowledged(name)[-1]

    def acknowledged(self, name: str) -> list[Trains]:
        """Every version that all workers had acknowledged, and when, as the masters wrote it down."""
        counts, found = dict[int, int](), []
        for line in self.log(name).splitlines():
            if made := re.search(r"version (\d+): (\d+) parameter server", line):
                counts[int(made[1])] = int(made[2])
            if ended := re.search(r"version (\d+) trains: workers stood still", line):
                at = datetime.fromisoformat(line.split(" ", 1)[0])
                found.append(Trains(int(ended[1]), counts[int(ended[1])], at))
        return found

    def moved(self, name: str, change: Trains) -> tuple[str, str, str]:
        """What the chief says of a version when it has made its first step on it: its pause by phase; the checksums of
        all variables on the servers before, and on those now."""
        words = rf"version {change.version}: (.*); checksum ([0-9a-f]{{64}}) before, ([0-9a-f]{{64}}) after"
        pause, before, after = self.said(rf"{name}-worker-\d+", words)
        return pause, before, after

    def log(self, name: str) -> str:
        """Of all masters."""
        return self._earlier + self.kubectl("logs", f"{name}-master-{self.term}")

    def until_done(self, kind: str, plan: str) -> None:
        def look(items: list[Object]) -> bool:
            return any(
                item["metadata"]["name"] == plan
                and item.get("status", {}).get("observedGeneration") == item["metadata"]["generation"]
                and condition(item, "Completed").get("status") == "True"
                for item in items
            )

        path = self.scale_plans if kind == "ScalePlan" else self.job_resources
        self.cluster.api.wait(path, look, what=f"{kind} {plan} is done", timeout=PATIENCE)

    def saved(self, name: str, *, after: int = 0) -> "Saved":
        """Until there is a checkpoint with a higher number than `after`; the newest."""

        def look(_: Object, __: Object) -> bool:
            return bool((found := self.checkpoints(name)) and found[-1].number > after)

        self.until(name, look, f"a checkpoint after {after}")
        return self.checkpoints(name)[-1]

    def checkpoints(self, name: str) -> list["Saved"]:
        """The oldest first."""
        found = []
        for manifest in (self.folder / "ckpt").glob(f"{name}.*/ckpt-*/manifest.json"):
            if named := re.fullmatch(r"ckpt-(\d+)-v(\d+)-(worker-\d+)", manifest.parent.name):
                found.append(Saved(int(named[1]), int(named[2]), f"{name}-{named[3]}", manifest.parent))
        return sorted(found)

    def servers(self) -> list[str]:
        """The Pods of servers that run and are to stay."""
        return [pod for pod in running(self.cluster.api.get(self.pods)["items"]) if "-ps-" in pod]

    def workers(self) -> list[str]:
        """The same of workers."""
        return [pod for pod in running(self.cluster.api.get(self.pods)["items"]) if "-worker-" in pod]

    def said(self, pod: str, pattern: str) -> tuple[str, ...]:
        """Until a Pod whose name is like this has printed that; the groups of it."""
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            for name in filter(re.compile(pod).fullmatch, self.uids()):
                with suppress(RuntimeError):  # it does not run yet
                    if found := re.search(pattern, self.kubectl("logs", name)):
                        return found.groups()
            time.sleep(0.5)
        raise TimeoutError(f"{pod} has not said {pattern}: {self.kubectl('get', 'pods')}")

    @contextmanager
    def followed(self, pod: str, log: Path) -> Iterator[None]:
        """What a Pod prints to its end, which may be the end of the Pod too."""
        kubectl = [str(self.cluster.programs / "kubectl"), f"--kubeconfig={self.cluster.kubeconfig}"]
        with log.open("wb") as out:
            process = subprocess.Popen([*kubectl, f"--namespace={self.namespace}", "logs", "-f", pod], stdout=out)
        try:
            yield
            process.wait(PATIENCE)
        finally:
            process.kill()
            process.wait()

    # What is done to it -----------------------------------------------------------------------------------

    def delete(self, pod: str) -> None:
        self.kubectl("delete", "pod", pod, "--wait=false")

    def next_master(self, name: str) -> None:
        """Delete the master's Pod. What it wrote is kept."""
        self._earlier = self.log(name)
        self.delete(f"{name}-master-{self.term}")
        self.term += 1

    def kill_process(self, pod: str) -> None:
        """SIGKILL of the process that trains there."""
        _kill(pod, lambda process: process.cmdline()[1:2] == [str(SCRIPT)])

    def kill(self, pod: str) -> None:
        """SIGKILL of its agent, with which its container ends: nobody is asked, and nothing is moved before."""
        _kill(pod, lambda process: "SHOAL_AGENT_NODE" in process.environ())


def _kill(pod: str, is_it: Callable[[psutil.Process], bool]) -> None:
    """The oldest process of this kind in a Pod."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get("HOSTNAME") == pod and is_it(process):
                found.append((process.create_time(), process.pid, process))
    assert found, f"nothing of the kind runs in {pod}"
    min(found)[2].kill()


class Lives:
    """When each Pod of a namespace ran and when it went, by the kubelet's and the API server's clock, noted while it
    happens: of a Pod that is gone nobody can ask."""

    def __init__(self, cluster: Cluster, namespace: str, log: Path) -> None:
        self._log = log
        kubectl = [str(cluster.programs / "kubectl"), f"--kubeconfig={cluster.kubeconfig}"]
        words = ["get", "pods", f"--namespace={namespace}", "--watch", '-o=jsonpath={@}{"\\n"}']
        with log.open("wb") as out:
            self._process = subprocess.Popen([*kubectl, *words], stdout=out)
        self.began: dict[str, datetime] = {}
        self.went: dict[str, datetime] = {}
        """The sooner of its end and the word that it is to end."""

    def __enter__(self) -> "Lives":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()

    def read(self) -> None:
        """What was noted so far; whole seconds."""
        for line in self._log.read_text().splitlines(keepends=True):
            if line.endswith("\n"):
                self._note(json.loads(line))

    def _note(self, pod: Object) -> None:
        name, meta = pod["metadata"]["name"], pod["metadata"]
        for status in pod["status"].get("containerStatuses") or []:
            for state in status["state"].values():
                if "startedAt" in state:
                    self.began.setdefault(name, _moment(state["startedAt"]))
                if "finishedAt" in state:
                    self.went.setdefault(name, _moment(state["finishedAt"]))
        if "deletionTimestamp" in meta:
            told = _moment(meta["deletionTimestamp"]) - timedelta(seconds=meta["deletionGracePeriodSeconds"])
            self.went.setdefault(name, told)


def _moment(text: str) -> datetime:
    return datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)


@pytest.fixture
def serving(shoal_node: Cluster, make_namespace: Callable[[Cluster], str], tmp_path: Path) -> Iterator[Serving]:
    namespace = make_namespace(shoal_node)
    with operator(shoal_node, namespace, tmp_path, "--image", SHOAL, "--drain", "60", "--silence", "60"):
        yield Serving(shoal_node, namespace, tmp_path / "log")


def test_servers_change_and_members_are_lost_and_an_old_server_goes_when_all_have_acknowledged(
    serving: Serving, tmp_path: Path, figures: Callable[[str], None]
) -> None:
    """Two servers, two workers, an evaluator. Servers 2→3, one migrated, 3→2; a worker's and the master's Pod are
    deleted, the chief's process and a whole server are killed; in the end one worker is enough."""
    (serving.folder / "gate").touch()
    serving.plan("size", "x", replicaResourceSpecs={"ps": {"replicas": 2}, "worker": {"replicas": 2}})
    with Lives(serving.cluster, serving.namespace, tmp_path / "pods.log") as lives, ExitStack() as stack:
        serving.apply_servers("x")
        first = serving.trains_on("x", 2)
        chief = serving.saved("x").chief
        stack.enter_context(serving.followed("x-evaluator-0", tmp_path / "scores.log"))
        (worker,) = {"x-worker-0", "x-worker-1"} - {chief}

        serving.plan("more", "x", replicaResourceSpecs={"ps": {"replicas": 3}})
        serving.delete(worker)
        grown = serving.trains_on("x", 3)
        moves = {"2→3": serving.moved("x", grown)}

        update = {"selector": {"name": "x"}, "resource_updation": [{"name": "x-ps-0", "resource": {"cpu": "200m"}}]}
        serving.put("elastic.easydl.org/v1alpha1", "JobResource", "bigger", update)
        serving.kill_process(chief)
        serving.until_done("JobResource", "bigger")
        moved = serving.trains_on("x", 3, after=grown.version)
        moves["one migrated"] = serving.moved("x", moved)
        assert serving.servers() == ["x-ps-1", "x-ps-2", "x-ps-3"]

        serving.next_master("x")
        serving.plan("fewer", "x", replicaResourceSpecs={"ps": {"replicas": 2}})
        serving.until_done("ScalePlan", "fewer")
        shrunk = serving.trains_on("x", 2, after=moved.version)
        moves["3→2"] = serving.moved("x", shrunk)
        (dropped,) = {"x-ps-1", "x-ps-2", "x-ps-3"} - set(serving.servers())

        saved = serving.saved("x", after=serving.checkpoints("x")[-1].number)
        assert saved.chief != chief  # another has taken over
        lost = serving.servers()[0]
        serving.kill(lost)
        serving.trains_on("x", 2, after=shrunk.version)
        assert "x-ps-4" in serving.servers()
        serving.plan("alone", "x", replicaResourceSpecs={"worker": {"replicas": 1}})
        serving.until(
            "x", lambda report, _: report.get("worldSize") == 1 and len(serving.workers()) == 1, "one is left"
        )
        told = serving.log("x")  # the master's Pod goes with the job

        (serving.folder / "gate").unlink()
        assert serving.ended("x")["status"] == "True"
    lives.read()
    for change, new, old in (
        (first, ["x-ps-0", "x-ps-1"], []),
        (grown, ["x-ps-2"], []),
        (moved, ["x-ps-3"], ["x-ps-0"]),
        (shrunk, [], [dropped]),
    ):
        assert all(lives.began[pod] <= change.at for pod in new)
        assert all(lives.went[pod] >= change.at.replace(microsecond=0) for pod in old)
    for change, (pause, before, after) in moves.items():
        figures(f"{change}, as the chief saw it: {pause}")
        assert before == after, f"{change}: a parameter was lost on the way"
    for pause in re.findall(r"version \d+ trains: workers stood still .*", told):
        figures(f"as the master saw it: {pause}")
    back = re.findall(r": back to step (\d+)", told)
    assert back, f"nothing is told of {lost}: {told[-3000:]}"
    assert int(back[-1]) >= saved.step

    last = serving.checkpoints("x")[-1]
    size, unseen, too_often = in_worker("seen", str(last.path))
    assert (size, unseen) == (RECORDS, 0)
    figures(f"{size} records: {unseen} not in the model, {too_often} in it more than once")
    # At the gate a batch takes longer than a process waits before it tells what it trained: the worker whose Pod went
    # and the chief that was killed had each at most one in the model that they had not told of. A master's end takes
    # nothing along (agents tell it again), to go back adds none (the model goes back, too), and the worker that was not
    # needed any more left by itself.
    # Twice that, for agents that have to wait for a core.
    assert too_often <= 4 * BATCH
    scores = re.findall(r"step (\d+): loss (\S+)", (tmp_path / "scores.log").read_text())
    figures("scores by step: " + ", ".join(f"{step} {loss}" for step, loss in scores))
    steps, losses = [int(step) for step, _ in scores], [float(loss) for _, loss in scores]
    assert len(steps) > 2
    assert steps[-1] == last.step
    assert all(map(math.isfinite, losses))
    assert losses[-1] < losses[0]


def test_a_script_that_only_reads_tf_config_is_restarted_when_servers_change_and_has_names_for_its_peers(
    serving: Serving,
) -> None:
    (serving.folder / "gate").touch()
    serving.apply_tf_config("old")
    serving.said("old-worker-0", r"worker 0 begins at step (\d+) with 1 ps")
    serving.plan("more", "old", replicaResourceSpecs={"ps": {"replicas": 2}})
    (again,) = serving.said("old-worker-0", r"worker 0 begins at step (\d+) with 2 ps")
    assert int(again) > 0  # from its checkpoint
    serving.delete("old-worker-0")
    # Its servers find the new Pod.
    (third,) = serving.said("old-worker-[1-9]", r"worker 0 begins at step (\d+) with 2 ps")
    assert int(third) >= int(again)
    (serving.folder / "gate").unlink()
    assert serving.ended("old")["status"] == "True"
    (last,) = serving.said("old-worker-[1-9]", r"worker 0 ends at step (\d+)")
    assert int(last) >= STEPS - 2  # a step is read while others make theirs
