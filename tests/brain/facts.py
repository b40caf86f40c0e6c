"""Facts of jobs for tests: builders that show what matters, and strategies that make the worst of them."""

import math
from collections.abc import Mapping
from dataclasses import replace

from hypothesis import strategies as st

from shoal.api.elasticjob import Strategy
from shoal.core.facts import (
    JobFacts,
    Limits,
    NodeFacts,
    NodeSample,
    OomEvent,
    OptimizerSettings,
    ResizeCost,
    RoleFacts,
    SpeedSample,
)
from shoal.core.nodes import Role
from shoal.core.optimizing import Canary, History, Kind
from shoal.core.plans import NodeResource, ResourcePlan

NOW = 10_000.0
TICK = 30.0
GIB = 1024
SETTINGS = OptimizerSettings()


def step_seconds(workers: int, cpu: float, ps: int = 0, ps_cpu: float = 1.0) -> float:
    """2 core-seconds of work; parameter servers: 0.2 core-seconds for each; a ring: 0.05 s."""
    if ps:
        return 2.0 / cpu + 0.2 * workers / (ps * ps_cpu) + 0.001 * workers / ps + 0.05
    return 2.0 / cpu + 0.05 * (workers - 1) / workers + 0.01 * math.log2(workers) + 0.05


def speeds(workers: int, cpu: float, ps: int = 0, ps_cpu: float = 4.0, *, end: float = NOW, count: int = 10):
    """Samples of a job with 64 samples in a step, without noise."""
    step = step_seconds(workers, cpu, ps, ps_cpu)
    return tuple(
        SpeedSample(
            at=end - TICK * (count - 1 - number),
            step_seconds=step,
            samples_per_second=64 * workers / step,
            workers=workers,
            ps=ps,
            worker_cpu=cpu,
            ps_cpu=ps_cpu if ps else None,
            worker_cpu_used=2.0 / step,
            ps_cpu_used=0.2 * workers / ps / step if ps else None,
            ps_busiest=0.2 * workers / ps / step / ps_cpu if ps else None,
        )
        for number in range(count)
    )


def node(
    name: str,
    *,
    cpu: float = 4.0,
    memory: int = 16 * GIB,
    used: float = 2 * GIB,
    used_cpu: float = 1.0,
    slope: float = 0.0,
    own: float | None = None,
    watched: float = 3_000.0,
    count: int = 30,
) -> NodeFacts:
    """`used`: memory now; `slope`: MiB in a second."""
    role = Role(name.partition("-")[0])
    every = watched / count
    samples = tuple(
        NodeSample(NOW - every * (count - 1 - number), used_cpu, used - slope * every * (count - 1 - number), own)
        for number in range(count)
    )
    return NodeFacts(name=name, role=role, resource=NodeResource(cpu=cpu, memory=memory), since=NOW - watched - 60.0,
                     samples=samples)  # fmt: skip


def role(count: int, *, cpu: float = 4.0, memory: int = 16 * GIB, most: int = 16, **rest: bool | int) -> RoleFacts:
    return RoleFacts(count=count, resource=NodeResource(cpu=cpu, memory=memory), max=most, **rest)  # type: ignore[arg-type]


def ring(workers: int = 4, *, cpu: float = 4.0, most: int = 16, **rest) -> JobFacts:
    """An all-reduce job that trained with one worker and then with these."""
    known = role(workers, cpu=cpu, most=most)
    return replace(
        JobFacts(
            job="ring",
            strategy=Strategy.ALLREDUCE,
            now=NOW,
            roles={Role.WORKER: known},
            nodes=tuple(node(f"worker-{n}", cpu=cpu) for n in range(workers)),
            speeds=(*speeds(1, cpu, end=NOW - 1_000.0), *speeds(workers, cpu)),
            changed_at=NOW - 900.0,
        ),
        **rest,
    )


def servers(
    workers: int = 4, ps: int = 2, *, cpu: float = 4.0, ps_cpu: float = 4.0, most: int = 16, **rest
) -> JobFacts:
    """A job with parameter servers that trained with one worker and then with these."""
    return replace(
        JobFacts(
            job="ps",
            strategy=Strategy.PARAMETER_SERVER,
            now=NOW,
            roles={Role.WORKER: role(workers, cpu=cpu, most=most), Role.PS: role(ps, cpu=ps_cpu, most=8)},
            nodes=(
                *(node(f"worker-{n}", cpu=cpu) for n in range(workers)),
                *(node(f"ps-{n}", cpu=ps_cpu, used_cpu=0.5) for n in range(ps)),
            ),
            speeds=(*speeds(1, cpu, ps, ps_cpu, end=NOW - 1_000.0), *speeds(workers, cpu, ps, ps_cpu)),
            changed_at=NOW - 900.0,
        ),
        **rest,
    )


