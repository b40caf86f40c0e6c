"""What the node's training processes say about parameter servers, on its way to the master and back.

Nothing is kept of it but who they are: that is said again after every handshake, for the master may be another one that
has never heard it. All else is asked again by the master if it has not been answered.
"""

from shoal.core.ps.words import EvaluatorReady, FromNode, ModelNamed, ServerReady, Standing


class Voices:
    def __init__(self) -> None:
        self._standing: dict[int, Standing] = {}

    def said(self, local_rank: int, word: FromNode) -> None:
        if isinstance(word, ServerReady | ModelNamed | EvaluatorReady):
            self._standing[local_rank] = word

    def gone(self, local_rank: int) -> None:
        self._standing.pop(local_rank, None)

    @property
    def again(self) -> tuple[Standing, ...]:
        """What a master that was out of touch has to hear."""
        return tuple(self._standing[rank] for rank in sorted(self._standing))

    @property
    def listeners(self) -> tuple[int, ...]:
        """Who hears what the master says."""
        return tuple(sorted(self._standing))
