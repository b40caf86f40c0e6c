"""Both scalers with a real master, on an API server that behaves; the test is the operator and the kubelet."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from shoal.api.elasticjob import Role
from shoal.api.scaleplan import PodReport
from shoal.core.errors import BadInput, Superseded
from shoal.core.facts import OomEvent
from shoal.core.job import JobSettings, JobSpec
from shoal.core.job.values import SelfSizing
from shoal.core.nodes import Node
from shoal.core.nodes import Role as NodeRole
from shoal.core.optimizing import Question, ResourceOptimizer, Stage
from shoal.core.plans import NodeGroupResource, NodeResource, ResourcePlan, ScalePlan
from shoal.core.view import JobView
from shoal.master import Master
from shoal.platforms.kubernetes.backoff import Backoff
from shoal.platforms.kubernetes.client import Client, Merge
from shoal.platforms.kubernetes.errors import Permission
from shoal.platforms.kubernetes.fake import FakeApiServer
from shoal.platforms.kubernetes.informer import InformerSettings
from shoal.platforms.kubernetes.kinds import ELASTIC_JOBS, SCALE_PLANS
from shoal.platforms.kubernetes.objects import PODS, Json, Pod
from shoal.platforms.kubernetes.platform import still_understood
from shoal.platforms.kubernetes.scaler import ElasticJobScaler, PodScaler, ScalerSettings
from shoal.stores import MemoryState, MemoryStore
from shoal.wire.client import connect
from shoal.wire.messages import PROTOCOL, Hello, Prepare, Ready
from shoal.wire.tokens import JobKeys, Purpose

PATIENCE = 30
SETTINGS = ScalerSettings(backoff=Backoff(first_seconds=0.01), informer=InformerSettings(backoff=Backoff()))
KEYS = JobKeys.new("j.1")
NOW = datetime(2026, 1, 1, tzinfo=UTC)


class Operator:
    """What the test does in its place."""

    def __init__(self, server: FakeApiServer, client: Client) -> None:
        self.server, self.client = server, client
        self.pods: dict[int, Json] = {}
        self.uid = ""

    async def begin(self) -> None:
        self.server.serve(ELASTIC_JOBS, status=True)
        self.server.serve(SCALE_PLANS, status=True)
        await self.make()

    async def make(self) -> None:
        """The job and its plan."""
        template = {"spec": {"containers": [{"name": "main", "image": "i", "command": ["true"]}]}}
        spec: Json = {"worker": {"template": template, "max": 8}}
        meta: Json = {"name": "j", "namespace": "default"}
        job = await self.client.create(ELASTIC_JOBS, {"metadata": meta, "spec": spec})
        self.uid = job["metadata"]["uid"]
        owner = {"apiVersion": job["apiVersion"], "kind": job["kind"], "name": "j", "uid": self.uid, "controller": True}
        await self.client.create(
            SCALE_PLANS, {"metadata": {**meta, "name": "j-auto", "ownerReferences": [owner]}, "spec": {}}
        )

    async def make_another(self) -> None:
        """Somebody deletes the job and applies one of the same name."""
        await self.client.delete(ELASTIC_JOBS, "j", namespace="default")
        await self.make()

    async def change(self, *, spec: Json | None = None, **worker: Any) -> None:
        patch = Merge({"spec": {**(spec or {}), "worker": worker}})
        await self.client.patch(ELASTIC_JOBS, "j", patch, namespace="default")

    async def grant(self, count: int, *victims: str) -> None:
        grant = {"generation": 1, "counts": [{"role": "worker", "count": count}], "victims": list(victims)}
        patch = Merge({"status": {"grant": grant}})
        await self.client.patch(ELASTIC_JOBS, "j", patch, namespace="default", subresource="status")

    async def accept(self, *asks: Json) -> None:
        """Stamp these asks, and no others."""
        stamps = [{"generation": 1, "at": f"2026-01-01T00:00:0{n}Z", **ask} for n, ask in enumerate(asks)]
        patch = Merge({"status": {"acceptedAt": stamps}})
        await self.client.patch(ELASTIC_JOBS, "j", patch, namespace="default", subresource="status")

    async def report(self, number: int, phase: str = "Running", **words: Any) -> None:
        name = f"j-worker-{number}"
        known = self.pods.get(number, {"rank": number})
        self.pods[number] = {**known, "name": name, "role": "worker", "id": number, "phase": phase, **words}
        await self.tell()

    async def tell(self) -> None:
        patch = Merge({"status": {"pods": list(self.pods.values())}})
        await self.client.patch(SCALE_PLANS, "j-auto", patch, namespace="default", subresource="status")

    async def moved(self, name: str, outcome: str) -> None:
        """Say what became of a `migratePods` entry of the plan as it is."""
        plan = await self.client.get(SCALE_PLANS, "j-auto", namespace="default")
        generation = plan["metadata"]["generation"]
        done = {"uid": plan["metadata"]["uid"], "generation": generation, "entry": name, "outcome": outcome}
        patch = Merge({"status": {"observedGeneration": generation, "done": [done]}})
        await self.client.patch(SCALE_PLANS, "j-auto", patch, namespace="default", subresource="status")

    async def ordered(self, holds: Callable[[Json], bool]) -> Json:
        """The plan's spec, as soon as it is so."""
        async with asyncio.timeout(PATIENCE):
            while True:
                plan = await self.client.get(SCALE_PLANS, "j-auto", namespace="default")
                if holds(plan["spec"]):
                    spec: Json = plan["spec"]
                    return spec
                await asyncio.sleep(0.01)


