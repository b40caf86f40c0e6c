"""The one door: an event comes in, the next job and what to do come out.

Events of nodes that are not live, or that speak for an earlier incarnation, change nothing: they are late.
"""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import assert_never

from shoal.core import ledger, world
from shoal.core.exits import ExitCause, ProcessExit, cause_of, describe
from shoal.core.job import data, ending, failures, forgetting, members, plans, servers, sizing, standstill
from shoal.core.job.respecify import difference, respecified, world_settings
from shoal.core.job.turn import Turn
from shoal.core.job.values import (
    KEPT_SPEED,
    AgentDisconnected,
    AgentJoined,
    CountPinned,
    DataAsked,
    Effect,
    End,
    Event,
    Gain,
    HeartbeatSeen,
    Job,
    JobSettings,
    JobSpec,
    LeaveNode,
    NodeAcked,
    NodeEvent,
    NodeExited,
    NodeFinished,
    NodeGoing,
    NodeLeft,
    NodeReady,
    NodesAnnounced,
    NodeSucceeded,
    PeerLost,
    PlanAsked,
    ProcessExited,
    ResizeTold,
    ResourcePinned,
    RestartNode,
    Scale,
    ScaleAsked,
    Seen,
    ServersGranted,
    Sized,
    SpecChanged,
    StepGained,
    StopAsked,
    StopNode,
    Ticked,
    WordSaid,
)
from shoal.core.nodes import Node, NodeId, NodeStatus, Role
from shoal.core.plans import ScalePlan
from shoal.core.view import JobPhase
from shoal.core.world import Break, Pause, Prepare, Rendezvous, Standing

Turned = tuple[Job, tuple[Effect, ...]]


def new_job(spec: JobSpec, settings: JobSettings, *, nodes: int, awaited_joins: int = 0, now: datetime) -> Turned:
    """A job that launches `nodes` nodes, and in its first round also waits for so many that join by themselves."""
    return begun(fresh_job(spec, settings, now), nodes=nodes, awaited_joins=awaited_joins, now=now)


def fresh_job(spec: JobSpec, settings: JobSettings, now: datetime) -> Job:
    """A job that has no nodes yet."""
    return Job(
        spec=spec,
        settings=settings,
        target=0,
        phase=JobPhase.STARTING,
        reason="the job starts",
        started=now,
        rendezvous=Rendezvous(settings=world_settings(spec, settings)),
        gain=Gain(at=now),
        sizing=sizing.begins(platform_grows=spec.platform_grows),
        sdk=spec.ps is not None,  # its processes are started at once, and speak for themselves
    )


def begun(job: Job, *, nodes: int, awaited_joins: int, now: datetime) -> Turned:
    """Let a job without nodes begin with so many."""
    turn = Turn(replace(job, target=nodes + awaited_joins), now)
    servers.begin(turn)
    members.launch(turn, nodes, reason=job.reason)
    if job.spec.fills_grant or not job.spec.platform_grows:
        for role in ending.alone(job.spec):
            members.launch(turn, 1, role=role, reason=job.reason)
    for _ in range(awaited_joins):
        node = _add_external(turn, "it is expected to join by itself")
        turn.job = replace(turn.job, places=turn.job.places | {node.id})
    return turn.job, tuple(turn.effects)


# Agents at the door --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Admitted:
    node: NodeId
    incarnation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejected:
    reason: str


def admit(
    job: Job, node: NodeId | None, incarnation: int, now: datetime, *, role: Role = Role.WORKER
) -> tuple[Job, Admitted | Rejected]:
    """May this agent in? One without a name joins by itself, in this role, and is given one. The caller then sends
    `AgentJoined`.

    A member of a job that is ending may: it is told to stop, with the time that is left for it. So may one that speaks
    for a later incarnation than is known: the master that started it could not write it down (`AgentJoined` does).
    """
    known = job.nodes.get(node) if node is not None else None
    if job.ended is not None or (job.ending is not None and known is None):
        return job, Rejected(reason=f"job {job.spec.name} is ending: {job.reason}")
    if node is None and role is Role.PS:
        return _admit_server(job, now)
    if node is None:
        return _admit_newcomer(job, now)
    if known is None and forgetting.is_forgotten(job, node):
        return job, Rejected(reason=f"{node} is no longer of job {job.spec.name}: it ended long ago")
    if known is None:
        return job, Rejected(reason=f"job {job.spec.name} has no node {node}")
    if not known.is_live:
        return job, Rejected(reason=f"{node} is no longer of job {job.spec.name} ({known.status}: {known.reason})")
    return job, Admitted(node=node, incarnation=max(known.incarnation, incarnation))


