"""The operator dies after each of its writes in turn: the end is the same as if it never had.

A scenario is played once undisturbed, which also counts the writes; then once for each write, with an operator that
ends right after it and another one that takes over. Names, ranks, resources and grants must come out equal.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.operator.builders import a_role
from tests.operator.stage import Crashing, Stage, a_stage

from shoal.platforms.kubernetes.client import Merge
from shoal.platforms.kubernetes.kinds import ELASTIC_JOBS, SCALE_PLANS


async def scenario(stage: Stage) -> None:
    """Start, grow by a plan, give a member another resource, shrink, suspend, resume."""
    await stage.apply(ELASTIC_JOBS, "mnist", {"worker": a_role(replicas=2)})
    await stage.until(lambda: is_ready(stage, 2), "two workers")
    plan = {"ownerJob": "mnist", "replicaResourceSpecs": {"worker": {"replicas": 3}}}
    await stage.apply(SCALE_PLANS, "plan", plan)
    await stage.until(lambda: is_ready(stage, 3), "three workers")
    plan["migratePods"] = [{"name": "mnist-worker-1", "resource": {"memory": "1Gi"}}]
    await stage.apply(SCALE_PLANS, "plan", plan)
    moved = ["mnist-worker-0", "mnist-worker-2", "mnist-worker-3"]
    await stage.until(lambda: stage.running() == moved and is_ready(stage, 3), "one is replaced")
    plan["replicaResourceSpecs"] = {"worker": {"replicas": 1}}
    await stage.apply(SCALE_PLANS, "plan", plan)
    await stage.until(lambda: is_ready(stage, 1), "one worker")
    await stage.client.patch(ELASTIC_JOBS, "mnist", Merge({"spec": {"suspend": True}}), namespace="default")
    await stage.until(lambda: not stage.pods(), "no Pods")
    await stage.client.patch(ELASTIC_JOBS, "mnist", Merge({"spec": {"suspend": False}}), namespace="default")
    await stage.until(lambda: is_ready(stage, 1), "one worker again")


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
        "members": sorted((m["name"], m["rank"], m["state"], str(m.get("resource"))) for m in status["members"]),
        "roles": status["roles"],
        "term": status["term"],
        "conditions": {each["type"]: (each["status"], each["reason"]) for each in status["conditions"]},
        "plan": stage.condition("Completed", stage.plan("plan")),
    }


@asynccontextmanager
async def relayed(stage: Stage, crash_after: int) -> AsyncIterator[None]:
    """An operator that dies after so many writes, and then one that does not."""

    async def relay() -> None:
        async with stage.operator(crash_after=crash_after) as first:
            await first.crashed.wait()
        async with stage.operator():
            await asyncio.Event().wait()

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


@pytest.mark.parametrize("every", [9, pytest.param(1, marks=[pytest.mark.slow, pytest.mark.timeout(1200)])])
async def test_the_end_is_the_same_whichever_write_was_the_last(every: int) -> None:
    expected, operator = await undisturbed()
    assert operator.writes > 20
    for crash_after in range(0, operator.writes, every):
        async with a_stage() as stage, relayed(stage, crash_after):
            await scenario(stage)
            await stage.until(lambda stage=stage: outcome(stage) == expected, f"crash after write {crash_after}")
