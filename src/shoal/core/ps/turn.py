"""One turn of the PS manager: the value as it becomes, and what is to be done, gathered while an event is worked on.

A `Turn` lives for one call and never leaves it; from outside every function of `manager` is pure.
"""

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime

from shoal.core.errors import InvalidMove
from shoal.core.nodes import Node, NodeId, NodeStatus, Role
from shoal.core.plans import NodeGroupResource, NodeResource, ScalePlan
from shoal.core.ps.values import (
    MOVES,
    Change,
    Effect,
    FailJob,
    Phase,
    PSManager,
    RestartTrainer,
    Say,
    Scale,
    Tell,
    Trainer,
)
from shoal.core.ps.words import Drain, Go, PreparePS, ToTrainer


class Turn:
    def __init__(self, manager: PSManager, now: datetime) -> None:
        self.m = manager
        self.now = now
        self.effects: list[Effect] = []

    @property
    def change(self) -> Change:
        assert self.m.change is not None
        return self.m.change

    def tell(self, word: ToTrainer, to: Iterable[NodeId]) -> None:
        nodes = tuple(to)
        if nodes:
            self.effects.append(Tell(to=nodes, word=word))

    def say(self, reason: str) -> None:
        self.effects.append(Say(reason=reason))

    def fail(self, reason: str) -> None:
        self.m = replace(self.m, failed=reason, change=None)
        self.effects.append(FailJob(reason=reason))

    def move(self, to: Phase) -> None:
        """The one door between phases."""
        if to not in MOVES[self.change.phase]:
            raise InvalidMove(f"{self.change.kind} of parameter servers: {self.change.phase} -> {to}")
        self.m = replace(self.m, change=replace(self.change, phase=to, since=self.now))

    # Servers -------------------------------------------------------------------------------------------------

    def launch(self, seats: Iterable[tuple[int, NodeResource, frozenset[str]]], reason: str) -> tuple[NodeId, ...]:
        """Ask for a node for each (rank, resource, hosts to avoid)."""
        number = self.m.next_number
        launched = tuple(
            Node(
                role=Role.PS,
                number=number + n,
                seat=rank,
                since=self.now,
                reason=reason,
                resource=resource,
                avoid_hosts=avoid,
            ).moved(NodeStatus.PENDING, now=self.now, reason=reason)
            for n, (rank, resource, avoid) in enumerate(seats)
        )
        if launched:
            self.m = replace(
                self.m,
                nodes={**self.m.nodes, **{node.id: node for node in launched}},
                next_number=number + len(launched),
            )
            self.scale(launch=launched, reason=reason)
        return tuple(node.id for node in launched)

    def remove(self, nodes: Iterable[NodeId], reason: str) -> None:
        """Ask the platform to end them. Their end is no failure from here on."""
        gone = tuple(nodes)
        if not gone:
            return
        released = {node: replace(self.m.nodes[node], relaunchable=False, is_released=True) for node in gone}
        self.m = replace(
            self.m,
            nodes={**self.m.nodes, **released},
            removing=self.m.removing | set(gone),
            servers={node: server for node, server in self.m.servers.items() if node not in released},
        )
        self.scale(remove=tuple(released.values()), reason=reason)

    def scale(self, *, launch: tuple[Node, ...] = (), remove: tuple[Node, ...] = (), reason: str) -> None:
        staying = len(self.m.nodes.keys() - self.m.removing)
        group = NodeGroupResource(count=staying, node_resource=self.m.goal.resource)
        plan = ScalePlan(
            node_group_resources={Role.PS: group},
            launch_nodes=launch,
            remove_nodes=remove,
            migrate_nodes=tuple(self.m.nodes[node] for node in sorted(self._migrating())),
            ps_addrs=self.m.current.addresses if self.m.current is not None else (),
            reason=reason,
        )
        self.effects.append(Scale(plan=plan))

    def _migrating(self) -> frozenset[NodeId]:
        """Servers whose ranks others will have."""
        ranks = self.m.change.seats.keys() if self.m.change is not None else frozenset[int]()
        return frozenset(node for node in self.m.pre_dropped if self.m.nodes[node].seat in ranks)

    # Trainers ------------------------------------------------------------------------------------------------

    def put(self, *trainers: Trainer) -> None:
        self.m = replace(self.m, trainers={**self.m.trainers, **{t.node: t for t in trainers}})

    def forget(self, nodes: Iterable[NodeId]) -> None:
        gone = frozenset(nodes)
        self.m = replace(self.m, trainers={n: t for n, t in self.m.trainers.items() if n not in gone})
        if self.m.change is not None:
            self.m = replace(self.m, change=replace(self.change, awaiting=self.change.awaiting - gone))

    def restart(self, nodes: Iterable[NodeId], reason: str) -> None:
        """They do not answer. Nobody waits for them any longer."""
        silent = tuple(sorted(nodes))
        self.forget(silent)
        self.effects.extend(RestartTrainer(node=node, reason=reason) for node in silent)

    def prepare(self, trainers: Iterable[Trainer]) -> None:
        """Tell them of the version that they will train on next."""
        cluster = self.m.next_training_ps_cluster
        assert cluster is not None
        told = tuple(trainers)
        self.put(*(replace(t, told=cluster.version) for t in told))
        self.tell(PreparePS(cluster=cluster, chief=self.m.chief or ""), (t.node for t in told))

    def halt(self, reason: str) -> None:
        """Stop whoever trains. Who was stopped before and has not been let go stands where it stands."""
        barrier = self.m.barrier + 1
        training = [t for t in self.m.trainers.values() if t.active is not None and t.halted is None]
        self.m = replace(self.m, barrier=barrier, change=replace(self.change, barrier=barrier))
        self.put(*(replace(t, halted=barrier, drained=False) for t in training))
        if training:
            assert self.m.current is not None
            version = self.m.current.version
            self.tell(Drain(version=version, barrier=barrier, reason=reason), (t.node for t in training))

    def release(self) -> None:
        """Let those who stand still go on, on the version that they are on."""
        halted = [t for t in self.m.trainers.values() if t.halted is not None]
        self.put(*(replace(t, halted=None, drained=False, resumed=False) for t in halted))
        if halted:
            assert self.m.current is not None
            self.tell(Go(version=self.m.current.version, chief=self.m.chief or ""), (t.node for t in halted))