def _admit_newcomer(job: Job, now: datetime) -> tuple[Job, Admitted | Rejected]:
    if job.places:
        node = min(job.places, key=lambda place: job.nodes[place].number)
        job = replace(job, places=job.places - {node})
        return job, Admitted(node=node, incarnation=job.nodes[node].incarnation)
    if len(members.staying(job)) >= job.spec.max_nodes:
        return job, Rejected(
            reason=f"job {job.spec.name} has all of its {job.spec.max_nodes} nodes; scale it down or raise its maximum"
        )
    turn = Turn(job, now)
    joined = _add_external(turn, "it joined by itself")
    turn.job = replace(turn.job, target=max(turn.job.target, len(members.staying(turn.job))))
    return turn.job, Admitted(node=joined.id, incarnation=joined.incarnation)


def _admit_server(job: Job, now: datetime) -> tuple[Job, Admitted | Rejected]:
    if job.spec.ps is None or not job.spec.ps.joins:
        return job, Rejected(reason=f"job {job.spec.name} has no parameter servers that join by themselves")
    turn = Turn(job, now)
    node = servers.place_for_newcomer(turn)
    return turn.job, Admitted(node=node.id, incarnation=node.incarnation)


def _add_external(turn: Turn, reason: str) -> Node:
    number = turn.job.next_number
    seat = members.free_seats(turn.job, Role.WORKER, 1)[0]
    node = Node(
        role=Role.WORKER,
        number=number,
        seat=seat,
        status=NodeStatus.PENDING,
        since=turn.now,
        reason=reason,
        external=True,
    )
    turn.put(node)
    turn.job = replace(turn.job, next_number=number + 1)
    if turn.job.servers is not None:
        return node
    awaited = turn.job.rendezvous.committed is None
    turn.follow(world.expect(turn.job.rendezvous, node.id, 1, awaited=awaited, now=turn.now))
    return node


# Events --------------------------------------------------------------------------------------------------


def handle(job: Job, event: Event, now: datetime) -> Turned:
    turn = Turn(job, now)
    if job.ended is None:
        _react(turn, event)
        for node, reason in turn.refused.items():
            failures.refuse(turn, node, reason)
        plans.settle(turn)
        data.nodes_changed(turn, job)
        data.reunited(turn)
        data.settled(turn)
        _settle(turn)
        if turn.job.target != job.target:
            turn.job = replace(turn.job, target_since=now)
    return turn.job, tuple(turn.effects)


def _react(turn: Turn, event: Event) -> None:
    match event:
        case Ticked(late=late, are_words_held=are_words_held):
            if are_words_held:
                servers.put_off(turn)
            _tick(turn, late)
        case ScaleAsked():
            sizing.scaled(turn, event)
            members.scale(turn, event)
        case Sized():
            sizing.sized(turn, event)
        case CountPinned():
            sizing.pinned(turn, event)
        case ResourcePinned():
            sizing.resource_pinned(turn, event)
        case PlanAsked():
            sizing.planned(turn, event)
            plans.follow(turn, event)
        case NodesAnnounced(nodes=nodes):
            members.adopt(turn, nodes)
        case ServersGranted():
            servers.granted(turn, event)
        case SpecChanged(spec=spec):
            _respecified(turn, spec)
        case StopAsked(reason=reason, grace=grace):
            failures.end(turn, JobPhase.STOPPED, reason, grace=grace)
        case _:
            node = turn.job.nodes.get(event.node)
            if node is not None and node.is_live:
                _react_to_node(turn, event, node)
            elif isinstance(event, NodeExited) and event.node in turn.job.unexplained:
                failures.explained(turn, event.node, event.exit)


