"""How long a cluster is without an operator, and a job without its master, when these are killed.

On a real API server.

*Operators*: two, with the lease of the chart (15 s). A job is scaled up by one right after the leader was ended: from
that until the Pod is there. Once with SIGKILL, where nobody may act before the lease has run out, and once with
SIGTERM, as in an upgrade, where the leader gives it up. The peer is the same change with a leader at work.

*Masters*, on simulated hosts: nothing runs in Pods there, so we are the kubelet of one job, and what its Pods would
run, runs here: `shoal master --kubernetes` with the master's own service account, and two agents that train with the
SDK. The master's process is killed and its Pod deleted, again and again. On a real node (not with `--quick`: it takes a
minute to make; wants root) everything runs in Pods, and the master's process is killed in its Pod. From that until

- *Pod*: the operator has made the next one and it was scheduled.
- *answers*: the next master answers requests.
- *agents back*: it has all agents connected and heard of their processes: worlds and data leases are served again.

Meanwhile training goes on: the longest step of any process, beside the median step before; steps lost or done again,
processes restarted and worlds formed anew should each be 0. The peer of the times is a bare Python that imports what a
master imports.
"""

import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from _clusters import IMAGE, Cluster, Operator, Unavailable, elastic_job, simulated, with_a_node
from _common import Row, parse_options, progress, report
from _masters import ELASTIC_JOBS, NODES, PATIENCE, FailingJob, RealJob, SimulatedJob, pod_is_there, processes
from failover import bare_start, repeated_or_missing

HOME, JOBS = "bench-operator", "bench-jobs"
LEASE_SECONDS = 15.0
GROUP = ELASTIC_JOBS.format(JOBS)


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
        pod_is_there(cluster, JOBS, "scaled-worker-0", "Running")

    def grow(self) -> float:
        """Seconds until the Pod of one worker more is there."""
        began = time.monotonic()
        self._cluster.api.patch(f"{GROUP}/scaled", {"spec": {"worker": {"replicas": self._workers + 1}}})
        pod_is_there(self._cluster, JOBS, f"scaled-worker-{self._workers}")
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


def masters(job: FailingJob, where: str, rounds: int) -> list[Row]:
    """Kill the master again and again."""
    try:
        job.wait_for_steps(10)
        before = job.wait_for_agents()
        kills = []
        for number in range(rounds):
            progress(f"master killed, {where}: {number + 1} of {rounds}")
            kills.append(job.kill_master())
        after = job.wait_for_agents()
    finally:
        job.end()
    bare = bare_start()
    times = {
        "Pod": [pod for pod, _ in kills],
        "answers": [kill.answers for _, kill in kills],
        "agents back": [kill.agents_back for _, kill in kills],
    }
    rows = [
        Row(
            case=f"{where}: master killed: {what}, median of {len(values)}",
            value=statistics.median(values),
            unit="s",
            peer="bare Python with the same imports",
            peer_value=bare,
        )
        for what, values in times.items()
    ]
    rows.append(Row(case=f"{where}: master killed: agents back, worst", value=max(times["agents back"]), unit="s"))
    rows.append(
        Row(
            case=f"{where}: longest training step while there is no master, median",
            value=statistics.median(kill.longest_step for _, kill in kills) * 1e3,
            unit="ms",
            peer="median step before",
            peer_value=statistics.median(kill.median_step for _, kill in kills) * 1e3,
        )
    )
    counts = {
        "steps lost or done again": repeated_or_missing(job.steps),
        "processes restarted": len(processes(after) - processes(before)),
        "worlds formed anew": after["generation"] - before["generation"],
    }
    return rows + [
        Row(case=f"{where}: {what}, all kills", value=float(count), unit="") for what, count in counts.items()
    ]


@contextmanager
def paired(cluster: Cluster) -> Iterator[Pair]:
    pair = Pair(cluster)
    try:
        yield pair
    finally:
        pair.end()


def on_a_node(rounds: int) -> list[Row]:
    """The same with everything in Pods."""
    progress("making a real node and an image")
    try:
        with with_a_node() as cluster:
            for name in (HOME, JOBS):
                cluster.namespace(name)
            operator = Operator(cluster, HOME, cluster.folder / "operator.log", f"--image={IMAGE}")
            try:
                folder = cluster.folder / "train"
                folder.mkdir()
                return masters(RealJob(cluster, JOBS, folder), "in Pods", rounds)
            finally:
                operator.end()
    except Unavailable as error:
        progress(f"not measured in Pods: {error}")
        return []


def main() -> None:
    options = parse_options(__doc__)
    rounds = 2 if options.quick else 10
    with simulated("failover_kube", options) as cluster:
        cluster.hosts.add(1, cpu=1000, memory="4Ti", pods=1000)
        for name in (HOME, JOBS):
            cluster.namespace(name)
        with paired(cluster) as pair:
            folder = cluster.folder / "train"
            folder.mkdir()
            rows = masters(SimulatedJob(cluster, JOBS, folder), "simulated hosts", rounds)
            rows += operators(cluster, pair, rounds)
    if options.quick:
        progress("not measured in Pods: a real node takes too long to make for --quick")
    else:
        rows += on_a_node(rounds)
    report("failover_kube", f"2 operators, {NODES} agents, {rounds} kills of each kind", rows, options)


if __name__ == "__main__":
    main()
