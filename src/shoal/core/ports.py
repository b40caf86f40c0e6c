"""The ports: what the shells need of the world outside, as small as it can be."""

from collections.abc import Callable
from datetime import datetime
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
