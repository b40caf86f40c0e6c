"""News of Pods that start waits for a server that is slow; nothing else does."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tests.operator.builders import SETTINGS, a_role
from tests.operator.stage import Stage, a_stage

from shoal.core.pods import PodPhase
from shoal.operator.pacing import Pace
from shoal.operator.snapshot import Key
from shoal.platforms.kubernetes.client import Merge
from shoal.platforms.kubernetes.kinds import ELASTIC_JOBS, SCALE_PLANS
from shoal.platforms.kubernetes.objects import PODS

NOW = datetime(2026, 1, 1, tzinfo=UTC)
MNIST = Key("default", "mnist")
LONGEST = timedelta(seconds=15)
SECONDS = st.floats(-1e4, 1e4).map(lambda each: timedelta(seconds=each))


@given(took=SECONDS, later=SECONDS)
def test_nobody_waits_longer_than_many_times_what_the_last_write_took_nor_than_a_quarter_of_a_minute(
    took: timedelta, later: timedelta
) -> None:
    """Clocks may jump."""
    pace = Pace(20.0)
    pace.wrote("a", NOW, NOW + took)
    left = pace.left("a", NOW + took + later)
    assert left is None or timedelta(0) < left <= LONGEST
    if later >= min(20 * max(took, timedelta(0)), LONGEST):
        assert left is None
    assert pace.left("another", NOW) is None


class SlowServer:
    """Every status that is written takes a second of a clock that stands still otherwise."""

    def __init__(self) -> None:
        self.now = NOW

    async def write_status(self, write: Callable[..., Any], *args: Any) -> Any:
        self.now += timedelta(seconds=1)
        return await write(*args)


async def _run(stage: Stage, name: str) -> None:
    status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    await stage.client.patch(PODS, name, Merge({"status": status}), namespace="default", subresource="status")


async def _is_seen(operator: Any, stage: Stage, name: str) -> bool:
    """Whether the operator knows that it runs."""
    pods = await operator.pods("default", stage.job()["metadata"]["uid"], {})
    return any(pod.name == name and pod.phase is PodPhase.RUNNING for pod in pods)


def _running(stage: Stage) -> int:
    roles = stage.job()["status"].get("roles") or ()
    return next((each.get("running") or 0 for each in roles if each["role"] == "worker"), 0)


async def test_a_slow_server_is_told_of_the_first_start_and_of_the_last_and_in_between_now_and_then() -> None:
    slow = SlowServer()
    async with a_stage(replace(SETTINGS, news_rest=20.0)) as stage:
        stage.runs = False
        async with stage.operator(clock=lambda: slow.now, write_status=slow.write_status) as operator:
            look = operator.reconciler.reconcile  # type: ignore[attr-defined]
            await stage.apply(ELASTIC_JOBS, "mnist", {"worker": a_role(replicas=3)})
            await stage.until(lambda: len(stage.pods()) == 4, "its Pods are there")

            await _run(stage, "mnist-worker-0")
            await stage.until(lambda: _running(stage) == 1, "the first is told of at once: Ready says something else")

            await _run(stage, "mnist-worker-1")
            while not await _is_seen(operator, stage, "mnist-worker-1"):
                await asyncio.sleep(0.005)
            left = await look(MNIST)
            assert left is not None
            assert _running(stage) == 1
            slow.now += LONGEST
            await look(MNIST)
            assert _running(stage) == 2

            await _run(stage, "mnist-worker-2")
            await stage.until(lambda: stage.condition("Ready")[0] == "True", "the last is told of at once")
            assert _running(stage) == 3


def _announced(stage: Stage) -> set[str]:
    """Whom the master hears of."""
    return {pod["name"] for pod in (stage.plan("mnist-auto").get("status") or {}).get("pods") or () if pod.get("uid")}


async def test_that_a_pod_exists_is_told_to_the_master_at_once_however_slow_the_server_is() -> None:
    """Until it is, the master lets that Pod's agent wait."""
    slow = SlowServer()
    async with a_stage(replace(SETTINGS, news_rest=20.0)) as stage:
        stage.runs = False
        async with stage.operator(clock=lambda: slow.now, write_status=slow.write_status) as operator:
            look = operator.reconciler.reconcile  # type: ignore[attr-defined]
            await stage.apply(ELASTIC_JOBS, "mnist", {"worker": a_role(replicas=1)})
            await stage.until(lambda: "mnist-worker-0" in stage.pods(), "its first Pod is there")
            slow.now += LONGEST
            await look(MNIST)
            await stage.until(lambda: _announced(stage) == {"mnist-worker-0"}, "the master knows of it")

            await stage.apply(ELASTIC_JOBS, "mnist", {"worker": a_role(replicas=2)})
            await stage.until(lambda: "mnist-worker-1" in stage.pods(), "its second Pod is there")
            began = slow.now
            for _ in range(100):  # some of which meet an older version of the objects
                await look(MNIST)
                if len(_announced(stage)) == 2:
                    break
                await asyncio.sleep(0.005)
            assert _announced(stage) == {"mnist-worker-0", "mnist-worker-1"}
            assert slow.now < began + LONGEST


