"""A simulated node: an agent that does what `shoal.agent` does, with its training processes.

It merges what its processes say, starts dead ones again when told, and keeps quiet about an incarnation that is over.
It speaks to the cluster's master over links that take their time, and keeps what it has to say while there is none.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, assert_never

from shoal.core import job as jobs
from shoal.core.exits import ProcessExit
from shoal.core.job.handle import Admitted
from shoal.core.job.values import (
    AgentDisconnected,
    AgentJoined,
    Command,
    DataAnswered,
    DataWoken,
    DumpStacks,
    Event,
    HeartbeatSeen,
    KillProcesses,
    LeaveNode,
    NodeAcked,
    NodeExited,
    NodeFinished,
    NodeLeft,
    NodeReady,
    NodeSucceeded,
    PeerLost,
    ProcessExited,
    RestartNode,
    SayWord,
    StepGained,
    StopNode,
)
from shoal.core.nodes import NodeId, ProcessSeen
from shoal.core.world import Commit, Dismiss, Interrupt, Pause, Prepare, Release, World
from shoal.sim.clock import Link
from shoal.sim.training import Phase, Process, Violation

if TYPE_CHECKING:
    from shoal.sim.cluster import Cluster

SLOWEST_MESSAGE = 8_000


class Agent:
    """One node: the agent and its training processes."""

    def __init__(self, cluster: "Cluster", node: NodeId, seat: int) -> None:
        self.cluster = cluster
        self.node = node
        self.seat = seat
        self.incarnation = 1
        self.alive = True
        self.exit_code = 0
        self.frozen = False
        self.sdk = False
        self.generation = 0
        """The committed world it is in."""
        self.prepared = 0
        """The newest generation it was told of."""
        self._heard_of: World | None = None
        self._pending = False
        """It has not heard how that one went on."""
        self.processes: dict[int, Process] = {}
        self.started = 0
        self.up = self._link()
        self.down = self._link()
        self.connected = False
        self.severed = False
        """Its master died, and the next one has not heard of it: it has no socket to tell it anything."""
        self._backlog: list[Callable[[], None]] = []
        self._ready: set[Process] = set()
        self._acked: dict[int, set[Process]] = {}
        self._finished: set[Process] = set()
        self._ended: dict[int, int] = {}
        """Local rank and exit code of processes that nobody has started again."""
        self._leaving = False
        self._restarting = False
        """A process died; until the master says so, nothing is said for the incarnation that ended with it."""

    def _link(self) -> Link:
        return Link(self.cluster.clock, self.cluster.chance, slowest=SLOWEST_MESSAGE)

    def doing(self, event: Callable[[], None]) -> Callable[[], None]:
        def run() -> None:
            if not self.alive:
                return
            if self.frozen:
                self._backlog.append(run)
            else:
                event()

        return run

    def say(self, event: Event) -> None:
        self.up.send(lambda: self.cluster.happen(event))

    # Coming and going

    def connect(self) -> None:
        """Shake hands, and say again what may not have arrived."""
        self.connected = True
        self.up, self.down = self._link(), self._link()
        self.up.send(self._admitted)

    def _admitted(self) -> None:
        cluster = self.cluster
        if cluster.over:
            return
        if cluster.down:
            self.connected = False
            self._reconnect(100_000)
            return
        self.severed = False
        cluster.job, answer = jobs.admit(cluster.job, self.node, self.incarnation, cluster.clock.now())
        if not isinstance(answer, Admitted):
            self.down.send(self.doing(lambda: self.end(1)))
            return
        sdk = cluster.job.sdk
        self.down.send(self.doing(lambda: self._welcome(sdk)))
        cluster.happen(
            AgentJoined(
                node=self.node,
                incarnation=self.incarnation,
                generation=self.generation,
                prepared=self.prepared,
                sdk=self.sdk,
                pid=1,
                host="sim",
                address=f"{self.node}:1",
            )
        )

    def _welcome(self, sdk: bool) -> None:
        first = not self.processes and not self.generation
        self.sdk = self.sdk or sdk
        if first and self.sdk:
            self._start_processes()
        elif first:
            self._say_ready_plain()
        else:
            self._say_again()
        self._heartbeat()

    def _say_again(self) -> None:
        for local_rank, code in sorted(self._ended.items()):
            if code != 0:
                self._say_exited(local_rank, code)
        if not self._pending:
            self._maybe_ready()
        elif len(self._acked.get(self.prepared, ())) == self.cluster.job.spec.nproc:
            self._say_acked(self.prepared)
        self._maybe_finished()

    def cut(self) -> None:
        """The connection to the master breaks; what is on its way is lost. It reconnects a moment later."""
        if not self.connected or not self.alive:
            return
        self.connected = False
        self.up.open = self.down.open = False
        cluster = self.cluster
        cluster.clock.after(
            cluster.chance.randrange(1, SLOWEST_MESSAGE), lambda: cluster.happen(AgentDisconnected(node=self.node))
        )
        self._reconnect(cluster.chance.randrange(SLOWEST_MESSAGE, 500_000))

    def sever(self, outage: int) -> None:
        """The master is gone, and with it what was on its way."""
        self.severed = True
        if not self.connected or not self.alive:
            return
        self.connected = False
        self.up.open = self.down.open = False
        self._reconnect(outage + self.cluster.chance.randrange(1, 500_000))

    def _reconnect(self, delay: int) -> None:
        self.cluster.clock.after(delay, self.doing(lambda: self.connect() if not self.connected else None))

    def fenced(self) -> None:
        self.up.open = self.down.open = False
        self.cluster.clock.after(1, self.doing(lambda: self.end(1)))

    def end(self, code: int) -> None:
        """The agent and all that it started are gone."""
        if not self.alive:
            return
        self.alive = False
        self.exit_code = code
        self.up.open = False
        for process in list(self.processes.values()):
            process.die(137)
        delay = self.cluster.chance.randrange(1, SLOWEST_MESSAGE)
        exit = ProcessExit(code=code)
        self.cluster.clock.after(delay, lambda: self.cluster.happen(AgentDisconnected(node=self.node)))
        self.cluster.clock.after(delay + 1, lambda: self.cluster.happen(NodeExited(node=self.node, exit=exit)))

    def freeze(self) -> None:
        self.frozen = True
        for process in self.processes.values():
            process.frozen = True

    def thaw(self) -> None:
        self.frozen = False
        backlog, self._backlog = self._backlog, []
        for event in backlog:
            event()
        for process in list(self.processes.values()):
            process.thaw()

    def _heartbeat(self) -> None:
        if self.connected and not self.cluster.over:
            processes = tuple(
                ProcessSeen(
                    local_rank=p.slot,
                    pid=1,
                    stopped=p.frozen,
                    cpu=0.0,
                    memory_bytes=0,
                    step=p.state.step if p.state else None,
                    collectives=p.collectives,
                    busy=None,
                )
                for p in self.processes.values()
                if p.phase is not Phase.GONE
            )
            self.say(HeartbeatSeen(node=self.node, incarnation=self.incarnation, processes=processes))
            link = self.up
            self.cluster.clock.after(
                2_000_000, self.doing(lambda: self._heartbeat() if self.up is link and self.up.open else None)
            )

    # What the master tells it

    def hear(self, command: Command) -> None:
        match command:
            case Prepare(world=world):
                self._prepare(world)
            case Commit(world=world):
                self._commit(world)
            case Pause(generation=generation):
                self._leave_world(generation, lambda p: p.pause(generation))
            case Interrupt(generation=generation):
                self._leave_world(generation, lambda p: p.interrupt(generation))
            case Release(generation=generation):
                for process in self._live() if not self._restarting else ():
                    process.release(generation)
            case RestartNode(incarnation=incarnation, sdk=sdk):
                self._restart(incarnation, sdk)
            case KillProcesses(incarnation=incarnation, local_ranks=ranks):
                if incarnation == self.incarnation:
                    for process in [p for p in self._live() if p.slot in ranks]:
                        process.die(137)
            case LeaveNode():
                self._stop(NodeLeft(node=self.node))
            case StopNode():
                self._stop(None)
            case DumpStacks() | Dismiss() | DataAnswered() | DataWoken() | SayWord():
                pass
            case _:
                assert_never(command)

    def _live(self) -> list[Process]:
        return [p for p in self.processes.values() if p.phase is not Phase.GONE]

    def _prepare(self, world: World) -> None:
        member = world.member(self.node)
        if member is None:
            raise Violation(f"{self.node} is not in the world it is told to prepare: {world}")
        if member.incarnation != self.incarnation or self._restarting:
            return  # said before the master knew that a process died here
        if world.generation <= self.prepared and world != self._heard_of:
            raise Violation(f"{self.node} was told to prepare {self._heard_of} and is told to prepare {world}")
        self.prepared, self._heard_of = world.generation, world
        if not self.sdk:
            self.say(NodeAcked(node=self.node, incarnation=self.incarnation, generation=world.generation, store={}))
            return
        self._pending = True
        group = self.cluster.groups[world]
        for process in self._live():
            process.prepare(world, member.base_rank + process.slot, group)

    def _commit(self, world: World) -> None:
        if self._restarting:
            return
        generation = self.generation = world.generation
        self._pending = False
        if not self.sdk:
            self._start_processes()
            return
        self._ready.clear()
        self._finished.clear()
        for process in self._live():
            process.commit(generation)

    def _leave_world(self, generation: int, do: Callable[[Process], None]) -> None:
        if generation > self.generation:
            self._pending = False  # it never heard of its commit: it is enough to wait for the next
            self._maybe_ready() if self.sdk else self._say_ready_plain()
        elif self.sdk:
            for process in self._live():
                do(process)
        elif generation == self.generation:
            self.generation = 0
            self._forget_processes()
            self._say_ready_plain()

    def _restart(self, incarnation: int, sdk: bool) -> None:
        if incarnation < self.incarnation:
            return
        self.incarnation = incarnation
        self._restarting = self._pending = False
        self.generation = 0
        self.sdk = self.sdk or sdk
        self._acked.clear()
        self._finished.clear()
        self._ended.clear()
        if self.sdk:
            self._start_processes()
            self._maybe_ready()
        else:
            self._forget_processes()
            self._say_ready_plain()

    def _stop(self, last_word: Event | None) -> None:
        self._leaving = True
        for process in self._live():
            process.die(143)
        if last_word is not None:
            self.say(last_word)
        self.cluster.clock.after(2 * SLOWEST_MESSAGE, self.doing(lambda: self.end(0)))

    def _forget_processes(self) -> None:
        """Plain scripts do not live through a change of world."""
        for process in self._live():
            process.phase = Phase.GONE
        self.processes.clear()

    def _start_processes(self) -> None:
        cluster = self.cluster
        for slot in range(cluster.job.spec.nproc):
            old = self.processes.get(slot)
            if old is None or old.phase is Phase.GONE:
                self.started += 1
                name = f"{self.node}/{slot}#{self.started}"
                self.processes[slot] = Process(
                    self, name, slot, cluster.total, cluster.clock, cluster.chance, cluster.pace
                )

    # What its processes tell it

    def _say_ready_plain(self) -> None:
        steps = (None,) * self.cluster.job.spec.nproc
        self.say(NodeReady(node=self.node, incarnation=self.incarnation, steps=steps, sdk=False))

    def process_ready(self, process: Process) -> None:
        self.sdk = True
        self._ready.add(process)
        self._maybe_ready()

    def _maybe_ready(self) -> None:
        live = self._live()
        if self._restarting or len(live) < self.cluster.job.spec.nproc:
            return
        if all(p in self._ready and p.phase is Phase.WAITING for p in live):
            self.generation = 0
            self._pending = False
            steps = tuple(p.state.step if p.state else None for p in live)
            self.say(NodeReady(node=self.node, incarnation=self.incarnation, steps=steps, sdk=True))

    def process_acked(self, process: Process, generation: int) -> None:
        acked = self._acked.setdefault(generation, set())
        acked.add(process)
        if len(acked) == self.cluster.job.spec.nproc and not self._restarting:
            self._say_acked(generation)
            if self.cluster.chance.random() < 0.05:
                self._say_acked(generation)

    def _say_acked(self, generation: int) -> None:
        event = NodeAcked(node=self.node, incarnation=self.incarnation, generation=generation, store={self.node: b"x"})
        self.say(event)

    def process_finished(self, process: Process, generation: int) -> None:
        self._finished.add(process)
        self._maybe_finished()

    def _maybe_finished(self) -> None:
        live = self._live()
        if live and all(p in self._finished and p.phase is Phase.FINISHED for p in live) and not self._restarting:
            self.say(NodeFinished(node=self.node, incarnation=self.incarnation, generation=self.generation))

    def process_gained(self, process: Process, generation: int, step: int) -> None:
        self.cluster.gained(generation, step)
        if process.rank == 0:
            self.say(
                StepGained(
                    node=self.node,
                    incarnation=self.incarnation,
                    generation=generation,
                    step=step,
                    samples=None,
                    metrics={},
                )
            )

    def process_lost_peer(self, process: Process, generation: int) -> None:
        self.say(
            PeerLost(node=self.node, incarnation=self.incarnation, generation=generation, detail="connection closed")
        )

    def process_exited(self, process: Process, code: int) -> None:
        self.cluster.note("exit", process, code)
        if not self.alive or self._leaving:
            return
        self._ended[process.slot] = code
        if code == 0:
            if len(self._ended) == self.cluster.job.spec.nproc:
                self.say(NodeSucceeded(node=self.node, incarnation=self.incarnation))
                self.cluster.clock.after(2 * SLOWEST_MESSAGE, self.doing(lambda: self.end(0)))
            return
        self._restarting = True
        self._say_exited(process.slot, code)
        for other in self._live():
            other.interrupt(None)

    def _say_exited(self, local_rank: int, code: int) -> None:
        self.say(
            ProcessExited(
                node=self.node,
                incarnation=self.incarnation,
                local_rank=local_rank,
                exit=ProcessExit(code=code, uptime_seconds=120.0),
            )
        )
