"""The original algorithm: its own unit tests as golden vectors, and its reading of a snapshot."""

from dataclasses import replace

import pytest

from shoal.scheduler.decisions import Action
from shoal.scheduler.rows import Host, Job, JobKey, Leaving, Part, Room, ServicePod
from shoal.scheduler.settings import SchedulerSettings
from shoal.scheduler.snapshot import Snapshot
from shoal.scheduler.upstream import (
    Cluster,
    Scaled,
    Variant,
    dry_run,
    inquire,
    mega,
    order,
    plan,
    step,
)

MEBIBYTE = 2**20


def a_cluster(cpu: tuple[int, int], memory: tuple[int, int], gpu: tuple[int, int] = (0, 0)) -> Cluster:
    """Used and total of each, and one host that has room for nearly everything."""
    return Cluster(
        cpu_request=cpu[0],
        cpu_total=cpu[1],
        memory_request=memory[0],
        memory_total=memory[1],
        gpu_limit=gpu[0],
        gpu_total=gpu[1],
    )


def a_job(memory: int, gpu: int, least: int, most: int, parallelism: int, *, cpu: int = 1_000) -> Scaled:
    return Scaled(name="j", cpu=cpu, memory=mega(memory), gpu=gpu, min=least, max=most, parallelism=parallelism)


@pytest.mark.parametrize(
    ("cluster", "job", "gained"),
    [
        pytest.param(
            a_cluster((0, 2_000), (0, 1_000)),
            a_job(100 * MEBIBYTE, 0, 1, 2, 2, cpu=1_000 * MEBIBYTE * 1_000),
            0,
            id="at-its-most",
        ),
        pytest.param(a_cluster((100, 3_000), (100, 1_000)), a_job(100 * MEBIBYTE, 0, 1, 3, 1), 1, id="room"),
        pytest.param(a_cluster((1_000, 1_000), (100, 1_000)), a_job(100 * MEBIBYTE, 0, 1, 3, 1), 0, id="no-cores"),
        pytest.param(a_cluster((0, 2_000), (100, 1_000), (0, 10)), a_job(10 * MEBIBYTE, 1, 1, 3, 1), 1, id="devices"),
        pytest.param(
            a_cluster((0, 2_000), (100, 1_000), (10, 10)), a_job(10 * MEBIBYTE, 1, 1, 3, 1), 0, id="no-devices"
        ),
        pytest.param(
            a_cluster((2_000, 1_000), (1_000, 1_000), (10, 10)), a_job(10 * MEBIBYTE, 0, 1, 3, 3), 0, id="too-full"
        ),
    ],
)
def test_a_step_up_gives_what_the_original_gave(cluster: Cluster, job: Scaled, gained: int) -> None:
    assert step(cluster, job, 0, 1.0, down=False) == gained


def test_a_step_down_after_a_step_up_takes_nothing_back() -> None:
    cluster = a_cluster((0, 2_000), (100, 1_000), (0, 10))
    job = a_job(10 * MEBIBYTE, 1, 1, 3, 1)
    assert step(cluster, job, 0, 1.0, down=False) == 1
    assert step(cluster, job, 1, 1.0, down=True) == 0


@pytest.mark.parametrize(
    ("cluster", "job", "gained"),
    [
        pytest.param(
            Cluster(
                cpu_request=1_000,
                cpu_total=1_000,
                memory_request=1_000,
                memory_total=1_000,
                gpu_limit=10,
                gpu_total=10,
                idle=[],
            ),
            a_job(10 * MEBIBYTE, 0, 1, 3, 6),
            [-1, -1, -1, 0],
            id="above-its-most",
        ),
        pytest.param(
            a_cluster((5_000, 3_000), (1_000, 1_000), (10, 10)),
            a_job(10 * MEBIBYTE, 0, 1, 3, 3),
            [-1, -1, 0],
            id="down-to-its-least",
        ),
        pytest.param(
            a_cluster((2_000, 1_000), (1_000, 1_000), (10, 10)), a_job(10 * MEBIBYTE, 0, 1, 3, 3), [-1], id="too-full"
        ),
    ],
)
def test_steps_down_take_what_the_original_took(cluster: Cluster, job: Scaled, gained: list[int]) -> None:
    assert [step(cluster, job, -taken, 1.0, down=True) for taken in range(len(gained))] == gained


