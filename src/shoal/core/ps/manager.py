"""Everything that can happen to a job's parameter servers. Each function takes the manager and what happened, and
returns the next manager and what is to be done; nothing waits and nothing is sent here.

What is recorded is recorded first: a shell writes the next manager down before it does the effects. So nobody was ever
told of more than is written, and after a restart it is enough to say everything again that has not been answered
(`taken_over`, `returned`).
"""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TypeVar, assert_never

from shoal.core.nodes import NodeId, NodeStatus, Role, parsed
from shoal.core.plans import NodeResource, ResourcePlan
from shoal.core.ps.cluster import FromCheckpoint, LiveCopy, PSCheckpoint
from shoal.core.ps.steps import (
    abandon,
    again,
    commit,
    reseat,
    roll_back,
    saved,
    send_errand,
    settle,
    undrained,
    unprepared,
)
from shoal.core.ps.turn import Turn
from shoal.core.ps.values import (
    KEPT_CHECKPOINTS,
    CheckpointKept,
    Effect,
    Goal,
    Kind,
    Phase,
    PSManager,
    PSSettings,
    RefuseTrainer,
    Server,
    Trainer,
)
from shoal.core.ps.versions import unready, words_for
from shoal.core.ps.words import (
    ChiefIs,
    Drained,
    FromTrainer,
    ModelNamed,
    Moved,
    MoveFailed,
    PreparedPS,
    PrepareFailed,
    Resumed,
    SavedPS,
    SaveFailed,
    SaveWanted,
    ServerUnreachable,
)

V = TypeVar("V")
Turned = tuple[PSManager, tuple[Effect, ...]]


def new_manager(
    settings: PSSettings,
    *,
    servers: int,
    resource: NodeResource | None = None,
    checkpoint: PSCheckpoint | None = None,
    now: datetime,
) -> Turned:
    """A job that begins with so many servers. `checkpoint`: where it goes on from."""
    refused = _count_refusal(settings, servers)
    if refused is not None:
        raise ValueError(refused)
    goal = Goal(count=servers, resource=resource or NodeResource())
    kept = () if checkpoint is None else (checkpoint,)
    return _settled(Turn(PSManager(settings=settings, goal=goal, checkpoints=kept), now))


# Plans -----------------------------------------------------------------------------------------------------------


def refusal(m: PSManager, plan: ResourcePlan) -> str | None:
    """Why a plan cannot be followed as far as it is about parameter servers; None: it can."""
    if m.failed is not None:
        return f"the job has failed: {m.failed}"
    group = plan.node_group_resources.get(Role.PS)
    return None if group is None else _count_refusal(m.settings, group.count)


def planned(m: PSManager, plan: ResourcePlan, *, victims: frozenset[NodeId] = frozenset(), now: datetime) -> Turned:
    """A plan is the new goal. It takes the place of one that nobody has noticed yet; otherwise it waits for the change
    that is under way. One that is refused changes nothing."""
    turn = Turn(m, now)
    refused = refusal(m, plan)
    if refused is not None:
        turn.say(f"not done: {plan.reason}, because {refused}")
        return turn.m, tuple(turn.effects)
    goal = _goal(m, plan, victims)
    if goal == m.goal:
        return m, ()
    turn.m = replace(m, goal=goal)
    change = m.change
    if change is not None and change.phase is Phase.LAUNCHING and change.kind in (Kind.START, Kind.RESIZE):
        turn.say(f"given up before anybody noticed: {change.reason}, because of another plan: {plan.reason}")
        turn.m = replace(turn.m, change=None)
    return _settled(turn)


def _goal(m: PSManager, plan: ResourcePlan, victims: frozenset[NodeId]) -> Goal:
    group = plan.node_group_resources.get(Role.PS)
    named = {node: resource for name, resource in plan.node_resources.items() if (node := server_of(m, name))}
    return Goal(
        count=m.goal.count if group is None else group.count,
        resource=m.goal.resource if group is None else group.node_resource,
        resources={**m.goal.resources, **named},
        victims=victims or m.goal.victims,
    )


def server_of(m: PSManager, name: str) -> NodeId | None:
    """The server that a plan means, by its own name or by that of its Pod, `<job>-ps-3`; None: there is none."""
    tail = NodeId("-".join(name.split("-")[-2:]))
    is_one = parsed(tail) is not None and tail in m.nodes and tail not in m.removing
    return tail if is_one else None


def _count_refusal(settings: PSSettings, count: int) -> str | None:
    low, high = settings.min_servers, settings.max_servers
    return None if low <= count <= high else f"ps={count} asked, the job takes {low} to {high}"