# The worst of them -------------------------------------------------------------------------------------------------

ODD = st.one_of(
    st.floats(allow_nan=True, allow_infinity=True),
    st.floats(0.01, 100.0),
    st.sampled_from([0.0, -1.0, math.nan, math.inf, -math.inf, 1e308, 1e-308]),
)
TIMES = st.one_of(st.floats(0.0, NOW), ODD)
MAYBE = st.none() | ODD


@st.composite
def speed_samples(draw: st.DrawFn) -> SpeedSample:
    return SpeedSample(
        at=draw(TIMES),
        step_seconds=draw(ODD),
        samples_per_second=draw(ODD),
        workers=draw(st.integers(-2, 40)),
        ps=draw(st.integers(-1, 9)),
        worker_cpu=draw(MAYBE),
        ps_cpu=draw(MAYBE),
        worker_cpu_used=draw(MAYBE),
        ps_cpu_used=draw(MAYBE),
        ps_busiest=draw(MAYBE),
    )


@st.composite
def roles_of(draw: st.DrawFn, least: int = 0) -> RoleFacts:
    low = draw(st.integers(0, 4))
    return RoleFacts(
        count=draw(st.integers(least, 12)),
        resource=NodeResource(
            cpu=draw(st.none() | st.floats(0.1, 64.0)), memory=draw(st.none() | st.integers(64, 10**6))
        ),
        min=low,
        max=draw(st.integers(0, 40)),
        count_pinned=draw(st.booleans()),
        cpu_pinned=draw(st.booleans()),
        memory_pinned=draw(st.booleans()),
    )


@st.composite
def nodes_of(draw: st.DrawFn, which: Role, number: int) -> NodeFacts:
    samples = draw(st.lists(st.builds(NodeSample, TIMES, ODD, ODD, MAYBE), max_size=6))
    steady = draw(st.lists(st.builds(NodeSample, st.floats(0.0, NOW), st.floats(0.0, 8.0), st.floats(10.0, 9e4),
                                     st.none() | st.floats(0.01, 9.0)), max_size=12))  # fmt: skip
    return NodeFacts(
        name=f"{which}-{number}",
        role=which,
        resource=NodeResource(
            cpu=draw(st.none() | st.floats(0.1, 64.0)), memory=draw(st.none() | st.integers(64, 10**6))
        ),
        since=draw(TIMES),
        samples=tuple(samples) + tuple(sorted(steady, key=lambda sample: sample.at)),
    )


@st.composite
def any_facts(draw: st.DrawFn) -> JobFacts:
    """Sometimes a real job with real samples, sometimes nonsense, mostly both."""
    base = draw(st.sampled_from([None, ring(), servers(), servers(2, 1)]))
    strange = tuple(draw(st.lists(speed_samples(), max_size=4)))
    if base is not None:
        return replace(
            base,
            speeds=(*strange, *base.speeds),
            now=draw(st.sampled_from([NOW, NOW, NOW, math.nan, -5.0])),
            remaining_samples=draw(MAYBE),
            changed_at=draw(st.sampled_from([base.changed_at, None, math.nan, NOW * 9])),
            roles={**base.roles, **draw(st.sampled_from([{}, {Role.WORKER: draw(roles_of())}]))},
            ooms=tuple(draw(st.lists(ooms(), max_size=2))),
            resizes=tuple(draw(st.lists(st.builds(ResizeCost, at=ODD, seconds=ODD), max_size=2))),
        )
    strategy = draw(st.sampled_from(Strategy))
    chosen: Mapping[Role, RoleFacts] = {Role.WORKER: draw(roles_of())}
    if draw(st.booleans()):
        chosen = {**chosen, Role.PS: draw(roles_of())}
    return JobFacts(
        job="odd",
        strategy=strategy,
        now=draw(st.sampled_from([NOW, math.nan, 0.0])),
        roles=chosen,
        nodes=tuple(draw(nodes_of(which, number)) for which in chosen for number in range(draw(st.integers(0, 3)))),
        speeds=strange,
        ooms=tuple(draw(st.lists(ooms(), max_size=2))),
        remaining_samples=draw(MAYBE),
        global_batch=draw(st.none() | st.integers(1, 4096)),
        node_unit=draw(st.sampled_from([1, 1, 2, 4])),
        changed_at=draw(st.none() | TIMES),
    )


