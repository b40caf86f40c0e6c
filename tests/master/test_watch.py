"""How the master keeps its statistics: what it takes of messages, and how often it writes them down."""

from dataclasses import replace
from datetime import timedelta
from itertools import pairwise

import pytest
from tests.core.job_builders import T0, Story

from shoal.core import journal
from shoal.core.history import Quantity
from shoal.core.nodes import NodeId, ProcessSeen
from shoal.master.watch import SLOWEST, SOONEST, Watch
from shoal.wire.codec import Decoder, encode
from shoal.wire.messages import MAX_MESSAGE, FromAgent, GpuSeen, Heartbeat, Progress

A = NodeId("worker-0")
ZERO = timedelta(0)


def a_heartbeat(cpu: float = 1.0) -> FromAgent:
    process = ProcessSeen(
        local_rank=0, pid=1, stopped=False, cpu=cpu, memory_bytes=5, step=None, collectives=0, busy=None
    )
    gpus = tuple(GpuSeen(gpu=str(n), busy=0.5, memory_bytes=10, memory_total=20) for n in range(2))
    said = Heartbeat(incarnation=1, processes=(process,), gpus=gpus)
    return Decoder[FromAgent](FromAgent, limit=MAX_MESSAGE).decode(encode(said))


def progress(step: int, generation: int = 1) -> Progress:
    return Progress(incarnation=1, generation=generation, step=step, samples=10 * step, metrics={})


def writes(watch: Watch, story: Story, *, seconds: int, pace: timedelta = ZERO) -> list[int]:
    found = []
    for second in range(seconds):
        now = story.job.started + timedelta(seconds=second)
        watch.heard(A, a_heartbeat(), now)
        if watch.due(story.job, now, pace=pace) is not None:
            found.append(second)
    return found


def test_a_young_job_is_written_down_often_and_an_old_one_once_a_minute() -> None:
    found = writes(Watch(), Story(), seconds=4 * 3600)
    gaps = [after - before for before, after in pairwise(found)]
    assert found[0] == SOONEST.total_seconds()
    assert gaps[0] <= 2 * SOONEST.total_seconds()
    assert gaps == sorted(gaps)
    assert gaps[-1] == SLOWEST.total_seconds()


def test_a_store_with_a_pace_is_asked_rarely() -> None:
    found = writes(Watch(), Story(), seconds=4 * 3600, pace=timedelta(seconds=10))
    assert found[0] == 10
    assert found[-1] - found[-2] == 300


def test_a_clock_that_was_set_back_stops_nothing() -> None:
    watch, story = Watch(), Story()
    assert writes(watch, story, seconds=60)
    story.job = replace(story.job, started=story.job.started - timedelta(days=1))
    assert writes(watch, story, seconds=300)


def test_what_is_written_down_is_not_written_again_while_nobody_speaks() -> None:
    watch, story = Watch(), Story()
    assert writes(watch, story, seconds=60)
    later = [story.job.started + timedelta(minutes=minute) for minute in range(2, 60)]
    kept = [watch.due(story.job, now, pace=ZERO) for now in later]
    assert sum(each is not None for each in kept) <= 1
    watch.heard(A, a_heartbeat(), later[-1])
    assert watch.due(story.job, later[-1] + timedelta(minutes=1), pace=ZERO) is not None


def test_messages_become_figures_and_survive_the_journal() -> None:
    watch, story = Watch(), Story(nodes=1)
    for beat in range(60):
        now = T0 + timedelta(seconds=2 * beat)
        watch.heard(A, a_heartbeat(), now)
        watch.heard(A, progress(10 * beat), now)
        watch.ticked(story.job, now)
    kept = watch.due(story.job, T0 + timedelta(seconds=121), pace=ZERO) or watch.due(
        story.job, T0 + timedelta(seconds=200), pace=ZERO
    )
    assert kept is not None
    job = journal.replay([journal.snapshot(replace(story.job, statistics=kept))])
    assert job is not None
    another = Watch()
    another.taken_on(job)
    level = another.statistics.nodes[A].history.levels[1]
    assert [point.mean for point in level.points(Quantity.GPU)][:3] == pytest.approx([1.0] * 3, rel=1e-3)
    speeds = another.statistics.job.levels[1].points(Quantity.SAMPLES)
    assert [point.mean for point in speeds][:3] == pytest.approx([50.0] * 3, rel=1e-3)


def test_only_who_speaks_for_the_job_says_how_far_it_is() -> None:
    """Workers on parameter servers each count their own steps: put together they would be no speed at all."""
    watch = Watch()
    for second in range(0, 60, 2):
        now = T0 + timedelta(seconds=second)
        watch.heard(A, progress(10 * second), now)
        watch.heard(NodeId("worker-1"), progress(1_000 + 3 * second), now + timedelta(seconds=1), is_speaker=False)
    assert watch.statistics.job.peak(Quantity.STEPS) == pytest.approx(10.0)


def test_workers_are_nodes_however_many_processes_each_has() -> None:
    watch, story = Watch(), Story(nodes=2, nproc=4)
    story.train("worker-0", "worker-1")
    watch.ticked(story.job, T0)
    assert watch.statistics.job.latest(Quantity.WORKERS) == 2


def test_statistics_alone_are_a_minor_record_that_another_master_can_do_without() -> None:
    job = Story().job
    change = journal.change(job, replace(job, statistics=b"something"))
    assert change is not None
    assert (change.is_minor, change.is_replayed) == (True, True)


def test_the_time_between_two_worlds_is_no_speed() -> None:
    watch = Watch()
    for second, step, generation in ((0, 0, 1), (2, 20, 1), (62, 21, 2), (64, 41, 2)):
        watch.heard(A, progress(step, generation), T0 + timedelta(seconds=second))
    speeds = watch.statistics.job.levels[0].points(Quantity.STEPS)
    assert [point.mean for point in speeds] == pytest.approx([10.0, 10.0])
