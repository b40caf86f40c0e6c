"""What one agent is told at its start: one frozen value, built by the command line, passed down, never changed.

Nothing here reads the environment or the machine; whoever builds the settings does that.
"""

import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntFlag, StrEnum
from pathlib import Path

from shoal.checkpoint.memory import SHARED_MEMORY
from shoal.core.errors import BadInput

SECRETS = frozenset({"SHOAL_TOKEN", "SHOAL_TOKEN_FILE"})
"""Environment variables that training processes never see: the token is between agent and master."""


class Streams(IntFlag):
    """Which output streams an option is about; the numbers are torchrun's (`--tee 3`)."""

    NONE = 0
    STDOUT = 1
    STDERR = 2
    BOTH = 3


class PrefixStyle(StrEnum):
    """What stands in front of a training process's lines on the console."""

    NODE = "node"
    """`[worker-2 rank 1] `, or `[worker-2.0] ` while the rank is not known."""
    ROLE = "role"
    """torchrun's `[default1]:`."""
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconnectSettings:
    """How an agent behaves while its master does not answer. Training goes on all the while."""

    first_delay: float = 0.05
    """Seconds until the first new attempt; doubles each time. A master that is being replaced is back soon."""
    longest_delay: float = 1.0
    """Seconds between attempts at most: low enough that a new master meets all its agents within a second or two."""
    connect_timeout: float = 10.0
    """Seconds one attempt may take, handshake included."""
    master_timeout: float = 60.0
    """Seconds without a master after which the agent stops its processes and ends: nobody could use their work."""
    going_timeout: float = 30.0
    """The same for a parameter server that was told to end and waits to be let go: a master that is started again is
    back by then, and the master of a job that is over is not."""

    def __post_init__(self) -> None:
        if not 0 < self.first_delay <= self.longest_delay:
            raise BadInput(
                f"reconnect delays must satisfy 0 < first <= longest, got {self.first_delay} and {self.longest_delay}"
            )
        if self.connect_timeout <= 0 or self.master_timeout < 0:
            raise BadInput("connect_timeout must be above 0 and master_timeout not below 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSettings:
    """What becomes of the states that training processes save. The rest the master says, to all nodes alike."""

    directory: str | None = None
    """A directory or URL that they are written to, for a machine where the job's own is elsewhere; None: the job's."""
    memory_bytes: int | None = None
    """The most shared memory to use; None: what is free."""
    shared_memory: Path = SHARED_MEMORY

    def __post_init__(self) -> None:
        if self.memory_bytes is not None and self.memory_bytes < 0:
            raise BadInput(f"memory for checkpoints must not be negative, got {self.memory_bytes}")


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSettings:
    """One node: who it is, what it runs, where its master and its logs are."""

    master: str
    """The master's URL, `ws://127.0.0.1:4242` or `wss://…`."""
    token: str = field(repr=False)
    """The job's token for agents. It is never handed on to training processes."""
    fingerprint: str | None = None
    """SHA-256 of the master's certificate, when it is reached over TLS."""

    job: str
    node: str | None = None
    """The node's name; None: it joins by itself and the master names it."""
    incarnation: int = 1
    slots: int = 1
    """How many training processes the node has (torchrun's nproc-per-node)."""
    command: tuple[str, ...] = ()
    """What each training process runs, interpreter included. Empty: the master's welcome says it."""
    python: str
    """The training interpreter: the one that can import torch. Hosts the bootstrap store of plain scripts."""
    working_dir: Path | None = None
    """Where training processes start; None: where the agent does."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """The whole environment that training processes start from (usually the agent's own)."""
    gpus: tuple[str, ...] | None = None
    """The GPUs of this node, for CUDA_VISIBLE_DEVICES; None: leave the variable alone."""
    omp_threads: int | None = None
    """OMP_NUM_THREADS where the environment has none; None: torchrun's rule, 1 when there are several processes."""

    host: str
    """The machine's name, for people."""
    owns_container: bool = False
    """No other node is in its container: the memory that counts against the container's limit is this node's."""
    address: str = "127.0.0.1"
    """Where peers reach this node. Stores and collectives bind to it, so it is loopback unless said otherwise."""
    role: str = "default"
    """ROLE_NAME of the training processes."""
    seat: int = 0
    """The node's place among those of its role."""
    tf_workers: tuple[str, ...] = ()
    """The script only reads TF_CONFIG: the address of every worker that there can be, by seat. Empty: it does not."""
    tf_servers: tuple[str, ...] = ()
    """And of every parameter server."""
    spare_after: float | None = None
    """Seconds after a parameter server serves until another process of it is started, which waits to take its place.
    Not at once, for imports of TensorFlow should not compete. None: there is no such process."""
    run_id: str = ""
    """TORCHELASTIC_RUN_ID; empty: the job's name."""
    max_restarts: int | None = None
    """TORCHELASTIC_MAX_RESTARTS; None: what the master's welcome says."""

    log_dir: Path | None = None
    """Logs go to `<log_dir>/<node>/<incarnation>/<local rank>/`; None: no files."""
    redirects: Mapping[int, Streams] | None = None
    """By local rank: streams that go to a file and not to the console."""
    tee: Mapping[int, Streams] | None = None
    """By local rank: streams that go to both. With neither map given, everything goes to both."""
    console_ranks: frozenset[int] | None = None
    """Local ranks whose lines reach the console (torchrun's local-ranks-filter); None: all."""
    prefix: PrefixStyle = PrefixStyle.NODE

    checkpoint: CheckpointSettings = field(default_factory=CheckpointSettings)

    grace: float = 30.0
    """Seconds from SIGTERM to SIGKILL when the agent itself is told to end; `Leave` and `Stop` bring their own."""
    plain_grace: float = 3.0
    """Seconds from SIGTERM to SIGKILL when a plain script is stopped only to be started in the next world. Short: the
    others wait, and a process that hangs in a dead collective does not react to SIGTERM anyway."""
    dump_wait: float = 0.3
    """Seconds a hanging process gets to write its stacks before it is killed."""
    overdue: float = 10.0
    """Seconds after SIGKILL until a process that the kernel does not let go of (a dead file system) is given up."""
    stopped_after: float = 3.0
    """Seconds that a process of a job with parameter servers may be stopped (SIGSTOP) before it is killed: others wait
    for it and get no error. Long enough for a Ctrl-Z by mistake."""
    silent_after: float = 30.0
    """Seconds that a parameter server, which tells twice a second that it is there, may be silent before it is killed.
    A machine that swaps is not dead."""
    flush_wait: float = 1.0
    """Seconds a slow console gets to take some of the last lines when the agent ends; then it gets as many again."""
    goodbye_wait: float = 5.0
    """Seconds the last message (`Succeeded`, `Left`) gets to reach the master when the agent ends."""
    store_warm_delay: float = 5.0
    """Seconds after the start of a plain world until the second member warms its store host: importing torch should
    not compete with the training processes' own start."""
    reconnect: ReconnectSettings = field(default_factory=ReconnectSettings)
    signals: tuple[signal.Signals, ...] = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
    """Signals to the agent that end the node (torchrun's signals-to-handle); a second one ends it at once."""
    runtime_dir: Path | None = None
    """Where the agent makes its private directory (socket, error files); None: the system's temporary directory."""

    def __post_init__(self) -> None:
        if self.slots < 1:
            raise BadInput(f"a node has at least one training process, got {self.slots}")
        if self.incarnation < 1:
            raise BadInput(f"incarnations count from 1, got {self.incarnation}")
        if not self.address:
            raise BadInput("an agent needs an address at which its peers reach it")
        if self.spare_after is not None and self.spare_after < 0:
            raise BadInput(f"spare_after must not be negative, got {self.spare_after}")
        for name in (
            "grace",
            "plain_grace",
            "dump_wait",
            "overdue",
            "stopped_after",
            "silent_after",
            "flush_wait",
            "goodbye_wait",
            "store_warm_delay",
        ):
            if getattr(self, name) < 0:
                raise BadInput(f"{name} must not be negative, got {getattr(self, name)}")

    def to_file(self, local_rank: int) -> Streams:
        """The streams of a process that are written to a file."""
        if self.redirects is None and self.tee is None:
            return Streams.BOTH
        return self._of(self.redirects, local_rank) | self._of(self.tee, local_rank)

    def to_console(self, local_rank: int) -> Streams:
        """The streams of a process that are shown. `tee` wins over `redirects`, as in torchrun."""
        if self.console_ranks is not None and local_rank not in self.console_ranks:
            return Streams.NONE
        redirected = self._of(self.redirects, local_rank) & ~self._of(self.tee, local_rank)
        return Streams.BOTH & ~redirected

    @staticmethod
    def _of(streams: Mapping[int, Streams] | None, local_rank: int) -> Streams:
        return Streams.NONE if streams is None else Streams(streams.get(local_rank, Streams.NONE))
