"""One ResourcePlan for a whole job. It is followed as a whole or not at all: half a plan is nobody's."""

from collections.abc import Iterable

from shoal.core.managers import group
from shoal.core.managers.group import NodeManager
from shoal.core.nodes import Role
from shoal.core.plans import NodeGroupResource, ResourcePlan, ScalePlan
from shoal.core.ps import manager as servers
from shoal.core.ps.values import PSManager


def refusal(plan: ResourcePlan, managers: Iterable[NodeManager], ps: PSManager | None) -> str | None:
    """Why a job with these managers cannot follow the plan; None: it can."""
    by_role: dict[str, NodeManager] = {m.role: m for m in managers}
    known = {*by_role, *([Role.PS] if ps is not None else [])}
    for role, wanted in plan.node_group_resources.items():
        if role not in known:
            return f"{role}={wanted.count} asked, the job has {', '.join(sorted(known))}"
        said = servers.refusal(ps, plan) if ps is not None and role == Role.PS else group.refusal(by_role[role], plan)
        if said is not None:
            return said
    return None


def merged(plans: Iterable[ScalePlan | None], reason: str) -> ScalePlan:
    """What several managers want done, as one plan for the scaler."""
    wanted = [plan for plan in plans if plan is not None]
    groups: dict[str, NodeGroupResource] = {}
    for plan in wanted:
        groups.update(plan.node_group_resources)
    return ScalePlan(
        node_group_resources=groups,
        launch_nodes=tuple(node for plan in wanted for node in plan.launch_nodes),
        remove_nodes=tuple(node for plan in wanted for node in plan.remove_nodes),
        migrate_nodes=tuple(node for plan in wanted for node in plan.migrate_nodes),
        ps_addrs=next((plan.ps_addrs for plan in reversed(wanted) if plan.ps_addrs), ()),
        reason=reason,
    )
