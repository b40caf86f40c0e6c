"""A trainer's tie to whoever decides about the cluster. The words are those of `shoal.core.ps.words`."""

from typing import Protocol

from shoal.core.ps.words import FromTrainer, ToTrainer


class Coordinator(Protocol):
    node: str
    """This trainer's own name, to be compared with the chief's."""

    def say(self, word: FromTrainer) -> None:
        """May be called by several threads."""

    def hear(self, *, wait: float | None) -> ToTrainer | None:
        """The next word, in the order in which they were said. None: none came within `wait` seconds; `wait` None: as
        long as it takes."""
