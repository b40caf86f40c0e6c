"""Nodes: the members of a job, their states, and the one door between states.

A *node* is one member of a job: a local agent process, later a Pod or a Ray actor. Its name is
`<role>-<id>`; ids are never used twice, so a relaunched node has a new name and keeps its *seat*.
The *incarnation* counts the sets of training processes a node has had: a node whose process died and
was restarted is the same node in its next incarnation, and nothing said by the earlier one counts.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import NewType

from shoal.core.errors import InvalidMove
from shoal.core.exits import ExitCause
from shoal.core.plans import NodeResource

NodeId = NewType("NodeId", str)
"""`worker-3`: role and number. Unique in the life of a job."""


MOST_DIGITS = 15
"""Of a node's number; no job starts so many."""


class Role(StrEnum):
    CHIEF = "chief"
    WORKER = "worker"
    PS = "ps"
    EVALUATOR = "evaluator"
    MASTER = "master"


class NodeStatus(StrEnum):
    INITIAL = "initial"
    """Decided on, not yet asked of the platform."""
    PENDING = "pending"
    """Asked of the platform; no agent has registered."""
    RUNNING = "running"
    """Its agent registered."""
    SUCCEEDED = "succeeded"
    """Its training processes ended well, or it was drained."""
    FAILED = "failed"
    """It was lost or failed; a relaunch is another node."""
    DELETED = "deleted"
    """It was removed on purpose before it had done its work."""


MOVES: Mapping[NodeStatus, frozenset[NodeStatus]] = {
    NodeStatus.INITIAL: frozenset({NodeStatus.PENDING, NodeStatus.DELETED}),
    NodeStatus.PENDING: frozenset({NodeStatus.RUNNING, NodeStatus.FAILED, NodeStatus.DELETED}),
    NodeStatus.RUNNING: frozenset({NodeStatus.SUCCEEDED, NodeStatus.FAILED, NodeStatus.DELETED}),
    NodeStatus.SUCCEEDED: frozenset(),
    NodeStatus.FAILED: frozenset(),
    NodeStatus.DELETED: frozenset(),
}

LIVE = frozenset({NodeStatus.INITIAL, NodeStatus.PENDING, NodeStatus.RUNNING})


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One member of a job, as the master knows it."""

    role: Role
    number: int
    seat: int
    """Which of the job's places it fills; kept by a relaunch. The rank of a world goes by seniority instead."""
    status: NodeStatus = NodeStatus.INITIAL
    since: datetime
    reason: str
    incarnation: int = 1
    resource: NodeResource = field(default_factory=NodeResource)
    host: str | None = None
    avoid_hosts: frozenset[str] = frozenset()
    exit_cause: ExitCause | None = None
    external: bool = False
    """It joined by itself (`shoal run --join`): the platform neither started it nor can replace it."""
    relaunchable: bool = True
    """Another node takes its seat should it be lost. False once it is to go."""
    is_released: bool = False
    """It is not wanted any more: its end is no failure."""
    is_going: bool = False
    """Its platform has told it to end, and it stays until it is let go: a parameter server that joined by itself."""

    @property
    def id(self) -> NodeId:
        return node_id(self.role, self.number)

    @property
    def is_live(self) -> bool:
        return self.status in LIVE

    def moved(self, to: NodeStatus, *, now: datetime, reason: str) -> "Node":
        if to not in MOVES[self.status]:
            raise InvalidMove(f"{self.id}: {self.status} -> {to}: {reason}")
        return replace(self, status=to, since=now, reason=reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """What one training process has done in its life. Counters: they only grow, and begin at 0 with the process."""

    steps: int
    samples: int | None
    """Its own, not the job's; None: it does not count them."""
    step_seconds: float
    """Of all steps together, each from the end of the one before."""
    work_seconds: float
    """The part of it in which it did not wait for others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSeen:
    """What a node may use at most, and what the kernel counts against that, as its agent sees it. None: not known."""

    cpu_limit: float | None = None
    """Cores: the least of what the machine has and what the node's cgroups allow."""
    memory_limit: int | None = None
    """Bytes, likewise."""
    memory_bytes: int | None = None
    """What the limiting cgroup holds, without files it could drop; None: there is none that is this node's alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSeen:
    """One training process at one moment, as its agent sees it."""

    local_rank: int
    pid: int
    stopped: bool
    """The kernel says it does not run: state T (stopped or traced)."""
    cpu: float
    """Cores used since the last sample."""
    memory_bytes: int
    step: int | None
    collectives: int
    """How many collectives it has entered in this world."""
    busy: str | None
    """What it says it does outside training steps (`with state.busy("eval")`)."""
    trained: Trained | None = None
    """As it tells itself; None: it knows nothing of us, or has not said."""


def node_id(role: Role, number: int) -> NodeId:
    return NodeId(f"{role}-{number}")


def parsed(node: str) -> tuple[Role, int] | None:
    """Role and number of a node by its name; None: it is no node's."""
    role, _, number = node.rpartition("-")
    is_one = role in tuple(Role) and number.isascii() and number.isdigit() and len(number) <= MOST_DIGITS
    return (Role(role), int(number)) if is_one else None
