"""A job with parameter servers that sizes itself as Kubernetes runs it: a real operator and a real master on an API
server that behaves, real agents for its Pods. Only time is not: the master's clock runs ten times as fast, because
speeds are measured in half minutes."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from tests.cli.test_master_pod import placed
from tests.cli.test_master_pod_servers import Kubelet, a_template, trains_on
from tests.operator.stage import Stage as Cluster
from tests.operator.stage import a_stage

from shoal.api.jobspec import JobDefaults
from shoal.brain.algorithms.local import LocalOptimizer
from shoal.cli import master_pod
from shoal.cli.master_pod import Place
from shoal.core.facts import OomEvent
from shoal.core.job import JobSettings
from shoal.core.nodes import Role
from shoal.core.optimizing import Question, Stage
from shoal.core.plans import NodeGroupResource, NodeResource, ResourcePlan
from shoal.master import Master
from shoal.platforms.kubernetes.client import Client
from shoal.platforms.kubernetes.kinds import ELASTIC_JOBS, SCALE_PLANS
from shoal.platforms.kubernetes.platform import Reporter, optimizer_settings, read_job, training_of, understood
from shoal.platforms.kubernetes.store import SecretStore

FAST = 10
NOTHING = ResourcePlan(reason="nothing")


class FastClock:
    def __init__(self) -> None:
        self._began, self._zero = datetime.now(UTC), time.monotonic()

    def now(self) -> datetime:
        return self._began + FAST * timedelta(seconds=time.monotonic() - self._zero)


@dataclass
class Deciding:
    """What comes first and the probe are the real optimizer's. Then two servers are better, and then one of them is
    hot: what a fit of a script that only counts would say is anybody's guess."""

    stages: list[Stage] = field(default_factory=list)
    cores: float = 1.5

    def generate_opt_plan(self, stage: Stage, config: Question) -> ResourcePlan:
        if stage not in self.stages:
            self.stages.append(stage)
        match stage:
            case Stage.CREATE | Stage.WORKER_INITIAL:
                return LocalOptimizer().generate_opt_plan(stage, config)
            case Stage.PS_INITIAL:
                two = {"ps": NodeGroupResource(count=2)}
                return ResourcePlan(node_group_resources=two, reason="two share the load", algorithm="size_ps")
            case Stage.RUNNING:
                return self._relief(config)

    def _relief(self, config: Question) -> ResourcePlan:
        there = sorted((n.seat or 0, n.name, n.resource.cpu) for n in config.facts.nodes if n.role is Role.PS)
        if len(there) < 2 or any(cpu is not None for _, _, cpu in there):
            return NOTHING
        self.cores += 0.5  # the same is not asked for twice
        named = {there[0][1]: NodeResource(cpu=self.cores)}
        return ResourcePlan(node_resources=named, reason=f"{there[0][1]} is hot", algorithm="relieve_hot_ps")

    def generate_oom_recovery_plan(self, oom_nodes: Sequence[OomEvent], stage: Stage, config: Question) -> ResourcePlan:
        return NOTHING

    def generate_resource_plan_with_optimizer(self, config: Question) -> ResourcePlan:
        return NOTHING


@asynccontextmanager
async def a_master(cluster: Cluster, place: Place, optimizer: Deciding) -> AsyncIterator[Master]:
    """As `shoal master --kubernetes` runs it, but for its clock and its optimizer. Nothing is taken back: how fast a
    script counts that waits on a busy machine is chance."""
    clock = FastClock()
    async with Client(cluster.server.access()) as client:
        job = await read_job(client, place.namespace, place.job)
        spec = understood(job)
        scaler = master_pod._scaler(place, client, job, spec, JobDefaults())
        quick = replace(optimizer_settings(spec), min_samples=1, judge_samples=1, settle=30.0, cool_down=0.0, worse=2.0)
        usual = JobSettings()
        master = Master(
            spec,
            JobSettings(
                optimizer=quick,
                heartbeat=timedelta(seconds=1),
                sizing_interval=timedelta(seconds=0.2),
                suspect_after=FAST * usual.suspect_after,
                stopped_after=FAST * usual.stopped_after,
            ),
            scaler=scaler,
            keys=master_pod.tokens_of(place),
            listen=master_pod.listen_of(place),
            nodes=0,
            clock=clock,
            store=SecretStore(client, namespace=place.namespace, name=f"{place.job}-state", term=place.term),
            optimizer=optimizer,
        )
        scaler.serve(master)
        reporter = Reporter(
            client,
            namespace=place.namespace,
            name=place.job,
            uid=spec.uid,
            look=lambda: training_of(master.view(), place.term),
            now=clock.now,
        )
        await master.start()
        told = asyncio.Event()
        running = asyncio.create_task(master_pod.until_over(master, scaler.run(), reporter.run(), told=told))
        try:
            yield master
        finally:
            running.cancel()
            await asyncio.wait([running])


