"""What every test of the agent has: a master, agents, and the promise that nothing is left of them."""

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import psutil
import pytest
from tests.agent.real_agents import Agents
from tests.agent.small_master import SmallMaster, a_master


@pytest.fixture
async def master() -> AsyncIterator[SmallMaster]:
    async with a_master() as made:
        yield made


@pytest.fixture
async def agents(tmp_path: Path) -> AsyncIterator[Agents]:
    made = Agents(tmp_path)
    yield made
    for task in made.tasks:
        task.cancel()
    await asyncio.gather(*made.tasks, return_exceptions=True)


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """No test leaves a child, a file descriptor or a directory behind."""
    before, children = set(os.listdir("/proc/self/fd")), set(psutil.Process().children())
    yield
    assert set(psutil.Process().children()) <= children, "a child is left"
    leaked = set(os.listdir("/proc/self/fd")) - before
    assert len(leaked) <= 1, f"file descriptors left open: {leaked}"  # the one that lists them
