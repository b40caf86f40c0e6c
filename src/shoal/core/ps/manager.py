"""Everything that can happen to a job's parameter servers. Each function takes the manager and what happened, and
returns the next manager and what is to be done; nothing waits and nothing is sent here.

What is recorded is recorded first: a shell writes the next manager down before it does the effects. So nobody was ever
told of more than is written, and after a restart it is enough to say everything again that has not been answered
(`taken_over`, `returned`).
"""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime

from shoal.core.nodes import NodeId, NodeStatus, Role, parsed
from shoal.core.plans import NodeResource, ResourcePlan
from shoal.core.ps.answers import answered, named
from shoal.core.ps.cluster import PSCheckpoint
from shoal.core.ps.losses import refilled, reseated, state_lost, taken_back, trainer_left, without
from shoal.core.ps.patience import deadline, expired
from shoal.core.ps.steps import settle
from shoal.core.ps.turn import Turn
from shoal.core.ps.values import Effect, Goal, Kind, Phase, PSManager, PSSettings, Server
from shoal.core.ps.versions import words_for
from shoal.core.ps.words import ChiefIs, FromTrainer, ModelNamed
from shoal.core.resources import overlaid

__all__ = [
    "deadline",
    "heard",
    "new_manager",
    "planned",
    "put_off",
    "refusal",
    "resumed",
    "returned",
    "server_down",
    "server_lost",
    "server_of",
    "server_ready",
    "server_running",
    "taken_over",
    "ticked",
    "trainer_gone",
]

Turned = tuple[PSManager, tuple[Effect, ...]]
NOBODY: Mapping[NodeId, datetime] = {}


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


def resumed(before: PSManager, settings: PSSettings, *, servers: int, now: datetime) -> Turned:
    """A job of which nothing runs any more begins again with so many servers, from its last checkpoint. No number and
    no name is used a second time."""
    fresh = PSManager(
        settings=settings,
        goal=Goal(count=servers, resource=before.goal.resource),
        checkpoints=before.checkpoints,
        version=before.version,
        barrier=before.barrier,
        next_number=before.next_number,
        next_seniority=before.next_seniority,
    )
    return _settled(Turn(fresh, now))


# Plans -----------------------------------------------------------------------------------------------------------


