"""What a cluster of parameter servers is, as values: one numbered version, its servers, where everything lies.

A *version* is never changed and its number never used again, also when it was given up before anybody trained on it.
That is why a number may name things outside (a container of variables on each server): what an old version left
behind, or what a process that was thought dead still writes, is never taken for a newer one's.

A server has a *rank*, its place in the job, which a replacement takes over; and it is a *node*, which is new each time.
"""

from dataclasses import dataclass, field
from typing import Annotated

import msgspec

from shoal.core.ledger import Checkpoint
from shoal.core.nodes import NodeId, parsed

MAX_PARTITIONS = 100_000
"""Of a model; the whole list is in every version."""

Bytes = Annotated[int, msgspec.Meta(ge=0, lt=2**53)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """A piece of the model that lies on one server: a variable or a slice of one, with its optimizer's slots."""

    name: str
    nbytes: Bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class PSServer:
    rank: int
    node: NodeId
    address: str

    @property
    def task(self) -> int:
        """The node's number. A migrated server and its replacement have one rank and two of these."""
        name = parsed(self.node)
        assert name is not None, f"{self.node} is no node's name"
        return name[1]


# How the state of a version gets to its servers ------------------------------------------------------------------


class Fresh(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """Nobody has state: training begins."""


class LiveCopy(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """From server to server."""

    version: int


class ThroughCheckpoint(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """Saved from that version and restored: for a copy that did not work."""

    version: int
    path: str


class FromCheckpoint(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """Restored from what was saved some time ago. Steps since then are lost."""

    path: str
    step: int


Source = Fresh | LiveCopy | FromCheckpoint
Transfer = Fresh | LiveCopy | ThroughCheckpoint | FromCheckpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class PSCluster:
    """One version: the servers that hold the model, and which part of it each of them holds."""

    version: int
    servers: tuple[PSServer, ...]
    """In the order of their ranks, which may have gaps."""
    partitions: tuple[Partition, ...]
    placement: tuple[int, ...]
    """The rank of each partition, in their order."""
    source: Source

    @property
    def nodes(self) -> frozenset[NodeId]:
        return frozenset(server.node for server in self.servers)

    @property
    def ranks(self) -> tuple[int, ...]:
        return tuple(server.rank for server in self.servers)

    @property
    def addresses(self) -> tuple[str, ...]:
        return tuple(server.address for server in self.servers)

    @property
    def is_rollback(self) -> bool:
        """Its model is an earlier one: what was trained since is not in it."""
        return not isinstance(self.source, LiveCopy)


@dataclass(frozen=True, slots=True, kw_only=True)
class PSCheckpoint:
    """A model that is complete on disk, whatever the number of servers it was saved from."""

    path: str
    step: int
    version: int
    mark: Checkpoint = field(default_factory=Checkpoint)
    """What the model has seen of the job's datasets."""
    fuzzy: bool = False
    """Saved while training went on: its parts are not of one moment."""
