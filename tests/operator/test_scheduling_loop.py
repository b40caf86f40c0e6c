"""The scheduler beside the operator, on an API server that behaves: restarts, settings, a policy that fails."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.operator.builders import SETTINGS, a_role
from tests.operator.stage import Broken, Stage, a_stage

from shoal.cli.operator_scheduler import MIN_V, Scheduling, parse_yaml
from shoal.core.hosts import Amounts, HostSeen, Placement
from shoal.operator.allowances import Allowance
from shoal.operator.metrics import OperatorMetrics
from shoal.operator.objects import MANAGER
from shoal.operator.operator import Operator
from shoal.operator.scheduling.facts import JobFacts
from shoal.operator.scheduling.ledger import Ledger
from shoal.operator.scheduling.live import LiveSettings
from shoal.operator.scheduling.loop import Scheduler, rest
from shoal.operator.scheduling.sources import ElasticJobs
from shoal.operator.scheduling.telling import A_SECOND
from shoal.operator.snapshot import Key
from shoal.platforms.kubernetes.client import Client, Merge
from shoal.platforms.kubernetes.cluster import KubernetesCluster
from shoal.platforms.kubernetes.elector import Elector
from shoal.platforms.kubernetes.events import Recorder
from shoal.platforms.kubernetes.kinds import ELASTIC_JOBS
from shoal.platforms.kubernetes.objects import CONFIG_MAPS, EVENTS, LEASES, NODES, PODS
from shoal.platforms.kubernetes.room import KubernetesRoom
from shoal.platforms.kubernetes.uses import shape
from shoal.platforms.kubernetes.workqueue import WorkQueue
from shoal.scheduler.decisions import Decisions
from shoal.scheduler.policies import Policy, policy
from shoal.scheduler.rows import JobKey, Room
from shoal.scheduler.settings import SchedulerSettings
from shoal.scheduler.snapshot import Snapshot

QUICK = "{interval: 0.2, spacing: 0.05, freezingWindow: 0}"


def big_role(replicas: int, least: int = 1) -> dict[str, Any]:
    """Workers of which two fit on a host."""
    role = a_role(replicas=replicas, min=least)
    resources = {"requests": {"cpu": "4"}}
    container = {"name": "main", "image": "i", "command": ["train"], "resources": resources}
    return {**role, "template": {"spec": {"containers": [container]}}}


class Crowded(Stage):
    """A stage with hosts, on which the test binds Pods as Kubernetes' scheduler would."""

    async def host(self, name: str, cpu: str = "10") -> None:
        ready = [{"type": "Ready", "status": "True"}]
        status = {"status": {"allocatable": {"cpu": cpu, "memory": "64Gi"}, "conditions": ready}}
        await self.client.create(NODES, {"metadata": {"name": name}})
        await self.client.patch(NODES, name, Merge(status), subresource="status")

    async def kubelet(self) -> None:
        for name, pod in self.pods().items():
            if self.runs and not pod["spec"].get("nodeName") and "deletionTimestamp" not in pod["metadata"]:
                nodes = (pod["spec"].get("affinity") or {}).get("nodeAffinity") or {}
                best = nodes.get("preferredDuringSchedulingIgnoredDuringExecution") or []
                hosts = [term["preference"]["matchFields"][0]["values"][0] for term in best] or ["a"]
                self.server.bind("default", name, hosts[0])
        await super().kubelet()

    async def configure(self, text: str) -> None:
        body = {"metadata": {"name": "shoal-scheduler", "namespace": "default"}, "data": {"settings": text}}
        await self.client.apply(CONFIG_MAPS, body, manager="owner")

    @asynccontextmanager
    async def scheduled(
        self, *, leads: bool = True, sees_hosts: bool = True, policies: Callable[[str], Policy] = policy
    ) -> AsyncIterator[Scheduling]:
        """One operator with a scheduler, which leads for as long as the block lasts."""
        async with Client(self.server.access()) as client:
            recorder = Recorder(client, controller=MANAGER, instance="test")
            elector = Elector(client, name="shoal-operator", namespace="default", identity=str(id(client)))
            cluster = KubernetesCluster(
                client, recorder=recorder, manager=MANAGER, gathering=0.02, writer=client.fenced(elector.check)
            )
            room = KubernetesRoom(
                client,
                recorder=recorder,
                home="default",
                config_map="shoal-scheduler",
                namespace=None if sees_hosts else "default",
                sees_hosts=sees_hosts,
            )
            queue: WorkQueue[Key] = WorkQueue()
            metrics = OperatorMetrics()

            def wake(key: JobKey, after: float) -> None:
                queue.add_after(Key(key.namespace, key.name), after)

            def now() -> datetime:
                return datetime.now(UTC)

            jobs = ElasticJobs(cluster, shape, SETTINGS, clock=now)
            scheduling = Scheduling(room, elector, sources=(jobs,), wake=wake, metrics=metrics, policies=policies)
            operator = Operator(cluster, SETTINGS, metrics=metrics, clock=now, allowances=scheduling.scheduler)

            def happened(namespace: str, name: str, after: float) -> None:
                queue.add_after(Key(namespace, name), after)
                scheduling.scheduler.happened()

            cluster.on_wake(happened)

            async def lead() -> None:
                await cluster.synced()
                await scheduling.lead(lambda: queue.work(operator.look, workers=4))

            tasks = [asyncio.create_task(each) for each in (cluster.run(), room.run(), recorder.run())]
            if leads:
                tasks.append(asyncio.create_task(elector.run(lead)))
            try:
                yield scheduling
            finally:
                for task in tasks:
                    task.cancel()
                for ended in await asyncio.gather(*tasks, return_exceptions=True):
                    if isinstance(ended, Exception):
                        raise ended
                self.metrics = metrics.text([], staleness={}, waiting=0, leads=False).decode()

    def scheduling(self, name: str = "mnist") -> dict[str, Any]:
        return (self.job(name).get("status") or {}).get("scheduling") or {}


