"""How fast `shoal operator` makes Pods, what it costs, and how soon it acts: many jobs on simulated hosts.

Who: one `shoal operator` on a real API server (etcd, scheduler, controller manager, all on this machine) with hosts
that kwok simulates. The jobs are manual, so nothing has to run in their Pods; their fixed objects and master Pods are
there before anything is measured.

What:

- *Pods per second*: one manual ScalePlan for 10 workers is created per job; from the first worker Pod that a watch
  shows to the last. The peer makes as many (copies of one of the operator's, at most 10,000) with the same client
  and as many calls at once, and does nothing else; half of them before, half of them after the operator's turn.
- *API calls per Pod*, the operator's CPU time and memory in that phase. Leases aside.
- *Spec change to Pod*: settled jobs are scaled up by one, one after the other: from the answer to that call until a
  watch shows the Pod. The peer: from the call that creates a Pod until the same watch shows it.
- *Idle*: what the settled jobs cost when nothing happens. The peer is what we aim at for 1,000 jobs.
"""

import asyncio
import copy
import itertools
import json
import statistics
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from _clusters import Cost, Operator, elastic_job, simulated
from _common import Options, Row, parse_options, progress, report
from shoal.platforms.kubernetes import config
from shoal.platforms.kubernetes.cache import Added, Change
from shoal.platforms.kubernetes.client import Client
from shoal.platforms.kubernetes.informer import Informer
from shoal.platforms.kubernetes.kinds import ELASTIC_JOBS, SCALE_PLANS
from shoal.platforms.kubernetes.objects import NAMESPACES, PODS, Kind, Pod

