"""A store that is written now and then: masters die with what they did not write down, and no record is trained twice
or left out, because agents say again what nobody told them is kept."""

from collections import Counter
from datetime import timedelta

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.job_builders import Story

from shoal.agent.shards import Desk
from shoal.core import journal
from shoal.core import ledger as ledgers
from shoal.core.job import Effect, Job
from shoal.core.job.takeover import taken_over
from shoal.core.job.values import DataAnswered, DataAsked, DataWoken, HeartbeatSeen, Tell
from shoal.core.ledger import DatasetSpec, Lease, LeaseSettings
from shoal.core.ledger.datasets import Kind
from shoal.core.nodes import NodeId
from shoal.core.rounds import Extent, owner_of
from shoal.wire.local import DatasetNamed, ShardsGiven, ShardsSaid, StreamSaid

NODES = ("worker-0", "worker-1", "worker-2")
SHARDS, EPOCHS = 7, 2
SPEC = DatasetSpec(
    name="train", size=10 * SHARDS, shard_size=10, epochs=EPOCHS, leases=LeaseSettings(time=timedelta(hours=9))
)


class Node:
    """An agent's desk and the one process behind it, which trains whole shards."""

    def __init__(self, name: str) -> None:
        self.name, self.pid, self.desk = name, 1, Desk()
        self.leases: list[Lease] = []
        self.connected = True
        self.ended = False
        self.start()

    @property
    def owner(self) -> ledgers.Owner:
        return owner_of(self.name, 0, self.pid, "life")

    def start(self) -> None:
        self.desk.said(self.owner, DatasetNamed(spec=SPEC))
        self.desk.said(self.owner, ShardsSaid(dataset="train", epoch=None, completed=(), progress=(), want=2))

    def restart(self) -> None:
        self.desk.departed(self.owner, charged=False, reason="killed")
        self.pid, self.leases = self.pid + 1, []
        self.start()

    def hear(self) -> None:
        for owner, letter in self.desk.letters():
            if owner == self.owner and isinstance(letter, ShardsGiven):
                self.leases += letter.leases
                self.leases = [lease for lease in self.leases if lease.attempt not in letter.lost]
                self.ended |= letter.ended


class Master:
    """One after the other, with one store that holds what was written."""

    def __init__(self) -> None:
        self.story = Story(nodes=3)
        self.story.join(*NODES)
        self.nodes = {name: Node(name) for name in NODES}
        self.trained: Counter[tuple[int, int]] = Counter()
        self.term, self.unkept = 1, dict[str, int]()
        self.written: Job = self.story.job
        self.write()

    # What may happen --------------------------------------------------------------------------------------

    def work(self, node: Node) -> None:
        if node.leases:
            lease = node.leases.pop(0)
            self.trained[lease.epoch, lease.shard] += 1
            word = ShardsSaid(dataset="train", epoch=None, completed=(lease.attempt,), progress=(), want=2)
            node.desk.said(node.owner, word)

    def carry(self, node: Node) -> None:
        """One round trip."""
        if node.connected and (said := node.desk.next_round()) is not None:
            self.act(self.story.happen(DataAsked(node=NodeId(node.name), round=said)))

    def act(self, effects: tuple[Effect, ...]) -> None:
        change = journal.change(self.written, self.story.job)
        if change is not None and not change.is_replayed:
            self.write()
        is_kept = journal.change(self.written, self.story.job) is None
        for effect in effects:
            if not isinstance(effect, Tell):
                continue
            for node in (self.nodes[name] for name in effect.to):
                match effect.what:
                    case DataAnswered(answer=answer) if node.connected:
                        node.desk.answered(answer, is_kept=is_kept)
                        if not is_kept:
                            self.unkept[node.name] = answer.number
                    case DataWoken(wakes=wakes) if node.connected:
                        node.desk.woken(wakes)
                    case _:
                        pass
                node.hear()

    def write(self) -> None:
        self.written = self.story.job
        for name, number in self.unkept.items():
            if self.nodes[name].connected:
                self.nodes[name].desk.kept(number)
        self.unkept = {}

    def kill(self, node: Node) -> None:
        """The master, not the node."""
        job = journal.replay([journal.snapshot(self.written)])
        assert job is not None
        self.term, self.unkept = self.term + 1, {}
        self.story.job = taken_over(job, self.story.now, reason="took over", term=self.term, is_replayed=True)
        for each in self.nodes.values():
            each.connected = False

    def come_back(self, node: Node) -> None:
        if node.connected:
            return
        node.connected = True
        self.story.join(node.name)
        node.desk.reconnected()
        self.carry(node)
        self.act(self.story.happen(HeartbeatSeen(node=NodeId(node.name), incarnation=1, processes=())))

    def drop(self, node: Node) -> None:
        """Only the connection."""
        node.connected = False
        self.come_back(node)

    def restart(self, node: Node) -> None:
        """The process dies between two shards; those it had not begun are others' now."""
        node.restart()

    def finish(self) -> None:
        for _ in range(40 * SHARDS * EPOCHS):
            for node in self.nodes.values():
                self.come_back(node)
                self.carry(node)
                self.work(node)
            if all(node.ended for node in self.nodes.values()):
                return
        raise AssertionError("the data never ends")


