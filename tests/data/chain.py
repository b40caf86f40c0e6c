"""The whole chain from a process to the ledger, without sockets: real parts, joined by queues that lose what they hold.

`Data` (the process) ↔ `Desk` (its agent) ↔ `handle` (the master, with its journal). Chance trains, delays, cuts
connections, kills processes, nodes and masters, and lets leases pass their deadline. After every step: what the ledger
counts as trained, somebody has trained.
"""

import contextlib
import threading
from collections import Counter, deque
from datetime import timedelta
from random import Random

from tests.core.job_builders import Story

from shoal.agent.shards import Desk
from shoal.core import journal
from shoal.core import ledger as ledgers
from shoal.core.errors import BadInput
from shoal.core.exits import ProcessExit
from shoal.core.job import handle
from shoal.core.job.takeover import taken_over
from shoal.core.job.values import AgentDisconnected, DataAnswered, DataAsked, DataWoken, Event, NodeExited, Tell, Ticked
from shoal.core.ledger import Checkpoint, DatasetSpec, Owner
from shoal.core.nodes import NodeId
from shoal.core.rounds import Round, owner_of
from shoal.trainer.data import Data, Shard, packed
from shoal.wire.local import DataAnswer, DataWord, LedgerMark, LedgerPut


def place(shard: Shard) -> int:
    """Which line a shard is of: an epoch's, or a partition's."""
    return shard.partition or shard.epoch


class Process:
    def __init__(self, node: str, life: int, desk: Desk, spec: DatasetSpec, trained: Counter[tuple[int, int]]) -> None:
        self.owner = owner_of(node, 0, 1, str(life))
        self.data = Data(self.say)
        self.shard: Shard | None = None
        self.floor = 0
        """The last attempt from before the last restore: nothing up to it may be trained any more."""
        self._desk = desk
        self._restoring: threading.Thread | None = None
        self._asked = threading.Event()
        self._spec = spec
        self._trained = trained
        self.data.register(spec)
        for partition, first in enumerate(spec.partitions):
            self.data.grow(spec.name, partition, first)  # nothing is known to be there
        self.data.want(spec.name, prefetch=2)

    def say(self, word: DataWord) -> None:
        self._desk.said(self.owner, word)
        if isinstance(word, LedgerPut):
            self._asked.set()

    def hear(self, letter: DataAnswer, floor: int) -> None:
        self.data.received(letter)
        if isinstance(letter, LedgerMark) and self._restoring is not None:
            self._restoring.join()
            self._restoring = None
            self.floor = floor if letter.problem is None else self.floor

    def restore(self, mark: Checkpoint) -> None:
        """Restore the data as a script does, which waits for it; meanwhile everything else goes on."""
        if self._restoring is None:
            self._asked.clear()
            self._restoring = threading.Thread(target=self._restore, args=(packed(mark),), daemon=True)
            self._restoring.start()
            self._asked.wait()

    def _restore(self, saved: bytes) -> None:
        with contextlib.suppress(BadInput):  # it is killed while it waits
            self.data.restore(saved)

    def kill(self) -> None:
        self.hear(LedgerMark(problem="killed"), 0)

    @property
    def has_ended(self) -> bool:
        return self._restoring is None and self.shard is None and self.data.has_ended(self._spec.name)

    def work(self, count: int) -> None:
        """Train up to so many records."""
        if self._restoring is not None:
            return
        if self.shard is None:
            self.shard = self.data.take(self._spec.name, wait=False)
        shard = self.shard
        if shard is None:
            return
        for _ in range(min(count, shard.size - shard.done)):
            if shard.is_lost:
                break
            assert shard.lease.attempt > self.floor, f"{shard!r} is from before the restore"
            self._trained[place(shard), shard.lease.start + shard.done] += 1
            shard.trained(1)
        if shard.is_lost or shard.done == shard.size:
            self.data.close(shard)
            self.shard = None


class Agent:
    def __init__(self, node: str, chain: "Chain") -> None:
        self.node = NodeId(node)
        self.chain = chain
        self.desk = Desk()
        self.connected = False
        self.sent: deque[Round] = deque()
        self.came: deque[DataAnswered | DataWoken] = deque()
        self.process: Process | None = None
        self.start()

    def start(self) -> None:
        self.chain.lives += 1
        self.process = Process(self.node, self.chain.lives, self.desk, self.chain.spec, self.chain.trained)

    def kill_process(self) -> None:
        if self.process is not None:
            self.desk.departed(self.process.owner, charged=False, reason="killed")
            self.process.kill()
            self.process = None

    def restart(self) -> None:
        """The agent is killed with its process, and another one begins in its place before anybody notices."""
        self.cut()
        if self.process is not None:
            self.process.kill()
        self.desk = Desk()
        self.start()

    def connect(self) -> None:
        self.connected = True
        self.chain.story.join(self.node)
        self.desk.reconnected()

    def cut(self) -> None:
        """The connection is lost, and what was on its way."""
        self.connected = False
        self.sent.clear()
        self.came.clear()

    def turn(self) -> None:
        """Pass on what has come, and send what is to be sent."""
        while self.came:
            match self.came.popleft():
                case DataAnswered(answer=answer):
                    self.desk.answered(answer)
                case DataWoken(wakes=wakes):
                    self.desk.woken(wakes)
        for owner, letter in self.desk.letters():
            if self.process is not None and owner == self.process.owner:
                self.process.hear(letter, self.chain.floors.get(owner, 0))
        if (round := self.desk.next_round()) is not None and self.connected:
            self.sent.append(round)


