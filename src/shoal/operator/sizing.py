"""What running members have, and what plans have given them since.

Cpu and memory are changed in place where the server can; where it cannot, and for another number of devices, it takes
another Pod, so the member is moved to one. What neither changes is said on the plan: only new members get it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from shoal.api.elasticjob import Role
from shoal.api.jobspec import JobSpec
from shoal.api.quantities import format_mebibytes
from shoal.api.reasons import Reason
from shoal.api.resources import GPU_NAMES, Resource
from shoal.core.pods import PodSeen
from shoal.operator.actions import PodRef, Resize
from shoal.operator.asks import ROLES, Asks, needs_of
from shoal.operator.crew import Crew
from shoal.operator.memory import Member, Move
from shoal.operator.pods import resized
from shoal.operator.seats import own
from shoal.operator.settings import OperatorSettings
from shoal.operator.snapshot import MoveOrder, PlanSeen, RefusedResize
from shoal.operator.status import FALSE, Said

_INFEASIBLE = "Infeasible"
"""The kubelet's word for what its host can never give."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizing:
    """Questions about one job's members as they are when they are asked."""

    crew: Crew
    spec: JobSpec
    asks: Asks
    settings: OperatorSettings
    can_resize: bool
    """The server changes what a running Pod has."""
    refused: Mapping[str, RefusedResize] = field(default_factory=dict)
    """What it would not change, by the uids of Pods."""
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
        """The plan, with a move for each running member to which it gives what takes another Pod. Once: who came by
        such a move has what a Pod can get, whatever the server shows of it."""
        named = {order.name for order in plan.migrate} | self._came_by(plan)
        more = [MoveOrder(name=name) for name in self._moved_by(plan) if name not in named]
        return replace(plan, migrate=(*plan.migrate, *more))

    def _moved_by(self, plan: PlanSeen) -> list[str]:
        """Whom a plan gives another number of devices, or cpu and memory that this server cannot change in place."""
        tells_devices = self.settings.gpu_resource in GPU_NAMES
        found = []
        for role, ask in plan.roles.items():
            wanted = self.asks.roles[role]
            gives_devices = tells_devices and ask.resource.gpu_num is not None and wanted.sized_by == plan.ask
            gives_size = not self.can_resize and (wanted.raised_by or wanted.sized_by) == plan.ask
            if not gives_devices and not gives_size:
                continue
            found += [
                pod.name
                for pod, target in self._unlike(role)
                if (gives_devices and _has_other_devices(pod, target)) or (gives_size and _has_other_size(pod, target))
            ]
        return found

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
                if needs is not None and _has_other_size(pod, target):
                    container, resources = resized(needs, pod.resource, target, self.settings)
                    ref = PodRef(name=pod.name, uid=pod.uid)
                    found.append(Resize(pod=ref, container=container, resources=resources))
        return tuple(found)

    def unmet(self, plan: PlanSeen) -> Said | None:
        """What running members have not got of the cpu and memory that a plan gives them: refused, or on its way."""
        roles = self._sized_by(plan)
        kept = [pod for pod, target in self._keeping(plan, roles) if _has_other_size(pod, target)]
        wanted = {each.pod.uid: each.resources for each in self.resizes()} if kept and self.refused else {}
        refused = [
            (pod.name, told.why)
            for pod in kept
            if (told := self.refused.get(pod.uid)) is not None and told.resources == wanted.get(pod.uid)
        ]
        waiting = [pod for pod in self._running(roles) if pod.resize_waits or pod.is_resizing]
        refused += [(pod.name, pod.resize_waits) for pod in waiting if pod.resize_waits.startswith(_INFEASIBLE)]
        if refused:
            (name, why), *others = refused
            more = f", and {len(others)} more" if others else ""
            return Said(FALSE, Reason.RESIZE_REFUSED, f"{name}{more} keeps what it has: {why}")
        left = len({pod.uid for pod in (*kept, *waiting)})
        message = f"it waits until {left} running members have what they are given"
        return Said(FALSE, Reason.IN_PROGRESS, message) if left else None

    def remark(self, plan: PlanSeen) -> str:
        """What a plan does not change."""
        sized = self._sized_by(plan)
        told = (self._kept(plan, sized) or self._put_off(sized), *map(self._raised, sized))
        return "; ".join(each for each in told if each)

    def _sized_by(self, plan: PlanSeen) -> list[Role]:
        return [role for role in ROLES if self.asks.roles[role].sized_by == plan.ask]

    def _keeping(self, plan: PlanSeen, roles: Sequence[Role]) -> list[tuple[PodSeen, Resource]]:
        """Running members that have something else than a plan gives them and are not moved, and what it gives."""
        moved = {name for each in self.plans if each.auto or each.ask == plan.ask for name in self._moved_by(each)}
        return [each for role in roles for each in self._unlike(role) if each[0].name not in moved]

    def _kept(self, plan: PlanSeen, roles: Sequence[Role]) -> str:
        """What running members keep that a plan gives them otherwise."""
        kept = self._keeping(plan, roles)
        if not kept:
            return ""
        if any(_has_other_devices(pod, target) for pod, target in kept):
            return "running members keep the devices that they have until they are replaced; new ones get it"
        return f"{len(kept)} running members keep what they have until it is changed in place; new ones get it"

    def _raised(self, role: Role) -> str:
        """That members have more memory than was given, and why."""
        wanted = self.asks.roles[role]
        if not wanted.raised_by or wanted.resource.memory is None:
            return ""
        return f"each {role} gets {format_mebibytes(wanted.resource.memory)} of memory: one ran out of what was given"

    def _put_off(self, roles: Sequence[Role]) -> str:
        """Which running members their hosts have not given what the server has agreed to, and why."""
        waiting = [pod for pod in self._running(roles) if pod.resize_waits]
        if not waiting:
            return ""
        more = f", and {len(waiting) - 1} more" if len(waiting) > 1 else ""
        return f"{waiting[0].name}{more}: keeps what it has until its host can change it: {waiting[0].resize_waits}"

    def _running(self, roles: Sequence[Role]) -> list[PodSeen]:
        pods = [self.crew.pods.get(member.name) for role in roles for member in self.crew.live(role)]
        return [pod for pod in pods if pod is not None and pod.is_running]

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


def _has_other_size(pod: PodSeen, target: Resource) -> bool:
    return (pod.resource.cpu, pod.resource.memory) != (target.cpu, target.memory)
