"""What trainers say, and what follows from each word. An answer counts only if it is one to what was asked last."""

from dataclasses import replace
from typing import assert_never

from shoal.core.nodes import NodeId, Role
from shoal.core.ps.cluster import FromCheckpoint, LiveCopy, PSCheckpoint
from shoal.core.ps.losses import is_committed, trainer_left
from shoal.core.ps.patience import RETRY
from shoal.core.ps.steps import abandon, again, commit, saved, send_errand
from shoal.core.ps.turn import Turn
from shoal.core.ps.values import KEPT_CHECKPOINTS, CheckpointKept, Kind, Phase, PSManager, RefuseTrainer, Trainer
from shoal.core.ps.words import (
    ChiefIs,
    Drained,
    FromTrainer,
    ModelNamed,
    Moved,
    MoveFailed,
    PreparedPS,
    PrepareFailed,
    Resumed,
    SavedPS,
    SaveFailed,
    SaveWanted,
    ServerUnreachable,
)


def named(turn: Turn, node: NodeId, incarnation: int, role: Role, word: ModelNamed) -> None:
    m = turn.m
    known = m.trainers.get(node)
    if known is not None and known.incarnation >= incarnation:
        return
    if known is not None:
        trainer_left(turn, node, "it started again")
    if len({p.name for p in word.partitions}) < len(word.partitions):
        turn.effects.append(RefuseTrainer(node=node, reason=f"{node}: two partitions of its model have one name"))
        return
    if m.partitions and m.partitions != word.partitions:
        turn.effects.append(RefuseTrainer(node=node, reason=_difference(turn.m, node, word)))
        return
    turn.m = replace(turn.m, partitions=word.partitions, next_seniority=turn.m.next_seniority + 1)
    turn.put(Trainer(node=node, incarnation=incarnation, role=role, seniority=turn.m.next_seniority - 1))
    if turn.m.chief is not None:
        turn.tell(ChiefIs(chief=turn.m.chief), (node,))


def _difference(m: PSManager, node: NodeId, word: ModelNamed) -> str:
    known, said = {p.name: p.nbytes for p in m.partitions}, {p.name: p.nbytes for p in word.partitions}
    other = sorted(n for n in known.keys() | said.keys() if known.get(n) != said.get(n))
    detail = f"it differs in {', '.join(other[:3])}" if other else "its partitions come in another order"
    return f"{node}: its model is not the one that the job trains: {detail}"


def answered(turn: Turn, trainer: Trainer, word: FromTrainer) -> None:
    m, change = turn.m, turn.m.change
    match word:
        case ModelNamed():
            raise AssertionError("heard before")
        case PreparedPS(version=version):
            if version == trainer.told:
                turn.put(replace(trainer, prepared=version))
        case PrepareFailed(version=version, reason=reason):
            _prepare_failed(turn, trainer, version, reason)
        case Drained(barrier=barrier):
            if barrier == trainer.halted:
                turn.put(replace(trainer, drained=True, missed=0))
        case Moved(version=version, attempt=attempt):
            if _is_answer(m, trainer, version, attempt):
                commit(turn)
        case MoveFailed(version=version, attempt=attempt, reason=reason):
            if _is_answer(m, trainer, version, attempt):
                _move_failed(turn, reason)
        case Resumed(version=version):
            _resumed(turn, trainer, version)
        case SaveWanted(reason=reason, fuzzy=fuzzy):
            _save_wanted(turn, trainer, reason, fuzzy=fuzzy)
        case SavedPS(checkpoint=checkpoint, barrier=barrier):
            _saved(turn, trainer, checkpoint, barrier)
        case SaveFailed(barrier=barrier, reason=reason):
            if (
                change is not None
                and change.phase is Phase.SAVING
                and (trainer.node, barrier)
                == (
                    m.chief,
                    change.barrier,
                )
            ):
                turn.m = replace(m, unsaved=reason)
                abandon(turn, reason)
        case ServerUnreachable(version=version, rank=rank):
            _unreachable(turn, trainer, version, rank)
        case _:
            assert_never(word)


def _is_answer(m: PSManager, trainer: Trainer, version: int, attempt: int) -> bool:
    change = m.change
    if change is None or change.phase is not Phase.MOVING or change.cluster is None:
        return False
    return (trainer.node, version, attempt) == (m.chief, change.cluster.version, change.move)


