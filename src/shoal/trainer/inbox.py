"""What the agent has told this process, and the one condition on which everything here waits.

The link's thread is the only writer of what comes from the agent (`receive`); completions of collectives notify the
same condition, so that a waiter sees "it is done" and "the world changed" alike, whichever is first, without polling.
Generations only grow: a flag holds the latest generation it was said for, and older words never count again.
"""

import threading
import time

from shoal.core.ps.words import Word
from shoal.core.world import World
from shoal.wire.local import (
    Attached,
    CheckpointAnswer,
    Checkpoints,
    DatasetUnusable,
    FromAgentLocal,
    LedgerMark,
    ShardsGiven,
    SlotGiven,
    SlotRefused,
    SlotsMade,
)
from shoal.wire.messages import Commit, Interrupt, Pause, Prepare, Refuse, Release, StorePush


class WorldChanged(BaseException):
    """The world this process trained in is over; `run` catches it and enters the next one.

    It derives from BaseException, as a cancellation does, so that an `except Exception` in a training loop does not
    swallow it.
    """


class Inbox:
    """Written under `changed`, which is notified after every change."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.prepared: World | None = None
        self.committed = 0
        self.store: dict[str, bytes] = {}
        """The bootstrap store of generation `committed`."""
        self.paused = 0
        self.interrupted = 0
        self.released = 0
        self.noticed_at: float | None = None
        """When the end of the current world was first heard of (`time.monotonic`)."""
        self.reason = ""
        self.answer: CheckpointAnswer | None = None
        """To the last question about checkpoints; whoever asked takes it away."""

    def receive(self, message: FromAgentLocal) -> None:
        with self.changed:
            match message:
                case Prepare(world=world):
                    self.prepared = world
                case Commit(generation=generation, store=store):
                    self.committed, self.store = generation, dict(store)
                    self.noticed_at = None
                case StorePush(generation=generation, store=store):
                    if generation == self.committed:
                        self.store.update(store)
                case Pause(generation=generation, reason=reason):
                    self.paused = generation
                    self._notice(reason)
                case Interrupt(generation=generation, reason=reason):
                    self.interrupted = generation
                    self._notice(reason)
                case Release(generation=generation):
                    self.released = generation
                case SlotGiven() | SlotRefused() | SlotsMade() | Checkpoints():
                    self.answer = message
                case ShardsGiven() | DatasetUnusable() | LedgerMark():
                    pass  # the data's business: the session has passed them on
                case Word():
                    pass  # about parameter servers: the session has passed it on
                case Attached() | Refuse():
                    pass  # answers to the handshake; the link has dealt with them
            self.changed.notify_all()

    def is_broken(self, generation: int) -> bool:
        """The world of this generation cannot go on: come out of it now."""
        return self.interrupted >= generation or self.is_superseded(generation)

    def is_superseded(self, generation: int) -> bool:
        return self.prepared is not None and self.prepared.generation > generation

    def is_pausing(self, generation: int) -> bool:
        """The members of this generation are asked to agree on a step boundary and come out there."""
        return self.paused >= generation

    def _notice(self, reason: str) -> None:
        self.reason = reason
        if self.noticed_at is None:
            self.noticed_at = time.monotonic()
