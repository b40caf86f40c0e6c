"""How long a cluster is without an operator, and a job without its master, when these are killed.

On a real API server with simulated hosts.

*Operators*: two, with the lease of the chart (15 s). A job is scaled up by one right after the leader was ended: from
that until the Pod is there. Once with SIGKILL, where nobody may act before the lease has run out, and once with
SIGTERM, as in an upgrade, where the leader gives it up. The peer is the same change with a leader at work.

*Masters*: nothing runs in Pods on simulated hosts, so we are the kubelet of one job, and what its Pods would run, runs
here: `shoal master --kubernetes` with the master's own service account, and two agents that train with the SDK. The
master's process is killed and its Pod deleted, again and again; from that until

- *Pod*: the operator has made the next one and it was scheduled.
- *answers*: the next master answers requests.
- *agents back*: it has all agents connected and heard of their processes: worlds and data leases are served again.

Meanwhile training goes on: the longest step of any process, beside the median step before; steps lost or done again,
processes restarted and worlds formed anew should each be 0. The peer of the times is a bare Python that imports what a
master imports.
"""

import base64
import itertools
import json
import ssl
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from _clusters import ENVIRONMENT, Cluster, Operator, elastic_job, simulated
from _common import Row, end_tree, parse_options, progress, report
from _fleets import SCRIPTS, Steps, free_port
from failover import Kill, bare_start, pids, repeated_or_missing, step_seconds

HOME, JOBS = "bench-operator", "bench-jobs"
LEASE_SECONDS = 15.0
NODES = 2
PATIENCE = 120.0
GROUP = f"/apis/elastic.iml.github.io/v1alpha1/namespaces/{JOBS}/elasticjobs"
PODS = f"/api/v1/namespaces/{JOBS}/pods"


def pod_is_there(cluster: Cluster, name: str, phase: str | None = None) -> None:
    """Wait for a Pod, as a watch shows it."""

    def holds(items: list[dict[str, Any]]) -> bool:
        return any(phase in (None, item["status"].get("phase")) for item in items)

    cluster.api.wait(PODS, holds, what=f"Pod {name}", timeout=PATIENCE, fieldSelector=f"metadata.name={name}")


# Operators -----------------------------------------------------------------------------------------------


class Pair:
    """Two operators, one of which leads; who ends is followed by another."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._count = itertools.count()
        self.all = [self._start(), self._start()]

    def _start(self) -> Operator:
        return Operator(self._cluster, HOME, self._cluster.folder / f"operator-{next(self._count)}.log")

    def leader(self) -> Operator:
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            for each in self.all:
                if each.leads():
                    return each
            time.sleep(0.1)
        raise TimeoutError("nobody leads")

    def replace(self, gone: Operator) -> None:
        gone.end()
        self.all = [each for each in self.all if each is not gone] + [self._start()]
        self.all[-1].metrics()  # it serves

    def end(self) -> None:
        for each in self.all:
            each.end()


class Scaled:
    """A job that is given one worker more each time."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        cluster.api.create(GROUP, elastic_job("scaled", JOBS, most=200, replicas=1))
        self._workers = 1
        pod_is_there(cluster, "scaled-worker-0", "Running")

    def grow(self) -> float:
        """Seconds until the Pod of one worker more is there."""
        began = time.monotonic()
        self._cluster.api.patch(f"{GROUP}/scaled", {"spec": {"worker": {"replicas": self._workers + 1}}})
        pod_is_there(self._cluster, f"scaled-worker-{self._workers}")
        self._workers += 1
        return time.monotonic() - began


def operators(cluster: Cluster, pair: Pair, rounds: int) -> list[Row]:
    job = Scaled(cluster)
    calm = [job.grow() for _ in range(max(3, rounds))]
    rows = []
    ways: tuple[tuple[str, Callable[[Operator], None]], ...] = (
        ("leader killed", Operator.kill),
        ("leader told to end", Operator.tell_to_end),
    )
    for name, end in ways:
        taken = []
        for number in range(rounds):
            progress(f"{name}: {number + 1} of {rounds}")
            leader = pair.leader()
            end(leader)
            taken.append(job.grow())
            pair.replace(leader)
        rows += [
            Row(
                case=f"{name}: the other one has acted, median",
                value=statistics.median(taken),
                unit="s",
                peer="with a leader at work",
                peer_value=statistics.median(calm),
            ),
            Row(
                case=f"{name}: the other one has acted, worst of {len(taken)}",
                value=max(taken),
                unit="s",
                peer="the lease",
                peer_value=LEASE_SECONDS,
            ),
        ]
    return rows


# Masters -------------------------------------------------------------------------------------------------