@pytest.mark.slow
async def test_a_job_that_gives_no_resources_walks_through_its_stages_and_moves_a_hot_server(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    optimizer, slowly = Deciding(), a_template(tmp_path)
    slowly["spec"]["containers"][0]["env"] = [{"name": "PACE", "value": "0.05"}]
    async with a_stage() as stage, stage.operator():
        await stage.apply(
            ELASTIC_JOBS,
            "mnist",
            {
                "distributionStrategy": "parameter_server",
                "checkpoint": {"path": str(tmp_path / "ckpt")},
                "parameterServer": {"template": slowly, "max": 4},
                "worker": {"template": slowly, "max": 3},
            },
        )
        await stage.until(lambda: "mnist-master-1" in stage.running("master"), "the master's Pod runs")
        place = placed(stage, tmp_path, SHOAL_PORT=str(port), SHOAL_POD_IP="127.0.0.1")
        kubelet = Kubelet(stage, tmp_path, port)
        nodes = asyncio.create_task(kubelet.run())
        try:
            async with a_master(stage, place, optimizer) as master:
                await _walks(stage, kubelet, master, optimizer)
        finally:
            kubelet.end()
            nodes.cancel()
            await asyncio.wait([nodes])


async def _walks(stage: Cluster, kubelet: Kubelet, master: Master, optimizer: Deciding) -> None:
    def asked() -> dict[str, int]:
        specs = stage.plan("mnist-auto")["spec"].get("replicaResourceSpecs", {})
        return {role: each["replicas"] for role, each in specs.items()}

    def moves() -> list[str]:
        return [each["name"] for each in stage.plan("mnist-auto")["spec"].get("migratePods", [])]

    await stage.until(lambda: trains_on(stage) == "version 1 trains", "it begins")
    assert asked() == {"worker": 2, "ps": 1}
    await stage.until(lambda: asked() == {"worker": 3, "ps": 1}, "the probe")
    await stage.until(lambda: asked() == {"worker": 3, "ps": 2}, "servers are sized")
    await stage.until(lambda: trains_on(stage) == "version 2 trains", "both are used")
    await stage.until(lambda: moves() == ["mnist-ps-0"], "the hot one is to have more")
    await stage.until(lambda: stage.running("ps") == ["mnist-ps-1", "mnist-ps-2"], "another has its place")
    await stage.until(lambda: "mnist-ps-0 gone" in kubelet.seen, "the watch has told of it")
    assert kubelet.seen.index("mnist-ps-2 Running") < kubelet.seen.index("mnist-ps-0 gone")
    await stage.until(lambda: trains_on(stage) == "version 3 trains", "all train on it")
    await stage.until(lambda: moves() == [], "it is done once")
    (container,) = stage.pods()["mnist-ps-2"]["spec"]["containers"]
    assert container["resources"]["requests"]["cpu"] in ("2", "2500m", "3"), "however often it took to be granted"
    assert optimizer.stages == [Stage.CREATE, Stage.WORKER_INITIAL, Stage.PS_INITIAL, Stage.RUNNING]
    await stage.apply(SCALE_PLANS, "three", {"ownerJob": "mnist", "replicaResourceSpecs": {"ps": {"replicas": 2}}})

    def pins() -> dict[str, str]:
        sizing = master.view().sizing
        return {} if sizing is None else dict(sizing.pins)

    await stage.until(lambda: pins() == {"ps": "ScalePlan three"}, "that role is its user's, the other is not")
