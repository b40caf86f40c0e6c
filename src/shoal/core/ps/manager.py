"""Everything that can happen to a job's parameter servers. Each function takes the manager and what happened, and
returns the next manager and what is to be done; nothing waits and nothing is sent here.

What is recorded is recorded first: a shell writes the next manager down before it does the effects. So nobody was ever
told of more than is written, and after a restart it is enough to say everything again that has not been answered
(`taken_over`, `returned`).
"""

from dataclasses import replace
from datetime import datetime

from shoal.core.nodes import NodeId, NodeStatus, Role, parsed
from shoal.core.plans import NodeResource, ResourcePlan
from shoal.core.ps.answers import answered, named
from shoal.core.ps.cluster import PSCheckpoint
from shoal.core.ps.losses import reseated, state_lost, trainer_left, without
from shoal.core.ps.patience import deadline, expired
from shoal.core.ps.steps import settle
from shoal.core.ps.turn import Turn
from shoal.core.ps.values import Effect, Goal, Kind, Phase, PSManager, PSSettings, Server
from shoal.core.ps.versions import words_for
from shoal.core.ps.words import ChiefIs, FromTrainer, ModelNamed

__all__ = [
    "deadline",
    "heard",
    "new_manager",
    "planned",
    "refusal",
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
    if node not in m.removing and m.failed is None:
        state_lost(turn, node, reason)
        reseated(turn, node, reason, avoid)
    turn.m = replace(
        turn.m,
        nodes=without(turn.m.nodes, node),
        removing=turn.m.removing - {node},
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


# Masters and time -----------------------------------------------------------------------------------------------


def ticked(m: PSManager, *, now: datetime) -> Turned:
    """Time passed; see `deadline`."""
    due = deadline(m)
    if due is None or now < due:
        return m, ()
    turn = Turn(m, now)
    expired(turn)
    return _settled(turn)


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


def _settled(turn: Turn) -> Turned:
    settle(turn)
    return turn.m, tuple(turn.effects)