@pytest.mark.parametrize(
    ("cluster", "job", "load", "diff"),
    [
        pytest.param(a_cluster((0, 1_000), (1_000, 1_000), (0, 10)), a_job(1, 1, 1, 3, 1), 1.0, 0, id="no-memory"),
        pytest.param(
            a_cluster((1_000, 4_000), (100, 1_000), (8, 10)),
            a_job(100 * MEBIBYTE, 0, 1, 3, 1),
            1.0,
            2,
            id="to-its-most",
        ),
        pytest.param(
            a_cluster((1_000, 3_000), (100, 1_000), (0, 10)),
            a_job(100 * MEBIBYTE, 0, 1, 3, 1),
            0.8,
            1,
            id="up-to-the-load",
        ),
        pytest.param(
            a_cluster((3_000, 3_000), (100, 1_000), (0, 10)),
            a_job(100 * MEBIBYTE, 0, 1, 3, 3),
            0.8,
            -1,
            id="down-to-the-load",
        ),
        pytest.param(a_cluster((2_000, 3_000), (100, 1_000), (8, 10)), a_job(1, 1, 1, 3, 1), 1.0, 1, id="last-cores"),
        pytest.param(a_cluster((990, 2_000), (100, 1_000), (9, 10)), a_job(1, 1, 1, 3, 1), 1.0, 1, id="last-device"),
    ],
)
@pytest.mark.parametrize("variant", Variant)
def test_a_dry_run_ends_where_the_original_ended(
    cluster: Cluster, job: Scaled, load: float, diff: int, variant: Variant
) -> None:
    own = replace(cluster, idle=list(cluster.idle))  # the dry run changes it, and the variants share it
    run = dry_run([job], own, load, variant)
    assert run.settled
    assert run.diff == {"j": diff}


def test_the_least_fulfilled_come_first_and_rigid_jobs_not_at_all() -> None:
    jobs = [
        Scaled(name="a", min=1, max=2, parallelism=2),
        Scaled(name="b", min=1, max=20, parallelism=2),
        Scaled(name="c", min=1, max=10, parallelism=2),
        Scaled(name="d", min=1, max=1, parallelism=2),
    ]
    assert [job.name for job in order(jobs)] == ["b", "c", "a"]


def test_of_equally_fulfilled_jobs_the_smaller_come_first() -> None:
    jobs = [
        Scaled(name="a", max=2, gpu=1, cpu=1_000),
        Scaled(name="b", max=2, cpu=1_000, memory=1),
        Scaled(name="c", max=2, cpu=10_000),
        Scaled(name="d", max=2, cpu=1_000, memory=2),
    ]
    assert [job.name for job in order(jobs)] == ["b", "d", "c", "a"]


def test_amounts_are_counted_in_the_originals_units() -> None:
    job = Scaled.of(
        Job(key=JobKey("n", "j"), each=Room(cpu=1_000 * 1_000, memory=100 * MEBIBYTE, gpu=10), max=2, target=1)
    )
    assert (job.cpu, job.memory, job.gpu) == (1_000_000, 105, 10)


# From a snapshot ---------------------------------------------------------------------------------------------------

CORE = Room(cpu=1_000)


def test_the_sums_hold_pods_that_wait_and_pods_that_leave_and_hosts_that_take_none() -> None:
    job = Job(
        key=JobKey("n", "j"),
        each=CORE,
        max=9,
        target=4,
        placed={"h1": 2},
        pending=2,
        fixed_placed={"h2": CORE},
        fixed_pending=(Part(role="pserver", each=CORE, count=3),),
    )
    snapshot = Snapshot.of(
        hosts=[
            Host(name="h1", capacity=CORE.plus(CORE, 9), others=CORE, leaving=(Leaving(room=CORE, until=9.0),)),
            Host(name="h2", capacity=CORE.plus(CORE, 9), open=False),
        ],
        jobs=[job],
        services=[ServicePod(namespace="n", name="web", each=CORE)],
    )
    cluster = inquire(snapshot)
    assert cluster.cpu_total == 20_000
    assert cluster.cpu_request == 1_000 * (1 + 1 + 2 + 2 + 1 + 3 + 1)
    assert [cpu for cpu, _ in cluster.idle] == [6_000, 9_000]


def test_a_new_job_is_started_at_its_least_and_grows_from_the_next_round_on() -> None:
    host = Host(name="h", capacity=Room(cpu=100_000, memory=10**12))
    new = Job(key=JobKey("n", "j"), each=CORE, min=2, max=9)
    [start] = plan(Snapshot.of([host], [new]), 0.0, SchedulerSettings()).changes
    assert (start.action, start.target) == (Action.ADMIT, 2)

    started = Job(key=JobKey("n", "j"), each=CORE, min=2, max=9, target=2, placed={"h": 2}, running=2)
    [growth] = plan(Snapshot.of([host], [started]), 5.0, SchedulerSettings()).changes
    assert (growth.action, growth.before, growth.target) == (Action.GROW, 2, 9)
