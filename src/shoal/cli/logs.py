"""`shoal logs`: what the training processes of a job have said, from its log files.

The files lie in `<logs>/<node>/<incarnation>/<local rank>/{stdout,stderr}.log`. They are read, never the
processes: the command works on a running job, an ended one and one that was killed alike.
"""

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from shoal.cli.text import clean_line
from shoal.core.errors import BadInput, ShoalError
from shoal.core.view import JobView

FOLLOW_SECONDS = 0.2
MAX_LINE = 1024 * 1024
"""A line that does not end by then is shown in pieces."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Whose output. `None` is "everybody's"."""

    node: str | None = None
    local_rank: int | None = None
    stderr: bool = False
    """stderr instead of stdout."""


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class LogFile:
    """In reading order: node by node, and there process by process, the oldest incarnation first."""

    number: int
    """Of the node: worker-10 comes after worker-9."""
    node: str
    local_rank: int
    incarnation: int
    path: Path

    @property
    def label(self) -> str:
        return f"{self.node}.{self.local_rank}"


def find(logs: Path, wanted: Wanted) -> tuple[LogFile, ...]:
    """The files there are now."""
    name = "stderr.log" if wanted.stderr else "stdout.log"
    files = []
    for path in logs.glob(f"*/*/*/{name}"):
        node, incarnation, local_rank = path.parts[-4:-1]
        if not incarnation.isdecimal() or not local_rank.isdecimal():
            continue
        if wanted.node not in (None, node) or wanted.local_rank not in (None, int(local_rank)):
            continue
        number = re.search(r"(\d+)$", node)
        files.append(
            LogFile(
                number=int(number[1]) if number else 0,
                node=node,
                incarnation=int(incarnation),
                local_rank=int(local_rank),
                path=path,
            )
        )
    return tuple(sorted(files))


def of_rank(view: JobView, rank: int, *, stderr: bool) -> Wanted:
    """Which node's which process has a rank in the world of now."""
    for node in view.nodes:
        for process in node.processes:
            if process.rank == rank:
                return Wanted(node=node.node, local_rank=process.local_rank, stderr=stderr)
    ranks = sorted(p.rank for node in view.nodes for p in node.processes if p.rank is not None)
    known = f"it has ranks {ranks[0]} to {ranks[-1]}" if ranks else "it has no ranks now"
    raise BadInput(f"job {view.name} has no rank {rank}: {known}; --node NAME works at any time")


def lines(logs: Path, wanted: Wanted, *, is_running: Callable[[], bool] | None) -> Iterator[str]:
    """The lines, each with its process in front when there are several. `is_running`: follow for as long as it says."""
    readers: dict[Path, _Reader] = {}
    while True:
        # Ask first: what is written before the end is then read after it.
        goes_on = is_running is not None and is_running()
        files = find(logs, wanted)
        if not files and not goes_on and not readers:
            raise ShoalError(f"no {'stderr' if wanted.stderr else 'stdout'} log of {_whose(wanted)} in {logs}")
        labels = len({file.label for file in files}) > 1
        for file in files:
            reader = readers.setdefault(file.path, _Reader(file.path))
            for line in reader.read(last=not goes_on):
                yield f"[{file.label}] {clean_line(line)}" if labels else clean_line(line)
        if not goes_on:
            return
        time.sleep(FOLLOW_SECONDS)


def _whose(wanted: Wanted) -> str:
    node = wanted.node or "any node"
    return node if wanted.local_rank is None else f"{node}, local rank {wanted.local_rank},"


class _Reader:
    """Reads whole lines from a file that grows."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at = 0
        self._rest = b""

    def read(self, *, last: bool) -> Iterator[bytes]:
        """The lines that came since. `last`: also one that has no end."""
        try:
            with open(self._path, "rb") as file:
                file.seek(self._at)
                while piece := file.read(MAX_LINE):
                    self._at += len(piece)
                    *whole, self._rest = (self._rest + piece).split(b"\n")
                    yield from whole
                    if len(self._rest) > MAX_LINE:
                        yield self._rest
                        self._rest = b""
        except FileNotFoundError:
            pass  # an old job's logs were cleared away meanwhile
        if last and self._rest:
            yield self._rest
            self._rest = b""