def _respecified(turn: Turn, spec: JobSpec) -> None:
    """Those who wait may be enough now, or too few."""
    before = turn.job.spec
    turn.job = respecified(turn.job, spec)
    if turn.job.ending is None and turn.job.spec != before:
        turn.say(f"the job's spec has changed: {difference(before, turn.job.spec)}")
        sizing.given_anew(turn, before)
        turn.follow(world.ticked(turn.job.rendezvous, now=turn.now))


def _react_to_node(turn: Turn, event: NodeEvent, node: Node) -> None:
    r, now = turn.job.rendezvous, turn.now
    match event:
        case AgentJoined():
            _joined(turn, event, node)
        case AgentDisconnected():
            _disconnected(turn, node)
        case NodeExited(exit=exit):
            _node_exited(turn, node, exit)
        case NodeLeft():
            _left(turn, node)
        case NodeGoing():
            servers.going(turn, node)
        case HeartbeatSeen(incarnation=incarnation, processes=processes):
            data.heard_from(turn, node.id)
            seen = turn.job.seen.get(node.id)
            if seen is not None:
                current = processes if incarnation == node.incarnation else seen.processes
                turn.put_seen(node.id, replace(standstill.heard(seen, current), at=now))
        case ResizeTold():
            _resized(turn, event)
        case DataAsked():
            data.asked(turn, event)
            standstill.asked(turn, node.id)
        case _ if event.incarnation != node.incarnation:
            return
        case NodeReady():
            _ready(turn, event, node)
        case NodeAcked(generation=generation, store=store):
            turn.follow(world.acked(r, node.id, node.incarnation, generation, store=store, now=now))
        case NodeFinished(generation=generation):
            turn.follow(world.finished(r, node.id, node.incarnation, generation, now=now))
        case PeerLost():
            _peer_lost(turn, event)
        case ProcessExited(exit=exit) if turn.job.ending is None and exit.code != 0:
            failures.process_exited(turn, event)
        case ProcessExited():
            return
        case NodeSucceeded():
            _ended_well(turn, node, "its processes ended well")
        case StepGained():
            _gained(turn, event)
        case WordSaid():
            servers.said(turn, event, node)
        case _:
            assert_never(event)


def _joined(turn: Turn, event: AgentJoined, node: Node) -> None:
    """A first registration, or an agent that comes back to a job it is still a member of."""
    turn.put(replace(node, host=event.host))
    if node.status is NodeStatus.PENDING:
        turn.move(node.id, NodeStatus.RUNNING, "its agent registered")
    seen = turn.job.seen.get(node.id)
    processes = seen.processes if seen is not None else ()
    turn.put_seen(
        node.id,
        Seen(connected=True, at=turn.now, pid=event.pid, address=event.address, processes=processes),
    )
    if turn.job.ending is not None:
        grace, has_failed = _time_to_stop(turn.job, turn.now), turn.job.ending is JobPhase.FAILED
        turn.tell(StopNode(reason=turn.job.reason, grace=grace, has_failed=has_failed), node.id)
        return
    if event.incarnation < node.incarnation:
        turn.tell(RestartNode(incarnation=node.incarnation, sdk=turn.job.sdk, reason=node.reason), node.id)
    if turn.job.servers is not None:
        if event.incarnation > node.incarnation:
            turn.put(replace(turn.job.nodes[node.id], incarnation=event.incarnation))
            failures.drop_out(turn, node.id, event.incarnation, f"{node.id} restarted its processes")
        servers.joined(turn, turn.job.nodes[node.id])
        plans.has_come(turn, node.id)
        return
    if node.id not in turn.job.rendezvous.members:
        turn.tell(LeaveNode(reason=node.reason, grace=turn.job.settings.grace), node.id)
        return
    _learn(turn, event)
    r = turn.job.rendezvous
    member = r.members.get(node.id)
    if member is None:
        return  # it may go: it was to leave
    if r.pending is not None and member.standing in (Standing.PREPARED, Standing.ACKED):
        turn.tell(Prepare(r.pending), node.id)
    elif member.standing is Standing.ACTIVE and r.committed is not None:
        _catch_up(turn, node.id, event.generation)


