"""The controller of TrainingJobs with everything real but the API server: what it writes, and what survives a crash."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.api.builders import a_training_job
from tests.operator.builders import SETTINGS
from tests.operator.stage import PATIENCE
from tests.operator.training.builders import KEY, allowed, elastic
from tests.operator.training.stage import TrainingStage, a_training_stage

from shoal.core.errors import Outdated
from shoal.core.workloads import WorkloadKind
from shoal.operator.objects import MANAGER
from shoal.operator.training.reconcile import TrainingReconciler
from shoal.platforms.kubernetes.client import Merge
from shoal.platforms.kubernetes.cluster import KubernetesCluster
from shoal.platforms.kubernetes.errors import Permission
from shoal.platforms.kubernetes.events import Recorder
from shoal.platforms.kubernetes.kinds import TRAINING_JOBS
from shoal.platforms.kubernetes.objects import PODS, SECRETS, SERVICES
from shoal.platforms.kubernetes.training import KubernetesTraining
from shoal.platforms.kubernetes.workloads import JOBS, REPLICA_SETS, STATEFUL_SETS

WHOLE = {"trainer": elastic(1, 4), "pserver": {"min-instance": 2}, "master": {}}


async def scenario(stage: TrainingStage) -> None:
    """Wait, be admitted, grow, shrink, be suspended and come back, succeed."""
    await stage.apply(a_training_job(**WHOLE))
    await stage.until(lambda: stage.is_in("Pending"), "it waits")
    beside, kept = {"master": 1, "etcd": 1, "pserver": 2}, {"etcd": 1}
    for target, phase in ((2, "Running"), (4, "Running"), (1, "Running"), (0, "Pending"), (2, "Running")):
        stage.allow("job", allowed(target))
        wanted = {**beside, "trainer": target} if target else kept
        await stage.until(lambda phase=phase, wanted=wanted: stage.is_in(phase, **wanted), f"{target} trainers")
    stage.finish()
    await stage.until(lambda: stage.is_in("Succeeded"), "it succeeds")


def outcome(stage: TrainingStage) -> dict[str, Any]:
    """What the end is compared by: all that is not a time, a uid, or a number that Kubernetes made up."""
    status = stage.status()
    return {
        "phase": status["phase"],
        "conditions": {each["type"]: (each["status"], each["reason"]) for each in status["conditions"]},
        "records": [(each["from"], each["to"]) for each in status["scaleRecords"]],
        "sizes": {
            each["metadata"]["name"]: each["spec"].get("replicas", each["spec"].get("parallelism"))
            for kind in (REPLICA_SETS, STATEFUL_SETS, JOBS)
            for each in stage.server.objects(kind)
        },
        "names": sorted(each["metadata"]["name"] for each in stage.server.objects(SERVICES)),
        "secrets": [each["metadata"]["name"] for each in stage.server.objects(SECRETS)],
    }


@asynccontextmanager
async def relayed(stage: TrainingStage, crash_after: int) -> AsyncIterator[None]:
    """An operator that dies after so many writes, and then one that does not."""

    async def relay() -> None:
        async with stage.operator(crash_after=crash_after) as first:
            await first.crashed.wait()
        async with stage.operator():
            await asyncio.Event().wait()

    task = asyncio.create_task(relay())
    try:
        while not hasattr(stage, "wake"):
            await asyncio.sleep(0.001)
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})


@pytest.mark.parametrize("every", [13, pytest.param(1, marks=[pytest.mark.slow, pytest.mark.timeout(1200)])])
async def test_the_end_is_the_same_whichever_write_was_the_last(every: int) -> None:
    async with a_training_stage() as stage, stage.operator() as operator:
        await scenario(stage)
        expected, writes = outcome(stage), operator.writes
    assert expected["phase"] == "Succeeded"
    assert expected["records"] == [(0, 2), (2, 4), (4, 1), (1, 0), (0, 2)]
    assert writes > 20
    for crash_after in range(0, writes, every):
        async with a_training_stage() as stage, relayed(stage, crash_after):
            await scenario(stage)
            await stage.until(lambda stage=stage: outcome(stage) == expected, f"crash after write {crash_after}")


async def test_no_trainers_are_made_while_those_of_before_still_end() -> None:
    async with a_training_stage() as stage, stage.operator():
        await stage.apply(a_training_job(trainer=elastic(3, 3)))
        await stage.until(lambda: stage.status() != {}, "it is seen")
        stage.allow("job", allowed(3))
        await stage.until(lambda: stage.is_in("Running", trainer=3), "it runs")
        stage.lets_pods_end = False
        stage.allow("job", allowed(0))
        await stage.until(lambda: not stage.server.objects(JOBS), "it is put back")
        stage.allow("job", allowed(3))
        await stage.until(lambda: "TrainersEnding" in reasons(stage, "False"), "it says what it waits for")
        assert not stage.server.objects(JOBS)
        stage.lets_pods_end = True
        await stage.until(lambda: stage.is_in("Running", trainer=3), "it comes back")


async def test_a_server_on_a_lost_host_is_looked_at_again_when_it_counts_as_lost() -> None:
    async with a_training_stage() as stage, stage.operator() as cluster:
        await stage.apply(a_training_job("job", trainer=elastic(), pserver={}, master={"etcd-storage": "1Gi"}))
        stage.allow("job", allowed(1))
        await stage.until(lambda: stage.is_in("Running", master=1, etcd=1, pserver=1, trainer=1), "it runs")
        stage.lets_pods_end = False
        stage.allow("job", allowed(0))
        await stage.until(lambda: stage.is_in("Pending", master=1, etcd=1), "its master lets the server go")

        async def look(later: timedelta) -> timedelta | None:
            reconciler = TrainingReconciler(
                cluster,  # type: ignore[arg-type]
                SETTINGS,
                clock=lambda: datetime.now(UTC) + later,
                allowances=stage.words,
            )
            return await reconciler.reconcile(KEY)

        async with asyncio.timeout(PATIENCE):  # what was written last may not have been read yet
            while not timedelta(minutes=29) < (await look(timedelta(0)) or timedelta(0)) < timedelta(minutes=32):
                await asyncio.sleep(0.005)
            while await look(timedelta(minutes=32)) is not None:
                await asyncio.sleep(0.005)
        await stage.until(lambda: stage.is_in("Pending"), "nobody waits for it")


async def test_nothing_is_written_where_nothing_changes() -> None:
    async with a_training_stage() as stage, stage.operator() as operator:
        await stage.apply(a_training_job(**WHOLE))
        await stage.until(lambda: stage.status() != {}, "it is seen")
        stage.allow("job", allowed(2))
        await stage.until(lambda: stage.is_in("Running", master=1, etcd=1, pserver=2, trainer=2), "it runs")
        await asyncio.sleep(0.2)
        before = operator.writes
        for _ in range(5):
            stage.wake()
            await asyncio.sleep(0.05)
        assert operator.writes == before


async def test_all_that_was_made_goes_with_the_job() -> None:
    async with a_training_stage() as stage, stage.operator():
        await stage.apply(a_training_job(**WHOLE))
        await stage.until(lambda: stage.status() != {}, "it is seen")
        stage.allow("job", allowed(1))
        await stage.until(lambda: stage.is_in("Running", master=1, etcd=1, pserver=2, trainer=1), "it runs")
        await stage.client.delete(TRAINING_JOBS, "job", namespace="default")
        left = (REPLICA_SETS, STATEFUL_SETS, JOBS, SERVICES, SECRETS)
        await stage.until(lambda: not any(stage.server.objects(kind) for kind in left), "nothing is left")


async def test_what_the_server_refuses_is_said_and_tried_again() -> None:
    refuses = True

    def allow(_user: str, permission: Permission) -> bool:
        return not (refuses and (permission.verb, permission.resource) == ("create", "jobs"))

    async with a_training_stage(allow=allow) as stage, stage.operator():
        await stage.apply(a_training_job(pserver={}))
        await stage.until(lambda: stage.status() != {}, "it is seen")
        stage.allow("job", allowed(1))
        await stage.until(lambda: "Forbidden" in reasons(stage), "it says why")
        await stage.until(lambda: len(stage.running("pserver")) == 1, "what has nothing to do with it goes on")
        refuses = False
        await stage.until(lambda: stage.is_in("Running", pserver=1, trainer=1), "it runs after all")
        await stage.until(lambda: "Forbidden" not in reasons(stage), "it says so no more")
        assert "Forbidden" in stage.events()


async def test_the_job_counts_how_a_trainer_ends_until_its_eviction_is_accepted() -> None:
    tracked = "batch.kubernetes.io/job-tracking"
    refuses = True

    def allow(_user: str, permission: Permission) -> bool:
        return not (refuses and permission.resource == "pods/eviction")

    def finalizers() -> list[list[str]]:
        return sorted(pod["metadata"].get("finalizers", []) for pod in stage.pods())

    async with a_training_stage(allow=allow) as stage, stage.operator():
        await stage.apply(a_training_job(trainer=elastic(1, 2)))
        await stage.until(lambda: stage.status() != {}, "it is seen")
        stage.allow("job", allowed(2))
        await stage.until(lambda: stage.is_in("Running", trainer=2), "it runs")
        for name in stage.running("trainer"):
            mark = Merge({"metadata": {"finalizers": [tracked, "example.com/theirs"]}})
            await stage.client.patch(PODS, name, mark, namespace="default")
        stage.allow("job", allowed(1))
        await stage.until(lambda: "Forbidden" in reasons(stage), "it cannot evict")
        assert finalizers() == [[tracked, "example.com/theirs"]] * 2
        refuses = False
        await stage.until(lambda: len(stage.running("trainer")) == 1, "one is evicted")
        await stage.until(
            lambda: finalizers()[-1] == ["example.com/theirs"], "it is not counted, and others' word holds"
        )
        assert finalizers()[0] == [tracked, "example.com/theirs"]


async def test_a_pod_that_may_not_go_holds_up_no_other() -> None:
    async with a_training_stage() as stage, stage.operator():
        await stage.apply(a_training_job(trainer=elastic(1, 4)))
        await stage.until(lambda: stage.status() != {}, "it is seen")
        stage.allow("job", allowed(4))
        await stage.until(lambda: stage.is_in("Running", trainer=4), "it runs")
        guarded, *others = stage.running("trainer")
        stage.server.guarded.add(("default", guarded))
        stage.allow("job", allowed(1, victims=(guarded, *others)))
        await stage.until(lambda: len(stage.running("trainer")) == 2, "the others go")
        await stage.until(lambda: "DisruptionBudget" in reasons(stage), "it says why one does not")
        assert guarded in stage.running("trainer")
        stage.server.guarded.clear()
        await stage.until(lambda: stage.is_in("Running", trainer=1), "it goes at last")
        assert "DisruptionBudget" not in reasons(stage)


async def test_a_name_that_is_taken_is_left_alone() -> None:
    async with a_training_stage() as stage, stage.operator():
        theirs = {"metadata": {"name": "job-trainer", "namespace": "default"}, "spec": {"parallelism": 7}}
        await stage.client.create(JOBS, {**theirs, "spec": {"parallelism": 0, "template": {"metadata": {}}}})
        await stage.apply(a_training_job())
        await stage.until(lambda: stage.status() != {}, "it is seen")
        stage.allow("job", allowed(1))
        await stage.until(lambda: "NameConflict" in reasons(stage), "it says why")
        (job,) = stage.server.objects(JOBS)
        assert "ownerReferences" not in job["metadata"]


async def test_a_scheduler_that_fails_is_said_and_nothing_stops() -> None:
    async with a_training_stage() as stage, stage.operator():
        await stage.apply(a_training_job())
        await stage.until(lambda: stage.status() != {}, "it is seen")
        stage.allow("job", allowed(1))
        await stage.until(lambda: stage.is_in("Running", trainer=1), "it runs")
        stage.words.trouble = "the scheduler fails, what was decided last stays: ZeroDivisionError"
        stage.wake()
        await stage.until(lambda: "SchedulerFailing" in reasons(stage), "it says so")
        assert stage.is_in("Running", trainer=1)


async def test_a_spec_that_breaks_the_rules_of_today_is_said() -> None:
    async with a_training_stage() as stage, stage.operator():
        await stage.apply(a_training_job(trainer={"min-instance": 3, "max-instance": 2}))
        await stage.until(lambda: "InvalidSpec" in reasons(stage), "it is said")
        assert "min-instance must not exceed max-instance" in stage.status()["reason"]
        change = Merge({"spec": {"trainer": {"max-instance": 3}}})
        await stage.client.patch(TRAINING_JOBS, "job", change, namespace="default")
        stage.allow("job", allowed(3))
        await stage.until(lambda: stage.is_in("Running", trainer=3), "mended, it runs")


def reasons(stage: TrainingStage, status: str = "True") -> set[str]:
    return {each["reason"] for each in stage.status().get("conditions", []) if each["status"] == status}


def writer(stage: TrainingStage) -> KubernetesTraining:
    """What a process writes with that has read before, and reads nothing any more."""
    recorder = Recorder(stage.client, controller=MANAGER, instance="test")
    return KubernetesTraining(stage.client, KubernetesCluster(stage.client, recorder=recorder, manager=MANAGER))


async def a_workload_of(stage: TrainingStage, kind: Any, field: str) -> Any:
    pod = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [], "affinity": {"podAffinity": {}}}}
    body = {"metadata": {"name": "w", "namespace": "default"}, "spec": {field: 2, "template": pod}}
    return (await stage.client.create(kind, body)).metadata


SIZED = [
    pytest.param(WorkloadKind.JOB, JOBS, "parallelism", id="Job"),
    pytest.param(WorkloadKind.REPLICA_SET, REPLICA_SETS, "replicas", id="ReplicaSet"),
    pytest.param(WorkloadKind.STATEFUL_SET, STATEFUL_SETS, "replicas", id="StatefulSet"),
]


@pytest.mark.parametrize(("kind", "served", "field"), SIZED)
async def test_a_number_is_not_written_over_a_newer_one(kind: WorkloadKind, served: Any, field: str) -> None:
    """A leader slept between its status and the workload, another one decided anew."""
    async with a_training_stage() as stage:
        training = writer(stage)
        made = await a_workload_of(stage, served, field)
        await stage.client.patch(served, "w", Merge({"spec": {field: 3}}), namespace="default")
        with pytest.raises(Outdated):
            await training.resize(kind, "default", "w", made.uid, made.generation, 5, None)
        with pytest.raises(Outdated):
            await training.resize(kind, "default", "w", "another", made.generation + 1, 5, None)
        assert stage.server.objects(served)[0]["spec"][field] == 3
        await training.resize(kind, "default", "w", made.uid, made.generation + 1, 5, None)
        assert stage.server.objects(served)[0]["spec"][field] == 5


@pytest.mark.parametrize(("kind", "served", "field"), SIZED)
async def test_pods_that_come_and_go_keep_no_number_from_being_written(
    kind: WorkloadKind, served: Any, field: str
) -> None:
    async with a_training_stage() as stage:
        training = writer(stage)
        made = await a_workload_of(stage, served, field)
        said = Merge({"status": {"active" if kind is WorkloadKind.JOB else "replicas": 2}})
        await stage.client.patch(served, "w", said, namespace="default", subresource="status")
        preferred = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}}
        affinity = preferred if kind is WorkloadKind.REPLICA_SET else None
        await training.resize(kind, "default", "w", made.uid, made.generation, 5, affinity)
        spec = stage.server.objects(served)[0]["spec"]
        assert spec[field] == 5
        assert spec["template"]["spec"]["affinity"] == (affinity or {"podAffinity": {}})


async def test_a_workload_that_is_gone_is_not_resized() -> None:
    async with a_training_stage() as stage:
        with pytest.raises(Outdated):
            await writer(stage).resize(WorkloadKind.JOB, "default", "w", "its-uid", 1, 5, None)
