"""The ports: what the shells need of the world outside, as small as it can be."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

from shoal.core.exits import ProcessExit
from shoal.core.nodes import NodeId
from shoal.core.plans import ScalePlan


class Clock(Protocol):
    def now(self) -> datetime:
        """The time, aware."""
        ...


class Scaler(Protocol):
    """Where nodes run. Every call is safe to repeat: nodes are named, starting one twice starts one."""

    async def start(self, on_exit: Callable[[NodeId, ProcessExit], None]) -> None:
        """Begin; from now on the end of every node is reported once, in the event loop's thread."""
        ...

    async def scale(self, plan: ScalePlan) -> None:
        """Launch and remove what the plan names. Removing ends a node for certain, if need be the hard way; a node
        that is already gone is removed. Raises `PlatformUnavailable` when a retry may help."""
        ...

    async def close(self) -> None:
        """End every node that still runs. Nothing is left behind."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimed:
    """What a master finds when it takes a job's state over."""

    term: int
    """This master's. Higher than that of every master before, as far as the store knows: see `raise_term`."""
    records: tuple[bytes, ...] = ()
    """The newest snapshot and what was appended to it since, in order; empty: a new job."""
    lost: str | None = None
    """What of the state could not be read back, in words; the records are those before it."""
    trouble: str | None = None
    """Why nothing can be written at the moment; None: it can."""


class StateStore(Protocol):
    """Where a master keeps its job's state, and how masters of one job keep out of each other's way.

    Records are bytes that mean nothing to the store. What `append` or `compact` has returned from is there for the next
    `claim`, in order, whatever happens to this process; what they were doing when the process ended is there as a
    whole or not at all. Calls are made one at a time.
    """

    @property
    def pace(self) -> timedelta:
        """How often a change that nobody outside acts upon is worth a write. Zero: whenever there is one. Above: each
        write costs as much as a snapshot, so only snapshots are written."""
        ...

    async def claim(self) -> Claimed:
        """Become the only writer. Raises `StateTaken` when the owner is alive and cannot be superseded,
        `StateUnreadable` when what is there is not for us (and is left as it is), `StateUnavailable`."""
        ...

    async def append(self, record: bytes) -> None:
        """Add one record. Raises `Superseded` when there is a newer owner, `StateUnavailable` when it was not added;
        after that only `compact` can make the store whole again."""
        ...

    async def compact(self, snapshot: bytes) -> None:
        """Replace everything by this one record. Raises as `append` does; what was there is then still there."""
        ...

    async def raise_term(self, term: int) -> None:
        """Own the state under this higher term from now on. Raises as `append` does.

        For a store that has lost its term while the records are there: those who met the masters before still know it.
        """
        ...

    async def close(self) -> None:
        """Stop writing. The state stays."""
        ...
