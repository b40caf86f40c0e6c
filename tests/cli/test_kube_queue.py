"""`shoal queue` and `shoal whatif`, as they word what they found."""

from datetime import UTC, datetime, timedelta

import pytest

from shoal.api.scheduling import SchedulingStatus
from shoal.cli.kube_queue import waits, whatif, words
from shoal.cli.kube_text import scheduled
from shoal.core.errors import BadInput
from shoal.operator.scheduling.whatif import Answer, Effect
from shoal.scheduler.rows import JobKey, Kind

NOW = datetime(2026, 1, 1, 12, 0, tzinfo=UTC)


def a_waiting_job(**more: object) -> dict:
    told = {"target": 0, "place": 2, "code": "NoRoom", "reason": "3 GPUs are free", "waitingSince": NOW.isoformat()}
    return {
        "metadata": {"name": "mnist", "namespace": "team"},
        "spec": {"priority": "Production"},
        "status": {"scheduling": {**told, **more}, "roles": [{"role": "worker", "asked": 4}]},
    }


def test_a_waiting_job_has_a_line_with_all_that_is_asked() -> None:
    line = waits("ElasticJob", a_waiting_job())
    assert line == {
        "place": 2,
        "namespace": "team",
        "job": "mnist",
        "kind": "ElasticJob",
        "priority": "Production",
        "asked": "4",
        "waitsFor": "NoRoom",
        "since": NOW.isoformat(),
        "why": "3 GPUs are free",
    }


def test_a_training_job_asks_for_a_range() -> None:
    job = {**a_waiting_job(), "spec": {"trainer": {"min-instance": 2, "max-instance": 6}}}
    line = waits("TrainingJob", job)
    assert line is not None
    assert (line["asked"], line["priority"]) == ("2-6", "Normal")


@pytest.mark.parametrize(
    "job",
    [
        pytest.param(a_waiting_job(target=3), id="it-is-admitted"),
        pytest.param({"metadata": {"name": "new"}}, id="nobody-has-looked-at-it"),
        pytest.param({"metadata": {"name": "odd"}, "status": {"scheduling": {"place": "first"}}}, id="no-number"),
        pytest.param({"metadata": {"name": "odd"}, "status": "broken"}, id="no-status"),
    ],
)
def test_who_does_not_wait_has_no_line(job: dict) -> None:
    assert waits("ElasticJob", job) is None


def test_an_answer_says_when_and_who_would_shrink() -> None:
    effect = Effect(key=JobKey("team", "big", Kind.ELASTIC_JOB), before=8, after=6, reason="a gang needs the room")
    answer = Answer(
        starts_in=35.0, trainers=2, reason="it fits", place=1, waits_for="no host has room", effects=(effect,)
    )
    assert words("ElasticJob team/new", answer) == [
        "ElasticJob team/new would start in about 35 s, with 2: it fits",
        "  until then: place 1 in the queue: no host has room",
        "  ElasticJob team/big: 8 -> 6: a gang needs the room",
    ]


def test_an_answer_without_a_start_says_so() -> None:
    lines = words("TrainingJob team/new", Answer(starts_in=None, place=3, waits_for="it is too large"))
    assert lines[0] == "TrainingJob team/new would not start within an hour, if nobody ends meanwhile"
    assert lines[-1] == "  nobody would have to give anything up for it"


def test_whatif_wants_one_job() -> None:
    with pytest.raises(BadInput, match="wanted one ElasticJob or TrainingJob, got 0 objects"):
        whatif("job.yaml", b"", home="shoal-system", output="table")


def test_why_tells_the_schedulers_last_word() -> None:
    told = SchedulingStatus(target=0, place=2, code="NoRoom", reason="no room", waiting_since=NOW)
    later = NOW + timedelta(minutes=5)
    assert scheduled(told, later) == [
        "the scheduler",
        "  it waits, for 5 min 0 s, place 2 in the queue: NoRoom: no room",
    ]
    admitted = SchedulingStatus(target=4, code="FreeRoom", reason="it grows", frozen_until=later)
    assert scheduled(admitted, NOW)[1] == "  4 allowed: FreeRoom: it grows; not resized without need for 5 min 0 s"
    assert scheduled(None, NOW) == []
