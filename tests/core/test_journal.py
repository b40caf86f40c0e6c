"""Whatever happens to a job, its records give it back: exactly, in order, and never something else."""

from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.core.job_builders import Story

from shoal.core import job as jobs
from shoal.core import journal
from shoal.core.changes import Differ
from shoal.core.errors import StateUnreadable
from shoal.core.job.values import Effect, Event, Job, ScaleAsked, StopAsked
from shoal.sim import worlds


class Recording:
    """A master that writes down what it decides, and after each record looks whether it could be read back."""

    def __init__(self) -> None:
        self.records: list[bytes] = []
        self.written: Job | None = None
        self.read: Job | None = None

    def handle(self, job: Job, event: Event, now: datetime) -> tuple[Job, tuple[Effect, ...]]:
        self.keep(job)  # what `admit` changed since
        after, effects = jobs.handle(job, event, now)
        if journal.is_worth_a_look(event) or effects:
            self.keep(after)
        return after, effects

    def keep(self, job: Job) -> None:
        if self.written is None:
            self._append(journal.snapshot(job), job)
        elif (change := journal.change(self.written, job)) is not None:
            self._append(change.record, job)

    def _append(self, record: bytes, job: Job) -> None:
        self.records.append(record)
        self.written = job
        self.read = journal.replay([journal.snapshot(self.read), record]) if self.read else journal.replay([record])
        assert self.read == journal.kept(job)
        assert _orders(self.read) == _orders(job)


def _orders(job: Job) -> tuple[list[object], ...]:
    return (list(job.nodes), list(job.seen), list(job.budgets), list(job.rendezvous.members))


@pytest.mark.parametrize("seed", range(60))
def test_a_replayed_job_is_the_job_whatever_happened_to_it(seed: int) -> None:
    recording = Recording()
    worlds.run(seed, handle=recording.handle)
    assert recording.written is not None
    assert journal.replay(recording.records) == journal.kept(recording.written)


@given(st.lists(st.integers(0, 9), max_size=40))
@example([3, 7, 7, 5])  # a node that was expected to join is scaled away before the first world
def test_every_prefix_of_the_records_is_a_state_that_was(moves: list[int]) -> None:
    story, states, records = Story(nodes=2, joins=1), [], []
    states.append(story.job)
    records.append(journal.snapshot(story.job))
    for move in moves:
        _move(story, move)
        change = journal.change(states[-1], story.job)
        if change is not None:
            states.append(story.job)
            records.append(change.record)
    for length, state in enumerate(states, start=1):
        assert journal.replay(records[:length]) == journal.kept(state)


def _move(story: Story, move: int) -> None:
    live = [n.id for n in story.job.nodes.values() if n.is_live]
    node = live[move % len(live)] if live else None
    match move:
        case 0 | 1 | 2 if node:
            story.join(node)
        case 3 | 4 if node:
            story.ready(node, step=move)
        case 5 if story.job.rendezvous.pending is not None:
            story.ack()
        case 6 if node:
            story.crash(node, 137)
        case 7:
            story.happen(ScaleAsked(count=1 + len(live) % 4, who="somebody"))
        case 8:
            story.wait(4)
        case 9:
            story.happen(StopAsked(reason="enough"))
        case _:
            pass


def test_what_a_heartbeat_tells_makes_no_record() -> None:
    story = Story(nodes=2)
    story.train("worker-0", "worker-1")
    before = story.job
    story.now += timedelta(seconds=2)
    story.beat()
    assert story.job != before
    assert journal.change(before, story.job) is None


def test_progress_alone_is_minor() -> None:
    story = Story(nodes=2)
    story.train("worker-0", "worker-1")
    before = story.job
    story.gain(99)
    change = journal.change(before, story.job)
    assert change is not None
    assert change.is_minor
    story.crash("worker-0")
    change = journal.change(before, story.job)
    assert change is not None
    assert not change.is_minor


def test_no_records_are_no_job() -> None:
    assert journal.replay([]) is None


@pytest.mark.parametrize(
    ("records", "complaint"),
    [
        pytest.param([b"\xc1"], "record 1", id="garbage"),
        pytest.param([msgspec.msgpack.encode({"type": "poem"})], "record 1", id="unknown-kind"),
        pytest.param(
            [msgspec.msgpack.encode(journal.SnapshotRecord(99, msgspec.Raw(b"\xc0")))],
            "has format 99, this release reads 1",
            id="newer",
        ),
        pytest.param(
            [msgspec.msgpack.encode(journal.SnapshotRecord(1, msgspec.Raw(b"\xc0")))], "record 1", id="no-job-in-it"
        ),
        pytest.param(
            [msgspec.msgpack.encode({"type": "change", "patch": {}})], "snapshot is missing", id="change-first"
        ),
        pytest.param(
            [
                journal.snapshot(Story().job),
                msgspec.msgpack.encode({"type": "change", "patch": {"whole": {"nonsense": 1}}}),
            ],
            "record 2",
            id="unknown-field",
        ),
    ],
)
def test_records_that_are_none_are_an_error_that_says_which(records: list[bytes], complaint: str) -> None:
    with pytest.raises(StateUnreadable, match=complaint):
        journal.replay(records)


# Patches -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Leaf:
    number: int = 0


@dataclass(frozen=True)
class Thing:
    name: str = ""
    leaf: Leaf = field(default_factory=Leaf)
    row: tuple[int, ...] = ()
    leaves: dict[str, Leaf] = field(default_factory=dict)


_things = st.builds(
    Thing,
    name=st.text(max_size=3),
    leaf=st.builds(Leaf, st.integers(0, 3)),
    row=st.lists(st.integers(300, 305), max_size=5).map(tuple),
    leaves=st.dictionaries(st.sampled_from("abcd"), st.builds(Leaf, st.integers(0, 2))),
)


@given(_things, _things)
def test_a_patch_makes_the_later_value_of_the_earlier_one(before: Thing, after: Thing) -> None:
    differ = Differ(Thing)
    patch = differ.between(before, after)
    made = before if patch is None else differ.applied(before, patch)
    assert made == after
    assert list(made.leaves) == list(after.leaves)
    assert patch is not None or before == after


def test_a_tuple_that_grew_and_was_cut_is_told_by_its_tail() -> None:
    old = Thing(row=tuple(range(1000, 1200)))
    patch = Differ(Thing).between(old, replace(old, row=(*old.row[1:], 7)))
    assert patch is not None
    assert len(msgspec.msgpack.encode(patch)) < 30
