"""The job as people see it."""

from datetime import datetime

from shoal.core.job import data
from shoal.core.job.forgetting import restarts_of
from shoal.core.job.values import Gain, Job
from shoal.core.nodes import Node
from shoal.core.view import ENDED, JobPhase, JobView, NodeView, ProcessView

_EXIT_CODES = {JobPhase.SUCCEEDED: 0, JobPhase.FAILED: 1, JobPhase.STOPPED: 1}


def view(job: Job, now: datetime) -> JobView:
    committed = job.rendezvous.committed
    return JobView(
        name=job.spec.name,
        uid=job.spec.uid,
        phase=job.phase,
        reason=job.reason,
        sdk=job.sdk,
        target=job.target,
        min_nodes=job.spec.min_nodes,
        max_nodes=job.spec.max_nodes,
        nproc=job.spec.nproc,
        started=job.started,
        ended=job.ended,
        exit_code=_EXIT_CODES[job.phase] if job.phase in ENDED else None,
        generation=committed.generation if committed is not None else 0,
        world_size=committed.size if committed is not None else 0,
        step=job.gain.step,
        samples=job.gain.samples,
        steps_per_second=_speed(job.gain, now),
        metrics=dict(job.gain.metrics),
        restarts=job.forgotten_restarts + restarts_of(job.nodes.values()),
        nodes=tuple(_node(job, node) for node in job.nodes.values()),
        resizes=job.resizes,
        decisions=job.decisions,
        error=job.error,
        data=data.views(job.ledger),
    )


def _node(job: Job, node: Node) -> NodeView:
    seen = job.seen.get(node.id)
    member = job.rendezvous.members.get(node.id)
    committed = job.rendezvous.committed
    ranked = committed.member(node.id) if committed is not None else None
    base = ranked.base_rank if ranked is not None and ranked.incarnation == node.incarnation else None
    return NodeView(
        node=node.id,
        status=node.status,
        standing=member.standing if member is not None else None,
        incarnation=node.incarnation,
        host=node.host,
        pid=seen.pid if seen is not None else None,
        connected=seen is not None and seen.connected,
        reason=node.reason,
        processes=tuple(
            ProcessView(
                local_rank=p.local_rank,
                pid=p.pid,
                rank=None if base is None else base + p.local_rank,
                step=p.step,
                cpu=p.cpu,
                memory_bytes=p.memory_bytes,
                busy=p.busy,
                stopped=p.stopped,
            )
            for p in (seen.processes if seen is not None else ())
        ),
    )


def _speed(gain: Gain, now: datetime) -> float | None:
    """Steps a second over the last reports of this world; None while there are too few."""
    if len(gain.speed) < 2:
        return None
    (first_at, first), (_, last) = gain.speed[0], gain.speed[-1]
    seconds = (max(now, gain.speed[-1][0]) - first_at).total_seconds()
    return (last - first) / seconds if seconds > 0 else None
