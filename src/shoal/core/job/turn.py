"""One turn of `handle`: the job as it becomes, and what is to be done, gathered while the event is worked on.

A `Turn` lives for one call and never leaves it; from outside `handle` is a pure function.
"""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import TypeVar

from shoal.core.job.values import (
    KEPT_DECISIONS,
    KEPT_RESIZES,
    Command,
    DataWoken,
    Effect,
    Job,
    LeaveNode,
    Scale,
    Seen,
    Tell,
)
from shoal.core.ledger import Ledger, Wake
from shoal.core.nodes import Node, NodeId, NodeStatus
from shoal.core.plans import ScalePlan
from shoal.core.rounds import node_of
from shoal.core.view import DecisionView, ResizeView
from shoal.core.world import Commit, Dismiss, Interrupt, Pause, Prepare, Release, Step, World

K = TypeVar("K")
V = TypeVar("V")


class Turn:
    def __init__(self, job: Job, now: datetime) -> None:
        self.job = job
        self.now = now
        self.effects: list[Effect] = []
        self.refused: dict[NodeId, str] = {}
        """Workers that cannot be in this job, and why."""

    @property
    def is_ending(self) -> bool:
        return self.job.ending is not None

    def put(self, node: Node) -> None:
        self.job = replace(self.job, nodes={**self.job.nodes, node.id: node})

    def put_seen(self, node: NodeId, seen: Seen) -> None:
        self.job = replace(self.job, seen={**self.job.seen, node: seen})

    def move(self, node: NodeId, to: NodeStatus, reason: str) -> None:
        """Move a node and, when it has ended, forget what its agent said, or that one was expected to come."""
        moved = self.job.nodes[node].moved(to, now=self.now, reason=reason)
        self.put(moved)
        if not moved.is_live:
            self.job = replace(self.job, seen=without(self.job.seen, node), places=self.job.places - {node})

    def tell(self, command: Command, *to: NodeId) -> None:
        if to:
            self.effects.append(Tell(to=to, what=command))

    def say(self, reason: str) -> None:
        """Record a decision for people."""
        line = DecisionView(at=self.now, reason=reason)
        self.job = replace(self.job, decisions=(*self.job.decisions, line)[-KEPT_DECISIONS:])

    def take(self, book: Ledger, woken: tuple[Wake, ...]) -> None:
        """Take the next ledger over, and tell those who waited and can go on."""
        if book is not self.job.ledger:
            self.job = replace(self.job, ledger=book)
        by_node: dict[NodeId, list[Wake]] = {}
        for wake in woken:
            by_node.setdefault(node_of(wake.owner), []).append(wake)
        for node, wakes in by_node.items():
            self.tell(DataWoken(wakes=tuple(wakes)), node)

    def follow(self, step: Step) -> None:
        """Take the next rendezvous over and pass on what it wants told."""
        rendezvous, notices = step
        before = self.job.rendezvous.committed
        self.job = replace(self.job, rendezvous=rendezvous)
        for notice in notices:
            match notice:
                case Prepare(world=world):
                    self.tell(notice, *(m.node for m in world.members))
                case Commit(world=world):
                    self.tell(notice, *(m.node for m in world.members))
                    self._record_world(notice, before)
                case Pause(to=to, reason=reason) | Interrupt(to=to, reason=reason):
                    self.job = replace(self.job, why=reason, gain=replace(self.job.gain, at=self.now, speed=()))
                    self.tell(notice, *to)
                case Release(to=to):
                    self.tell(notice, *to)
                case Dismiss(node=node):
                    self._dismiss(node)

    def _record_world(self, commit: Commit, before: World | None) -> None:
        world = commit.world
        size = before.size if before is not None else 0
        known = {m.node for m in before.members} if before is not None else set()
        continuing = [m for m in world.members if m.node in known]
        resize = ResizeView(
            generation=world.generation,
            at=self.now,
            reason=self.job.why,
            before=size,
            after=world.size,
            continuing=sum(m.slots for m in continuing),
        )
        self.job = replace(
            self.job,
            continuing=frozenset(m.node for m in continuing),
            resizes=(*self.job.resizes, resize)[-KEPT_RESIZES:],
            gain=replace(self.job.gain, at=self.now, speed=()),
            peer_closed=None,
            why="a member asked for a new world",
        )
        names = ", ".join(m.node for m in world.members[:8]) + (" …" if len(world.members) > 8 else "")
        processes = "1 process" if world.size == 1 else f"{world.size} processes"
        self.say(f"world {world.generation}: {processes} on {names} ({resize.reason})")

    def _dismiss(self, node: NodeId) -> None:
        """A leaving node is in no world any more."""
        known = self.job.nodes.get(node)
        if known is None or not known.is_live:
            return
        if known.status is NodeStatus.RUNNING:
            self.tell(LeaveNode(reason="the job was scaled down", grace=self.job.settings.grace), node)
        else:
            self.move(node, NodeStatus.DELETED, "the job was scaled down before it had started")
            self.effects.append(Scale(plan=ScalePlan(remove_nodes=(known,), reason=f"{node} is not needed any more")))


def without(mapping: Mapping[K, V], key: K) -> dict[K, V]:
    return {k: v for k, v in mapping.items() if k != key}