@pytest.fixture
async def operator() -> AsyncIterator[Operator]:
    async with FakeApiServer() as server, Client(server.access()) as client:
        operator = Operator(server, client)
        await operator.begin()
        yield operator


@asynccontextmanager
async def a_master(
    scaler: ElasticJobScaler | PodScaler,
    state: MemoryState | None = None,
    *,
    fills: bool = False,
    optimizer: ResourceOptimizer | None = None,
) -> AsyncIterator[Master]:
    master = Master(
        JobSpec(
            name="j",
            uid=KEYS.uid,
            min_nodes=1,
            max_nodes=8,
            command=("true",),
            platform_grows=True,
            fills_grant=fills,
            sizing=None if optimizer is None else SelfSizing(),
        ),
        JobSettings(sizing_interval=timedelta(seconds=0.05)),
        optimizer=optimizer,
        scaler=scaler,
        keys=KEYS,
        nodes=0,
        store=None if state is None else MemoryStore(state),
    )
    scaler.serve(master)
    await master.start()
    tasks = [asyncio.create_task(master.run()), asyncio.create_task(scaler.run())]
    try:
        yield master
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


def declaring(operator: Operator) -> ElasticJobScaler:
    return ElasticJobScaler(
        operator.client,
        namespace="default",
        job="j",
        uid=operator.uid,
        understand=still_understood,
        settings=SETTINGS,
    )


async def until(master: Master, holds: Callable[[JobView], bool]) -> JobView:
    async with asyncio.timeout(PATIENCE):
        while not holds(view := master.view()):
            await asyncio.sleep(0.01)
    return view


def nodes_of(view: JobView) -> dict[str, str]:
    return {node.node: node.status for node in view.nodes}


async def test_granted_and_reported_pods_become_the_masters_nodes(operator: Operator) -> None:
    async with a_master(declaring(operator)) as master:
        await operator.grant(2)
        await operator.report(0)
        await operator.report(1, "Pending")
        view = await until(master, lambda view: view.target == 2 and len(view.nodes) == 2)
        assert nodes_of(view) == {"worker-0": "pending", "worker-1": "pending"}


async def test_a_failed_pod_is_ordered_again_under_a_new_name_until_it_is_there(operator: Operator) -> None:
    async with a_master(declaring(operator)):
        await operator.grant(2)
        await operator.report(0)
        await operator.report(1, resource={"memory": "1000Mi"})
        await operator.report(1, "Failed", exitCode=137, oomKilled=True)
        spec = await operator.ordered(lambda spec: bool(spec.get("createPods")))
        (entry,) = spec["createPods"]
        assert (entry["name"], entry["id"], entry["rankIndex"]) == ("j-worker-2", 2, 1)
        assert (entry["replaces"], entry["resource"]) == ("j-worker-1", {"memory": "2048Mi"})
        del operator.pods[1]
        await operator.report(2, "Pending", rank=1, replaces="j-worker-1")
        await operator.ordered(lambda spec: not spec.get("createPods"))


