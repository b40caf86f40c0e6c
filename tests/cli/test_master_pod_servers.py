"""A job with parameter servers as Kubernetes runs it: a real operator and a real master on an API server that behaves,
and real agents for its Pods. The script trains by counting, without TensorFlow."""

import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
from tests.cli.test_master_pod import placed
from tests.operator.stage import PATIENCE, Stage, a_stage

from shoal.api.quantities import mebibytes
from shoal.cli.master_pod import run
from shoal.platforms.kubernetes.cache import Change, Removed
from shoal.platforms.kubernetes.informer import Informer
from shoal.platforms.kubernetes.kinds import ELASTIC_JOBS, JOB_RESOURCES, SCALE_PLANS
from shoal.platforms.kubernetes.objects import PODS, Pod

SCRIPT = Path(__file__).parents[1] / "master" / "train_ps.py"


def a_template(folder: Path) -> dict[str, Any]:
    """The script, with a folder of the host where it was."""
    container = {"name": "main", "image": "i", "command": [sys.executable, str(SCRIPT)]}
    container["volumeMounts"] = [{"name": "kept", "mountPath": str(folder)}]
    volume = {"name": "kept", "hostPath": {"path": str(folder)}}
    return {"spec": {"containers": [container], "volumes": [volume]}}


class Kubelet:
    """Runs the agents of members' Pods as children of the test, and says how they ended."""

    def __init__(self, stage: Stage, secrets: Path, port: int) -> None:
        self.stage, self.secrets, self.port = stage, secrets, port
        self.seen: list[str] = []
        """What became of Pods, in the order in which the API server told it."""
        self._children: dict[str, asyncio.subprocess.Process] = {}
        self._phases: dict[str, str] = {}
        self._out_of_memory: set[str] = set()

    async def run(self) -> None:
        pods: Informer[Pod] = Informer(self.stage.client, PODS, namespace="default")
        pods.on_change(self._changed)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(pods.run())
            tasks.create_task(self._keep(tasks))

    async def _keep(self, tasks: asyncio.TaskGroup) -> None:
        while True:
            for name, pod in self.stage.pods().items():
                is_new = name not in self._children and (pod.get("status") or {}).get("phase") == "Running"
                if "-master-" not in name and is_new and "deletionTimestamp" not in pod["metadata"]:
                    self._children[name] = await self._start(pod)
                    tasks.create_task(self._wait(name))
                if "deletionTimestamp" in pod["metadata"] and name in self._children:
                    self._signal(name, signal.SIGTERM)
            await asyncio.sleep(0.02)

    def _changed(self, change: Change[Pod]) -> None:
        meta, phase = change.object.metadata, change.object.status.phase
        if isinstance(change, Removed) or meta.deletion_timestamp is not None or phase in ("Succeeded", "Failed"):
            phase = "gone"
        if self._phases.get(meta.name) != phase:
            self._phases[meta.name] = phase
            self.seen.append(f"{meta.name} {phase}")

    async def _start(self, pod: dict[str, Any]) -> asyncio.subprocess.Process:
        (container,) = pod["spec"]["containers"]
        given = {each["name"]: each["value"] for each in container["env"] if "value" in each}
        here = {
            "SHOAL_AGENT_MASTER": f"wss://127.0.0.1:{self.port}",
            "SHOAL_AGENT_ADDRESS": "127.0.0.1",
            "SHOAL_TOKEN_FILE": str(self.secrets / "agent"),
            "SHOAL_AGENT_FINGERPRINT_FILE": str(self.secrets / "fingerprint"),
        }
        words = container["command"][container["command"].index("agent") :]
        return await asyncio.create_subprocess_exec(
            sys.executable, "-m", "shoal", *words, env={**os.environ, **given, **here}
        )

    async def _wait(self, name: str) -> None:
        code = await self._children[name].wait()
        reason = "OOMKilled" if name in self._out_of_memory else ""
        with suppress(Exception):
            await self.stage.end(name, code if code >= 0 else 128 - code, reason)

    def _signal(self, name: str, number: int) -> None:
        with suppress(ProcessLookupError):
            self._children[name].send_signal(number)

    def kill(self, name: str) -> None:
        self._signal(name, signal.SIGKILL)

    def run_out_of_memory(self, name: str) -> None:
        """As the kernel ends a container that is one group for it: with all that is in it."""
        self._out_of_memory.add(name)
        self.kill(name)

    async def follows(self, chief: str) -> None:
        """Until the master says that this node is the chief."""
        admin = {"Authorization": f"Bearer {(self.secrets / 'admin').read_text()}"}
        async with aiohttp.ClientSession(headers=admin) as http, asyncio.timeout(PATIENCE):
            is_chief = False
            while not is_chief:
                async with http.get(f"https://127.0.0.1:{self.port}/state", ssl=False) as answer:
                    is_chief = (await answer.json())["servers"]["chief"] == chief
                await self.stage.kubelet()
                await asyncio.sleep(0.02)

    def end(self) -> None:
        for name in self._children:
            self._signal(name, signal.SIGKILL)


