"""Jobs on Kubernetes whose masters are killed while their workers train, and what that did to them.

Two kinds. On simulated hosts nothing runs in Pods, so we are the kubelet: what the job's Pods would run, runs here
(`SimulatedJob`). On a real node the Pods run it themselves, master and all, and we only kill (`RealJob`). Asked and
measured are both in the same way.
"""

import base64
import contextlib
import itertools
import json
import ssl
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request
from abc import ABC, abstractmethod
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil

from _clusters import ENVIRONMENT, Cluster, elastic_job, training_template
from _common import end_tree
from _fleets import SCRIPTS, Finished, Steps, free_port
from failover import Kill, step_seconds

NAME = "train"
NODES = 2
PATIENCE = 300.0
ELASTIC_JOBS = "/apis/elastic.iml.github.io/v1alpha1/namespaces/{}/elasticjobs"
PODS = "/api/v1/namespaces/{}/pods"


def pod_is_there(cluster: Cluster, namespace: str, name: str, phase: str | None = None) -> None:
    """Wait for a Pod, as a watch shows it."""

    def holds(items: list[dict[str, Any]]) -> bool:
        return any(phase in (None, item["status"].get("phase")) for item in items)

    path = PODS.format(namespace)
    cluster.api.wait(path, holds, what=f"Pod {name}", timeout=PATIENCE, fieldSelector=f"metadata.name={name}")


class FailingJob(ABC):
    """What both kinds have in common: a job that trains, with a master to be killed."""

    def __init__(self, cluster: Cluster, namespace: str, folder: Path, job: dict[str, Any]) -> None:
        self._cluster, self._namespace, self._folder = cluster, namespace, folder
        cluster.api.create(ELASTIC_JOBS.format(namespace), job)
        for number in range(NODES):
            pod_is_there(cluster, namespace, f"{NAME}-worker-{number}", "Running")
        self.term = 1
        self._wait_for_master()
        self._secrets = folder / "secrets"
        self._secrets.mkdir()
        data = cluster.api.get(f"/api/v1/namespaces/{namespace}/secrets/{NAME}-token")["data"]
        for name, value in data.items():
            (self._secrets / name).write_bytes(base64.b64decode(value))
        self.steps = Steps(folder / "steps")

    @abstractmethod
    def end(self) -> None:
        """Nothing is left running."""

    @abstractmethod
    def last_words(self) -> str:
        """What its processes said last."""

    @abstractmethod
    def _address(self) -> str:
        """Where the master of this term serves, as HOST:PORT."""

    @abstractmethod
    def _kill(self) -> None:
        """End the master without a word."""

    @abstractmethod
    def _follow(self) -> None:
        """The next master's Pod is there: see to it that it runs."""

    def state(self) -> dict[str, Any]:
        """Ask until the master answers."""
        token = (self._secrets / "admin").read_text().strip()
        trust = ssl.create_default_context()
        trust.check_hostname, trust.verify_mode = False, ssl.CERT_NONE
        request = urllib.request.Request(
            f"https://{self._address()}/state", headers={"Authorization": f"Bearer {token}"}
        )
        until = time.monotonic() + PATIENCE
        while True:
            try:
                with urllib.request.urlopen(request, timeout=PATIENCE, context=trust) as answer:
                    return dict(json.loads(answer.read()))
            except (urllib.error.URLError, OSError) as error:
                if time.monotonic() > until:
                    raise TimeoutError(f"no master answers: {error}\n{self.last_words()}") from error
                time.sleep(0.005)

    def wait_for_agents(self) -> dict[str, Any]:
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            state = self.state()
            live = [node for node in state["nodes"] if node["status"] == "running"]
            if len(live) == NODES and all(node["connected"] and node["processes"] for node in live):
                return state
            time.sleep(0.01)
        raise TimeoutError(f"not all agents are back\n{self.last_words()}")

    def wait_for_steps(self, count: int) -> None:
        """Until each process has done so many more."""
        self.steps.read()
        known, until = len(self.steps.all), time.monotonic() + PATIENCE
        while time.monotonic() < until:
            self.steps.read()
            done = [step.rank for step in self.steps.all[known:] if step.size == NODES]
            if all(done.count(rank) >= count for rank in range(NODES)):
                return
            time.sleep(0.05)
        raise TimeoutError(f"it does not train\n{self.last_words()}")

    def kill_master(self) -> tuple[float, Kill]:
        """Returns also after how long the next master's Pod was there."""
        self.steps.read()
        known = len(self.steps.all)
        began, at = time.monotonic(), time.time()
        self._kill()
        self.term += 1
        self._wait_for_master()
        made = time.monotonic()
        self._follow()
        self.state()
        answered = time.monotonic()
        self.wait_for_agents()
        back = time.monotonic()
        self.wait_for_steps(3)
        before = [step.at for step in self.steps.all[:known] if step.rank == 0][-100:]
        gaps = step_seconds(self.steps, since=at - 0.1, until=at + back - began)
        return made - began, Kill(
            answers=answered - began,
            agents_back=back - began,
            longest_step=max(gaps),
            median_step=statistics.median(b - a for a, b in itertools.pairwise(before)),
        )

    def _wait_for_master(self) -> None:
        pod_is_there(self._cluster, self._namespace, f"{NAME}-master-{self.term}", "Running")


def processes(state: dict[str, Any]) -> set[tuple[str, int]]:
    """Of each node, its agent and its training processes."""
    return {
        (node["node"], pid)
        for node in state["nodes"]
        for pid in (node["pid"], *(process["pid"] for process in node["processes"]))
    }


