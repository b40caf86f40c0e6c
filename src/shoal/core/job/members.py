"""Who is launched and who leaves: from a wanted count to a `ScalePlan`."""

from dataclasses import replace

from shoal.core import world
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
        ask = f"kubectl scale ej/{spec.name} --replicas={count}"
        return f"job {spec.name}: how many nodes it has is the cluster's to say; ask there: {ask}"
    if not spec.min_nodes <= count <= spec.max_nodes:
        return f"job {spec.name}: worker={count} asked, it takes {spec.min_nodes} to {spec.max_nodes}"
    if count % spec.node_unit:
        return f"job {spec.name}: worker={count} asked, it takes multiples of {spec.node_unit}"
    return None


def staying(job: Job) -> list[Node]:
    """The live nodes that nobody has asked to leave, oldest first."""
    members = job.rendezvous.members
    return [
        node
        for node in job.nodes.values()
        if node.is_live and not ((m := members.get(node.id)) is not None and m.leaving)
    ]


def scale(turn: Turn, asked: ScaleAsked) -> None:
    """Launch what is missing, unless the platform does, or let the named and then the youngest go."""
    before = len(staying(turn.job))
    turn.job = replace(turn.job, target=asked.count)
    turn.say(f"{asked.who} asked for {asked.count} nodes, {before} are there")
    spec = turn.job.spec
    if asked.count > before and (spec.fills_grant or not spec.platform_grows):
        launch(turn, asked.count - before, reason=f"{asked.who} asked for {asked.count} nodes")
    elif asked.count < before:
        victims = _first_to_go(turn.job, before - asked.count, asked.victims)
        turn.say(f"{', '.join(victims)} to leave")
        turn.follow(world.leave(turn.job.rendezvous, victims, now=turn.now))


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
        _expect(turn, nodes, reason="the platform added it")


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


def launch(turn: Turn, count: int, *, reason: str) -> None:
    job = turn.job
    taken = {node.seat for node in job.nodes.values() if node.is_live}
    seats = [seat for seat in range(len(taken) + count) if seat not in taken][:count]
    launch_nodes = tuple(
        Node(role=Role.WORKER, number=job.next_number + i, seat=seat, since=turn.now, reason=reason)
        for i, seat in enumerate(seats)
    )
    _start(turn, launch_nodes, remove=(), reason=reason)


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
    _start(turn, (node,), remove=(old,), reason=decision.reason)


def _start(turn: Turn, nodes: tuple[Node, ...], *, remove: tuple[Node, ...], reason: str) -> None:
    """Record the nodes as asked for, and ask for them."""
    launched = _expect(turn, nodes, reason=reason)
    count = sum(1 for n in turn.job.nodes.values() if n.is_live)
    turn.effects.append(
        Scale(
            plan=ScalePlan(
                node_group_resources={Role.WORKER: NodeGroupResource(count=count)},
                launch_nodes=launched,
                remove_nodes=remove,
                reason=reason,
            )
        )
    )


def _expect(turn: Turn, nodes: tuple[Node, ...], *, reason: str) -> tuple[Node, ...]:
    """Record the nodes, and let the worlds know that they come."""
    launched = tuple(n.moved(NodeStatus.PENDING, now=turn.now, reason=reason) for n in nodes)
    for node in launched:
        turn.put(node)
    following = max((node.number + 1 for node in launched), default=0)
    turn.job = replace(turn.job, next_number=max(turn.job.next_number, following))
    # Before the first world everybody launched is waited for. Later ones join a world that trains; but plain scripts
    # restart for every world, so one that is being formed waits for them.
    awaited = turn.job.rendezvous.committed is None or not turn.job.sdk
    for node in launched:
        turn.follow(world.expect(turn.job.rendezvous, node.id, node.incarnation, awaited=awaited, now=turn.now))
    return launched


def _first_to_go(job: Job, count: int, named: frozenset[NodeId]) -> list[NodeId]:
    """The named ones, then the nodes that lose least by going: those not in a world first, then by seniority."""
    members = job.rendezvous.members

    def age(node: Node) -> tuple[bool, int, int]:
        member = members.get(node.id)
        if member is None or member.seniority is None:
            return (node.id not in named, 0, -node.number)
        return (node.id not in named, 1, -member.seniority)

    return [node.id for node in sorted(staying(job), key=age)][:count]