def refusal(m: PSManager, plan: ResourcePlan) -> str | None:
    """Why a plan cannot be followed as far as it is about parameter servers; None: it can."""
    if m.failed is not None:
        return f"the job has failed: {m.failed}"
    group = plan.node_group_resources.get(Role.PS)
    if group is not None and m.settings.platform_launches:
        return f"ps={group.count} asked: how many servers the job has is the platform's to say"
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
    """What is said of the role holds for all its servers but those that are named; what is not said stays as it is."""
    group = plan.node_group_resources.get(Role.PS)
    named = {node: resource for name, resource in plan.node_resources.items() if (node := server_of(m, name))}
    moves = m.goal.moves | {node for name in plan.replace_nodes if (node := server_of(m, name))}
    if group is None:
        resources = {**m.goal.resources, **named}
        return replace(m.goal, resources=resources, victims=victims or m.goal.victims, moves=moves)
    current = m.current.nodes if m.current is not None else frozenset()
    others = {
        node: group.node_resource
        for node in sorted(current & m.nodes.keys())
        if overlaid(m.nodes[node].resource, group.node_resource) != m.nodes[node].resource
    }
    waiting = m.goal.resources if group.node_resource == NodeResource() else {}
    return Goal(
        count=group.count,
        resource=overlaid(m.goal.resource, group.node_resource),
        resources={**waiting, **others, **named},
        victims=victims or m.goal.victims,
        moves=moves,
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


def server_running(m: PSManager, node: NodeId, *, host: str | None = None, now: datetime) -> Turned:
    """A server's agent has registered. Its process may not be up yet."""
    known = m.nodes.get(node)
    if known is None or known.status is not NodeStatus.PENDING:
        return m, ()
    running = replace(known.moved(NodeStatus.RUNNING, now=now, reason="its agent registered"), host=host)
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
        state_lost(turn, node, f"{node} started again")
    return _settled(turn)


def server_down(m: PSManager, node: NodeId, *, reason: str, now: datetime) -> Turned:
    """A server's process has ended and its node starts another: the place is kept, what was there is gone."""
    if node not in m.servers or m.failed is not None:
        return m, ()
    turn = Turn(replace(m, servers=without(m.servers, node)), now)
    state_lost(turn, node, reason)
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
    turn.m = replace(turn.m, servers=without(m.servers, node))
    if node not in m.removing and m.failed is None and not m.rests and not taken_back(turn, node):
        state_lost(turn, node, reason)
        reseated(turn, node, reason, avoid)
        refilled(turn, node, reason, avoid)
    turn.m = replace(
        turn.m,
        nodes=without(turn.m.nodes, node),
        removing=turn.m.removing - {node},
        unsure=turn.m.unsure - {node},
        successors=without(turn.m.successors, node),
    )
    return _settled(turn)


# Trainers --------------------------------------------------------------------------------------------------------


def trainer_gone(m: PSManager, node: NodeId, *, reason: str, now: datetime) -> Turned:
    """A trainer's process has ended, well or not, or its node is gone. Nobody waits for it any longer."""
    if node not in m.trainers:
        return m, ()
    turn = Turn(m, now)
    trainer_left(turn, node, reason)
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
        named(turn, node, incarnation, role, word)
        return _settled(turn)
    trainer = m.trainers.get(node)
    if trainer is None or trainer.incarnation != incarnation:
        return m, ()
    answered(turn, trainer, word)
    return _settled(turn)


def save_first(m: PSManager, reason: str, *, now: datetime) -> Turned:
    """Whoever trains is about to be sent away: what was trained is saved before, if there is a path and somebody who
    can. `is_saving` until then."""
    trains = m.current is not None and any(each.active is not None for each in m.trainers.values())
    if m.failed is not None or m.settings.checkpoint_dir is None or not trains or _is_saving_all(m):
        return m, ()
    return _settled(Turn(replace(m, save_wanted=reason, fuzzy_wanted=False), now))


def _is_saving_all(m: PSManager) -> bool:
    """Whether a checkpoint is still to be written that has all that was trained until now: a fuzzy one has not."""
    is_next = m.save_wanted is not None and not m.fuzzy_wanted
    return is_next or (is_saving(m) and m.change is not None and m.change.kind is Kind.SAVE and not m.change.fuzzy)


def is_saving(m: PSManager | None) -> bool:
    """Whether a checkpoint is still to be written."""
    if m is None:
        return False
    change = m.change
    return m.save_wanted is not None or (
        change is not None and change.kind is Kind.SAVE and change.phase is not Phase.RESUMING
    )


# Masters and time -----------------------------------------------------------------------------------------------


def ticked(m: PSManager, *, now: datetime, stepped: Mapping[NodeId, datetime] = NOBODY) -> Turned:
    """Time passed; see `deadline`. `stepped`: when each trainer was last known to train, or to have nothing to do."""
    due = deadline(m)
    if due is None or now < due:
        return m, ()
    turn = Turn(m, now)
    expired(turn, stepped)
    return _settled(turn)


def put_off(m: PSManager, *, now: datetime) -> PSManager:
    """Nobody has been told yet what this phase waits for: its time begins now."""
    return m if m.change is None else replace(m, change=replace(m.change, since=now))


def taken_over(m: PSManager, *, now: datetime) -> Turned:
    """Another master goes on with what was written down. The platform is asked again for what it may not have heard;
    trainers hear again what they have not answered when they are back. Everybody's time begins anew."""
    turn = Turn(m, now)
    if m.change is not None:
        turn.m = replace(m, change=replace(m.change, since=now))
    turn.put(
        *(replace(t, unreachable=(t.unreachable[0], now), doubted=None) for t in m.trainers.values() if t.unreachable)
    )
    pending = tuple(n for name, n in m.nodes.items() if n.status is NodeStatus.PENDING and name not in m.removing)
    removing = tuple(m.nodes[node] for node in sorted(m.removing))
    if pending or removing:
        turn.scale(launch=pending, remove=removing, reason="another master took over")
    return turn.m, tuple(turn.effects)


def _settled(turn: Turn) -> Turned:
    settle(turn)
    return turn.m, tuple(turn.effects)
