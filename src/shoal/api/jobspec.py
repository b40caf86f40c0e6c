"""What an ElasticJob means: one shape for every accepted spelling, with defaults filled in.

`normalise` reads an ElasticJob that `problems` has nothing against. After it nobody needs to know that a strategy
has six spellings, that roles may stand in `replicaSpecs`, or what is assumed when nothing is said.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from shoal.api.durations import parse_duration
from shoal.api.elasticjob import (
    STRATEGIES,
    ElasticJob,
    ElasticJobSpec,
    JobPriority,
    OptimizeMode,
    ReplicaSpec,
    Role,
    RolePriority,
    RoleSpec,
    Strategy,
)
from shoal.api.fields import Template
from shoal.api.resources import Resource, of_spec, of_template

UID_LETTERS = 8
"""Of a uid in the name of a directory: enough to tell jobs of one name apart, and short enough to read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobDefaults:
    """What is assumed when a job does not say; the operator's settings."""

    max_members: int = 8
    """Workers or parameter servers at most, when neither `max` nor `resourceLimits` says."""
    restart_count: int = 3
    optimize_mode: OptimizeMode = OptimizeMode.SINGLE_JOB


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleNeeds:
    """The members of one role."""

    role: Role
    template: Template
    replicas: int | None
    """What the user asks for; `None`: the optimizer decides."""
    min: int
    max: int
    restart_count: int
    resource: Resource
    """What the role's `resource` says, and else the template."""
    priority: RolePriority | None

    @property
    def processes(self) -> int:
        """Training processes in each Pod that gets what the spec says."""
        return processes_with(self.resource)


