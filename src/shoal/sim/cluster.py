"""A simulated cluster around the real job core: one master, agents with their training processes, and a platform.

The master is the shell that the real one is: events in, effects out, nothing decided. Agents do what `shoal.agent`
does: they merge what their processes say, start dead processes again when told, and keep quiet about an incarnation
that is over. The platform starts nodes after a while and says when one has ended.

The master may die: between two events, after it has recorded a decision and before it acts, or before it has recorded
it. Another one takes over with what was recorded, while everything else goes on.

What it records in may be away for a while: the master acts all the same, and when it dies before the next record the
one after it knows nothing of what it did. Nobody can take over as long as that lasts.
"""

import random
from collections.abc import Callable
from datetime import datetime, timedelta
from enum import StrEnum
from typing import assert_never

from shoal.core import job as jobs
from shoal.core import journal
from shoal.core.exits import ProcessExit
from shoal.core.job.handle import Admitted
from shoal.core.job.values import (
    AgentDisconnected,
    AgentJoined,
    Announced,
    Command,
    DataAnswered,
    DataWoken,
    DumpStacks,
    Effect,
    End,
    Event,
    Fence,
    HeartbeatSeen,
    Job,
    JobSettings,
    JobSpec,
    KillProcesses,
    LeaveNode,
    NodeAcked,
    NodeExited,
    NodeFinished,
    NodeLeft,
    NodeReady,
    NodesAnnounced,
    NodeSucceeded,
    PeerLost,
    ProcessExited,
    RestartNode,
    Scale,
    StepGained,
    StopNode,
    Tell,
    Ticked,
)
from shoal.core.nodes import Node, NodeId, ProcessSeen
from shoal.core.world import Commit, Dismiss, Interrupt, Pause, Prepare, Release, World
from shoal.sim.clock import EPOCH, Link, VirtualClock
from shoal.sim.training import Group, Pace, Phase, Process, Violation

Handle = Callable[[Job, Event, datetime], tuple[Job, tuple[Effect, ...]]]

SLOWEST_MESSAGE = 8_000
SLOWEST_LAUNCH = 400_000
TICK = 1_000_000
"""The master looks for silence and hangs once a second."""


class Crash(StrEnum):
    """Where a master dies."""

    IDLE = "between two events"
    UNACTED = "after it recorded a decision, before it acts"
    UNRECORDED = "before it recorded a decision"


