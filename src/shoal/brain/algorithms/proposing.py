"""The one door for plans: nothing leaves above a limit, as nothing, or against what the user pinned.

An algorithm says what it wants of each role (`Wanted`) and of single nodes. `proposed` makes a `ResourcePlan` of it:
pins win, then the bounds of one node, then those of the whole job. What is too much for the job as a whole is taken
from the number of workers first, because that is what the job can most easily do without, then from what nodes have.
No node comes to have less memory than one of its role was measured to use, with the margin, nor what was too little
once. If the least that the job needs is still too much, the plan is empty and says so. What the limits took from a
role, asked about or not, stands in the reason.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from shoal.brain.algorithms.memory import least_memory
from shoal.core.cleaning import cleaned
from shoal.core.facts import JobFacts, Limits, OptimizerSettings, RoleFacts, cpu_limit, memory_limit
from shoal.core.nodes import Role
from shoal.core.plans import NodeGroupResource, NodeResource, ResourcePlan
from shoal.core.recovery import round_memory

CLOSE = 0.01
"""Amounts that differ by less are the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Of one role. None: as it is."""

    count: int | None = None
    cpu: float | None = None
    memory: float | None = None
    least: float | None = None
    """MiB without which the plan is of no use, whatever the limits leave."""


@dataclass(frozen=True, slots=True)
class RoleSize:
    count: int
    cpu: float | None
    memory: int | None


Sizes = Mapping[Role, RoleSize]


def nothing(algorithm: str, reason: str, confidence: float | None = None) -> ResourcePlan:
    """An answer that changes nothing."""
    return ResourcePlan(reason=reason, algorithm=algorithm, confidence=confidence)


def proposed(
    algorithm: str,
    facts: JobFacts,
    limits: Limits,
    settings: OptimizerSettings,
    wanted: Mapping[Role, Wanted],
    *,
    nodes: Mapping[str, Wanted] | None = None,
    replace: tuple[str, ...] = (),
    reason: str | Callable[[Sizes], str],
    predicted: float | None = None,
    confidence: float | None = None,
) -> ResourcePlan:
    """`reason`: where it has numbers of the plan in it, made of what each role gets in the end."""
    facts, _ = cleaned(facts)
    floors = _Floors(facts, wanted, settings)
    sizes = {role: _size(known, wanted.get(role, Wanted()), limits, settings) for role, known in facts.roles.items()}
    sizes = {role: _in_whole_units(facts, role, size) for role, size in sizes.items()}
    sizes = {role: _not_below(facts.roles[role], size, floors.of(role, size.count)) for role, size in sizes.items()}
    asked = {**_kept(facts, wanted), **(nodes or {})}
    single = {name: _node_size(facts, name, each, sizes, limits, settings) for name, each in asked.items()}
    single = {name: each for name, each in single.items() if each is not None}
    fitted = _within(facts, sizes, single, limits, settings, frozenset(wanted), floors)
    if isinstance(fitted, str):
        return nothing(algorithm, fitted, confidence)
    taken = _taken(facts, wanted, sizes, fitted, has_amounts=not isinstance(reason, str))
    reason = "; ".join([reason if isinstance(reason, str) else reason(fitted), *taken])
    single = {
        name: _as_the_role(each, asked[name], fitted[_role_of(facts, name)])
        for name, each in single.items()
        if each is not None
    }
    groups = {
        role.value: NodeGroupResource(count=size.count, node_resource=_resource(facts.roles[role].resource, size))
        for role, size in fitted.items()
        if _differs(facts.roles[role], size) or (role in wanted and _has_odd(facts, role, single))
    }
    named = {
        name: _resource(_node_resource(facts, name), each)
        for name, each in single.items()
        if each is not None and (_role_of(facts, name).value in groups or _alike_not(_node_resource(facts, name), each))
    }
    if not groups and not named and not replace:
        return nothing(algorithm, f"{reason}: the job already has what its limits and pins allow", confidence)
    return ResourcePlan(
        node_group_resources=groups,
        node_resources=named,
        replace_nodes=replace,
        reason=reason,
        algorithm=algorithm,
        predicted_speed=predicted,
        confidence=confidence,
    )


def _kept(facts: JobFacts, wanted: Mapping[Role, Wanted]) -> dict[str, Wanted]:
    """Nodes with cores of their own, of roles whose cores are not to be changed: they are named, so that they keep
    them."""
    return {
        node.name: Wanted(cpu=node.resource.cpu)
        for node in facts.nodes
        if node.role in wanted
        and wanted[node.role].cpu is None
        and node.resource.cpu is not None
        and not _close(node.resource.cpu, facts.roles[node.role].resource.cpu)
    }


def _has_odd(facts: JobFacts, role: Role, single: Mapping[str, RoleSize | None]) -> bool:
    """Whether a node of the role has cores of its own that it is not to keep."""
    usual = facts.roles[role].resource.cpu
    return any(
        node.role is role and node.name not in single and not _close(node.resource.cpu, usual) for node in facts.nodes
    )


# One node ----------------------------------------------------------------------------------------------------------


def _size(known: RoleFacts, wanted: Wanted, limits: Limits, settings: OptimizerSettings) -> RoleSize:
    count = known.count if wanted.count is None or known.count_pinned else wanted.count
    count = max(count, 1) if known.count_pinned else min(max(count, known.min, 1), max(known.max, 1))
    cpu = known.resource.cpu if wanted.cpu is None or known.cpu_pinned else wanted.cpu
    memory = known.resource.memory if wanted.memory is None or known.memory_pinned else round_memory(wanted.memory)
    return RoleSize(
        count=count,
        cpu=cpu if cpu is None or known.cpu_pinned else _cpu_bounded(cpu, cpu_limit(known, limits), settings),
        memory=memory
        if memory is None or known.memory_pinned
        else _memory_bounded(memory, memory_limit(known, limits), settings),
    )


def _node_size(
    facts: JobFacts,
    name: str,
    wanted: Wanted,
    sizes: Mapping[Role, RoleSize],
    limits: Limits,
    settings: OptimizerSettings,
) -> RoleSize | None:
    node = next((each for each in facts.nodes if each.name == name), None)
    if node is None:
        return None
    known = facts.roles.get(node.role)
    group = sizes.get(node.role)
    if known is None or group is None:
        return None
    most = cpu_limit(known, limits)
    cpu = group.cpu if wanted.cpu is None or known.cpu_pinned else _cpu_bounded(wanted.cpu, most, settings)
    memory = (
        group.memory
        if wanted.memory is None or known.memory_pinned
        else _memory_bounded(round_memory(wanted.memory), memory_limit(known, limits), settings)
    )
    return RoleSize(count=1, cpu=cpu, memory=memory)


class _Floors:
    """MiB below which nodes are not planned: by role, and by how many there are to be of it."""

    def __init__(self, facts: JobFacts, wanted: Mapping[Role, Wanted], settings: OptimizerSettings) -> None:
        self._facts, self._wanted, self._settings = facts, wanted, settings
        self._known: dict[tuple[Role, int], int] = {}

    def of(self, role: Role, count: int) -> int:
        if (role, count) not in self._known:
            self._known[role, count] = self._found(role, count)
        return self._known[role, count]

    def _found(self, role: Role, count: int) -> int:
        known, asked = self._facts.roles[role], self._wanted.get(role, Wanted()).least
        least = least_memory(self._facts, role, self._settings, count=count)
        is_shared_by_fewer = role is Role.PS and count < known.count
        if known.resource.memory is not None and not is_shared_by_fewer:
            least = min(least, known.resource.memory)  # what it has is never taken for too little
        return math.ceil(max(least, asked or 0.0))


def _not_below(known: RoleFacts, size: RoleSize, floor: int) -> RoleSize:
    if size.memory is None or known.memory_pinned or size.memory >= floor:
        return size
    return RoleSize(size.count, size.cpu, floor)


def _as_the_role(size: RoleSize, wanted: Wanted, role: RoleSize) -> RoleSize:
    """What a node has of its own; of all else what its role has got in the end."""
    return RoleSize(
        count=1,
        cpu=role.cpu if wanted.cpu is None else size.cpu,
        memory=role.memory if wanted.memory is None else size.memory,
    )


def _cpu_bounded(cpu: float, most: float, settings: OptimizerSettings) -> float:
    return min(max(math.ceil(cpu * 10 - 1e-9) / 10, settings.floor_cpu), most)


def _memory_bounded(memory: int, most: int, settings: OptimizerSettings) -> int:
    return min(max(memory, settings.floor_memory), most)


# The whole job -----------------------------------------------------------------------------------------------------


def _within(
    facts: JobFacts,
    sizes: Mapping[Role, RoleSize],
    single: Mapping[str, RoleSize | None],
    limits: Limits,
    settings: OptimizerSettings,
    changed: frozenset[Role],
    floors: _Floors,
) -> Mapping[Role, RoleSize] | str:
    """The sizes, made small enough for the job's limits; or why that cannot be."""
    trouble = (
        _roles_trouble(facts) or _limits_trouble(limits, settings) or _memory_trouble(facts, sizes, limits, floors)
    )
    if trouble:
        return trouble
    sizes = dict(sizes)
    extra_cpu, extra_memory = _extra(facts, sizes, single, changed)
    most_cpu = math.inf if limits.cpu is None else limits.cpu - extra_cpu
    most_memory = math.inf if limits.memory is None else limits.memory - extra_memory
    for shrink in (_fewer, _smaller):
        if _cpu_of(sizes) <= most_cpu + 1e-9 and _memory_of(sizes) <= most_memory:
            break
        sizes = shrink(facts, sizes, most_cpu, most_memory, settings, floors)
    if _cpu_of(sizes) > most_cpu + 1e-9 or _memory_of(sizes) > most_memory:
        return (
            f"the limits of the job ({_amounts(limits.cpu, limits.memory)}) are below the least it needs: "
            f"{_amounts(_cpu_of(sizes) + extra_cpu, _memory_of(sizes) + extra_memory)} for "
            + ", ".join(f"{size.count} {role}" for role, size in sizes.items())
        )
    return sizes