# Servers ---------------------------------------------------------------------------------------------------------


def server_running(m: PSManager, node: NodeId, *, now: datetime) -> Turned:
    """A server's agent has registered. Its process may not be up yet."""
    known = m.nodes.get(node)
    if known is None or known.status is not NodeStatus.PENDING:
        return m, ()
    running = known.moved(NodeStatus.RUNNING, now=now, reason="its agent registered")
    return replace(m, nodes={**m.nodes, node: running}), ()


def server_ready(m: PSManager, node: NodeId, incarnation: int, address: str, *, now: datetime) -> Turned:
    """A server can be reached. Said again by the same process it changes nothing; by another one it means that what
    the process before it held is gone."""
    if node not in m.nodes or node in m.removing or m.failed is not None:
        return m, ()
    known = m.servers.get(node)
    if known is not None and incarnation <= known.incarnation:
        return m, ()
    m, _ = server_running(m, node, now=now)
    turn = Turn(replace(m, servers={**m.servers, node: Server(address=address, incarnation=incarnation)}), now)
    if known is not None:
        _state_lost(turn, node, f"{node} started again")
    return _settled(turn)


def server_down(m: PSManager, node: NodeId, *, reason: str, now: datetime) -> Turned:
    """A server's process has ended and its node starts another: the place is kept, what was there is gone."""
    if node not in m.servers or m.failed is not None:
        return m, ()
    turn = Turn(replace(m, servers=_without(m.servers, node)), now)
    _state_lost(turn, node, reason)
    return _settled(turn)


def server_lost(
    m: PSManager,
    node: NodeId,
    *,
    reason: str,
    resource: NodeResource | None = None,
    avoid: frozenset[str] = frozenset(),
    now: datetime,
) -> Turned:
    """A server's node is gone, for good. Who decided so has also decided that it may be replaced, and with what."""
    if node not in m.nodes:
        return m, ()
    turn = Turn(m, now)
    if resource is not None:
        wanted = {name: r for name, r in m.goal.resources.items() if name != node}
        had = replace(m.nodes[node], resource=resource)
        turn.m = replace(m, nodes={**m.nodes, node: had}, goal=replace(m.goal, resources=wanted))
    turn.m = replace(turn.m, servers=_without(m.servers, node))
    if node not in m.removing and m.failed is None:
        _state_lost(turn, node, reason)
        _reseated(turn, node, reason, avoid)
    turn.m = replace(
        turn.m,
        nodes=_without(turn.m.nodes, node),
        removing=turn.m.removing - {node},
    )
    return _settled(turn)


def _state_lost(turn: Turn, node: NodeId, reason: str) -> None:
    """What a server held is gone. If anybody needs it, all go back; if only the next version named it, that is tried
    again."""
    m = turn.m
    rolling = m.change is not None and m.change.kind is Kind.ROLLBACK
    if m.current is not None and node in m.current.nodes and (not rolling or _is_committed(m)):
        roll_back(turn, reason)
    elif m.change is not None and node in m.change.seats.values() and m.change.phase is not Phase.RESUMING:
        again(turn, reason)


def _is_committed(m: PSManager) -> bool:
    return m.change is not None and m.change.phase is Phase.RESUMING


def _reseated(turn: Turn, lost: NodeId, reason: str, avoid: frozenset[str]) -> None:
    change = turn.m.change
    if turn.m.failed is not None or change is None:
        return
    for rank, node in change.seats.items():
        if node == lost:
            reseat(turn, lost, rank, f"{reason}: another takes rank {rank}", avoid)


# Trainers --------------------------------------------------------------------------------------------------------


def trainer_gone(m: PSManager, node: NodeId, *, reason: str, now: datetime) -> Turned:
    """A trainer's process has ended, well or not, or its node is gone. Nobody waits for it any longer."""
    if node not in m.trainers:
        return m, ()
    turn = Turn(m, now)
    turn.forget((node,))
    change = m.change
    if change is not None and m.failed is None and node == m.chief:
        if change.phase is Phase.MOVING:
            again(turn, f"{node}, which was moving the state, is gone ({reason})")
        elif change.phase is Phase.SAVING:
            abandon(turn, f"{node}, which was saving it, is gone ({reason})")
    return _settled(turn)


