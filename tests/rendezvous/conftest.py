import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.rendezvous.masters import RunningMaster, StartMaster, run_master


@pytest.fixture
async def start_master() -> AsyncIterator[StartMaster]:
    """Starts masters, and ends those that still run when the test is over."""
    running: list[RunningMaster] = []

    async def start(**options: Any) -> RunningMaster:
        running.append(await run_master(**options))
        return running[-1]

    yield start
    for each in running:
        each.ended.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await each.ended
