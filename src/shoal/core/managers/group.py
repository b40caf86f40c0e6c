"""The nodes of one role that hold no state others need: workers, the chief, evaluators.

Any of them may come and go without anybody else noticing. So the manager only counts, and remembers of each node
whether its end is a loss: a node that was asked to go is *released* and not *relaunchable*, and a node that did its
work is not launched again.

A *migration* gives a seat to a node with other resources: the replacement is launched first, and when it runs the old
node is released. A seat has never nobody because of a plan.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TypeVar

from shoal.core.nodes import Node, NodeId, NodeStatus, Role
from shoal.core.plans import NodeGroupResource, NodeResource, ResourcePlan, ScalePlan
from shoal.core.resources import overlaid

ALONE = frozenset({Role.CHIEF, Role.EVALUATOR})
"""Roles of which a job has one or none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeManager:
    """The nodes of one role, changed only by the functions below: each returns the next manager and what a scaler has
    to do, if anything."""

    role: Role
    min_nodes: int = 0
    max_nodes: int
    resource: NodeResource = field(default_factory=NodeResource)
    """Of nodes that are launched from now on."""
    nodes: Mapping[NodeId, Node] = field(default_factory=dict)
    """The live ones, also those that were asked to go and have not."""
    successors: Mapping[NodeId, NodeId] = field(default_factory=dict)
    """Of each node that is being migrated, who takes its seat."""
    next_number: int = 0
    succeeded: int = 0
    """How many have done their work."""

    def __post_init__(self) -> None:
        if not 0 <= self.min_nodes <= self.max_nodes:
            raise ValueError(f"{self.role}: 0 <= min <= max must hold, got {self.min_nodes}:{self.max_nodes}")
        if self.role in ALONE and self.max_nodes > 1:
            raise ValueError(f"a job has at most one {self.role}, got {self.max_nodes}")

    @property
    def is_critical(self) -> bool:
        """Whether the job fails when one of them may not be launched again (elastic-job §3). Training goes on without
        an evaluator; but who asked for one wants what it finds."""
        return self.role in ALONE

    @property
    def staying(self) -> tuple[Node, ...]:
        """The nodes that nobody has asked to go, one to a seat, the oldest first."""
        new = frozenset(self.successors.values())
        return tuple(node for node in self.nodes.values() if not node.is_released and node.id not in new)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerManager(NodeManager):
    role: Role = Role.WORKER
    min_nodes: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ChiefManager(NodeManager):
    role: Role = Role.CHIEF
    max_nodes: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluatorManager(NodeManager):
    role: Role = Role.EVALUATOR
    max_nodes: int = 1


M = TypeVar("M", bound=NodeManager)


# Plans -----------------------------------------------------------------------------------------------------------


def refusal(m: NodeManager, plan: ResourcePlan) -> str | None:
    """Why a plan cannot be followed as far as it is about this role; None: it can."""
    group = plan.node_group_resources.get(m.role)
    if group is None or m.min_nodes <= group.count <= m.max_nodes:
        return None
    return f"{m.role}={group.count} asked, the job takes {m.min_nodes} to {m.max_nodes}"


def planned(
    m: M, plan: ResourcePlan, *, victims: frozenset[NodeId] = frozenset(), now: datetime
) -> tuple[M, ScalePlan | None]:
    """Launch what is missing, release what is too much, replace what should have something else. What the plan does not
    say stays as it is; a plan that is refused changes nothing. The same plan again finds nothing to do."""
    if refusal(m, plan) is not None:
        return m, None
    group = plan.node_group_resources.get(m.role)
    launch: tuple[Node, ...] = ()
    remove: tuple[Node, ...] = ()
    if group is not None:
        m = replace(m, resource=overlaid(m.resource, group.node_resource))
        missing = group.count - len(m.staying)
        if missing > 0:
            m, launch = _launched(m, [(seat, m.resource) for seat in _free_seats(m, missing)], plan.reason, now)
        elif missing < 0:
            m, remove = _released(m, _first_to_go(m, -missing, victims))
    m, replaced, dropped = _migrated(m, plan.node_resources, plan.reason, now)
    return m, _plan(m, launch=(*launch, *replaced), remove=(*remove, *dropped), reason=plan.reason)


def _migrated(
    m: M, wanted: Mapping[str, NodeResource], reason: str, now: datetime
) -> tuple[M, tuple[Node, ...], tuple[Node, ...]]:
    """Launch successors for the named nodes that should have something else. One that was launched for an earlier wish
    goes."""
    launched: tuple[Node, ...] = ()
    dropped: tuple[Node, ...] = ()
    by_id = {node.id: node for node in m.staying}
    for name, resource in wanted.items():
        old = by_id.get(node_named(name))
        if old is None:
            continue
        known = m.nodes.get(m.successors.get(old.id, NodeId("")))
        target = overlaid(old.resource, resource)
        if target == (known or old).resource:
            continue
        if known is not None:
            m, gone = _released(m, [known])
            dropped += gone
        if target != old.resource:
            m, new = _launched(m, [(old.seat, target)], reason, now)
            m = replace(m, successors={**m.successors, old.id: new[0].id})
            launched += new
    return m, launched, dropped