# On simulated hosts ---------------------------------------------------------------------------------------


class SimulatedJob(FailingJob):
    """A job whose Pods are simulated, and whose master and agents run here."""

    def __init__(self, cluster: Cluster, namespace: str, folder: Path) -> None:
        super().__init__(cluster, namespace, folder, elastic_job(NAME, namespace, most=NODES, replicas=NODES))
        self._port = free_port()
        self._account = cluster.service_account(namespace, f"{NAME}-master", create=False)
        self.steps.directory.mkdir()
        self._master = self._start_master()
        self._agents = [self._start_agent(number) for number in range(NODES)]

    def _run(self, name: str, command: list[str], environment: dict[str, str]) -> subprocess.Popen[bytes]:
        with (self._folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                command,
                env={**ENVIRONMENT, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", **environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _start_master(self) -> subprocess.Popen[bytes]:
        environment = {
            "KUBECONFIG": str(self._account),
            "SHOAL_JOB": NAME,
            "SHOAL_NAMESPACE": self._namespace,
            "SHOAL_TERM": str(self.term),
            "SHOAL_PORT": str(self._port),
            "SHOAL_POD_IP": "127.0.0.1",
            "SHOAL_SECRETS": str(self._secrets),
        }
        return self._run("master", [sys.executable, str(SCRIPTS / "master_pod.py")], environment)

    def _start_agent(self, number: int) -> subprocess.Popen[bytes]:
        script = [sys.executable, str(SCRIPTS / "elastic.py"), "--steps", str(self.steps.directory), "--pace=0.01"]
        environment = {
            "SHOAL_TOKEN_FILE": str(self._secrets / "agent"),
            "SHOAL_AGENT_MASTER": f"wss://127.0.0.1:{self._port}",
            "SHOAL_AGENT_FINGERPRINT": (self._secrets / "fingerprint").read_text().strip(),
            "SHOAL_AGENT_JOB": NAME,
            "SHOAL_AGENT_NODE": f"worker-{number}",
            "SHOAL_AGENT_ROLE": "worker",
            "SHOAL_AGENT_SLOTS": "1",
            "SHOAL_AGENT_MASTER_TIMEOUT": "600",
            "SHOAL_RANK_HINT": str(number),
        }
        return self._run(f"agent-{number}", [sys.executable, "-m", "shoal", "agent", "--", *script], environment)

    def _address(self) -> str:
        return f"127.0.0.1:{self._port}"

    def _kill(self) -> None:
        self._master.kill()
        path = f"{PODS.format(self._namespace)}/{NAME}-master-{self.term}"
        self._cluster.api.delete(path, gracePeriodSeconds=0)
        self._master.wait()

    def _follow(self) -> None:
        self._master = self._start_master()

    def end(self) -> None:
        for each in (*self._agents, self._master):
            end_tree(each.pid, grace_seconds=2.0)
            each.wait()

    def last_words(self) -> str:
        return "\n".join(f"{log.name}: {log.read_text()[-1500:]}" for log in sorted(self._folder.glob("*.log")))


# On a real node -------------------------------------------------------------------------------------------


class RealJob(FailingJob):
    """A job that runs in Pods as anywhere; its workers write their steps into a folder of this machine."""

    def __init__(self, cluster: Cluster, namespace: str, folder: Path) -> None:
        steps = folder / "steps"
        steps.mkdir()
        job = elastic_job(NAME, namespace, most=NODES, replicas=NODES)
        script = SCRIPTS / "elastic.py"
        job["spec"]["worker"]["template"] = training_template(script, "--steps=/log", "--pace=0.01", log=steps)
        super().__init__(cluster, namespace, folder, job)
        self.steps = StepsOfPods(steps)

    def _address(self) -> str:
        pod = self._cluster.api.get(f"{PODS.format(self._namespace)}/{NAME}-master-{self.term}")
        return f"{pod['status']['podIP']}:{pod['spec']['containers'][0]['ports'][0]['containerPort']}"

    def _kill(self) -> None:
        """SIGKILL to its process, as the kernel would: no last word, and its Pod fails."""
        wanted = {"SHOAL_NAMESPACE": self._namespace, "SHOAL_TERM": str(self.term)}
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if wanted.items() <= process.environ().items():
                    process.kill()
                    return
        raise LookupError(f"no master of term {self.term} runs")

    def _follow(self) -> None:
        """The kubelet does."""

    def end(self) -> None:
        self._cluster.api.delete(f"{ELASTIC_JOBS.format(self._namespace)}/{NAME}")

    def last_words(self) -> str:
        words = [f"--namespace={self._namespace}", "--all-containers", "--prefix", "--tail=20", "--ignore-errors"]
        return self._cluster.kubectl("logs", "--selector=elastic.iml.github.io/role", *words)


class StepsOfPods(Steps):
    """Of processes in Pods: a folder for each Pod, whose processes have numbers of its own."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._pods: dict[str, Steps] = {}

    def read(self) -> list[Finished]:
        for pod in sorted(self.directory.iterdir()):
            self._pods.setdefault(pod.name, Steps(pod))
        fresh = [
            replace(step, pid=number * _MOST_PIDS + step.pid)
            for number, steps in enumerate(self._pods.values())
            for step in steps.read()
        ]
        self.all += fresh
        return fresh


_MOST_PIDS = 2**22