def _learn(turn: Turn, event: AgentJoined) -> None:
    """Take over what this agent was told by a master that could not write it down, and was away since."""
    node, known = turn.job.nodes[event.node], turn.job.rendezvous.generation
    newest = max(event.generation, event.prepared)
    news = []
    if event.incarnation > node.incarnation:
        news.append(f"its processes are incarnation {event.incarnation}, not {node.incarnation}")
        reason = f"{node.id} restarted its processes"
        turn.put(replace(node, incarnation=event.incarnation))
        failures.drop_out(turn, node.id, event.incarnation, reason)
    if newest > known:
        news.append(f"it has heard of world {newest}, not only of {known}")
    if news:
        turn.say(f"{node.id} knows what was not written down: {'; '.join(news)}")
    back = world.returned(
        turn.job.rendezvous, node.id, generation=event.generation, prepared=event.prepared, now=turn.now
    )
    turn.follow(back)
    if event.sdk and not turn.job.sdk:
        _use_sdk(turn, node.id)  # not before a world of agents that was being formed is given up


def _time_to_stop(job: Job, now: datetime) -> timedelta:
    left = timedelta(0) if job.end_by is None else job.end_by - job.settings.end_slack - now
    return max(timedelta(0), left)


def _catch_up(turn: Turn, node: NodeId, generation: int) -> None:
    """Tell a member of the committed world what it missed while it was away, if it was not in another."""
    r = turn.job.rendezvous
    assert r.committed is not None
    current = r.committed.generation
    if generation != current:
        return
    if r.released:
        turn.tell(world.Release(current, (node,)), node)
    elif r.breaking is Break.PAUSE:
        turn.tell(Pause(current, (node,), turn.job.why), node)
    elif r.breaking is Break.INTERRUPT:
        turn.tell(world.Interrupt(current, (node,), turn.job.why), node)


def _ready(turn: Turn, event: NodeReady, node: Node) -> None:
    if turn.job.sdk and not event.sdk:
        # It does not know yet that this job's processes wait for worlds by themselves.
        turn.tell(RestartNode(incarnation=node.incarnation, sdk=True, reason="the job uses the SDK"), node.id)
        return
    if event.sdk and not turn.job.sdk:
        _use_sdk(turn, node.id)
    seen = turn.job.seen.get(node.id)
    address = seen.address if seen is not None else ""
    turn.follow(
        world.ready(turn.job.rendezvous, node.id, node.incarnation, address=address, steps=event.steps, now=turn.now)
    )
    plans.has_come(turn, node.id)


def _use_sdk(turn: Turn, told_by: NodeId) -> None:
    """It turns out that the job's processes wait for worlds by themselves."""
    turn.job = replace(turn.job, sdk=True, why="the training processes use the SDK")
    idle = [m for m in turn.job.rendezvous.members.values() if m.standing is Standing.READY and m.node != told_by]
    for member in idle:  # it waits for a world before it starts its processes
        command = RestartNode(incarnation=member.incarnation, sdk=True, reason="the job uses the SDK")
        turn.tell(command, member.node)
    turn.follow(world.superseded(turn.job.rendezvous, now=turn.now))


def _disconnected(turn: Turn, node: Node) -> None:
    seen = turn.job.seen.get(node.id)
    if seen is None or not seen.connected:
        return
    until = turn.now + turn.job.settings.suspect_after
    turn.put_seen(node.id, replace(seen, connected=False, suspect_until=until))
    servers.out_of_touch(turn, node)
    if turn.job.ending is not None:
        turn.move(node.id, NodeStatus.DELETED, turn.job.reason)
    elif turn.job.peer_closed is not None and _in_world(turn.job, node.id):
        failures.node_lost(turn, node.id, ExitCause.GONE, "its agent and its peers' connections closed")


def _node_exited(turn: Turn, node: Node, exit: ProcessExit) -> None:
    if turn.job.ending is not None:
        turn.move(node.id, NodeStatus.DELETED, turn.job.reason)
        return
    member = turn.job.rendezvous.members.get(node.id)
    if exit.code == 0 and servers.is_needed(turn.job, node):
        failures.node_lost(turn, node.id, ExitCause.GONE, "it ended, and was not told to")
        return
    if exit.code == 0 and (member is None or member.leaving or turn.job.rendezvous.released):
        _ended_well(turn, node, "it left" if not turn.job.rendezvous.released else "it ended after training")
        return
    cause = ExitCause.GONE if exit.code == 0 else cause_of(exit)
    failures.node_lost(turn, node.id, cause, f"its agent ended with {describe(exit)}")


