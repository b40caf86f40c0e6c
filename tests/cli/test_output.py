"""The terminal has one owner, and nobody waits for it."""

import io
import os
import threading
import time

from rich.console import Console
from tests.cli.test_view import START, a_view

from shoal.cli import output
from shoal.cli.output import Printer


def a_printer(stdout: io.BufferedIOBase, stderr: io.BufferedIOBase, console: Console | None = None) -> Printer:
    printer = Printer(stdout=stdout, stderr=stderr, console=console, now=lambda: START)  # type: ignore[arg-type]
    printer.start()
    return printer


def test_training_output_goes_to_its_own_stream_untouched_and_our_words_to_stderr() -> None:
    out, err = io.BytesIO(), io.BytesIO()
    printer = a_printer(out, err)
    printer.training("worker-0", b"\x1b[1mloss\x1b[0m \xff", False)
    printer.training("worker-0", b"warning", True)
    printer.note("world 1\x07")
    printer.close(["the end"])
    assert out.getvalue() == b"\x1b[1mloss\x1b[0m \xff\n"
    assert err.getvalue() == b"warning\nshoal: world 1\nshoal: the end\n"


def test_a_reader_that_stands_still_costs_lines_not_time() -> None:
    reading, writing = os.pipe()
    with open(reading, "rb") as reader, io.BytesIO() as err:
        with open(writing, "wb", buffering=0) as stuck:
            printer = a_printer(stuck, err)  # type: ignore[arg-type]
            line = b"x" * 65536
            for _ in range(2 * output.MAX_QUEUED_BYTES // len(line)):
                printer.training("worker-0", line, False)
            printer.close(timeout=0.05)  # returns although nobody reads
            reads_on = threading.Thread(target=reader.read)
            reads_on.start()
            printer.close(timeout=60)
            assert b"lines not shown" in err.getvalue()
        reads_on.join()


def test_a_reader_that_is_gone_stops_nothing() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "wb", buffering=0) as gone:
        printer = a_printer(gone, io.BytesIO())  # type: ignore[arg-type]
        for _ in range(100):
            printer.training("worker-0", b"line", False)
        printer.close()


def test_on_a_terminal_lines_scroll_above_the_picture() -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=100, height=30, color_system=None)
    printer = a_printer(io.BytesIO(), io.BytesIO(), console)
    printer.show(a_view())
    printer.training("worker-0", b"\x1b[2Jloss [red]0.5", False)
    printer.note("hello")
    printer.close(["the end"])
    text = screen.getvalue()
    assert "loss [red]0.5" in text
    assert "\x1b[2Jloss" not in text
    assert text.index("shoal: hello") < text.index("shoal: the end")


def test_the_picture_is_gone_before_the_last_lines() -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=100, height=30, color_system=None)
    printer = a_printer(io.BytesIO(), io.BytesIO(), console)
    printer.show(a_view())
    while "running" not in screen.getvalue():
        time.sleep(0.01)
    printer.close(["the end"])
    text = screen.getvalue()
    assert "running" not in text[text.index("shoal: the end") :]
