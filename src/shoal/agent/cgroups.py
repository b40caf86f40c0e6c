"""What a node may use at most: the least of what its machine has and what its cgroups allow, version 1 or 2.

A process is in one cgroup of each hierarchy, and what any cgroup above it allows holds for it too. Inside a container
the paths that `/proc/self/cgroup` names may be the host's, which are not there: then the mount's root is the
container's own cgroup.

What a cgroup holds is a node's memory only if no other node is in it. Those that `shoal run` starts share the container
that it is in; there a node's memory is that of its processes.

Most functions are pure: text of the kernel in, numbers out, None for "no limit" and for text that says nothing.
`NodeLimits` finds the files once and reads them again each time, for limits change while a node runs (Kubernetes
resizes Pods in place).
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from shoal.core.nodes import NodeSeen

UNLIMITED = 1 << 60
"""Bytes. Version 1 says "no limit" with a number near 2**63; no machine has so much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One line of `/proc/<pid>/cgroup`."""

    controllers: frozenset[str]
    """Empty: version 2, which has them all."""
    path: str


def members(text: str) -> tuple[Member, ...]:
    found = []
    for line in text.splitlines():
        number, _, rest = line.partition(":")
        controllers, colon, path = rest.partition(":")
        if number.isdigit() and colon and path.startswith("/"):
            found.append(Member(controllers=frozenset(filter(None, controllers.split(","))), path=path))
    return tuple(found)


def cpu_max(text: str) -> float | None:
    """Cores, by version 2's `cpu.max`: `150000 100000`, or `max 100000`."""
    quota, _, period = text.strip().partition(" ")
    return _cores(quota, period or "100000")


def cpu_quota(quota: str, period: str) -> float | None:
    """Cores, by version 1's two files; a quota of -1: no limit."""
    return _cores(quota.strip(), period.strip())


def _cores(quota: str, period: str) -> float | None:
    if not (_is_number(quota) and _is_number(period)) or not int(quota) or not int(period):
        return None
    return int(quota) / int(period)


def memory_max(text: str) -> int | None:
    """Bytes, by `memory.max` or `memory.limit_in_bytes`."""
    text = text.strip()
    return int(text) if _is_number(text) and 0 < int(text) < UNLIMITED else None


def memory_held(current: str, stat: str) -> int | None:
    """Bytes that count against the limit: what the cgroup holds, without files that the kernel would drop first."""
    current = current.strip()
    if not _is_number(current):
        return None
    fields = dict(line.partition(" ")[::2] for line in stat.splitlines())
    idle = fields.get("total_inactive_file") or fields.get("inactive_file") or "0"
    return max(0, int(current) - (int(idle) if _is_number(idle) else 0))


def memory_total(meminfo: str) -> int | None:
    """Bytes of the machine, by `/proc/meminfo`."""
    for line in meminfo.splitlines():
        name, _, rest = line.partition(":")
        amount = rest.split()
        if name == "MemTotal" and len(amount) == 2 and _is_number(amount[0]) and amount[1] == "kB":
            return int(amount[0]) * 1024 or None
    return None


def least(*amounts: float | None) -> float | None:
    """The least of those that are known."""
    return min((amount for amount in amounts if amount is not None), default=None)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 20


class NodeLimits:
    """The limits that hold for this process and its children."""

    def __init__(
        self, *, owns_container: bool = False, proc: Path = Path("/proc"), mount: Path = Path("/sys/fs/cgroup")
    ) -> None:
        self._owns_container = owns_container
        ours = members(_text(proc / "self" / "cgroup") or "0::/")
        self._cpu2 = _having("cpu.max", _folders(ours, "", mount))
        self._memory2 = _having("memory.max", _folders(ours, "", mount))
        self._cpu1 = _having("cpu.cfs_quota_us", _folders(ours, "cpu", mount))
        self._memory1 = _having("memory.limit_in_bytes", _folders(ours, "memory", mount))
        self._cores = len(os.sched_getaffinity(0))
        self._machine = memory_total(_text(proc / "meminfo") or "")

    def look(self) -> NodeSeen:
        """As it is now. What cannot be read is not known."""
        cpu = [cpu_max(_text(folder / "cpu.max") or "") for folder in self._cpu2]
        cpu += [
            cpu_quota(_text(folder / "cpu.cfs_quota_us") or "", _text(folder / "cpu.cfs_period_us") or "")
            for folder in self._cpu1
        ]
        bounds = list(self._memory_limits())
        narrowest = min(bounds, key=lambda bound: bound[0], default=None)
        is_narrow = narrowest is not None and (self._machine is None or narrowest[0] < self._machine)
        is_own = self._owns_container and is_narrow
        limit = least(self._machine, None if narrowest is None else narrowest[0])
        return NodeSeen(
            cpu_limit=least(float(self._cores), *cpu),
            memory_limit=None if limit is None else int(limit),
            memory_bytes=_held(narrowest[1], narrowest[2]) if narrowest is not None and is_own else None,
        )

    def _memory_limits(self) -> Iterator[tuple[int, Path, str]]:
        """Each limit with its folder and the file that tells what is held."""
        for folders, limit, current in (
            (self._memory2, "memory.max", "memory.current"),
            (self._memory1, "memory.limit_in_bytes", "memory.usage_in_bytes"),
        ):
            for folder in folders:
                amount = memory_max(_text(folder / limit) or "")
                if amount is not None:
                    yield amount, folder, current


def _having(name: str, folders: list[Path]) -> list[Path]:
    """Those that have a file of this name. `Path.exists` would raise where we may not look."""
    return [folder for folder in folders if os.path.exists(folder / name)]


def _held(folder: Path, current: str) -> int | None:
    return memory_held(_text(folder / current) or "", _text(folder / "memory.stat") or "")


def _folders(ours: tuple[Member, ...], controller: str, mount: Path) -> list[Path]:
    """The cgroups whose limits hold, from our own up to the root of what is mounted."""
    found: list[Path] = []
    for member in ours:
        if controller not in member.controllers if controller else member.controllers:
            continue
        for root in _mounts(mount, controller, member.controllers):
            inside = root / member.path.lstrip("/")
            if ".." in inside.parts:
                inside = root  # another namespace's
            found += [each for each in (inside, *inside.parents) if each == root or root in each.parents]
    return list(dict.fromkeys(found))


def _mounts(mount: Path, controller: str, controllers: frozenset[str]) -> list[Path]:
    if not controller:
        return [mount, mount / "unified"]
    return [mount / controller, mount / ",".join(sorted(controllers))]


def _text(path: Path) -> str | None:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return None