def _left(turn: Turn, node: Node) -> None:
    """It was drained; or it goes by itself, and then the world it is in has lost a member that nobody replaces."""
    if turn.job.servers is not None:
        node = replace(node, exit_cause=ExitCause.LEFT)
        turn.put(node)
        if not node.is_released and node.role is Role.WORKER:
            turn.job = members.one_fewer(turn.job)
        _ended_well(turn, node, "it was drained" if node.is_released else "it left by itself")
        return
    member = turn.job.rendezvous.members.get(node.id)
    if member is not None and not member.leaving and member.standing is not Standing.EXPECTED:
        reason = f"{node.id}: it left by itself"
        turn.job = members.one_fewer(turn.job)
        turn.follow(world.lost(turn.job.rendezvous, node.id, now=turn.now, reason=reason))
    _ended_well(turn, node, "it was drained" if member is None or member.leaving else "it left by itself")


def _ended_well(turn: Turn, node: Node, reason: str) -> None:
    if servers.is_needed(turn.job, node):
        failures.node_lost(turn, node.id, ExitCause.GONE, f"{reason}, and its parameters with it")
        return
    # Who goes because the job is suspended has not done its work.
    turn.move(node.id, NodeStatus.DELETED if turn.job.is_suspended else NodeStatus.SUCCEEDED, reason)
    turn.follow(world.completed(turn.job.rendezvous, node.id, now=turn.now))
    servers.node_gone(turn, turn.job.nodes[node.id], reason)
    turn.say(f"{node.id}: {reason}")
    plan = ScalePlan(remove_nodes=(turn.job.nodes[node.id],), reason=f"{node.id}: {reason}")
    turn.effects.append(Scale(plan=plan))


def _peer_lost(turn: Turn, event: PeerLost) -> None:
    """With a closed socket as well, the peer is gone at once; else the world gets a moment to learn who it was."""
    if not _is_held_up(turn.job) or _current(turn.job) != event.generation:
        return
    if turn.job.peer_closed is None:
        turn.job = replace(turn.job, peer_closed=turn.now)
    for node, seen in turn.job.seen.items():
        gone = not seen.connected and not seen.unheard
        if gone and _in_world(turn.job, node) and not turn.is_ending:
            failures.node_lost(turn, node, ExitCause.GONE, "its agent and its peers' connections closed")


def _gained(turn: Turn, event: StepGained) -> None:
    job = turn.job
    running = job.rendezvous.committed
    in_world = running is not None and running.generation == event.generation
    if not in_world and (job.servers is None or job.servers.chief != event.node):
        return
    gain = job.gain
    if gain.speed and event.step > gain.speed[-1][1]:
        at, step = gain.speed[-1]
        each = (turn.now - at).total_seconds() / (event.step - step)
        gain = replace(gain, step_seconds=(*gain.step_seconds, each)[-KEPT_SPEED:])
        gain = replace(gain, steps_seen=gain.steps_seen + event.step - step)
    if gain.speed and event.step <= gain.speed[-1][1]:
        return
    gain = replace(
        gain,
        at=turn.now,
        speed=(*gain.speed, (turn.now, event.step))[-KEPT_SPEED:],
        samples=event.samples,
        metrics=dict(event.metrics),
    )
    if gain.step is None or event.step > gain.step:
        gain = replace(gain, step=event.step)
        settings = job.settings.recovery
        budgets = {seat: budget.forgiven(turn.now, settings) for seat, budget in job.budgets.items()}
        purses = {seat: budget.forgiven(turn.now, settings) for seat, budget in job.purses.items()}
        job = replace(job, without_progress=0, budgets=budgets, purses=purses)
    turn.job = replace(job, gain=gain)
    data.gained(turn, event.step)