class Training:
    """A job whose Pods are simulated, and whose master and agents run here."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self._cluster, self._folder = cluster, folder
        cluster.api.create(GROUP, elastic_job("train", JOBS, most=NODES, replicas=NODES))
        for number in range(NODES):
            pod_is_there(cluster, f"train-worker-{number}", "Running")
        pod_is_there(cluster, "train-master-1", "Running")
        self._secrets = folder / "secrets"
        self._secrets.mkdir()
        data = cluster.api.get(f"/api/v1/namespaces/{JOBS}/secrets/train-token")["data"]
        for name, value in data.items():
            (self._secrets / name).write_bytes(base64.b64decode(value))
        self._port = free_port()
        self._account = cluster.service_account(JOBS, "train-master", create=False)
        (folder / "steps").mkdir()
        self.steps = Steps(folder / "steps")
        self.term = 1
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
            "SHOAL_JOB": "train",
            "SHOAL_NAMESPACE": JOBS,
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
            "SHOAL_AGENT_JOB": "train",
            "SHOAL_AGENT_NODE": f"worker-{number}",
            "SHOAL_AGENT_ROLE": "worker",
            "SHOAL_AGENT_SLOTS": "1",
            "SHOAL_AGENT_MASTER_TIMEOUT": "600",
            "SHOAL_RANK_HINT": str(number),
        }
        return self._run(f"agent-{number}", [sys.executable, "-m", "shoal", "agent", "--", *script], environment)

    def end(self) -> None:
        for each in (*self._agents, self._master):
            end_tree(each.pid, grace_seconds=2.0)
            each.wait()

    def state(self) -> dict[str, Any]:
        """Ask until a master answers."""
        token = (self._secrets / "admin").read_text().strip()
        trust = ssl.create_default_context()
        trust.check_hostname, trust.verify_mode = False, ssl.CERT_NONE
        request = urllib.request.Request(
            f"https://127.0.0.1:{self._port}/state", headers={"Authorization": f"Bearer {token}"}
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
        self._master.kill()
        self._cluster.api.delete(f"{PODS}/train-master-{self.term}", gracePeriodSeconds=0)
        self._master.wait()
        self.term += 1
        pod_is_there(self._cluster, f"train-master-{self.term}", "Running")
        made = time.monotonic()
        self._master = self._start_master()
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

    def last_words(self) -> str:
        return "\n".join(f"{log.name}: {log.read_text()[-1500:]}" for log in sorted(self._folder.glob("*.log")))


def masters(cluster: Cluster, rounds: int) -> list[Row]:
    folder = cluster.folder / "train"
    folder.mkdir()
    training = Training(cluster, folder)
    try:
        training.wait_for_steps(10)
        before = training.wait_for_agents()
        kills = []
        for number in range(rounds):
            progress(f"master killed: {number + 1} of {rounds}")
            kills.append(training.kill_master())
        after = training.wait_for_agents()
    finally:
        training.end()
    bare = bare_start()
    times = {
        "Pod": [pod for pod, _ in kills],
        "answers": [kill.answers for _, kill in kills],
        "agents back": [kill.agents_back for _, kill in kills],
    }
    rows = [
        Row(
            case=f"master Pod killed: {what}, median of {len(values)}",
            value=statistics.median(values),
            unit="s",
            peer="bare Python with the same imports",
            peer_value=bare,
        )
        for what, values in times.items()
    ]
    rows.append(Row(case="master Pod killed: agents back, worst", value=max(times["agents back"]), unit="s"))
    rows.append(
        Row(
            case="longest training step while there is no master, median",
            value=statistics.median(kill.longest_step for _, kill in kills) * 1e3,
            unit="ms",
            peer="median step before",
            peer_value=statistics.median(kill.median_step for _, kill in kills) * 1e3,
        )
    )
    counts = {
        "steps lost or done again": repeated_or_missing(training.steps),
        "processes restarted": len(pids(after) - pids(before)),
        "worlds formed anew": after["generation"] - before["generation"],
    }
    return rows + [Row(case=f"{what}, all kills", value=float(count), unit="") for what, count in counts.items()]


@contextmanager
def paired(cluster: Cluster) -> Iterator[Pair]:
    pair = Pair(cluster)
    try:
        yield pair
    finally:
        pair.end()


def main() -> None:
    options = parse_options(__doc__)
    rounds = 2 if options.quick else 10
    with simulated("failover_kube", options) as cluster:
        cluster.hosts.add(1, cpu=1000, memory="4Ti", pods=1000)
        for name in (HOME, JOBS):
            cluster.namespace(name)
        with paired(cluster) as pair:
            rows = masters(cluster, rounds)
            rows += operators(cluster, pair, rounds)
    report("failover_kube", f"2 operators, {NODES} agents, {rounds} kills of each kind", rows, options)


if __name__ == "__main__":
    main()
