"""Ways to run a training script on several nodes of this machine, and what its processes wrote about their steps.

A *fleet* is one job: nodes that can be added and killed, each with one training process. `Steps` reads the step files
that the processes write, so what is measured is what training did, whoever supervises it.
"""

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import psutil

from _common import end_tree, kill_all, tree

SCRIPTS = Path(__file__).parent / "scripts"
ENVIRONMENT = {
    **os.environ,
    "OMP_NUM_THREADS": "1",
    "GLOO_SOCKET_IFNAME": "lo",
    "PYTHONUNBUFFERED": "1",
}


# Steps ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Finished:
    """A process has finished a step."""

    at: float
    """Seconds of the wall clock."""
    pid: int
    step: int
    rank: int
    size: int


class Steps:
    """What the processes of a fleet have written, as far as it has been read."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.all: list[Finished] = []
        self._read: dict[Path, int] = {}

    def read(self) -> list[Finished]:
        """Read on. Only whole lines count: the writer may be dead in the middle of one."""
        fresh = []
        for path in self.directory.iterdir():
            with path.open("rb") as file:
                file.seek(self._read.get(path, 0))
                text = file.read()
            whole = text[: text.rfind(b"\n") + 1]
            self._read[path] = self._read.get(path, 0) + len(whole)
            for line in whole.splitlines():
                ns, step, rank, size = map(int, line.split())
                fresh.append(Finished(ns / 1e9, int(path.name), step, rank, size))
        self.all += fresh
        return fresh

    def of(self, pid: int) -> list[Finished]:
        return [step for step in self.all if step.pid == pid]


# Fleets --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What is to be run: a script of `scripts/` and its flags."""

    script: str
    flags: tuple[str, ...]
    nodes: tuple[int, int]
    """The fewest and the most nodes it can have."""
    folder: Path
    steps: Path

    @property
    def command(self) -> tuple[str, ...]:
        return (str(SCRIPTS / self.script), "--steps", str(self.steps), *self.flags)


class Fleet(Protocol):
    def start(self, nodes: int) -> None: ...

    def add_node(self) -> None:
        """Ask for one node more; returns when it has been asked for, not when it is there."""
        ...

    def node_of(self, pid: int) -> psutil.Process:
        """The process that supervises a training process."""
        ...

    def may_lose(self, node: psutil.Process) -> bool:
        """Whether the job is meant to survive the loss of this node."""
        ...

    def end(self) -> None:
        """Nothing is left running."""
        ...


