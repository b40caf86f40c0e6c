"""What a TrainingJob means: one shape for every accepted spelling, with defaults filled in.

`understand` reads a TrainingJob that `problems` has nothing against. A job is *ours* when its master is: there is a
`master` that names no entrypoint of its own, and trainers have one. Then trainers run it under `shoal agent`, join the
master by themselves, and see every change of their number. Any other job runs what it says, or what its image does.

Parameter servers of such a job that name no entrypoint of their own are ours as well: they run the trainers' under
`shoal agent --role ps`, and trainers follow every change of their number. Any others stay at their least number.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

from shoal.api.durations import parse_duration
from shoal.api.elasticjob import JobPriority
from shoal.api.fields import IntOrString
from shoal.api.resources import GPU_NAMES, Resource, of_list
from shoal.api.trainingjob import (
    PRIORITIES,
    MasterSpec,
    Part,
    PserverSpec,
    Requirements,
    TrainerSpec,
    TrainingJob,
    TrainingJobSpec,
    TrainingRole,
)

DEFAULT_PORT = 7164
DEFAULT_RESTARTS = 3
MASTER_RESOURCE = Resource(cpu=0.1, memory=256)
ETCD_RESOURCE = Resource(cpu=0.1, memory=128)
"""Of each member: without requests it would be the first to suffer on a full host, and the job with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Instances:
    """The Pods of one role."""

    role: TrainingRole
    min: int
    max: int
    resource: Resource
    """What each asks for."""
    written: Part


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSpec:
    name: str
    namespace: str
    uid: str
    generation: int
    image: str | None
    """None: the operator's setting."""
    trainer: Instances
    pserver: Instances | None
    master: Instances | None
    etcd: Instances | None
    """Of the master; there is none without one."""
    etcd_storage: str | None
    priority: JobPriority
    freezing_window: timedelta | None
    """None: the scheduler's setting."""
    suspend: bool
    fault_tolerant: bool
    restarts: int
    """Failures of trainers that the job survives, for each trainer it may have."""
    passes: int
    ports: tuple[int, ...]
    host_network: bool
    node_selector: Mapping[str, str]
    written: TrainingJobSpec
    servers_stay: str = ""
    """Why the parameter servers that it has stay as they are, whatever is written; empty: they need not."""

    @property
    def is_ours(self) -> bool:
        """Its trainers run under our agent, and its master is ours."""
        return (
            self.master is not None
            and self.master.written.entrypoint is None
            and self.trainer.written.entrypoint is not None
        )

    @property
    def slots(self) -> int:
        """Training processes in each trainer: one for each device, or one."""
        return max(1, self.trainer.resource.gpu_num or 0)

    @property
    def servers_follow(self) -> bool:
        """Its parameter servers run under our agent: the master has a place for each, and trainers see them come and
        go."""
        return self.pserver is not None and not self.servers_fixed

    @property
    def servers_fixed(self) -> str:
        """Why trainers would not notice another number of parameter servers; empty: they would."""
        if not self.is_ours:
            return "its trainers do not run under `shoal agent`"
        if self.pserver is not None and self.pserver.written.entrypoint is not None:
            return "they run an entrypoint of their own, and not the trainers' under `shoal agent`"
        if self.slots > 1:
            return f"each trainer has {self.slots} processes, and with parameter servers that follow it has one"
        return self.servers_stay

    @property
    def checkpoint_path(self) -> str | None:
        return None if self.written.checkpoint is None else self.written.checkpoint.path

    @property
    def is_elastic(self) -> bool:
        return self.trainer.min < self.trainer.max

    @property
    def workspace(self) -> str | None:
        written = self.trainer.written
        return written.workspace if isinstance(written, TrainerSpec) else None

    @property
    def parts(self) -> tuple[Instances, ...]:
        """What the job cannot be without beside its trainers: `min` of each."""
        return tuple(part for part in (self.master, self.etcd, self.pserver) if part is not None)


def understand(job: TrainingJob) -> TrainingSpec:
    """What the job means. It must be valid: ask `problems` first when nobody else has."""
    spec = job.spec
    trainer = _instances(TrainingRole.TRAINER, spec.trainer)
    fault_tolerant = trainer.min < trainer.max if spec.fault_tolerant is None else spec.fault_tolerant
    restarts = spec.trainer.max_restarts
    return TrainingSpec(
        name=job.metadata.name,
        namespace=job.metadata.namespace or "default",
        uid=job.metadata.uid or "",
        generation=job.metadata.generation or 0,
        image=spec.image or None,
        trainer=trainer,
        pserver=None if spec.pserver is None else _instances(TrainingRole.PSERVER, spec.pserver),
        master=None if spec.master is None else _one(TrainingRole.MASTER, spec.master, MASTER_RESOURCE),
        etcd=None if spec.master is None else _etcd(spec.master),
        etcd_storage=_storage(spec.master),
        priority=PRIORITIES[spec.priority] if spec.priority else JobPriority.NORMAL,
        freezing_window=None if spec.freezing_window is None else parse_duration(spec.freezing_window),
        suspend=bool(spec.suspend),
        fault_tolerant=fault_tolerant,
        restarts=restarts if restarts is not None else DEFAULT_RESTARTS if fault_tolerant else 0,
        passes=spec.passes or spec.trainer.passes or 1,
        ports=_ports(spec),
        host_network=bool(spec.host_network or spec.host_network_of_tpr or spec.host_network_by_tag),
        node_selector={**(spec.node_selector_of_crd or {}), **(spec.node_selector or {})},
        written=spec,
    )


def _instances(role: TrainingRole, written: TrainerSpec | PserverSpec) -> Instances:
    least = written.min_instance or min(written.max_instance or 1, 1)
    return Instances(
        role=role,
        min=least,
        max=max(written.max_instance or least, least),
        resource=resource_of(written.resources),
        written=written,
    )


def _one(role: TrainingRole, written: Part, default: Resource) -> Instances:
    return Instances(role=role, min=1, max=1, resource=resource_of(written.resources).over(default), written=written)


def _etcd(master: MasterSpec) -> Instances:
    count = master.etcd_replicas or 1
    return Instances(role=TrainingRole.ETCD, min=count, max=count, resource=ETCD_RESOURCE, written=Part())


def _storage(master: MasterSpec | None) -> str | None:
    return None if master is None or master.etcd_storage is None else str(master.etcd_storage)


def _ports(spec: TrainingJobSpec) -> tuple[int, ...]:
    first = spec.port or DEFAULT_PORT
    dense = 1 if spec.ports_num is None else spec.ports_num
    sparse = 1 if spec.ports_num_for_sparse is None else spec.ports_num_for_sparse
    return tuple(port for port in range(first, first + dense + sparse) if port <= 65_535)


def resource_of(written: Requirements | None) -> Resource:
    """What a Pod asks for: its requests, its limits where it has none, and devices from either."""
    return of_list(requested(written)) if written is not None else Resource()


def requested(written: Requirements) -> dict[str, IntOrString]:
    return {**(written.limits or {}), **(written.requests or {})}


def in_the_words_of(gpu_resource: str, amounts: Mapping[str, IntOrString] | None) -> dict[str, str]:
    """A resource list for a Pod: the old name of devices is one that Kubernetes no longer takes."""
    old = GPU_NAMES[-1]
    return {gpu_resource if name == old else name: str(amount) for name, amount in (amounts or {}).items()}