# A job that sizes itself -------------------------------------------------------------------------------------------


@dataclass
class Wishes:
    """An optimizer that wants its plans, one after the other, and then nothing."""

    plans: list[ResourcePlan]

    def generate_opt_plan(self, stage: Stage, config: Question) -> ResourcePlan:
        if stage is Stage.CREATE and self.plans:
            return self.plans.pop(0)
        return ResourcePlan(reason=f"nothing in stage {stage}")

    def generate_oom_recovery_plan(self, oom_nodes: Sequence[OomEvent], stage: Stage, config: Question) -> ResourcePlan:
        return ResourcePlan(reason="nothing")

    def generate_resource_plan_with_optimizer(self, config: Question) -> ResourcePlan:
        return ResourcePlan(reason="nothing")


def three_workers() -> ResourcePlan:
    group = NodeGroupResource(count=3, node_resource=NodeResource(cpu=1.5, memory=2048))
    return ResourcePlan(node_group_resources={"worker": group}, reason="three are best", algorithm="cold_start")


async def test_what_the_optimizer_asks_for_stands_in_the_plan_and_the_next_master_stands_by_it(
    operator: Operator,
) -> None:
    state = MemoryState()
    wanted = {"worker": {"replicas": 3, "resource": {"cpu": "1500m", "memory": "2048Mi"}}}
    async with a_master(declaring(operator), state, optimizer=Wishes([three_workers()])):
        spec = await operator.ordered(lambda spec: bool(spec.get("replicaResourceSpecs")))
        assert (spec["replicaResourceSpecs"], spec["reason"]) == (wanted, "three are best")
        await operator.grant(2)
        await operator.report(0)
        await operator.report(1)
        await operator.report(1, "Failed", exitCode=137)
        spec = await operator.ordered(lambda spec: bool(spec.get("createPods")))
        assert spec["replicaResourceSpecs"] == wanted
    async with a_master(declaring(operator), state, optimizer=Wishes([])) as master:
        await until(master, lambda view: view.target == 2)
        await operator.report(0, host="elsewhere")
        assert (await operator.ordered(lambda spec: True))["replicaResourceSpecs"] == wanted
        sizing = master.view().sizing
        assert sizing is not None
        assert sizing.stage == "worker_initial"


async def test_a_manual_ask_that_the_operator_has_accepted_takes_the_count_from_the_optimizer(
    operator: Operator,
) -> None:
    async with a_master(declaring(operator), optimizer=Wishes([three_workers()])) as master:
        await operator.ordered(lambda spec: bool(spec.get("replicaResourceSpecs")))
        await operator.accept({"ask": "spec", "optimizeMode": "single-job"})
        assert await until(master, lambda view: view.sizing is not None and not view.sizing.pins)
        await operator.accept(
            {"ask": "spec", "optimizeMode": "single-job"},
            {"ask": "ScalePlan/more", "counts": [{"role": "worker", "count": 4}]},
            {"ask": "ScalePlan/other", "counts": [{"role": "evaluator", "count": 1}]},
        )
        view = await until(master, lambda view: view.sizing is not None and bool(view.sizing.pins))
        assert view.sizing is not None
        assert view.sizing.pins == {"worker": "ScalePlan more"}
        await operator.accept({"ask": "spec", "optimizeMode": "single-job"})
        await until(master, lambda view: view.sizing is not None and not view.sizing.pins)


