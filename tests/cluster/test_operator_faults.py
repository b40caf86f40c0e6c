"""`shoal operator` on a real API server when everything goes wrong: the end is the same as if nothing had.

One scenario is played through a proxy that loses, repeats and refuses, with operators that are killed after each of
their writes, that are two at once, or that wake up after somebody else has taken over. The Pods that were ever made and
those that are left must be exactly those of an undisturbed run; and when the job is deleted nothing stays.
"""

import os
import re
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import pytest
from hack.kube.harness import Cluster
from tests.cluster.chaos import CALM, ROUGH, Chaos, Odds, chaos_in_a_thread
from tests.cluster.operators import Jobs, Process, Watcher, install, running, until

from shoal.platforms.kubernetes import config

MakeNamespace = Callable[[Cluster], str]


def commit_number() -> int:
    """How many commits there are: the same in every process of a run, another one after each change."""
    words = ["git", "-C", str(Path(__file__).parent), "rev-list", "--count", "HEAD"]
    counted = subprocess.run(words, capture_output=True, text=True)
    return int(counted.stdout) if counted.returncode == 0 else 0


QUICK = ("--drain", "5", "--ending", "1", "--silence", "600", "--skip-checks", "--relist-seconds", "3")
SHORT = ("--lease-seconds", "6", "--renew-seconds", "4", "--retry-seconds", "0.4")
"""Leases for those who wait for one that was killed or sleeps."""
EVER = ["x-master-1", "x-master-2", *(f"x-worker-{number}" for number in range(5))]
"""Every Pod that an undisturbed run makes."""
DELETED = ["gone-master-1", "gone-worker-0"]
"""Those of the job that is deleted while everything goes wrong."""
EVERY = 11
"""Writes between two kills. Eight come before a job's first Pod, and an operator that has just started repeats them."""
TURN = commit_number()
"""Each commit has its turn of seeds; the others are for whoever asks for the slow ones, too."""


@pytest.fixture(scope="module")
def cluster(kwok: Cluster) -> Iterator[Cluster]:
    install(kwok)
    names = kwok.hosts.add(2, prefix="faulty", cpu=64)
    yield kwok
    kwok.hosts.remove(names)


class Play:
    """The scenario in one namespace, through a proxy."""

    def __init__(self, cluster: Cluster, namespace: str, chaos: Chaos, folder: Path) -> None:
        self.jobs = Jobs(cluster, namespace)
        self.chaos = chaos
        self._folder = folder
        self._kubeconfig = chaos.write_kubeconfig(folder / "kubeconfig")
        self.watcher = Watcher(cluster, namespace, folder / "pods.log")
        self.processes: list[Process] = []
        self.is_over = threading.Event()
        """No operator is started any more."""

    def operator(self, *flags: str) -> Process:
        log = self._folder / f"operator-{len(self.processes)}.log"
        words = (*QUICK, *flags)
        self.processes.append(Process(self._kubeconfig, self.jobs.namespace, log, *words))
        return self.processes[-1]

    def scenario(self) -> None:
        """Start with two, a plan asks for three, one gets more memory, shrink, suspend, resume. Another job is deleted
        as soon as its Pods run."""
        jobs = self.jobs
        jobs.make("gone", worker={"replicas": 1})
        jobs.wait_for_pods(*DELETED)
        jobs.cluster.api.delete(f"{jobs.jobs}/gone")
        jobs.make("x", worker={"replicas": 2})
        jobs.wait_for_pods("x-master-1", "x-worker-0", "x-worker-1")
        plan = {"replicaResourceSpecs": {"worker": {"replicas": 3}}}
        moves = {"migratePods": [{"name": "x-worker-1", "resource": {"memory": "1Gi"}}]}
        jobs.plan("p", "x", **plan, **moves)
        jobs.wait_for_pods("x-master-1", "x-worker-0", "x-worker-2", "x-worker-3")
        jobs.cluster.api.patch(f"{jobs.scale_plans}/p", {"spec": {"replicaResourceSpecs": {"worker": {"replicas": 1}}}})
        self._wait_for_one_of("x-worker-0", "x-worker-2", "x-worker-3")
        jobs.change("x", {"suspend": True})
        jobs.wait_for_pods()
        jobs.change("x", {"suspend": False})
        jobs.wait_for_pods("x-master-2", "x-worker-4")

    def _wait_for_one_of(self, *workers: str) -> None:
        """Until the master and one of these workers run, and nobody else. Who goes depends on the hosts: the scheduler
        first leaves those where the job has few. Where it wanted a Pod is written nowhere, so one that was killed
        before the Pod was made leaves the choice to Kubernetes."""

        def so(items: list[Any]) -> bool:
            there = sorted(running(items))
            return len(there) == 2 and there[0] == "x-master-1" and there[1] in workers

        self.jobs.wait(self.jobs.pods, so, f"Pods x-master-1 and one of {', '.join(workers)}")

    def check(self) -> None:
        """The end is the undisturbed one, and so is everything that was ever made."""
        jobs = self.jobs
        job = jobs.settled("x", "x-master-2", "x-worker-4")
        jobs.wait_for_plan("p", "Completed", "True")
        assert [(m["name"], m["rank"], m["state"]) for m in job["status"]["members"]] == [("x-worker-4", 0, "live")]
        assert job["status"]["grant"]["counts"] == [{"role": "worker", "count": 1}]
        jobs.cluster.api.delete(f"{jobs.jobs}/x")
        jobs.wait(jobs.pods, lambda items: not items, "nothing is left of the job")
        lines = self.watcher.stop(deleted=tuple(DELETED))
        assert {line.partition(" ")[2] for line in lines} == {*DELETED, *EVER}
        for process in self.processes:
            assert "Traceback" not in process.log.read_text(), process.log.read_text()[-5000:]

    def end(self) -> None:
        self.is_over.set()
        for process in self.processes:
            process.kill()
        self.watcher.stop(deleted=tuple(DELETED))


