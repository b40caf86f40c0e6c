"""Simulated nodes of a job with parameter servers: servers that hold a model, workers that train it, an evaluator.

The model is what it has seen: a step on a shard adds the shard to every partition, wherever that lies. So a partition
that was lost or left behind, a step into a version that nobody reads, and a ledger that was not put back together with
the model are all seen at once, or at the latest when the job has ended and the model has not seen all data.
"""

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, assert_never

from shoal.core.job.values import (
    Command,
    DataAnswered,
    DataAsked,
    DataWoken,
    LeaveNode,
    SayWord,
    StepGained,
    WordSaid,
)
from shoal.core.ledger import Ask, DatasetSpec, Lease, Verdict
from shoal.core.nodes import NodeId, Role, parsed
from shoal.core.ps.cluster import (
    Fresh,
    FromCheckpoint,
    LiveCopy,
    Partition,
    PSCheckpoint,
    PSCluster,
    ThroughCheckpoint,
)
from shoal.core.ps.words import (
    Abandon,
    CheckpointMade,
    ChiefIs,
    Drain,
    Drained,
    EvaluatorReady,
    FromNode,
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
    SaveFailed,
    SaveWanted,
    Scored,
    ServerReady,
    ServerUnreachable,
    Settled,
    ToNode,
)
from shoal.core.rounds import Departure, Holding, Round, RoundAnswer, owner_of
from shoal.sim.agents import Agent
from shoal.sim.training import Phase, Process, Violation

if TYPE_CHECKING:
    from shoal.sim.servers import ServedCluster

MODEL = tuple(Partition(name=f"v{n}", nbytes=100) for n in range(4))
RETRY = 1_000_000
"""A worker that cannot reach a server tries again so often."""
IDLE = 20_000
"""And looks for data so often when it has none."""
SAVE_EVERY = 5
MOST_HELD = 2
"""Shards that a worker holds: what it has trained of them and not reported is trained again when it is lost."""

Seen = Counter[int]
"""How often the model has seen each shard."""


class Gone(Exception):
    """A server cannot be reached, or does not have what is asked for."""

    def __init__(self, rank: int) -> None:
        super().__init__(f"rank {rank} does not answer")
        self.rank = rank


class ServerProcess(Process):
    """A parameter server: it holds what is put there, for each version apart."""

    variables: dict[int, dict[str, Seen]]

    def _started(self) -> None:
        self.phase = Phase.WAITING
        self.variables = {}
        agent = self.host
        assert isinstance(agent, ServedAgent)
        agent.stand(ServerReady(address=f"{self.name}:1"))

    def told(self, word: ToNode) -> None:
        raise Violation(f"{self} is a server and is told {word}")


class EvaluatorProcess(Process):
    def _started(self) -> None:
        self.phase = Phase.WAITING
        agent = self.host
        assert isinstance(agent, ServedAgent)
        agent.stand(EvaluatorReady())

    def told(self, word: ToNode) -> None:
        assert isinstance(word, CheckpointMade), f"{self} is an evaluator and is told {word}"
        agent = self.host
        assert isinstance(agent, ServedAgent)
        if word.path not in agent.served.disk:
            raise Violation(f"{self} is to score {word.path}, which is not there")
        self._after(self._pace.compute, lambda: self._score(agent, word))

    def _score(self, agent: "ServedAgent", word: CheckpointMade) -> None:
        agent.utter(Scored(path=word.path, metrics={"seen": float(agent.served.disk[word.path].total())}))
        if word.final:
            self._after(self._pace.drain, lambda: self.die(0))


