"""The operator dies after each of its writes in turn: the end is the same as if it never had.

A scenario is played once undisturbed, which also counts the writes; then with operators that each die after a write
that none of them has made before; then once for each write, with an operator that ends right after it and another one
that takes over. Names, ranks, resources and grants must come out equal.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from itertools import count
from typing import Any

import pytest
from tests.operator.builders import a_role
from tests.operator.stage import WRITES, Crashing, Stage, a_stage

from shoal.platforms.kubernetes.client import Merge
from shoal.platforms.kubernetes.kinds import ELASTIC_JOBS, SCALE_PLANS


async def scenario(stage: Stage) -> None:
    """Start, grow by a plan, give all more memory in place and one another resource, shrink, suspend, resume."""
    await stage.apply(ELASTIC_JOBS, "mnist", {"worker": a_role(replicas=2)})
    await stage.until(lambda: is_ready(stage, 2), "two workers")
    plan: dict[str, Any] = {"ownerJob": "mnist", "replicaResourceSpecs": {"worker": {"replicas": 3}}}
    await stage.apply(SCALE_PLANS, "plan", plan)
    await stage.until(lambda: is_ready(stage, 3), "three workers")
    plan["replicaResourceSpecs"]["worker"]["resource"] = {"memory": "512Mi"}
    await stage.apply(SCALE_PLANS, "plan", plan)
    await stage.until(lambda: memory(stage) == ["512Mi"] * 3, "three with more memory")
    plan["migratePods"] = [{"name": "mnist-worker-1", "resource": {"memory": "1Gi"}}]
    await stage.apply(SCALE_PLANS, "plan", plan)
    moved = ["mnist-worker-0", "mnist-worker-2", "mnist-worker-3"]
    await stage.until(lambda: stage.running() == moved and is_ready(stage, 3), "one is replaced")
    plan["replicaResourceSpecs"]["worker"]["replicas"] = 1
    await stage.apply(SCALE_PLANS, "plan", plan)
    await stage.until(lambda: is_ready(stage, 1), "one worker")
    await stage.client.patch(ELASTIC_JOBS, "mnist", Merge({"spec": {"suspend": True}}), namespace="default")
    await stage.until(lambda: not stage.pods(), "no Pods")
    await stage.client.patch(ELASTIC_JOBS, "mnist", Merge({"spec": {"suspend": False}}), namespace="default")
    await stage.until(lambda: is_ready(stage, 1), "one worker again")


def memory(stage: Stage) -> list[str]:
    """What the workers that run have."""
    pods = (stage.pods()[name]["spec"]["containers"][0] for name in stage.running())
    return [pod.get("resources", {}).get("requests", {}).get("memory", "") for pod in pods]


def is_ready(stage: Stage, count: int) -> bool:
    job = stage.job()
    return (
        len(stage.running()) == count
        and stage.condition("Ready")[0] == "True"
        and stage.condition("Resizing")[0] == "False"
        and job["status"]["observedGeneration"] == job["metadata"]["generation"]
        and job["status"].get("grant", {}).get("counts") == [{"role": "worker", "count": count}]
    )


def outcome(stage: Stage) -> dict[str, Any]:
    """What the end is compared by: all that is not a time or a uid."""
    status = stage.job()["status"]
    return {
        "pods": sorted(stage.pods()),
        "memory": memory(stage),
        "members": sorted((m["name"], m["rank"], m["state"], str(m.get("resource"))) for m in status["members"]),
        "roles": status["roles"],
        "term": status["term"],
        "conditions": {each["type"]: (each["status"], each["reason"]) for each in status["conditions"]},
        "plan": stage.condition("Completed", stage.plan("plan")),
    }


@asynccontextmanager
async def taking_turns(operators: Iterable[AbstractAsyncContextManager[Crashing]]) -> AsyncIterator[None]:
    """One operator after the other, each until it dies."""

    async def relay() -> None:
        for each in operators:
            async with each as operator:
                await operator.crashed.wait()

    task = asyncio.create_task(relay())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})


async def undisturbed() -> tuple[dict[str, Any], Crashing]:
    async with a_stage() as stage, stage.operator() as operator:
        await scenario(stage)
        await stage.until(lambda: stage.condition("Completed", stage.plan("plan"))[0] == "True", "completed")
        return outcome(stage), operator


async def test_the_end_is_the_same_when_somebody_dies_after_every_write_the_first_time_it_is_made() -> None:
    expected, _ = await undisturbed()
    known: list[str] = []

    def is_new(write: str) -> bool:
        if write in known:
            return False
        known.append(write)
        return True

    async with a_stage() as stage, taking_turns(stage.operator(dies=is_new) for _ in count()):
        await scenario(stage)
        await stage.until(lambda: outcome(stage) == expected, "after every write")
    assert {write.partition(" ")[0] for write in known} == WRITES - {"delete_job"}
    assert sum(write.startswith("resize_pod") for write in known) == 3
    assert len(known) > 40


@pytest.mark.parametrize("every", [9, pytest.param(1, marks=[pytest.mark.slow, pytest.mark.timeout(1200)])])
async def test_the_end_is_the_same_whichever_write_was_the_last(every: int) -> None:
    expected, operator = await undisturbed()
    assert operator.writes > 20
    for crash_after in range(0, operator.writes, every):
        async with a_stage() as stage, taking_turns([stage.operator(crash_after=crash_after), stage.operator()]):
            await scenario(stage)
            await stage.until(lambda stage=stage: outcome(stage) == expected, f"crash after write {crash_after}")