HOME, JOBS, RAW = "bench-operator", "bench-jobs", "bench-raw"
WORKERS = 10
AT_ONCE = 32
"""Calls under way at once: the operator's default, and ours."""
PODS_PER_HOST = 500
MOST_RAW = 10_000
"""Pods that the peer makes: as many, for then scheduler and hosts take their part of the machine for as long."""
ANY_POD: Kind[dict[str, Any]] = Kind(
    group=PODS.group, version=PODS.version, kind=PODS.kind, plural=PODS.plural, type=dict
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    jobs: int
    changes: int
    """Spec changes whose effect is timed."""
    idle_seconds: float
    patience: float

    @property
    def pods(self) -> int:
        return self.jobs * WORKERS


QUICK = Scale(jobs=20, changes=12, idle_seconds=10, patience=100)
FULL = Scale(jobs=1000, changes=300, idle_seconds=180, patience=1800)


@dataclass(slots=True)
class Watched:
    """Every Pod there is, and when a watch first showed it."""

    informer: Informer[Pod]
    seen: dict[tuple[str, str], float] = field(default_factory=dict)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def note(self, change: Change[Pod]) -> None:
        if isinstance(change, Added):
            meta = change.object.metadata
            self.seen.setdefault((meta.namespace, meta.name), time.monotonic())
        self.changed.set()

    async def until(self, holds: Callable[[], bool], *, seconds: float, what: str) -> None:
        async with asyncio.timeout(seconds):
            while not holds():  # noqa: ASYNC110 - the times are those of the watch; how soon we look does not matter
                await asyncio.sleep(0.1)
        progress(what)

    def running(self, namespace: str, part: str) -> int:
        """Pods with this in their names that run."""
        return sum(
            1
            for pod in self.informer.all()
            if pod.metadata.namespace == namespace and part in pod.metadata.name and pod.status.phase == "Running"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """What an operator spent between two moments."""

    calls: Counter[str]
    cpu: float
    seconds: float

    @property
    def all_calls(self) -> int:
        return self.calls.total()


def between(before: Cost, after: Cost) -> Spent:
    return Spent(calls=after.calls - before.calls, cpu=after.cpu - before.cpu, seconds=after.at - before.at)


async def all_at_once(calls: Iterable[Callable[[], Awaitable[Any]]]) -> None:
    """Make the calls, as many at once as the operator would."""
    left = iter(calls)

    async def worker() -> None:
        for call in left:
            await call()

    async with asyncio.TaskGroup() as tasks:
        for _ in range(AT_ONCE):
            tasks.create_task(worker())


def rate(times: Iterable[float]) -> float:
    ordered = sorted(times)
    return (len(ordered) - 1) / (ordered[-1] - ordered[0])


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


class Bench:
    def __init__(self, scale: Scale, client: Client, watched: Watched, operator: Operator) -> None:
        self.scale, self.client, self.watched, self.operator = scale, client, watched, operator
        self.rows: list[Row] = []
        self._raw = itertools.count()

    async def run(self) -> None:
        await self._prepare()
        copied = await self._template()
        half = min(self.scale.pods, MOST_RAW) // 2
        before = await self._make_raw(copied, half)
        ours, spent = await self._make_ours()
        after = await self._make_raw(copied, half)
        progress(f"  the client alone: {before:.4g}, then {after:.4g} Pods a second")
        self._say_throughput(ours, statistics.harmonic_mean((before, after)), spent)  # as many Pods each time
        await self._settle()
        await self._changes(copied)
        await self._settle()
        await self._idle()

    def _found(self, *rows: Row) -> None:
        """Rows of the table; said at once, for the whole may take half an hour."""
        self.rows += rows
        for row in rows:
            progress(f"  {row.case}: {row.value:.4g} {row.unit}")

    async def _prepare(self) -> None:
        """Jobs whose fixed objects and master Pods are there."""
        progress(f"{self.scale.jobs} jobs")
        jobs = [elastic_job(f"job-{n}", JOBS, most=WORKERS + 1) for n in range(self.scale.jobs)]
        jobs.append(elastic_job("probe", JOBS, most=1, replicas=1))
        await all_at_once(lambda job=job: self.client.create(ELASTIC_JOBS, job) for job in jobs)
        wanted = len(jobs)
        await self.watched.until(
            lambda: self.watched.running(JOBS, "-master-") == wanted and self.watched.running(JOBS, "-worker-") == 1,
            seconds=self.scale.patience,
            what="their masters run",
        )
        await self._settle()

    async def _template(self) -> dict[str, Any]:
        """A Pod as the operator makes them, that belongs to nobody."""
        pod = copy.deepcopy(await self.client.get(ANY_POD, "probe-worker-0", namespace=JOBS))
        labels = {f"example/{n}": value for n, value in enumerate(pod["metadata"]["labels"].values())}
        spec = pod["spec"]
        del spec["nodeName"]
        for account in ("serviceAccountName", "serviceAccount"):
            spec.pop(account, None)  # of its job; the namespace has one that looks up as fast
        spec["volumes"] = [each for each in spec["volumes"] if not each["name"].startswith("kube-api-access")]
        return {"metadata": {"namespace": RAW, "labels": labels, "annotations": {}}, "spec": spec}

    def _raw_pod(self, copied: dict[str, Any]) -> dict[str, Any]:
        name = f"raw-{next(self._raw)}"
        return {**copied, "metadata": {**copied["metadata"], "name": name}}

    async def _make_raw(self, copied: dict[str, Any], count: int) -> float:
        """Ends when they all run: whoever comes next has the machine for himself."""
        before = self.watched.running(RAW, "raw-")
        pods = [self._raw_pod(copied) for _ in range(count)]
        names = [(RAW, pod["metadata"]["name"]) for pod in pods]
        await all_at_once(lambda pod=pod: self.client.create(ANY_POD, pod) for pod in pods)
        await self.watched.until(
            lambda: all(name in self.watched.seen for name in names),
            seconds=self.scale.patience,
            what=f"{count} Pods by the client alone",
        )
        await self.watched.until(
            lambda: self.watched.running(RAW, "raw-") == before + count, seconds=self.scale.patience, what="they run"
        )
        return rate(self.watched.seen[name] for name in names)

    async def _make_ours(self) -> tuple[float, Spent]:
        before = self.operator.cost()
        plans = [
            {
                "metadata": {"name": f"plan-{n}", "namespace": JOBS, "labels": {"scale-type": "manual"}},
                "spec": {"ownerJob": f"job-{n}", "replicaResourceSpecs": {"worker": {"replicas": WORKERS}}},
            }
            for n in range(self.scale.jobs)
        ]
        names = [(JOBS, f"job-{n}-worker-{w}") for n in range(self.scale.jobs) for w in range(WORKERS)]
        await all_at_once(lambda plan=plan: self.client.create(SCALE_PLANS, plan) for plan in plans)
        await self.watched.until(
            lambda: len(self.watched.seen) >= len(names) and all(name in self.watched.seen for name in names),
            seconds=self.scale.patience,
            what=f"{len(names)} Pods by the operator",
        )
        made = rate(self.watched.seen[name] for name in names)
        await self.watched.until(
            lambda: self.watched.running(JOBS, "-worker-") > len(names), seconds=self.scale.patience, what="they run"
        )
        await self._settle()
        return made, between(before, self.operator.cost())

    async def _settle(self) -> None:
        """Until the operator has nothing left to do."""
        quiet = 0
        while quiet < 3:
            before = self.operator.cost().calls
            await asyncio.sleep(1)
            quiet = quiet + 1 if self.operator.cost().calls == before and not self.operator.is_busy() else 0

    def _say_throughput(self, ours: float, raw: float, spent: Spent) -> None:
        peer = f"the same client, {AT_ONCE} calls at once"
        cpu = 1e3 * spent.cpu / self.scale.pods
        memory = self.operator.view.memory_info().rss / 2**20
        for call, count in spent.calls.most_common(6):
            progress(f"  {call}: {count / self.scale.pods:.2f} per Pod")
        self._found(
            Row(case="worker Pods made", value=ours, unit="1/s", peer=peer, peer_value=raw, more_is_better=True),
            Row(case="API calls per Pod, until all is settled", value=spent.all_calls / self.scale.pods, unit="calls"),
            Row(case="operator's CPU time per Pod, until all is settled", value=cpu, unit="ms"),
            Row(case="operator's memory then", value=memory, unit="MiB"),
        )

    async def _changes(self, copied: dict[str, Any]) -> None:
        progress(f"{self.scale.changes} spec changes")
        ours, raw = [], []
        for number in range(self.scale.changes):
            job = f"job-{number % self.scale.jobs}"
            await self.client.set_scale(ELASTIC_JOBS, job, WORKERS + 1, namespace=JOBS)
            ours.append(await self._seen((JOBS, f"{job}-worker-{WORKERS}")))
            pod = self._raw_pod(copied)
            began = time.monotonic()
            await self.client.create(ANY_POD, pod)
            name = (RAW, pod["metadata"]["name"])
            await self._seen(name)
            raw.append(self.watched.seen[name] - began)
        for share, what in ((0.5, "median"), (0.99, "p99")):
            self._found(
                Row(
                    case=f"spec change to Pod, settled jobs, {what} of {len(ours)}",
                    value=1e3 * percentile(ours, share),
                    unit="ms",
                    peer="a create by the client, seen by the same watch",
                    peer_value=1e3 * percentile(raw, share),
                )
            )

    async def _seen(self, name: tuple[str, str]) -> float:
        """Seconds until the watch shows it, from now; 0 if it has been shown already."""
        began = time.monotonic()
        async with asyncio.timeout(self.scale.patience):
            while name not in self.watched.seen:
                self.watched.changed.clear()
                await self.watched.changed.wait()
        return max(0.0, self.watched.seen[name] - began)

    async def _idle(self) -> None:
        progress(f"idle for {self.scale.idle_seconds:.0f} s")
        before = self.operator.cost()
        await asyncio.sleep(self.scale.idle_seconds)
        spent = between(before, self.operator.cost())
        peer, name = "aim for 1,000 jobs", f"{self.scale.jobs} settled jobs"
        calls, cpu = spent.all_calls / spent.seconds, 100 * spent.cpu / spent.seconds
        self._found(
            Row(case=f"{name}: API calls", value=calls, unit="1/s", peer=peer, peer_value=1.0),
            Row(case=f"{name}: CPU", value=cpu, unit="% of a core", peer=peer, peer_value=2.0),
        )


async def measure(scale: Scale, kubeconfig: Path, operator: Operator) -> list[Row]:
    async with Client(config.load([kubeconfig], None, environment={})) as client:
        for name in (JOBS, RAW):
            await client.create(NAMESPACES, {"metadata": {"name": name}})
        watched = Watched(Informer(client, PODS))
        watched.informer.on_change(watched.note)
        bench = Bench(scale, client, watched, operator)
        async with asyncio.TaskGroup() as tasks:
            watching = tasks.create_task(watched.informer.run())
            await watched.informer.synced()
            await bench.run()
            watching.cancel()
        return bench.rows


def main() -> None:
    options: Options = parse_options(__doc__)
    scale = QUICK if options.quick else FULL
    with simulated("operator", options) as cluster:
        hosts = -(-scale.jobs * (3 * WORKERS + 2) // PODS_PER_HOST)
        cluster.hosts.add(hosts, cpu=10_000, memory="16Ti", pods=2 * PODS_PER_HOST)
        cluster.api.create("/api/v1/namespaces", {"metadata": {"name": HOME}})
        settings = {
            "settings": json.dumps({"maxStartingMasters": scale.jobs + 1})
        }  # so that all masters are there first
        path = f"/api/v1/namespaces/{HOME}/configmaps"
        cluster.api.create(path, {"metadata": {"name": "shoal-scheduler"}, "data": settings})
        operator = Operator(cluster, HOME, cluster.folder / "operator.log", f"--parallel-writes={AT_ONCE}")
        try:
            rows = asyncio.run(measure(scale, cluster.kubeconfig, operator))
        finally:
            operator.end()
    report("operator", f"{scale.jobs:,} jobs of {WORKERS} workers on {hosts} simulated hosts", rows, options)


if __name__ == "__main__":
    sys.exit(main())
