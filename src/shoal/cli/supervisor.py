"""The other half of `shoal run`: it holds the port and the nodes, and sees to it that there is a master.

    shoal run (Supervisor) ─┬─ shoal master        the job's state; replaced when it dies
                            ├─ shoal master        a spare one, imported and waiting for its turn
                            └─ shoal agent ...     started and ended by LocalScaler as the master says

The listening sockets are opened here once and handed to each master: while there is none, whoever connects waits in
the kernel's queue and is answered by the next. The master says what should run and how the job is over one
connection (`wire.platform`); everything that it must know is said anew after each reconnection.
"""

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from shoal.cli.master import EXIT_HOPELESS, Turn
from shoal.core.errors import Disconnected, PlatformUnavailable, ProtocolError, Refused
from shoal.core.exits import ExitCause, ProcessExit, cause_of, describe, shell_code
from shoal.core.nodes import NodeId
from shoal.core.plans import ScalePlan
from shoal.core.view import DecisionView, JobView
from shoal.platforms.local import LocalScaler, die_with
from shoal.wire.client import PlatformConnection, connect_platform
from shoal.wire.messages import PROTOCOL
from shoal.wire.platform import (
    Denied,
    FromPlatform,
    JobEnded,
    JobSeen,
    NodeEnded,
    PlatformHello,
    Scaled,
    ScaleOrder,
    StopOrder,
)

RETRY_SECONDS = 0.05
"""Between tries to reach a master; most of the time the kernel's queue waits for us."""
SPARE_AFTER_SECONDS = 5.0
"""The first spare master is started so long after the job: the nodes' own start has the machine first."""
QUICK_DEATH_SECONDS = 10.0
QUICK_DEATHS = 5
"""So many masters in a row that lived shorter than that, and were not killed at work, are a master that cannot live."""
SILENT_SECONDS = 30.0
"""A master that has said nothing for so long is killed: half of the time that agents wait for another one."""
LAST_WORD_SECONDS = 3.0
KEPT_LINES = 20


class NoMaster(Exception):
    """The job has no master and will have none; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MasterCommand:
    argv: tuple[str, ...]
    environment: Mapping[str, str]
    sockets: tuple[int, ...]
    """Descriptors that the master inherits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a master ended."""

    code: int
    seconds: float
    last_line: str | None
    served: bool = False
    """It had begun to answer."""

    @property
    def exit(self) -> ProcessExit:
        return ProcessExit(code=shell_code(self.code))

    @property
    def is_quick(self) -> bool:
        """It could not live: it ended early, and not because somebody killed it at its work."""
        killed = self.served and cause_of(self.exit) is ExitCause.KILLED
        return self.seconds < QUICK_DEATH_SECONDS and not killed


def give_up(ended: Ended, *, quick_deaths: int, trouble: str | None) -> str | None:
    """Why no other master should be started; None: one should."""
    how = f"the master ended with {describe(ended.exit)}"
    if ended.code == EXIT_HOPELESS:
        return ended.last_line or how
    if trouble is not None:
        return f"{how}, and its state could not be kept ({trouble})"
    if quick_deaths >= QUICK_DEATHS:
        said = f": {ended.last_line}" if ended.last_line else ""
        return f"{quick_deaths} masters in a row died within {QUICK_DEATH_SECONDS:g} s{said}"
    return None


class _Process:
    """One `shoal master`: started, waiting for its turn, serving, ended."""

    def __init__(self, process: asyncio.subprocess.Process, said: Callable[[str], None]) -> None:
        self._process = process
        self._said = said
        self._began = time.monotonic()
        self._lines: list[str] = []
        self._reader = asyncio.create_task(self._read())

    @classmethod
    async def start(cls, command: MasterCommand, said: Callable[[str], None]) -> "_Process":
        parent = os.getpid()
        process = await asyncio.create_subprocess_exec(
            *command.argv,
            env=dict(command.environment),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            pass_fds=command.sockets,
            start_new_session=True,  # a Ctrl-C is for us: we tell the master what it means
            preexec_fn=lambda: die_with(parent),
        )
        return cls(process, said)

    @property
    def is_alive(self) -> bool:
        return self._process.returncode is None

    def go(self, turn: Turn) -> None:
        self._began = time.monotonic()
        assert self._process.stdin is not None
        self._process.stdin.write(f"{turn}\n".encode())

    async def ended(self) -> Ended:
        code = await self._process.wait()
        await self._reader
        last = self._lines[-1] if self._lines else None
        return Ended(code=code, seconds=time.monotonic() - self._began, last_line=last)

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    async def end(self, seconds: float) -> None:
        """Wait for its end so long, then kill it."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._process.wait()
        if self.is_alive:
            self.kill()
        await self.ended()

    async def _read(self) -> None:
        assert self._process.stderr is not None
        async for line in self._process.stderr:
            text = line.decode("utf-8", "replace").rstrip("\n")
            self._lines = [*self._lines[1 - KEPT_LINES :], text]
            self._said(text)