class TrainerProcess(Process):
    """A worker: it trains a shard at a time, on the version it was told to."""

    def _started(self) -> None:
        self.phase = Phase.WAITING
        self.clusters: dict[int, PSCluster] = {}
        self.version: int | None = None
        self.running = False
        self.chief = ""
        self.shard: Lease | None = None
        """That of the step under way."""
        self.stuck = False
        self.is_parked = False
        """It stands still inside a step that it could not make."""
        self.draining: int | None = None
        """The barrier for which it ends its step and reports."""
        self.trained = 0
        self.last_save = self.is_saved = False
        agent = self.agent
        agent.shards.begin(owner_of(agent.node, 0, agent.started, "s"))
        agent.stand(ModelNamed(partitions=MODEL))

    @property
    def agent(self) -> "ServedAgent":
        assert isinstance(self.host, ServedAgent)
        return self.host

    # What it is told

    def told(self, word: ToNode) -> None:
        match word:
            case PreparePS(cluster=cluster, chief=chief):
                self.chief = chief
                self.clusters[cluster.version] = cluster
                self._after(self._pace.bootstrap, lambda: self.agent.utter(PreparedPS(version=cluster.version)))
            case Drain(barrier=barrier):
                self.running, self.draining = False, barrier
                if self.shard is None or self.stuck:
                    self._drain()
            case Move():
                self._after(self._pace.collective, lambda: self._move(word))
            case Save():
                self._after(self._pace.collective, lambda: self._save(word))
            case Go(version=version, chief=chief):
                self.chief = chief
                self._go(version)
            case Abandon(version=version):
                if version == self.version:
                    raise Violation(f"{self} is on version {version}, which is abandoned")
                self.clusters.pop(version, None)
            case ChiefIs(chief=chief):
                self.chief = chief
            case Settled():
                pass
            case CheckpointMade():
                raise Violation(f"{self} trains and is told {word}")
            case _:
                assert_never(word)

    def _drain(self) -> None:
        """All that was trained is in the ledger before it says that it stands still."""
        barrier = self.draining
        if barrier is None:
            return

        def reported() -> None:
            if self.draining == barrier:
                self.agent.utter(Drained(barrier=barrier, step=self.trained))

        self.is_parked, self.stuck = self.shard is not None, False
        self.agent.shards.flush(self.doing(reported))

    def _go(self, version: int) -> None:
        if version not in self.clusters:
            raise Violation(f"{self} is to train on version {version}, of which it was not told")
        if version != self.version and self.clusters[version].is_rollback:
            self.shard = None
            self.last_save = self.is_saved = False
            self.agent.shards.forget()
        if self.is_saved:  # the master knows of it now
            self._after(self._pace.drain, lambda: self.die(0))
        is_idle = not self.running
        self.version, self.running, self.draining, self.stuck = version, True, None, False
        self.agent.utter(Resumed(version=version))
        if self.is_parked and (shard := self.shard) is not None:
            self._after(self._pace.compute, lambda: self._step(shard))
        elif is_idle:
            self._go_on()
        self.is_parked = False

    # Training

    def _go_on(self) -> None:
        if not self.running or self.shard is not None:
            return
        shards = self.agent.shards
        self.shard = shards.take()
        if self.shard is not None:
            shard = self.shard
            self._after(self._pace.compute, lambda: self._step(shard))
        elif shards.has_ended:
            self._finish()
        else:
            self._after(IDLE, self._go_on)

    def _step(self, shard: Lease) -> None:
        if self.shard is not shard:
            return  # it was forgotten
        assert self.version is not None
        cluster = self.clusters[self.version]
        try:
            self.agent.served.step(self, cluster, shard.start)
        except Gone as gone:
            self._stand(gone.rank, shard)
            return
        self.shard, self.stuck = None, False
        self.trained += 1
        self.agent.shards.complete(shard)
        self.agent.gained(self)
        if self.draining is not None:
            self._drain()
            return
        if self.is_chief and self.trained % SAVE_EVERY == 0:
            self.agent.utter(SaveWanted(reason="it is time"))
        self._go_on()

    def _stand(self, rank: int, shard: Lease) -> None:
        """It cannot reach a server: it says so, stands still, and tries again."""
        if self.draining is not None:
            self._drain()
            return
        assert self.version is not None
        if not self.stuck:
            self.agent.utter(ServerUnreachable(version=self.version, rank=rank, detail="no answer"))
        self.stuck = True
        self._after(RETRY, lambda: self._try_again(shard))

    def _try_again(self, shard: Lease) -> None:
        if not self.stuck or self.shard is not shard or self.version is None:
            return
        cluster = self.clusters[self.version]
        try:
            self.agent.served.values(cluster)
        except Gone as gone:
            self._stand(gone.rank, shard)
            return
        self.stuck = False
        self.agent.utter(Resumed(version=self.version))
        self._step(shard)

    @property
    def is_chief(self) -> bool:
        return self.chief == self.agent.node

    def _finish(self) -> None:
        """All data is trained: the chief saves, the others end."""
        if not self.is_chief:
            self.running = False
            self._after(self._pace.drain, lambda: self.die(0))
        elif not self.last_save:
            self.last_save = True
            self.agent.utter(SaveWanted(reason="end"))
            self._after(RETRY, self._finish_again)

    def _finish_again(self) -> None:
        """The wish may be lost with a master, or the checkpoint given up: ask again."""
        self.last_save = self.is_saved
        if self.running:
            self._go_on()
        elif self.phase is not Phase.GONE:
            self._after(RETRY, self._finish_again)

    # The chief's errands

    def _move(self, word: Move) -> None:
        served, cluster = self.agent.served, self.clusters.get(word.version)
        if cluster is None:
            return  # it was abandoned meanwhile
        try:
            match word.transfer:
                case Fresh():
                    seen = Seen()
                case FromCheckpoint(path=path):
                    seen = served.disk[path]
                case LiveCopy(version=version) | ThroughCheckpoint(version=version):
                    is_unlucky = isinstance(word.transfer, LiveCopy) and self._chance.random() < 0.1
                    if is_unlucky or version not in self.clusters:
                        raise Gone(0)
                    seen = served.values(self.clusters[version])
                case _:
                    assert_never(word.transfer)
            served.put(cluster, seen)
        except Gone as gone:
            self.agent.utter(MoveFailed(version=word.version, attempt=word.attempt, reason=str(gone)))
            return
        self.agent.utter(Moved(version=word.version, attempt=word.attempt, checksum=str(sorted(seen)), nbytes=400))

    def _save(self, word: Save) -> None:
        served = self.agent.served
        try:
            seen = served.values(self.clusters[word.version])
        except Gone as gone:
            self.agent.utter(SaveFailed(barrier=word.barrier, reason=str(gone)))
            return
        if word.path in served.disk and served.disk[word.path] != seen:
            raise Violation(f"{word.path} is written twice")
        served.disk[word.path] = Seen(seen)
        made = PSCheckpoint(path=word.path, step=seen.total(), version=word.version, mark=word.mark)
        self.agent.utter(SavedPS(checkpoint=made, barrier=word.barrier))
        self.is_saved = self.last_save