def _roles_trouble(facts: JobFacts) -> str | None:
    needed = (Role.WORKER, Role.PS) if facts.is_ps else (Role.WORKER,)
    for role in needed:
        known = facts.roles.get(role)
        if known is None or known.max < 1:
            return f"the job may have no {role}, and {facts.strategy} training needs at least one"
        if known.min > known.max:
            return f"the job wants at least {known.min} and at most {known.max} {role}: there is no such number"
    return None


def _limits_trouble(limits: Limits, settings: OptimizerSettings) -> str | None:
    if not limits.node_cpu >= settings.floor_cpu or not limits.node_memory >= settings.floor_memory:
        return (
            f"one node may have {_amounts(limits.node_cpu, limits.node_memory)}, and none works with less than "
            f"{_amounts(settings.floor_cpu, settings.floor_memory)}"
        )
    for amount in (limits.cpu, limits.memory):
        if amount is not None and not amount > 0:
            return f"the limits of the job ({_amounts(limits.cpu, limits.memory)}) leave no room for a node"
    return None


def _memory_trouble(facts: JobFacts, sizes: Mapping[Role, RoleSize], limits: Limits, floors: _Floors) -> str | None:
    """Nodes whose memory is given, or limited, to less than they are known to need."""
    for role, size in sizes.items():
        known, floor = facts.roles[role], floors.of(role, size.count)
        most = size.memory if known.memory_pinned else memory_limit(known, limits)
        if size.memory is not None and most is not None and most < floor:
            return f"each of {size.count} {role} needs {floor} MiB by what was measured, and may have {most} MiB"
    return None


