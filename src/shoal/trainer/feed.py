"""A feed: records of leased shards for a pipeline that reads ahead of training (a `DataLoader`, `tf.data`).

What was handed out is not trained yet; it counts when the training loop says so, in the order in which it was handed
out. A feed never waits for a shard while something that it has handed out is not trained: the shard that it would wait
for may be its own. It ends instead, the pipeline runs dry (a last batch may be short), and `refill` waits:

    while feed.refill():
        for batch in pipeline(feed.records()):
            if not feed.is_void(len(batch)):
                train(batch)
            feed.trained(len(batch))

`records` may run in another thread than the rest.
"""

import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from shoal.trainer.data import PREFETCH, Data, Shard


@dataclass(slots=True)
class _Part:
    """Of one shard: how many records were handed out, how many of those are trained."""

    shard: Shard
    left: Iterator[int]
    handed: int = 0
    trained: int = 0
    is_over: bool = False
    """Nothing more of it will be handed out."""


class Feed:
    def __init__(self, data: Data, name: str, *, epoch: int | None = None, prefetch: int = PREFETCH) -> None:
        self._data, self._name = data, name
        self._epoch, self._prefetch = epoch, prefetch
        self._lock = threading.Lock()
        self._parts: deque[_Part] = deque()
        self._begun = False

    def refill(self) -> bool:
        """Wait for something to train; False: everything is. To be called when all that was handed out is trained."""
        if not self._begun:
            self._begun = True
            self._data.want(self._name, epoch=self._epoch, prefetch=self._prefetch)
        return self._part(wait=True) is not None

    def records(self) -> Iterator[int]:
        """Record numbers, until there is nothing to hand out now."""
        while (part := self._part(wait=False)) is not None:
            for record in part.left:
                if part.shard.is_lost:
                    break
                with self._lock:
                    part.handed += 1
                yield record
            with self._lock:
                part.is_over = True
                self._close_trained()

    def trained(self, count: int) -> None:
        """So many of the records that were handed out are trained, the oldest first."""
        with self._lock:
            if count > self._outstanding:
                raise ValueError(
                    f"dataset {self._name}: {count} records are said to be trained, {self._outstanding} are out"
                )
            for part in self._parts:
                done = min(count, part.handed - part.trained)
                part.trained += done
                part.shard.trained(done)
                count -= done
            self._close_trained()

    def is_void(self, count: int) -> bool:
        """The oldest so many records that are not trained are all of shards that were lost, perhaps to a restore: they
        are not to be trained here."""
        with self._lock:
            for part in self._parts:
                mine = min(count, part.handed - part.trained)
                if mine and not part.shard.is_lost:
                    return False
                count -= mine
            return True

    def give_up(self) -> None:
        """The loop was left: what was handed out and is not trained is handed out again when it is entered again."""
        with self._lock:
            for part in reversed(self._parts):
                self._data.put_back(part.shard)
            self._parts.clear()
            self._begun = False

    @property
    def _outstanding(self) -> int:
        return sum(part.handed - part.trained for part in self._parts)

    def _part(self, *, wait: bool) -> _Part | None:
        with self._lock:
            if self._parts and not self._parts[-1].is_over:
                return self._parts[-1]
        shard = self._data.take(self._name, wait=wait)
        if shard is None:
            return None
        part = _Part(shard, shard.records())
        with self._lock:
            self._parts.append(part)
        return part

    def _close_trained(self) -> None:
        while self._parts and self._parts[0].is_over and self._parts[0].trained == self._parts[0].handed:
            self._data.close(self._parts.popleft().shard)
