"""What Pods cost, in one number, so that jobs of different shapes can be compared."""

from shoal.scheduler.rows import Job, Room
from shoal.scheduler.settings import SchedulerSettings, ScoreMode

GIBIBYTE = 2**30
_WHOLE = 1_000
"""What the whole cluster costs a second when shares are counted."""


def score(room: Room, capacity: Room, settings: SchedulerSettings) -> float:
    """What having this for a second costs. `capacity` is the whole cluster's."""
    if settings.scores.mode is ScoreMode.DOMINANT_SHARE:
        return _WHOLE * max((mine / whole for mine, whole in zip(room, capacity, strict=True) if whole), default=0.0)
    prices = settings.scores
    asked = room.gpu * prices.gpu + room.cpu * prices.core / 1_000 + room.memory * prices.gibibyte / GIBIBYTE
    return asked + room.pods * prices.pod


def footprint(job: Job, trainers: int) -> Room:
    """All that the job asks for at that size: its trainers, the servers beside them, and its fixed Pods."""
    room = Room().plus(job.each, trainers)
    for part in job.fixed:
        room = room.plus(part.each, part.count)
    if job.servers is not None:
        room = room.plus(job.servers.each, job.servers.beside(trainers))
    return room


def weight(job: Job, settings: SchedulerSettings) -> int:
    return settings.weights[job.priority]
