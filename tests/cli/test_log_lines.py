"""Logs of the servers that run in Pods: one line per record, the same keys in each."""

import io
import json
import logging
import sys

import pytest

from shoal.cli.log_lines import VARIABLE, LogFormat, OneLine, set_up_by
from shoal.core.errors import BadInput, PlatformUnavailable
from shoal.operator.metrics import OperatorMetrics
from shoal.operator.operator import CURRENT_JOB, timed
from shoal.operator.snapshot import Key

KEYS = ["time", "level", "logger", "job", "message"]


def a_record(message: str, *, fails: bool = False) -> logging.LogRecord:
    caught = None
    if fails:
        try:
            raise ValueError("two\nlines")
        except ValueError:
            caught = sys.exc_info()
    return logging.LogRecord("shoal.operator", logging.WARNING, "f.py", 1, message, (), caught)


@pytest.mark.parametrize("fails", [False, True], ids=["plain", "with-a-traceback"])
@pytest.mark.parametrize("form", LogFormat)
def test_a_record_is_one_line_whatever_is_in_it(form: LogFormat, fails: bool) -> None:
    line = OneLine(form, lambda: "default/mnist").format(a_record('it said "no"\nand went', fails=fails))
    assert "\n" not in line
    if form is LogFormat.JSON:
        keys = json.loads(line)
        assert list(keys) == KEYS
        assert (keys["level"], keys["logger"], keys["job"]) == ("WARNING", "shoal.operator", "default/mnist")
        message = keys["message"]
    else:
        _, level, logger, job, message = line.split(" ", 4)
        assert (level, logger, job) == ("WARNING", "shoal.operator", "default/mnist")
    assert message.startswith('it said "no" | and went')
    assert ("Traceback" in message and message.endswith("ValueError: two | lines")) is fails


def test_what_is_about_no_job_says_so() -> None:
    assert json.loads(OneLine(LogFormat.JSON, lambda: "").format(a_record("x")))["job"] == "-"


async def test_what_is_logged_after_a_look_that_failed_is_about_its_job() -> None:
    async def fails(key: Key) -> None:
        raise PlatformUnavailable("no answer")

    with pytest.raises(PlatformUnavailable):
        await timed(fails, Key("default", "mnist"), OperatorMetrics(), "elasticjob")
    assert CURRENT_JOB.get() == "default/mnist"


def test_a_master_is_told_its_format_by_the_environment() -> None:
    with pytest.raises(BadInput, match="text or json, got 'xml'"):
        set_up_by({VARIABLE: "xml"}, job="default/mnist")
    root, said = logging.getLogger(), io.StringIO()
    handlers, level = root.handlers[:], root.level
    root.handlers.clear()
    try:
        set_up_by({VARIABLE: "json"}, job="default/mnist")
        (handler,) = root.handlers
        assert isinstance(handler, logging.StreamHandler)
        handler.setStream(said)
        logging.getLogger("shoal.master").info("master %d listens", 1)
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
    keys = json.loads(said.getvalue())
    assert (keys["job"], keys["message"]) == ("default/mnist", "master 1 listens")
