"""`shoal operator` on a real API server when everything goes wrong: the end is the same as if nothing had.

One scenario is played through a proxy that loses, repeats and refuses, with operators that are killed after each of
their writes, that are two at once, or that wake up after somebody else has taken over. The Pods that were ever made and
those that are left must be exactly those of an undisturbed run; and when the job is deleted nothing stays.
"""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from hack.kube.harness import Cluster
from tests.cluster.chaos import CALM, ROUGH, Chaos, Odds, chaos_in_a_thread
from tests.cluster.operators import Jobs, Process, Watcher, install

from shoal.platforms.kubernetes import config

MakeNamespace = Callable[[Cluster], str]
QUICK = ("--drain", "5", "--ending", "1", "--silence", "600", "--skip-checks", "--relist-seconds", "3")
SHORT = ("--lease-seconds", "6", "--renew-seconds", "4", "--retry-seconds", "0.4")
"""Leases for those who wait for one that was killed or sleeps."""
EVER = ["x-master-1", "x-master-2", *(f"x-worker-{number}" for number in range(5))]
"""Every Pod that an undisturbed run makes."""
EVERY = 11
"""Writes between two kills. Eight come before a job's first Pod, and an operator that has just started repeats them."""


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
        self._watcher = Watcher(cluster, namespace, folder / "pods.log")
        self.processes: list[Process] = []

    def operator(self, *flags: str) -> Process:
        log = self._folder / f"operator-{len(self.processes)}.log"
        words = (*QUICK, *flags)
        self.processes.append(Process(self._kubeconfig, self.jobs.namespace, log, *words))
        return self.processes[-1]

    def scenario(self) -> None:
        """Start with two, a plan asks for three, one gets more memory, shrink, suspend, resume."""
        jobs = self.jobs
        jobs.make("x", worker={"replicas": 2})
        jobs.wait_for_pods("x-master-1", "x-worker-0", "x-worker-1")
        plan = {"replicaResourceSpecs": {"worker": {"replicas": 3}}}
        moves = {"migratePods": [{"name": "x-worker-1", "resource": {"memory": "1Gi"}}]}
        jobs.plan("p", "x", **plan, **moves)
        jobs.wait_for_pods("x-master-1", "x-worker-0", "x-worker-2", "x-worker-3")
        jobs.cluster.api.patch(f"{jobs.scale_plans}/p", {"spec": {"replicaResourceSpecs": {"worker": {"replicas": 1}}}})
        jobs.wait_for_pods("x-master-1", "x-worker-0")
        jobs.change("x", {"suspend": True})
        jobs.wait_for_pods()
        jobs.change("x", {"suspend": False})
        jobs.wait_for_pods("x-master-2", "x-worker-4")

    def check(self) -> None:
        """The end is the undisturbed one, and so is everything that was ever made."""
        jobs = self.jobs
        job = jobs.settled("x", "x-master-2", "x-worker-4")
        jobs.wait_for_plan("p", "Completed", "True")
        assert [(m["name"], m["rank"], m["state"]) for m in job["status"]["members"]] == [("x-worker-4", 0, "live")]
        assert job["status"]["grant"]["counts"] == [{"role": "worker", "count": 1}]
        jobs.cluster.api.delete(f"{jobs.jobs}/x")
        jobs.wait(jobs.pods, lambda items: not items, "nothing is left of the job")
        assert self.ever() == sorted(EVER)

    def ever(self) -> list[str]:
        """The Pods that were ever made. Nobody may have stumbled on the way."""
        for process in self.processes:
            assert "Traceback" not in process.log.read_text(), process.log.read_text()[-5000:]
        return sorted({line.partition(" ")[2] for line in self._watcher.stop()})

    def end(self) -> None:
        self._watcher.stop()
        for process in self.processes:
            process.kill()


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


class Supervisor(threading.Thread):
    """Starts the next operator when one was killed, and has it killed after a few writes as well."""

    def __init__(self, play: Play, *, first: int, every: int) -> None:
        super().__init__(daemon=True)
        self._play, self._every = play, every
        self._process = play.operator(*SHORT)
        self._over = threading.Event()
        self.killed = 0
        self._doomed = 0
        play.chaos.kill_after(first, self._kill)
        self.start()

    def _kill(self) -> None:
        self._doomed = self._process.pid
        os.kill(self._process.pid, signal.SIGKILL)

    def run(self) -> None:
        while not self._over.wait(0.05):
            if self._process.is_alive():
                continue
            self.killed += 1
            self._play.chaos.kill_after(self._every, self._kill)
            self._process = self._play.operator(*SHORT)

    def relent(self) -> None:
        """Whoever runs now stays."""
        self._play.chaos.kill_after(10**9, lambda: None)
        self._over.set()
        self.join()
        if self._doomed == self._process.pid:  # it may take a moment to die
            self._process.wait()
            self._play.operator(*SHORT)


@pytest.mark.parametrize("seed", [1, 2, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, 13))])
def test_through_a_connection_that_loses_repeats_and_refuses(play: Callable[..., Play], seed: int) -> None:
    rough = play(seed, ROUGH)
    rough.operator()
    rough.scenario()
    assert rough.chaos.faults, "nothing went wrong: nothing is shown"
    rough.chaos.calm()
    rough.check()


@pytest.mark.timeout(900)
@pytest.mark.parametrize("first", [1, *(pytest.param(first, marks=pytest.mark.slow) for first in range(2, EVERY + 1))])
def test_killed_after_any_of_its_writes(play: Callable[..., Play], first: int) -> None:
    """In each run it is killed after so many writes again and again, beginning with another one: all crash points come
    by."""
    calm = play()
    supervisor = Supervisor(calm, first=first, every=EVERY)
    calm.scenario()
    supervisor.relent()
    assert supervisor.killed >= 3
    calm.check()


def test_two_that_both_think_they_lead(play: Callable[..., Play]) -> None:
    """No number is changed here: each scheduler remembers by itself what a job may have, and two would take turns until
    one hears that it does not lead."""
    both = play()
    both.operator("--lease", "one")
    both.operator("--lease", "other")
    jobs = both.jobs
    jobs.make("x", worker={"replicas": 2})
    jobs.wait_for_pods("x-master-1", "x-worker-0", "x-worker-1")
    jobs.plan("p", "x", migratePods=[{"name": "x-worker-1", "resource": {"memory": "1Gi"}}])
    jobs.wait_for_pods("x-master-1", "x-worker-0", "x-worker-2")
    jobs.wait_for_plan("p", "Completed", "True")
    jobs.cluster.api.delete(f"{jobs.jobs}/x")
    jobs.wait(jobs.pods, lambda items: not items, "nothing is left of the job")
    assert both.ever() == ["x-master-1", "x-worker-0", "x-worker-1", "x-worker-2"]


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
