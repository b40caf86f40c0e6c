"""Between a master's nodes and a job's Pods: reports read, orders written. Pure.

The master speaks of nodes (`worker-3`), Kubernetes of Pods (`mnist-worker-3`). What exists comes as reports
(`PodReport`: the operator's in the auto plan's status, or made of Pods that were watched); what should exist goes out
as `Orders`, which are absolute: as long as an order stands and is not carried out, it is declared.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from itertools import islice

from shoal.api.elasticjob import ResourceSpec
from shoal.api.elasticjob import Role as ApiRole
from shoal.api.resources import Resource, of_spec, to_spec
from shoal.api.scaleplan import PodMeta, PodReport
from shoal.core.exits import ProcessExit
from shoal.core.job.values import Announced
from shoal.core.nodes import Node, NodeId
from shoal.core.plans import NodeResource, ScalePlan

WORKERS = frozenset({ApiRole.WORKER})
"""Roles whose members the master of an all-reduce job knows. The operator has a setting of the same meaning."""
THERE = frozenset({"Pending", "Running", "Unknown"})
ENDED = frozenset({"Succeeded", "Failed", "Deleted"})
MOST_AVOIDED = 64
"""So many hosts a plan takes for one Pod; a job that knows of more bad ones has another problem."""
_KILLED = 128 + 9


def pod_name(job: str, node: NodeId) -> str:
    return f"{job}-{node}"


def node_of(report: PodReport) -> NodeId:
    return NodeId(f"{report.role}-{report.id}")


def node_named(job: str, pod: str) -> NodeId | None:
    """The node of a Pod by its name; None: it is no member of this job."""
    rest = pod.removeprefix(f"{job}-")
    role, _, number = rest.rpartition("-")
    is_one = rest != pod and role in tuple(ApiRole) and number.isascii() and number.isdigit()
    return NodeId(rest) if is_one else None


# What there is -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """What the platform says there is."""

    running: frozenset[NodeId]
    """They exist, whether they run yet or not."""
    ended: Mapping[NodeId, ProcessExit]
    announced: tuple[Announced, ...]
    """Members by the platform's account, for a master that may not know them. One that failed before the master heard
    of it is among them: it has a seat, and only the master can fill it again."""


def sighting(reports: Iterable[PodReport], managed: Collection[ApiRole] = WORKERS) -> Sighting:
    """`managed`: roles whose members the master knows."""
    mine = [report for report in reports if report.role in managed]
    by_name = {report.name: node_of(report) for report in mine}
    return Sighting(
        running=frozenset(node_of(report) for report in mine if report.phase in THERE),
        ended={node_of(report): exit_of(report) for report in mine if report.phase in ENDED},
        announced=tuple(
            Announced(
                node=node_of(report),
                seat=report.rank or 0,
                resource=resource_of(report),
                replaces=by_name.get(report.replaces or ""),
            )
            for report in sorted(mine, key=lambda report: report.id)
            if report.phase in THERE or report.phase == "Failed"
        ),
    )


def exit_of(report: PodReport) -> ProcessExit:
    """How a node's Pod ended. One of which no more is known was killed."""
    code = report.exit_code
    if code is None:
        code = 0 if report.phase == "Succeeded" else _KILLED
    if report.phase != "Succeeded" and code == 0:
        code = _KILLED  # the container ended well, and the Pod was deleted or failed all the same
    return ProcessExit(code=code, oom=bool(report.oom_killed))


def resource_of(report: PodReport) -> NodeResource:
    return NodeResource(**asdict(of_spec(report.resource)))


# What there should be ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Orders:
    """What the master has asked for and is not so yet, by name of Pod."""

    create: Mapping[str, PodMeta] = field(default_factory=dict)
    remove: frozenset[str] = frozenset()
    migrate: Mapping[str, PodMeta] = field(default_factory=dict)
    """Pods that are to be replaced by one that has something else, the new one first."""
    reason: str = ""

    def are_as(self, other: "Orders") -> bool:
        """Whether they ask for the same, for whatever reason."""
        return (self.create, self.remove, self.migrate) == (other.create, other.remove, other.migrate)

    def up_to(self, most: int) -> "Orders":
        """The first so many of each: a plan takes no more. The rest are declared when those are carried out."""
        return replace(
            self,
            create=dict(islice(self.create.items(), most)),
            remove=frozenset(sorted(self.remove)[:most]),
            migrate=dict(islice(self.migrate.items(), most)),
        )