async def test_a_manual_ask_takes_what_each_worker_has_from_the_optimizer_and_gives_it_back(operator: Operator) -> None:
    mode = {"ask": "spec", "optimizeMode": "single-job"}

    def given(**resource: str) -> Json:
        return {"resources": [{"role": "worker", "resource": resource}]}

    async with a_master(declaring(operator), optimizer=Wishes([three_workers()])) as master:
        workers = (await operator.ordered(lambda spec: bool(spec.get("replicaResourceSpecs"))))["replicaResourceSpecs"]
        await operator.accept(
            mode, {"ask": "ScalePlan/old", **given(cpu="8")}, {"ask": "JobResource/new", **given(memory="2Gi")}
        )
        spec = await operator.ordered(lambda spec: spec["replicaResourceSpecs"] != workers)
        assert spec["replicaResourceSpecs"] == {"worker": {"replicas": 3, "resource": {"cpu": "1500m"}}}
        sizing = master.view().sizing
        assert sizing is not None
        assert sizing.given == {"worker": "JobResource new"}, "of those that say something the last that changed"
        assert not sizing.pins, "how many there are is still the optimizer's to say"
        await operator.accept({"ask": "ScalePlan/old", **given(cpu="8")}, mode)
        await until(master, lambda view: view.sizing is not None and not view.sizing.given)


def moved(cpu: float) -> ScalePlan:
    node = Node(
        role=NodeRole.WORKER, number=0, seat=0, since=NOW, reason="", resource=NodeResource(cpu=cpu, memory=1024)
    )
    return ScalePlan(migrate_nodes=(node,), reason="it is hot")


async def test_a_node_that_is_to_have_more_is_ordered_to_be_replaced_until_it_is_or_cannot_be(
    operator: Operator,
) -> None:
    def orders(spec: Json) -> list[Json]:
        found: list[Json] = spec.get("migratePods", [])
        return found

    def orderly() -> ElasticJobScaler:
        return ElasticJobScaler(operator.client, namespace="default", job="j", uid=operator.uid, settings=SETTINGS)

    async with a_master(scaler := orderly()) as master:
        await operator.grant(1)
        await operator.report(0, resource={"cpu": "4", "memory": "1Gi"})
        await until(master, lambda view: len(view.nodes) == 1)
        await scaler.scale(moved(8.0))
        spec = await operator.ordered(lambda spec: bool(orders(spec)))
        assert orders(spec) == [{"name": "j-worker-0", "resource": {"cpu": "8"}}]
        assert "replicaResourceSpecs" not in spec, "what is asked for of the roles is not touched by it"
    async with a_master(scaler := orderly()):
        await operator.report(0, host="elsewhere")
        assert orders(await operator.ordered(lambda _: True)), "another master stands by it"
        await operator.moved("j-worker-0", "failed: it did not run within 900 s")
        await operator.ordered(lambda spec: not orders(spec))
        await scaler.scale(moved(8.0))
        await operator.ordered(lambda spec: bool(orders(spec)))
        await operator.moved("j-worker-0", "removing: j-worker-1 runs")
        await operator.report(0, "Deleted")
        await operator.ordered(lambda spec: not orders(spec))


async def test_a_pod_that_is_no_longer_reported_is_gone(operator: Operator) -> None:
    async with a_master(declaring(operator)) as master:
        await operator.grant(1)
        await operator.report(0)
        await until(master, lambda view: len(view.nodes) == 1)
        operator.pods.clear()
        await operator.tell()
        spec = await operator.ordered(lambda spec: bool(spec.get("createPods")))
        assert spec["createPods"][0]["name"] == "j-worker-1"


async def test_a_lower_grant_drains_the_named_and_orders_their_removal(operator: Operator) -> None:
    async with a_master(declaring(operator)) as master:
        await operator.grant(2)
        await operator.report(0)
        await operator.report(1)
        await until(master, lambda view: len(view.nodes) == 2)
        await operator.grant(1, "j-worker-0")
        spec = await operator.ordered(lambda spec: bool(spec.get("removePods")))
        assert spec["removePods"] == [{"name": "j-worker-0"}]
        await operator.report(0, "Deleted")
        await operator.ordered(lambda spec: not spec.get("removePods"))