def returned(m: PSManager, node: NodeId, *, now: datetime) -> Turned:
    """A trainer's agent is back after it was out of touch, or after another master took over."""
    trainer = m.trainers.get(node)
    if trainer is None or m.failed is not None:
        return m, ()
    turn = Turn(m, now)
    if m.chief is not None:
        turn.tell(ChiefIs(chief=m.chief), (node,))
    for word in words_for(m, trainer):
        turn.tell(word, (node,))
    return m, tuple(turn.effects)


def heard(m: PSManager, node: NodeId, incarnation: int, role: Role, word: FromTrainer, *, now: datetime) -> Turned:
    """A trainer says something. What an earlier incarnation of it says, or about what is over, changes nothing."""
    if m.failed is not None:
        return m, ()
    turn = Turn(m, now)
    if isinstance(word, ModelNamed):
        _named(turn, node, incarnation, role, word)
        return _settled(turn)
    trainer = m.trainers.get(node)
    if trainer is None or trainer.incarnation != incarnation:
        return m, ()
    _answered(turn, trainer, word)
    return _settled(turn)


def _named(turn: Turn, node: NodeId, incarnation: int, role: Role, word: ModelNamed) -> None:
    m = turn.m
    known = m.trainers.get(node)
    if known is not None and known.incarnation >= incarnation:
        return
    if known is not None:
        turn.m, effects = trainer_gone(m, node, reason="it started again", now=turn.now)
        turn.effects.extend(effects)
    if len({p.name for p in word.partitions}) < len(word.partitions):
        turn.effects.append(RefuseTrainer(node=node, reason=f"{node}: two partitions of its model have one name"))
        return
    if m.partitions and m.partitions != word.partitions:
        turn.effects.append(RefuseTrainer(node=node, reason=_difference(turn.m, node, word)))
        return
    turn.m = replace(turn.m, partitions=word.partitions, next_seniority=turn.m.next_seniority + 1)
    turn.put(Trainer(node=node, incarnation=incarnation, role=role, seniority=turn.m.next_seniority - 1))
    if turn.m.chief is not None:
        turn.tell(ChiefIs(chief=turn.m.chief), (node,))


def _difference(m: PSManager, node: NodeId, word: ModelNamed) -> str:
    known, said = {p.name: p.nbytes for p in m.partitions}, {p.name: p.nbytes for p in word.partitions}
    other = sorted(n for n in known.keys() | said.keys() if known.get(n) != said.get(n))
    detail = f"it differs in {', '.join(other[:3])}" if other else "its partitions come in another order"
    return f"{node}: its model is not the one that the job trains: {detail}"


def _answered(turn: Turn, trainer: Trainer, word: FromTrainer) -> None:
    m, change = turn.m, turn.m.change
    match word:
        case ModelNamed():
            raise AssertionError("heard before")
        case PreparedPS(version=version):
            if version == trainer.told:
                turn.put(replace(trainer, prepared=version))
        case PrepareFailed(version=version, reason=reason):
            _prepare_failed(turn, trainer, version, reason)
        case Drained(barrier=barrier):
            if barrier == trainer.halted:
                turn.put(replace(trainer, drained=True))
        case Moved(version=version, attempt=attempt):
            if _is_answer(m, trainer, version, attempt):
                commit(turn)
        case MoveFailed(version=version, attempt=attempt, reason=reason):
            if _is_answer(m, trainer, version, attempt):
                _move_failed(turn, reason)
        case Resumed(version=version):
            _resumed(turn, trainer, version)
        case SaveWanted(reason=reason):
            _save_wanted(turn, trainer, reason)
        case SavedPS(checkpoint=checkpoint, barrier=barrier):
            _saved(turn, trainer, checkpoint, barrier)
        case SaveFailed(barrier=barrier, reason=reason):
            if (
                change is not None
                and change.phase is Phase.SAVING
                and (trainer.node, barrier)
                == (
                    m.chief,
                    change.barrier,
                )
            ):
                abandon(turn, reason)
        case ServerUnreachable(version=version, rank=rank):
            _unreachable(turn, trainer, version, rank)
        case _:
            assert_never(word)


def _is_answer(m: PSManager, trainer: Trainer, version: int, attempt: int) -> bool:
    change = m.change
    if change is None or change.phase is not Phase.MOVING or change.cluster is None:
        return False
    return (trainer.node, version, attempt) == (m.chief, change.cluster.version, change.move)


