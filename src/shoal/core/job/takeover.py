"""How a master begins that was not there before: with the state of the one before it, and what is found to exist.

The job itself did not stop: its nodes train on and come back one by one, and each says where it stands. So nothing is
decided here about anybody, but that everybody has time to come back.

The records may be older than what the nodes were told: the master before went on while its store was away. What a node
was told it tells itself when it comes back (`AgentJoined`), and what was started the platform tells (`NodesAnnounced`).
Nobody tells for those who were let go; so that, and only that, waits for the store (`waits_for_record`).
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from datetime import datetime

from shoal.core import ledger, world
from shoal.core.job import data, servers
from shoal.core.job.respecify import difference, following, respecified
from shoal.core.job.turn import Turn
from shoal.core.job.values import Effect, Job, JobSpec, LeaveNode, Reuniting, SayWord, Tell
from shoal.core.nodes import Node, NodeId, NodeStatus, Role, parsed
from shoal.core.plans import ScalePlan
from shoal.core.ps.words import Go, Move, PreparePS
from shoal.core.world import Release


def taken_over(
    job: Job,
    now: datetime,
    *,
    reason: str,
    term: int = 0,
    is_replayed: bool = False,
    asked: JobSpec | None = None,
) -> Job:
    """The job as a new master takes it on from its records. `is_replayed`: agents were told more than those tell, and
    will say it again. `asked`: what the user asks for now, when that may have changed since."""
    if job.ended is not None:
        return job
    if asked is not None and (spec := following(job, asked)) != job.spec:
        reason = f"{reason}; the job's spec has changed: {difference(job.spec, spec)}"
        job = respecified(job, asked)
    until = now + job.settings.suspect_after_restart
    seen = {
        node: replace(known, connected=False, unheard=True, at=now, suspect_until=until, still_since=None)
        for node, known in job.seen.items()
    }
    running = frozenset(node.id for node in job.nodes.values() if node.status is NodeStatus.RUNNING)
    return noted(
        replace(
            job,
            seen=seen,
            rendezvous=world.taken_over(job.rendezvous, running),
            reunion=Reuniting(missing=running) if is_replayed and running else None,
            ledger=data.taken_over(job.ledger, term, now, until),
            peer_closed=None if job.peer_closed is None else now,  # whose it was is still to be learnt
            hanging=job.hanging
            if job.servers is not None
            else frozenset(),  # who hangs is told so again: the order may have been lost
            gain=replace(job.gain, at=now, speed=()),  # nobody could report: that was no hang
            servers=servers.taken_over(job, now),
        ),
        reason,
        now,
    )


def waits_for_record(effect: Effect) -> bool:
    """Whether it is better done late than before it is written down: who was let go is not there to tell another
    master, which would start it again. Nothing is lost by waiting: training has finished, or goes on without it.

    So are words about parameter servers; of those some wait for ever (`must_be_recorded`)."""
    return isinstance(effect, Tell) and isinstance(effect.what, Release | LeaveNode | SayWord)


def must_be_recorded(effect: Effect, written: Job | None) -> bool:
    """Whether it may not be said as long as no more than this is written down. Another master would go on from there: a
    version that was told of it would use a second time, for other servers, and one that trains it would fill again with
    the state of the version before. Better that a change waits for the store, and with it, if they stand still, the
    workers."""
    if written is None or written.servers is None or not isinstance(effect, Tell):
        return False
    known, word = written.servers, effect.what.word if isinstance(effect.what, SayWord) else None
    match word:
        case PreparePS(cluster=cluster):
            return cluster.version > known.version
        case Move(version=version):
            return version > known.version
        case Go(version=version):
            return known.current is None or version > known.current.version
        case _:
            return False


def named(job: Job, nodes: Collection[NodeId]) -> Job:
    """The job, knowing that these names were given away, by whichever master: no name is used twice."""
    if (m := job.servers) is not None:  # which are counted apart
        taken = _following(node for node in nodes if _is_server(node))
        nodes = [node for node in nodes if not _is_server(node)]
        job = replace(job, servers=replace(m, next_number=taken)) if taken > m.next_number else job
    following = _following(nodes)
    return job if following <= job.next_number else replace(job, next_number=following)


def _following(nodes: Iterable[NodeId]) -> int:
    return max((_number(node) + 1 for node in nodes), default=0)


def _is_server(node: NodeId) -> bool:
    name = parsed(node)
    return name is not None and name[0] is Role.PS


def is_later(job: Job, node: NodeId) -> bool:
    """Whether no master that the records tell of has given this name away."""
    if job.servers is not None and _is_server(node):
        return _number(node) >= job.servers.next_number
    return _number(node) >= job.next_number


def _number(node: NodeId) -> int:
    """-1: it is none of our names."""
    name = parsed(node)
    return -1 if name is None else name[1]


def fenced(job: Job, term: int) -> Job:
    """The job under a higher term: its leases are told from those that earlier masters have given."""
    return replace(job, ledger=ledger.fenced(job.ledger, term))


def noted(job: Job, reason: str, now: datetime) -> Job:
    """Record a decision of the master itself, for people."""
    turn = Turn(job, now)
    turn.say(reason)
    return turn.job


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconciled:
    gone: tuple[Node, ...]
    """Ran by our account, and the platform knows nothing of them."""
    plan: ScalePlan


def reconcile(
    job: Job, existing: Collection[NodeId], *, reason: str, known: Collection[NodeId] | None = None
) -> Reconciled:
    """What to do about a platform on which just these nodes exist. Nodes that joined by themselves are not its.

    `known`: what the platform tells may be older than what the job knows, but these it has told of before: only of
    them does it mean an end that they are not there, and it does whether or not they ever ran. Who was given up, and of
    whom it is still to say how they ended, is left there until it is decided who follows: a platform that fills seats
    by itself would fill this one, and the job launch another for it.
    """
    ours = [node for node in job.nodes.values() if not node.external]
    missing = [node for node in ours if node.is_live and node.id not in existing]
    if known is None:
        gone = [node for node in missing if node.status is NodeStatus.RUNNING]
    else:
        gone = [node for node in missing if node.id in known]
    ended = {node.id for node in gone}
    return Reconciled(
        gone=tuple(gone),
        plan=ScalePlan(
            launch_nodes=tuple(n for n in missing if n.status is NodeStatus.PENDING and n.id not in ended),
            remove_nodes=tuple(
                node for node in ours if not node.is_live and node.id in existing and node.id not in job.unexplained
            ),
            reason=reason,
        ),
    )
