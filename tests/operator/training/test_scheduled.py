"""TrainingJobs under the scheduler's own loop, on an API server that behaves: they share, give way, and come back."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from tests.api.builders import a_training_job
from tests.operator.builders import NOW, SETTINGS
from tests.operator.stage import Broken
from tests.operator.training.builders import a_job, a_pod, a_workload, allowed, elastic, plan_for
from tests.operator.training.stage import TrainingStage, a_training_stage, phase

from shoal.api.labels import JOB_NAME
from shoal.api.trainingjob import TrainingRole
from shoal.cli.operator_scheduler import Scheduling
from shoal.operator.metrics import OperatorMetrics
from shoal.operator.objects import MANAGER
from shoal.operator.operator import TrainingOperator
from shoal.operator.scheduling.facts import JobFacts
from shoal.operator.scheduling.ledger import Ledger
from shoal.operator.scheduling.round import Known, begin
from shoal.operator.snapshot import Key
from shoal.operator.training.facts import TrainingJobs, training_facts
from shoal.platforms.kubernetes.client import Client, Merge
from shoal.platforms.kubernetes.cluster import KubernetesCluster
from shoal.platforms.kubernetes.elector import Elector
from shoal.platforms.kubernetes.events import Recorder
from shoal.platforms.kubernetes.objects import CONFIG_MAPS, NODES, PODS
from shoal.platforms.kubernetes.room import KubernetesRoom
from shoal.platforms.kubernetes.training import KubernetesTraining
from shoal.platforms.kubernetes.uses import shape
from shoal.platforms.kubernetes.workqueue import WorkQueue
from shoal.scheduler.policies import Policy, policy
from shoal.scheduler.rows import JobKey, Kind
from shoal.scheduler.settings import SchedulerSettings

CORES = 10
QUICK = "{interval: 0.2, spacing: 0.05, freezingWindow: 0}"
BIG = {"resources": {"requests": {"cpu": "4"}}}
"""Trainers of which two fit on the host."""


class Shared(TrainingStage):
    """One host, on which Kubernetes binds what fits, and a scheduler."""

    async def set_up(self) -> None:
        settings = {"metadata": {"name": "shoal-scheduler", "namespace": "default"}, "data": {"settings": QUICK}}
        await self.client.apply(CONFIG_MAPS, settings, manager="owner")
        ready = [{"type": "Ready", "status": "True"}]
        status = {"status": {"allocatable": {"cpu": str(CORES), "memory": "64Gi"}, "conditions": ready}}
        await self.client.create(NODES, {"metadata": {"name": "host-1"}})
        await self.client.patch(NODES, "host-1", Merge(status), subresource="status")

    def place(self, pod: dict[str, Any]) -> str | None:
        there = [each for each in self.server.objects(PODS) if each["spec"].get("nodeName") and is_there(each)]
        return "host-1" if sum(map(cores, there)) + cores(pod) <= CORES else None

    @asynccontextmanager
    async def scheduled(self, policies: Callable[[str], Policy] = policy) -> AsyncIterator[Scheduling]:
        """An operator for TrainingJobs with the scheduler, which leads for as long as the block lasts."""
        async with Client(self.server.access()) as client:
            recorder = Recorder(client, controller=MANAGER, instance="test")
            elector = Elector(client, name="shoal-operator", namespace="default", identity=str(id(client)))
            cluster = KubernetesCluster(client, recorder=recorder, manager=MANAGER, gathering=0.02)
            training = KubernetesTraining(client, cluster, gathering=0.02)
            room = KubernetesRoom(
                client, recorder=recorder, home="default", config_map="shoal-scheduler", namespace=None, sees_hosts=True
            )
            queue: WorkQueue[Key] = WorkQueue()
            metrics = self.metrics = OperatorMetrics()
            jobs = TrainingJobs(training.jobs, shape, SETTINGS)

            def wake(key: JobKey, after: float) -> None:
                queue.add_after(Key(key.namespace, key.name), after)

            scheduling = Scheduling(room, elector, sources=(jobs,), wake=wake, metrics=metrics, policies=policies)

            def happened(namespace: str, name: str, after: float) -> None:
                queue.add_after(Key(namespace, name), after)
                scheduling.scheduler.happened()

            training.on_wake(happened)
            operator = TrainingOperator(
                training,
                SETTINGS,
                metrics=metrics,
                clock=lambda: datetime.now(UTC),
                allowances=scheduling.scheduler,
            )

            async def lead() -> None:
                await cluster.synced()
                await training.synced()
                await scheduling.lead(lambda: queue.work(operator.look, workers=2))

            running = (cluster.run(), training.run(), room.run(), recorder.run(), elector.run(lead))
            tasks = [asyncio.create_task(each) for each in running]
            try:
                yield scheduling
            finally:
                for task in tasks:
                    task.cancel()
                for ended in await asyncio.gather(*tasks, return_exceptions=True):
                    if isinstance(ended, Exception):
                        raise ended

    def trainers(self, job: str) -> list[str]:
        ours = [pod for pod in self.pods() if pod["metadata"]["labels"][JOB_NAME] == job]
        running = set(self.running("trainer"))
        return sorted(pod["metadata"]["name"] for pod in ours if pod["metadata"]["name"] in running)

    def counts(self) -> tuple[int, int]:
        return len(self.trainers("one")), len(self.trainers("two"))


def cores(pod: dict[str, Any]) -> float:
    asked = [(each.get("resources") or {}).get("requests", {}).get("cpu", "0") for each in pod["spec"]["containers"]]
    return sum(int(each[:-1]) / 1000 if each.endswith("m") else float(each) for each in asked)


def is_there(pod: dict[str, Any]) -> bool:
    return phase(pod) not in ("Succeeded", "Failed")


@asynccontextmanager
async def shared() -> AsyncIterator[Shared]:
    async with a_training_stage() as stage:
        found = Shared(stage.server, stage.client, stage.settings)
        await found.set_up()
        yield found


async def test_two_jobs_share_a_host_and_one_gets_all_of_it_when_the_other_ends() -> None:
    async with shared() as stage, stage.scheduled() as scheduling:
        await stage.apply(a_training_job("one", trainer={**elastic(1, 2), **BIG}))
        await stage.until(lambda: stage.counts() == (2, 0), "it has the host for itself")
        await stage.until(lambda: scheduling.scheduler.goodput() == {"default": 1.0}, "all that is held trains")
        await stage.apply(a_training_job("two", trainer={**elastic(1, 2), **BIG}))
        await stage.until(lambda: stage.counts() == (1, 1), "they share it")
        assert stage.status("one")["scaleRecords"][-1]["to"] == 1
        for name in stage.trainers("one"):
            stage.server.finish("default", name)
        await stage.until(lambda: stage.counts() == (0, 2), "the other one grows")
        await stage.until(lambda: stage.status("one").get("phase") == "Succeeded", "it has ended well")
    counted = stage.metrics.text([], staleness={}, waiting=0, leads=False).decode()
    assert 'shoal_resizes_total{direction="down",result="trimmed",trigger="scheduler"} 1.0' in counted


async def test_a_policy_that_fails_is_said_by_the_job_which_keeps_what_it_has_until_the_policy_works_again() -> None:
    broken = Broken(fails=False)

    def degraded() -> tuple[str, str]:
        found = [each for each in stage.status("one").get("conditions", []) if each["type"] == "Degraded"]
        return (found[0]["status"], found[0]["reason"]) if found else ("", "")

    async with shared() as stage, stage.scheduled(lambda name: broken) as scheduling:
        await stage.apply(a_training_job("one", trainer={**elastic(1, 1), **BIG}))
        await stage.until(lambda: stage.counts() == (1, 0), "it runs")
        await stage.until(lambda: degraded()[0] == "False", "nothing is wrong")
        trainers, target, well = stage.trainers("one"), stage.status("one")["scheduling"]["target"], degraded()
        broken.fails = True
        await stage.apply(a_training_job("one", trainer={**elastic(1, 2), **BIG}))
        await stage.until(lambda: degraded() == ("True", "SchedulerFailing"), "it says so")
        (told,) = [each for each in stage.status("one")["conditions"] if each["type"] == "Degraded"]
        assert "the policy divides by zero" in told["message"]
        rounds = scheduling.scheduler.rounds
        await stage.until(lambda: scheduling.scheduler.rounds > rounds + 3, "it is tried again")
        assert (stage.trainers("one"), stage.status("one")["scheduling"]["target"]) == (trainers, target)
        await stage.apply(a_training_job("one", trainer={**elastic(1, 1), **BIG}))
        rounds = scheduling.scheduler.rounds
        await stage.until(lambda: scheduling.scheduler.rounds > rounds + 3, "that is seen")
        assert degraded() == ("True", "SchedulerFailing")
        broken.fails = False
        await stage.until(lambda: degraded() == well, "it says no more of it, although nothing else has changed")


async def test_parameter_servers_come_and_go_with_the_trainers_that_the_scheduler_gives() -> None:
    small = {"resources": {"requests": {"cpu": "3"}}}
    server = {"resources": {"requests": {"cpu": "1"}}}
    async with shared() as stage, stage.scheduled():
        pserver = {"min-instance": 1, "max-instance": 2, **server}
        await stage.apply(a_training_job("one", trainer={**elastic(1, 2), **small}, pserver=pserver, master={}))

        def there() -> tuple[int, int]:
            return len(stage.trainers("one")), len(stage.running("pserver"))

        await stage.until(lambda: there() == (2, 2), "one for each trainer")
        await stage.apply(a_training_job("two", trainer={**elastic(1, 1), **small}))
        await stage.until(lambda: (*there(), len(stage.trainers("two"))) == (1, 1, 1), "both are fewer")
        records = stage.status("one")["scaleRecords"]
        assert [(each["from"], each["to"]) for each in records if each.get("role") == "pserver"][-1] == (2, 1)


async def test_a_job_gives_way_to_a_service_and_goes_on_with_the_state_of_its_master() -> None:
    async with shared() as stage, stage.scheduled():
        exact = {"resources": {"requests": {"cpu": "4900m"}}}  # with master and etcd all of the host
        await stage.apply(a_training_job("one", trainer={**elastic(2, 2), **exact}, master={}))
        await stage.until(lambda: stage.status("one").get("phase") == "Running", "it runs")
        etcd = stage.running("etcd")
        service = {
            "metadata": {"name": "web", "namespace": "default"},
            "spec": {"priority": 1000, "containers": [{"name": "web", "image": "i", **BIG}]},
        }
        await stage.client.create(PODS, service)
        waits = {"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]}
        await stage.client.patch(PODS, "web", Merge({"status": waits}), namespace="default", subresource="status")
        await stage.until(lambda: stage.status("one").get("phase") == "Pending", "it is put back")
        await stage.until(lambda: not stage.trainers("one"), "its room is free")
        stage.server.bind("default", "web", "host-1")
        await stage.client.delete(PODS, "web", namespace="default", grace_seconds=0)
        await stage.until(lambda: stage.status("one").get("phase") == "Running", "it comes back")
        assert len(stage.trainers("one")) == 2
        assert stage.running("etcd") == etcd


async def test_a_job_without_image_waits_for_one() -> None:
    async with shared() as stage, stage.scheduled():
        await stage.apply(a_training_job("one", image=None))
        await stage.until(lambda: stage.status("one").get("scheduling", {}).get("code") == "ImageMissing", "it is said")
        assert not stage.pods()


def test_jobs_without_image_take_no_masters_place() -> None:
    bare = training_facts(a_job(image=None), shape, SETTINGS)
    assert bare is not None
    many = [replace(bare, key=bare.key._replace(name=f"job-{n}"), uid=f"uid-{n}") for n in range(5)]
    elastic_job = JobKey("default", "manual", Kind.ELASTIC_JOB)
    manual = JobFacts(key=elastic_job, uid="manual", created=NOW.timestamp() + 1, asks=False)
    settings = SchedulerSettings(max_starting_masters=1)
    known = Known(hosts=[], facts=[*many, manual], ledger=Ledger())
    taken_up = begin(known, {}, 0.0, settings, now=NOW.timestamp())
    assert taken_up.holding[elastic_job].allowance.starts_master
    assert {taken_up.holding[each.key].allowance.code for each in many} == {"ImageMissing"}


def test_a_scheduler_that_starts_again_names_the_same_victims() -> None:
    job = a_job(trainer=elastic(1, 4))
    workloads, pods = (a_workload(job, TrainingRole.TRAINER, 4),), tuple(a_pod(n) for n in range(4))
    decided = plan_for(job, workloads=workloads, pods=pods, allowance=allowed(3, victims=("job-trainer-0",)))
    job = replace(job, status=decided.status)  # recorded, and the process dies
    facts = training_facts(job, shape, SETTINGS)
    assert facts is not None
    known = Known(hosts=[], facts=[facts], ledger=Ledger())
    again = begin(known, {}, 0.0, SchedulerSettings(), now=NOW.timestamp()).holding[facts.key].allowance
    plan = plan_for(job, workloads=workloads, pods=pods, allowance=again)
    assert [each.name for each in plan.evict] == ["job-trainer-0"]
