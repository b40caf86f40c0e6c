"""What is written when: decisions at once, progress once a second, a snapshot when the records have grown long."""

from dataclasses import replace
from datetime import datetime, timedelta

from tests.core.job_builders import T0, Story

from shoal.core import journal
from shoal.master.keeper import PATIENCE, RETRY, Keeper
from shoal.stores import MemoryState, MemoryStore


class HandClock:
    def __init__(self) -> None:
        self.time = T0

    def now(self) -> datetime:
        return self.time

    def wait(self, seconds: float) -> None:
        self.time += timedelta(seconds=seconds)


async def a_keeper(state: MemoryState, clock: HandClock, said: list[str | None]) -> Keeper:
    keeper = Keeper(MemoryStore(state), clock, changed=said.append)
    await keeper.claim()
    return keeper


async def test_decisions_are_written_at_once_and_progress_once_a_second() -> None:
    state, clock, story = MemoryState(), HandClock(), Story(nodes=2)
    keeper = await a_keeper(state, clock, [])
    await keeper.keep(story.job)
    story.train("worker-0", "worker-1")
    await keeper.keep(story.job)
    assert len(state.records) == 2
    clock.wait(0.5)
    story.gain(40)
    await keeper.keep(story.job)
    assert len(state.records) == 2
    story.crash("worker-1", 137)
    await keeper.keep(story.job)
    assert len(state.records) == 3
    assert journal.replay(state.records) == journal.kept(story.job)
    story.gain(41)
    await keeper.keep(story.job)
    assert len(state.records) == 3
    clock.wait(1)
    await keeper.keep(story.job)
    assert journal.replay(state.records) == journal.kept(story.job)
    await keeper.keep(story.job)
    assert len(state.records) == 4


async def test_long_records_are_replaced_by_a_snapshot() -> None:
    state, clock, story = MemoryState(), HandClock(), Story(nodes=2)
    keeper = await a_keeper(state, clock, [])
    longest = 0
    for number in range(40):
        await keeper.keep(story.job)
        longest = max(longest, len(state.records))
        story.job = replace(story.job, error=f"{number}" * 20_000)
    assert 5 < longest < 39
    assert len(state.records) < longest


async def test_a_store_in_trouble_is_tried_again_with_a_snapshot() -> None:
    state, clock, story, said = MemoryState(), HandClock(), Story(nodes=2), list[str | None]()
    keeper = await a_keeper(state, clock, said)
    await keeper.keep(story.job)
    state.trouble = "the disk is full"
    for _ in range(3):
        story.wait(1)
        story.crash("worker-0", 137)
        await keeper.keep(story.job)
    assert (said, keeper.trouble) == (["the disk is full"], "the disk is full")
    state.trouble = None
    await keeper.keep(story.job)
    assert keeper.trouble is not None  # not at every event
    clock.wait(RETRY.total_seconds())
    await keeper.keep(story.job)
    assert (said, keeper.trouble) == (["the disk is full", None], None)
    assert journal.replay(state.records) == journal.kept(story.job)


async def test_a_store_with_a_pace_gets_decisions_at_once_and_the_rest_in_its_pace() -> None:
    state, clock, story = MemoryState(), HandClock(), Story(nodes=2)
    keeper = Keeper(MemoryStore(state, pace=timedelta(seconds=10)), clock, changed=lambda _: None)
    await keeper.claim()
    assert await keeper.keep(story.job)
    story.train("worker-0", "worker-1")
    assert await keeper.keep(story.job, at_once=False)  # nodes have registered: no agent could say so again
    clock.wait(1)
    story.gain(40)
    assert not await keeper.keep(story.job, at_once=False)
    clock.wait(9)
    assert await keeper.keep(story.job, at_once=False)
    story.gain(41)
    assert await keeper.keep(story.job)  # somebody is about to act upon it
    assert journal.replay(state.records) == journal.kept(story.job)
    assert len(state.records) == 1


async def test_a_store_with_a_pace_in_trouble_promises_nothing_however_old_the_trouble_is() -> None:
    state, clock, story = MemoryState(), HandClock(), Story(nodes=2)
    keeper = Keeper(MemoryStore(state, pace=timedelta(seconds=10)), clock, changed=lambda _: None)
    await keeper.claim()
    state.trouble = "the API server is away"
    assert not await keeper.keep(story.job)
    clock.wait(RETRY.total_seconds())
    assert not await keeper.keep(story.job)
    assert not keeper.is_in_lasting_trouble
    clock.wait(PATIENCE.total_seconds())
    assert not await keeper.keep(story.job)
    assert keeper.is_in_lasting_trouble  # who is about to end may go
    state.trouble = None
    clock.wait(RETRY.total_seconds())
    assert await keeper.keep(story.job)
    assert not keeper.is_in_lasting_trouble
