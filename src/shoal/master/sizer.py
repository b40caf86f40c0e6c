"""Asks a job's optimizer off the event loop: its first fit imports numpy, and one of a thousand nodes takes a while.

The optimizer is pure, so a thread may have it: values go in and come out. One question at a time.
"""

import asyncio

from shoal.brain.algorithms.local import LocalOptimizer
from shoal.core.job.values import JobSpec, Sized
from shoal.core.optimizing import ResourceOptimizer
from shoal.core.sizing import Look, answered
from shoal.core.stages import JobResourceOptimizer

NO_OTHER_HOST = {"replace_slow": "replace_slow: all nodes are on this machine, there is no other host for a slow one"}
"""Of a job that launches its nodes on one machine."""


class Sizer:
    def __init__(self, optimizer: ResourceOptimizer | None = None) -> None:
        """None: the job's own statistics decide."""
        self._optimizer = optimizer

    async def answer(self, look: Look) -> Sized:
        optimizer = self._optimizer or local_optimizer(look.job.spec)
        return await asyncio.to_thread(answered, look, JobResourceOptimizer(optimizer, look.job.settings.optimizer))


def local_optimizer(spec: JobSpec) -> LocalOptimizer:
    """What a job can follow on its platform."""
    return LocalOptimizer() if spec.platform_grows else LocalOptimizer(NO_OTHER_HOST)