def ordered(orders: Orders, plan: ScalePlan, *, job: str, reports: Iterable[PodReport]) -> Orders:
    """The orders with those of a plan. Said again, they change nothing."""
    known = {report.name: report for report in reports}
    removed = {(node.role, node.seat): pod_name(job, node.id) for node in plan.remove_nodes}
    create = dict(orders.create)
    for node in plan.launch_nodes:
        name = pod_name(job, node.id)
        old = create[name].replaces if name in create else None
        if name not in known and old is None:
            create[name] = _entry(
                name, node, removed.get((node.role, node.seat)) or _vacant(node, known.values()), known
            )
    gone = {pod_name(job, node.id) for node in plan.remove_nodes}
    create = {name: entry for name, entry in create.items() if name not in gone}
    # One that has ended by itself stays for its logs, unless it fills a seat that nobody else takes.
    replaced = {entry.replaces for entry in create.values()}
    ended = {name for name in gone if name in replaced and name in known and known[name].phase in ENDED}
    # Whose replacement is let go stays: the operator would begin with another one.
    kept = {known[name].replaces for name in gone if name in known}
    migrate = {name: entry for name, entry in orders.migrate.items() if name not in kept}
    return replace(orders, create=create, remove=orders.remove | (gone - ended), migrate=migrate, reason=plan.reason)


def asked(orders: Orders, plan: ScalePlan, *, job: str, reports: Iterable[PodReport]) -> Orders:
    """The orders with those of an ask, which names all that are to be replaced: nobody else is any more."""
    known = {report.name: report for report in reports}
    migrate = {}
    for node in plan.migrate_nodes:
        name = pod_name(job, node.id)
        if name not in known or known[name].phase not in ENDED:
            migrate[name] = PodMeta(name=name, resource=_changed(node, known.get(name)))
    return replace(orders, migrate=migrate, reason=plan.reason)


def settled(
    orders: Orders, reports: Iterable[PodReport], *, seen: frozenset[str], failed: Collection[str] = ()
) -> Orders:
    """The orders that are not carried out yet. `seen`: Pods that were reported before: those no longer reported are
    gone; others may not be there yet. `failed`: Pods that the operator could not replace: it is not asked again."""
    known = {report.name: report for report in reports}
    replaced = {entry.replaces for entry in orders.create.values()} | {report.replaces for report in known.values()}
    remove = {name for name in orders.remove if not _is_gone(name, known, seen=seen, replaced=replaced)}
    create = {name: entry for name, entry in orders.create.items() if name not in known and name not in seen}
    # The operator filled the seat of a name we had chosen with another Pod: the seat that it should fill is free to go.
    misled = {
        entry.replaces
        for name, entry in orders.create.items()
        if entry.replaces is not None and name in known and known[name].replaces != entry.replaces
    }
    remove |= {name for name in misled if name in known and known[name].phase != "Deleted"}
    gone = {name for name in seen if name not in known} | {name for name, each in known.items() if each.phase in ENDED}
    migrate = {name: entry for name, entry in orders.migrate.items() if name not in gone and name not in failed}
    after = replace(orders, create=create, remove=frozenset(remove), migrate=migrate)
    return orders if after.are_as(orders) else after


def _is_gone(
    name: str, known: Mapping[str, PodReport], *, seen: frozenset[str], replaced: Collection[str | None]
) -> bool:
    """Whether nothing is left to be done about a Pod that should go. One that ended by itself may stay for its logs, if
    another has its seat."""
    if name not in known:
        return name in seen
    phase = known[name].phase
    return phase == "Deleted" or (phase in ENDED and name in replaced)


def _vacant(node: Node, reports: Iterable[PodReport]) -> str | None:
    """The Pod whose seat a node takes, when nobody remembers which it was: the last one there, if it has ended."""
    there = [report for report in reports if report.role == node.role and report.rank == node.seat]
    last = max(there, key=lambda report: report.id, default=None)
    return last.name if last is not None and last.phase in ENDED else None


def _entry(name: str, node: Node, replaces: str | None, known: Mapping[str, PodReport]) -> PodMeta:
    # An agent knows the name of its Pod, not of the machine under it.
    hosts = {(known[host].host or host) if host in known else host for host in node.avoid_hosts}
    return PodMeta(
        name=name,
        type=str(node.role),
        id=node.number,
        rank_index=node.seat,
        resource=_changed(node, known.get(replaces or "")),
        avoid_hosts=sorted(hosts)[:MOST_AVOIDED] or None,
        replaces=replaces,
    )


def _changed(node: Node, old: PodReport | None) -> ResourceSpec | None:
    """What a node has that the Pod before it had not. As before is the operator's to say: meanwhile somebody may have
    asked for another, or may yet."""
    before = asdict(of_spec(old.resource)) if old is not None else {}
    amounts = {key: value for key, value in asdict(node.resource).items() if key != "priority"}
    resource = Resource(**{key: value for key, value in amounts.items() if value != before.get(key)})
    return None if resource == Resource() else to_spec(resource)
