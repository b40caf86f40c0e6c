"""What running members have, and what plans have given them since.

Cpu and memory are changed in place where the server can; another number of devices takes another Pod, so the member is
moved to one. What neither changes is said on the plan: only new members get it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from shoal.api.elasticjob import Role
from shoal.api.jobspec import JobSpec
from shoal.api.resources import GPU_NAMES, Resource
from shoal.core.pods import PodSeen
from shoal.operator.actions import PodRef, Resize
from shoal.operator.asks import ROLES, Asks, needs_of
from shoal.operator.crew import Crew
from shoal.operator.memory import Member, Move
from shoal.operator.pods import resized
from shoal.operator.seats import own
from shoal.operator.settings import OperatorSettings
from shoal.operator.snapshot import MoveOrder, PlanSeen


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizing:
    """Questions about one job's members as they are when they are asked."""

    crew: Crew
    spec: JobSpec
    asks: Asks
    settings: OperatorSettings
    can_resize: bool
    """The server changes what a running Pod has."""
    rests: bool
    """The job is to have no members now: nothing is changed in those that leave."""
    plans: Sequence[PlanSeen] = ()
    moves: tuple[Move, ...] = ()

    def target(self, member: Member) -> Resource:
        """What a member should have: its own, and its role's where nothing is said. More memory after an OOM is void
        when a plan gives its role as much; what a plan gives to this one is not."""
        wanted, kept = self.asks.roles[member.role], member.resource
        if wanted.sized_by and kept.memory is not None and not self._has_memory_by_a_move(member):
            kept = own(kept, wanted.resource)
        return kept.over(wanted.resource)

    def _has_memory_by_a_move(self, member: Member) -> bool:
        moves = {(move.plan, move.generation, move.name) for move in self.moves if move.replacement == member.name}
        orders = ((plan, order) for plan in self.plans if moves for order in plan.migrate)
        return any(
            (plan.uid, plan.generation, order.name) in moves and order.resource.memory is not None
            for plan, order in orders
        )

    def with_moves(self, plan: PlanSeen) -> PlanSeen:
        """The plan, with a move for each running member to which it gives another number of devices. Once: who came by
        such a move has what a Pod can get, whatever the server shows of it."""
        named = {order.name for order in plan.migrate} | self._came_by(plan)
        more = [MoveOrder(name=name) for name in self._moved_by(plan) if name not in named]
        return replace(plan, migrate=(*plan.migrate, *more))

    def _moved_by(self, plan: PlanSeen) -> list[str]:
        """Whom a plan gives another number of devices."""
        if self.settings.gpu_resource not in GPU_NAMES:
            return []  # how many a running Pod has cannot be told
        return [
            pod.name
            for role, ask in plan.roles.items()
            if ask.resource.gpu_num is not None and self.asks.roles[role].sized_by == plan.ask
            for pod, target in self._unlike(role)
            if _has_other_devices(pod, target)
        ]

    def _came_by(self, plan: PlanSeen) -> set[str]:
        """The replacements that this plan has brought."""
        mine = (move for move in self.moves if (move.plan, move.generation) == (plan.uid, plan.generation))
        return {move.replacement for move in mine if move.replacement is not None}

    def resizes(self) -> tuple[Resize, ...]:
        """What to change in place."""
        if not self.can_resize:
            return ()
        found = []
        for role in ROLES:
            needs = needs_of(self.spec, role)
            for pod, target in self._unlike(role):
                if needs is not None and (pod.resource.cpu, pod.resource.memory) != (target.cpu, target.memory):
                    container, resources = resized(needs, pod.resource, target, self.settings)
                    ref = PodRef(name=pod.name, uid=pod.uid)
                    found.append(Resize(pod=ref, container=container, resources=resources))
        return tuple(found)

    def remark(self, plan: PlanSeen) -> str:
        """What a plan does not change."""
        sized = [role for role in ROLES if self.asks.roles[role].sized_by == plan.ask]
        moved = set(self._moved_by(plan))
        kept = [each for role in sized for each in self._unlike(role) if each[0].name not in moved]
        if not kept:
            return self._put_off(sized)
        if any(_has_other_devices(pod, target) for pod, target in kept):
            return "running members keep the devices that they have until they are replaced; new ones get it"
        why = "" if self.can_resize else " (this server cannot resize Pods)"
        return f"{len(kept)} running members keep what they have until it is changed in place{why}; new ones get it"

    def _put_off(self, roles: Sequence[Role]) -> str:
        """Which running members their hosts have not given what the server has agreed to, and why."""
        pods = [self.crew.pods.get(member.name) for role in roles for member in self.crew.live(role)]
        waiting = [pod for pod in pods if pod is not None and pod.resize_waits]
        if not waiting:
            return ""
        more = f", and {len(waiting) - 1} more" if len(waiting) > 1 else ""
        return f"{waiting[0].name}{more}: keeps what it has until its host can change it: {waiting[0].resize_waits}"

    def _unlike(self, role: Role) -> list[tuple[PodSeen, Resource]]:
        """Running Pods of a role that a plan has given another resource since, and what they should have."""
        if not self.asks.roles[role].sized_by or self.rests:
            return []
        found = []
        for member in self.crew.live(role):
            pod, target = self.crew.pods.get(member.name), self.target(member)
            if pod is not None and pod.is_running and replace(target.over(pod.resource), gpu_type=None) != pod.resource:
                found.append((pod, target))
        return found


def _has_other_devices(pod: PodSeen, target: Resource) -> bool:
    return (pod.resource.gpu_num or 0) != (target.gpu_num or 0)