async def test_the_next_master_stands_by_what_the_one_before_had_ordered(operator: Operator) -> None:
    state = MemoryState()
    async with a_master(declaring(operator), state):
        await operator.grant(2)
        await operator.report(0)
        await operator.report(1)
        await operator.report(1, "Failed", exitCode=137)
        before = await operator.ordered(lambda spec: bool(spec.get("createPods")))
    async with a_master(declaring(operator), state) as master:
        await until(master, lambda view: view.target == 2)
        await operator.report(0, host="elsewhere")
        after = await operator.ordered(lambda spec: True)
        assert after["createPods"] == before["createPods"]


async def test_nothing_is_written_while_nothing_changes(operator: Operator) -> None:
    async with a_master(declaring(operator)) as master:
        await operator.grant(1)
        await operator.report(0)
        await until(master, lambda view: len(view.nodes) == 1)
        for number in range(20):
            await operator.report(0, reason=f"again {number}")
        assert [call for call in operator.server.calls if call[0] == "apply"] == []


async def test_a_master_orders_nothing_of_another_job_of_the_same_name(operator: Operator) -> None:
    late = declaring(operator)
    async with a_master(declaring(operator)) as master:
        late.serve(master)
        await operator.grant(1)
        await operator.report(0)
        await until(master, lambda view: len(view.nodes) == 1)
        await operator.make_another()
        await operator.grant(3)
        operator.pods.clear()
        await operator.tell()
        with pytest.raises(Superseded, match="another one now"):
            async with asyncio.timeout(PATIENCE):
                await late.run()
        assert master.view().target == 1
        assert (await operator.ordered(lambda spec: True)) == {}


async def test_a_plan_that_was_lost_and_made_again_is_told_the_orders_again(operator: Operator) -> None:
    async with a_master(declaring(operator)):
        await operator.grant(1)
        await operator.report(0)
        await operator.report(0, "Failed", exitCode=137)
        before = await operator.ordered(lambda spec: bool(spec.get("createPods")))
        lost = await operator.client.get(SCALE_PLANS, "j-auto", namespace="default")
        await operator.client.delete(SCALE_PLANS, "j-auto", namespace="default")
        meta = {name: lost["metadata"][name] for name in ("name", "namespace", "ownerReferences")}
        await operator.client.create(SCALE_PLANS, {"metadata": meta, "spec": {}})
        again = await operator.ordered(lambda spec: bool(spec.get("createPods")))
        assert again["createPods"] == before["createPods"]


async def test_what_is_changed_in_a_jobs_spec_reaches_its_master_and_what_is_wrong_does_not(operator: Operator) -> None:
    async with a_master(declaring(operator)) as master:
        await operator.change(min=2, max=6)
        await until(master, lambda view: (view.min_nodes, view.max_nodes) == (2, 6))
        await operator.change(min=9)
        await operator.grant(3)
        view = await until(master, lambda view: view.target == 3)
        assert (view.min_nodes, view.max_nodes) == (2, 6)
        await operator.change(min=3)
        await until(master, lambda view: view.min_nodes == 3)


@pytest.mark.parametrize(("spec", "batch"), [({}, 20), ({"globalBatch": 12}, 12)], ids=["as-many-as-max", "as-asked"])
async def test_all_agents_are_told_of_the_same_batch_whatever_is_granted(
    operator: Operator, spec: dict[str, int], batch: int
) -> None:
    async with a_master(declaring(operator)) as master:
        await operator.change(max=20, spec=spec)
        await operator.grant(1)
        await operator.report(0)
        await until(master, lambda view: view.max_nodes == 20 and len(view.nodes) == 1)
        hello = a_hello("worker-0")
        for granted in (1, 21):  # one more than the most: a replacement starts
            await operator.grant(granted)
            await until(master, lambda view, granted=granted: view.target == granted)  # type: ignore[misc]
            connection = await connect(master.url, token=KEYS.token(Purpose.AGENT), hello=hello)
            assert connection.welcome.max_workers == batch
            await connection.close()