def _extra(
    facts: JobFacts, sizes: Mapping[Role, RoleSize], single: Mapping[str, RoleSize | None], changed: frozenset[Role]
) -> tuple[float, float]:
    """What single nodes have above their role's size: they are named, or the plan leaves their role alone."""
    cpu = memory = 0.0
    for node in facts.nodes:
        size = sizes.get(node.role)
        if size is None:
            continue
        named = single.get(node.name)
        if named is None and node.role in changed:
            continue
        own_cpu = named.cpu if named is not None else _odd(node.resource.cpu, facts.roles[node.role].resource.cpu)
        own_memory = (
            named.memory if named is not None else _odd(node.resource.memory, facts.roles[node.role].resource.memory)
        )
        cpu += max(0.0, (own_cpu or 0.0) - (size.cpu or 0.0))
        memory += max(0.0, (own_memory or 0.0) - (size.memory or 0.0))
    return cpu, memory


def _odd(own: float | None, group: float | None) -> float | None:
    return None if own == group else own


def _fewer(
    facts: JobFacts,
    sizes: dict[Role, RoleSize],
    most_cpu: float,
    most_memory: float,
    settings: OptimizerSettings,
    floors: _Floors,
) -> dict[Role, RoleSize]:
    for role in (Role.WORKER, Role.PS):
        known, size = facts.roles.get(role), sizes.get(role)
        if known is None or size is None or known.count_pinned:
            continue
        over_cpu = max(0.0, _cpu_of(sizes) - most_cpu)
        over_memory = max(0.0, _memory_of(sizes) - most_memory)
        drop = max(_ceil_part(over_cpu, size.cpu), _ceil_part(over_memory, size.memory))
        count = max(known.min, 1, size.count - drop)
        if role is Role.WORKER:
            count = _in_units(count, facts.node_unit, max(known.min, 1))
        while count < size.count and size.memory is not None and floors.of(role, count) > size.memory:
            count += 1  # fewer parameter servers hold what all of them held
        sizes = {**sizes, role: RoleSize(count, size.cpu, size.memory)}
    return sizes


