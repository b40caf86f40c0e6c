"""Processes of a job with parameter servers that do not move: stopped by the kernel's word, or without a step for long.

Such a job has no world that stands still as a whole when one of its members does (`shoal.core.hang`): the others train
on, and only the data that the one holds is late. So each worker is looked at by itself. It should make steps when it
has data and may train; what it does without either says nothing.
"""

from dataclasses import replace
from datetime import datetime, timedelta

from shoal.core.hang import NO_STEP, hang_timeout
from shoal.core.job import servers
from shoal.core.job.turn import Turn
from shoal.core.job.values import Job, Seen
from shoal.core.nodes import NodeId, ProcessSeen, Role
from shoal.core.rounds import node_of


def heard(seen: Seen, processes: tuple[ProcessSeen, ...]) -> Seen:
    """What is known of a node whose processes say where they are."""
    has_stepped = [p.step for p in processes] != [p.step for p in seen.processes]
    return replace(seen, processes=processes, still_since=None if has_stepped else seen.still_since)


def asked(turn: Turn, node: NodeId) -> None:
    """A worker has told what it has trained, and asked for more. If it has nothing now, it waits."""
    seen = turn.job.seen.get(node)
    if seen is not None and seen.still_since is not None and node not in _holders(turn.job):
        turn.put_seen(node, replace(seen, still_since=None))


def check(turn: Turn) -> None:
    """Kill whoever has stood still for too long."""
    if turn.job.servers is None or turn.is_ending:
        return
    _look(turn)
    _check_stopped(turn)
    _check_hanging(turn)


def _look(turn: Turn) -> None:
    """Note since when each worker should have made a step. One whose data is given away because it does nothing with
    it does not get away with that."""
    job = turn.job
    holders = _holders(job)
    for node, seen in job.seen.items():
        should = (node in holders or seen.still_since is not None) and _may_step(job, node, seen)
        since = (seen.still_since or turn.now) if should else None
        if since != seen.still_since:
            turn.put_seen(node, replace(seen, still_since=since))


def _holders(job: Job) -> set[NodeId]:
    return {node_of(owner) for dataset in job.ledger.dynamic.values() for owner in dataset.held}


def _may_step(job: Job, node: NodeId, seen: Seen) -> bool:
    assert job.servers is not None
    trainer = job.servers.trainers.get(node)
    if trainer is None or trainer.unreachable is not None or not seen.connected:
        return False
    return servers.may_have_data(job, node) and not any(p.busy or p.stopped for p in seen.processes)


def _check_stopped(turn: Turn) -> None:
    """Everybody needs a server: it gets no more time than its agent gives it. Who else it is gets the time that a hang
    is given, for somebody may be looking at it."""
    job = turn.job
    stopped = {
        node: job.stopped.get(node, turn.now)
        for node, seen in job.seen.items()
        if any(p.stopped for p in seen.processes)
    }
    if stopped != job.stopped:
        turn.job = replace(job, stopped=stopped)
    patience = job.settings.hang.timeout or job.settings.hang.floor
    for node, since in stopped.items():
        limit = job.settings.stopped_after if job.nodes[node].role is Role.PS else patience
        if turn.now - since >= limit:
            servers.kill(turn, node, f"{node}: its process is stopped")


def _check_hanging(turn: Turn) -> None:
    job = turn.job
    for node, seen in job.seen.items():
        limit = _limit(job, seen)
        if seen.still_since is not None and limit is not None and turn.now - seen.still_since >= limit:
            waited, most = turn.now - seen.still_since, limit.total_seconds()
            no_step = f"it has data, and made {NO_STEP} {waited.total_seconds():.0f} s (limit {most:.0f} s)"
            servers.kill(turn, node, f"{node} hangs: {no_step}")


def _limit(job: Job, seen: Seen) -> timedelta | None:
    """How long a step may take; None: nobody knows yet. Where nobody has said it there is much more time than steps
    take, for a worker has no way to say that it is busy with something else. So has a process for its first step."""
    assert job.servers is not None
    settings = job.settings.hang
    if settings.timeout is not None:
        has_begun = any(p.step is not None for p in seen.processes)
        return settings.timeout if has_begun else settings.patience * settings.timeout
    if job.gain.steps_seen < settings.after_steps:
        return None
    # The job's steps are those of all workers, one after another.
    together = max(1, sum(t.active is not None for t in job.servers.trainers.values()))
    return settings.patience * hang_timeout([together * each for each in job.gain.step_seconds], settings)


def moved(job: Job, now: datetime) -> dict[NodeId, datetime]:
    """When each worker was last known to make steps, or to have nothing to make them with."""
    return {node: seen.still_since or now for node, seen in job.seen.items() if seen.connected}
