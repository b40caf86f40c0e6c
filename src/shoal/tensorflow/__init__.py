"""Elastic training with TensorFlow parameter servers: one loop around a model function.

    import tensorflow.compat.v1 as tf
    import shoal.tensorflow as elastic

    def model(batch):
        ids, labels = batch
        table = tf.get_variable("table", [1_000_000, 16])
        x = tf.reduce_mean(tf.nn.embedding_lookup(table, ids, partition_strategy="div"), axis=1)
        ...
        return elastic.Model(loss=loss, optimizer=tf.train.AdamOptimizer(1e-3))

    elastic.run(model, load, batch_size=256, size=len(records), shard_size=10_000)

The layers, from the user inwards: `process` (`run`, and what a process is by its role), `loop` (training) and
`evaluator`; `member` (a worker, and what it does when the servers change) with the `coordinator` that tells it;
`generation` (graph and session of one version of the cluster), `graphs`
(which variable lies where), `transfer` and `checkpoints` (state from one version to the next); `sessions` and `servers`
(how TensorFlow is had so that servers come and go without a restart).
"""

from shoal.tensorflow.generation import Step
from shoal.tensorflow.graphs import Model
from shoal.tensorflow.process import run

__all__ = ["Model", "Step", "run"]
