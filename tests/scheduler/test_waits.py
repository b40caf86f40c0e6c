"""How long a job waits at most: from its arrival until its gang runs, in simulated clusters whose Pods take their grace
to go, start on whatever host Kubernetes finds for them, and may be overtaken there."""

import random
from dataclasses import dataclass

from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st
from tests.scheduler.world import a_job, room
from tests.sim.test_kube import run_until

from shoal.scheduler.policies import policy
from shoal.scheduler.rows import Job, Part, Priority
from shoal.scheduler.scores import footprint, score
from shoal.scheduler.settings import SchedulerSettings
from shoal.sim.clock import VirtualClock
from shoal.sim.kube import Kube, KubeSettings
from shoal.sim.operated import Operated, Training

KUBE = KubeSettings(start=1.0, first_back_off=1.0, most_back_off=1.0, obeys_priority=True)
"""It tries every second: what it takes for itself is that, and the start."""
KUBE_TAKES = 3.0
SETTINGS = SchedulerSettings(max_wait=120.0, reserve_after=30.0)
"""Shorter than by default, for the sake of the tests."""
ROUNDS = 2 * SETTINGS.interval
waits = settings(phases=[Phase.explicit, Phase.generate], suppress_health_check=list(HealthCheck))


@dataclass(frozen=True)
class Scene:
    """A cluster that jobs have shared for a while, all of them above their least."""

    cluster: Operated
    chance: random.Random
    grace: float
    core: int
    """Cores of the smallest trainer. A surplus trainer of any job has room for a Pod of this size."""

    @property
    def now(self) -> float:
        return self.cluster.kube.now

    def rows(self) -> list[Job]:
        return list(self.cluster.observe(self.now).jobs)

    def newcomer(self, name: str, pods: int, *, priority: Priority) -> Job:
        """A gang of so many Pods, one of which may be a master."""
        each = room(self.core, 1, pods=1)
        has_master = pods > 1 and self.chance.random() < 0.5
        fixed = (Part(role="master", each=each, count=1),) if has_master else ()
        least = pods - len(fixed)
        most = least + self.chance.choice([0, 0, 3, 40])
        return a_job(name, least, most, each=each, priority=priority, fixed=fixed, created=self.now)

    def wait_for(self, training: Training, most: float) -> None:
        """Until its gang runs."""
        while not runs(training):
            assert self.now - training.row.created <= most, training.standing
            run_until(self.cluster.kube, self.now + 1.0)


def runs(training: Training) -> bool:
    trainers = sum(pod.runs for pod in training.trainers.staying())
    fixed = all(sum(pod.runs for pod in pods.staying()) == training.parts[role].count
                for role, pods in training.fixed.items())  # fmt: skip
    return trainers >= training.row.min and fixed


@st.composite
def scenes(draw: st.DrawFn, *, hosts: tuple[int, int], jobs: tuple[int, int], weights: list[Priority]) -> Scene:
    """Hosts and trainers of several sizes; of several priorities, if these are several."""
    seed = draw(st.integers(0, 2**32), label="seed")
    chance, core = random.Random(seed), draw(st.sampled_from([1, 2]), label="core")
    count, number = draw(st.integers(*hosts), label="hosts"), draw(st.integers(*jobs), label="jobs")
    cores = [chance.choice([8, 12, 16, 24, 32]) for _ in range(count)]
    rooms = {f"host-{at:03}": room(each, 256, pods=110) for at, each in enumerate(cores)}
    kube = Kube(VirtualClock(), rooms, KUBE, random.Random(seed))
    scene = Scene(Operated(kube, policy("cfs"), SETTINGS), chance, chance.choice([5.0, 30.0]), core)
    left = sum(cores) // 2  # the other half is what jobs have above their least
    for at in range(number):
        each, least = core * chance.choice([1, 1, 2, 3]), chance.randint(1, 4)
        if each * least <= left:
            left -= each * least
            job = a_job(f"old-{at:03}", least, least + chance.choice([2, 10, 100]), each=room(each, 1, pods=1),
                        priority=chance.choice(weights))  # fmt: skip
            scene.cluster.submit(job, grace=scene.grace)
    scene.cluster.every(1.0)
    run_until(kube, chance.choice([60.0, 200.0]))
    assume(scene.cluster.jobs and all(job.is_admitted for job in scene.rows()))
    return scene


def check_with_surplus(scene: Scene, weights: list[Priority]) -> None:
    """T <= max_wait + grace + 2 rounds, whatever the priorities, for gangs of no more Pods than others have trainers
    above their least. Several may come, as long as it is enough for all of them."""
    surplus = sum(job.target - job.min for job in scene.rows())
    assume(surplus > 0)
    come = []
    for number in range(scene.chance.randint(1, 3)):
        pods = scene.chance.randint(1, 8)
        if pods <= surplus:
            surplus -= pods
            job = scene.newcomer(f"new-{number}", pods, priority=scene.chance.choice(weights))
            come.append(scene.cluster.submit(job, grace=scene.grace))
    for training in come:
        scene.wait_for(training, SETTINGS.max_wait + scene.grace + ROUNDS + KUBE_TAKES)


def check_among_equals(scene: Scene) -> None:
    """T <= D x (S_new / w_new) / min(S_j / w_j) + grace + 2 rounds, for a gang that others have above what it asks for
    itself: they do not become less than it is."""
    pods = scene.chance.randint(1, 8)
    job = scene.newcomer("new", pods, priority=Priority.NORMAL)
    gang, others = cost(scene, job, job.min), scene.rows()
    above = sum(cost(scene, other, n) >= gang for other in others for n in range(other.min + 1, other.target + 1))
    assume(pods <= above)
    slowest = min(cost(scene, other, other.target) for other in others)
    training = scene.cluster.submit(job, grace=scene.grace)
    scene.wait_for(training, SETTINGS.start_debit * gang / slowest + scene.grace + ROUNDS + KUBE_TAKES)


def cost(scene: Scene, job: Job, trainers: int) -> float:
    return score(footprint(job, trainers), room(1, 1), SETTINGS)


mixed = list(Priority)
equal = [Priority.NORMAL]


@settings(waits, max_examples=15)
@given(scenes(hosts=(1, 12), jobs=(1, 8), weights=mixed))
def test_a_gang_runs_in_time_when_surplus_is_enough(scene: Scene) -> None:
    check_with_surplus(scene, mixed)


@settings(waits, max_examples=15)
@given(scenes(hosts=(1, 12), jobs=(1, 8), weights=equal))
def test_among_equal_weights_a_gang_runs_as_soon_as_the_debit_is_worked_off(scene: Scene) -> None:
    check_among_equals(scene)


@settings(waits, max_examples=2)
@given(scenes(hosts=(100, 200), jobs=(60, 97), weights=mixed))
def test_a_gang_runs_in_time_with_up_to_200_hosts_and_100_jobs(scene: Scene) -> None:
    check_with_surplus(scene, mixed)


@settings(waits, max_examples=2)
@given(scenes(hosts=(100, 200), jobs=(60, 97), weights=equal))
def test_so_it_does_among_equals_with_up_to_200_hosts_and_100_jobs(scene: Scene) -> None:
    check_among_equals(scene)
