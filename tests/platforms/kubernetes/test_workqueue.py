"""Keys: each once, one worker per key, nothing forgotten, nobody in a hurry after a failure."""

import asyncio
import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from tests.platforms.kubernetes.builders import SWIFT, until

from shoal.platforms.kubernetes.backoff import Backoff
from shoal.platforms.kubernetes.errors import Conflict
from shoal.platforms.kubernetes.workqueue import Backlog, QueueSettings, WorkQueue

KEYS = st.sampled_from("abcdef")
WAITS = st.sampled_from([0.0, 0.5, 1.0, 3.0])


class Keys(RuleBasedStateMachine):
    """The backlog against a model that knows, for each key, when it may be looked at, and who comes first then."""

    def __init__(self) -> None:
        super().__init__()
        self.settings = QueueSettings(capacity=4, backoff=Backoff(first_seconds=1.0, limit_seconds=8.0))
        self.backlog: Backlog[str] = Backlog(self.settings)
        self.now = 0.0
        self.wanted: dict[str, float] = {}  # by when a look is due
        self.marked: dict[str, float] = {}  # of keys being worked on, how long after it
        self.deadlines: dict[str, float] = {}
        self.working: set[str] = set()

    @rule(key=KEYS, wait=WAITS)
    def add(self, key: str, wait: float) -> None:
        known = set(self.wanted) | self.working
        taken = self.backlog.add(key, self.now, wait)
        assert taken == (key in known or len(known) < 4)
        if taken and key in self.working:
            self.marked[key] = min(self.marked.get(key, wait), wait)
        elif taken:
            self._want(key, wait)

    def _want(self, key: str, wait: float) -> None:
        due = self.now + wait
        deadline = due + min(self.settings.slack * wait, self.settings.most_slack_seconds)
        self.wanted[key] = min(self.wanted.get(key, due), due)
        self.deadlines[key] = min(self.deadlines.get(key, deadline), deadline)

    @rule()
    def take(self) -> None:
        key = self.backlog.take(self.now)
        due = {each for each, at in self.wanted.items() if at <= self.now}
        assert (key is None) == (not due)
        if key is not None:
            assert key in due
            assert self.deadlines[key] == min(self.deadlines[each] for each in due)
            del self.wanted[key], self.deadlines[key]
            self.working.add(key)

    @rule(data=st.data(), again=st.none() | WAITS)
    def done(self, data: st.DataObject, again: float | None) -> None:
        if not self.working:
            return
        key = data.draw(st.sampled_from(sorted(self.working)))
        self.working.discard(key)
        self.backlog.done(key, self.now, again_after=again)
        assert self.backlog.failures(key) == 0
        waits = [wait for wait in (self.marked.pop(key, None), again) if wait is not None]
        if waits:
            self._want(key, min(waits))

    @rule(data=st.data(), chance=st.floats(0, 1))
    def failed(self, data: st.DataObject, chance: float) -> None:
        if not self.working:
            return
        key = data.draw(st.sampled_from(sorted(self.working)))
        self.working.discard(key)
        failures = self.backlog.failures(key) + 1
        wait = self.backlog.failed(key, self.now, chance)
        full = min(8.0, 2.0 ** (failures - 1))
        assert full / 2 <= wait <= full  # the common budget is not used up here
        self.marked.pop(key, None)
        self._want(key, wait)

    @rule(seconds=st.sampled_from([0.25, 1.0, 10.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @invariant()
    def nothing_is_forgotten(self) -> None:
        assert len(self.backlog) == len(set(self.wanted) | self.working) <= 4
        assert self.backlog.working == len(self.working)

    @invariant()
    def the_next_wake_is_not_too_late(self) -> None:
        due = self.backlog.next_due()
        if self.wanted and not self.backlog.ready:
            assert due is not None
            assert due <= min(self.wanted.values())


Keys.TestCase.settings = settings(max_examples=150, stateful_step_count=50)
TestKeys = Keys.TestCase


def test_keys_are_taken_in_the_order_they_came() -> None:
    backlog: Backlog[str] = Backlog(QueueSettings())
    for key in "cabac":
        backlog.add(key, 0.0)
    assert [backlog.take(0.0) for _ in range(4)] == ["c", "a", "b", None]


def test_who_asks_goes_before_who_has_news_but_not_for_ever() -> None:
    backlog: Backlog[str] = Backlog(QueueSettings(slack=10.0, most_slack_seconds=30.0))
    backlog.add("news", 0.0, after=1.0)
    backlog.add("soon", 0.0, after=0.05)
    taken = []
    for second in range(1, 21):
        backlog.add(f"asked at {second}", float(second))
        key = backlog.take(float(second))
        assert key is not None
        taken.append(key)
        backlog.done(key, float(second))
    assert taken[0] == "soon"
    assert taken.index("news") == 11  # when those were asked for that came after its deadline
    assert [key for key in taken if key.startswith("asked")] == [f"asked at {second}" for second in range(1, 19)]


def test_news_of_a_key_that_waits_makes_it_no_later_and_an_ask_makes_it_the_first() -> None:
    backlog: Backlog[str] = Backlog(QueueSettings())
    for key in "ab":
        backlog.add(key, 0.0, after=1.0)
    for _ in range(1000):
        backlog.add("b", 0.5, after=1.0)
    assert backlog.next_due() == 1.0
    assert backlog.take(0.9) is None
    backlog.add("c", 2.0)
    backlog.add("b", 2.0)
    assert [backlog.take(2.0) for _ in range(4)] == ["c", "b", "a", None]


def test_retries_of_all_keys_share_a_budget() -> None:
    swift = Backoff(first_seconds=0.001, limit_seconds=0.001)
    backlog: Backlog[int] = Backlog(QueueSettings(backoff=swift, retries_per_second=10.0, retry_burst=5))
    waits = []
    for key in range(25):
        backlog.add(key, 0.0)
        assert backlog.take(0.0) == key
        waits.append(backlog.failed(key, 0.0, 1.0))
    assert max(waits[:5]) < 0.01
    assert waits[24] == pytest.approx(2.0, abs=0.01)  # twenty beyond the burst, ten a second


async def test_one_key_is_worked_on_by_one_worker_at_a_time_and_looked_at_again_when_woken() -> None:
    queue: WorkQueue[str] = WorkQueue()
    looks: list[str] = []
    busy: set[str] = set()
    go_on = asyncio.Event()

    async def handle(key: str) -> float | None:
        assert key not in busy
        busy.add(key)
        looks.append(key)
        await go_on.wait()
        busy.discard(key)
        return None

    running = asyncio.create_task(queue.work(handle, workers=4))
    queue.add("a")
    await until(lambda: looks == ["a"])
    for _ in range(5):
        queue.add("a")
    queue.add("b")
    await until(lambda: looks == ["a", "b"])
    go_on.set()
    await until(lambda: len(queue) == 0)
    assert sorted(looks) == ["a", "a", "b"]
    running.cancel()
    await asyncio.wait({running})


async def test_a_failure_is_tried_again_and_spoils_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    queue: WorkQueue[str] = WorkQueue(QueueSettings(backoff=SWIFT), rng=random.Random(1))
    tries: dict[str, int] = {}

    async def handle(key: str) -> float | None:
        tries[key] = tries.get(key, 0) + 1
        if key == "conflict" and tries[key] < 3:
            raise Conflict("somebody was faster")
        if key == "bug" and tries[key] < 2:
            raise TypeError("a bug")
        return None

    running = asyncio.create_task(queue.work(handle, workers=2))
    for key in ("conflict", "bug", "good"):
        queue.add(key)
    await until(lambda: len(queue) == 0)
    assert tries == {"conflict": 3, "bug": 2, "good": 1}
    assert "somebody was faster" in caplog.text
    assert "Traceback" in caplog.text  # of the bug
    running.cancel()
    await asyncio.wait({running})


async def test_what_handle_asks_for_is_when_the_key_is_looked_at_again() -> None:
    queue: WorkQueue[str] = WorkQueue()
    looks: list[str] = []

    async def handle(key: str) -> float | None:
        looks.append(key)
        return 0.001 if len(looks) < 3 else None

    running = asyncio.create_task(queue.work(handle, workers=1))
    queue.add("a")
    await until(lambda: len(looks) == 3 and len(queue) == 0)
    running.cancel()
    await asyncio.wait({running})


async def test_keys_that_were_turned_away_are_looked_for_when_there_is_room() -> None:
    everything = [f"k{number}" for number in range(20)]
    queue: WorkQueue[str] = WorkQueue(
        QueueSettings(capacity=3), refill=lambda: [k for k in everything if k not in seen]
    )
    seen: set[str] = set()

    async def handle(key: str) -> float | None:
        seen.add(key)
        return None

    taken = [queue.add(key) for key in everything]
    assert taken == [True] * 3 + [False] * 17
    running = asyncio.create_task(queue.work(handle, workers=2))
    await until(lambda: seen == set(everything))
    running.cancel()
    await asyncio.wait({running})


async def test_a_key_that_was_being_worked_on_when_all_was_cancelled_is_not_lost() -> None:
    queue: WorkQueue[str] = WorkQueue()
    begun = asyncio.Event()

    async def handle(key: str) -> float | None:
        begun.set()
        await asyncio.Event().wait()
        return None

    running = asyncio.create_task(queue.work(handle, workers=1))
    queue.add("a")
    await begun.wait()
    running.cancel()
    await asyncio.wait({running})
    assert queue.backlog.ready == 1
