"""How much of what jobs hold is of use: the part of their Pods, by what those cost, that belongs to training.

A Pod holds its room from the moment it is bound until it is told to end. It is of use while it runs in a job that
trains: one that has its least number of trainers running, and hosts for all that serve them. So what starts, what is
to go and what waits for the rest of its gang is held for nothing. What a training makes of its time is its master's to
say.
"""

from collections.abc import Iterable

from shoal.operator.scheduling.reading import JobView
from shoal.scheduler.columns import least_size
from shoal.scheduler.rows import NOTHING, Job, Room
from shoal.scheduler.scores import score
from shoal.scheduler.settings import SchedulerSettings


def goodput(views: Iterable[JobView], capacity: Room, settings: SchedulerSettings) -> dict[str, float]:
    """By namespace, between 0 and 1. Of one whose jobs hold nothing there is nothing to say."""
    useful: dict[str, float] = {}
    held: dict[str, float] = {}
    for view in views:
        queue = view.row.key.namespace
        held[queue] = held.get(queue, 0.0) + score(_held(view), capacity, settings)
        if _trains(view.row):
            useful[queue] = useful.get(queue, 0.0) + score(view.running, capacity, settings)
    return {queue: min(1.0, useful.get(queue, 0.0) / whole) for queue, whole in held.items() if whole > 0}


def _trains(job: Job) -> bool:
    return job.is_admitted and job.running + job.ended >= least_size(job) and not job.fixed_pending


def _held(view: JobView) -> Room:
    job, room = view.row, NOTHING
    for count in job.placed.values():
        room = room.plus(job.each, count)
    for fixed in job.fixed_placed.values():
        room = room.plus(fixed)
    for _, leaving in view.going:
        room = room.plus(leaving.room)
    return room
