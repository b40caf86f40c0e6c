"""How a job looks, drawn on paper instead of a terminal."""

import io
from datetime import UTC, datetime, timedelta

from rich.console import Console, RenderableType

from shoal.cli.view import live, resize_line, settled, summary
from shoal.core.view import (
    DecisionView,
    JobPhase,
    JobView,
    NodeView,
    ProcessView,
    PSChangeView,
    ResizeView,
    ServersView,
)

START = datetime(2026, 1, 1, 12, tzinfo=UTC)


def a_process(rank: int | None = 0, **changes: object) -> ProcessView:
    fields: dict[str, object] = {
        "local_rank": 0,
        "pid": 4000 + (rank or 0),
        "rank": rank,
        "step": 7,
        "cpu": 0.5,
        "memory_bytes": 300 * 1024 * 1024,
        "busy": None,
        "stopped": False,
    }
    return ProcessView(**(fields | changes))  # type: ignore[arg-type]


def a_node(name: str = "worker-0", *processes: ProcessView, **changes: object) -> NodeView:
    fields: dict[str, object] = {
        "node": name,
        "status": "running",
        "standing": "active",
        "incarnation": 1,
        "host": "here",
        "pid": 1,
        "connected": True,
        "reason": "",
        "processes": processes,
    }
    return NodeView(**(fields | changes))  # type: ignore[arg-type]


def a_resize(generation: int = 2, **changes: object) -> ResizeView:
    fields: dict[str, object] = {
        "generation": generation,
        "at": START,
        "reason": "worker-3 was killed",
        "before": 4,
        "after": 3,
        "drain": 0.001,
        "rendezvous": 0.012,
        "restore": 0.02,
        "first_step": 0.5,
        "lost_steps": 1,
        "continuing": 3,
        "reported": 3,
    }
    return ResizeView(**(fields | changes))  # type: ignore[arg-type]


def a_view(**changes: object) -> JobView:
    fields: dict[str, object] = {
        "name": "mnist",
        "uid": "mnist.1",
        "phase": JobPhase.RUNNING,
        "reason": "world 2 trains",
        "sdk": True,
        "target": 4,
        "min_nodes": 1,
        "max_nodes": 4,
        "nproc": 1,
        "started": START,
        "ended": None,
        "exit_code": None,
        "generation": 2,
        "world_size": 3,
        "step": 1234,
        "samples": 56789,
        "steps_per_second": 35.25,
        "metrics": {"loss": 0.23456},
    }
    return JobView(**(fields | changes))  # type: ignore[arg-type]


def drawn(what: RenderableType, width: int = 120) -> str:
    console = Console(file=io.StringIO(), width=width, height=40, color_system=None)
    console.print(what)
    file = console.file
    assert isinstance(file, io.StringIO)
    return file.getvalue()


def test_the_picture_has_what_people_look_for() -> None:
    view = a_view(
        nodes=(a_node("worker-0", a_process(0)), a_node("worker-2", a_process(1))),
        resizes=(a_resize(),),
        decisions=(DecisionView(at=START, reason="worker-3 is gone: killed"),),
    )
    text = drawn(live(view, now=START + timedelta(minutes=2), height=40))
    for part in ("mnist", "running", "world 2", "step 1,234", "35.2 steps/s", "56,789 samples", "loss 0.2346"):
        assert part in text
    for part in ("worker-0", "4001", "300 MiB", "active", "4 → 3", "12 ms", "worker-3 is gone: killed", "2 min"):
        assert part in text


def a_change(**changes: object) -> PSChangeView:
    fields: dict[str, object] = {
        "kind": "resize",
        "reason": "from 2 to 3 parameter servers",
        "at": START,
        "before": 2,
        "after": 3,
        "version": 5,
        "phase": None,
        "outcome": "done",
        "drain": 0.001,
        "move": 0.012,
    }
    return PSChangeView(**(fields | changes))  # type: ignore[arg-type]


def some_servers(*changes: PSChangeView) -> ServersView:
    return ServersView(
        version=5,
        servers=3,
        goal=2,
        min_servers=1,
        max_servers=3,
        chief="worker-1",
        partitions=4,
        nbytes=100,
        changes=changes,
        checkpoint="/kept/ckpt",
        checkpoint_step=1200,
        scores=((1200, {"loss": 0.25}),),
    )


def test_a_job_with_parameter_servers_shows_their_versions_and_what_changes_cost() -> None:
    saved, failed = a_change(kind="save", reason="10 min"), a_change(outcome="abandoned", reason="ps-4 did not come")
    view = a_view(servers=some_servers(a_change(), saved, failed), generation=0)
    text = drawn(live(view, now=START, height=40))
    for part in ("version 5: 3 parameter servers (want 2), 3 workers", "2 → 3", "12 ms", "resize, from 2 to 3"):
        assert part in text
    assert "10 min" not in text
    lines = "\n".join(summary(view, logs=None))
    for part in ("workers paused 26 ms in all", "abandoned: ps-4 did not come", "/kept/ckpt (step 1200)", "loss 0.25"):
        assert part in lines


