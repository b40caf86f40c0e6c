"""The job as people see it."""

from collections import Counter
from datetime import datetime

from shoal.core.job import data
from shoal.core.job.forgetting import restarts_of
from shoal.core.job.values import Gain, Job, Sizing
from shoal.core.nodes import Node, NodeId, NodeStatus
from shoal.core.view import (
    ENDED,
    JobPhase,
    JobView,
    NodeView,
    OutcomeView,
    ProcessView,
    ServersView,
    SizingView,
)

KEPT_SCORES = 20

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
        world_size=committed.size if committed is not None else training_nodes(job),
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
        sizing=None if job.spec.sizing is None else _sizing(job.sizing),
        strategy=job.spec.strategy,
        roles=dict(Counter(n.role.value for n in job.nodes.values() if n.status is NodeStatus.RUNNING)),
        servers=_servers(job),
    )


def training_nodes(job: Job) -> int:
    return len(who_trains(job))


def who_trains(job: Job) -> frozenset[NodeId]:
    """The nodes of the world, or the workers that are on a version of parameter servers."""
    if job.servers is not None:
        return frozenset(trainer.node for trainer in job.servers.trainers.values() if trainer.active is not None)
    committed = job.rendezvous.committed
    return frozenset() if committed is None else frozenset(member.node for member in committed.members)


def _servers(job: Job) -> ServersView | None:
    m = job.servers
    if m is None:
        return None
    last = m.checkpoints[-1] if m.checkpoints else None
    return ServersView(
        version=0 if m.current is None else m.current.version,
        servers=0 if m.current is None else len(m.current.servers),
        goal=m.goal.count,
        min_servers=m.settings.min_servers,
        max_servers=m.settings.max_servers,
        chief=m.chief,
        partitions=len(m.partitions),
        nbytes=sum(p.nbytes for p in m.partitions),
        addresses=() if m.current is None else m.current.addresses,
        nodes=() if m.current is None else tuple(server.node for server in m.current.servers),
        changes=job.changes,
        checkpoint=None if last is None else last.path,
        checkpoint_step=None if last is None else last.step,
        scores=tuple((score.step, dict(score.metrics)) for score in job.evaluation.scores[-KEPT_SCORES:]),
        unscored=len(job.evaluation.waiting),
    )


def _sizing(sizing: Sizing) -> SizingView:
    state = sizing.optimizer
    return SizingView(
        stage=state.stage,
        reason=state.reason,
        pins=dict(sizing.pins),
        given={role: given.by for role, given in sizing.given.items() if given.is_planned},
        changes=state.changes,
        pending=None if state.pending is None else state.pending.algorithm,
        predicted=None if state.pending is None else state.pending.predicted,
        outcomes=tuple(
            OutcomeView(
                algorithm=each.algorithm,
                before=each.before,
                measured=each.measured,
                predicted=each.predicted,
                prediction_error=each.prediction_error,
                gain=each.gain,
                rolled_back=each.rolled_back,
            )
            for each in state.outcomes
        ),
        distrusted=state.distrusted,
        confidence=state.confidence,
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
        role=node.role,
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