@pytest.fixture
def play(cluster: Cluster, make_namespace: MakeNamespace, tmp_path: Path) -> Iterator[Callable[..., Play]]:
    access = config.load([cluster.kubeconfig], environment={})
    with ExitStack() as stack:

        def make(seed: int = 0, odds: Odds = CALM) -> Play:
            chaos = stack.enter_context(chaos_in_a_thread(access, seed=seed, odds=odds))
            made = Play(cluster, make_namespace(cluster), chaos, tmp_path)
            stack.callback(made.end)
            return made

        yield make


Kill = Callable[[], None]


class Supervisor(threading.Thread):
    """Starts the next operator when one was killed, and has it killed as well: `doom` says after which write.

    Each has a lease of its own: there are never two, and nobody waits until a dead one's has run out."""

    def __init__(self, play: Play, doom: Callable[[Kill], None]) -> None:
        super().__init__(daemon=True)
        self._play, self._doom = play, doom
        self._process = self._next()
        self._over = threading.Event()
        self.killed = 0
        self._doomed = 0
        doom(self._kill)
        self.start()

    def _next(self) -> Process:
        return self._play.operator("--lease", f"operator-{len(self._play.processes)}")

    def _kill(self) -> None:
        self._doomed = self._process.pid
        os.kill(self._process.pid, signal.SIGKILL)

    def run(self) -> None:
        while not self._over.wait(0.05) and not self._play.is_over.is_set():
            if self._process.is_alive():
                continue
            self.killed += 1
            self._process = self._next()
            self._doom(self._kill)  # what the dead one had under way may still take effect, and end this one early

    def relent(self) -> None:
        """Whoever runs now stays."""
        self._over.set()
        self.join()
        self._play.chaos.kill_after(10**9, lambda: None)
        if self._doomed == self._process.pid:  # it may take a moment to die
            self._process.wait()
            self._next()


def turns(first: int, count: int, *, usual: int) -> list[Any]:
    """All of them, beginning with this commit's; only so many are not slow."""
    ordered = [first + (TURN + number) % count for number in range(count)]
    return [
        each if number < usual else pytest.param(each, marks=pytest.mark.slow) for number, each in enumerate(ordered)
    ]


@pytest.mark.parametrize("seed", turns(1, 12, usual=2))
def test_through_a_connection_that_loses_repeats_and_refuses(play: Callable[..., Play], seed: int) -> None:
    rough = play(seed, ROUGH)
    rough.operator()
    rough.scenario()
    assert rough.chaos.faults, "nothing went wrong: nothing is shown"
    rough.chaos.calm()
    rough.check()


WRITES = [
    *(f"POST .*/{kind}/x-master" for kind in ("services", "serviceaccounts", "roles", "rolebindings")),
    *(f"POST .*/secrets/x-{name}" for name in ("token", "state")),
    "POST .*/networkpolicies/x",
    "POST .*/scaleplans/x-auto",
    *(f"POST .*/pods/{pod}" for pod in EVER),
    *(f"DELETE .*/pods/{pod}" for pod in ("x-master-1", "x-worker-1")),
    "PATCH .*/services/x-master",
    "PATCH .*/elasticjobs/x/status",
]