ACTS = ("work", "work", "work", "carry", "carry", "carry", "carry", "write", "kill", "come_back", "drop", "restart")


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(ACTS), st.sampled_from(NODES)), max_size=120))
def test_whatever_masters_forget_each_shard_is_trained_once_and_counted_once(acts: list[tuple[str, str]]) -> None:
    master = Master()
    for act, name in acts:
        if act == "write":
            master.write()
        else:
            getattr(master, act)(master.nodes[name])
    master.finish()
    assert dict(master.trained) == {(epoch, shard): 1 for epoch in range(EPOCHS) for shard in range(SHARDS)}
    assert ledgers.is_complete(master.story.job.ledger)


def test_a_desk_is_not_quiet_before_its_last_word_is_written_down() -> None:
    master = Master()
    node = master.nodes["worker-0"]
    master.carry(node)
    master.work(node)
    master.carry(node)
    done: list[str] = []
    node.desk.when_heard(lambda: done.append("quiet"))
    assert done == []
    master.write()
    assert done == ["quiet"]


def test_after_a_takeover_nothing_is_leased_before_everybody_has_said_what_it_holds() -> None:
    master = Master()
    first, second, third = master.nodes.values()
    master.carry(third)
    master.kill(first)
    master.come_back(first)
    master.come_back(second)
    assert first.leases + second.leases == []
    master.come_back(third)
    master.carry(first)
    assert first.leases
    assert not {lease.shard for lease in first.leases} & {lease.shard for lease in third.leases}


def test_a_master_that_dies_right_after_an_epoch_began_costs_no_shard() -> None:
    master = Master()
    node = master.nodes["worker-0"]
    while not any(lease.epoch == 1 for lease in node.leases):
        master.carry(node)
        master.work(node)
    master.work(node)
    master.carry(node)
    master.kill(node)
    master.finish()
    assert set(master.trained.values()) == {1}


def test_a_master_that_dies_right_after_a_stream_was_closed_costs_not_its_end() -> None:
    master = Master()
    node = master.nodes["worker-0"]
    stream = DatasetSpec(name="clicks", kind=Kind.STREAM, partitions=(0,), shard_size=10)
    node.desk.said(node.owner, DatasetNamed(spec=stream))
    master.carry(node)
    node.desk.said(node.owner, StreamSaid(extent=Extent(dataset="clicks", partition=0, until=100, closed=True)))
    master.carry(node)
    assert master.story.job.ledger.dynamic["clicks"].lanes[0].closed
    assert not master.written.ledger.dynamic["clicks"].lanes[0].closed
    master.kill(node)
    assert not master.story.job.ledger.dynamic["clicks"].lanes[0].closed
    master.come_back(node)
    assert master.story.job.ledger.dynamic["clicks"].lanes[0].closed
