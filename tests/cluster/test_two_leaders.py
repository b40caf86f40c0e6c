"""Two operators that both lead, on a real API server with simulated hosts: jobs that contend come to rest as under one.

Each operator has a lease of its own, so neither knows of the other. A job of each kind asks for all hosts there are.
"""

import json
import re
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hack.kube.harness import Cluster
from tests.cluster.operators import Jobs, Process, install, operator, until
from tests.cluster.training_jobs import TrainingJobs

pytestmark = pytest.mark.timeout(600)
MakeNamespace = Callable[[Cluster], str]
HOSTS = 6
SHARES = {"e": 3, "t": 3}
"""Workers of each when they are alike and all hosts are taken, one worker to a host."""
REST = 5
"""Rounds of every leader in which nothing is written: then it has come to rest."""
LOOKS = 24
"""So many times as many rounds it has for that."""
RESOURCES = {"requests": {"cpu": "16"}, "limits": {"nvidia.com/gpu": "8"}}
ROLE, NAME = "elastic.iml.github.io/role", "elastic.iml.github.io/job-name"
_MADE = re.compile(r"^shoal_scheduler_cycle_duration_seconds_count\S* (\S+)$", re.MULTILINE)


@pytest.fixture(scope="module")
def cluster(kwok: Cluster) -> Iterator[Cluster]:
    install(kwok)
    names = kwok.hosts.add(HOSTS, prefix="contended", cpu=64, gpus=8)
    yield kwok
    kwok.hosts.remove(names)


@dataclass(frozen=True)
class Seen:
    """What a resize changes: what was granted how often, and who runs. And who says what last: leaders that agree on a
    number must not write it over each other's."""

    versions: tuple[str, str]
    grants: int
    records: int
    parallelism: int
    workers: frozenset[tuple[str, str]]
    """Their jobs and uids."""

    @property
    def shares(self) -> dict[str, int]:
        jobs = [job for job, _ in self.workers]
        return {job: jobs.count(job) for job in sorted(set(jobs))}


class Contest:
    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self._cluster = cluster
        self._elastic, self._training = Jobs(cluster, namespace), TrainingJobs(cluster, namespace)
        self._batch_jobs = f"/apis/batch/v1/namespaces/{namespace}/jobs"
        settings = {"freezingWindow": "2s", "interval": "1s"}
        body = {"metadata": {"name": "shoal-scheduler"}, "data": {"settings": json.dumps(settings)}}
        cluster.api.create(f"/api/v1/namespaces/{namespace}/configmaps", body)

    def begin(self) -> None:
        """One has all hosts when the other comes, so that it has to give some of them back."""
        container = {"name": "main", "image": "localhost/anything:1", "command": ["train"], "resources": RESOURCES}
        worker = {"template": {"spec": {"containers": [container]}}, "replicas": HOSTS, "min": 1, "max": HOSTS}
        self._elastic.make("e", worker=worker, optimizeMode="manual")
        has_all = f"{HOSTS} workers have all hosts"
        self._elastic.wait(self._elastic.pods, lambda pods: sum(_is_worker(pod) for pod in pods) == HOSTS, has_all)
        trainer = {"min-instance": 1, "max-instance": HOSTS, "resources": RESOURCES}
        self._training.make("t", trainer=trainer, tolerations=[], freezingWindow="2s")

    def look(self) -> Seen:
        get = self._cluster.api.get
        jobs = get(f"{self._elastic.jobs}/e"), get(f"{self._training.path}/t")
        elastic, training = (job.get("status") or {} for job in jobs)
        trainers = [job for job in get(self._batch_jobs)["items"] if job["metadata"]["name"] == "t-trainer"]
        return Seen(
            versions=(jobs[0]["metadata"]["resourceVersion"], jobs[1]["metadata"]["resourceVersion"]),
            grants=(elastic.get("grant") or {}).get("generation", 0),
            records=len(training.get("scaleRecords") or []),
            parallelism=sum(job["spec"]["parallelism"] for job in trainers),
            workers=frozenset(_worker(pod) for pod in get(self._elastic.pods)["items"] if _is_worker(pod)),
        )


def _worker(pod: dict[str, Any]) -> tuple[str, str]:
    return pod["metadata"]["labels"][NAME], pod["metadata"]["uid"]


def _is_worker(pod: dict[str, Any]) -> bool:
    return pod["metadata"]["labels"].get(ROLE) in ("worker", "trainer")


def rounds(process: Process) -> int:
    with urllib.request.urlopen(f"{process.address()}/metrics", timeout=30) as answer:
        return int(sum(float(count) for count in _MADE.findall(answer.read().decode())))


def pass_rounds(processes: list[Process], count: int) -> None:
    """Until each of them has made so many more."""
    before = {process.pid: rounds(process) for process in processes}
    for process in processes:
        until(lambda p=process: rounds(p) >= before[p.pid] + count, f"{count} more rounds")  # type: ignore[misc]


def come_to_rest(contest: Contest, processes: list[Process]) -> Seen:
    before = contest.look()
    for _ in range(LOOKS):
        pass_rounds(processes, REST)
        now = contest.look()
        if now == before and now.shares == SHARES:  # others make the Pods, and may take a while
            return now
        before = now
    raise AssertionError(f"they move, or write, for ever: {before}")


@pytest.mark.parametrize("leases", [("one",), ("one", "other")], ids=["one-leader", "two-leaders"])
def test_jobs_of_both_kinds_share_alike_and_nobody_moves_them_any_more(
    cluster: Cluster, make_namespace: MakeNamespace, tmp_path: Path, leases: tuple[str, ...]
) -> None:
    namespace = make_namespace(cluster)
    contest = Contest(cluster, namespace)
    with ExitStack() as stack:
        processes = []
        for lease in leases:
            folder = tmp_path / lease
            folder.mkdir()
            processes.append(stack.enter_context(operator(cluster, namespace, folder, "--lease", lease)))
        contest.begin()
        settled = come_to_rest(contest, processes)
        assert settled.shares == SHARES
        pass_rounds(processes, REST)
        assert contest.look() == settled
