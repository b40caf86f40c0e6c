"""What was wrong with the original, one test for each defect: `upstream` shows it, `cfs` does not.

The numbers are those of the specification's list. Where a defect is one of the controllers rather than of the policy,
it is shown on the simulated Kubernetes, or on what the operator makes of Pods and decisions.
"""

import random
from collections.abc import Iterable, Sequence
from dataclasses import replace

import pytest

from shoal.api.trainingjob import TrainingRole
from shoal.core.hosts import Amounts, PodUse
from shoal.core.workloads import Workload, WorkloadKind
from shoal.operator.scheduling.facts import JobFacts
from shoal.operator.scheduling.ledger import filled
from shoal.operator.scheduling.reading import look_at
from shoal.operator.training.trainers import plan_trainers
from shoal.platforms.kubernetes.uses import amounts, shape
from shoal.scheduler import cfs, upstream
from shoal.scheduler.actuation import Standing
from shoal.scheduler.decisions import Action, Decisions
from shoal.scheduler.rows import Attained, Host, Job, JobKey, Leaving, Part, Room
from shoal.scheduler.settings import SchedulerSettings
from shoal.scheduler.snapshot import Snapshot
from shoal.scheduler.upstream import Cluster, Scaled, Variant, dry_run, order, outcome, take_part
from shoal.sim.clock import VirtualClock
from shoal.sim.edl import CASES, NGINX, NGINX_GRACE, TRAINER_GRACE, USUAL_MIX, arm_of, hosts_of, job_of
from shoal.sim.kube import PUBLISHED, Kube, Phase, Pod, PodSet
from shoal.sim.operated import TRAINER, Operated

SETTINGS = SchedulerSettings()
NOW = 1_000.0
GIBIBYTE = 2**30
PLENTY = 10_000 * GIBIBYTE


def a_host(name: str = "host", *, cores: int = 100, gpus: int = 0, **more: object) -> Host:
    return Host(name=name, capacity=Room(cpu=cores * 1_000, memory=PLENTY, gpu=gpus), **more)  # type: ignore[arg-type]


def a_job(name: str, target: int, *, least: int = 1, most: int = 100, cores: int = 1, gpus: int = 0, on: str = "host",
          **more: object) -> Job:  # fmt: skip
    """A job whose trainers all run on one host, for long."""
    return replace(
        Job(
            key=JobKey("team", name),
            min=least,
            max=most,
            each=Room(cpu=cores * 1_000, memory=GIBIBYTE, gpu=gpus),
            target=target,
            placed={on: target} if target else {},
            running=target,
            attained=Attained(v=1_000.0, at=NOW),
        ),
        **more,  # type: ignore[arg-type]
    )


def plan_cfs(hosts: Iterable[Host], jobs: Iterable[Job]) -> Decisions:
    return cfs.plan(Snapshot.of(hosts, jobs), NOW, SETTINGS)


def plan_upstream(hosts: Iterable[Host], jobs: Iterable[Job]) -> Decisions:
    return upstream.plan(Snapshot.of(hosts, jobs), NOW, SETTINGS)


def targets(decisions: Decisions) -> dict[str, int]:
    return {change.key.name: change.target for change in decisions.changes}


def test_1_with_the_last_device_free_it_goes_up_and_down_for_ever() -> None:
    host = a_host(gpus=10)
    jobs = [a_job("j", 9, cores=2, gpus=1)]
    hung = plan_upstream([host], jobs)
    assert hung.changes == ()
    assert "does not end" in hung.problems[0]

    assert targets(plan_cfs([host], jobs)) == {"j": 10}


def test_1_devices_of_others_hang_it_through_a_job_that_has_none() -> None:
    host = a_host(gpus=10, others=Room(gpu=10))
    jobs = [a_job("j", 5)]
    assert plan_upstream([host], jobs).problems
    assert plan_cfs([host], jobs).problems == ()


def test_1_the_second_variant_ends_with_a_wrong_answer() -> None:
    """The job without devices is driven down by pressure on devices."""
    jobs = [Scaled(name="j", cpu=1_000, memory=1, min=1, max=9, parallelism=5)]
    cluster = Cluster(gpu_limit=10, gpu_total=10, cpu_request=5_000, cpu_total=100_000, memory_total=10**6)
    run = dry_run(jobs, cluster, 0.97, Variant.CRD)
    assert run.settled
    assert run.iterations > 50
    assert run.diff == {"j": -4}