def alive_after(writes: list[str], deaths: list[str]) -> list[str]:
    """Those that nobody has died after."""
    return [write for write in writes if not any(re.fullmatch(write, each) for each in list(deaths))]


@pytest.mark.timeout(1800)
def test_killed_after_every_write_the_first_time_it_is_made(play: Callable[..., Play]) -> None:
    """Each operator lives until a write that none before it has made, or a status that none has written: in one run
    somebody dies after every one of them."""
    calm = play()
    calm.jobs.patience = 600.0  # a dozen die before a job has its first Pod
    supervisor = Supervisor(calm, lambda kill: calm.chaos.kill_after_new(kill, but=r"/gone[-/ ]"))
    calm.scenario()
    last = ["POST .*/pods/x-worker-4", "PATCH .*/scaleplans/p/status", "PATCH .*/scaleplans/x-auto/status"]
    written = "what can wait is written as well, and somebody dies of it"
    until(lambda: not alive_after(last, calm.chaos.deaths), written, calm.jobs.patience)
    supervisor.relent()
    assert alive_after(WRITES, calm.chaos.deaths) == []
    assert supervisor.killed >= 20
    calm.check()


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("first", range(1, EVERY + 1))
def test_killed_after_any_of_its_writes(play: Callable[..., Play], first: int) -> None:
    """In each run it is killed after so many writes again and again, beginning with another one: all crash points come
    by, also those of writes that it repeats."""
    calm = play()
    after = chain([first], repeat(EVERY))
    supervisor = Supervisor(calm, lambda kill: calm.chaos.kill_after(next(after), kill))
    calm.scenario()
    supervisor.relent()
    assert supervisor.killed >= 3
    calm.check()


def test_two_that_both_think_they_lead(play: Callable[..., Play]) -> None:
    both = play()
    both.operator("--lease", "one")
    both.operator("--lease", "other")
    both.scenario()
    both.check()


def test_one_that_sleeps_in_the_middle_of_its_work_and_wakes_up_late(play: Callable[..., Play]) -> None:
    late = play()
    sleeper = late.operator(*SHORT)
    late.chaos.kill_after(5, lambda: os.kill(sleeper.pid, signal.SIGSTOP))
    late.operator(*SHORT)
    late.scenario()
    os.kill(sleeper.pid, signal.SIGCONT)
    late.check()
    assert sleeper.is_alive()


def test_a_server_that_is_away_for_a_while(play: Callable[..., Play]) -> None:
    away = play()
    process = away.operator()
    away.jobs.make("x", worker={"replicas": 2})
    away.jobs.wait_for_pods("x-master-1", "x-worker-0", "x-worker-1")
    away.chaos.is_dark = True
    away.jobs.change("x", {"worker": {"replicas": 4}})
    away.jobs.cluster.api.delete(f"{away.jobs.pods}/x-master-1")
    away.jobs.wait_for_pods("x-worker-0", "x-worker-1")
    assert process.is_alive()
    away.chaos.calm()
    away.jobs.settled("x", "x-master-2", *(f"x-worker-{number}" for number in range(4)))
    assert "Traceback" not in process.log.read_text()


def test_a_server_that_cannot_resize_pods_has_members_replaced_the_new_ones_first(play: Callable[..., Play]) -> None:
    older = play()
    older.chaos.hidden = frozenset({"pods/resize"})
    process = older.operator()
    jobs = older.jobs
    jobs.make("x", worker={"replicas": 2, "resource": {"memory": "512Mi"}})
    jobs.settled("x", "x-master-1", "x-worker-0", "x-worker-1")
    jobs.plan("p", "x", replicaResourceSpecs={"worker": {"resource": {"memory": "1Gi"}}})
    jobs.settled("x", "x-master-1", "x-worker-2", "x-worker-3")
    jobs.wait_for_plan("p", "Completed", "True")
    pods = {pod["metadata"]["name"]: pod for pod in jobs.cluster.api.get(jobs.pods)["items"]}
    for name in ("x-worker-2", "x-worker-3"):
        assert pods[name]["spec"]["containers"][0]["resources"]["requests"]["memory"] in ("1Gi", "1024Mi")
    assert not [write for write in older.chaos.writes if write.endswith("/resize")]
    lines = older.watcher.stop()
    for old, new in ((0, 2), (1, 3)):
        assert lines.index(f"Running x-worker-{new}") < lines.index(f"Deleted x-worker-{old}")
    assert "Traceback" not in process.log.read_text()