def _prepare_failed(turn: Turn, trainer: Trainer, version: int, reason: str) -> None:
    """One that trains can go on where it is; one that does not yet, or that has nothing to go back to, starts again."""
    change = turn.m.change
    if version != trainer.told or trainer.prepared == version:
        return
    is_next = change is not None and change.cluster is not None and version == change.cluster.version
    if trainer.active is None or (is_next and change is not None and change.kind is Kind.ROLLBACK):
        turn.restart((trainer.node,), f"{trainer.node} cannot prepare for version {version}: {reason}")
    elif is_next:
        abandon(turn, f"{trainer.node} cannot prepare for it: {reason}")


def _move_failed(turn: Turn, reason: str) -> None:
    """Another way, while all still stand: through a checkpoint, or from an earlier one."""
    m, change = turn.m, turn.change
    assert change.cluster is not None
    source = change.cluster.source
    if isinstance(source, LiveCopy) and change.move == 1 and m.settings.checkpoint_dir is not None:
        turn.say(f"the state could not be copied ({reason}): it goes through a checkpoint")
        turn.m = replace(m, change=replace(change, move=2, since=turn.now))
        send_errand(turn)
    elif isinstance(source, LiveCopy):
        abandon(turn, f"the state could not be moved: {reason}")
    elif isinstance(source, FromCheckpoint) and len(m.checkpoints) > 1:
        turn.say(f"{source.path} could not be restored ({reason}): the one before it is tried")
        turn.m = replace(m, checkpoints=m.checkpoints[:-1])
        again(turn, reason)
    elif isinstance(source, FromCheckpoint):
        turn.fail(f"{source.path} could not be restored: {reason}")
    else:
        turn.fail(f"the model could not be initialised: {reason}")


def _unreachable(turn: Turn, trainer: Trainer, version: int, rank: int) -> None:
    """While all go back to a checkpoint it is no news: what the version before has lost is known."""
    m = turn.m
    if m.current is None or not version == m.current.version == trainer.active or rank not in m.current.ranks:
        return
    if m.change is None or m.change.kind is not Kind.ROLLBACK or _is_committed(m):
        since = trainer.unreachable[1] if trainer.unreachable is not None else turn.now
        turn.put(replace(trainer, unreachable=(rank, since)))


def _resumed(turn: Turn, trainer: Trainer, version: int) -> None:
    if version != trainer.active or trainer.halted is not None:
        return
    turn.put(replace(trainer, resumed=True, unreachable=None))
    if turn.m.change is not None:
        turn.m = replace(turn.m, change=replace(turn.change, awaiting=turn.change.awaiting - {trainer.node}))


def _save_wanted(turn: Turn, trainer: Trainer, reason: str) -> None:
    if trainer.node != turn.m.chief or trainer.active is None:
        return
    if turn.m.settings.checkpoint_dir is None:
        turn.say(f"no checkpoint ({reason}): the job has no path for it")
        return
    turn.m = replace(turn.m, save_wanted=reason)


def _saved(turn: Turn, trainer: Trainer, checkpoint: PSCheckpoint, barrier: int | None) -> None:
    m, change = turn.m, turn.m.change
    if trainer.node != m.chief or m.current is None or checkpoint.version != m.current.version:
        return
    if checkpoint.fuzzy != (barrier is None):
        return
    if barrier is None:
        if trainer.active != m.current.version or (change is not None and change.kind is Kind.ROLLBACK):
            return
    elif change is None or change.phase is not Phase.SAVING or barrier != change.barrier:
        return
    turn.m = replace(m, checkpoints=(*m.checkpoints, checkpoint)[-KEPT_CHECKPOINTS:])
    turn.effects.append(CheckpointKept(checkpoint=checkpoint))
    if barrier is not None:
        saved(turn)


# Time ------------------------------------------------------------------------------------------------------------


def deadline(m: PSManager) -> datetime | None:
    """When `ticked` should be called if nothing happens before."""
    if m.failed is not None:
        return None
    times = [t.unreachable[1] + m.settings.unreachable_after for t in m.trainers.values() if t.unreachable is not None]
    phase = _phase_ends(m)
    return min([*times, *([] if phase is None else [phase])], default=None)


def _phase_ends(m: PSManager) -> datetime | None:
    change, settings = m.change, m.settings
    if change is None:
        return None
    limits: Mapping[Phase, timedelta] = {
        Phase.LAUNCHING: settings.launch_timeout,
        Phase.PREPARING: settings.prepare_timeout,
        Phase.DRAINING: settings.drain_timeout,
        Phase.MOVING: settings.move_timeout,
        Phase.SAVING: settings.save_timeout,
        Phase.RESUMING: settings.resume_timeout,
    }
    waits_for_trainers = change.kind in (Kind.START, Kind.ROLLBACK) and not m.trainers
    if waits_for_trainers and (change.phase is Phase.PREPARING or not unready(m)):
        return None  # whether a job may be without workers is not decided here
    return change.since + limits[change.phase]