@asynccontextmanager
async def crowded(*hosts: str) -> AsyncIterator[Crowded]:
    async with a_stage() as stage:
        found = Crowded(stage.server, stage.client, stage.settings)
        await found.configure(QUICK)
        for name in hosts:
            await found.host(name)
        yield found


async def test_a_job_is_trimmed_to_what_fits_and_grows_when_a_host_comes() -> None:
    async with crowded("a") as stage, stage.scheduled():
        await stage.apply(ELASTIC_JOBS, "mnist", {"worker": big_role(4)})
        await stage.until(lambda: len(stage.running()) == 2, "two workers fit")
        await stage.until(lambda: stage.condition("Admitted") == ("True", "Trimmed"), "it says so")
        await stage.host("b")
        await stage.until(lambda: len(stage.running()) == 4, "four workers fit")


async def test_who_may_not_look_at_hosts_holds_jobs_against_quotas_only() -> None:
    async with crowded("a") as stage, stage.scheduled(sees_hosts=False):
        await stage.configure(QUICK.removesuffix("}") + ", quotas: {default: {cpu: 12100m}}}")
        await stage.apply(ELASTIC_JOBS, "mnist", {"worker": big_role(4)})
        await stage.until(lambda: len(stage.running()) == 3, "what the quota allows runs, whatever the host has")
        await stage.until(lambda: stage.condition("Admitted") == ("True", "Trimmed"), "it says so")
        assert not [pod for pod in stage.pods().values() if pod["spec"].get("affinity")], "nobody knows a host's name"


async def test_what_does_not_fit_waits_and_has_no_pods() -> None:
    async with crowded("a") as stage, stage.scheduled():
        await stage.apply(ELASTIC_JOBS, "mnist", {"worker": big_role(3, least=3)})
        await stage.until(lambda: stage.condition("Admitted")[0] == "False", "it waits")
        assert stage.condition("Admitted")[1] == "TooLarge"
        assert not stage.pods()


async def test_a_new_leader_knows_what_everybody_attained() -> None:
    async with crowded("a") as stage:
        async with stage.scheduled():
            await stage.apply(ELASTIC_JOBS, "mnist", {"worker": big_role(2)})
            await stage.until(lambda: float(stage.scheduling().get("rate", 0)) > 0, "it is charged for what it has")
            await stage.until(lambda: not stage.scheduling().get("settling"), "its start is settled")
        before = stage.scheduling()
        async with stage.scheduled() as scheduling:
            await stage.until(lambda: scheduling.scheduler.rounds > 3, "rounds are made")
            after = stage.scheduling()
            assert after["target"] == before["target"]
            assert float(after["v"]) >= float(before["v"])
            assert len(stage.running()) == 2
        (lease,) = stage.server.objects(LEASES)
        assert float(lease["metadata"]["annotations"][MIN_V]) > 0