@asynccontextmanager
async def a_cluster(
    folder: Path, *, memory: str | None = None, chief: bool = False
) -> AsyncIterator[tuple[Stage, Kubelet]]:
    """With a job `mnist` whose master runs, and whose servers have this memory. `chief`: it is a role of its own."""
    template = a_template(folder)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    async with a_stage() as stage, stage.operator():
        await stage.apply(
            ELASTIC_JOBS,
            "mnist",
            {
                "distributionStrategy": "parameter_server",
                "checkpoint": {"path": str(folder / "ckpt")},
                "parameterServer": {
                    "template": template,
                    "max": 4,
                    **({"resource": {"memory": memory}} if memory else {}),
                },
                "worker": {"template": template, "max": 4},
                **({"chief": {"template": template}} if chief else {}),
            },
        )
        await stage.until(lambda: "mnist-master-1" in stage.running("master"), "the master's Pod runs")
        place = placed(stage, folder, SHOAL_PORT=str(port), SHOAL_POD_IP="127.0.0.1")
        kubelet = Kubelet(stage, folder, port)
        tasks = [asyncio.create_task(each) for each in (run(place, stage.server.access()), kubelet.run())]
        try:
            yield stage, kubelet
        finally:
            kubelet.end()
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            asyncio.get_running_loop().remove_signal_handler(signal.SIGTERM)


def is_done(stage: Stage, plan: str) -> bool:
    found = stage.plan(plan)
    seen = (found.get("status") or {}).get("observedGeneration")
    return seen == found["metadata"]["generation"] and stage.condition("Completed", found)[0] == "True"


async def test_plans_and_losses_change_the_servers_of_a_job_that_trains_and_the_old_ones_go_last(
    tmp_path: Path,
) -> None:
    async with a_cluster(tmp_path, chief=True) as (stage, kubelet):
        await stage.until(lambda: trains_on(stage) == "version 1 trains", "one server at first")
        assert stage.running("ps") == ["mnist-ps-0"]
        await kubelet.follows("chief-0")
        kubelet.kill("mnist-chief-0")
        await kubelet.follows("chief-2")  # there are two workers: it is the third that trains
        assert (stage.running("chief"), trains_on(stage)) == (["mnist-chief-2"], "version 1 trains")
        assert stage.running("worker") == ["mnist-worker-0", "mnist-worker-1"]
        await stage.apply(SCALE_PLANS, "two", {"ownerJob": "mnist", "replicaResourceSpecs": {"ps": {"replicas": 2}}})
        await stage.until(lambda: trains_on(stage) == "version 2 trains", "both are used")
        update = {"selector": {"name": "mnist"}, "resource_updation": [{"name": "mnist-ps-0", "resource": {"cpu": 8}}]}
        await stage.apply(JOB_RESOURCES, "bigger", update)
        await stage.until(lambda: is_done(stage, "bigger"), "it is done")
        await stage.until(lambda: trains_on(stage) == "version 3 trains", "the new one is used")
        assert stage.running("ps") == ["mnist-ps-1", "mnist-ps-2"]
        assert kubelet.seen.index("mnist-ps-2 Running") < kubelet.seen.index("mnist-ps-0 gone")
        kubelet.kill("mnist-ps-1")
        await stage.until(lambda: trains_on(stage) == "version 4 trains", "all went back to the last checkpoint")
        assert stage.running("ps") == ["mnist-ps-2", "mnist-ps-3"]
        await stage.apply(SCALE_PLANS, "two", {"ownerJob": "mnist", "replicaResourceSpecs": {"ps": {"replicas": 1}}})
        await stage.until(lambda: is_done(stage, "two"), "one again")
        await stage.until(lambda: trains_on(stage) == "version 5 trains", "it holds all")
        (tmp_path / "ckpt").mkdir(exist_ok=True)
        (tmp_path / "ckpt" / "finish").touch()  # beside the directory of the job
        await stage.until(lambda: stage.condition("Succeeded")[0] == "True", "it ends well")


async def test_a_server_that_ran_out_of_memory_comes_back_with_more_and_all_go_back(
    tmp_path: Path,
) -> None:
    async with a_cluster(tmp_path, memory="1Gi") as (stage, kubelet):
        await stage.until(lambda: trains_on(stage) == "version 1 trains", "it trains")
        kubelet.run_out_of_memory("mnist-ps-0")
        await stage.until(lambda: trains_on(stage) == "version 2 trains", "all went back")
        assert stage.running("ps") == ["mnist-ps-1"]
        (container,) = stage.pods()["mnist-ps-1"]["spec"]["containers"]
        assert mebibytes(container["resources"]["limits"]["memory"]) >= 1536
        assert container["resources"]["requests"]["memory"] == container["resources"]["limits"]["memory"]
        (tmp_path / "ckpt").mkdir(exist_ok=True)
        (tmp_path / "ckpt" / "finish").touch()
        await stage.until(lambda: stage.condition("Succeeded")[0] == "True", "it ends well")


def trains_on(stage: Stage) -> str:
    return str(((stage.job().get("status") or {}).get("training") or {}).get("reason", ""))