class Chain:
    def __init__(self, seed: int, spec: DatasetSpec, *, nodes: int = 3, ends: tuple[int, ...] = ()) -> None:
        self.chance = Random(seed)
        self.spec = spec
        self.ends = ends
        """Where the partitions of a stream end, which only `finish` says."""
        self.trained: Counter[tuple[int, int]] = Counter()
        self.lives = 0
        self.term = 1
        self.mark: Checkpoint | None = None
        self.floors: dict[Owner, int] = {}
        """The last attempt from before the last restore of each process."""
        self.story = Story(nodes=nodes, minimum=1, maximum=nodes + 2)
        self.records = [journal.snapshot(self.story.job)]
        self.written = self.story.job
        self.agents = {name: Agent(name, self) for name in map(str, self.story.job.nodes)}
        for agent in self.agents.values():
            agent.connect()

    def happen(self, event: Event) -> None:
        """The master decides, records, then acts."""
        self.story.job, effects = handle(self.story.job, event, self.story.now)
        self.record()
        for effect in effects:
            if isinstance(effect, Tell) and isinstance(effect.what, DataAnswered | DataWoken):
                for node in effect.to:
                    agent = self.agents.get(node)
                    if agent is not None and agent.connected:
                        agent.came.append(effect.what)

    def record(self) -> None:
        if (change := journal.change(self.written, self.story.job)) is not None:
            self.records.append(change.record)
            self.written = self.story.job

    def hear(self, agent: Agent) -> None:
        if agent.sent:
            round = agent.sent.popleft()
            self.happen(DataAsked(node=agent.node, round=round))
            for restore in round.restores:
                self.floors[restore.owner] = self.story.job.ledger.dynamic[self.spec.name].floor

    def new_master(self) -> None:
        """The master is killed; another one begins with its records, and everybody has to come back."""
        self.record()
        job = journal.replay(self.records)
        assert job is not None
        assert job.ledger == self.story.job.ledger
        self.term += 1
        self.story.job = taken_over(job, self.story.now, reason="took over", term=self.term)
        self.record()
        for agent in self.agents.values():
            agent.cut()

    def kill_node(self, agent: Agent) -> None:
        agent.cut()
        self.happen(NodeExited(node=agent.node, exit=ProcessExit(code=137)))
        self.follow_nodes()

    def follow_nodes(self) -> None:
        """End the agents of nodes that the master has given up, and start those of nodes that take their place."""
        for name, node in self.story.job.nodes.items():
            if node.is_live and name not in self.agents:
                self.agents[name] = Agent(name, self)
            elif not node.is_live and name in self.agents:
                self.agents.pop(name).kill_process()

    def wait(self, seconds: float) -> None:
        self.story.now += timedelta(seconds=seconds)
        self.story.beat()
        self.happen(Ticked())
        self.follow_nodes()

    def step(self) -> None:
        """Something happens, by chance."""
        agent = self.chance.choice(list(self.agents.values()))
        self.chance.choices(
            [
                lambda: agent.process.work(self.chance.randint(1, 7)) if agent.process else agent.start(),
                lambda: agent.process.data.flush() if agent.process else None,
                agent.turn,
                lambda: self.hear(agent),
                lambda: agent.connect() if not agent.connected else None,
                lambda: self.lose_link(agent),
                agent.kill_process,
                agent.restart,
                lambda: self.kill_node(agent),
                self.new_master,
                lambda: self.wait(self.chance.choice([0.1, 3.0])),
                self.save,
                lambda: self.restore(agent),
                lambda: self.grow(agent),
            ],
            weights=[30, 8, 30, 30, 8, 2, 2, 0.5, 0.5, 0.5, 2, 1, 0.5, 10 if self.ends else 0],
        )[0]()
        self.check()

    def save(self) -> None:
        self.mark = ledgers.checkpoint(self.story.job.ledger)

    def restore(self, agent: Agent) -> None:
        """A process restores the last checkpoint. Nobody is told: whoever trains on finds out by being refused."""
        if self.mark is not None and agent.process is not None:
            agent.process.restore(self.mark)

    def grow(self, agent: Agent) -> None:
        """A process says how far a partition of the stream goes: news, or an old word again."""
        if agent.process is not None:
            partition = self.chance.randrange(len(self.ends))
            first, end = self.spec.partitions[partition], self.ends[partition]
            agent.process.data.grow(self.spec.name, partition, self.chance.randint(first, end))

    def end(self, agent: Agent) -> None:
        """A process says where the stream ends; every one does, again and again."""
        if agent.process is not None:
            for partition, end in enumerate(self.ends):
                agent.process.data.end(self.spec.name, partition, end)

    def lose_link(self, agent: Agent) -> None:
        if agent.connected:
            agent.cut()
            self.happen(AgentDisconnected(node=agent.node))

    def finish(self, rounds: int = 5000) -> None:
        """No more trouble: everybody works until everybody has heard the end."""
        for _ in range(rounds):
            for agent in list(self.agents.values()):
                if not agent.connected:
                    agent.connect()
                if agent.process is None:
                    agent.start()
                assert agent.process is not None
                self.end(agent)
                agent.process.work(5)
                agent.turn()
                self.hear(agent)
            if all(a.process is not None and a.process.has_ended for a in self.agents.values()):
                return
            self.wait(0.05)
        raise AssertionError(f"not through after {rounds} rounds: {self.story.job.ledger}")

    def check(self) -> None:
        """What the ledger counts, somebody has trained."""
        if self.spec.name not in self.story.job.ledger.dynamic:
            return
        account = ledgers.account_of(self.story.job.ledger, self.spec.name)
        for line, done in enumerate(account.done):
            for start, stop in done:
                for position in range(start, stop):
                    assert self.trained[line or account.epoch, position], f"{position} counts and was never trained"