def ticked(m: PSManager, *, now: datetime) -> Turned:
    """Time passed; see `deadline`."""
    due = deadline(m)
    if due is None or now < due:
        return m, ()
    turn = Turn(m, now)
    for rank in sorted(_out_of_reach(m, now)):
        _give_up_server(turn, rank)
    phase_ends = _phase_ends(turn.m)
    if turn.m.failed is None and phase_ends is not None and now >= phase_ends:
        _too_long(turn)
    return _settled(turn)


def _out_of_reach(m: PSManager, now: datetime) -> frozenset[int]:
    said = (t.unreachable for t in m.trainers.values() if t.unreachable is not None)
    return frozenset(rank for rank, since in said if now >= since + m.settings.unreachable_after)


def _give_up_server(turn: Turn, rank: int) -> None:
    """Its node lives as far as anybody knows, but nobody reaches it: it is ended and counts as lost."""
    m = turn.m
    turn.put(*(replace(t, unreachable=None) for t in m.trainers.values() if t.unreachable and t.unreachable[0] == rank))
    node = next((s.node for s in m.current.servers if s.rank == rank), None) if m.current is not None else None
    if node is None or node not in m.nodes or node in m.removing:
        return  # it is known to be gone
    reason = f"{node} cannot be reached"
    turn.m = replace(turn.m, servers=_without(turn.m.servers, node))
    _state_lost(turn, node, reason)
    _reseated(turn, node, reason, frozenset())
    if turn.m.failed is None:
        turn.remove((node,), reason)


def _too_long(turn: Turn) -> None:
    m, change, settings = turn.m, turn.change, turn.m.settings
    is_optional = change.kind in (Kind.RESIZE, Kind.SAVE)
    match change.phase:
        case Phase.LAUNCHING if is_optional:
            abandon(turn, f"{_did_not_come(m)} within {settings.launch_timeout}")
        case Phase.LAUNCHING:
            turn.fail(f"{_did_not_come(m)} within {settings.launch_timeout}, and the job cannot do without")
        case Phase.PREPARING | Phase.DRAINING:
            silent = undrained(m) if change.phase is Phase.DRAINING else unprepared(m)
            verb = "stand still" if change.phase is Phase.DRAINING else "prepare"
            limit = settings.drain_timeout if change.phase is Phase.DRAINING else settings.prepare_timeout
            reason = f"{', '.join(silent) or 'nobody'} did not {verb} within {limit}"
            if is_optional:
                abandon(turn, reason)
            else:
                turn.restart(silent, reason)
        case Phase.MOVING if is_optional:
            abandon(turn, f"the state was not moved within {settings.move_timeout}")
        case Phase.MOVING:
            reason = f"{m.chief} did not restore the state within {settings.move_timeout}"
            assert m.chief is not None
            turn.restart((m.chief,), reason)
            again(turn, reason)
        case Phase.SAVING:
            abandon(turn, f"it was not saved within {settings.save_timeout}")
        case Phase.RESUMING:
            turn.restart(change.awaiting, f"it did not go on within {settings.resume_timeout}")
        case _:
            assert_never(change.phase)


def _did_not_come(m: PSManager) -> str:
    return f"{', '.join(unready(m)) or 'a model to train'} did not come up"


# Masters ---------------------------------------------------------------------------------------------------------


def taken_over(m: PSManager, *, now: datetime) -> Turned:
    """Another master goes on with what was written down. The platform is asked again for what it may not have heard;
    trainers hear again what they have not answered when they are back. Everybody's time begins anew."""
    turn = Turn(m, now)
    if m.change is not None:
        turn.m = replace(m, change=replace(m.change, since=now))
    turn.put(*(replace(t, unreachable=(t.unreachable[0], now)) for t in m.trainers.values() if t.unreachable))
    pending = tuple(n for name, n in m.nodes.items() if n.status is NodeStatus.PENDING and name not in m.removing)
    removing = tuple(m.nodes[node] for node in sorted(m.removing))
    if pending or removing:
        turn.scale(launch=pending, remove=removing, reason="another master took over")
    return turn.m, tuple(turn.effects)


def _without(mapping: Mapping[NodeId, V], node: NodeId) -> dict[NodeId, V]:
    return {name: value for name, value in mapping.items() if name != node}


def _settled(turn: Turn) -> Turned:
    settle(turn)
    return turn.m, tuple(turn.effects)
