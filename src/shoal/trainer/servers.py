"""A training process's words about parameter servers: said through its session, heard in the order they came."""

import queue
from collections.abc import Callable

from shoal.core.ps.words import FromNode, ToNode


class Voice:
    """`send` passes a word on to the agent; `received` is called with its words, by the link's thread."""

    def __init__(self, send: Callable[[FromNode], None]) -> None:
        self._send = send
        self._heard: queue.SimpleQueue[ToNode | None] = queue.SimpleQueue()

    def say(self, word: FromNode) -> None:
        """May be called by several threads. Raises `Disconnected` when the agent is gone."""
        self._send(word)

    def hear(self, *, wait: float | None) -> ToNode | None:
        """The next word; None: none came within `wait` seconds, or `wake` was called. `wait` None: as long as it
        takes."""
        try:
            return self._heard.get(timeout=wait)
        except queue.Empty:
            return None

    def received(self, word: ToNode) -> None:
        self._heard.put(word)

    def wake(self) -> None:
        """Let whoever waits in `hear` look up. May be called by a signal's handler."""
        self._heard.put(None)