async def test_bad_settings_are_refused_with_an_event_and_the_old_ones_stay() -> None:
    async with crowded("a") as stage, stage.scheduled() as scheduling:
        await stage.until(lambda: scheduling.scheduler.rounds > 1, "the settings are read")
        await stage.configure("{interval: 0.2, weights: {Normal: -1}}")
        await stage.until(
            lambda: any(event["reason"] == "SettingsRefused" for event in stage.server.objects(EVENTS)), "an event"
        )
        await stage.apply(ELASTIC_JOBS, "mnist", {"worker": big_role(2)})
        await stage.until(lambda: len(stage.running()) == 2, "it goes on with the old ones")
    assert "shoal_scheduler_settings_valid 0.0" in stage.metrics


async def test_a_restart_with_bad_settings_goes_on_with_those_of_before() -> None:
    quick = QUICK.removesuffix("}")
    async with crowded("a") as stage:
        async with stage.scheduled() as scheduling:
            await stage.configure(quick + ", quotas: {default: {cpu: 4100m}}}")
            await stage.until(lambda: scheduling.scheduler.rounds > 0, "it leads")
            await stage.until(lambda: bool(scheduling.settings().quotas), "the quota is read")
            before = scheduling.settings()
        await stage.configure(quick + ", quotas: {default: {cpu: many}}}")
        async with stage.scheduled() as scheduling:
            await stage.until(lambda: scheduling.scheduler.rounds > 0, "it leads")
            assert scheduling.settings() == before
            await stage.apply(ELASTIC_JOBS, "mnist", {"worker": big_role(2)})
            await stage.until(lambda: len(stage.running()) == 1, "the quota of before holds")
        await stage.client.delete(CONFIG_MAPS, "shoal-scheduler", namespace="default")
        async with stage.scheduled() as scheduling:
            await stage.until(lambda: scheduling.scheduler.rounds > 0, "it leads")
            assert scheduling.settings() == SchedulerSettings(), "there is no ConfigMap any more"


