"""What training processes use: cpu and memory of each with all it has started, from one look at `/proc`."""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_STOPPED = frozenset({"T", "t"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Stat:
    """One line of `/proc/<pid>/stat`, as far as we need it."""

    pid: int
    parent: int
    state: str
    cpu_seconds: float
    memory_bytes: int
    reaped_seconds: float = 0.0
    """Of children that it has waited for, in all their life."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    cpu: float
    """Cores since the look before; 0 at the first."""
    memory_bytes: int
    stopped: bool


def parse(text: str) -> Stat | None:
    """The command's name stands in parentheses and may hold anything, parentheses and spaces too."""
    head, _, rest = text.rpartition(")")
    fields = rest.split()
    pid = head.partition(" ")[0]
    if len(fields) < 22 or not pid.isdigit():
        return None
    return Stat(
        pid=int(pid),
        parent=int(fields[1]),
        state=fields[0],
        cpu_seconds=(int(fields[11]) + int(fields[12])) / _TICKS,
        memory_bytes=int(fields[21]) * _PAGE,
        reaped_seconds=(int(fields[13]) + int(fields[14])) / _TICKS,
    )


def look(proc: Path = Path("/proc")) -> dict[int, Stat]:
    """All processes of the machine that we may see."""
    found: dict[int, Stat] = {}
    for entry in os.listdir(proc):
        if not entry.isdigit():
            continue
        try:
            stat = parse((proc / entry / "stat").read_text(errors="replace"))
        except OSError:
            continue  # gone since it was listed
        if stat is not None:
            found[stat.pid] = stat
    return found


def usage(
    roots: Iterable[int], now: Mapping[int, Stat], before: Mapping[int, Stat], *, seconds: float
) -> dict[int, Usage]:
    """What each root and all its descendants used between two looks, `seconds` apart."""
    children, children_before = _children(now), _children(before)
    used: dict[int, Usage] = {}
    for root in roots:
        if root not in now:
            continue
        pids, known = _tree(root, children), _tree(root, children_before) if root in before else []
        spent = _spent(pids, known, now, before)
        used[root] = Usage(
            cpu=max(0.0, spent / seconds) if before and seconds > 0 else 0.0,
            memory_bytes=sum(now[pid].memory_bytes for pid in pids),
            stopped=now[root].state in _STOPPED,
        )
    return used


def _spent(pids: list[int], known: list[int], now: Mapping[int, Stat], before: Mapping[int, Stat]) -> float:
    """Seconds of cpu that a tree has used since it was `known`.

    Who ended meanwhile is found in what its parent has waited for, with all its life; what of that was seen before is
    taken off. So a child that lived for less than the time between two looks counts too.
    """
    own = sum(now[pid].cpu_seconds - (before[pid].cpu_seconds if pid in before else 0.0) for pid in pids)
    reaped = sum(now[pid].reaped_seconds - (before[pid].reaped_seconds if pid in before else 0.0) for pid in pids)
    ended = sum(before[pid].cpu_seconds + before[pid].reaped_seconds for pid in known if pid not in now)
    return own + max(0.0, reaped - ended)


def _children(stats: Mapping[int, Stat]) -> dict[int, list[int]]:
    children: dict[int, list[int]] = {}
    for stat in stats.values():
        children.setdefault(stat.parent, []).append(stat.pid)
    return children


def _tree(root: int, children: Mapping[int, list[int]]) -> list[int]:
    pids = [root]
    for pid in pids:
        pids += children.get(pid, ())
    return pids
