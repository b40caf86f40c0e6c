"""Who is launched and who leaves: from a wanted count to a `ScalePlan`."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from shoal.core import world
from shoal.core.job import servers
from shoal.core.job.forgetting import is_forgotten
from shoal.core.job.turn import Turn
from shoal.core.job.values import Announced, Job, Scale, ScaleAsked
from shoal.core.nodes import Node, NodeId, NodeStatus, Role, parsed
from shoal.core.plans import NodeGroupResource, NodeResource, ScalePlan
from shoal.core.recovery import RelaunchNode


def refusal(job: Job, count: int) -> str | None:
    """Why the job cannot be scaled to `count` nodes; None: it can."""
    spec = job.spec
    if job.ending is not None or job.ended is not None:
        return f"job {spec.name} is ending: {job.reason}"
    if spec.platform_grows:
        ask = f"kubectl scale {spec.called}/{spec.name} --replicas={count}"
        return f"job {spec.name}: how many nodes it has is the cluster's to say; ask there: {ask}"
    if not spec.min_nodes <= count <= spec.max_nodes:
        return f"job {spec.name}: worker={count} asked, it takes {spec.min_nodes} to {spec.max_nodes}"
    if count % spec.node_unit:
        return f"job {spec.name}: worker={count} asked, it takes multiples of {spec.node_unit}"
    return None


def staying(job: Job) -> list[Node]:
    """The live workers that nobody has asked to leave, oldest first; one to a seat."""
    if job.servers is not None:
        new = frozenset(job.successors.values())
        return [n for n in live(job, Role.WORKER) if not n.is_released and n.id not in new]
    members = job.rendezvous.members
    return [
        node
        for node in job.nodes.values()
        if node.is_live and not ((m := members.get(node.id)) is not None and m.leaving)
    ]


def live(job: Job, *roles: Role) -> list[Node]:
    """The live nodes of these roles, oldest first."""
    return [node for node in job.nodes.values() if node.is_live and node.role in roles]


def is_leaving(job: Job, node: NodeId) -> bool:
    """Whether it was asked to go: its end is no loss."""
    member = job.rendezvous.members.get(node)
    return job.nodes[node].is_released or (member is not None and member.leaving)


def scale(turn: Turn, asked: ScaleAsked) -> None:
    """Launch what is missing, unless the platform does, or let the named and then the youngest go. Parameter servers
    end when their job is to rest: what they hold is saved before its workers go (`servers.rest`)."""
    before = len(staying(turn.job))
    if asked.count == 0 and turn.job.is_suspended and servers.is_saving(turn.job):
        return
    rests = asked.count == 0 and not turn.job.is_suspended
    turn.job = replace(turn.job, target=asked.count)
    turn.say(f"{asked.who} asked for {asked.count} nodes, {before} are there")
    spec = turn.job.spec
    if rests and servers.saves_before_rest(turn):
        return
    if asked.count > before and (spec.fills_grant or not spec.platform_grows):
        launch(turn, asked.count - before, reason=f"{asked.who} asked for {asked.count} nodes")
    elif asked.count < before:
        victims = _first_to_go(turn.job, before - asked.count, asked.victims)
        turn.say(f"{', '.join(victims)} to leave")
        let_go(turn, victims, reason=f"{asked.who} asked for {asked.count} nodes")


def let_go(turn: Turn, victims: Iterable[NodeId], *, reason: str) -> None:
    """Workers leave: their world first, if they are in one."""
    names = list(victims)
    if turn.job.servers is None:
        turn.follow(world.leave(turn.job.rendezvous, names, now=turn.now))
        return
    gone = servers.release(turn, [turn.job.nodes[node] for node in names], reason)
    if gone:
        turn.effects.append(Scale(plan=ScalePlan(remove_nodes=gone, reason=reason)))


def one_fewer(job: Job) -> Job:
    """The job when a node has left for good. Where it fills a grant the seat counts as filled: nobody is launched for
    it until the grant is another."""
    return job if job.spec.fills_grant else replace(job, target=max(job.spec.min_nodes, job.target - 1))


def adopt(turn: Turn, announced: tuple[Announced, ...]) -> None:
    """Expect the nodes that the platform has added by itself. One that was known and has ended stays ended; of one that
    lives it may be news what it has."""
    if turn.job.ending is not None:
        return
    for each in announced:
        known = turn.job.nodes.get(each.node)
        if known is not None and has_news(known, each):
            turn.put(replace(known, resource=each.resource))
    nodes = tuple(
        Node(
            role=name[0],
            number=name[1],
            seat=each.seat,
            since=turn.now,
            reason="the platform added it",
            resource=each.resource,
        )
        for each in announced
        if is_news(turn.job, each) and each.node not in turn.job.nodes and (name := parsed(each.node)) is not None
    )
    if nodes:
        turn.say(f"the platform adds {', '.join(node.id for node in nodes)}")
        launched = _expect(turn, nodes, reason="the platform added it")
        replaces = {each.node: each.replaces for each in announced if each.replaces is not None}
        _adopt_servers(turn, [node for node in launched if node.role is Role.PS], replaces)


def _adopt_servers(turn: Turn, nodes: list[Node], replaces: Mapping[NodeId, NodeId]) -> None:
    """Where the master launches them, one that it does not know was asked for by a master before it that could not
    write it down: no version will ever name it."""
    m = turn.job.servers
    if m is None:
        return
    if m.settings.platform_launches:
        servers.announced(turn, nodes, replaces)
        return
    unknown = [turn.job.nodes[node.id] for node in nodes if node.id not in m.nodes]
    reason = "nobody knows what it was launched for"
    gone = servers.release(turn, unknown, reason)
    if gone:
        turn.effects.append(Scale(plan=ScalePlan(remove_nodes=gone, reason=reason)))


def has_news(known: Node, announced: Announced) -> bool:
    """Whether the platform says something about a live node that was not known: what it has is settled when its Pod is
    made, which may be after it was first told of."""
    return known.is_live and announced.resource not in (NodeResource(), known.resource)


def is_news(job: Job, announced: Announced) -> bool:
    """Whether the platform tells of a node that is not known, or what is not known of one."""
    known = job.nodes.get(announced.node)
    if known is not None:
        return has_news(known, announced)
    return parsed(announced.node) is not None and not is_forgotten(job, announced.node)


def launch(turn: Turn, count: int, *, reason: str, role: Role = Role.WORKER) -> None:
    job = turn.job
    seats = free_seats(job, role, count)
    resource = job.wanted.get(role, NodeResource())
    launch_nodes = tuple(
        Node(role=role, number=job.next_number + i, seat=seat, since=turn.now, reason=reason, resource=resource)
        for i, seat in enumerate(seats)
    )
    start(turn, launch_nodes, reason=reason)


def free_seats(job: Job, role: Role, count: int) -> list[int]:
    taken = {node.seat for node in _neighbours(job, role)}
    return [seat for seat in range(len(taken) + count) if seat not in taken][:count]


def _neighbours(job: Job, role: Role) -> list[Node]:
    """The live nodes that seats are counted with."""
    return [n for n in job.nodes.values() if n.is_live and (job.servers is None or n.role is role)]


def is_seat_filled(job: Job, old: Node) -> bool:
    """Whether another node has been started in its seat already."""
    return any(
        node.is_live and (node.role, node.seat) == (old.role, old.seat) and node.number > old.number
        for node in job.nodes.values()
    )


def replace_node(turn: Turn, old: Node, decision: RelaunchNode) -> None:
    """Another node takes `old`'s seat; whatever is left of the old one goes."""
    resource = old.resource if decision.memory is None else replace(old.resource, memory=decision.memory)
    node = Node(
        role=old.role,
        number=turn.job.next_number,
        seat=old.seat,
        since=turn.now,
        reason=decision.reason,
        resource=resource,
        avoid_hosts=old.avoid_hosts | decision.avoid,
    )
    start(turn, (node,), remove=(old,), reason=decision.reason)


