"""How much of what jobs hold is of use."""

from dataclasses import replace

import pytest

from shoal.operator.scheduling.goodput import goodput
from shoal.operator.scheduling.reading import JobView
from shoal.scheduler.rows import Job, JobKey, Leaving, Part, Room
from shoal.scheduler.settings import SchedulerSettings

EACH = Room(cpu=1_000, gpu=1)
ROOM = Room(cpu=100_000, gpu=100)


def a_view(name: str, *, bound: int, running: int, least: int = 1, queue: str = "team", **more: object) -> JobView:
    given = {"target": max(bound, least), "placed": {"host": bound}, "running": running, **more}
    row = Job(key=JobKey(queue, name), min=least, max=9, each=EACH, **given)  # type: ignore[arg-type]
    return JobView(row=row, running=Room().plus(EACH, running), trainers=(), going=())


def of(*views: JobView) -> dict[str, float]:
    return goodput(views, ROOM, SchedulerSettings())


def test_pods_that_run_are_of_use_and_those_that_start_are_not() -> None:
    assert of(a_view("a", bound=4, running=4)) == {"team": 1.0}
    assert of(a_view("a", bound=4, running=3)) == {"team": 0.75}


def test_a_job_that_cannot_train_holds_all_it_has_for_nothing() -> None:
    whole = a_view("whole", bound=2, running=2)
    assert of(whole, a_view("short", bound=2, running=2, least=3)) == {"team": 0.5}
    servers = (Part(role="pserver", each=EACH, count=1),)
    assert of(whole, a_view("unserved", bound=2, running=2, fixed_pending=servers)) == {"team": 0.5}


def test_what_is_to_go_is_held_and_of_no_use() -> None:
    going = replace(a_view("a", bound=3, running=3), going=(("host", Leaving(room=EACH, until=1.0)),))
    assert of(going)["team"] == pytest.approx(0.75)


def test_namespaces_are_told_apart_and_one_that_holds_nothing_is_left_out() -> None:
    waiting = a_view("c", bound=0, running=0, queue="idle", target=0, placed={})
    views = (a_view("a", bound=1, running=1), a_view("b", bound=2, running=1, queue="other"), waiting)
    assert of(*views) == {"team": 1.0, "other": 0.5}