def _prepare_failed(turn: Turn, trainer: Trainer, version: int, reason: str) -> None:
    """One that trains can go on where it is; one that does not yet, or that has nothing to go back to, starts again."""
    change = turn.m.change
    if version != trainer.told or trainer.prepared == version:
        return
    is_next = change is not None and change.cluster is not None and version == change.cluster.version
    if trainer.active is None or (is_next and change is not None and change.kind is Kind.ROLLBACK):
        turn.restart((trainer.node,), f"{trainer.node} cannot prepare for version {version}: {reason}")
    elif is_next:
        abandon(turn, f"{trainer.node} cannot prepare for it: {reason}")


def _move_failed(turn: Turn, reason: str) -> None:
    """Another way, while all still stand: through a checkpoint, or from an earlier one."""
    m, change = turn.m, turn.change
    assert change.cluster is not None
    source = change.cluster.source
    if isinstance(source, LiveCopy) and change.move == 1 and m.settings.checkpoint_dir is not None:
        turn.say(f"the state could not be copied ({reason}): it goes through a checkpoint")
        turn.m = replace(m, change=replace(change, move=2, since=turn.now))
        send_errand(turn)
    elif isinstance(source, LiveCopy):
        abandon(turn, f"the state could not be moved: {reason}")
    elif _may_be_a_loss(turn):
        _try_again_later(turn, reason)
    elif isinstance(source, FromCheckpoint) and len(m.checkpoints) > 1:
        turn.say(f"{source.path} could not be restored ({reason}): the one before it is tried")
        turn.m = replace(m, checkpoints=m.checkpoints[:-1])
        again(turn, reason)
    elif isinstance(source, FromCheckpoint):
        turn.fail(f"{source.path} could not be restored: {reason}")
    else:
        turn.fail(f"the model could not be initialised: {reason}")


def _may_be_a_loss(turn: Turn) -> bool:
    """A server may be gone of which nobody knows yet."""
    failing = turn.change.failing
    return failing is None or turn.now < failing[0] + turn.m.settings.restore_patience


def _try_again_later(turn: Turn, reason: str) -> None:
    change = turn.change
    if change.failing is None:
        turn.say(f"the state could not be brought to the servers ({reason}): it is tried again")
    since = turn.now if change.failing is None else change.failing[0]
    turn.m = replace(turn.m, change=replace(change, failing=(since, turn.now + RETRY), since=turn.now))


def _unreachable(turn: Turn, trainer: Trainer, version: int, rank: int) -> None:
    """While all go back to a checkpoint it is no news: what the version before has lost is known."""
    m = turn.m
    if m.current is None or not version == m.current.version == trainer.active or rank not in m.current.ranks:
        return
    if m.change is None or m.change.kind is not Kind.ROLLBACK or is_committed(m):
        since = trainer.unreachable[1] if trainer.unreachable is not None else turn.now
        turn.put(replace(trainer, unreachable=(rank, since)))


def _resumed(turn: Turn, trainer: Trainer, version: int) -> None:
    if version != trainer.active or trainer.halted is not None:
        return
    turn.put(replace(trainer, resumed=True, unreachable=None, doubted=None))
    if turn.m.change is not None:
        turn.m = replace(turn.m, change=replace(turn.change, awaiting=turn.change.awaiting - {trainer.node}))


def _save_wanted(turn: Turn, trainer: Trainer, reason: str, *, fuzzy: bool) -> None:
    """A fuzzy one is not what somebody waits for who wants one for which all stand still."""
    if trainer.node != turn.m.chief or trainer.active is None:
        return
    if turn.m.settings.checkpoint_dir is None:
        turn.say(f"no checkpoint ({reason}): the job has no path for it")
        return
    fuzzy = fuzzy and (turn.m.save_wanted is None or turn.m.fuzzy_wanted)
    turn.m = replace(turn.m, save_wanted=reason, fuzzy_wanted=fuzzy, unsaved=turn.m.unsaved or "it was not made")


def _saved(turn: Turn, trainer: Trainer, checkpoint: PSCheckpoint, barrier: int) -> None:
    m, change = turn.m, turn.m.change
    if trainer.node != m.chief or m.current is None or checkpoint.version != m.current.version:
        return
    if change is None or change.phase is not Phase.SAVING:
        return
    if (barrier, checkpoint.fuzzy) != (change.barrier, change.fuzzy):
        return
    turn.m = replace(m, checkpoints=(*m.checkpoints, checkpoint)[-KEPT_CHECKPOINTS:], unsaved=None)
    turn.effects.append(CheckpointKept(checkpoint=checkpoint))
    saved(turn)