async def test_members_may_have_different_numbers_of_processes(operator: Operator) -> None:
    async with a_master(declaring(operator)) as master:
        await operator.grant(2)
        await operator.report(0)
        await operator.report(1)
        await until(master, lambda view: len(view.nodes) == 2)
        agents = [
            await connect(master.url, token=KEYS.token(Purpose.AGENT), hello=a_hello(node, slots=slots))
            for node, slots in (("worker-0", 1), ("worker-1", 2))
        ]
        for agent, steps in zip(agents, ((None,), (None, None)), strict=True):
            await agent.send(Ready(incarnation=1, steps=steps, sdk=True))
        prepared = [await anext(message async for message in agent if isinstance(message, Prepare)) for agent in agents]
        assert {message.world.size for message in prepared} == {3}
        for agent in agents:
            await agent.close()


def a_hello(node: str, *, slots: int = 1) -> Hello:
    return Hello(
        protocol=PROTOCOL,
        job="j",
        node=node,
        incarnation=1,
        host="h",
        address="127.0.0.1",
        slots=slots,
        pid=1,
        generation=0,
        sdk=True,
    )


# PodScaler ---------------------------------------------------------------------------------------------------------


def manifest(job: Json, node: Node) -> Json:
    labels = {"job": "j", "id": str(node.number), "rank": str(node.seat)}
    owner = {"apiVersion": "v1", "kind": "ElasticJob", "name": "j", "uid": job["metadata"]["uid"], "controller": True}
    meta = {"name": f"j-{node.id}", "namespace": "default", "labels": labels, "ownerReferences": [owner]}
    return {
        "metadata": meta,
        "spec": {"containers": [{"name": "main", "image": "i"}], "restartPolicy": "Never"},
    }


def report(pod: Pod) -> PodReport:
    number, rank = int(pod.metadata.labels["id"]), int(pod.metadata.labels["rank"])
    phase = "Deleted" if pod.metadata.deletion_timestamp else pod.status.phase or "Pending"
    return PodReport(name=pod.metadata.name, role="worker", id=number, rank=rank, phase=phase)


def acting(operator: Operator, **more: Any) -> PodScaler:
    return PodScaler(
        operator.client,
        namespace="default",
        job="j",
        uid=operator.uid,
        labels="job=j",
        manifest=manifest,
        report=report,
        settings=SETTINGS,
        **more,
    )


async def pods_are(operator: Operator, *names: str) -> None:
    async with asyncio.timeout(PATIENCE):
        while True:
            found = await operator.client.list(PODS, namespace="default")
            live = [p for p in found.items if not p.metadata.deletion_timestamp and p.status.phase != "Failed"]
            if sorted(pod.metadata.name for pod in live) == sorted(names):
                return
            await asyncio.sleep(0.01)


async def test_pods_are_created_up_to_the_grant_and_replaced_when_they_fail(operator: Operator) -> None:
    async with a_master(acting(operator), fills=True) as master:
        await operator.grant(2)
        await pods_are(operator, "j-worker-0", "j-worker-1")
        await operator.grant(3)
        await pods_are(operator, "j-worker-0", "j-worker-1", "j-worker-2")
        operator.server.finish("default", "j-worker-1", phase="Failed")
        await pods_are(operator, "j-worker-0", "j-worker-2", "j-worker-3")
        assert nodes_of(master.view())["worker-1"] == "failed"


async def test_a_pod_that_somebody_deletes_is_replaced(operator: Operator) -> None:
    async with a_master(acting(operator), fills=True):
        await operator.grant(1)
        await pods_are(operator, "j-worker-0")
        await operator.client.delete(PODS, "j-worker-0", namespace="default", grace_seconds=0)
        await pods_are(operator, "j-worker-1")


async def test_what_the_server_refuses_is_tried_again_until_it_is_so() -> None:
    allowed = asyncio.Event()

    def allow(_: str, permission: Permission) -> bool:
        return permission.resource != "pods" or permission.verb != "create" or allowed.is_set()

    async with FakeApiServer(allow=allow) as server, Client(server.access()) as client:
        operator = Operator(server, client)
        await operator.begin()
        await operator.grant(2)
        async with a_master(acting(operator), fills=True):
            async with asyncio.timeout(PATIENCE):
                while server.calls.count(("create", "pods")) < 6:
                    await asyncio.sleep(0.01)
            allowed.set()
            await pods_are(operator, "j-worker-0", "j-worker-1")


