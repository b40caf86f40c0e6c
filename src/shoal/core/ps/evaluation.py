"""Which checkpoint the evaluator scores, and what it found.

Every checkpoint is given to the evaluator once, one at a time, the oldest first. An evaluator that dies gives back what
it had in hand: the next one begins with it. Training never waits for any of this; if the evaluator cannot keep up, the
oldest are passed over, and that is said.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from shoal.core.nodes import NodeId
from shoal.core.ps.cluster import PSCheckpoint
from shoal.core.ps.words import CheckpointMade

MOST_WAITING = 10
"""Checkpoints that wait for their score. They must stay on disk as long."""
KEPT_SCORES = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    path: str
    step: int
    metrics: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Made by `Evaluation()`, changed only by the functions below: each returns the next one and what the evaluator is
    to be told, if anything."""

    waiting: tuple[PSCheckpoint, ...] = ()
    """The oldest first; the first is in the evaluator's hands if there is one."""
    evaluator: NodeId | None = None
    incarnation: int = 0
    scores: tuple[Score, ...] = ()
    passed_over: int = 0
    is_last: bool = False
    """Training is over: there will be no more checkpoints."""

    @property
    def needed(self) -> frozenset[str]:
        """Paths that must not be deleted."""
        return frozenset(checkpoint.path for checkpoint in self.waiting)

    @property
    def is_done(self) -> bool:
        return self.is_last and not self.waiting


Evaluated = tuple[Evaluation, CheckpointMade | None]


def kept(e: Evaluation, checkpoint: PSCheckpoint) -> Evaluated:
    """There is a new checkpoint. What the evaluator has in hand is never passed over."""
    waiting = (*e.waiting, checkpoint)
    too_many = max(0, len(waiting) - MOST_WAITING)
    in_hand = 1 if e.evaluator is not None else 0
    waiting = waiting[:in_hand] + waiting[in_hand + too_many :]
    return _told(replace(e, waiting=waiting, passed_over=e.passed_over + too_many), before=e)


def ready(e: Evaluation, node: NodeId, incarnation: int) -> Evaluated:
    """An evaluator is up, or back. Said again it hears again what it has in hand."""
    if e.evaluator == node and incarnation < e.incarnation:
        return e, None
    e = replace(e, evaluator=node, incarnation=incarnation)
    return e, _word(e)


def gone(e: Evaluation, node: NodeId) -> Evaluation:
    """What it had in hand is the first for the next one."""
    return replace(e, evaluator=None) if node == e.evaluator else e


def scored(e: Evaluation, node: NodeId, incarnation: int, path: str, metrics: Mapping[str, float]) -> Evaluated:
    """A score counts once, for what was in hand."""
    if (node, incarnation) != (e.evaluator, e.incarnation) or not e.waiting or e.waiting[0].path != path:
        return e, None
    done = e.waiting[0]
    score = Score(path=done.path, step=done.step, metrics=dict(metrics))
    e = replace(e, waiting=e.waiting[1:], scores=(*e.scores, score)[-KEPT_SCORES:])
    return e, _word(e)


def over(e: Evaluation) -> Evaluated:
    """Training is over. The last checkpoint is said to be the last, also if it is in hand already."""
    if e.is_last:
        return e, None
    e = replace(e, is_last=True)
    return e, _word(e) if len(e.waiting) == 1 else None


def _told(e: Evaluation, *, before: Evaluation) -> Evaluated:
    return e, _word(e) if not before.waiting else None


def _word(e: Evaluation) -> CheckpointMade | None:
    if e.evaluator is None or not e.waiting:
        return None
    first = e.waiting[0]
    return CheckpointMade(path=first.path, step=first.step, final=e.is_last and len(e.waiting) == 1)