@given(after=st.lists(SECONDS, max_size=8))
def test_what_waits_for_pods_waits_a_quarter_of_a_minute_at_most_and_anew_when_it_was_written(
    after: list[timedelta],
) -> None:
    """Clocks may jump."""
    pace = Pace(20.0)
    asked = [timedelta(0), *after]
    for number, each in enumerate(asked):
        assert (pace.behind_pods("a", NOW + each) is None) == (each - min(asked[: number + 1]) >= LONGEST)
    pace.wrote("a", NOW, NOW)
    assert pace.behind_pods("a", NOW + LONGEST) is not None


class Queue:
    """The Pods of one job cannot be made until it moves on."""

    def __init__(self, job: str) -> None:
        self._job = job
        self.stands, self.moves_on = asyncio.Event(), asyncio.Event()

    async def create_pod(self, create: Callable[..., Any], manifest: dict[str, Any]) -> Any:
        if manifest["metadata"]["name"].startswith(f"{self._job}-worker"):
            self.stands.set()
            await self.moves_on.wait()
        return await create(manifest)


async def test_what_becomes_of_a_plan_is_told_after_pods_that_queue_up_but_not_for_ever() -> None:
    queue, now = Queue("other"), [NOW]
    plan = {"ownerJob": "mnist", "replicaResourceSpecs": {"worker": {"replicas": 1}}}
    async with (
        a_stage(replace(SETTINGS, parallel_writes=1)) as stage,
        stage.operator(clock=lambda: now[0], create_pod=queue.create_pod) as operator,
    ):
        look = operator.reconciler.reconcile  # type: ignore[attr-defined]
        await stage.apply(ELASTIC_JOBS, "mnist", {"worker": a_role(replicas=1)})
        await stage.until(lambda: stage.condition("Ready")[0] == "True", "mnist runs")
        await stage.apply(ELASTIC_JOBS, "other", {"worker": a_role(replicas=1)})
        await queue.stands.wait()
        await stage.apply(SCALE_PLANS, "later", plan, labels={"scale-type": "manual"})
        await stage.until(lambda: "ScalePlan/later" in str(stage.job().get("status")), "the plan is accepted")
        assert await look(MNIST) is not None
        assert stage.plan("later").get("status") is None

        now[0] += LONGEST
        await look(MNIST)
        await stage.until(lambda: stage.condition("Accepted", stage.plan("later"))[0] == "True", "it is told")

        await stage.apply(SCALE_PLANS, "latest", plan, labels={"scale-type": "manual"})
        await stage.until(lambda: "ScalePlan/latest" in str(stage.job().get("status")), "the plan is accepted")
        queue.moves_on.set()
        await stage.until(lambda: stage.condition("Accepted", stage.plan("latest"))[0] == "True", "nobody queues")
