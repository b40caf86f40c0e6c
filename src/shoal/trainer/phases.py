"""What a change of world costs one process, by phase: drain, rendezvous, restore, first step.

A value that is carried along while the change happens. Times are `time.monotonic` and come in as arguments.
"""

from dataclasses import dataclass, replace

from shoal.wire.local import LocalResized


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One change, from the notice to the first step in the next world. A further break on the way prolongs it."""

    noticed: float
    stopped: float
    """When this process stood still and said so."""
    lost_steps: int
    formed: float | None = None
    restored: float | None = None

    def broken_again(self, *, lost_steps: int) -> "Change":
        return replace(self, lost_steps=self.lost_steps + lost_steps, formed=None, restored=None)


def resized(change: Change, *, generation: int, rank: int, now: float) -> LocalResized:
    """The report on a change whose first step was committed `now`."""
    assert change.formed is not None
    assert change.restored is not None
    return LocalResized(
        generation=generation,
        rank=rank,
        drain=max(0.0, change.stopped - change.noticed),
        rendezvous=change.formed - change.stopped,
        restore=change.restored - change.formed,
        first_step=now - change.restored,
        lost_steps=change.lost_steps,
    )
