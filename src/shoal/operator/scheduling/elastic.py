"""What an ElasticJob asks for, for the scheduler: its workers are what is decided on, all else comes with them.

The least is the spec's, the most is what the winning ask wants. A job whose master has still to decide asks for its
least number of workers until then: it waits in the queue like any other, and its master starts when it is admitted, or
shortly before. A job that waits for its user (`optimizeMode: manual`, and no count) asks for nothing.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

from shoal.api.elasticjob import Role
from shoal.api.jobspec import JobSpec, RoleNeeds
from shoal.api.labels import MASTER
from shoal.core.hosts import Amounts, Shape
from shoal.operator.asks import Asks, asks_for_members, needs_of
from shoal.operator.memory import Member, MemberState
from shoal.operator.pods import NoPod, master_pod, member_pod
from shoal.operator.scheduling.facts import JobFacts
from shoal.operator.settings import OperatorSettings
from shoal.operator.snapshot import JobSeen
from shoal.operator.standings import of_status
from shoal.scheduler.rows import JobKey, Kind, Part, Priority, Room, Servers

Shaper = Callable[[Mapping[str, Any]], Shape]
"""What a Pod of a manifest will ask for. Raises `ValueError`."""
OURS = "elastic.iml.github.io/operator"
_BESIDE = (Role.CHIEF, Role.EVALUATOR)


def elastic_facts(job: JobSeen, asks: Asks | None, shape: Shaper, settings: OperatorSettings) -> JobFacts | None:
    """None: it takes no part, and whatever Pods it has are somebody's whom nobody decides for."""
    spec = job.spec
    if spec is None or asks is None or job.deleting or job.is_over or spec.managed_by not in (None, "", OURS):
        return None
    count = asks.roles[Role.WORKER].count
    needs = spec.worker
    most = max(count or max(needs.min, 1), 1)
    unit = spec.node_unit
    try:
        shapes = {role: _shape(job, spec, role, asks, shape, settings) for role in (Role.WORKER, Role.PS, *_BESIDE)}
        master = shape(master_pod(job, 1, settings))
    except (NoPod, ValueError, TypeError, LookupError, AttributeError):
        return None  # its own controller says what is wrong with it
    worker = shapes[Role.WORKER]
    written = job.status.scheduling
    return JobFacts(
        key=JobKey(job.key.namespace, job.key.name, Kind.ELASTIC_JOB),
        uid=job.uid,
        priority=Priority(spec.priority),
        created=job.created_at.timestamp(),
        asks=asks_for_members(spec, asks),
        suspended=spec.suspend,
        min=min(math.ceil(max(needs.min, 1) / unit) * unit, most),
        max=most,
        unit=unit if most % unit == 0 else 1,
        trainer_role=str(Role.WORKER),
        each=Room(*worker.amounts),
        placement=worker.placement,
        placements={MASTER: master.placement, **{str(role): shapes[role].placement for role in (Role.PS, *_BESIDE)}},
        fixed=(Part(role=MASTER, each=Room(*master.amounts), count=1), *_fixed(asks, shapes)),
        servers=_servers(spec, asks, shapes[Role.PS], most),
        server_role=str(Role.PS),
        freezing_window=None if spec.freezing_window is None else spec.freezing_window.total_seconds(),
        drain=settings.times.drain.total_seconds() if job.memory.master.silent_since is None else 0.0,
        written=written,
        standing=of_status(written),
        code=(written.code if written else None) or "",
        reason=(written.reason if written else None) or "",
        victims=job.memory.grant.victims,
        spared=frozenset(each.name for each in job.memory.members if each.state is MemberState.SUCCEEDED),
    )


def _shape(job: JobSeen, spec: JobSpec, role: Role, asks: Asks, shape: Shaper, settings: OperatorSettings) -> Shape:
    needs: RoleNeeds | None = needs_of(spec, role)
    if needs is None:
        return Shape(Amounts())
    stand_in = Member(name=f"{job.name}-{role}-0", role=role, id=0, rank=0)
    return shape(member_pod(job, spec, needs, stand_in, asks.roles[role].resource, settings))


def _fixed(asks: Asks, shapes: Mapping[Role, Shape]) -> tuple[Part, ...]:
    return tuple(
        Part(role=str(role), each=Room(*shapes[role].amounts), count=count)
        for role in _BESIDE
        if (count := asks.roles[role].count)
    )


def _servers(spec: JobSpec, asks: Asks, shape: Shape, workers: int) -> Servers | None:
    """Parameter servers, as many for each worker as are asked for beside all of them."""
    count, needs = asks.roles[Role.PS].count, spec.roles.get(Role.PS)
    if not count or needs is None:
        return None
    return Servers(each=Room(*shape.amounts), min=min(max(needs.min, 1), count), max=count, per_trainer=count / workers)