def node_named(name: str) -> NodeId:
    """The node that a plan means: by its own name, or by that of its Pod, `<job>-worker-3`."""
    return NodeId("-".join(name.split("-")[-2:]))


# Nodes -----------------------------------------------------------------------------------------------------------


def running(m: M, node: NodeId, *, now: datetime) -> tuple[M, ScalePlan | None]:
    """A node's agent has registered. If it is somebody's successor, that one may go."""
    known = m.nodes.get(node)
    if known is None or known.status is not NodeStatus.PENDING:
        return m, None
    m = _put(m, known.moved(NodeStatus.RUNNING, now=now, reason="its agent registered"))
    old = next((before for before, after in m.successors.items() if after == node), None)
    if old is None:
        return m, None
    m, remove = _released(m, [m.nodes[old]])
    return m, _plan(m, remove=remove, reason=f"{node} has taken the seat of {old}")


def lost(
    m: M,
    node: NodeId,
    *,
    reason: str,
    resource: NodeResource | None = None,
    avoid: frozenset[str] = frozenset(),
    now: datetime,
) -> tuple[M, ScalePlan | None]:
    """A node is gone. If it was not asked to go, another takes its seat: its successor, if it has one already. Who
    decided that it may be replaced has also decided with what."""
    known = m.nodes.get(node)
    if known is None:
        return m, None
    successor, predecessor = m.successors.get(node), next((b for b, a in m.successors.items() if a == node), None)
    m = _without(m, node)
    if known.is_released or not known.relaunchable or successor is not None:
        return m, None
    m, new = _launched(m, [(known.seat, resource or known.resource)], reason, now, avoid | known.avoid_hosts)
    if predecessor is not None:
        m = replace(m, successors={**m.successors, predecessor: new[0].id})
    return m, _plan(m, launch=new, remove=(known,), reason=f"{reason}: {new[0].id} takes seat {known.seat}")


def succeeded(m: M, node: NodeId) -> tuple[M, ScalePlan | None]:
    """A node has done its work. Nobody takes its seat, and a successor that was to take it is not needed."""
    known = m.nodes.get(node)
    if known is None:
        return m, None
    successor = m.successors.get(node)
    m = replace(_without(m, node), succeeded=m.succeeded + 1)
    if successor is None:
        return m, None
    m, remove = _released(m, [m.nodes[successor]])
    return m, _plan(m, remove=remove, reason=f"{node} has done its work")


def left(m: M, node: NodeId) -> M:
    """A node that was to end has ended, or will not be replaced."""
    return _without(m, node) if node in m.nodes else m


# How the next state follows ----------------------------------------------------------------------------------------


def _launched(
    m: M,
    seats: Iterable[tuple[int, NodeResource]],
    reason: str,
    now: datetime,
    avoid: frozenset[str] = frozenset(),
) -> tuple[M, tuple[Node, ...]]:
    nodes = tuple(
        Node(
            role=m.role,
            number=m.next_number + n,
            seat=seat,
            since=now,
            reason=reason,
            resource=resource,
            avoid_hosts=avoid,
        ).moved(NodeStatus.PENDING, now=now, reason=reason)
        for n, (seat, resource) in enumerate(seats)
    )
    m = _put(m, *nodes)
    return replace(m, next_number=m.next_number + len(nodes)), nodes


def _released(m: M, nodes: Iterable[Node]) -> tuple[M, tuple[Node, ...]]:
    """They are asked to go, and the successors of those with them who were not there yet."""
    going = {node.id: replace(node, relaunchable=False, is_released=True) for node in nodes}
    followers = [m.nodes[new] for old, new in m.successors.items() if old in going]
    for node in followers:
        if node.status is not NodeStatus.RUNNING:
            going[node.id] = replace(node, relaunchable=False, is_released=True)
    kept = {old: new for old, new in m.successors.items() if old not in going and new not in going}
    m = replace(_put(m, *going.values()), successors=kept)
    return m, tuple(going.values())


def _free_seats(m: NodeManager, count: int) -> list[int]:
    taken = {node.seat for node in m.nodes.values() if not node.is_released}
    return [seat for seat in range(len(taken) + count) if seat not in taken][:count]


def _first_to_go(m: NodeManager, count: int, named: frozenset[NodeId]) -> list[Node]:
    """The named ones, then those that do not run yet, then the youngest."""
    order = sorted(m.staying, key=lambda node: (node.id not in named, node.status is NodeStatus.RUNNING, -node.number))
    return order[:count]


def _plan(
    m: NodeManager, *, launch: tuple[Node, ...] = (), remove: tuple[Node, ...] = (), reason: str
) -> ScalePlan | None:
    if not launch and not remove:
        return None
    return ScalePlan(
        node_group_resources={m.role: NodeGroupResource(count=len(m.staying), node_resource=m.resource)},
        launch_nodes=launch,
        remove_nodes=remove,
        migrate_nodes=tuple(m.nodes[node] for node in m.successors),
        reason=reason,
    )


def _put(m: M, *nodes: Node) -> M:
    return replace(m, nodes={**m.nodes, **{node.id: node for node in nodes}})


def _without(m: M, node: NodeId) -> M:
    return replace(
        m,
        nodes={name: known for name, known in m.nodes.items() if name != node},
        successors={old: new for old, new in m.successors.items() if node not in (old, new)},
    )
