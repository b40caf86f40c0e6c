"""A job's servers and trainers as they really behave, in memory: the PS manager's words are carried out on a model that
can be looked at.

The model is a counter: a step adds one to every partition of the version that the trainer is on, wherever it lies. So
all partitions of a version are equal at every step, and equal to the number of steps that the ledger counts; a step
that is lost, a partition that is missing and a ledger that was not put back are all seen at the next step.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import msgspec
from tests.core.ledger.builders import an_ordered_dataset

from shoal.core.changes import Differ
from shoal.core.journal import DEEP
from shoal.core.ledger import Checkpoint
from shoal.core.ledger.ordered import OrderedCheckpoint
from shoal.core.nodes import NodeId, Role, node_id
from shoal.core.plans import NodeGroupResource, NodeResource, ResourcePlan
from shoal.core.ps import manager
from shoal.core.ps.cluster import Fresh, FromCheckpoint, LiveCopy, Partition, PSCheckpoint, PSCluster, ThroughCheckpoint
from shoal.core.ps.manager import Turned
from shoal.core.ps.values import (
    CheckpointKept,
    FailJob,
    Goal,
    Kind,
    Phase,
    PSManager,
    PSSettings,
    RefuseTrainer,
    RestartTrainer,
    RollBackLedger,
    Say,
    Scale,
    Tell,
)
from shoal.core.ps.words import (
    Abandon,
    ChiefIs,
    Drain,
    Drained,
    FromTrainer,
    Go,
    ModelNamed,
    Move,
    Moved,
    MoveFailed,
    PreparedPS,
    PreparePS,
    Resumed,
    Save,
    SavedPS,
    SaveWanted,
    ServerUnreachable,
    Settled,
    ToTrainer,
)

NOW = datetime(2026, 1, 1, tzinfo=UTC)
MODEL = tuple(Partition(name=f"v{n}", nbytes=100) for n in range(5))
_DATASET = an_ordered_dataset(10**9, 1, 1)
_differ = Differ(PSManager, deep=DEEP)
_managers: msgspec.msgpack.Decoder[PSManager] = msgspec.msgpack.Decoder(PSManager)


def a_mark(steps: int) -> Checkpoint:
    return Checkpoint(ordered=(OrderedCheckpoint(spec=_DATASET, steps=steps),))


def a_plan(count: int | None = None, *, cpu: dict[str, float] | None = None, reason: str = "a plan") -> ResourcePlan:
    groups = {} if count is None else {Role.PS: NodeGroupResource(count=count)}
    nodes = {name: NodeResource(cpu=cores) for name, cores in (cpu or {}).items()}
    return ResourcePlan(node_group_resources=groups, node_resources=nodes, reason=reason)


@dataclass
class LiveServer:
    node: NodeId
    incarnation: int = 1
    variables: dict[int, dict[str, int]] = field(default_factory=dict)
    """By version: what stands in its container."""


@dataclass
class LiveTrainer:
    node: NodeId
    incarnation: int
    role: Role
    inbox: deque[ToTrainer] = field(default_factory=deque)
    outbox: deque[FromTrainer] = field(default_factory=deque)
    sessions: dict[int, PSCluster] = field(default_factory=dict)
    version: int | None = None
    running: bool = False
    copies: bool = True
    """Whether it can copy from server to server."""
    stuck: ServerUnreachable | None = None
    """It stands still because it cannot reach a server, and says so again and again."""
    mute: bool = False
    """It does nothing, and does not say so."""


def _reached(trainer: LiveTrainer) -> frozenset[NodeId]:
    """The servers of the version that it is on."""
    return frozenset() if trainer.version is None else trainer.sessions[trainer.version].nodes


class Cast:
    def __init__(self, *, servers: int = 2, most: int = 4, directory: str | None = "/ckpt", **settings: object) -> None:
        self.now = NOW
        self.servers: dict[NodeId, LiveServer] = {}
        self.trainers: dict[NodeId, LiveTrainer] = {}
        self.coming: set[NodeId] = set()
        """Nodes that the platform was asked for."""
        self.leaving: set[NodeId] = set()
        """Nodes whose end the platform was asked for."""
        self.restarted: dict[NodeId, str] = {}
        """Trainers that were to be started again, and why."""
        self.returning: dict[NodeId, tuple[int, Role]] = {}
        """Trainers whose processes are starting again."""
        self.disk: dict[str, int] = {}
        self.ledger = 0
        self.said: list[str] = []
        self.failed: str | None = None
        self.settled: list[int] = []
        self.published: list[int] = []
        self.next_trainer = 0
        self.stepped: dict[NodeId, datetime] = {}
        self.unreached: set[NodeId] = set()
        """Servers that somebody could not reach: the manager may end them."""
        chosen = PSSettings(max_servers=most, checkpoint_dir=directory, **settings)  # type: ignore[arg-type]
        self.m = PSManager(settings=chosen, goal=Goal(count=servers))
        self.written = self.m
        self.after(manager.new_manager(chosen, servers=servers, now=self.now))

    # The shell: record, then act -----------------------------------------------------------------------------

    def after(self, turned: Turned) -> None:
        before = self.m
        self.m, effects = turned
        self._write_down()
        if self.m.current != before.current:
            self._check_commit(before.current)
        for effect in effects:
            match effect:
                case Tell(to=to, word=word):
                    for node in to:
                        if node in self.trainers:
                            self.trainers[node].inbox.append(word)
                case Scale(plan=plan):
                    for node in plan.remove_nodes:
                        self._asked_to_end(node.id)
                    self.coming |= {n.id for n in plan.launch_nodes if n.id not in self.servers} - self.leaving
                case RestartTrainer(node=node, reason=reason):
                    self.restarted[node] = reason
                    gone = self.trainers.pop(node)
                    self.returning[node] = (gone.incarnation + 1, gone.role)
                case RefuseTrainer(node=node):
                    self.trainers.pop(node, None)
                case RollBackLedger(mark=mark):
                    self.ledger = mark.ordered[0].steps if mark.ordered else 0
                case FailJob(reason=reason):
                    self.failed = reason
                case Say(reason=reason):
                    self.said.append(reason)
                case CheckpointKept():
                    pass

    def _write_down(self) -> None:
        """Through the journal's form, always: as a change, and as a whole."""
        patch = _differ.between(self.written, self.m)
        self.written = self.written if patch is None else _differ.applied(self.written, patch)
        assert self.written == self.m

    def _asked_to_end(self, node: NodeId) -> None:
        """Never while the session of somebody who is in the job reaches to it, whether it trains or stands still."""
        users = [t.node for t in self.trainers.values() if t.node in self.m.trainers and node in _reached(t)]
        assert not users or node in self.unreached, f"{node} is ended while {users[0]} is connected to it"
        self.coming.discard(node)
        self.leaving.add(node)

    def _check_commit(self, before: PSCluster | None) -> None:
        """A version is committed: its servers are there with their state, and nothing of the one before is lost."""
        cluster = self.m.current
        assert cluster is not None
        assert cluster.version not in self.published
        self.published.append(cluster.version)
        assert not any(t.running for t in self.trainers.values() if t.node in self.m.trainers)
        values = self.values(cluster)
        assert len(set(values)) == 1
        if isinstance(cluster.source, LiveCopy):
            assert before is not None
            assert cluster.source.version == before.version
            assert set(values) == {self.ledger}

    def values(self, cluster: PSCluster) -> list[int]:
        """What every partition holds; fails when one is missing."""
        at = {server.rank: server.node for server in cluster.servers}
        return [
            self.servers[at[rank]].variables[cluster.version][partition.name]
            for partition, rank in zip(cluster.partitions, cluster.placement, strict=True)
        ]

    # Servers -------------------------------------------------------------------------------------------------

    def come(self, node: NodeId) -> None:
        """A server that was launched comes up."""
        self.coming.discard(node)
        self.servers[node] = LiveServer(node)
        self.after(manager.server_running(self.m, node, now=self.now))
        self.after(manager.server_ready(self.m, node, 1, f"{node}:1", now=self.now))

    def gone(self, node: NodeId) -> None:
        """A server's node is gone, asked or not."""
        self.coming.discard(node)
        self.leaving.discard(node)
        self.servers.pop(node, None)
        self.after(manager.server_lost(self.m, node, reason=f"{node} is gone", now=self.now))

    def crash(self, node: NodeId) -> None:
        """A server's process ends; its agent starts another."""
        server = self.servers[node]
        server.variables = {}
        self.after(manager.server_down(self.m, node, reason=f"{node} crashed", now=self.now))

    def up_again(self, node: NodeId) -> None:
        server = self.servers[node]
        server.incarnation += 1
        server.variables = {}
        address = f"{node}:{server.incarnation}"
        self.after(manager.server_ready(self.m, node, server.incarnation, address, now=self.now))

    # Trainers ------------------------------------------------------------------------------------------------

    def join(self, role: Role = Role.WORKER, *, again: NodeId | None = None) -> NodeId:
        if again is not None:
            incarnation, role = self.returning.pop(again)
            node = again
        else:
            node, incarnation = node_id(role, self.next_trainer), 1
            self.next_trainer += 1
        self.trainers[node] = LiveTrainer(node, incarnation, role)
        self.trainers[node].outbox.append(ModelNamed(partitions=MODEL))
        return node

    def die(self, node: NodeId) -> None:
        self.trainers.pop(node, None)
        self.returning.pop(node, None)
        self.after(manager.trainer_gone(self.m, node, reason="killed", now=self.now))

    def hear(self, node: NodeId) -> None:
        """The trainer gets the next word and does it."""
        trainer = self.trainers[node]
        word = trainer.inbox.popleft()
        match word:
            case PreparePS(cluster=cluster):
                trainer.sessions[cluster.version] = cluster
                trainer.outbox.append(PreparedPS(version=cluster.version))
            case Drain(version=version, barrier=barrier):
                assert version == trainer.version or not trainer.running  # it may never have heard the `Go` before
                trainer.running = False
                trainer.outbox.append(Drained(barrier=barrier, step=self.ledger))
            case Go(version=version):
                assert version in trainer.sessions, f"{node} is to train on {version}, which it was not told of"
                trainer.version, trainer.running, trainer.stuck = version, True, None
                trainer.outbox.append(Resumed(version=version))
            case Abandon(version=version):
                assert version != trainer.version
                trainer.sessions.pop(version, None)
            case Move():
                trainer.outbox.append(self._moved(trainer, word))
            case Save():
                trainer.outbox.append(self._saved(trainer, word))
            case Settled(version=version):
                self.settled.append(version)
            case ChiefIs():
                pass

    def speak(self, node: NodeId) -> None:
        """What the trainer said first reaches the master."""
        trainer = self.trainers[node]
        word = trainer.outbox.popleft()
        self.after(manager.heard(self.m, node, trainer.incarnation, trainer.role, word, now=self.now))

    def step(self, node: NodeId) -> None:
        trainer = self.trainers[node]
        assert trainer.running
        cluster = trainer.sessions[trainer.version or 0]
        missing = [s for s in cluster.servers if cluster.version not in self._variables(s.node)]
        if missing:  # only chance may do that, and then everybody is on the way back to a checkpoint
            change = self.m.change
            assert self.failed is not None or (change is not None and change.kind is Kind.ROLLBACK)
            word = ServerUnreachable(version=cluster.version, rank=missing[0].rank, detail="no connection")
            trainer.outbox.append(word)
            return
        assert self.m.current is not None
        assert cluster.version == self.m.current.version, "a step into a version that nobody will read"
        assert self.m.change is None or self.m.change.fuzzy or self.m.change.phase not in (Phase.MOVING, Phase.SAVING)
        values = self.values(cluster)
        assert set(values) == {self.ledger}, f"the model has {values} steps, the ledger {self.ledger}"
        at = {server.rank: server.node for server in cluster.servers}
        for partition, rank in zip(cluster.partitions, cluster.placement, strict=True):
            self.servers[at[rank]].variables[cluster.version][partition.name] += 1
        self.ledger += 1
        self.stepped[node] = self.now

    def _variables(self, node: NodeId) -> dict[int, dict[str, int]]:
        return self.servers[node].variables if node in self.servers else {}

    def _moved(self, trainer: LiveTrainer, word: Move) -> Moved | MoveFailed:
        cluster = trainer.sessions[word.version]
        failed = MoveFailed(version=word.version, attempt=word.attempt, reason="it does not work")
        match word.transfer:
            case Fresh():
                value = 0
            case FromCheckpoint(path=path):
                if path not in self.disk:
                    return failed
                value = self.disk[path]
            case LiveCopy(version=version) | ThroughCheckpoint(version=version):
                if isinstance(word.transfer, LiveCopy) and not trainer.copies:
                    return failed
                source = trainer.sessions.get(version)
                if source is None or any(version not in self._variables(s.node) for s in source.servers):
                    return failed
                value = self.values(source)[0]
        if any(server.node not in self.servers for server in cluster.servers):
            return failed
        for server in cluster.servers:
            self.servers[server.node].variables[cluster.version] = {}
        at = {server.rank: server.node for server in cluster.servers}
        for partition, rank in zip(cluster.partitions, cluster.placement, strict=True):
            self.servers[at[rank]].variables[cluster.version][partition.name] = value
        return Moved(version=word.version, attempt=word.attempt, checksum=str(value), nbytes=500)

    def _saved(self, trainer: LiveTrainer, word: Save) -> SavedPS:
        value = self.ledger
        self.disk[word.path] = value
        checkpoint = PSCheckpoint(
            path=word.path, step=value, version=word.version, mark=a_mark(value), fuzzy=word.fuzzy
        )
        return SavedPS(checkpoint=checkpoint, barrier=word.barrier)

    # Masters and time ----------------------------------------------------------------------------------------

    def reconnect(self, node: NodeId) -> None:
        """A trainer loses its connection, with all that was on its way in both directions, and comes back."""
        trainer = self.trainers[node]
        trainer.inbox.clear()
        trainer.outbox.clear()
        trainer.outbox.append(ModelNamed(partitions=MODEL))
        if trainer.stuck is not None:
            trainer.outbox.append(trainer.stuck)
        self.after(manager.returned(self.m, node, now=self.now))

    def restart_master(self) -> None:
        self.m = _managers.decode(msgspec.msgpack.encode(self.m))
        assert self.m == self.written
        self.after(manager.taken_over(self.m, now=self.now))
        for node in list(self.trainers):
            self.reconnect(node)
        for node, server in self.servers.items():
            address = f"{node}:{server.incarnation}"
            self.after(manager.server_ready(self.m, node, server.incarnation, address, now=self.now))

    def wait(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)
        self.after(manager.ticked(self.m, now=self.now, stepped=self.stepped))

    def wait_for_deadline(self) -> bool:
        due = manager.deadline(self.m)
        if due is None:
            return False
        self.now = max(self.now, due)
        self.after(manager.ticked(self.m, now=self.now, stepped=self.stepped))
        return True

    def plan(self, plan: ResourcePlan, victims: frozenset[NodeId] = frozenset()) -> None:
        self.after(manager.planned(self.m, plan, victims=victims, now=self.now))

    def save(self, *, fuzzy: bool = False) -> None:
        assert self.m.chief is not None
        self.trainers[self.m.chief].outbox.append(SaveWanted(reason="it is time", fuzzy=fuzzy))

    def unreach(self, node: NodeId, *, rank: int) -> None:
        """A trainer stands still because it cannot reach a server."""
        trainer = self.trainers[node]
        trainer.running = False
        cluster = trainer.sessions[trainer.version or 0]
        self.unreached |= {server.node for server in cluster.servers if server.rank == rank}
        trainer.stuck = ServerUnreachable(version=cluster.version, rank=rank, detail="no answer")
        trainer.outbox.append(trainer.stuck)

    def reach(self, node: NodeId) -> None:
        trainer = self.trainers[node]
        assert trainer.version is not None
        trainer.running, trainer.stuck = True, None
        trainer.outbox.append(Resumed(version=trainer.version))

    # Until nothing happens any more --------------------------------------------------------------------------

    def settle(self, watch: Callable[[ToTrainer], object] | None = None) -> None:
        """Everybody does what it is told, and answers. Time stands still."""
        while self.failed is None and (self.one_node() or self.one_word(watch)):
            pass

    def settle_words(self) -> None:
        """The same without the platform: nodes neither come nor go."""
        while self.failed is None and self.one_word():
            pass

    def one_node(self) -> bool:
        """The next node comes, or goes, as was asked."""
        for node in sorted(self.coming):
            self.come(node)
            return True
        for node in sorted(self.leaving):
            self.gone(node)
            return True
        for node in sorted(self.returning):
            self.join(again=node)
            return True
        return False

    def one_word(self, watch: Callable[[ToTrainer], object] | None = None) -> bool:
        """The next word is heard, by a trainer or by the master."""
        for trainer in self.trainers.values():
            if trainer.mute or not (trainer.inbox or trainer.outbox):
                continue
            if trainer.inbox:
                if watch is not None:
                    watch(trainer.inbox[0])
                self.hear(trainer.node)
            else:
                self.speak(trainer.node)
            return True
        return False
