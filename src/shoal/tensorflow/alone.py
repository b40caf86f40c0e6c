"""Training without a master: the process is its own chief, its own and only parameter server, and nothing changes."""

import queue

from shoal.core.errors import BadInput
from shoal.core.nodes import NodeId
from shoal.core.ps.cluster import Fresh, Partition, PSCluster, PSServer
from shoal.core.ps.words import (
    FromTrainer,
    Go,
    ModelNamed,
    Move,
    Moved,
    MoveFailed,
    PreparedPS,
    PrepareFailed,
    PreparePS,
    ToTrainer,
)


class Alone:
    """A `Coordinator` that knows one trainer and says to it what a master would."""

    def __init__(self, address: str) -> None:
        self.node = "worker-0"
        self._address = address
        self._words: queue.SimpleQueue[ToTrainer | PrepareFailed | MoveFailed] = queue.SimpleQueue()

    def say(self, word: FromTrainer) -> None:
        match word:
            case ModelNamed(partitions=partitions):
                self._words.put(PreparePS(cluster=own_cluster(self._address, partitions), chief=self.node))
            case PreparedPS(version=version):
                self._words.put(Move(version=version, attempt=1, transfer=Fresh()))
            case Moved(version=version):
                self._words.put(Go(version=version, chief=self.node))
            case PrepareFailed() | MoveFailed():
                self._words.put(word)
            case _:
                pass  # nobody is interested

    def hear(self, *, wait: float | None) -> ToTrainer | None:
        try:
            word = self._words.get(block=wait != 0, timeout=wait or None)
        except queue.Empty:
            return None
        if isinstance(word, PrepareFailed | MoveFailed):
            raise BadInput(f"training cannot begin: {word.reason}")
        return word


def own_cluster(address: str, partitions: tuple[Partition, ...]) -> PSCluster:
    """A cluster of one server, which is the process itself."""
    return PSCluster(
        version=1,
        servers=(PSServer(rank=0, node=NodeId("ps-0"), address=address),),
        partitions=partitions,
        placement=(0,) * len(partitions),
        source=Fresh(),
    )