def _resized(turn: Turn, event: ResizeTold) -> None:
    """Each phase is as long as the slowest member's; who had been out of the world before does not count."""
    if event.node not in turn.job.continuing:
        return
    resizes = tuple(
        replace(
            r,
            drain=max(r.drain, event.drain),
            rendezvous=max(r.rendezvous, event.rendezvous),
            restore=max(r.restore, event.restore),
            first_step=max(r.first_step, event.first_step),
            lost_steps=max(r.lost_steps, event.lost_steps),
            reported=r.reported + 1,
        )
        if r.generation == event.generation
        else r
        for r in turn.job.resizes
    )
    turn.job = replace(turn.job, resizes=resizes)


# Time ----------------------------------------------------------------------------------------------------


def _tick(turn: Turn, late: timedelta) -> None:
    if turn.job.ending is not None:
        return
    if late > turn.job.settings.heartbeat:
        _pardon(turn, late)
    turn.follow(world.ticked(turn.job.rendezvous, now=turn.now))
    data.ticked(turn)
    standstill.check(turn)
    servers.tick(turn, standstill.moved(turn.job, turn.now))
    if turn.job.early is not None and turn.now >= turn.job.early.until:
        failures.settle_early(turn)
    for node, why in _gone(turn.job, turn.now):
        if not turn.is_ending:
            failures.node_lost(turn, node, ExitCause.GONE, why)
    failures.check_explained(turn)
    if turn.is_ending:
        return
    _check_broken(turn)
    failures.check_stopped(turn)
    failures.check_hang(turn)
    _check_short(turn)
    forgetting.forget(turn)


def _pardon(turn: Turn, late: timedelta) -> None:
    """The master itself was away for so long: what the nodes said meanwhile is still to be read."""
    job = turn.job
    seen = {
        node: replace(
            s,
            at=s.at + late,
            suspect_until=s.suspect_until + late if s.suspect_until else None,
            still_since=s.still_since + late if s.still_since else None,
        )
        for node, s in job.seen.items()
    }
    turn.job = replace(job, seen=seen, gain=replace(job.gain, at=job.gain.at + late))
    turn.say(f"the master was held up for {late.total_seconds():.0f} s; nobody is given up for that time")


def _gone(job: Job, now: datetime) -> list[tuple[NodeId, str]]:
    limit = job.settings.suspect_after
    gone = []
    for node, seen in job.seen.items():
        if seen.suspect_until is not None and now >= seen.suspect_until:
            away = job.settings.suspect_after_restart if seen.unheard else limit
            gone.append((node, f"disconnected for {away.total_seconds():.0f} s"))
        elif seen.connected and now - seen.at >= limit:
            gone.append((node, f"silent for {(now - seen.at).total_seconds():.0f} s"))
    return gone


def _check_broken(turn: Turn) -> None:
    job = turn.job
    if job.peer_closed is None or turn.now < job.peer_closed + job.settings.broken_after:
        return
    turn.job = replace(job, peer_closed=None)
    if _is_held_up(job):
        reason = "members lost a connection to each other"
        turn.follow(world.broken(job.rendezvous, _current(job), now=turn.now, reason=reason))


def _is_held_up(job: Job) -> bool:
    """A closed connection would hold the committed world up: it trains, or is on its way to a pause."""
    r = job.rendezvous
    return r.committed is not None and r.pending is None and r.breaking is not Break.INTERRUPT


def _current(job: Job) -> int:
    """The committed generation; 0: none."""
    committed = job.rendezvous.committed
    return 0 if committed is None else committed.generation


def _check_short(turn: Turn) -> None:
    """Too few nodes for too long ends the job; launched nodes that never register count as missing, those that have
    done their work do not."""
    job = turn.job
    there = sum(1 for n in job.nodes.values() if n.status is NodeStatus.RUNNING) + len(_done(job))
    if job.servers is not None:
        there = ending.workers_counted(job)
    if there >= min(job.spec.min_nodes, job.target):
        turn.job = replace(job, short_since=None)
    elif job.short_since is None:
        turn.job = replace(job, short_since=turn.now)
    elif turn.now - job.short_since >= job.settings.pending_timeout:
        waited = job.settings.pending_timeout.total_seconds()
        failures.fail(turn, f"{there} nodes are there, {job.spec.min_nodes} are needed, none came for {waited:.0f} s")