async def test_a_node_is_removed_by_its_uid(operator: Operator) -> None:
    async with a_master(acting(operator), fills=True):
        await operator.grant(2)
        await pods_are(operator, "j-worker-0", "j-worker-1")
        await operator.grant(1, "j-worker-0")
        await pods_are(operator, "j-worker-1")


class Together:
    """A client whose deletions are answered when so many are under way."""

    def __init__(self, client: Client, count: int) -> None:
        self._client = client
        self._barrier = asyncio.Barrier(count)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    async def delete(self, *what: Any, **more: Any) -> Any:
        await self._barrier.wait()
        return await self._client.delete(*what, **more)


async def test_nodes_are_removed_several_at_a_time(operator: Operator) -> None:
    operator.client = Together(operator.client, 2)  # type: ignore[assignment]
    async with a_master(acting(operator), fills=True):
        await operator.grant(3)
        await pods_are(operator, "j-worker-0", "j-worker-1", "j-worker-2")
        await operator.grant(1, "j-worker-0", "j-worker-1")
        await pods_are(operator, "j-worker-2")


async def test_a_master_that_makes_its_pods_asks_for_as_many_as_nobody_else_has_said(operator: Operator) -> None:
    scaler = acting(operator, asks={Role.WORKER: 2})
    async with a_master(scaler, fills=True):
        spec = await operator.ordered(lambda spec: bool(spec.get("replicaResourceSpecs")))
        assert spec == {"replicaResourceSpecs": {"worker": {"replicas": 2}}}


async def test_the_next_master_makes_what_the_one_before_had_decided_on_and_no_more(operator: Operator) -> None:
    state = MemoryState()
    async with a_master(acting(operator), state, fills=True):
        await operator.grant(2)
        await pods_are(operator, "j-worker-0", "j-worker-1")
    operator.server.finish("default", "j-worker-0", phase="Failed")
    async with a_master(acting(operator), state, fills=True):
        await pods_are(operator, "j-worker-1", "j-worker-2")


async def test_a_master_follows_one_that_left_the_pods_to_the_operator(operator: Operator) -> None:
    state = MemoryState()
    async with a_master(declaring(operator), state) as master:
        await operator.grant(1)
        await operator.report(0)
        await until(master, lambda view: len(view.nodes) == 1)
        await master.recorded()
    job = await operator.client.get(ELASTIC_JOBS, "j", namespace="default")
    await operator.client.create(
        PODS, manifest(job, Node(role=NodeRole.WORKER, number=0, seat=0, since=NOW, reason=""))
    )
    async with a_master(acting(operator), state, fills=True):
        await operator.grant(2)
        await pods_are(operator, "j-worker-0", "j-worker-1")


async def test_a_pod_of_somebody_else_is_left_alone_and_the_name_is_waited_for(operator: Operator) -> None:
    theirs: Json = {
        "metadata": {"name": "j-worker-0", "namespace": "default"},
        "spec": {"containers": [{"name": "main", "image": "i"}]},
    }
    await operator.client.create(PODS, theirs)
    async with a_master(acting(operator), fills=True) as master:
        await operator.grant(1)
        async with asyncio.timeout(PATIENCE):
            while operator.server.calls.count(("create", "pods")) < 4:
                await asyncio.sleep(0.01)
        assert nodes_of(master.view()) == {"worker-0": "pending"}
        await operator.client.delete(PODS, "j-worker-0", namespace="default", grace_seconds=0)
        async with asyncio.timeout(PATIENCE):
            while not (await operator.client.list(PODS, namespace="default")).items[:1]:
                await asyncio.sleep(0.01)
        assert (await operator.client.get(PODS, "j-worker-0", namespace="default")).metadata.labels["job"] == "j"


async def test_how_many_there_are_is_not_the_masters_to_say(operator: Operator) -> None:
    async with a_master(acting(operator), fills=True) as master:
        await operator.grant(1)
        await until(master, lambda view: view.target == 1)
        with pytest.raises(BadInput, match="kubectl scale"):
            master.scale(3, who="somebody")