class TorchrunFleet:
    """One torchrun for each node; the first one hosts the store and is never killed."""

    def __init__(self, job: Job, *flags: str, share_store: bool = True) -> None:
        """`share_store`: torchrun's default. With it a node that joins a running job waits for an address that the
        others have published in an earlier round only (torch 2.13), and so do they."""
        self._job = job
        self._flags = flags
        self._environment = {**ENVIRONMENT, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": str(int(not share_store))}
        self._endpoint = f"127.0.0.1:{free_port()}"
        self._nodes: list[subprocess.Popen[bytes]] = []

    def start(self, nodes: int) -> None:
        for _ in range(nodes):
            self.add_node()

    def add_node(self) -> None:
        command = (
            *(sys.executable, "-m", "torch.distributed.run"),
            *(_nnodes(self._job), "--nproc-per-node=1", "--max-restarts=100"),
            *("--rdzv-backend=c10d", f"--rdzv-endpoint={self._endpoint}", "--rdzv-id=benchmark"),
            *("--local-addr=127.0.0.1", f"--log-dir={self._job.folder / 'torchrun'}"),
            *(*self._flags, *self._job.command),
        )
        log = self._job.folder / f"torchrun-{len(self._nodes)}.log"
        self._nodes.append(_popen(command, log, environment=self._environment))

    def node_of(self, pid: int) -> psutil.Process:
        return _ancestor(pid, lambda process: process.pid in {node.pid for node in self._nodes})

    def may_lose(self, node: psutil.Process) -> bool:
        return node.pid != self._nodes[0].pid

    def end(self) -> None:
        kill_all([process for node in self._nodes for process in tree(node.pid)])
        for node in self._nodes:
            node.wait()


class DlroverFleet:
    """DLRover's local master, and one `dlrover-run` for each node; the first node is never killed."""

    def __init__(self, job: Job, *flags: str) -> None:
        launcher = shutil.which("dlrover-run")
        assert launcher is not None, "dlrover-run is not installed"
        self._job = job
        self._flags = flags
        self._launcher = Path(launcher)
        self._port = free_port()
        self._master: subprocess.Popen[bytes] | None = None
        self._nodes: list[subprocess.Popen[bytes]] = []

    def start(self, nodes: int) -> None:
        command = (
            *(str(self._launcher.with_name("python")), "-m", "dlrover.python.master.main", "--platform=local"),
            *(f"--port={self._port}", f"--node_num={self._job.nodes[1]}", "--job_name=benchmark"),
        )
        self._master = _popen(command, self._job.folder / "dlrover-master.log", environment=ENVIRONMENT)
        for _ in range(nodes):
            self.add_node()

    def add_node(self) -> None:
        number = len(self._nodes)
        names = ("NODE_RANK", "NODE_ID", "WORKER_ID", "WORKER_RANK")
        environment = {
            **ENVIRONMENT,
            **dict.fromkeys(names, str(number)),
            "NODE_NUM": str(self._job.nodes[1]),
            "NODE_TYPE": "worker",
            "POD_IP": "127.0.0.1",
            "JOB_NAME": "benchmark",
            "DLROVER_MASTER_ADDR": f"127.0.0.1:{self._port}",
        }
        command = (
            *(str(self._launcher), _nnodes(self._job), "--nproc_per_node=1", "--max_restarts=100"),
            *(*self._flags, *self._job.command),
        )
        self._nodes.append(_popen(command, self._job.folder / f"dlrover-{number}.log", environment=environment))

    def node_of(self, pid: int) -> psutil.Process:
        return _ancestor(pid, lambda process: process.pid in {node.pid for node in self._nodes})

    def may_lose(self, node: psutil.Process) -> bool:
        return node.pid != self._nodes[0].pid

    def end(self) -> None:
        started = [*self._nodes, *([self._master] if self._master else [])]
        kill_all([process for each in started for process in tree(each.pid)])
        for each in started:
            each.wait()


class ShoalFleet:
    """One `shoal run` with its agents on this machine."""

    def __init__(self, job: Job, *flags: str) -> None:
        self._job = job
        self._flags = flags
        self._count = 0
        self._name = "benchmark"
        self._environment = {**ENVIRONMENT, "SHOAL_HOME": str(job.folder / "home")}
        self._run: subprocess.Popen[bytes] | None = None

    def start(self, nodes: int) -> None:
        self._count = nodes
        flags = (_nnodes(self._job), f"--agents={nodes}", f"--name={self._name}", "--max-restarts=100")
        self._start(*flags, *self._flags, *self._job.command)

    def lose_everything(self) -> None:
        """As when the machine goes down."""
        assert self._run is not None
        kill_all(tree(self._run.pid))
        self._run.wait()

    def resume(self) -> None:
        self._start("--resume", self._name)

    def _start(self, *words: str) -> None:
        command = (sys.executable, "-m", "shoal", "run", *words)
        self._run = _popen(command, self._job.folder / "shoal.log", environment=self._environment)

    def add_node(self) -> None:
        self._count += 1
        command = (sys.executable, "-m", "shoal", "scale", self._name, f"worker={self._count}")
        subprocess.run(command, env=self._environment, check=True, capture_output=True)

    def node_of(self, pid: int) -> psutil.Process:
        assert self._run is not None
        root = self._run.pid
        return _ancestor(pid, lambda process: process.ppid() == root)

    def may_lose(self, node: psutil.Process) -> bool:
        return True

    def end(self) -> None:
        if self._run is not None:
            end_tree(self._run.pid, grace_seconds=0.0)
            self._run.wait()


def _nnodes(job: Job) -> str:
    return f"--nnodes={job.nodes[0]}:{job.nodes[1]}"


def _popen(command: Sequence[str], log: Path, *, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    with log.open("ab") as file:
        return subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True
        )


def _ancestor(pid: int, is_it: Callable[[psutil.Process], bool]) -> psutil.Process:
    process = psutil.Process(pid)
    found = next((p for p in (process, *process.parents()) if is_it(p)), None)
    if found is None:
        raise ProcessLookupError(f"process {pid} belongs to no node of this fleet")
    return found


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


# A fleet at work -----------------------------------------------------------------------------------------


class GaveUp(Exception):
    """What was waited for did not happen in time."""


class OutOfTime(Exception):
    """The benchmark's own time is over. Says nothing about the fleet."""


class Trial:
    """A fleet in a folder of its own, for a `with` block; afterwards nothing is left of it."""

    def __init__(
        self,
        make: Callable[[Job], Fleet],
        script: str,
        *flags: str,
        nodes: tuple[int, int],
        checkpoint: bool,
        until: float,
    ) -> None:
        """`until`: when the benchmark's time is over, by the monotonic clock."""
        self._until = until
        self._folder = Path(tempfile.mkdtemp(prefix="shoal-bench-"))
        steps = self._folder / "steps"
        steps.mkdir()
        if checkpoint:
            flags = (*flags, "--checkpoint", str(self._folder / "checkpoint.pt"))
        self.steps = Steps(steps)
        self.fleet = make(Job(script=script, flags=flags, nodes=nodes, folder=self._folder, steps=steps))

    def __enter__(self) -> "Trial":
        return self

    def __exit__(self, *exc: object) -> None:
        self.fleet.end()
        shutil.rmtree(self._folder, ignore_errors=True)

    def wait_for(self, holds: Callable[[], bool], *, seconds: float, what: str) -> None:
        deadline = time.monotonic() + seconds
        while True:
            self.steps.read()
            if holds():
                return
            if time.monotonic() > self._until:
                raise OutOfTime
            if time.monotonic() > deadline:
                raise GaveUp(f"no {what} within {seconds:.0f} s\n{self.last_words()}")
            time.sleep(0.02)  # what is measured stands in the files; how soon it is read does not matter

    def wait_steady(self, size: int, *, steps: int, seconds: float) -> list[Finished]:
        """Wait until all ranks of a world of this size have done so many steps in it; the last step of each rank."""
        since = len(self.steps.all)

        def holds() -> bool:
            fresh = [s for s in self.steps.all[since:] if s.size == size]
            return all(sum(1 for s in fresh if s.rank == rank) >= steps for rank in range(size))

        self.wait_for(holds, seconds=seconds, what=f"steady world of {size}")
        last = {s.rank: s for s in self.steps.all if s.size == size}
        return [last[rank] for rank in range(size)]

    def last_words(self) -> str:
        """The ends of the logs, for whoever wonders why nothing happened."""
        texts = []
        for log in sorted(self._folder.glob("*.log")):
            with contextlib.suppress(OSError):
                texts.append(f"{log.name}: " + log.read_text(errors="replace")[-400:])
        return "\n".join(texts)