AnyProcess = ServerProcess | EvaluatorProcess | TrainerProcess
_KINDS: dict[Role, type[AnyProcess]] = {
    Role.PS: ServerProcess,
    Role.EVALUATOR: EvaluatorProcess,
    Role.WORKER: TrainerProcess,
    Role.CHIEF: TrainerProcess,
}


class Shards:
    """What a node's process holds of the data, and what has to be said about it: one round at a time, and again after
    every handshake."""

    def __init__(self, agent: "ServedAgent", spec: DatasetSpec) -> None:
        self._agent = agent
        self._spec = spec
        self._owner = owner_of(agent.node, 0, 0, "s")
        self._held: dict[int, Lease] = {}
        self._taken: set[int] = set()
        self._completed: dict[int, None] = {}
        self._departed: list[Departure] = []
        self._flushed: list[Callable[[], None]] = []
        self._flushing: list[Callable[[], None]] = []
        self._sent: Round | None = None
        self._number = 0
        self._compare = False
        self._wants = self._waits = False
        self.has_ended = False

    def begin(self, owner: str) -> None:
        """A process has started that wants data."""
        self._owner = owner_of(self._agent.node, 0, self._agent.started, "s")
        assert self._owner == owner
        self._held, self._taken, self._completed = {}, set(), {}
        self._flushed, self._flushing = [], []
        self._wants, self._waits, self.has_ended = True, False, False
        self.send()

    def ended(self) -> None:
        """Its process is gone."""
        if self._wants:
            self._departed.append(Departure(owner=self._owner, charged=False, reason="it ended"))
        self._wants = False
        self.send()

    def take(self) -> Lease | None:
        found = next((lease for attempt, lease in self._held.items() if attempt not in self._taken), None)
        if found is not None:
            self._taken.add(found.attempt)
        return found

    def complete(self, lease: Lease) -> None:
        self._completed[lease.attempt] = None
        self.send()

    def forget(self) -> None:
        self._held, self._taken, self._completed = {}, set(), {}
        self._waits = self.has_ended = False
        self.send()

    def flush(self, then: Callable[[], None]) -> None:
        """Do it when the master has heard all that was said."""
        self._flushed.append(then)
        self.send()

    def reconnected(self) -> None:
        self._sent, self._compare, self._waits = None, True, False
        self._flushed, self._flushing = self._flushing + self._flushed, []
        self.send()

    def woken(self) -> None:
        self._waits = False
        self.send()

    def send(self) -> None:
        free = [a for a in self._held if a not in self._completed]
        want = 1 if self._wants and not self._waits and not self.has_ended and len(free) < MOST_HELD else 0
        is_news = self._compare or self._completed or self._departed or self._flushed or want
        if self._sent is not None or not is_news or not self._agent.connected:
            return
        self._number += 1
        ask = Ask(owner=self._owner, dataset=self._spec.name, completed=tuple(self._completed), want=want)
        held = Holding(owner=self._owner, dataset=self._spec.name, leases=tuple(self._held.values()))
        self._sent = Round(
            number=self._number,
            specs=(self._spec,),
            roll_call=self._compare,
            holding=(held,) if self._compare and self._wants else (),
            asks=(ask,) if self._wants else (),
            departed=tuple(self._departed),
            marks=(self._owner,) if self._flushed else (),
        )
        self._compare = False
        self._flushing, self._flushed = self._flushed, []
        self._agent.say(DataAsked(node=self._agent.node, round=self._sent))

    def answered(self, answer: RoundAnswer) -> None:
        sent = self._sent
        if sent is None or sent.number != answer.number:
            return
        self._sent = None
        del self._departed[: len(sent.departed)]
        if sent.asks and sent.asks[0].owner == self._owner:
            self._hear(sent.asks[0], answer)
            flushed, self._flushing = self._flushing, []
            for act in flushed:
                act()
        self.send()

    def _hear(self, ask: Ask, answer: RoundAnswer) -> None:
        for _, _, attempt in answer.void:
            self._held.pop(attempt, None)
        for attempt in ask.completed:
            self._completed.pop(attempt, None)
            self._held.pop(attempt, None)
        for given in answer.given:
            for refusal in given.refused:
                self._held.pop(refusal.attempt, None)
            self._held.update({lease.attempt: lease for lease in given.leases})
            if ask.want:
                self._waits = given.verdict is Verdict.WAIT
                self.has_ended = given.verdict is Verdict.END