class Cluster:
    """Everything that runs, and the account of what happened."""

    def __init__(
        self,
        spec: JobSpec,
        settings: JobSettings,
        *,
        nodes: int,
        total: int,
        chance: random.Random,
        trace: Callable[[str], None] | None = None,
        handle: Handle = jobs.handle,
    ) -> None:
        self.clock = VirtualClock()
        self.chance = chance
        self.pace = Pace()
        self.total = total
        self.trace = trace
        self.over = False
        self.down = False
        """There is no master."""
        self.failovers = 0
        self.is_away = False
        """Nothing can be recorded."""
        self._away_until = 0
        self._held: list[Effect] = []
        """What is done when it is recorded, and not before."""
        self._crash: Crash | None = None
        self.agents: dict[NodeId, Agent] = {}
        self.groups: dict[World, Group] = {}
        """By world: two masters may use a number for two worlds, as long as no agent hears of both."""
        self._newest = 0
        """The newest generation that this master has prepared."""
        self.losses = 0
        """Kills, crashes, freezes and cut connections since the last world."""
        self.late_losses = 0
        """Those before it: the last world may have been committed before anybody knew."""
        self.highest = 0
        """The newest step that anybody committed, less what was lost with the dead."""
        self.highest_in = 0
        """The generation it was committed in."""
        self.lost_steps = 0
        self.worlds = 0
        self.released: int | None = None
        """The generation in which training finished."""
        self._handle = handle
        self._ticking: int | None = None
        self.job, effects = jobs.new_job(spec, settings, nodes=nodes, now=self.clock.now())
        self.recorded = self.job
        self._carry_out(effects)
        self._tick_later()

    # The master

    def happen(self, event: Event) -> None:
        if self.over or self.down:
            return
        if not isinstance(event, Ticked | HeartbeatSeen):
            self.note("event", event)
        crash = self._crash if not isinstance(event, Ticked | HeartbeatSeen) else None
        if crash is Crash.UNRECORDED:
            self._die()
            return
        self.job, effects = self._handle(self.job, event, self.clock.now())
        self._record()
        if crash is Crash.UNACTED:
            self._die()
            return
        self._carry_out(effects)
        self._wake_up()

    def _record(self) -> None:
        if not self.is_away:
            self.recorded = self.job

    def lose_store(self, micros: int) -> None:
        """Nothing can be recorded for so long."""
        self.is_away = True
        self._away_until = max(self._away_until, self.clock.micros + micros)
        self.clock.at(self._away_until, self._store_is_back)

    def _store_is_back(self) -> None:
        if not self.is_away or self.clock.micros < self._away_until:
            return
        self.note("the store is back")
        self.is_away = False
        if not self.down and not self.over:
            self._record()
            held, self._held = self._held, []
            self._carry_out(tuple(held))

    def crash_master(self, how: Crash) -> None:
        """The master dies now, or with what happens next."""
        if how is Crash.IDLE:
            self._die()
        else:
            self._crash = how

    def _die(self) -> None:
        if self.down or self.over:
            return
        self.note("the master dies", self._crash or Crash.IDLE)
        self.down, self._crash, self._held = True, None, []
        self.failovers += 1
        outage = self.chance.choice([1_000, 300_000, 2_000_000])
        for agent in self.agents.values():
            agent.sever(outage)
        self.clock.after(outage, self._take_over)

    def _take_over(self) -> None:
        """Another master, with the records and what the platform says."""
        if self.is_away:
            self.clock.at(self._away_until + 1, self._take_over)
            return
        job = journal.replay([journal.snapshot(self.recorded)])
        assert job is not None
        self.down, self._newest = False, 0
        self.job = jobs.taken_over(job, self.clock.now(), reason="another master took over")
        self.note("another master takes over")
        self._record()
        if self.job.ended is not None:
            self.over = True
            return
        self.job = jobs.named(self.job, self.agents)
        there = tuple(Announced(node=n, seat=agent.seat) for n, agent in self.agents.items() if agent.alive)
        self.happen(NodesAnnounced(nodes=there))
        for node, agent in list(self.agents.items()):
            if not agent.alive and not self.down:
                self.happen(NodeExited(node=node, exit=ProcessExit(code=agent.exit_code)))
        if self.down or self.over:
            return  # this one did not live long
        running = [node for node, agent in self.agents.items() if agent.alive]
        found = jobs.reconcile(self.job, running, reason="reconcile")
        if found.gone:
            raise Violation(f"nodes that ran and that nobody started: {found.gone}")
        self._carry_out((Scale(plan=found.plan),))
        self._wake_up()

    def _carry_out(self, effects: tuple[Effect, ...]) -> None:
        for effect in effects:
            if self.is_away and jobs.waits_for_record(effect):
                self._held.append(effect)
                continue
            match effect:
                case Tell(to=to, what=what):
                    self.note("tell", ",".join(to), what)
                    self._look_at(what)
                    for node in to:
                        self._tell(node, what)
                case Fence(node=node):
                    self.note("fence", node)
                    if node in self.agents:
                        self.agents[node].fenced()
                case Scale(plan=plan):
                    for launched in plan.launch_nodes:
                        self.note("launch", launched.id)
                        self._launch(launched)
                    for removed in plan.remove_nodes:
                        self._remove(removed.id)
                case End():
                    self.note("end", self.job.phase, self.job.reason)
                    self.over = True
                case _:
                    assert_never(effect)

    def _tell(self, node: NodeId, command: Command) -> None:
        agent = self.agents.get(node)
        if agent is not None and not agent.severed:
            agent.down.send(agent.doing(lambda: agent.hear(command)))

    def _launch(self, node: Node) -> None:
        if node.id in self.agents:
            if self.agents[node.id].seat != node.seat:
                raise Violation(f"two nodes are {node.id}")
            return  # asked for again by a master that took over
        agent = Agent(self, node.id, node.seat)
        self.agents[node.id] = agent
        self.clock.after(self.chance.randrange(1, SLOWEST_LAUNCH), agent.doing(agent.connect))

    def _remove(self, node: NodeId) -> None:
        agent = self.agents.get(node)
        if agent is not None:
            self.clock.after(SLOWEST_MESSAGE, lambda: agent.end(137))

    def _wake_up(self) -> None:
        due = jobs.deadline(self.job)
        if due is not None and not self.over:
            at = max(self.clock.micros + 1, (due - EPOCH) // timedelta(microseconds=1))
            if self._ticking != at:
                self._ticking = at
                self.clock.at(at, lambda: self.happen(Ticked()) if self._ticking == at else None)

    def _tick_later(self) -> None:
        self.clock.after(TICK, self._tick)

    def _tick(self) -> None:
        if not self.over:
            self.happen(Ticked())
            self._tick_later()

    def note(self, *what: object) -> None:
        if self.trace is not None:
            self.trace(f"{self.clock.micros / 1e6:11.6f}  {'  '.join(str(w) for w in what)}")

    # The account

    def _look_at(self, command: Command) -> None:
        match command:
            case Prepare(world=world):
                self._prepared(world)
            case Commit(world=world):
                self._committed(world)
            case Release(generation=generation):
                self.released = generation
            case _:
                pass

    def _prepared(self, world: World) -> None:
        if world in self.groups:
            return  # told again to one that reconnected
        if self.released is not None:
            raise Violation(f"generation {world.generation} comes after {self.released}, in which training finished")
        if world.generation <= self._newest:
            raise Violation(f"generation {world.generation} comes after {self._newest}, and is another: {world}")
        self._newest = world.generation
        ranks = [rank for m in world.members for rank in range(m.base_rank, m.base_rank + m.slots)]
        if ranks != list(range(world.size)):
            raise Violation(f"generation {world.generation} has ranks {ranks}")
        self.groups[world] = Group(world, self.clock, self.chance, self.pace)

    def _committed(self, world: World) -> None:
        """No step is lost but with the dead, and then one."""
        self.worlds += 1
        for member in world.members:
            agent = self.agents[member.node]
            if agent.incarnation != member.incarnation:
                raise Violation(f"{member.node} is {agent.incarnation}, world {world.generation} has {member}")
        lost = self.highest - (world.step or 0)
        survivors = [p for m in world.members for p in self.agents[m.node].processes.values() if p.state is not None]
        losses = self.losses + self.late_losses
        allowed = min(1, losses)
        if losses and not any(p.synced >= self.highest_in for p in survivors):
            allowed = self.highest  # whoever had the state is dead: there is no checkpoint in this simulation
        if lost > allowed:
            raise Violation(f"world {world.generation} loses {lost} steps after {losses} losses")
        self.lost_steps += max(0, lost)
        self.highest = world.step or 0
        self.losses, self.late_losses = 0, self.losses

    def gained(self, generation: int, step: int) -> None:
        if step > self.highest:
            self.highest, self.highest_in = step, generation


class Agent:
    """One node: the agent and its training processes."""

    def __init__(self, cluster: Cluster, node: NodeId, seat: int) -> None:
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
            case DumpStacks() | Dismiss() | DataAnswered() | DataWoken():
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
