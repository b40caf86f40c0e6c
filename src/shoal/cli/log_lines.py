"""How the servers that run in Pods log: one line per record, always with the same keys.

| key       | what                                                             |
| --------- | ---------------------------------------------------------------- |
| `time`    | when, in UTC                                                     |
| `level`   | INFO, WARNING, ...                                               |
| `logger`  | which part of Shoal                                              |
| `job`     | `namespace/name` of the job it is about; `-`: of none in particular |
| `message` | what happened; a traceback is part of it, folded into the line   |

As text they stand in this order with spaces between them, as JSON under their names.
"""

import json
import logging
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from enum import StrEnum
from typing import TextIO

from shoal.core.errors import BadInput

VARIABLE = "SHOAL_LOG_FORMAT"
"""Tells a master in a Pod."""
FOLD = " | "
"""Between what would be lines."""


class LogFormat(StrEnum):
    TEXT = "text"
    JSON = "json"


class OneLine(logging.Formatter):
    def __init__(self, form: LogFormat, job: Callable[[], str]) -> None:
        super().__init__()
        self._form, self._job = form, job

    def format(self, record: logging.LogRecord) -> str:
        keys = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "job": self._job() or "-",
            "message": FOLD.join(self._lines(record)),
        }
        return json.dumps(keys, ensure_ascii=False) if self._form is LogFormat.JSON else " ".join(keys.values())

    def _lines(self, record: logging.LogRecord) -> list[str]:
        parts = [record.getMessage()]
        if record.exc_info:
            parts.append(self.formatException(record.exc_info))
        if record.stack_info:
            parts.append(self.formatStack(record.stack_info))
        return [line.rstrip() for part in parts for line in part.splitlines() if line.strip()]


def set_up(form: LogFormat, *, level: str = "INFO", job: Callable[[], str], stream: TextIO | None = None) -> None:
    """Log to standard error. `job`: which one a record is about, asked as it is written."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(OneLine(form, job))
    logging.basicConfig(level=level, handlers=[handler])


def set_up_by(environment: Mapping[str, str], *, job: str) -> None:
    """The same for a process that is about one job, and is told by its environment. Raises `BadInput`."""
    said = environment.get(VARIABLE) or LogFormat.TEXT
    if said not in tuple(LogFormat):
        raise BadInput(f"{VARIABLE} is text or json, got {said!r}")
    set_up(LogFormat(said), job=lambda: job)