class ServedAgent(Agent):
    """An agent of any role. Its process says what it is; that is said again after every handshake."""

    def __init__(self, served: "ServedCluster", node: NodeId, seat: int) -> None:
        super().__init__(served, node, seat)
        self.served = served
        name = parsed(node)
        assert name is not None
        self.role = name[0]
        self.shards = Shards(self, served.dataset)
        self._standing: FromNode | None = None
        self.is_leaving = False

    @property
    def process(self) -> AnyProcess | None:
        """That which lives."""
        found = self.processes.get(0)
        if found is None or found.phase is Phase.GONE:
            return None
        assert isinstance(found, AnyProcess)
        return found

    def stand(self, word: FromNode) -> None:
        self._standing = word
        self.utter(word)

    def utter(self, word: FromNode) -> None:
        if self.connected:
            self.say(WordSaid(node=self.node, incarnation=self.incarnation, word=word))

    def gained(self, process: TrainerProcess) -> None:
        if process.is_chief and self.connected:
            self.say(
                StepGained(
                    node=self.node,
                    incarnation=self.incarnation,
                    generation=0,
                    step=self.served.steps,
                    samples=None,
                    metrics={},
                )
            )

    def hear(self, command: Command) -> None:
        match command:
            case SayWord(word=word):
                if self._standing is not None and (process := self.process) is not None:
                    self.served.clock.after(1, process.doing(lambda: process.told(word)))
            case DataAnswered(answer=answer):
                self.shards.answered(answer)
            case DataWoken():
                self.shards.woken()
            case _:
                self.is_leaving = self.is_leaving or isinstance(command, LeaveNode)
                super().hear(command)

    def _welcome(self, sdk: bool) -> None:
        super()._welcome(sdk)
        if self._standing is not None and self.process is not None:
            self.utter(self._standing)
        self.shards.reconnected()

    def process_exited(self, process: Process, code: int) -> None:
        self._standing = None
        self.shards.ended()
        super().process_exited(process, code)

    def _start_processes(self) -> None:
        cluster, old = self.cluster, self.processes.get(0)
        if old is None or old.phase is Phase.GONE:
            self.started += 1
            kind = _KINDS[self.role]
            name = f"{self.node}#{self.started}"
            self.processes[0] = kind(self, name, 0, cluster.total, cluster.clock, cluster.chance, cluster.pace)
