"""Events: each thing told once, repeats counted, nobody held up, nothing unbounded."""

import asyncio
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from tests.platforms.kubernetes.builders import QUICK_CLIENT, SWIFT, a_pod, until

from shoal.platforms.kubernetes.access import Access
from shoal.platforms.kubernetes.client import Client, ClientSettings
from shoal.platforms.kubernetes.events import Recorder, RecorderSettings, Series, Tally, Telling, reference
from shoal.platforms.kubernetes.fake import FakeApiServer
from shoal.platforms.kubernetes.objects import EVENTS, PODS, ObjectReference

RULES = RecorderSettings(capacity=3, series_seconds=600.0, repeat_seconds=10.0, remembered=50)


def a_telling(reason: str) -> Telling:
    return Telling(ObjectReference(name="job", uid="u"), "Normal", reason, "Reconcile", "3 -> 5 workers")


@given(st.lists(st.tuples(st.sampled_from("abcde"), st.sampled_from([0.0, 1.0, 11.0])), max_size=60))
def test_what_is_written_counts_everything_that_was_not_dropped(told: list[tuple[str, float]]) -> None:
    tally = Tally(RULES)
    now, counts = 0.0, dict.fromkeys("abcde", 0)
    writes: dict[str, list[tuple[float, Series]]] = {reason: [] for reason in "abcde"}

    def write(*, closing: bool = False) -> None:
        while (due := tally.due(now, closing=closing)) is not None:
            telling, series = due
            writes[telling.reason].append((now, series))
            tally.wrote(telling, series.count, now)

    for reason, wait in told:
        now += wait
        before = tally.dropped
        tally.tell(a_telling(reason), f"event-{reason}", now)
        counts[reason] += 1 - (tally.dropped - before)
        assert len(tally) <= 3
        if wait:
            write()
    write(closing=True)
    for reason, made in writes.items():
        assert (made[-1][1].count if made else 0) == counts[reason]
        times = [when for when, _ in made[:-1]]  # the last one may come early: it is the end
        assert all(later - earlier >= RULES.repeat_seconds for earlier, later in pairwise(times))
    assert tally.due(now, closing=True) is None


def test_after_a_long_silence_the_same_words_are_news() -> None:
    tally = Tally(RULES)
    tally.tell(a_telling("a"), "one", 0.0)
    assert tally.due(0.0) is not None
    tally.wrote(a_telling("a"), 1, 0.0)
    tally.tell(a_telling("a"), "two", 601.0)
    due = tally.due(601.0)
    assert due is not None
    assert (due[1].name, due[1].count) == ("two", 1)


def test_the_series_that_are_remembered_are_bounded() -> None:
    tally = Tally(RecorderSettings(capacity=5, remembered=5))
    for number in range(100):
        tally.tell(a_telling(str(number)), "e", 0.0)
        due = tally.due(0.0)
        assert due is not None
        tally.wrote(due[0], 1, 0.0)
    for number in range(100):
        tally.tell(a_telling(str(number)), "again", 1.0)
    assert tally.dropped == 95  # all but those that were remembered are new, and there is room for five


async def test_recording_is_written_in_the_background_with_one_write_for_a_burst() -> None:
    async with FakeApiServer() as server, Client(server.access(), QUICK_CLIENT) as client:
        pod = await client.create(PODS, a_pod("a", "default"))
        recorder = Recorder(client, controller="c", instance="i")
        running = asyncio.create_task(recorder.run())
        for _ in range(50):
            recorder.record(reference(PODS, pod), reason="Resized", note="3 -> 5 workers")
        await until(lambda: len(server.objects(EVENTS)) == 1)
        (event,) = server.objects(EVENTS)
        assert (event["regarding"]["uid"], event["note"]) == (pod.metadata.uid, "3 -> 5 workers")
        running.cancel()
        await asyncio.wait({running})


async def test_a_server_that_is_away_costs_events_and_nothing_else() -> None:
    nowhere = Access(server="http://127.0.0.1:9")
    async with Client(nowhere, ClientSettings(retries=0)) as client:
        recorder = Recorder(
            client, controller="c", instance="i", settings=RecorderSettings(capacity=2, tries=2, backoff=SWIFT)
        )
        for number in range(10):
            recorder.record(ObjectReference(name="job"), reason=f"R{number}", note="told")
        assert recorder.dropped == 8
        await recorder.flush(timeout=30)
        assert recorder.dropped == 10
