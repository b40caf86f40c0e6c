"""What the benchmarks share: their command line, their rows, and an end to whatever they started.

A benchmark is a list of rows. A row says who did what in words, the number, and beside it a peer's number for the same
thing, from the same run unless its name says otherwise; `ratio` is how many times better ours is, whichever direction
is better. Benchmarks never assert a time: machines differ, the numbers are for people to judge.
"""

import argparse
import contextlib
import json
import os
import platform
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
from rich.console import Console
from rich.table import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    quick: bool
    """A smaller scale that ends within three minutes on two shared cores."""
    json: str | None
    """Where the rows go as JSON; `-` is standard output."""


def parse_options(doc: str | None) -> Options:
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a small scale, within three minutes")
    parser.add_argument("--json", metavar="FILE", nargs="?", const="-", help="write the rows as JSON (default: print)")
    given = parser.parse_args()
    return Options(quick=given.quick, json=given.json)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One measurement beside a peer's."""

    case: str
    value: float | None
    """None: it could not be measured, as when no attempt ever came to an end."""
    unit: str
    peer: str | None = None
    peer_value: float | None = None
    more_is_better: bool = False

    @property
    def ratio(self) -> float | None:
        """How many times better than the peer we are."""
        if not self.value or not self.peer_value:
            return None
        return self.value / self.peer_value if self.more_is_better else self.peer_value / self.value

    def as_json(self) -> dict[str, str | float | None]:
        return {
            "case": self.case,
            "value": self.value,
            "unit": self.unit,
            "peer": self.peer,
            "peer_value": self.peer_value,
            "ratio": self.ratio,
        }


def report(name: str, scale: str, rows: Sequence[Row], options: Options) -> None:
    """Print the table, and write the JSON if it was asked for."""
    console = Console(stderr=options.json == "-", width=None if sys.stdout.isatty() else 160)
    table = Table(title=f"{name}: {scale}", title_justify="left", caption_justify="left", caption=machine())
    table.add_column("case")
    for column in ("value", "unit"):
        table.add_column(column, justify="right")
    table.add_column("peer")
    for column in ("peer value", "ratio"):
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(
            row.case, _number(row.value), row.unit, row.peer or "", _number(row.peer_value), _number(row.ratio)
        )
    console.print(table)
    _write_json(name, rows, options)


def report_nothing(name: str, why: str, options: Options) -> None:
    """Say in one line that this machine cannot measure it. The JSON has no rows."""
    print(f"{name}: not measured: {why}", file=sys.stderr if options.json == "-" else sys.stdout)
    _write_json(name, [], options)


def _write_json(name: str, rows: Sequence[Row], options: Options) -> None:
    if options.json is None:
        return
    text = json.dumps({"name": name, "rows": [row.as_json() for row in rows]}, indent=2)
    if options.json == "-":
        print(text)
    else:
        Path(options.json).write_text(text + "\n")


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def machine() -> str:
    return f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}, Python {platform.python_version()}"


def progress(text: str) -> None:
    """Tell whoever waits what is being measured."""
    print(text, file=sys.stderr, flush=True)


# Ending what was started ---------------------------------------------------------------------------------


def tree(pid: int) -> list[psutil.Process]:
    """A process and all that descend from it, it first; empty when it is gone."""
    try:
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def kill_all(processes: Sequence[psutil.Process]) -> None:
    """SIGKILL each. Pids that were given to somebody else meanwhile are left alone."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def end_tree(pid: int, *, grace_seconds: float) -> None:
    """SIGTERM to the root; whatever of its tree still lives after the grace period is killed."""
    processes = tree(pid)
    if not processes:
        return
    with contextlib.suppress(psutil.NoSuchProcess):
        processes[0].terminate()
    _, alive = psutil.wait_procs(processes, timeout=grace_seconds)
    alive = [*alive, *(child for process in alive for child in tree(process.pid))]
    kill_all(alive)
    psutil.wait_procs(alive, timeout=5)
