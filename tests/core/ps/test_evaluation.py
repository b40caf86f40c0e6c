"""Each checkpoint is scored once, whoever dies, and training never waits for it."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.nodes import NodeId
from shoal.core.ps import evaluation
from shoal.core.ps.cluster import PSCheckpoint
from shoal.core.ps.evaluation import MOST_WAITING, Evaluation
from shoal.core.ps.words import CheckpointMade

ONE = NodeId("evaluator-0")


def a_checkpoint(step: int) -> PSCheckpoint:
    return PSCheckpoint(path=f"/ckpt/{step}", step=step, version=1)


def test_checkpoints_are_scored_one_after_the_other() -> None:
    e, word = evaluation.ready(Evaluation(), ONE, 1)
    assert word is None
    e, word = evaluation.kept(e, a_checkpoint(1))
    assert word == CheckpointMade(path="/ckpt/1", step=1)
    e, word = evaluation.kept(e, a_checkpoint(2))
    assert word is None
    e, word = evaluation.scored(e, ONE, 1, "/ckpt/1", {"auc": 0.7})
    assert word == CheckpointMade(path="/ckpt/2", step=2)
    assert [(score.step, score.metrics) for score in e.scores] == [(1, {"auc": 0.7})]


def test_the_next_evaluator_begins_with_what_the_one_before_had_in_hand() -> None:
    e, _ = evaluation.ready(Evaluation(), ONE, 1)
    e, _ = evaluation.kept(e, a_checkpoint(1))
    e = evaluation.gone(e, ONE)
    e, late = evaluation.scored(e, ONE, 1, "/ckpt/1", {"auc": 0.1})
    assert (late, e.scores) == (None, ())
    e, word = evaluation.ready(e, NodeId("evaluator-1"), 1)
    assert word == CheckpointMade(path="/ckpt/1", step=1)


def test_the_last_checkpoint_is_said_to_be_the_last() -> None:
    e, _ = evaluation.ready(Evaluation(), ONE, 1)
    e, _ = evaluation.kept(e, a_checkpoint(1))
    e, _ = evaluation.kept(e, a_checkpoint(2))
    e, word = evaluation.over(e)
    assert word is None
    e, word = evaluation.scored(e, ONE, 1, "/ckpt/1", {})
    assert word == CheckpointMade(path="/ckpt/2", step=2, final=True)
    e, word = evaluation.scored(e, ONE, 1, "/ckpt/2", {})
    assert e.is_done


moves = st.lists(st.sampled_from(["save", "join", "die", "score", "late", "again"]), max_size=60)


@given(moves)
def test_every_checkpoint_is_scored_once_or_passed_over(steps: list[str]) -> None:
    e, saves, number = Evaluation(), 0, 0
    in_hand: CheckpointMade | None = None
    for move in steps:
        node = NodeId(f"evaluator-{number}")
        word: CheckpointMade | None = None
        match move:
            case "save":
                saves += 1
                e, word = evaluation.kept(e, a_checkpoint(saves))
            case "join" if e.evaluator is None:
                number += 1
                e, word = evaluation.ready(e, NodeId(f"evaluator-{number}"), 1)
            case "die":
                e, in_hand = evaluation.gone(e, node), None
            case "score" if in_hand is not None:
                path, in_hand = in_hand.path, None
                e, word = evaluation.scored(e, node, 1, path, {})
            case "late":
                e, word = evaluation.scored(e, node, 1, "/ckpt/0", {})
            case "again" if e.evaluator is not None:
                e, word = evaluation.ready(e, node, 1)
            case _:
                pass
        in_hand = word or in_hand
        e = msgspec.msgpack.decode(msgspec.msgpack.encode(e), type=Evaluation)
        steps_scored = [score.step for score in e.scores]
        assert steps_scored == sorted(set(steps_scored))
        assert len(e.scores) + len(e.waiting) + e.passed_over == saves
        assert len(e.waiting) <= MOST_WAITING
        assert in_hand is None or in_hand.path in e.needed
        assert (in_hand is not None) == (e.evaluator is not None and bool(e.waiting))