def test_2_one_host_that_fits_one_trainer_lets_a_job_grow_to_its_most() -> None:
    hosts = [a_host("full", cores=100, others=Room(cpu=50_000)), a_host("fits-one", cores=2)]
    jobs = [a_job("j", 49, most=60, on="full")]  # of 102 cores 99 are in use, and each host has one for a trainer
    snapshot = Snapshot.of([*hosts, a_host("spare", cores=1_000, open=False, others=Room(cpu=999_500))], jobs)
    decided = upstream.plan(snapshot, NOW, with_load(1.5))
    assert targets(decided) == {"j": 60}
    assert targets(cfs.plan(snapshot, NOW, with_load(1.5))) == {"j": 52}


def with_load(grow: float) -> SchedulerSettings:
    """As full as hosts allow, with 1 or more: only hosts stop a job then."""
    return replace(SETTINGS, cpu=replace(SETTINGS.cpu, grow=grow, reclaim=grow))


def test_3_pods_that_fit_nowhere_trigger_nothing_while_the_sums_are_small() -> None:
    """Each host has room for a third of the Pod that the gang misses."""
    hosts = [a_host(f"host-{n}", cores=10) for n in range(5)]
    rich = a_job("rich", 10, cores=4, placed={host.name: 2 for host in hosts})
    gang = (Part(role="pserver", each=Room(cpu=6_000, memory=GIBIBYTE), count=1),)
    waiting = a_job("waiting", 1, least=1, most=1, fixed=gang, fixed_pending=gang, placed={"host-0": 1})
    assert plan_upstream(hosts, [rich, waiting]).changes == ()

    [shrink] = plan_cfs(hosts, [rich, waiting]).changes
    assert (shrink.key.name, shrink.action) == ("rich", Action.SHRINK)
    assert shrink.beneficiary == str(waiting.key)


def test_4_it_is_a_round_robin_and_not_the_least_fulfilled_first() -> None:
    jobs = [
        Scaled(name="a", cpu=1_000, min=1, max=3, parallelism=1),
        Scaled(name="b", cpu=1_000, min=1, max=101, parallelism=1),
        Scaled(name="c", cpu=1_000, min=1, max=101, parallelism=90),
    ]
    cluster = Cluster(cpu_request=92_000, cpu_total=110_000, memory_total=10**6, idle=[(18_000, 10**6)])
    assert dry_run(jobs, cluster, 1.0).diff == {"a": 2, "b": 8, "c": 8}

    host = a_host(cores=110)
    ours = [a_job("a", 1, most=3), a_job("b", 1, most=101), a_job("c", 90, most=101)]
    decided = cfs.plan(Snapshot.of([host], ours), NOW, with_load(1.0))
    assert targets(decided) == {"a": 3, "b": 17}


def test_5_what_is_unfair_stays_unfair_once_the_cluster_is_full() -> None:
    host = a_host(cores=100)
    jobs = [a_job("rich", 95), a_job("poor", 2)]
    assert plan_upstream([host], jobs).changes == ()

    found = targets(plan_cfs([host], jobs))
    assert found["rich"] < 95
    assert found["poor"] > 2


def test_6_one_finished_trainer_keeps_a_job_from_changing_for_ever() -> None:
    host = a_host(cores=100)
    jobs = [a_job("j", 10, ended=1)]
    assert take_part(jobs) == []
    assert plan_upstream([host], jobs).changes == ()
    assert targets(plan_cfs([host], jobs))["j"] > 10


def test_7_a_job_without_pods_counts_as_starving_and_one_without_pservers_does_not() -> None:
    unstable = a_job("unstable", 5, pending=1, running=4, placed={"host": 4})
    pserver = (Part(role="pserver", each=Room(cpu=1_000), count=2),)
    without_pods = a_job("none", 2, placed={}, running=0)
    without_servers = a_job("half", 2, fixed=pserver, fixed_pending=pserver)
    assert unstable in take_part([unstable, without_pods])
    assert unstable not in take_part([unstable, without_servers])

    hosts = [a_host(cores=100)]
    for more in ([], [without_pods]):
        assert targets(plan_cfs(hosts, [unstable, *more]))["unstable"] > 5, "it grows, whoever else starves"


def test_7_pservers_without_hosts_move_nobody_who_is_not_stable() -> None:
    """All is taken by a job of which one trainer waits; two parameter servers wait with it."""
    pserver = (Part(role="pserver", each=Room(cpu=1_000), count=2),)
    half = a_job("half", 1, most=1, fixed=pserver, fixed_pending=pserver)
    unstable = a_job("unstable", 100, pending=1, running=99, placed={"host": 99})
    assert plan_upstream([a_host(cores=100)], [unstable, half]).changes == ()

    [shrink] = plan_cfs([a_host(cores=100)], [unstable, half]).changes
    assert (shrink.key.name, shrink.action, shrink.beneficiary) == ("unstable", Action.SHRINK, str(half.key))