@st.composite
def crowded_jobs(draw: st.DrawFn) -> tuple[JobFacts, Limits]:
    """A job that trains, and limits that leave it little or no room: some of its nodes grow, some have run out."""
    counts = {Role.WORKER: draw(st.integers(1, 6)), Role.PS: draw(st.integers(0, 4))}
    known, there, lost = {}, [], []
    for which, count in counts.items():
        if not count:
            continue
        memory, cpu = draw(st.integers(600, 12_000)), draw(st.sampled_from([1.0, 2.0, 4.0]))
        pinned = draw(st.sampled_from([{}, {}, {}, {"memory_pinned": True}, {"count_pinned": True}]))
        known[which] = role(count, cpu=cpu, memory=memory, min=draw(st.integers(1, count)), most=8, **pinned)
        for number in range(count):
            used = draw(st.floats(0.2, 0.98)) * memory
            slope = draw(st.sampled_from([0.0, 0.0, used / 20_000.0]))
            heat = draw(st.sampled_from([0.3, 0.9])) * cpu
            there.append(node(f"{which}-{number}", cpu=cpu, memory=memory, used=used, slope=slope, used_cpu=heat))
        if draw(st.booleans()):
            short = draw(st.sampled_from([memory, memory * 3 // 4]))
            lost.append(OomEvent(node=f"{which}-9", role=which, at=NOW - 5.0, memory=short,
                                 count=count if which is Role.PS else None))  # fmt: skip
    workers, ps, cpu = counts[Role.WORKER], counts[Role.PS], known[Role.WORKER].resource.cpu
    facts = JobFacts(
        job="crowded",
        strategy=Strategy.PARAMETER_SERVER if ps else Strategy.ALLREDUCE,
        now=NOW,
        roles=known,
        nodes=tuple(there),
        speeds=(*speeds(workers + 1, cpu, ps, end=NOW - 1_000.0), *speeds(workers, cpu, ps)),
        ooms=tuple(lost),
        changed_at=NOW - 900.0,
    )
    held = sum(each.count * each.resource.memory for each in known.values())
    cores = sum(each.count * each.resource.cpu for each in known.values())
    return facts, Limits(
        memory=draw(st.none() | st.floats(0.7, 1.6).map(lambda part: int(held * part))),
        cpu=draw(st.none() | st.floats(0.7, 1.6).map(lambda part: cores * part)),
        node_memory=draw(st.sampled_from([65_536, 8_192])),
    )


@st.composite
def ooms(draw: st.DrawFn) -> OomEvent:
    which = draw(st.sampled_from([Role.WORKER, Role.PS]))
    return OomEvent(node=f"{which}-0", role=which, at=draw(TIMES), memory=draw(st.integers(-5, 10**6)),
                    count=draw(st.none() | st.integers(1, 8)))  # fmt: skip


any_limits = st.builds(
    Limits,
    cpu=st.none() | st.floats(0.05, 300.0),
    memory=st.none() | st.integers(1, 10**6),
    node_cpu=st.floats(0.1, 64.0),
    node_memory=st.integers(64, 10**6),
    free_cpu=st.none() | st.floats(0.0, 300.0),
    free_memory=st.none() | st.integers(0, 10**6),
)
any_history = st.builds(
    History,
    distrusted=st.frozensets(st.sampled_from(["scale_workers", "trim_idle"])),
    cooling=st.frozensets(st.sampled_from(Kind)),
    canary=st.none() | st.builds(Canary, tried=st.floats(0.5, 64.0), busy=st.floats(0.5, 64.0)),
)


def total(plan: ResourcePlan, facts: JobFacts) -> tuple[float, float]:
    """Cores and MiB that the job has once the plan is carried out, as far as they are known."""
    cpu = memory = 0.0
    for which, known in facts.roles.items():
        group = plan.node_group_resources.get(which.value)
        count = group.count if group else known.count
        resource = group.node_resource if group else known.resource
        cpu += count * (resource.cpu or 0.0)
        memory += count * (resource.memory or 0)
        for each in facts.nodes:
            if each.role is which and each.name in plan.node_resources:
                own = plan.node_resources[each.name]
                cpu += max(0.0, (own.cpu or 0.0) - (resource.cpu or 0.0))
                memory += max(0.0, (own.memory or 0.0) - (resource.memory or 0.0))
    return cpu, memory