async def test_a_service_pod_that_fits_nowhere_is_told_so_once_and_moves_nobody() -> None:
    async with crowded("a") as stage, stage.scheduled() as scheduling:
        await stage.apply(ELASTIC_JOBS, "mnist", {"worker": big_role(1)})
        await stage.until(lambda: len(stage.running()) == 1, "it runs")
        stage.runs = False
        container = {"name": "web", "image": "i", "resources": {"requests": {"cpu": "1000"}}}
        body = {"metadata": {"name": "web", "namespace": "default"}, "spec": {"containers": [container]}}
        await stage.client.create(PODS, body)
        waits = {"status": {"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]}}
        await stage.client.patch(PODS, "web", Merge(waits), namespace="default", subresource="status")

        def told() -> list[dict[str, Any]]:
            return [each for each in stage.server.objects(EVENTS) if each["reason"] == "NoRoomMade"]

        await stage.until(lambda: bool(told()), "it is told")
        rounds = scheduling.scheduler.rounds
        await stage.until(lambda: scheduling.scheduler.rounds > rounds + 3, "more rounds")
        (event,) = told()
        assert event["regarding"]["name"] == "web"
        assert "1000 cores" in event["note"]
        assert event.get("series") is None
        assert stage.scheduling()["target"] == 1


async def test_a_service_that_waits_gets_its_room_and_the_job_comes_back() -> None:
    async with crowded("a") as stage, stage.scheduled():
        await stage.apply(ELASTIC_JOBS, "mnist", {"worker": big_role(1)})
        await stage.until(lambda: len(stage.running()) == 1, "it runs")
        stage.runs = False  # nobody starts the service's Pod meanwhile
        body = {
            "metadata": {"name": "web", "namespace": "default"},
            "spec": {"containers": [{"name": "web", "image": "i", "resources": {"requests": {"cpu": "8"}}}]},
            "status": {"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]},
        }
        await stage.client.create(PODS, body)
        status = {"status": body["status"]}
        await stage.client.patch(PODS, "web", Merge(status), namespace="default", subresource="status")
        await stage.until(lambda: stage.condition("Admitted") == ("False", "OnlineService"), "it is put back")
        await stage.until(lambda: not [name for name in stage.pods() if "-worker-" in name], "its workers are gone")
        await stage.client.delete(PODS, "web", namespace="default", grace_seconds=0)
        stage.runs = True
        await stage.until(lambda: len(stage.running()) == 1, "it is back")


async def test_a_policy_that_fails_is_said_by_the_job_which_keeps_what_it_has_until_the_policy_works_again() -> None:
    broken = Broken(fails=False)
    async with crowded("a") as stage, stage.scheduled(policies=lambda name: broken) as scheduling:
        await stage.apply(ELASTIC_JOBS, "mnist", {"worker": big_role(4)})
        await stage.until(lambda: len(stage.running()) == 2, "two workers fit")
        await stage.until(lambda: stage.condition("Degraded") == ("False", "AtTargetSize"), "nothing is wrong")
        workers, target = stage.running(), stage.scheduling()["target"]
        broken.fails = True
        await stage.host("b")
        failing = ("True", "SchedulerFailing")
        await stage.until(lambda: stage.condition("Degraded") == failing, "it says so")
        assert "the policy divides by zero" in stage.message("Degraded")
        rounds = scheduling.scheduler.rounds
        await stage.until(lambda: scheduling.scheduler.rounds > rounds + 3, "it is tried again")
        assert (stage.running(), stage.scheduling()["target"]) == (workers, target)
        assert stage.condition("Degraded") == failing
        broken.fails = False
        await stage.until(lambda: len(stage.running()) == 4, "it grows into the new host")
        await stage.until(lambda: stage.condition("Degraded") == ("False", "AtTargetSize"), "it says no more of it")


# The loop alone --------------------------------------------------------------------------------------------------


def a_scheduler(found: Policy, wake: Callable[[JobKey, float], None], **more: Any) -> Scheduler:
    job = JobFacts(key=JobKey("default", "mnist"), uid="u", each=Room(1000), trainer_role="worker", max=2)
    given: dict[str, Any] = {
        "hosts": lambda: [HostSeen(name="a", capacity=Amounts(8000, 2**30))],
        "quotas": list,
        "ledger": Ledger(),
        "sources": (lambda: [job],),
        "policy": lambda name: found,
        "settings": SchedulerSettings,
        "wake": wake,
        "metrics": OperatorMetrics(),
    }
    return Scheduler(**{**given, **more})


async def test_a_policy_that_fails_takes_nothing_away_and_is_told() -> None:
    woken: list[JobKey] = []
    broken = Broken()
    broken.fails = False
    scheduler = a_scheduler(broken, lambda key, after: woken.append(key))
    await scheduler.round()
    allowed = scheduler.of(JobKey("default", "mnist"), "u", None)
    assert allowed is not None
    assert allowed.is_admitted
    broken.fails = True
    woken.clear()
    for _ in range(3):
        await scheduler.round()
    assert scheduler.of(JobKey("default", "mnist"), "u", None) == allowed
    assert scheduler.trouble is not None
    assert "the policy divides by zero" in scheduler.trouble
    assert woken == [JobKey("default", "mnist")]
    broken.fails = False
    await scheduler.round()
    assert scheduler.trouble is None
    assert len(woken) >= 2


async def test_an_unknown_policy_fails_like_any_other() -> None:
    scheduler = a_scheduler(Broken(), lambda key, after: None, policy=policy, settings=_unknown)
    await scheduler.round()
    assert scheduler.trouble is not None
    assert "nobody" in scheduler.trouble


def _unknown() -> SchedulerSettings:
    return SchedulerSettings(policy="nobody")


async def test_a_place_in_the_queue_is_not_told_at_every_round() -> None:
    woken: list[JobKey] = []
    seconds = [0.0]
    job = JobFacts(key=JobKey("default", "big"), uid="u", each=Room(9000), trainer_role="worker")
    scheduler = a_scheduler(
        policy("cfs"), lambda key, after: woken.append(key), sources=(lambda: [job],), clock=lambda: seconds[0]
    )
    for _ in range(5):
        seconds[0] += 1.0
        await scheduler.round()
    assert len(woken) == 1


async def test_a_long_queue_costs_a_few_writes_a_second() -> None:
    """A job ends every 20 seconds, so that everybody behind it has another place."""
    woken: list[JobKey] = []
    seconds = [0.0]
    jobs = {number: a_small_job(number) for number in range(300)}
    ledger = Ledger()
    scheduler = a_scheduler(
        policy("cfs"),
        lambda key, after: woken.append(key),
        sources=(lambda: list(jobs.values()),),
        clock=lambda: seconds[0],
        ledger=ledger,
    )
    await scheduler.round()
    woken.clear()
    for step in range(24):
        seconds[0] += 5.0
        if step % 4 == 3:
            del jobs[min(number for number, job in jobs.items() if allowed(scheduler, job).is_admitted)]
        await scheduler.round()
    changed = 2 * 6  # those that end, and those that come for them
    assert len(woken) <= 120 * A_SECOND + changed
    first = min((allowed(scheduler, job).place or 999, job.key) for job in jobs.values())[1]
    assert woken.count(first) >= 3, "who is next is told so"


def a_small_job(number: int) -> JobFacts:
    key = JobKey("default", f"job-{number:03}")
    return JobFacts(key=key, uid=f"u-{number}", each=Room(900), trainer_role="worker", created=float(number))


def allowed(scheduler: Scheduler, job: JobFacts) -> Allowance:
    found = scheduler.of(job.key, job.uid, None)
    assert found is not None
    return found


async def test_a_failure_that_words_itself_differently_each_time_is_told_once() -> None:
    woken: list[JobKey] = []
    wording = iter(range(100))
    fails = [False]

    def decide(snapshot: Snapshot, now: float, settings: SchedulerSettings) -> Decisions:
        if fails[0]:
            raise ValueError(f"row {next(wording)} is wrong")
        return policy("cfs")(snapshot, now, settings)

    scheduler = a_scheduler(decide, lambda key, after: woken.append(key))
    await scheduler.round()
    woken.clear()
    fails[0] = True
    for _ in range(5):
        await scheduler.round()
    assert woken == [JobKey("default", "mnist")]
    assert scheduler.trouble is not None
    assert "row 0 is wrong" in scheduler.trouble


async def test_a_policy_that_does_not_come_to_an_end_is_told_and_its_answer_still_holds() -> None:
    woken: list[JobKey] = []
    goes_on = threading.Event()
    goes_on.set()

    def decide(snapshot: Snapshot, now: float, settings: SchedulerSettings) -> Decisions:
        goes_on.wait(60.0)
        return policy("cfs")(snapshot, now, settings)

    scheduler = a_scheduler(
        decide, lambda key, after: woken.append(key), settings=lambda: SchedulerSettings(round_timeout=0.05)
    )
    await scheduler.round()
    await scheduler.round()
    woken.clear()
    goes_on.clear()
    slow = asyncio.create_task(scheduler.round())
    while scheduler.trouble is None:
        await asyncio.sleep(0.01)
    assert "has not decided for 0.05 s" in scheduler.trouble
    assert woken == [JobKey("default", "mnist")]
    assert allowed(scheduler, JobFacts(key=JobKey("default", "mnist"), uid="u")).is_admitted
    goes_on.set()
    await slow
    assert scheduler.trouble is None
    assert woken == [JobKey("default", "mnist")] * 2, "that it is over is told, too"


async def test_who_makes_no_rounds_has_none_that_is_overdue() -> None:
    scheduler = a_scheduler(policy("cfs"), lambda key, after: None)
    assert scheduler.idle_seconds() is None
    scheduler.start()
    running = asyncio.create_task(scheduler.run())
    await scheduler.begun()
    assert scheduler.idle_seconds() is not None
    running.cancel()
    await asyncio.wait([running])
    assert scheduler.idle_seconds() is None, "another leads"


async def test_nothing_of_a_round_is_computed_on_the_event_loop() -> None:
    threads: set[int] = set()

    class Watched(Placement):
        def admits(self, host: HostSeen) -> bool:
            threads.add(threading.get_ident())
            return True

    def decide(snapshot: Snapshot, now: float, settings: SchedulerSettings) -> Decisions:
        threads.add(threading.get_ident())
        return policy("cfs")(snapshot, now, settings)

    job = replace(a_small_job(1), placement=Watched())
    scheduler = a_scheduler(decide, lambda key, after: None, sources=(lambda: [job],))
    await scheduler.round()
    assert scheduler.trouble is None
    assert len(threads) == 1
    assert threading.get_ident() not in threads


async def test_an_operator_whose_rounds_have_ended_ends() -> None:
    async with crowded("a") as stage, stage.scheduled(leads=False) as scheduling:
        forever = asyncio.Event()
        leading = asyncio.create_task(scheduling.lead(forever.wait))
        await stage.until(lambda: scheduling.scheduler.rounds > 0, "it leads")
        scheduling.scheduler.round = _no_round  # type: ignore[method-assign]
        scheduling.scheduler.happened()
        with pytest.raises(RuntimeError, match="no rounds any more"):
            await leading


async def _no_round() -> None:
    raise RuntimeError("no rounds any more")


async def test_a_new_reign_begins_with_nothing_held() -> None:
    scheduler = a_scheduler(policy("cfs"), lambda key, after: None)
    await scheduler.round()
    scheduler.start(5.0)
    assert scheduler.of(JobKey("default", "mnist"), "u", None) is None


def test_what_was_kept_holds_until_something_newer_makes_sense() -> None:
    kept: list[str] = []
    first = LiveSettings(parse=parse_yaml, policies=frozenset({"cfs"}), keep=kept.append)
    assert first.hear({"settings": "interval: 7s"}) is None
    assert first.hear({"settings": "interval: often"}) is not None
    assert kept == ["interval: 7s"]
    second = LiveSettings(parse=parse_yaml, policies=frozenset({"cfs"}), keep=kept.append)
    assert second.hear({"settings": "interval: often"}) is not None
    second.recall(kept[-1])
    assert second().interval == 7.0
    assert second.hear({"settings": "interval: 9s"}) is None
    second.recall(kept[0])
    assert second().interval == 9.0


@pytest.mark.parametrize("text", [None, "[", "interval: often"])
def test_what_cannot_be_recalled_leaves_the_defaults(text: str | None) -> None:
    live = LiveSettings(parse=parse_yaml, policies=frozenset({"cfs"}))
    live.recall(text)
    assert live() == SchedulerSettings()


@pytest.mark.parametrize(
    ("data", "why"),
    [
        pytest.param({"settings": "["}, "is no YAML", id="no-yaml"),
        pytest.param({"other": "x"}, "one key, `settings`", id="another-key"),
        pytest.param({"settings": "policy: nobody"}, "there is no 'nobody'", id="unknown-policy"),
        pytest.param({"settings": "polcy: cfs"}, "unknown field `polcy`", id="misspelt"),
        pytest.param({"settings": "cpu: {grow: 0.9, reclaim: 0.8}"}, "grow <= reclaim", id="contradiction"),
        pytest.param({"settings": "quotas: {a: {gpu: many}}"}, "quotas.a.gpu", id="no-quantity"),
        pytest.param({"settings": "headroomByHour: [{cpu: 1}]"}, "24 rooms", id="one-hour-only"),
        pytest.param({"settings": "3"}, "Expected `object`", id="no-object"),
    ],
)
def test_settings_that_make_no_sense_are_refused_whole(data: dict[str, str], why: str) -> None:
    live = LiveSettings(parse=parse_yaml, policies=frozenset({"cfs"}))
    assert live.hear({"settings": "interval: 7s"}) is None
    refused = live.hear(data)
    assert refused is not None
    assert why in refused
    assert live().interval == 7.0
    assert live.hear(None) is None
    assert live() == SchedulerSettings()


@given(
    took=st.floats(0.0, 600.0), share=st.floats(0.0, 1.0), spacing=st.floats(0.0, 10.0), interval=st.floats(0.1, 60.0)
)
def test_a_costly_round_is_followed_by_a_long_rest_and_never_by_more_than_an_interval_of_it(
    took: float, share: float, spacing: float, interval: float
) -> None:
    cpu = took * share
    found = rest(took, cpu, SchedulerSettings(spacing=spacing, interval=interval))
    assert found >= min(4 * cpu, interval)
    assert took + found >= spacing
    assert found <= max(spacing, interval)
