"""A simulated cluster around the real job core: one master, agents with their training processes, and a platform.

The master is the shell that the real one is: events in, effects out, nothing decided. The nodes stand in `agents`. The
platform starts them after a while and says when one has ended.

The master may die: between two events, after it has recorded a decision and before it acts, or before it has recorded
it. Another one takes over with what was recorded, while everything else goes on.

What it records in may be away for a while: the master acts all the same, and when it dies before the next record the
one after it knows nothing of what it did. Nobody can take over as long as that lasts.
"""

import random
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import assert_never

from shoal.core import job as jobs
from shoal.core import journal
from shoal.core.exits import ProcessExit
from shoal.core.job.values import (
    Announced,
    Command,
    Effect,
    End,
    Event,
    Fence,
    HeartbeatSeen,
    Job,
    JobSettings,
    JobSpec,
    NodeExited,
    NodesAnnounced,
    Scale,
    Tell,
    Ticked,
)
from shoal.core.nodes import Node, NodeId
from shoal.core.world import Commit, Prepare, Release, World
from shoal.sim.agents import SLOWEST_MESSAGE, Agent
from shoal.sim.clock import EPOCH, VirtualClock
from shoal.sim.training import Group, Pace, Violation

Handle = Callable[[Job, Event, datetime], tuple[Job, tuple[Effect, ...]]]

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

    def keep_statistics(self, packed: bytes) -> None:
        """The job with what it has measured, in its records too."""
        self.job = replace(self.job, statistics=packed)
        self._record()

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
