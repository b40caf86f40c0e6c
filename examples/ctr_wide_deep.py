"""A wide-and-deep model of clicks, on parameter servers. The clicks are generated, so nothing is downloaded.

    python examples/ctr_wide_deep.py --records 100000
    shoal run --strategy ps --nnodes 1:4 --ps 1:3 --evaluator --checkpoint-dir /tmp/ctr examples/ctr_wide_deep.py

Each record is a user who sees an item in some context, and clicks or not. The wide part remembers pairs of user group
and item category, the deep part learns what users and items have in common. The click follows a hidden rule with some
noise, so the loss should fall well below that of always saying the mean.
"""

import argparse
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

import shoal.tensorflow as elastic

USERS, ITEMS, GROUPS, CATEGORIES, NUMBERS, WIDTH = 20_000, 5_000, 50, 40, 4, 16
HELD_OUT = 8192
"""Records that are never trained: an evaluator scores with them."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=200_000)
    parser.add_argument("--batch-size", type=int, default=256)
    options = parser.parse_args()
    losses: list[float] = []

    def told(step: elastic.Step) -> None:
        losses.append(step.loss)
        if len(losses) % 100 == 0:
            print(f"step {step.step}: loss {np.mean(losses[-100:]):.4f}", flush=True)

    elastic.run(
        model,
        load,
        batch_size=options.batch_size,
        dataset="clicks",
        size=options.records,
        shard_size=20 * options.batch_size,
        shuffle="shards",
        on_step=told,
        held_out=range(options.records, options.records + HELD_OUT),
    )
    quarter = max(1, len(losses) // 4)
    mean = float(load(range(4096))["clicked"].mean())
    alone = -(mean * np.log(mean) + (1 - mean) * np.log(1 - mean))
    print(f"{len(losses)} steps: loss {np.mean(losses[-quarter:]):.4f}; always saying the mean: {alone:.4f}")


# The data ---------------------------------------------------------------------------------------------------


def load(records: Any) -> dict[str, Any]:
    """A batch of clicks. Everything about a record follows from its number, wherever it is asked for."""
    number = np.asarray(records, dtype=np.uint64)
    user, item = mixed(number, 1) % USERS, mixed(number, 2) % ITEMS
    numbers = np.stack([uniform(number, 10 + n) for n in range(NUMBERS)], axis=1)
    taste = uniform(user % GROUPS * CATEGORIES + item % CATEGORIES, 3) - 0.5
    appeal = uniform(item, 4) + uniform(user, 5) - 1.0
    score = 4.0 * taste + 2.0 * appeal + numbers[:, 0] - numbers[:, 1] - 1.0
    return {
        "user": user.astype(np.int64),
        "item": item.astype(np.int64),
        "numbers": numbers,
        "clicked": (uniform(number, 6) < 1.0 / (1.0 + np.exp(-score))).astype(np.float32),
    }


def mixed(values: Any, salt: int) -> Any:
    """64 bits that have nothing to do with their neighbours' (splitmix64)."""
    with np.errstate(over="ignore"):
        x = np.asarray(values, dtype=np.uint64) + np.uint64(0x9E3779B97F4A7C15) * np.uint64(salt)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return x ^ (x >> np.uint64(31))


def uniform(values: Any, salt: int) -> Any:
    return (mixed(values, salt) >> np.uint64(40)).astype(np.float32) / np.float32(1 << 24)


# The model --------------------------------------------------------------------------------------------------


def model(batch: Any) -> elastic.Model:
    user, item = batch["user"], batch["item"]
    pair = user % GROUPS * CATEGORIES + item % CATEGORIES
    wide = looked_up("wide", GROUPS * CATEGORIES, 1, pair)
    x = tf.concat([looked_up("users", USERS, WIDTH, user), looked_up("items", ITEMS, WIDTH, item), batch["numbers"]], 1)
    for layer, width in enumerate((32, 16)):
        x = tf.nn.relu(dense(f"deep_{layer}", x, width))
    logits = tf.squeeze(wide + dense("out", x, 1), axis=1)
    loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=batch["clicked"], logits=logits))
    # Not Adam: TensorFlow's rewrites its moments of every row in every step, and of two workers that do so at once one
    # is undone. Adagrad touches only the rows of the batch.
    return elastic.Model(loss=loss, optimizer=tf.train.AdagradOptimizer(0.05, 1e-5, use_locking=True))


def looked_up(name: str, rows: int, width: int, ids: Any) -> Any:
    table = tf.get_variable(name, [rows, width], initializer=tf.random_normal_initializer(stddev=0.05))
    return tf.nn.embedding_lookup(table, ids, partition_strategy="div")


def dense(name: str, x: Any, width: int) -> Any:
    kernel = tf.get_variable(f"{name}_kernel", [x.shape[1], width])
    bias = tf.get_variable(f"{name}_bias", [width], initializer=tf.zeros_initializer())
    return tf.matmul(x, kernel) + bias


if __name__ == "__main__":
    main()
