"""Small models, and clusters to train them on."""

from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

from shoal.core.nodes import NodeId
from shoal.core.ps.cluster import Fresh, Partition, PSCluster, PSServer, Source
from shoal.core.ps.placement import placed
from shoal.tensorflow.graphs import Model

PARTS = 3


def a_batch(seed: int = 0, size: int = 16) -> tuple[Any, Any]:
    random = np.random.default_rng(seed)
    return random.integers(0, 3000, size=(size, 4)), random.random(size, dtype=np.float32)


def a_model(optimizer: Any = None, rows: int = 3000, width: int = 32) -> Any:
    """An embedding that is cut into parts, and a dense layer on it."""

    def model(batch: Any) -> Model:
        ids, labels = batch
        with tf.variable_scope("wide"):
            table = tf.get_variable("table", [rows, width], initializer=tf.random_normal_initializer(seed=1))
        mean = tf.reduce_mean(tf.nn.embedding_lookup(table, ids, partition_strategy="div"), axis=1)
        kernel = tf.get_variable("kernel", [width, 1], initializer=tf.random_normal_initializer(seed=2))
        logits = tf.squeeze(tf.matmul(mean, kernel), axis=1)
        loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits))
        return Model(loss=loss, optimizer=optimizer() if optimizer else tf.train.AdamOptimizer(0.01))

    return model


def a_cluster(
    version: int,
    servers: dict[int, str],
    partitions: tuple[Partition, ...],
    before: PSCluster | None = None,
    source: Source | None = None,
) -> PSCluster:
    """Servers by task, which is also the rank. Placed as the master places them."""
    lay = {} if before is None else {p.name: rank for p, rank in zip(partitions, before.placement, strict=True)}
    return PSCluster(
        version=version,
        servers=tuple(
            PSServer(rank=task, node=NodeId(f"ps-{task}"), address=servers[task]) for task in sorted(servers)
        ),
        partitions=partitions,
        placement=placed(partitions, sorted(servers), lay),
        source=source or Fresh(),
    )
