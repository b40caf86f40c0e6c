"""The agent's shell: everything that happens goes to `node`, and what it decides is done here. It chooses nothing.

One owner: the `Shell` holds the node's value and replaces it in the event loop only. Whatever calls in (the link to
the master, the local socket, the end of a process, a signal) ends in `_happen`, which does what follows in order.

Exit codes of the agent process:

| code    | meaning                                                                                     |
| ------- | ------------------------------------------------------------------------------------------- |
| 0       | the training processes succeeded, or the master let the node leave or stopped it            |
| 1       | the agent failed: no master for too long, bytes that are no messages, no address to bind to |
| 76      | the master refuses this agent: starting it again cannot help                                |
| 77      | as 0, and a training process had said that it leaves (exit 77)                              |
| 128 + n | signal n ended the node; the master was told that it left if it had joined by itself        |
"""

import asyncio
import contextlib
import os
import signal
import tempfile
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import assert_never

import msgspec

from shoal.agent import node as core
from shoal.agent.cgroups import NodeLimits
from shoal.agent.environment import arguments, environment
from shoal.agent.failures import OomCounter, error_of
from shoal.agent.gpu import Gpus
from shoal.agent.guard import Guard
from shoal.agent.link import MasterLink
from shoal.agent.output import Console, LogFile, Route, printable
from shoal.agent.plain_store import PlainStore
from shoal.agent.processes import Process
from shoal.agent.replicas import Replicas
from shoal.agent.saver import Saver
from shoal.agent.settings import SECRETS, AgentSettings, PrefixStyle, Streams
from shoal.agent.shards import Desk
from shoal.agent.sockets import LocalServer
from shoal.agent.usage import Stat, Usage, look, usage
from shoal.checkpoint.memory import Home, sweep
from shoal.core.errors import Disconnected, ProtocolError, Refused
from shoal.core.exits import EXIT_DO_NOT_RESTART, ExitCause, ProcessExit, cause_of, describe
from shoal.core.ledger import Owner
from shoal.core.nodes import ProcessSeen
from shoal.core.rounds import owner_of
from shoal.core.world import World
from shoal.wire.local import Attached, CheckpointWord, DataWord, FromProcess
from shoal.wire.messages import (
    PROTOCOL,
    Ack,
    Commit,
    DataAnswers,
    DataKept,
    DataRound,
    DataWakes,
    FromMaster,
    Heartbeat,
    Hello,
    Welcome,
)

EXIT_FAILED = 1
EXIT_NOT_FOUND = 127
_LONGEST_SOCKET_PATH = 100
"""Characters; the kernel takes 107."""
_KILLED = 128 + signal.SIGKILL
_SHORTEST_LOOK = 0.5
"""Seconds over which cpu is measured at least: the kernel counts it in hundredths, heartbeats may follow closely."""
_BY_ITSELF = frozenset({ExitCause.USER_ERROR, ExitCause.OOM, ExitCause.HANG})
"""Ends that the data may have caused."""


async def run(settings: AgentSettings, *, stdout: int = 1, stderr: int = 2) -> int:
    """Be one node until its work is done."""
    directory = _private_directory(settings.runtime_dir)
    memory = _shared_memory(settings.checkpoint.shared_memory)
    # Before anything else exists that a fork would copy.
    guard = Guard(directory, *(() if memory is None else (memory.path,)))
    try:
        return await Shell(settings, guard, directory, memory, Console(stdout), Console(stderr)).run()
    finally:
        guard.close()


def _private_directory(parent: Path | None) -> Path:
    """0700, and short: a socket's path has little room."""
    directory = Path(tempfile.mkdtemp(prefix="shoal-", dir=parent))
    if len(str(directory / "agent.sock")) < _LONGEST_SOCKET_PATH:
        return directory
    directory.rmdir()
    return Path(tempfile.mkdtemp(prefix="shoal-", dir="/tmp"))


def _shared_memory(root: Path) -> Home | None:
    """A home for checkpoints in memory; None: there is no shared memory here."""
    try:
        sweep(root)
        return Home(root)
    except OSError:
        return None  # the first save says so


