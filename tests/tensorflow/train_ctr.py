"""The click model under `shoal run`, for tests: it waits at a gate, and counts on its servers what it has seen.

While the gate file is there each batch takes a while, and ever longer the fewer are left, so that there is something to
train when servers change, however slow the machine is. The variable `seen` has one number for each record, to which a
step adds one: what the model has trained is then in the model itself, goes back with it when a checkpoint is restored,
and can be read from its last checkpoint.
"""

import argparse
import time
from pathlib import Path
from typing import Any

import tensorflow.compat.v1 as tf

import shoal.tensorflow as elastic
from examples import ctr_wide_deep as clicks

SECONDS_AT_THE_GATE = (0.3, 1.0, 5.0)
"""For a batch of the first third, of the second, of the last."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--gate", type=Path, required=True)
    parser.add_argument("--records", type=int, required=True)
    parser.add_argument("--batch-size", type=int, required=True)
    options = parser.parse_args()
    tf.get_logger().setLevel("ERROR")

    def load(records: Any) -> dict[str, Any]:
        if options.gate.exists() and 0 < records[0] < options.records:
            time.sleep(SECONDS_AT_THE_GATE[3 * records[0] // options.records])
        return {**clicks.load(records), "record": clicks.np.asarray(records, dtype="int64") % options.records}

    def model(batch: Any) -> elastic.Model:
        made = clicks.model(batch)
        seen = tf.get_variable("seen", [options.records], initializer=tf.zeros_initializer())
        count = tf.reduce_sum(tf.nn.embedding_lookup(seen, batch["record"], partition_strategy="div"))
        return elastic.Model(loss=made.loss, optimizer=Counting(made.optimizer, count, tuple(seen)))

    elastic.run(
        model,
        load,
        batch_size=options.batch_size,
        dataset="clicks",
        size=options.records,
        shard_size=8 * options.batch_size,
        held_out=range(options.records, options.records + clicks.HELD_OUT),
    )


class Counting:
    """An optimizer that also adds one to every record of a batch."""

    def __init__(self, optimizer: Any, count: Any, seen: tuple[Any, ...]) -> None:
        self._optimizer, self._count, self._seen = optimizer, count, seen

    def minimize(self, loss: Any, global_step: Any) -> Any:
        counted = {variable.op.name for variable in self._seen}
        others = [variable for variable in tf.trainable_variables() if variable.op.name not in counted]
        trained = self._optimizer.minimize(loss, global_step=global_step, var_list=others)
        added = tf.train.GradientDescentOptimizer(1.0).minimize(-self._count, var_list=list(self._seen))
        return tf.group(trained, added)


if __name__ == "__main__":
    main()
