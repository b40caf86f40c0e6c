"""What the operator is told at its start: one frozen value, built by the command line, passed down, never changed."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta

from shoal.api.elasticjob import Role, Strategy
from shoal.api.jobspec import JobDefaults, JobSpec
from shoal.core.errors import BadInput


@dataclass(frozen=True, slots=True, kw_only=True)
class JobTimes:
    """How long the operator waits before it acts by itself."""

    silence: timedelta = timedelta(seconds=60)
    """No master has answered for so long: failed members are replaced without its word. Longer than a master Pod takes
    to come back, so that two do not decide on one loss."""
    drain: timedelta = timedelta(seconds=120)
    """What a master gets to drain members that have to leave. A checkpoint of a large model takes a minute."""
    ending: timedelta = timedelta(seconds=30)
    """What Pods get to end by themselves when the job is over: one that ends keeps its logs, a deleted one does not."""
    master_backoff: timedelta = timedelta(seconds=1)
    """The wait before a master that was never ready is followed by the next; doubles each time."""
    master_backoff_most: timedelta = timedelta(seconds=60)
    relaunch_backoff: timedelta = timedelta(seconds=10)
    """The wait before a member that no master manages is replaced a second time; doubles each time."""
    relaunch_backoff_most: timedelta = timedelta(minutes=5)
    pending: timedelta = timedelta(minutes=15)
    """A replacement whose Pod does not run after so long is given up, and the one that it was to replace stays. A job
    whose master is not ready after so long fails."""
    host_grace: timedelta = timedelta(seconds=15)
    """Kubernetes has not heard of a host for so long: who is on it is lost. It has waited for 40 s before it said so; a
    kubelet that is restarted is back within this."""

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if getattr(self, name) < timedelta(0):
                raise BadInput(f"{name} must not be negative")


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorSettings:
    image: str
    """Shoal's image: of the master, and of the init container that brings the agent."""
    image_pull_policy: str = "IfNotPresent"
    image_pull_secrets: tuple[str, ...] = ()
    """Secrets in a job's namespace with which that image is pulled."""
    install_key: bytes = field(repr=False)
    """All tokens of all jobs are made from it."""
    master_port: int = 7077
    master_resources: Mapping[str, str] = field(default_factory=lambda: {"cpu": "100m", "memory": "256Mi"})
    """What a master Pod asks for. It has no cpu limit: a throttled master would look silent."""
    master_memory_limit: str = "1Gi"
    master_restarts: int = 10
    """So many masters in a row that end by their own fault before they were ever ready end the job. With the waits
    between them that is five minutes."""
    master_timeout: timedelta = timedelta(minutes=10)
    """How long agents train on without a master before they give up. A new one is there within seconds; a cluster
    whose control plane is down may take minutes."""
    master_frozen: timedelta = timedelta(seconds=60)
    """A master that has been ready and answers nobody for so long is ended by its host, and followed by the next.
    Generous, for one on a host that is too busy is not frozen; and far below `master_timeout`."""
    managed: frozenset[Role] = frozenset({Role.WORKER})
    """Roles whose members the job's master knows: it drains them and decides on their replacement."""
    managed_with_servers: frozenset[Role] = frozenset(Role)
    """The same, of jobs with parameter servers."""
    pod_scaler: bool = False
    """Masters create and delete the Pods of those roles themselves, instead of the operator."""
    shared_memory: str | None = None
    """The size of /dev/shm of a training Pod; None: half of the Pod's memory limit, as Linux does it, or no bound
    where there is none."""
    log_format: str = "text"
    """Of masters: text or json."""
    gpu_resource: str = "nvidia.com/gpu"
    gpu_type_label: str = "nvidia.com/gpu.product"
    """The label of hosts that names their kind of device."""
    priority_classes: Mapping[str, str] = field(default_factory=dict)
    """The PriorityClass of a role's `priority`."""
    priority_class: str | None = None
    """The PriorityClass of every Pod of a job that names no other: below that of services. None: there is none."""
    training_image: str | None = None
    """Of TrainingJobs that name none."""
    etcd_image: str = "quay.io/coreos/etcd:v3.5.21"
    """Where masters of TrainingJobs keep their state."""
    defaults: JobDefaults = field(default_factory=JobDefaults)
    """What is assumed where a job does not say."""
    autoscale_seconds: int = 30
    """How often masters of jobs that size themselves look at them, and how long one sample of their speed takes."""
    operator_namespace: str | None = None
    """Where the operator runs: its Pods may reach a job's master."""
    parallel_writes: int = 32
    """Calls that create or delete Pods at once, of all jobs together. The API server gains nothing beyond that."""
    most_at_once: int = 500
    """Pods of one job that are made in one look; the others follow in the next. A look must not hold up the others."""
    news_rest: float = 20.0
    """News of Pods that start waits this many times as long as the last status took to write (see `pacing`)."""
    times: JobTimes = JobTimes()

    def managed_in(self, spec: JobSpec) -> frozenset[Role]:
        """Roles whose members the master of this job knows."""
        return self.managed_with_servers if spec.strategy is Strategy.PARAMETER_SERVER else self.managed

    def made_by_master(self, spec: JobSpec) -> frozenset[Role]:
        """Roles of this job whose Pods the operator does not make."""
        return self.managed_in(spec) if self.pod_scaler else frozenset()
