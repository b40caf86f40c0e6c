"""The evaluator: a process that scores checkpoints, beside training and without a part in it.

It is told of one checkpoint at a time, reads it from the disk into a model of its own (it is its own and only parameter
server for that) and answers with figures. What it cannot score it says so of and passes over: nobody waits for it.
"""

import math
import time
import traceback
from collections.abc import Callable, Mapping, Sequence

from shoal.core.errors import BadInput
from shoal.core.ps.words import CheckpointMade, EvaluatorReady, Scored
from shoal.tensorflow import checkpoints
from shoal.tensorflow.alone import own_cluster
from shoal.tensorflow.checkpoints import CheckpointFailed
from shoal.tensorflow.generation import Generation
from shoal.tensorflow.graphs import ModelFunction, draw, signature_of
from shoal.tensorflow.loop import Load
from shoal.tensorflow.servers import Server
from shoal.trainer.servers import Voice

Evaluate = Callable[[str], Mapping[str, float]]
"""The user's own scoring: called with the folder of a checkpoint, which `tf.train.load_checkpoint(f"{path}/variables")`
reads."""


class HeldOut:
    """Scores by the model's own loss and metrics, on records that are not trained."""

    def __init__(
        self,
        server: Server,
        model: ModelFunction,
        load: Load,
        records: Sequence[int],
        *,
        batch_size: int,
        parts: int,
    ) -> None:
        if not len(records):
            raise BadInput(
                "an evaluator needs something to score with: give shoal.tensorflow.run held_out=, records that are "
                "not trained, or evaluate=, a function of your own"
            )
        self._load, self._records, self._batch_size = load, records, batch_size
        blueprint = draw(model, signature_of(load([0])), parts=parts)
        self._model = Generation(server, None, blueprint, own_cluster(server.address, blueprint.layout.partitions))

    def score(self, path: str) -> dict[str, float]:
        """Raises `CheckpointFailed`."""
        checkpoints.restore(self._model, path)
        total: dict[str, float] = {}
        for at in range(0, len(self._records), self._batch_size):
            records = self._records[at : at + self._batch_size]
            for name, value in self._model.score(self._load(records)).items():
                total[name] = total.get(name, 0.0) + value * len(records)
        return {name: value / len(self._records) for name, value in total.items()}


def serve(voice: Voice, score: Callable[[str], Mapping[str, float]], told: Callable[[str], None]) -> None:
    """Score checkpoints until the last one is scored. `told` hears of each, in a line for people."""
    voice.say(EvaluatorReady())
    done: dict[str, Scored] = {}
    while True:
        word = voice.hear(wait=None)
        if not isinstance(word, CheckpointMade):
            continue  # for trainers
        if word.path not in done:
            done = {word.path: _scored(word, score, told)}  # the master may ask for the last one twice
        voice.say(done[word.path])
        if word.final:
            return


def _scored(word: CheckpointMade, score: Callable[[str], Mapping[str, float]], told: Callable[[str], None]) -> Scored:
    began = time.monotonic()
    try:
        metrics = {name: float(value) for name, value in score(word.path).items()}
    except CheckpointFailed as exc:
        told(f"step {word.step}: not scored: {exc}")
        return Scored(path=word.path, metrics={})
    except Exception:  # the user's function; the next checkpoint may be to its liking
        told(f"step {word.step}: not scored, the evaluation failed:\n{traceback.format_exc()}")
        return Scored(path=word.path, metrics={})
    figures = ", ".join(f"{name} {value:.6g}" for name, value in sorted(metrics.items()))
    told(f"step {word.step}: {figures} ({time.monotonic() - began:.1f} s)")
    return Scored(path=word.path, metrics={name: value for name, value in metrics.items() if math.isfinite(value)})
