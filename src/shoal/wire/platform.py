"""The messages between a master and the platform that runs its nodes, where the two are different processes.

The platform connects to the master's port (`/platform`, the admin token) and says what exists; from then on the
master says which nodes should and should not, and the platform tells of every end. Whenever the connection was lost
it begins again with what exists: nothing has to be remembered on the way.
"""

import msgspec

from shoal.core.exits import ProcessExit
from shoal.core.nodes import Node
from shoal.core.view import JobView
from shoal.wire.messages import Message, Term

# From the platform ---------------------------------------------------------------------------------------


class PlatformHello(Message, frozen=True, kw_only=True):
    """The first message of a connection."""

    protocol: int
    job: str
    running: tuple[str, ...]
    """The nodes that exist."""
    ended: dict[str, ProcessExit]
    """Those that existed, and how they ended. A node in neither was never started."""
    seats: dict[str, int] = msgspec.field(default_factory=dict)
    """Of those that exist: a master that cannot know of one, because the one before could not write it down, takes it
    over."""
    term: Term = 0
    """The highest term of a master it has spoken to."""
    view_seconds: float = 0.25
    """How often it wants to see the job."""


class NodeEnded(Message, frozen=True, kw_only=True):
    node: str
    exit: ProcessExit


class Scaled(Message, frozen=True, kw_only=True):
    """The answer to `ScaleOrder`. `error`: a retry may help."""

    number: int
    error: str | None


class StopOrder(Message, frozen=True, kw_only=True):
    """Whoever started the job wants its end. Said again, it shortens the grace period."""

    reason: str
    grace_seconds: float | None


FromPlatform = PlatformHello | NodeEnded | Scaled | StopOrder


# From the master -----------------------------------------------------------------------------------------


class ScaleOrder(Message, frozen=True, kw_only=True):
    """Carrying it out twice does it once: nodes are named."""

    number: int
    launch: tuple[Node, ...]
    remove: tuple[Node, ...]
    reason: str


class JobSeen(Message, frozen=True, kw_only=True):
    """How the job is; the first one is the welcome."""

    term: int
    view: JobView
    trouble: str | None
    """Why the job's state cannot be kept at the moment: if this master dies, no other can take over."""


class JobEnded(Message, frozen=True, kw_only=True):
    """The job is over: whatever still runs may be killed."""

    view: JobView


class Denied(Message, frozen=True, kw_only=True):
    """The master does not want this platform."""

    reason: str


ToPlatform = ScaleOrder | JobSeen | JobEnded | Denied