class Shell:
    """One agent. Implements what `sockets` and `link` call their owner."""

    def __init__(
        self,
        settings: AgentSettings,
        guard: Guard,
        directory: Path,
        memory: Home | None,
        stdout: Console,
        stderr: Console,
    ) -> None:
        self._settings = settings
        self._guard = guard
        self._directory = directory
        self._consoles = {"stdout": stdout, "stderr": stderr}
        self._node = core.a_node(
            name=settings.node or "",
            incarnation=settings.incarnation,
            slots=settings.slots,
            plain_grace=settings.plain_grace,
            joined=settings.node is None,
        )
        self._steps: deque[Callable[[core.Node], core.Step]] = deque()
        self._doing = False
        self._welcome: Welcome | None = None
        self._processes: dict[int, Process] = {}
        self._server = LocalServer(directory / "agent.sock", self)
        self._link = MasterLink(settings, self)
        self._store = PlainStore(
            settings.python,
            settings.address,
            environment={name: value for name, value in settings.environment.items() if name not in SECRETS},
            guard=guard,
            note=self.note,
            ended=lambda: self._process_ended.set(),
        )
        self._saver = Saver(
            settings.checkpoint,
            home=memory,
            tell=lambda local_rank, answer: self._server.tell((local_rank,), answer),
            note=self.note,
        )
        self._replicas = Replicas(self._saver, token=settings.token, address=settings.address, note=self.note)
        self._desk = Desk()
        self._data_scheduled = False
        self._is_cut_off = False
        self._gpus = Gpus(settings.environment.get("CUDA_VISIBLE_DEVICES"))
        self._limits = NodeLimits(owns_container=settings.owns_container)
        self._ooms = OomCounter()
        self._ooms_seen = self._ooms.read()
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._welcome_came = asyncio.Event()
        self._beat_now = asyncio.Event()
        self._process_ended = asyncio.Event()
        self._over: asyncio.Future[core.End] = asyncio.get_running_loop().create_future()

    async def run(self) -> int:
        await self._server.start()
        self._handle_signals()
        background: list[asyncio.Task[None]] = []
        try:
            async with asyncio.TaskGroup() as tasks:
                background = [tasks.create_task(self._keep_link()), tasks.create_task(self._beat())]
                end = await self._over
                await self._flush()
                await self._data_is_safe()
                if end.goodbye is not None:
                    self._link.send(end.goodbye)
                await self._link.emptied(self._settings.goodbye_wait)
                for task in background:
                    task.cancel()
        finally:
            await self._clean_up()
        if end.code != 0:
            self.note(f"{end.line} (exit {end.code})")
        await self._flush()
        return end.code

    async def _flush(self) -> None:
        for console in self._consoles.values():
            await console.flush(self._settings.flush_wait)

    async def _data_is_safe(self) -> None:
        """What was trained is in the master's hands when we go, if it is there to take it."""
        if self._is_cut_off:
            return
        quiet = asyncio.Event()
        self._desk.when_heard(quiet.set)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._settings.goodbye_wait):
                await quiet.wait()

    async def _clean_up(self) -> None:
        loop = asyncio.get_running_loop()
        for number in self._settings.signals:
            loop.remove_signal_handler(number)
        for timer in self._timers.values():
            timer.cancel()
        self._store.close()
        for process in self._processes.values():
            process.kill()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._settings.overdue):
                while self._processes or self._store.is_hosting:
                    self._process_ended.clear()
                    await self._process_ended.wait()
        await self._server.close()
        await self._replicas.close()
        await self._saver.close()

    def _handle_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in self._settings.signals:
            loop.add_signal_handler(number, self._signalled, number)

    # What happens -----------------------------------------------------------------------------------------

    def _happen(self, step: Callable[[core.Node], core.Step]) -> None:
        """Take a step, do what follows, and whatever that brings about, one after the other."""
        self._steps.append(step)
        if self._doing:
            return
        self._doing = True
        try:
            while self._steps:
                self._node, effects = self._steps.popleft()(self._node)
                for effect in effects:
                    self._do(effect)
        finally:
            self._doing = False

    def _signalled(self, number: signal.Signals) -> None:
        self._happen(lambda n: core.signalled(n, number, number.name, grace=self._settings.grace))

    async def _keep_link(self) -> None:
        try:
            await self._link.run()
        except Refused as exc:
            self._cut_off(EXIT_DO_NOT_RESTART, f"the master refuses this node: {exc}")
        except (Disconnected, ProtocolError) as exc:
            self._cut_off(EXIT_FAILED, f"no master: {exc}")

    def _cut_off(self, code: int, reason: str) -> None:
        self._is_cut_off = True
        self._happen(lambda n: core.cut_off(n, code=code, reason=reason, grace=self._settings.grace))

    # The link's owner -------------------------------------------------------------------------------------

    def hello(self) -> Hello:
        settings, node = self._settings, self._node
        return Hello(
            protocol=PROTOCOL,
            job=settings.job,
            node=node.name or None,
            incarnation=node.incarnation,
            host=settings.host,
            address=settings.address,
            slots=settings.slots,
            pid=os.getpid(),
            generation=node.generation,
            prepared=node.prepared,
            sdk=node.sdk,
            term=0 if self._welcome is None else self._welcome.term,
        )

    def welcomed(self, welcome: Welcome) -> None:
        self._welcome = welcome
        self._saver.told(welcome.checkpoint)
        if welcome.checkpoint.replica:
            self._replicas.start()
        self._welcome_came.set()
        if self._settings.command or welcome.command:
            self._happen(lambda n: core.welcomed(n, welcome))
            self._desk.reconnected()
            self._exchange_data()  # before the first heartbeat: with that, a new master knows all that is held here
            self._beat_now.set()
        else:
            self._cut_off(EXIT_DO_NOT_RESTART, "neither this agent nor its master knows a command to run")

    def received(self, message: FromMaster) -> None:
        match message:
            case DataAnswers(answer=answer, is_kept=is_kept):
                self._desk.answered(answer, is_kept=is_kept)
                self._data_soon()
                return
            case DataKept(number=number, is_written=False):
                self._desk.let_go(number)
                return
            case DataKept(number=number):
                self._desk.kept(number)
                self._data_soon()
                return
            case DataWakes(wakes=wakes):
                self._desk.woken(wakes)
                self._data_soon()
                return
            case _:
                pass
        self._happen(lambda n: core.told(n, message))
        if isinstance(message, Commit) and self._node.world is not None:
            self._replicas.world_formed(self._node.world, message.store, self._node.name)

    def note(self, line: str) -> None:
        """A word of the agent's own, for people."""
        self._consoles["stderr"].line(f"[{self._node.name or self._settings.host}] {printable(line.encode())}")

    # The local socket's owner -----------------------------------------------------------------------------

    def slot_of(self, pid: int) -> int | None:
        return next((rank for rank, process in self._processes.items() if process.pid == pid), None)

    def greeting(self) -> Attached:
        assert self._welcome is not None
        return Attached(
            job=self._settings.job,
            node=self._node.name,
            incarnation=self._node.incarnation,
            address=self._settings.address,
            max_workers=self._welcome.max_workers,
            resumed=self._welcome.resumed,
        )

    def process_attached(self, local_rank: int) -> None:
        self._happen(lambda n: core.attached(n, local_rank))

    def process_said(self, local_rank: int, message: FromProcess) -> None:
        if isinstance(message, CheckpointWord):
            self._saver.said(local_rank, message)
            return
        if isinstance(message, DataWord):
            self._desk.said(self._owner(local_rank, self._processes[local_rank]), message)
            self._data_soon()
            return
        self._happen(lambda n: core.said(n, local_rank, message))

    def process_detached(self, local_rank: int) -> None:
        self._saver.process_gone(local_rank)
        self._happen(lambda n: core.detached(n, local_rank))

    # Data -------------------------------------------------------------------------------------------------

    def _owner(self, local_rank: int, process: Process) -> Owner:
        return owner_of(self._node.name, local_rank, process.pid, process.life)

    def _data_soon(self) -> None:
        """After whatever else has arrived by now, so that it goes in one round."""
        if not self._data_scheduled:
            self._data_scheduled = True
            asyncio.get_running_loop().call_soon(self._exchange_data)

    def _exchange_data(self) -> None:
        self._data_scheduled = False
        ranks = {self._owner(rank, process): rank for rank, process in self._processes.items()}
        for owner, letter in self._desk.letters():
            if owner in ranks:
                self._server.tell((ranks[owner],), letter)
        round = self._desk.next_round()
        if round is not None:
            self._link.send(DataRound(round=round))

    # What is done -----------------------------------------------------------------------------------------

    def _do(self, effect: core.Effect) -> None:
        match effect:
            case core.Send(message=Ack() as ack):
                store = {**ack.store, **self._replicas.entry(self._node.name)}
                self._link.send(msgspec.structs.replace(ack, store=store))
            case core.Send(message=message):
                self._link.send(message)
            case core.Tell(message=tidings, to=to):
                self._server.tell(to, tidings)
            case core.StartProcesses(local_ranks=ranks):
                for rank in ranks:
                    self._start(rank, effect)
            case core.StopProcesses(local_ranks=ranks, grace_seconds=grace):
                for process in self._those(ranks):
                    process.stop(grace)
                if self._node.ending is not None:
                    self._later("overdue", grace + self._settings.overdue, lambda: self._happen(core.overdue))
            case core.KillProcesses():
                self._kill(effect)
            case core.DumpProcesses(local_ranks=ranks):
                for process in self._those(ranks):
                    process.signal(signal.SIGUSR2)
            case core.OpenStore(world=world):
                self._open_store(world)
            case core.WarmStore():
                self._later("warm", self._settings.store_warm_delay, self._warm_store)
            case core.CloseStore():
                self._store.close()
            case core.End():
                self._over.set_result(effect)
            case _:
                assert_never(effect)

    def _start(self, local_rank: int, effect: core.StartProcesses) -> None:
        settings, node = self._settings, self._node
        assert self._welcome is not None
        logs = self._log_directory(local_rank)
        error_file = (logs or self._directory) / ("error.json" if logs else f"error-{local_rank}.json")
        error_file.unlink(missing_ok=True)
        variables = environment(
            settings,
            node=node.name,
            incarnation=node.incarnation,
            local_rank=local_rank,
            max_restarts=self._welcome.max_restarts if settings.max_restarts is None else settings.max_restarts,
            socket=self._server.path,
            error_file=error_file,
            world=effect.world,
            store=effect.store,
        )
        command = settings.command or self._welcome.command
        try:
            process = Process(
                arguments(command, local_rank),
                guard=self._guard,
                environment=variables,
                working_dir=settings.working_dir,
                outputs=lambda stream: self._outputs(local_rank, stream, logs),
                ended=lambda process, code: self._ended(local_rank, process, code, error_file),
            )
        except OSError as exc:
            self._not_started(local_rank, command, exc)
            return
        self._processes[local_rank] = process
        self._happen(lambda n: core.started(n, local_rank, process.pid))

    def _not_started(self, local_rank: int, command: tuple[str, ...], exc: OSError) -> None:
        error = f"cannot start {command[0]}: {exc.strerror} ({exc.filename})"
        self.note(error)
        exit = ProcessExit(code=EXIT_NOT_FOUND, error=error)
        self._happen(lambda n: core.ended(n, local_rank, exit))

    def _ended(self, local_rank: int, process: Process, code: int, error_file: Path) -> None:
        del self._processes[local_rank]
        self._server.drop(local_rank)
        owner = self._owner(local_rank, process)
        exit = ProcessExit(
            code=code,
            oom=code == _KILLED and self._oom_since_last_beat(),
            error=error_of(error_file, process.stderr_tail, code=code),
            uptime_seconds=process.uptime,
        )
        self._process_ended.set()
        self._saver.process_gone(local_rank)
        failed = cause_of(exit) in _BY_ITSELF and self._node.stopping is None and self._node.ending is None
        self._desk.departed(owner, charged=failed, reason=f"{owner} ended with {describe(exit)}")
        self._data_soon()
        if code == 0 or self._node.ending is not None:
            # The node is about to end, and the memory of its checkpoints with it: the disk first.
            self._saver.when_written(lambda: self._last_words(lambda n: core.ended(n, local_rank, exit)))
        else:
            self._happen(lambda n: core.ended(n, local_rank, exit))

    def _last_words(self, step: Callable[[core.Node], core.Step]) -> None:
        """What was trained counts only if the master hears of it before it hears that the node has ended."""
        if self._node.ending is None:
            self._desk.when_heard(lambda: self._happen(step))
        else:
            self._happen(step)

    def _oom_since_last_beat(self) -> bool:
        now = self._ooms.read()
        return now is not None and self._ooms_seen is not None and now > self._ooms_seen

    def _kill(self, effect: core.KillProcesses) -> None:
        for rank in effect.local_ranks:
            process = self._processes.get(rank)
            if process is None:
                continue
            self.note(f"kills local rank {rank} (process {process.pid}): {effect.reason}")
            if rank in effect.dump:
                process.signal(signal.SIGUSR2)
                process.kill_later(self._settings.dump_wait)
            else:
                process.kill()

    def _open_store(self, world: World) -> None:
        try:
            address = self._store.open(world)
        except OSError as exc:
            self._cut_off(EXIT_FAILED, f"cannot listen at {self._settings.address}: {exc}")
            return
        self._happen(lambda n: core.store_opened(n, world.generation, address))

    def _warm_store(self) -> None:
        if self._node.sdk or self._node.ending is not None:
            return  # learnt while we waited
        try:
            self._store.warm()
        except OSError as exc:
            self.note(f"cannot start {self._settings.python}: {exc}")

    def _those(self, ranks: tuple[int, ...]) -> list[Process]:
        return [self._processes[rank] for rank in ranks if rank in self._processes]

    def _later(self, what: str, seconds: float, act: Callable[[], None]) -> None:
        """Do it in a while, unless it is put off again."""
        if what in self._timers:
            self._timers[what].cancel()
        self._timers[what] = asyncio.get_running_loop().call_later(seconds, act)

    # Output -----------------------------------------------------------------------------------------------

    def _log_directory(self, local_rank: int) -> Path | None:
        """Where this incarnation's files of one process go; None: nowhere."""
        if self._settings.log_dir is None:
            return None
        directory = self._settings.log_dir / self._node.name / str(self._node.incarnation) / str(local_rank)
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as exc:
            self.note(f"cannot make {directory}: {exc.strerror}; training goes on without logs there")
            return None
        return directory

    def _outputs(self, local_rank: int, stream: str, logs: Path | None) -> Route:
        which = Streams.STDOUT if stream == "stdout" else Streams.STDERR
        file = None
        if logs is not None and which in self._settings.to_file(local_rank):
            file = LogFile(logs / f"{stream}.log", failed=self.note)
        if which not in self._settings.to_console(local_rank):
            return Route(file=file)
        console = self._consoles[stream]
        return Route(file=file, show=lambda line: console.line(self._prefix(local_rank) + line), console=console)

    def _prefix(self, local_rank: int) -> str:
        rank = self._node.rank(local_rank)
        match self._settings.prefix:
            case PrefixStyle.NODE if rank is None:
                return f"[{self._node.name}.{local_rank}] "
            case PrefixStyle.NODE:
                return f"[{self._node.name} rank {rank}] "
            case PrefixStyle.ROLE:
                return f"[{self._settings.role}{local_rank if rank is None else rank}]:"
            case PrefixStyle.NONE:
                return ""

    # Heartbeats -------------------------------------------------------------------------------------------

    async def _beat(self) -> None:
        loop = asyncio.get_running_loop()
        await self._welcome_came.wait()
        before: dict[int, Stat] = {}
        used: dict[int, Usage] = {}
        last = loop.time()
        while True:
            assert self._welcome is not None
            self._beat_now.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._welcome.heartbeat_seconds):
                    await self._beat_now.wait()  # a new master knows nothing of the processes yet
            now, at = look(), loop.time()
            pids = [process.pid for process in self._processes.values()]
            if at - last >= _SHORTEST_LOOK or not used.keys() >= set(pids):
                used = usage(pids, now, before, seconds=at - last)
                before, last = now, at
            stats = (self._stat(rank, process, used) for rank, process in sorted(self._processes.items()))
            processes = tuple(stat for stat in stats if stat is not None)
            gpus, node = self._gpus.look(), self._limits.look()
            self._link.send(Heartbeat(incarnation=self._node.incarnation, processes=processes, gpus=gpus, node=node))
            self._ooms_seen = self._ooms.read()

    def _stat(self, local_rank: int, process: Process, used: dict[int, Usage]) -> ProcessSeen | None:
        if process.pid not in used:
            return None  # it ended since we looked
        seen, report, last = used[process.pid], self._node.report(local_rank), self._node.slots[local_rank].report
        return ProcessSeen(
            local_rank=local_rank,
            pid=process.pid,
            stopped=seen.stopped,
            cpu=seen.cpu,
            memory_bytes=seen.memory_bytes,
            step=None if last is None else last.step,
            collectives=0 if report is None else report.collectives,
            busy=None if report is None else report.busy,
            trained=None if last is None else last.trained,
        )