class Supervisor:
    """Runs a job to its end with as many masters as that takes."""

    def __init__(
        self,
        command: MasterCommand,
        scaler: LocalScaler,
        *,
        url: str,
        token: str,
        fingerprint: str | None,
        first: JobView,
        seen: Callable[[JobView], None],
        note: Callable[[str], None],
        begin: Turn = Turn.NEW,
        silent_seconds: float = SILENT_SECONDS,
    ) -> None:
        """`first`: the job as it is while nobody can be asked. `seen` is called with every later look at it. `begin`
        is what the first master is told; those after it take over."""
        self._begin = begin
        self._command = command
        self._scaler = scaler
        self._url = url
        self._token = token
        self._fingerprint = fingerprint
        self._view = first
        self._seen = seen
        self._note = note
        self._silent_seconds = silent_seconds
        self._term = 0
        self._trouble: str | None = None
        self._stop: StopOrder | None = None
        self._ended: dict[NodeId, ProcessExit] = {}
        self._outbox: asyncio.Queue[FromPlatform] = asyncio.Queue()
        self._is_connected = False
        self._is_leaving = False
        self._heard_at = time.monotonic()
        self._master: _Process | None = None
        self._spare: _Process | None = None
        self._wants_spare = asyncio.Event()
        """A master began to serve."""
        self._over = asyncio.Event()

    @property
    def view(self) -> JobView:
        return self._view

    @property
    def has_begun(self) -> bool:
        """Some master was heard."""
        return self._term > 0

    async def run(self) -> JobView:
        """Run the job. Whatever happens, nothing of it is left running afterwards. Raises `NoMaster`."""
        await self._scaler.start(self._node_exited)
        try:
            async with asyncio.TaskGroup() as tasks:
                keepers = (self._keep_master(), self._keep_link(), self._keep_spare(), self._keep_watch())
                background = [tasks.create_task(keeper) for keeper in keepers]
                try:
                    await self._over.wait()
                finally:
                    self._is_leaving = True
                for task in background:
                    task.cancel()
        except* NoMaster as group:
            raise group.exceptions[0] from None
        finally:
            await self._scaler.close()
            for process, seconds in ((self._spare, 0.0), (self._master, LAST_WORD_SECONDS if self._is_over else 0.0)):
                if process is not None:
                    await process.end(seconds)
        return self._view

    @property
    def _is_over(self) -> bool:
        return self._over.is_set()

    def stop(self, reason: str, *, grace_seconds: float | None = None) -> None:
        """Ask the master for the end of the job, this one or the next."""
        self._stop = StopOrder(reason=reason, grace_seconds=grace_seconds)
        self._send(self._stop)

    # The master -------------------------------------------------------------------------------------------

    async def _keep_master(self) -> None:
        quick_deaths, turn = 0, self._begin
        while True:
            master, self._spare = self._spare, None
            if master is None or not master.is_alive:
                master = await _Process.start(self._command, self._note)
            self._master = master
            self._heard_at = time.monotonic()
            master.go(turn)
            before = self._term
            ended = replace(await master.ended(), served=self._term > before)
            if self._is_over:
                return
            quick_deaths = quick_deaths + 1 if ended.is_quick else 0
            why_not = give_up(ended, quick_deaths=quick_deaths, trouble=self._trouble)
            if why_not is not None:
                raise NoMaster(why_not)
            self._note(f"the master ended with {describe(ended.exit)}: another one takes over, training goes on")
            # A master that died before anybody heard of it may not have begun the job.
            turn = Turn.TAKE_OVER if self._term else self._begin

    async def _keep_spare(self) -> None:
        """Have another master ready that has imported everything; as soon as it was needed once, another one."""
        await asyncio.sleep(SPARE_AFTER_SECONDS)
        while True:
            if self._is_connected and (self._spare is None or not self._spare.is_alive):
                self._spare = await _Process.start(self._command, self._note)
            self._wants_spare.clear()
            with contextlib.suppress(TimeoutError):  # a spare one may die too
                async with asyncio.timeout(SPARE_AFTER_SECONDS):
                    await self._wants_spare.wait()

    async def _keep_watch(self) -> None:
        """Kill a master that stands still: what it holds, the next one has on record."""
        while True:
            await asyncio.sleep(self._silent_seconds / 10)
            if self._master is not None and time.monotonic() - self._heard_at > self._silent_seconds:
                self._note(f"the master has said nothing for {self._silent_seconds:g} s: killing it")
                self._heard_at = time.monotonic()
                self._master.kill()

    # The connection ---------------------------------------------------------------------------------------

    async def _keep_link(self) -> None:
        # Asked each time: a cancellation that comes just as the connection is lost is lost with it (Python 3.11).
        while not (self._is_over or self._is_leaving):
            try:
                connection = await connect_platform(
                    self._url, token=self._token, hello=self._hello(), fingerprint=self._fingerprint
                )
            except Disconnected:
                await asyncio.sleep(RETRY_SECONDS)
                continue
            except (Refused, ProtocolError) as exc:
                raise NoMaster(f"the master does not take its platform: {exc}") from exc
            try:
                await self._use(connection)
            finally:
                self._is_connected = False
                await connection.close()

    def _hello(self) -> PlatformHello:
        return PlatformHello(
            protocol=PROTOCOL,
            job=self._view.name,
            running=self._scaler.existing(),
            ended={str(node): exit for node, exit in self._ended.items()},
            seats=self._scaler.seats(),
            term=self._term,
        )

    async def _use(self, connection: PlatformConnection) -> None:
        """Carry messages both ways until the connection is lost."""
        self._outbox = asyncio.Queue()  # what was in it is told by the hello
        self._is_connected = True
        self._wants_spare.set()
        for node, exit in self._ended.items():
            self._send(NodeEnded(node=node, exit=exit))  # it may have ended while the hello was on its way
        if self._stop is not None:
            self._send(self._stop)
        self._look(connection.welcome)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._write(connection))
                await self._read(connection)
        except* Disconnected:
            pass
        except* ProtocolError as group:
            raise NoMaster(f"the master speaks another language: {group.exceptions[0]}") from None

    async def _read(self, connection: PlatformConnection) -> None:
        async for message in connection:
            match message:
                case JobSeen():
                    self._look(message)
                case ScaleOrder():
                    await self._scale(message)
                case JobEnded(view=view):
                    self._view = view
                    self._seen(view)
                    self._over.set()
                    raise Disconnected("the job is over")
                case Denied(reason=reason):
                    raise ProtocolError(reason)

    async def _write(self, connection: PlatformConnection) -> None:
        while True:
            await connection.send(await self._outbox.get())

    def _send(self, message: FromPlatform) -> None:
        if self._is_connected:
            self._outbox.put_nowait(message)

    def _look(self, seen: JobSeen) -> None:
        self._heard_at = time.monotonic()
        self._term, self._view, self._trouble = seen.term, seen.view, seen.trouble
        self._seen(seen.view)

    # Nodes ------------------------------------------------------------------------------------------------

    async def _scale(self, order: ScaleOrder) -> None:
        error: str | None = None
        try:
            plan = ScalePlan(launch_nodes=order.launch, remove_nodes=order.remove, reason=order.reason)
            await self._scaler.scale(plan)
        except PlatformUnavailable as exc:
            error = str(exc)
        self._send(Scaled(number=order.number, error=error))

    def _node_exited(self, node: NodeId, exit: ProcessExit) -> None:
        self._ended[node] = exit
        self._send(NodeEnded(node=node, exit=exit))


def fresh(decisions: Sequence[DecisionView], last: DecisionView | None) -> Sequence[DecisionView]:
    """The decisions after the last one that is known. A master that took over may not know that one: it was the last
    word of the one before."""
    if last is None:
        return decisions
    if last not in decisions:
        return [decision for decision in decisions if decision.at >= last.at]
    at = len(decisions) - 1 - list(reversed(decisions)).index(last)
    return decisions[at + 1 :]