def _smaller(
    facts: JobFacts,
    sizes: dict[Role, RoleSize],
    most_cpu: float,
    most_memory: float,
    settings: OptimizerSettings,
    floors: _Floors,
) -> dict[Role, RoleSize]:
    for role in (Role.WORKER, Role.PS):
        known, size = facts.roles.get(role), sizes.get(role)
        if known is None or size is None:
            continue
        cpu, memory = size.cpu, size.memory
        if cpu is not None and not known.cpu_pinned:
            over = max(0.0, _cpu_of(sizes) - most_cpu)
            cpu = max(settings.floor_cpu, math.floor((cpu - over / size.count) * 10 + 1e-9) / 10)
        if memory is not None and not known.memory_pinned:
            over = max(0.0, _memory_of(sizes) - most_memory)
            least = min(memory, max(settings.floor_memory, floors.of(role, size.count)))
            memory = max(least, int(memory - over / size.count))
        sizes = {**sizes, role: RoleSize(size.count, cpu, memory)}
    return sizes


def _in_whole_units(facts: JobFacts, role: Role, size: RoleSize) -> RoleSize:
    """Workers come in units; a number that is not to be changed stays as it is."""
    known = facts.roles[role]
    if role is not Role.WORKER or known.count_pinned or size.count == known.count:
        return size
    return RoleSize(_in_units(size.count, facts.node_unit, max(known.min, 1)), size.cpu, size.memory)


def _in_units(count: int, unit: int, least: int) -> int:
    """The next lower multiple; the number itself where that would be too few."""
    down = count // unit * unit if unit > 1 else count
    return down if down >= least else count


def _ceil_part(over: float, each: float | None) -> int:
    return math.ceil(over / each) if over > 0 and each else 0


def _cpu_of(sizes: Mapping[Role, RoleSize]) -> float:
    return sum(size.count * (size.cpu or 0.0) for size in sizes.values())


def _memory_of(sizes: Mapping[Role, RoleSize]) -> float:
    return sum(size.count * (size.memory or 0) for size in sizes.values())


# Words and comparisons ---------------------------------------------------------------------------------------------


def _taken(
    facts: JobFacts, wanted: Mapping[Role, Wanted], sizes: Sizes, fitted: Sizes, *, has_amounts: bool
) -> list[str]:
    """What roles get that is not what was asked for them; and what those get that nothing was asked for. `has_amounts`:
    the reason tells already how much memory the asked ones get."""
    told = []
    for role, size in fitted.items():
        has = facts.roles[role]
        before = sizes[role] if role in wanted else RoleSize(has.count, has.resource.cpu, has.resource.memory)
        memory = before.memory if role in wanted and has_amounts else size.memory
        if before.count != size.count or not _close(before.cpu, size.cpu) or not _close(before.memory, memory):
            told.append(f"the limits leave {_size_words(role, size)} instead of {_size_words(role, before)}")
    return told


def _size_words(role: Role, size: RoleSize) -> str:
    each = _amounts(size.cpu, size.memory)
    return f"{size.count} {role}" if each == "none" else f"{size.count} {role} x {each}"


def _amounts(cpu: float | None, memory: float | None) -> str:
    said = [] if cpu is None else [f"{cpu:g} cores"]
    said += [] if memory is None else [f"{memory:.0f} MiB"]
    return " and ".join(said) or "none"


def _role_of(facts: JobFacts, name: str) -> Role:
    return next(node.role for node in facts.nodes if node.name == name)


def _node_resource(facts: JobFacts, name: str) -> NodeResource:
    return next(node.resource for node in facts.nodes if node.name == name)


def _resource(known: NodeResource, size: RoleSize) -> NodeResource:
    return NodeResource(
        cpu=size.cpu,
        memory=size.memory,
        disk=known.disk,
        gpu_num=known.gpu_num,
        gpu_type=known.gpu_type,
        priority=known.priority,
    )


def _differs(known: RoleFacts, size: RoleSize) -> bool:
    return known.count != size.count or _alike_not(known.resource, size)


def _alike_not(known: NodeResource, size: RoleSize) -> bool:
    return not (_close(known.cpu, size.cpu) and _close(known.memory, size.memory))


def _close(one: float | None, other: float | None) -> bool:
    if one is None or other is None:
        return one is other
    return abs(one - other) <= CLOSE * max(one, other)