def processes_with(resource: Resource) -> int:
    """Training processes in a Pod with this: one for each device, or one."""
    return max(1, resource.gpu_num or 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """One job's wishes, understood."""

    name: str
    namespace: str
    uid: str
    generation: int
    strategy: Strategy
    roles: Mapping[Role, RoleNeeds]
    """Those the job has; there is always a worker."""
    optimize_mode: OptimizeMode
    limits: Resource = field(default_factory=Resource)
    """The most that all members may have together."""
    suspend: bool = False
    priority: JobPriority = JobPriority.NORMAL
    freezing_window: timedelta | None = None
    """`None`: the scheduler's setting."""
    node_unit: int = 1
    global_batch: int | None = None
    checkpoint_path: str | None = None
    """As it is given; `checkpoint_dir` is where they go."""
    checkpoint_seconds: int | None = None
    checkpoint_keep: int | None = None
    tf_config: bool = False
    """Its script only reads `TF_CONFIG`."""
    checkpoint_fuzzy: bool = False
    """Saved while training goes on."""
    ttl_after_finished: timedelta | None = None
    active_deadline: timedelta | None = None
    managed_by: str | None = None
    brain_service: str | None = None
    env: tuple[Mapping[str, Any], ...] = ()
    """Kubernetes `EnvVar`s for all Pods of the job."""

    @property
    def worker(self) -> RoleNeeds:
        return self.roles[Role.WORKER]

    @property
    def checkpoint_dir(self) -> str | None:
        """Where the job's checkpoints go."""
        if self.checkpoint_path is None or self.strategy is not Strategy.PARAMETER_SERVER:
            return self.checkpoint_path
        return own_directory(self.checkpoint_path, self.name, self.uid)


def own_directory(path: str, job: str, uid: str) -> str:
    """The directory of one job with parameter servers in a path that others may have too, and the job of the same name
    before it: its checkpoints have numbers, and those of another job are not its own. A uid that begins with the job's
    name is its name already."""
    return f"{path.rstrip('/')}/{uid if uid.startswith(f'{job}.') else f'{job}.{uid[:UID_LETTERS]}'}"


def normalise(job: ElasticJob, defaults: JobDefaults | None = None) -> JobSpec:
    """What the job means. It must be valid: ask `problems` first when nobody else has."""
    defaults = defaults or JobDefaults()
    spec = job.spec
    limits = of_spec(spec.resource_limits)
    return JobSpec(
        name=job.metadata.name,
        namespace=job.metadata.namespace or "default",
        uid=job.metadata.uid or "",
        generation=job.metadata.generation or 0,
        strategy=_strategy(spec),
        roles=_roles(spec, limits, defaults),
        optimize_mode=OptimizeMode(spec.optimize_mode) if spec.optimize_mode else defaults.optimize_mode,
        limits=limits,
        suspend=bool(spec.suspend),
        priority=JobPriority(spec.priority) if spec.priority else JobPriority.NORMAL,
        freezing_window=None if spec.freezing_window is None else parse_duration(spec.freezing_window),
        node_unit=spec.node_unit or 1,
        global_batch=spec.global_batch,
        checkpoint_path=spec.checkpoint.path if spec.checkpoint else None,
        checkpoint_seconds=spec.checkpoint.every_seconds if spec.checkpoint else None,
        checkpoint_keep=spec.checkpoint.keep if spec.checkpoint else None,
        tf_config=bool(spec.tf_config),
        checkpoint_fuzzy=spec.checkpoint is not None and bool(spec.checkpoint.fuzzy),
        ttl_after_finished=_seconds(spec.ttl_seconds_after_finished),
        active_deadline=_seconds(spec.active_deadline_seconds),
        managed_by=spec.managed_by,
        brain_service=spec.brain_service or None,
        env=tuple({"name": name, **variable} for name, variable in sorted((spec.envs or {}).items())),
    )


def _strategy(spec: ElasticJobSpec) -> Strategy:
    if spec.distribution_strategy:
        return STRATEGIES[spec.distribution_strategy]
    return Strategy.PARAMETER_SERVER if Role.PS in _written(spec) else Strategy.ALLREDUCE


def _written(spec: ElasticJobSpec) -> dict[Role, RoleSpec]:
    """The roles as written, wherever they stand. What stands under the role's own name wins, field by field: that
    is where `kubectl scale` writes, also for a job whose template stands in `replicaSpecs`."""
    replica_specs = spec.replica_specs
    found = {}
    for role, own, mapped in (
        (Role.WORKER, spec.worker, replica_specs and replica_specs.worker),
        (Role.PS, spec.parameter_server, replica_specs and replica_specs.ps),
        (Role.CHIEF, spec.chief, replica_specs and replica_specs.chief),
        (Role.EVALUATOR, spec.evaluator, replica_specs and replica_specs.evaluator),
    ):
        if own or mapped:
            found[role] = _merged(own or RoleSpec(), mapped or ReplicaSpec())
    return found


def _merged(own: RoleSpec, mapped: ReplicaSpec) -> RoleSpec:
    return RoleSpec(
        template=own.template or mapped.template,
        replicas=own.replicas if own.replicas is not None else mapped.replicas or None,  # there, 0 is "not said"
        min=own.min if own.min is not None else mapped.min,
        max=own.max if own.max is not None else mapped.max,
        restart_count=own.restart_count if own.restart_count is not None else mapped.restart_count,
        resource=own.resource or mapped.resource,
        priority=own.priority or mapped.priority,
    )


def _roles(spec: ElasticJobSpec, limits: Resource, defaults: JobDefaults) -> Mapping[Role, RoleNeeds]:
    written = _written(spec)
    resources = {role: of_spec(each.resource).over(of_template(_template(each))) for role, each in written.items()}
    minimums = {role: 1 if each.min is None else each.min for role, each in written.items()}
    left = limits
    for role, resource in resources.items():
        if role is not Role.WORKER:
            left = _less(left, resource, written[role].replicas or minimums[role])
    found = {}
    for role, each in written.items():
        most = each.max if each.max is not None else _default_max(role, each, left, resources[role], defaults)
        found[role] = RoleNeeds(
            role=role,
            template=_template(each),
            replicas=each.replicas,
            min=min(minimums[role], most),
            max=most,
            restart_count=defaults.restart_count if each.restart_count is None else each.restart_count,
            resource=resources[role],
            priority=RolePriority(each.priority) if each.priority else None,
        )
    return found


def _template(role: RoleSpec) -> Template:
    assert role.template is not None, "a valid job has a template for each of its roles"
    return role.template


def _default_max(role: Role, written: RoleSpec, left: Resource, each: Resource, defaults: JobDefaults) -> int:
    """How many members at most when `max` is not said. Who asks for a count may have it."""
    asked = max(written.replicas or 0, written.min or 0, 1)
    match role:
        case Role.CHIEF:
            return 1
        case Role.EVALUATOR:
            return asked
        case Role.PS:
            return max(asked, defaults.max_members)
        case Role.WORKER:
            fitting = how_many_fit(left, each)
            return max(asked, defaults.max_members) if fitting is None else max(fitting, written.min or 1)


def how_many_fit(limits: Resource, each: Resource) -> int | None:
    """How many Pods of this resource the limits allow; `None` when nothing can be said."""
    pairs = (
        (limits.cpu, each.cpu),
        (limits.memory, each.memory),
        (limits.disk, each.disk),
        (limits.gpu_num, each.gpu_num),
    )
    fitting = [int(limit / one + 1e-9) for limit, one in pairs if limit is not None and one]
    return max(min(fitting), 0) if fitting else None


def _less(limits: Resource, each: Resource, count: int) -> Resource:
    return Resource(
        cpu=None if limits.cpu is None else max(limits.cpu - count * (each.cpu or 0), 0),
        memory=None if limits.memory is None else max(limits.memory - count * (each.memory or 0), 0),
        disk=None if limits.disk is None else max(limits.disk - count * (each.disk or 0), 0),
        gpu_num=None if limits.gpu_num is None else max(limits.gpu_num - count * (each.gpu_num or 0), 0),
    )


def _seconds(written: int | None) -> timedelta | None:
    return None if written is None else timedelta(seconds=written)
