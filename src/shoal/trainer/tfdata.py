"""Leased shards as a `tf.data` source. TensorFlow is imported only when a dataset is asked for.

    source = tfdata.Source(job.data, "train")
    while source.refill():
        for batch in source.dataset().map(load).batch(32).prefetch(2):
            train(batch)
            source.trained(len(batch))

`tf.data` reads ahead, so the loop says what it has trained. When there is nothing to read now the dataset ends, with a
short batch perhaps; `refill` waits for more, and is False when everything is trained.
"""

from typing import Any

from shoal.core.errors import BadInput
from shoal.trainer.feed import Feed


class Source(Feed):
    def dataset(self) -> Any:
        """A `tf.data.Dataset` of record numbers, as int64. Raises `BadInput` when TensorFlow is not installed."""
        try:
            import tensorflow as tf  # type: ignore[import-not-found, import-untyped, unused-ignore]
        except ImportError as exc:
            raise BadInput("a tf.data source needs TensorFlow, which is not installed here") from exc
        return tf.data.Dataset.from_generator(self.records, output_signature=tf.TensorSpec(shape=(), dtype=tf.int64))