def test_8_a_trainer_is_promised_although_no_host_has_a_device_for_it() -> None:
    """Four hosts have a device each; the trainer needs two on one."""
    hosts = [a_host(f"host-{n}", cores=32, gpus=2, others=Room(gpu=1)) for n in range(3)]
    hosts.append(a_host("mine", cores=32, gpus=2))
    jobs = [a_job("j", 1, most=2, cores=4, gpus=2, on="mine")]
    assert targets(plan_upstream(hosts, jobs)) == {"j": 2}
    assert plan_cfs(hosts, jobs).changes == ()


def test_8_hosts_that_take_no_pods_count_as_room() -> None:
    hosts = [a_host("full", cores=10), a_host("cordoned", cores=50, open=False)]
    jobs = [a_job("j", 10, most=20, on="full")]
    assert targets(plan_upstream(hosts, jobs)) == {"j": 20}
    assert plan_cfs(hosts, jobs).changes == ()


def test_8_what_init_containers_ask_for_is_added_up() -> None:
    """Init containers run one after the other, before the others: three cores are enough for each trainer."""
    asks = {"cpu": "3", "memory": "1Gi"}
    parts = {"containers": [asks], "initContainers": [asks, asks]}
    pod = {"spec": {part: [{"resources": {"requests": each}} for each in asked] for part, asked in parts.items()}}
    rooms = {part: [Room(*amounts(each)) for each in asked] for part, asked in parts.items()}
    theirs = upstream.pod_room(rooms["containers"], rooms["initContainers"])
    ours = Room(*shape(pod).amounts)._replace(pods=0)  # these hosts have places for any number
    hosts = [a_host(cores=20)]
    assert targets(plan_upstream(hosts, [a_job("j", 1, most=9, each=theirs)])) == {"j": 2}
    assert targets(plan_cfs(hosts, [a_job("j", 1, most=9, each=ours)])) == {"j": 6}


def test_9_of_two_namespaces_jobs_of_one_name_only_one_is_seen() -> None:
    host = a_host(cores=100)
    one, other = (replace(a_job("j", 2, most=9), key=JobKey(team, "j")) for team in ("red", "blue"))
    assert len(plan_upstream([host], [one, other]).changes) == 1
    assert len(plan_cfs([host], [one, other]).changes) == 2
    both = outcome(Snapshot.of([host], [one, other]), NOW, 0.97, Variant.CRD)
    assert set(both.targets) == {one.key, other.key}


def test_10_every_job_is_written_every_round_and_nothing_is_ever_frozen() -> None:
    host = a_host(cores=20)
    jobs = [a_job("a", 5, most=5, least=4), a_job("b", 5, most=5, least=4)]
    snapshot = Snapshot.of([host], jobs)
    assert len(outcome(snapshot, NOW, 0.97).targets) == 2
    assert cfs.plan(snapshot, NOW, SETTINGS).changes == ()

    frozen = [a_job("j", 5, most=9, frozen_until=NOW + 30)]
    assert targets(plan_upstream([host], frozen)) == {"j": 9}
    assert plan_cfs([host], frozen).changes == ()


def test_10_equal_jobs_come_in_an_order_of_chance() -> None:
    jobs = [Scaled(name=name, max=2) for name in "abcdefgh"]
    orders = {tuple(job.name for job in order(jobs, lot)) for lot in (hash_of(1), hash_of(2))}
    assert len(orders) == 2

    ours = [a_job(name, 1, most=9) for name in "abcdefgh"]
    found = [targets(plan_at(now, order)) for now in (NOW, NOW + 5) for order in (ours, ours[::-1])]
    assert found == [found[0]] * 4, "the same jobs get the same, in whatever order they come and whenever it is asked"
    assert found[0]["a"] > 1


def plan_at(now: float, jobs: Sequence[Job]) -> Decisions:
    rested = [replace(job, attained=Attained(v=1_000.0, at=now)) for job in jobs]
    return cfs.plan(Snapshot.of([a_host(cores=20)], rested), now, SETTINGS)


def hash_of(seed: int):  # type: ignore[no-untyped-def]
    return lambda name: ord(name) * 7_919 * seed % 11


