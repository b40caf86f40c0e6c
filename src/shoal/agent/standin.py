"""Speaking for a script that knows nothing of us and only reads `TF_CONFIG`.

Such a script has one cluster for life, so its processes are started again whenever the parameter servers change. What a
trainer with the SDK would say and do, the agent does for it: it is prepared at once, it drains by stopping the process,
and goes by starting it with another `TF_CONFIG`. Where the model goes on is the script's business: its chief (worker 0)
restores its last checkpoint, as such scripts do.

Servers fetch from workers and from each other, so all of them have to know all addresses. So every server and every
worker that there can be has an address from the beginning, by its seat; workers come and go and nobody is restarted for
it. Who takes another's place has its address too, and starts when that is free.
"""

import json
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from shoal.core.nodes import Role
from shoal.core.ps.cluster import Partition, PSCluster
from shoal.core.ps.words import (
    Abandon,
    Drain,
    Drained,
    FromNode,
    Go,
    ModelNamed,
    Move,
    Moved,
    PreparedPS,
    PreparePS,
    Resumed,
    Save,
    SaveFailed,
    ServerReady,
    Standing,
    ToNode,
)

FREE_SECONDS = 0.2
"""How often it is looked whether an address is free."""
MODEL = ModelNamed(partitions=(Partition(name="TF_CONFIG", nbytes=0),))
"""What is on which server only the script knows."""


@dataclass(frozen=True, slots=True)
class Say:
    """To the master, in the name of the process."""

    word: FromNode


@dataclass(frozen=True, slots=True)
class Launch:
    """Start the process when its address is free; `StandIn.tf_config` is for it."""


@dataclass(frozen=True, slots=True)
class Halt:
    """Stop the process. Answered by `halted`."""


Act = Say | Launch | Halt


class StandIn:
    """`seat` is the node's place among those of its role; `servers` and `workers` are the addresses of all that there
    can be."""

    def __init__(self, role: Role, *, seat: int, servers: Sequence[str], workers: Sequence[str]) -> None:
        self._role, self._seat = role, seat
        self._servers, self._workers = tuple(servers), tuple(workers)
        self._known: dict[int, PSCluster] = {}
        self._version = 0
        """The version that the process has in its `TF_CONFIG`; 0: there is none."""
        self._stopping = False
        self._barrier: int | None = None
        """At which it stands when it has stopped."""
        self._going: int | None = None
        """The version it is to be started on as soon as it has stopped."""

    @property
    def is_server(self) -> bool:
        """Its process is started as soon as its address is free: a server has nothing else to wait for."""
        return self._role is Role.PS

    @property
    def address(self) -> str:
        return (self._servers if self.is_server else self._workers)[self._seat]

    @property
    def standing(self) -> Standing:
        return ServerReady(address=self.address) if self.is_server else MODEL

    def tf_config(self) -> str:
        """A server knows all servers that there can be, a worker those of its version."""
        servers = self._servers if self.is_server else self._known[self._version].addresses
        cluster = {"ps": list(servers), "worker": list(self._workers)}
        kind = "ps" if self.is_server else "worker"
        return json.dumps({"cluster": cluster, "task": {"type": kind, "index": self._seat}})

    # What happens ---------------------------------------------------------------------------------------------

    def renewed(self) -> tuple[Act, ...]:
        """The node has another incarnation, and no process yet."""
        self._version, self._stopping, self._barrier, self._going = 0, False, None, None
        return (Say(self.standing),)

    def halted(self) -> tuple[Act, ...]:
        """The process has stopped."""
        barrier, going = self._barrier, self._going
        self._version, self._stopping, self._barrier, self._going = 0, False, None, None
        acts: tuple[Act, ...] = () if barrier is None else (Say(Drained(barrier=barrier, step=0)),)
        return acts if going is None else (*acts, *self._go(going))

    def told(self, word: ToNode) -> tuple[Act, ...]:
        match word:
            case PreparePS(cluster=cluster):
                self._known[cluster.version] = cluster
                return (Say(PreparedPS(version=cluster.version)),)
            case Drain(barrier=barrier):
                return self._drain(barrier)
            case Move(version=version, attempt=attempt):
                return (Say(Moved(version=version, attempt=attempt, checksum="", nbytes=0)),)
            case Save(barrier=barrier):
                return (Say(SaveFailed(barrier=barrier, reason="the script makes its checkpoints itself")),)
            case Go(version=version):
                return self._go(version)
            case Abandon(version=version):
                self._known.pop(version, None)
                return ()
            case _:
                return ()

    def _drain(self, barrier: int) -> tuple[Act, ...]:
        if self._version == 0:
            return (Say(Drained(barrier=barrier, step=0)),)
        self._barrier, self._going = barrier, None
        return self._stop()

    def _go(self, version: int) -> tuple[Act, ...]:
        if version not in self._known:
            return ()  # of an older incarnation
        if self._stopping or self._version not in (0, version):
            self._going = version
            return self._stop()
        starts = self._version == 0
        self._version = version
        self._known = {known: cluster for known, cluster in self._known.items() if known >= version}
        return (Launch(), Say(Resumed(version=version))) if starts else (Say(Resumed(version=version)),)

    def _stop(self) -> tuple[Act, ...]:
        was_stopping, self._stopping = self._stopping, True
        return () if was_stopping else (Halt(),)


def is_free(address: str, lookup: Callable[..., Any] = socket.getaddrinfo) -> bool:
    """Whether nobody listens there. A name must lead here, and nowhere else: who had it before may still be there. It
    may take as long as a name server takes."""
    host, _, port = address.rpartition(":")
    try:
        found = lookup(host, int(port), type=socket.SOCK_STREAM)
    except OSError:
        return False  # nobody has the name yet
    return all(_can_bind(family, place) for family, _, _, _, place in found)


def _can_bind(family: int, place: Any) -> bool:
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(place)
        except OSError:
            return False
        return True
