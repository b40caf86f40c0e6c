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
| 78      | the job has failed, and the node had joined by itself: starting it again cannot help        |
| 128 + n | signal n ended the node; the master was told that it left if it had joined by itself        |
"""

import asyncio
import contextlib
import os
import signal
import tempfile
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import assert_never

import msgspec

from shoal.agent import node as core
from shoal.agent.cgroups import NodeLimits
from shoal.agent.environment import arguments, environment
from shoal.agent.failures import OomCounter, error_of
from shoal.agent.frozen import LOOK_SECONDS, Watch, is_stopped
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
from shoal.agent.spare import Spare
from shoal.agent.standin import FREE_SECONDS, Act, Halt, Launch, Say, StandIn, is_free
from shoal.agent.usage import Stat, Usage, look, usage
from shoal.agent.voices import Voices
from shoal.checkpoint.memory import Home, sweep
from shoal.core.errors import Disconnected, ProtocolError, Refused
from shoal.core.exits import EXIT_DO_NOT_RESTART, ExitCause, ProcessExit, cause_of, describe
from shoal.core.ledger import Owner
from shoal.core.nodes import ProcessSeen, Role, parsed
from shoal.core.ps.words import FromNode
from shoal.core.rounds import owner_of
from shoal.core.world import World
from shoal.wire.local import SERVING, Attached, CheckpointWord, DataWord, FromProcess, Report
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
    PSSaid,
    PSTold,
    Welcome,
)

EXIT_FAILED = 1
EXIT_NOT_FOUND = 127
TF_CONFIG = "TF_CONFIG"
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


def _stand_in(settings: AgentSettings) -> StandIn | None:
    name = parsed(settings.node or "")
    if not settings.tf_workers or name is None:
        return None
    return StandIn(name[0], seat=settings.seat, servers=settings.tf_servers, workers=settings.tf_workers)


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
        self._stand_in = _stand_in(settings)
        self._launch_due = False
        """The stand-in's process is to be started as soon as its address is free."""
        self._told_in_use = False
        self._node = core.a_node(
            name=settings.node or "",
            incarnation=settings.incarnation,
            slots=settings.slots,
            plain_grace=settings.plain_grace,
            joined=settings.node is None,
            on_word=self._stand_in is not None,
            serves=settings.node is None and settings.role == Role.PS,
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
        self._spare = Spare(guard=guard, note=self.note, ended=lambda: self._process_ended.set())
        self._spare_due = False
        self._saver = Saver(
            settings.checkpoint,
            home=memory,
            tell=lambda local_rank, answer: self._server.tell((local_rank,), answer),
            note=self.note,
        )
        self._replicas = Replicas(self._saver, token=settings.token, address=settings.address, note=self.note)
        self._desk = Desk()
        self._data_scheduled = False
        self._voices = Voices()
        self._watch = Watch(stopped_after=settings.stopped_after, silent_after=settings.silent_after)
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
                keepers = (self._keep_link, self._beat, self._keep_from_freezing, self._keep_launching)
                background = [tasks.create_task(each()) for each in keepers]
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
        self._spare.close()
        for process in self._processes.values():
            process.kill()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._settings.overdue):
                while self._processes or self._store.is_hosting or self._spare.is_there:
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
            role=settings.role if node.serves and not node.name else "",
        )

    @property
    def patience(self) -> float:
        settings = self._settings.reconnect
        return min(settings.master_timeout, settings.going_timeout) if self._node.going else settings.master_timeout

    def welcomed(self, welcome: Welcome) -> None:
        self._welcome = welcome
        self._saver.told(welcome.checkpoint)
        if welcome.checkpoint.replica:
            self._replicas.start()
        self._welcome_came.set()
        if self._settings.command or welcome.command:
            if self._stand_in is not None:
                self._voices.said(0, self._stand_in.standing)
            self._happen(lambda n: core.welcomed(n, welcome))
            self._desk.reconnected()
            for word in self._voices.again:
                self._link.send(PSSaid(incarnation=self._node.incarnation, word=word))
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
            case PSTold(word=word) if self._stand_in is not None:
                self._act(self._stand_in.told(word))
                return
            case PSTold(word=word):
                self._server.tell(self._voices.listeners, word)
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
        if not self._node.slots[local_rank].attached:
            return  # the last words of a process that has ended
        if isinstance(message, FromNode):
            self._voices.said(local_rank, message)
            self._link.send(PSSaid(incarnation=self._node.incarnation, word=message))
            return
        if isinstance(message, Report) and message.busy == SERVING:
            self._watch.heard(local_rank, asyncio.get_running_loop().time())
            self._want_spare(local_rank)
        self._happen(lambda n: core.said(n, local_rank, message))

    def process_detached(self, local_rank: int) -> None:
        self._voices.gone(local_rank)
        self._watch.gone(local_rank)
        self._saver.process_gone(local_rank)
        self._happen(lambda n: core.detached(n, local_rank))

    # In the name of a process that only reads TF_CONFIG ----------------------------------------------------

    def _act(self, acts: tuple[Act, ...]) -> None:
        for act in acts:
            match act:
                case Say(word=word):
                    self._voices.said(0, word)
                    self._link.send(PSSaid(incarnation=self._node.incarnation, word=word))
                case Launch():
                    self._launch_due = True  # `_keep_launching` sees it
                case Halt():
                    self._launch_due = False
                    self._happen(core.halted)
                case _:
                    assert_never(act)

    async def _keep_launching(self) -> None:
        """A server's process is due whenever it has none, a worker's when it was told to go."""
        stand_in = self._stand_in
        while stand_in is not None:
            await asyncio.sleep(FREE_SECONDS)
            is_idle = all(slot.phase is core.Phase.IDLE for slot in self._node.slots)
            self._launch_due |= stand_in.is_server and self._node.welcomed and is_idle
            if self._launch_due:
                self._launch_if(await asyncio.to_thread(is_free, stand_in.address), stand_in.address)

    def _launch_if(self, free: bool, address: str) -> None:
        """Start the process that is due, unless somebody has its address: who had it before may still be there."""
        if not self._launch_due:
            return  # it was told to stop meanwhile
        if free:
            self._launch_due = self._told_in_use = False
            self._happen(core.launched)
        elif not self._told_in_use:
            self._told_in_use = True
            self.note(f"{address} is in use, or does not lead here yet: the process starts when it is free")

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
            case core.Halted() if self._stand_in is not None:
                self._act(self._stand_in.halted())
            case core.Renewed() if self._stand_in is not None:
                self._launch_due = False
                self._act(self._stand_in.renewed())
            case core.Halted() | core.Renewed():
                pass  # nobody speaks for them
            case core.End():
                self._over.set_result(effect)
            case _:
                assert_never(effect)

    def _start(self, local_rank: int, effect: core.StartProcesses) -> None:
        settings = self._settings
        logs = self._log_directory(local_rank)
        error_file = (logs or self._directory) / ("error.json" if logs else f"error-{local_rank}.json")
        error_file.unlink(missing_ok=True)
        variables = self._variables(local_rank, effect.world, effect.store, error_file)
        command = self._command

        def outputs(stream: str) -> Route:
            return self._outputs(local_rank, stream, logs)

        def ended(process: Process, code: int) -> None:
            self._ended(local_rank, process, code, error_file)

        try:
            process = self._spare.taken(variables, outputs=outputs, ended=ended) or Process(
                arguments(command, local_rank),
                guard=self._guard,
                environment=variables,
                working_dir=settings.working_dir,
                outputs=outputs,
                ended=ended,
            )
        except OSError as exc:
            self._not_started(local_rank, command, exc)
            return
        self._processes[local_rank] = process
        self._happen(lambda n: core.started(n, local_rank, process.pid))

    @property
    def _command(self) -> tuple[str, ...]:
        assert self._welcome is not None
        return self._settings.command or self._welcome.command

    def _variables(
        self, local_rank: int, world: World | None, store: Mapping[str, bytes], error_file: Path
    ) -> dict[str, str]:
        settings, node = self._settings, self._node
        assert self._welcome is not None
        variables = environment(
            settings,
            node=node.name,
            incarnation=node.incarnation,
            local_rank=local_rank,
            max_restarts=self._welcome.max_restarts if settings.max_restarts is None else settings.max_restarts,
            socket=self._server.path,
            error_file=error_file,
            world=world,
            store=store,
            checkpoint=self._welcome.checkpoint,
        )
        if self._stand_in is not None:
            variables[TF_CONFIG] = self._stand_in.tf_config()
        return variables

    def _want_spare(self, local_rank: int) -> None:
        """A parameter server serves: soon another process of it is to wait beside it."""
        after, spare = self._settings.spare_after, self._spare
        if after is not None and not self._spare_due and not spare.is_there and not spare.is_given_up:
            self._spare_due = True
            self._later("spare", after, lambda: self._start_spare(local_rank))

    def _start_spare(self, local_rank: int) -> None:
        self._spare_due = False
        if local_rank not in self._processes or self._node.ending is not None or self._spare.is_there:
            return  # the next one that serves asks again
        variables = self._variables(local_rank, None, {}, self._directory / "error-spare.json")
        try:
            self._spare.start(
                arguments(self._command, local_rank), environment=variables, working_dir=self._settings.working_dir
            )
        except OSError as exc:
            self.note(f"cannot start a spare process of {self._command[0]}: {exc}")

    def _not_started(self, local_rank: int, command: tuple[str, ...], exc: OSError) -> None:
        error = f"cannot start {command[0]}: {exc.strerror} ({exc.filename})"
        self.note(error)
        exit = ProcessExit(code=EXIT_NOT_FOUND, error=error)
        self._happen(lambda n: core.ended(n, local_rank, exit))

    def _ended(self, local_rank: int, process: Process, code: int, error_file: Path) -> None:
        del self._processes[local_rank]
        self._server.drop(local_rank)
        self._watch.gone(local_rank)
        if self._stand_in is None:
            self._voices.gone(local_rank)
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

    async def _keep_from_freezing(self) -> None:
        """End processes that speak of parameter servers and stand still. They are not asked for their stacks: who is
        stopped does not answer."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            spoken = {rank: self._processes[rank] for rank in self._voices.listeners if rank in self._processes}
            stopped = [rank for rank, process in spoken.items() if is_stopped(process.pid)]
            for rank, why in self._watch.look(stopped, asyncio.get_running_loop().time()).items():
                self._watch.gone(rank)
                self._kill(core.KillProcesses((rank,), (), f"it is frozen: {why}"))

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
