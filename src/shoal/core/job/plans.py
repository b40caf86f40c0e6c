"""Following a `ResourcePlan`, whoever made it: the one door for optimizers and users, for both strategies.

The parameter servers have their manager. For the other roles the plan is worked out by `shoal.core.managers.group` on
the nodes as they are, and what it wants is done with the job's own means: workers of a world leave it at a step
boundary, workers of parameter servers are told to end.
"""

from dataclasses import replace

from shoal.core.job import members, servers
from shoal.core.job.turn import Turn
from shoal.core.job.values import Job, PlanAsked
from shoal.core.managers import group
from shoal.core.managers import plans as managers
from shoal.core.managers.group import ChiefManager, EvaluatorManager, NodeManager, WorkerManager
from shoal.core.nodes import Node, NodeId, Role
from shoal.core.plans import NodeResource, ResourcePlan
from shoal.core.ps import manager


def plan_refusal(job: Job, plan: ResourcePlan) -> str | None:
    """Why the job cannot follow a plan; None: it can. A plan is followed as a whole or not at all."""
    spec = job.spec
    if job.ending is not None or job.ended is not None:
        return f"job {spec.name} is ending: {job.reason}"
    workers = plan.node_group_resources.get(Role.WORKER)
    if workers is not None and spec.platform_grows:
        return members.refusal(job, workers.count)
    said = managers.refusal(plan, _managers(job), job.servers)
    if said is None and workers is not None and workers.count % spec.node_unit:
        said = f"worker={workers.count} asked, it takes multiples of {spec.node_unit}"
    if said is None:
        said = _unknown(job, plan)
    return None if said is None else f"job {spec.name}: {said}"


def _unknown(job: Job, plan: ResourcePlan) -> str | None:
    for name in (*plan.node_resources, *plan.replace_nodes):
        known = job.nodes.get(group.node_named(name))
        if known is None or not known.is_live or members.is_leaving(job, known.id):
            return f"{name} is to be changed, and is not there"
        if name in plan.replace_nodes and known.external:
            return f"{name} joined by itself, so nobody can replace it"
    return None


def follow(turn: Turn, asked: PlanAsked) -> None:
    """Begin what brings the job to where the plan wants it."""
    plan = asked.plan
    if plan.is_empty:
        return
    turn.say(f"{asked.who}: {plan.reason}")
    for m in _managers(turn.job):
        _follow_group(turn, m, asked)
    if turn.job.servers is not None:
        servers.follow(turn, manager.planned(turn.job.servers, plan, victims=asked.victims, now=turn.now))
    for name in plan.replace_nodes:
        _replace(turn, turn.job.nodes[group.node_named(name)], plan.reason)


def _managers(job: Job) -> list[NodeManager]:
    """The job's nodes as the managers of their roles see them."""
    spec = job.spec
    resource = job.wanted.get(Role.WORKER, NodeResource())
    most = max(spec.max_nodes, len(members.staying(job)))
    found: list[NodeManager] = [
        WorkerManager(
            min_nodes=spec.min_nodes,
            max_nodes=most,
            resource=resource,
            **_state(job, Role.WORKER),  # type: ignore[arg-type]
        )
    ]
    if spec.ps is not None and spec.ps.chief:
        found.append(ChiefManager(min_nodes=1, **_state(job, Role.CHIEF)))  # type: ignore[arg-type]
    if spec.ps is not None and spec.ps.evaluator:
        found.append(EvaluatorManager(min_nodes=1, **_state(job, Role.EVALUATOR)))  # type: ignore[arg-type]
    return found


def _state(job: Job, role: Role) -> dict[str, object]:
    nodes = {
        node.id: replace(node, is_released=True) if members.is_leaving(job, node.id) else node
        for node in job.nodes.values()
        if node.is_live and (node.role is role or job.servers is None)
    }
    successors = {old: new for old, new in job.successors.items() if old in nodes and new in nodes}
    return {"nodes": nodes, "successors": successors}


def _follow_group(turn: Turn, m: NodeManager, asked: PlanAsked) -> None:
    plan, wanted = asked.plan, asked.plan.node_group_resources.get(m.role)
    m = replace(m, next_number=turn.job.next_number)
    after, todo = group.planned(m, plan, victims=asked.victims, now=turn.now)
    job = turn.job
    if wanted is not None:
        job = replace(job, wanted={**job.wanted, m.role: after.resource})
        if m.role is Role.WORKER:
            job = replace(job, target=wanted.count)
    ours = frozenset(m.nodes) | frozenset(after.nodes)
    others = {old: new for old, new in job.successors.items() if old not in ours}
    turn.job = replace(job, successors={**others, **after.successors})
    if todo is None:
        return
    if todo.launch_nodes:
        members.start(turn, todo.launch_nodes, reason=plan.reason)
    going = [node.id for node in todo.remove_nodes]
    if going:
        turn.say(f"{', '.join(going)} to leave")
        members.let_go(turn, going, reason=plan.reason)


def _replace(turn: Turn, old: Node, reason: str) -> None:
    """Another of its kind takes its seat, on another host; it goes when that one is there."""
    if old.id in turn.job.successors or old.role is Role.PS:
        return  # servers have their manager
    avoid = old.avoid_hosts | (frozenset() if old.host is None else frozenset({old.host}))
    new = Node(
        role=old.role,
        number=turn.job.next_number,
        seat=old.seat,
        since=turn.now,
        reason=reason,
        resource=old.resource,
        avoid_hosts=avoid,
    )
    turn.job = replace(turn.job, successors={**turn.job.successors, old.id: NodeId(new.id)})
    members.start(turn, (new,), reason=reason)


# Nodes that take others' seats -------------------------------------------------------------------------------------


def has_come(turn: Turn, node: NodeId) -> None:
    """If it is somebody's successor, that one may go."""
    old = next((before for before, after in turn.job.successors.items() if after == node), None)
    if old is None:
        return
    turn.job = replace(turn.job, successors={o: n for o, n in turn.job.successors.items() if o != old})
    if turn.job.nodes[old].is_live:
        members.let_go(turn, [old], reason=f"{node} has taken its seat")


def settle(turn: Turn) -> None:
    """Who was to take a seat and is lost is followed by whoever was launched for it; whose predecessor is lost has the
    seat already."""
    job = turn.job
    if not job.successors:
        return
    kept = {}
    for old, new in job.successors.items():
        heir = _heir(job, new)
        if job.nodes[old].is_live and heir is not None:
            kept[old] = heir
    if kept != job.successors:
        turn.job = replace(job, successors=kept)


def _heir(job: Job, node: NodeId) -> NodeId | None:
    known = job.nodes[node]
    if known.is_live:
        return None if members.is_leaving(job, node) else node
    later = (n for n in job.nodes.values() if n.is_live and (n.role, n.seat) == (known.role, known.seat))
    return next((n.id for n in later if n.number > known.number), None)
