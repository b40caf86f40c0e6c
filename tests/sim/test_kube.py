"""The simulated Kubernetes: who is bound where, who waits how long, who goes first."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.scheduler.rows import Room
from shoal.sim.clock import VirtualClock
from shoal.sim.kube import MICROS, PRESENT, PUBLISHED, Kube, KubeSettings, Phase, Pod, PodSet

CORE = Room(cpu=1_000, memory=1)


def a_kube(*cores: int, settings: KubeSettings = PUBLISHED) -> Kube:
    hosts = {f"host-{n}": Room(cpu=count * 1_000, memory=1_000) for n, count in enumerate(cores)}
    return Kube(VirtualClock(), hosts, settings, random.Random(0))


def run_until(kube: Kube, seconds: float) -> None:
    """Let everything happen up to and including this moment."""
    kube.clock.at(round(seconds * MICROS) + 1, lambda: None)
    while kube.clock.micros <= seconds * MICROS and kube.clock.step():
        pass
    kube.clock.micros = round(seconds * MICROS)


def a_set(cores: int = 1, grace: float = 30.0, **more: int) -> PodSet:
    return PodSet(owner="job", role="trainer", each=Room(cpu=cores * 1_000, memory=1), grace=grace, **more)


def hosts_of(pods: PodSet) -> list[int | None]:
    return [pod.host for pod in pods.pods.values()]


def test_pods_go_to_the_emptiest_host_and_run_after_their_start() -> None:
    kube, pods = a_kube(2, 4), a_set()
    kube.scale(pods, 2)
    run_until(kube, 1)
    assert hosts_of(pods) == [1, 0]  # the second would leave half of the cores on both, and has more memory here
    assert [pod.phase for pod in pods.pods.values()] == [Phase.STARTING] * 2
    run_until(kube, 2)
    assert [pod.phase for pod in pods.pods.values()] == [Phase.RUNNING] * 2


def test_pods_made_alike_prefer_hosts_one_after_the_other() -> None:
    kube, pods = a_kube(2, 8, 1), a_set()
    kube.prefer(pods, {"host-0": 50, "host-2": 100})
    kube.scale(pods, 4)
    run_until(kube, 0)
    assert hosts_of(pods) == [2, 0, 0, 1]


def test_a_preference_is_that_of_the_template_a_pod_was_made_from() -> None:
    kube, pods = a_kube(1, 8, 1), a_set()
    kube.prefer(pods, {"host-0": 100})
    kube.scale(pods, 1)
    kube.prefer(pods, {"host-2": 100})
    kube.scale(pods, 2)
    run_until(kube, 0)
    assert hosts_of(pods) == [0, 2]


def test_a_leaving_pod_holds_its_room_until_its_grace_is_over() -> None:
    kube, pods, others = a_kube(1), a_set(), a_set()
    kube.scale(pods, 1)
    run_until(kube, 5)
    kube.scale(pods, 0)
    kube.scale(others, 1)
    run_until(kube, 34)
    assert hosts_of(others) == [None]
    assert [pod.runs for pod in pods.pods.values()] == [True]
    run_until(kube, 36)  # tried at 5, 6, 8, 12, 20 and 36
    assert hosts_of(others) == [0]


def test_a_pod_that_fits_nowhere_is_tried_again_after_waits_that_double() -> None:
    tries = []
    kube, pods = a_kube(1), a_set(cores=2)

    class Watching(Kube):
        def _choose(self, pod: Pod) -> int | None:
            tries.append(self.now)
            return super()._choose(pod)

    kube.__class__ = Watching
    kube.scale(pods, 1)
    run_until(kube, 200)
    assert tries == [0, 1, 3, 7, 15, 31, 63, 123, 183]


def test_where_room_wakes_pods_they_are_tried_as_soon_as_it_appears() -> None:
    kube, pods, others = a_kube(1, settings=PRESENT), a_set(), a_set()
    kube.scale(pods, 1)
    run_until(kube, 5)
    kube.scale(pods, 0)
    kube.scale(others, 1)
    run_until(kube, 35)
    assert hosts_of(others) == [0]


def test_where_priorities_count_services_are_tried_before_training() -> None:
    for kind, winner in ((PUBLISHED, "trainer"), (PRESENT, "nginx")):
        kube, training = a_kube(1, settings=kind), a_set(priority=-1)
        service = PodSet(owner="nginx", role="nginx", each=CORE)
        kube.scale(training, 1)
        kube.scale(service, 1)
        run_until(kube, 0)
        bound = [pods.role for pods in (training, service) if hosts_of(pods) == [0]]
        assert bound == [winner]


def test_when_a_number_is_lowered_those_that_do_the_least_go_first() -> None:
    kube, pods = a_kube(2), a_set()
    kube.scale(pods, 2)
    run_until(kube, 5)
    kube.scale(pods, 3)
    run_until(kube, 6)
    kube.scale(pods, 1)
    assert [(pod.number, pod.is_leaving) for pod in pods.pods.values()] == [(1, False), (2, True)]


@settings(max_examples=30)
@given(st.lists(st.tuples(st.integers(1, 20), st.integers(0, 9)), max_size=12), st.integers(0, 99))
def test_no_host_ever_holds_more_than_it_has_and_nothing_is_lost(steps: list[tuple[int, int]], seed: int) -> None:
    kube = a_kube(3, 5, 2)
    sets = [a_set(), a_set(cores=2, grace=2.0)]
    chance = random.Random(seed)
    now = 0.0
    for wait, replicas in steps:
        kube.scale(chance.choice(sets), replicas)
        now += wait
        run_until(kube, now)
        held = [0, 0, 0]
        for pods in sets:
            assert len(pods.staying()) == pods.replicas
            for pod in pods.pods.values():
                if pod.host is not None:
                    held[pod.host] += pod.of.each.cpu
        assert [has - free for has, free in zip((3_000, 5_000, 2_000), kube.cpu_free, strict=True)] == held
        assert min(kube.cpu_free) >= 0