def deadline(job: Job) -> datetime | None:
    """When `Ticked` should come at the latest. Silence and hangs are looked for at every tick."""
    if job.ending is not None:
        return job.end_by
    times = [world.deadline(job.rendezvous), job.early.until if job.early else None, ledger.deadline(job.ledger)]
    times.append(servers.deadline(job))
    times += [lost.until for lost in job.unexplained.values()]
    times += [seen.suspect_until for seen in job.seen.values() if seen.suspect_until is not None]
    if job.peer_closed is not None:
        times.append(job.peer_closed + job.settings.broken_after)
    return min((t for t in times if t is not None), default=None)


# What follows from everything ----------------------------------------------------------------------------


def _settle(turn: Turn) -> None:
    job = turn.job
    if job.ending is None:
        _drop_unfilled(turn)
        if job.servers is not None:
            servers.settle(turn)
            ending.settle(turn)
        elif not job.is_suspended:
            _check_success(turn)
            _check_hopeless(turn)
        job = turn.job
    if job.ending is not None:
        over = job.end_by is not None and turn.now >= job.end_by
        if over or not any(n.is_live for n in job.nodes.values()):
            turn.job = replace(job, phase=job.ending, ended=turn.now)
            turn.effects.append(End())
        return
    if job.servers is not None:
        turn.job = ending.phased(job)
        return
    r = job.rendezvous
    phase = JobPhase.STARTING if r.committed is None else JobPhase.RUNNING if r.running else JobPhase.RESIZING
    if phase is not job.phase:
        reason = {
            JobPhase.STARTING: "waiting for the first world",
            JobPhase.RUNNING: f"world {_current(job)} trains",
            JobPhase.RESIZING: job.why,
        }[phase]
        turn.job = replace(job, phase=phase, reason=reason)


def _drop_unfilled(turn: Turn) -> None:
    """Places for nodes that join by themselves are kept for the first world only."""
    has_begun = turn.job.rendezvous.committed is not None or ending.has_begun(turn.job)
    if not has_begun or not turn.job.places:
        return
    for node in sorted(turn.job.places):
        turn.move(node, NodeStatus.DELETED, "it had not joined when the first world began")
        turn.follow(world.lost(turn.job.rendezvous, node, now=turn.now, reason=f"{node} never joined"))
    turn.job = replace(turn.job, places=frozenset())


def _check_success(turn: Turn) -> None:
    """The job has succeeded when every member of the last world has, or when its data is trained and nobody is left."""
    if data.is_through(turn.job):
        failures.end(turn, JobPhase.SUCCEEDED, "all data is trained and all nodes have ended")
        return
    committed = turn.job.rendezvous.committed
    if committed is None or turn.job.rendezvous.pending is not None:
        return
    if all(turn.job.nodes[m.node].status is NodeStatus.SUCCEEDED for m in committed.members):
        failures.end(turn, JobPhase.SUCCEEDED, "all members of the last world ended well")


def _check_hopeless(turn: Turn) -> None:
    """Members that ended well do not come back: if those left are fewer than the minimum, no world can be formed. Where
    data is dealt in shards, those left need nobody: they make a smaller one and train what remains."""
    r, job = turn.job.rendezvous, turn.job
    if job.ending is not None or r.committed is None or r.running is not None or r.pending is not None or r.released:
        return
    done, left = _done(job), len(members.staying(job))
    if not done or left >= r.settings.min_nodes:
        return
    names = ", ".join(done)
    if job.ledger.dynamic and left and job.spec.node_unit == 1:
        turn.say(f"{names} ended well: {left} can go on without")
        r = replace(r, settings=replace(r.settings, min_nodes=left))
        turn.follow(world.ticked(r, now=turn.now))
    elif left < job.spec.min_nodes:
        failures.fail(turn, f"{names} ended well, {left} left to recover, {job.spec.min_nodes} are needed")


def _done(job: Job) -> list[NodeId]:
    """The members of the last world that ended well by themselves."""
    committed = job.rendezvous.committed
    members = () if committed is None else committed.members
    return [m.node for m in members if job.nodes[m.node].status is NodeStatus.SUCCEEDED]


def _in_world(job: Job, node: NodeId) -> bool:
    member = job.rendezvous.members.get(node)
    return member is not None and member.standing is Standing.ACTIVE
