"""Take down whatever of a cluster still runs, knowing only its folder.

Every process of a cluster carries the folder's path in its environment, and so do the processes that those start. That
mark is all there is to look for: no list of process ids that could be stale, or miss what was started an instant ago. A
node's containers carry no mark, but they live in a PID namespace whose first process does, and end with it, as do the
node's mounts and its network. Control groups are the one thing that the kernel does not clean up; they bear the
cluster's name.

`python teardown.py FOLDER` is the guard of a cluster that must not outlive its owner: it waits until its standard input
ends, which happens whichever way the owner dies, and then takes it down. Standard library only, to start at once.
"""

import contextlib
import os
import shutil
import signal
import sys
import time
from pathlib import Path

MARK = "SHOAL_KUBE_FOLDER"
CGROUPS = Path("/sys/fs/cgroup")


def name_of(folder: Path) -> str:
    """What bears this cluster's name outside of its folder: control groups, a network link."""
    return f"shoal-{hash_of(str(folder.resolve())):08x}"


def hash_of(text: str) -> int:
    value = 2166136261  # FNV-1a: the same in every process, which the built-in hash is not
    for byte in text.encode():
        value = (value ^ byte) * 16777619 % 2**32
    return value


def processes_of(folder: Path) -> list[int]:
    mark = f"{MARK}={folder.resolve()}".encode()
    found = []
    for environment in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):  # ended since, or not ours to look at
            if mark in environment.read_bytes().split(b"\0"):
                found.append(int(environment.parent.name))
    return [pid for pid in found if pid != os.getpid()]


def tear_down(folder: Path, *, patience_s: float = 30) -> None:
    """End all processes, remove control groups and data. Logs stay. Safe to repeat, and at any time."""
    until = time.monotonic() + patience_s
    while processes := processes_of(folder):  # again and again: they may be starting others
        for pid in processes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > until:
            raise TimeoutError(f"processes {processes} of {folder} survived SIGKILL for {patience_s:g} s")
        time.sleep(0.01)
    while link_of(folder).exists():  # the kernel takes a moment to undo a network
        if time.monotonic() > until:
            raise TimeoutError(f"network link {link_of(folder).name} of {folder} is still there after {patience_s:g} s")
        time.sleep(0.01)
    for top in cgroups_of(folder):
        _remove_cgroup(top, until)
    shutil.rmtree(folder / "data", ignore_errors=True)


def link_of(folder: Path) -> Path:
    """This machine's end of the cable to the cluster's node."""
    return Path("/sys/class/net") / name_of(folder)


def cgroups_of(folder: Path) -> list[Path]:
    """The cluster's control groups: one on version 2, one in each hierarchy on version 1."""
    name = name_of(folder)
    return [path for path in (*CGROUPS.glob(name), *CGROUPS.glob(f"*/{name}")) if not path.parent.is_symlink()]


def _remove_cgroup(top: Path, until: float) -> None:
    for path in sorted((p for p in (top, *top.rglob("*")) if p.is_dir()), key=lambda p: -len(p.parts)):
        while path.exists():
            for pid in (path / "cgroup.procs").read_text().split():  # a container that is on its way out
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            try:
                path.rmdir()
            except OSError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.01)


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # it ends after its owner, never before
    sys.stdin.buffer.read()
    tear_down(Path(sys.argv[1]))