def test_11_room_that_is_being_freed_for_one_is_asked_for_again_and_again() -> None:
    """Trainers that leave still count in the sums: the same pressure takes as many again in the next round."""
    host = a_host(cores=100)
    leaving = tuple(Leaving(room=Room(cpu=1_000, memory=GIBIBYTE), until=NOW + 25) for _ in range(10))
    starving = a_job("new", 5, most=5, least=5, placed={}, running=0, pending=5)
    rich = a_job("rich", 85, leaving=10, resizing=True)
    snapshot = Snapshot.of([replace(host, leaving=leaving)], [rich, starving])
    again = targets(upstream.plan(snapshot, NOW, SETTINGS))
    assert again["rich"] < 85
    assert "rich" not in targets(cfs.plan(snapshot, NOW, SETTINGS))


@pytest.mark.parametrize(("arm", "overtaken"), [("upstream", True), ("cfs", False)])
def test_11_room_that_was_freed_is_taken_by_trainers_of_others(arm: str, overtaken: bool) -> None:
    """Case 2 of the published experiment: nginx Pods come back, and jobs make room. How many trainers find a host while
    nginx Pods that were tried before have none."""
    chosen, case = arm_of(arm), CASES[2]
    nginx = PodSet(owner="nginx", role="nginx", each=NGINX, grace=NGINX_GRACE)
    began: list[str] = []

    def watch(pod: Pod) -> None:
        waits = any(each.host is None and each.tried is not None for each in nginx.staying())
        if pod.of.role == TRAINER and pod.phase is Phase.STARTING and not pod.is_leaving and waits:
            began.append(pod.name)

    kube = Kube(VirtualClock(), hosts_of(USUAL_MIX), PUBLISHED, random.Random(2), watch)
    cluster = Operated(kube, chosen.policy, chosen.settings)
    cluster.services.append(nginx)
    for _ in range(400):
        kube.place(nginx)

    def submit(number: int) -> None:
        started = None if chosen.admits else case.start
        cluster.submit(job_of(case, number, kube.now, case.start), grace=TRAINER_GRACE, started_with=started)

    for number in range(case.jobs):
        kube.after(number * case.spacing, lambda number=number: submit(number))  # type: ignore[misc]
    cluster.every(1.0)
    for at, count in case.services[1:]:
        kube.after(at, lambda count=count: kube.scale(nginx, count))  # type: ignore[misc]
    while kube.now < case.end and kube.clock.step():
        pass
    serving = sum(pod.runs for pod in nginx.staying())
    assert (len(began) > 0, serving < 400) == (overtaken, overtaken), (len(began), serving)


@pytest.mark.parametrize("policy", [upstream.plan, cfs.plan], ids=["upstream", "cfs"])
def test_12_a_new_job_is_started_and_not_yet_grown_by_the_original(policy) -> None:  # type: ignore[no-untyped-def]
    new = a_job("new", 0, least=2, most=9, attained=None)
    [start] = policy(Snapshot.of([a_host()], [new]), NOW, SETTINGS).changes
    assert start.action is Action.ADMIT
    assert start.target == (2 if policy is upstream.plan else 9)


def test_13_a_job_that_is_about_to_end_is_promised_trainers_that_nobody_makes() -> None:
    """One of its trainers has succeeded: from then on a batch Job without `completions` makes no more."""
    starving = a_job("new", 1, most=1, placed={}, running=0, pending=1)
    ending = a_job("ending", 5, most=9, placed={"host": 4}, running=4, ended=1)
    assert targets(plan_upstream([a_host()], [ending, starving])) == {"ending": 9}
    batch = Workload(
        kind=WorkloadKind.JOB, name="ending-trainer", uid="uid", role=TrainingRole.TRAINER, wanted=5, succeeded=1
    )
    assert plan_trainers(batch, (), 9).parallelism is None

    pods = [a_trainer_pod(number) for number in range(4)]
    pods.append(replace(a_trainer_pod(4), runs=False, is_ready=False, is_over=True, succeeded=True))
    facts = JobFacts(
        key=ending.key, uid="uid", trainer_role="trainer", each=ending.each, min=1, max=9, spares_succeeded=True
    )
    seen = look_at(facts, Standing(target=5), pods, filled(pods), now=NOW).row
    assert plan_cfs([a_host()], [seen]).changes == ()


def a_trainer_pod(number: int) -> PodUse:
    name = f"ending-trainer-{number}"
    amounts = Amounts(1_000, GIBIBYTE)
    return PodUse(
        namespace="team", name=name, uid=name, amounts=amounts, job="uid", role="trainer", host="host", runs=True,
        is_ready=True, since=NOW,
    )  # fmt: skip
