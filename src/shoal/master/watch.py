"""The master's statistics: fed with what agents say, and put into the job's records now and then.

One owner, `Master`. How often they are written down follows from how much there is to lose: often while the job is
young and its history small, at most once in `SLOWEST`; and in a store where each write costs a snapshot, less often
still. Nothing waits for it and nothing else is written because of it.
"""

from datetime import datetime, timedelta

from shoal.core.job import Job, training_nodes
from shoal.core.nodes import NodeId
from shoal.core.statistics import SAMPLE, Heard, Now, Statistics
from shoal.core.statistics_kept import packed, unpacked
from shoal.wire.messages import FromAgent, Heartbeat, Progress

SOONEST, SLOWEST = timedelta(seconds=5), timedelta(minutes=1)
PART = 10
"""A tenth of the job's life may be lost with a master."""
IN_PACE = 30
"""So many times the pace of a store that has one."""


class Watch:
    def __init__(self, sample: int = SAMPLE) -> None:
        """`sample`: as in `Statistics`."""
        self.statistics = Statistics(sample)
        self._generation: int | None = None
        self._kept: datetime | None = None
        self._is_news = False
        """Something was heard since they were last written down."""

    def taken_on(self, job: Job) -> None:
        """Go on where the master before has left it."""
        self.statistics = unpacked(job.statistics, job.settings.optimizer.sample)

    def heard(self, node: NodeId, message: FromAgent, now: datetime, *, is_speaker: bool = True) -> None:
        """`is_speaker`: it is this node's to say how far the job is; others may count, but not for all."""
        match message:
            case Heartbeat():
                self._is_news = True
                self.statistics.heard(node, heard(message), now)
            case Progress(step=step, samples=samples, generation=generation) if is_speaker:
                if generation != self._generation:
                    self._generation = generation
                    self.statistics.broken()
                self._is_news = True
                self.statistics.progressed(step, samples, now)
            case _:
                pass

    def ticked(self, job: Job, now: datetime) -> None:
        self.statistics.ticked(lambda: _now(job), now)

    def due(self, job: Job, now: datetime, *, pace: timedelta) -> bytes | None:
        """What is to be written down now; None: nothing, or nothing that is not written."""
        if self._kept is None or now < self._kept:
            self._kept = now
        soonest, slowest = max(SOONEST, pace), max(SLOWEST, IN_PACE * pace)
        wait = min(max((now - job.started) / PART, soonest), slowest)
        if now - self._kept < wait or job.ended is not None or not self._is_news:
            return None
        self._kept, self._is_news = now, False
        return packed(self.statistics)


def heard(message: Heartbeat) -> Heard:
    return Heard(
        node=message.node,
        processes=message.processes,
        gpus=len(message.gpus),
        gpu_busy=sum(gpu.busy for gpu in message.gpus),
        gpu_memory=sum(gpu.memory_bytes for gpu in message.gpus),
        gpu_memory_total=sum(gpu.memory_total for gpu in message.gpus),
    )


def _now(job: Job) -> Now:
    return Now(
        workers=training_nodes(job),
        nodes=tuple(node for node in job.nodes.values() if node.is_live),
    )