def test_rows_come_in_rank_order_and_the_dead_are_left_out() -> None:
    nodes = (
        a_node("worker-9", a_process(None), standing="expected"),
        a_node("worker-1", a_process(1)),
        a_node("worker-0", a_process(0)),
        a_node("worker-4", a_process(3), status="failed"),
    )
    text = drawn(live(a_view(nodes=nodes), now=START, height=40))
    assert text.index("worker-0") < text.index("worker-1") < text.index("worker-9")
    assert "worker-4" not in text


def test_many_nodes_do_not_outgrow_the_terminal() -> None:
    nodes = tuple(a_node(f"worker-{n}", a_process(n)) for n in range(500))
    lines = drawn(live(a_view(nodes=nodes), now=START, height=30)).splitlines()
    assert len(lines) <= 30
    assert any("more" in line for line in lines)


def test_trouble_is_visible() -> None:
    nodes = (
        a_node("worker-0", a_process(0, stopped=True)),
        a_node("worker-1", a_process(1), connected=False),
        a_node("worker-2", a_process(2, busy="eval")),
    )
    text = drawn(live(a_view(nodes=nodes), now=START, height=40))
    assert all(part in text for part in ("stopped", "not connected", "busy: eval"))


def test_nothing_from_outside_reaches_the_terminal_as_an_order() -> None:
    evil = "\x1b]0;owned\x07\x1b[2J[red]x"
    view = a_view(
        name=evil,
        metrics={evil: 1.0},
        nodes=(a_node(evil, a_process(0, busy=evil)),),
        resizes=(a_resize(reason=evil),),
        decisions=(DecisionView(at=START, reason=evil),),
        phase=JobPhase.FAILED,
        reason=evil,
        error=evil,
    )
    text = (
        drawn(live(view, now=START, height=40))
        + "\n".join(summary(view, logs=evil))
        + resize_line(a_resize(reason=evil))
    )
    assert "\x1b" not in text
    assert "\x07" not in text
    assert "[red]x" in text


def test_a_resize_tells_its_cost_by_phase() -> None:
    assert resize_line(a_resize()) == (
        "world 2: 4 -> 3 processes, paused 33 ms (drain 1 ms, rendezvous 12 ms, restore 20 ms), "
        "first step 500 ms, 1 step lost: worker-3 was killed"
    )


def test_one_is_singular() -> None:
    assert resize_line(a_resize(before=0, after=1)).startswith("world 2: 1 process, paused")
    assert resize_line(a_resize(before=2, after=1)).startswith("world 2: 2 -> 1 process, paused")
    ended = a_view(world_size=1, ended=START, phase=JobPhase.SUCCEEDED)
    assert any(line.endswith("the last with 1 training process") for line in summary(ended, logs=None))


def test_a_job_that_has_not_attached_yet_is_not_called_a_plain_script() -> None:
    text = drawn(live(a_view(step=None, sdk=False), now=START, height=30))
    assert "no step reported yet (plain scripts report none)" in text
    assert "plain" not in drawn(live(a_view(step=None, sdk=True), now=START, height=30))


def test_the_head_of_the_picture_stays_two_lines_however_narrow_the_terminal() -> None:
    """Lines that the terminal wraps by itself would not be cleared away."""
    wide, narrow = (drawn(live(a_view(), now=START, height=30), width=width) for width in (120, 30))
    assert wide.count("\n") == narrow.count("\n")


def test_a_cost_is_told_once_and_when_it_is_known() -> None:
    waiting = a_resize(3, reported=1)
    assert settled([a_resize(2), waiting], after=0) == (a_resize(2),)
    assert settled([a_resize(2), waiting], after=2) == ()
    superseded = [a_resize(2), waiting, a_resize(4, reported=0)]
    assert settled(superseded, after=2) == (waiting,)


def test_the_end_says_how_and_why_and_where() -> None:
    view = a_view(
        phase=JobPhase.FAILED,
        reason="rank 2 ended with exit 1",
        ended=START + timedelta(seconds=90),
        resizes=(a_resize(1, before=0, after=4), a_resize(2), a_resize(3, lost_steps=0)),
        error="Traceback\n  boom",
    )
    lines = summary(view, logs="/logs")
    assert lines[0] == "job mnist failed after 1 min 30 s: rank 2 ended with exit 1"
    text = "\n".join(lines)
    assert "resizes: 2, paused 66 ms in all, 1 step lost" in text
    assert "  Traceback\n    boom" in text
    assert lines[-1] == "logs: /logs"
