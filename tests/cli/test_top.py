"""`shoal top`: how figures look, and what comes out of a job that cannot be asked."""

import io
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from tests.e2e.harness import environment

from shoal.cli import jobs, top
from shoal.cli.registry import JobRecord, JobResult, Registry, process_started
from shoal.cli.top import BARS, picture, spark
from shoal.core.figures import JobFigures, NodeFigures
from shoal.core.view import JobPhase

NOW = datetime(2026, 11, 1, tzinfo=UTC)
GIB = 1024**3


def a_node(name: str, **more: object) -> NodeFigures:
    return NodeFigures(**{"node": name, "role": "worker", "ranks": (), "status": "running", **more})  # type: ignore[arg-type]


def a_job(*nodes: NodeFigures, **more: object) -> JobFigures:
    words = {"job": "demo", "phase": JobPhase.RUNNING, "at": NOW, "step": 1234, "samples": None, "world_size": 2}
    return JobFigures(nodes=nodes, **{**words, **more})  # type: ignore[arg-type]


def text_of(job: JobFigures, *, room: int = 50) -> str:
    out = io.StringIO()
    Console(file=out, width=160, color_system=None).print(picture(job, room=room))
    return out.getvalue()


def test_a_job_and_its_nodes_are_shown_in_the_order_of_their_ranks() -> None:
    slow = a_node("worker-1", ranks=(0, 1), cpu=1.5, cpu_limit=2.0, memory_bytes=GIB, memory_limit=4 * GIB)
    late = a_node("worker-7", ranks=(2, 3), work_seconds=0.03, step_seconds=0.1, samples_per_second=800.0)
    text = text_of(
        a_job(a_node("worker-9"), late, slow, samples_per_second=1600.0, step_seconds=0.1, recent_speed=(1.0, 2.0))
    )
    assert text.index("worker-1") < text.index("worker-7") < text.index("worker-9")
    for word in ("demo", "step 1,234", "1,600 samples/s", "100 ms a step", "1.50/2", "1.0 GiB/4.0 GiB", "30 ms", "0-1"):
        assert word in text
    assert "gpu" not in text


def test_gpus_have_columns_where_there_are_any() -> None:
    text = text_of(a_job(a_node("worker-0", gpus=2, gpu=1.5, gpu_memory_bytes=GIB, gpu_memory_total=8 * GIB)))
    assert "1.50/2" in text
    assert "1.0 GiB/8.0 GiB" in text


def test_more_nodes_than_fit_are_counted() -> None:
    text = text_of(a_job(*(a_node(f"worker-{n}", ranks=(n,)) for n in range(40))), room=5)
    assert "worker-4" in text
    assert "worker-5 " not in text
    assert "and 35 more" in text


def test_names_cannot_move_the_cursor_or_style_the_terminal() -> None:
    text = text_of(a_job(a_node("worker-0\x1b[2J[bold]x")))
    assert "\x1b" not in text
    assert "[bold]x" in text


@given(st.lists(st.none() | st.floats(0, 1e12)), st.none() | st.floats(0, 1e6))
def test_a_small_picture_has_one_character_for_each_value(values: list[float | None], top: float | None) -> None:
    drawn = spark(values, top=top)
    assert len(drawn) == len(values)
    assert all((char == " ") == (value is None) for char, value in zip(drawn, values, strict=True))
    assert set(drawn) <= {*BARS, " "}


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("top", "nothing"), 1, "no job named nothing"),
        (("top", "-o", "wide"), 2, "wanted one of table, json, yaml"),
        (("top", "--platform", "local", "-n", "x"), 2, "for a cluster's jobs"),
    ],
)
def test_what_cannot_be_shown_is_said(tmp_path: Path, words: tuple[str, ...], code: int, said: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "shoal", *words], env=environment(tmp_path), capture_output=True, text=True, check=False
    )
    assert (done.returncode, said in done.stdout + done.stderr) == (code, True), done.stderr


# Until the end -------------------------------------------------------------------------------------------


@contextmanager
def a_master(figures: JobFigures, then: Callable[[], object]) -> Iterator[str]:
    """It answers once, does `then`, and never answers again."""
    answers = [msgspec.json.encode(figures)]

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if not answers:
                return
            then()
            body = answers.pop()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_a_live_picture_follows_the_next_master_and_ends_with_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setattr(top, "EVERY_SECONDS", 0.01)
    pid = os.getpid()
    record = JobRecord(
        name="demo", uid="u", pid=pid, pid_started=process_started(pid) or 0, started=NOW, command=("x",), logs=""
    )
    registry = Registry(tmp_path)
    entry = registry.claim(record, {"admin": "secret"}, own_logs=True)
    result = JobResult(phase="succeeded", exit_code=0, reason="", ended=NOW)
    with (
        a_master(a_job(step=222), lambda: entry.updated(result=result)) as second,
        a_master(a_job(step=111), lambda: entry.updated(url=second)) as first,
    ):
        entry.updated(url=first)
        jobs.show_top(registry, "demo", once=False, output="table", node=None)
    shown = capsys.readouterr().out
    assert all(word in shown for word in ("step 111", "step 222", "demo: succeeded"))