def start(turn: Turn, nodes: tuple[Node, ...], *, remove: tuple[Node, ...] = (), reason: str) -> None:
    """Record the nodes as asked for, and ask for them."""
    if not nodes and not remove:
        return  # a plan that names nobody would say how many there are to be
    launched = _expect(turn, nodes, reason=reason)
    role = nodes[0].role if nodes and turn.job.servers is not None else Role.WORKER
    count = len(_neighbours(turn.job, role))
    turn.effects.append(
        Scale(
            plan=ScalePlan(
                node_group_resources={role: NodeGroupResource(count=count)},
                launch_nodes=launched,
                remove_nodes=remove,
                reason=reason,
            )
        )
    )


def _expect(turn: Turn, nodes: tuple[Node, ...], *, reason: str) -> tuple[Node, ...]:
    """Record the nodes, and let the worlds know that they come."""
    launched = tuple(
        n.moved(NodeStatus.PENDING, now=turn.now, reason=reason) if n.status is NodeStatus.INITIAL else n for n in nodes
    )
    for node in launched:
        turn.put(node)
    following = max((node.number + 1 for node in launched), default=0)
    turn.job = replace(turn.job, next_number=max(turn.job.next_number, following))
    if turn.job.servers is not None:
        return launched  # workers of parameter servers form no world
    # Before the first world everybody launched is waited for. Later ones join a world that trains; but plain scripts
    # restart for every world, so one that is being formed waits for them.
    awaited = turn.job.rendezvous.committed is None or not turn.job.sdk
    for node in launched:
        turn.follow(world.expect(turn.job.rendezvous, node.id, node.incarnation, awaited=awaited, now=turn.now))
    return launched


def _first_to_go(job: Job, count: int, named: frozenset[NodeId]) -> list[NodeId]:
    """The named ones, then the nodes that lose least by going: those not in a world first, then by seniority."""
    members = job.rendezvous.members
    trainers = {} if job.servers is None else job.servers.trainers

    def age(node: Node) -> tuple[bool, int, int]:
        if (trainer := trainers.get(node.id)) is not None:
            return (node.id not in named, 1, -trainer.seniority)
        member = members.get(node.id)
        if member is None or member.seniority is None:
            return (node.id not in named, 0, -node.number)
        return (node.id not in named, 1, -member.seniority)

    return [node.id for node in sorted(staying(job), key=age)][:count]
