"""The machine that a real node runs on: namespaces of this one, with their own network, mounts and process ids.

It is as a virtual machine would be. Its links, packet filter rules and mounts cannot touch those of the real one, two
clusters can run side by side, and all of it is gone when the first process of the namespaces is (`teardown.py`). Root
is needed to make them, and nothing of the real machine is changed: even `/run`, `/var/lib` and `/var/log` are covered.

One virtual cable joins the two. Over it goes the range `10.N.0.0/16`, which holds the node, its Pods and its Services,
and nothing else: there is no other way out, so no packet of a Pod leaves the real machine. The API server listens at
the outer end.

    10.N.0.0/17    Pods             10.N.255.1  outer end: the API server
    10.N.128.0/20  Services         10.N.255.2  inner end: the node, its name server
"""

import json
import os
import shlex
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from . import teardown
from .parts import Unavailable
from .processes import Processes

SEARCHED = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
START_S = 60


class Machine:
    """An empty machine. What is `start`ed or `run` on it sees only it."""

    def __init__(self, processes: Processes, programs: Path) -> None:
        self._processes = processes
        self._programs = programs
        self.name = teardown.name_of(processes.folder)
        """What its control groups and the outer end of the cable are called."""
        self.data = processes.data / "node"
        self._network = ""

    @property
    def outer_address(self) -> str:
        return f"{self._network}.255.1"

    @property
    def address(self) -> str:
        return f"{self._network}.255.2"

    @property
    def pods(self) -> str:
        return f"{self._network}.0.0/17"

    @property
    def services(self) -> str:
        return f"{self._network}.128.0/20"

    def create(self) -> None:
        """Make the namespaces, and the cable to them."""
        namespaces = ["--mount", "--net", "--pid", "--fork", "--kill-child=KILL", "--mount-proc"]
        outer = self._processes.start("node", ["unshare", *namespaces, self._programs / "pause"])
        self._init = self._first_process(outer)
        self._cover_folders()
        self._network = self._connect()
        _make_cgroups(self.name)

    @contextmanager
    def weighing(self, processes: int) -> Iterator[None]:
        """For a while all Pods together get as much of a busy machine's cpu as so many of its other processes do.
        Otherwise it is as much as one does: then no Pod gets what it asks for beside a few of them."""
        _weigh(self.name, processes)
        try:
            yield
        finally:
            _weigh(self.name, 1)

    def start(self, name: str, *command: str | Path) -> None:
        """Start a part of the cluster there."""
        self._processes.start(name, [*self._entering(), *command], {"PATH": SEARCHED})

    def run(self, *command: str) -> str:
        """What a command prints that runs there."""
        done = subprocess.run([*self._entering(), *command], capture_output=True, text=True, env=_environment())
        if done.returncode != 0:
            raise RuntimeError(f"on the node: {shlex.join(command)}: {done.stderr.strip() or done.stdout.strip()}")
        return done.stdout

    def _first_process(self, outer: int) -> int:
        until = time.monotonic() + START_S
        children = Path(f"/proc/{outer}/task/{outer}/children")
        while True:
            self._processes.check()
            for child in children.read_text().split():
                if Path(f"/proc/{child}/comm").read_text().strip() == "pause":
                    return int(child)
            if time.monotonic() > until:
                raise TimeoutError(
                    f"the node's namespaces were not there after {START_S} s: {self._processes.tail('node')}"
                )
            time.sleep(0.005)

    def _cover_folders(self) -> None:
        """Let everything that would be written into the system's folders go into the cluster's."""
        self.data.mkdir()
        lines = ["mount --make-rshared /", "mount -t tmpfs tmpfs /run"]
        for folder in ("/var/lib", "/var/log"):
            upper, work = (self.data / f"{kind}{folder.replace('/', '-')}" for kind in ("upper", "work"))
            upper.mkdir()
            work.mkdir()
            lines.append(f"mount -t overlay overlay -o lowerdir={folder},upperdir={upper},workdir={work} {folder}")
        for name in ("kubelet", "containerd"):  # not on the overlay: layers cannot be stacked on layers
            (self.data / name).mkdir()
            lines += [f"mkdir -p /var/lib/{name}", f"mount --bind {self.data / name} /var/lib/{name}"]
        lines += ["ip link set lo up", "echo 1 >/proc/sys/net/ipv4/ip_forward"]
        self.run("sh", "-ec", "\n".join(lines))

    def _connect(self) -> str:
        """Lay the cable and claim a range that nobody on this machine uses; returns its first two numbers."""
        _ip("link", "add", self.name, "type", "veth", "peer", "name", "eth0", "netns", str(self._init))
        _ip("link", "set", self.name, "up")
        used = {route["dst"] for route in json.loads(_ip("-json", "route", "show", "table", "all"))}
        for number in range(100, 250):
            network = f"10.{number}"
            if any(destination.startswith(f"{network}.") for destination in used):
                continue
            _ip("address", "add", f"{network}.255.1/30", "dev", self.name)
            self.run("sh", "-ec", f"ip address replace {network}.255.2/30 dev eth0; ip link set eth0 up")
            try:
                _ip("route", "add", f"{network}.0.0/16", "via", f"{network}.255.2")
            except RuntimeError:  # somebody else was quicker
                _ip("address", "del", f"{network}.255.1/30", "dev", self.name)
                self.run("ip", "address", "flush", "dev", "eth0")
                continue
            # Services have to be routed somewhere before the packet filter sends them where they belong.
            self.run("ip", "route", "add", f"{network}.128.0/20", "via", f"{network}.255.1")
            return network
        raise Unavailable("a real node needs a free range 10.N.0.0/16, N from 100 to 249")

    def _entering(self) -> list[str]:
        return ["nsenter", f"--target={self._init}", "--mount", "--net", "--pid", "--wd=/", "--"]


def _make_cgroups(name: str) -> None:
    """The control groups under which the kubelet puts those of Pods; it wants the uppermost to be there."""
    if (teardown.CGROUPS / "cgroup.controllers").exists():
        top = teardown.CGROUPS / name
        top.mkdir(exist_ok=True)
        wanted = " ".join(f"+{controller}" for controller in (top / "cgroup.controllers").read_text().split())
        (top / "cgroup.subtree_control").write_text(wanted)
        return
    for hierarchy in teardown.CGROUPS.iterdir():
        if hierarchy.is_symlink() or not (hierarchy / "cgroup.procs").exists():
            continue
        (hierarchy / name).mkdir(exist_ok=True)
        for inherited in ("cpuset.cpus", "cpuset.mems"):  # which start empty, and then let nobody in
            if (hierarchy / inherited).exists():
                (hierarchy / name / inherited).write_text((hierarchy / inherited).read_text())


def _weigh(name: str, processes: int) -> None:
    if (teardown.CGROUPS / "cgroup.controllers").exists():
        (teardown.CGROUPS / name / "cpu.weight").write_text(str(100 * processes))
    else:
        (teardown.CGROUPS / "cpu" / name / "cpu.shares").write_text(str(1024 * processes))


def _ip(*words: str) -> str:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, env=_environment())
    if done.returncode != 0:
        raise RuntimeError(f"ip {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout


def _environment() -> dict[str, str]:
    return {**os.environ, "PATH": SEARCHED}
