"""The next version, who is chief, and what follows from that for one trainer: questions about a manager that change
nothing."""

from collections.abc import Iterable

from shoal.core.nodes import NodeId, NodeStatus, Role
from shoal.core.ps.cluster import Fresh, FromCheckpoint, LiveCopy, PSCluster, PSServer, Source, ThroughCheckpoint
from shoal.core.ps.placement import placed
from shoal.core.ps.values import Kind, Phase, PSManager, Trainer
from shoal.core.ps.words import Drain, Go, Move, PreparePS, Save, ToTrainer


def next_cluster(m: PSManager) -> PSCluster:
    """The version that the change leads to. Its servers are all there."""
    assert m.change is not None
    seats = sorted(m.change.seats.items())
    before = m.current
    return PSCluster(
        version=m.version + 1,
        servers=tuple(PSServer(rank=rank, node=node, address=m.servers[node].address) for rank, node in seats),
        partitions=m.partitions,
        placement=placed(
            m.partitions,
            [rank for rank, _ in seats],
            {} if before is None else dict(zip((p.name for p in before.partitions), before.placement, strict=True)),
        ),
        source=_source(m, m.change.kind),
    )


def _source(m: PSManager, kind: Kind) -> Source:
    if kind is Kind.RESIZE:
        assert m.current is not None
        return LiveCopy(m.current.version)
    if m.checkpoints:
        last = m.checkpoints[-1]
        return FromCheckpoint(last.path, last.step)
    return Fresh()


def unready(m: PSManager) -> tuple[NodeId, ...]:
    """Servers that the change waits for."""
    assert m.change is not None
    return tuple(node for node in m.change.seats.values() if node not in m.servers)


def not_joined(m: PSManager) -> tuple[NodeId, ...]:
    """Servers of the next version that nobody has joined as yet."""
    assert m.change is not None
    return tuple(node for node in m.change.seats.values() if m.nodes[node].status is NodeStatus.PENDING)


def elected(m: PSManager) -> NodeId | None:
    """Who should be chief: of those who train, the node that was launched to be it, then the one that came first."""
    training = [t for t in m.trainers.values() if t.active is not None]
    return _first(training or m.trainers.values())


def mover(m: PSManager, version: int) -> NodeId | None:
    """Who moves the state of this version: it must be prepared for it."""
    prepared = [t for t in m.trainers.values() if t.prepared == version]
    return _first([t for t in prepared if t.active is not None] or prepared)


def _first(trainers: Iterable[Trainer]) -> NodeId | None:
    return min(trainers, key=lambda t: (t.role is not Role.CHIEF, t.seniority)).node if trainers else None


def may_join(m: PSManager) -> bool:
    """Whether a trainer may begin on the current version: not while the others stand still, or are about to."""
    if m.current is None or m.failed is not None:
        return False
    change = m.change
    return (
        change is None
        or change.fuzzy
        or change.phase is Phase.RESUMING
        or (change.phase is Phase.LAUNCHING and change.kind is Kind.RESIZE)
    )


def errand(m: PSManager) -> Move | Save | None:
    """What the chief has to do now, while all stand still."""
    change, directory = m.change, m.settings.checkpoint_dir
    if change is None:
        return None
    if change.phase is Phase.SAVING:
        assert m.current is not None
        assert change.barrier is not None
        path = f"{directory}/ckpt-{change.barrier:08d}-v{m.current.version}-{m.chief}"
        return Save(version=m.current.version, barrier=change.barrier, path=path, fuzzy=change.fuzzy)
    if change.phase is not Phase.MOVING:
        return None
    assert change.cluster is not None
    version, source = change.cluster.version, change.cluster.source
    if isinstance(source, LiveCopy) and change.move > 1:
        path = f"{directory}/move-{version:08d}-{m.chief}"
        return Move(version=version, attempt=change.move, transfer=ThroughCheckpoint(source.version, path))
    return Move(version=version, attempt=change.move, transfer=source)


def words_for(m: PSManager, trainer: Trainer) -> tuple[ToTrainer, ...]:
    """All that was said to a trainer and that it has not answered."""
    words: list[ToTrainer] = []
    cluster, chief = m.next_training_ps_cluster, m.chief or ""
    if cluster is not None and trainer.told == cluster.version != trainer.prepared:
        words.append(PreparePS(cluster=cluster, chief=chief))
    if trainer.active is not None and trainer.halted is not None and not trainer.drained:
        reason = m.change.reason if m.change is not None else ""
        words.append(Drain(version=trainer.active, barrier=trainer.halted, reason=reason))
    if trainer.active is not None and trainer.halted is None and not trainer.resumed:
        words.append(Go(version=trainer.active, chief=chief))
    if trainer.node == m.chief and (task := errand(m)) is not None:
        words.append(task)
    return tuple(words)
