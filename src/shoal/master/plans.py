"""Plans on their way to the platform: one after the other, and again when the platform could not."""

import asyncio
import logging

from shoal.core.errors import PlatformUnavailable
from shoal.core.plans import ScalePlan
from shoal.core.ports import Scaler

log = logging.getLogger("shoal.master")

RETRY_SECONDS = (0.1, 0.3, 1.0, 3.0)
"""Between tries of a plan that the platform could not carry out; the last one repeats."""


class Plans:
    def __init__(self, scaler: Scaler) -> None:
        self._scaler = scaler
        self._waiting: asyncio.Queue[tuple[ScalePlan, int]] = asyncio.Queue()

    def add(self, plan: ScalePlan) -> None:
        self._waiting.put_nowait((plan, 0))

    async def run(self) -> None:
        """In order; a plan that fails comes again later, behind the others. Plans name nodes, so order is no matter."""
        loop = asyncio.get_running_loop()
        while True:
            plan, tries = await self._waiting.get()
            try:
                await self._scaler.scale(plan)
            except PlatformUnavailable as exc:
                delay = RETRY_SECONDS[min(tries, len(RETRY_SECONDS) - 1)]
                log.warning("plan %r: %s; trying again in %g s", plan.reason, exc, delay)
                loop.call_later(delay, self._waiting.put_nowait, (plan, tries + 1))
