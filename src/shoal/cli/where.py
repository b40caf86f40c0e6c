"""Which platform a command speaks to: this machine's jobs, or a cluster's. Pure.

The verbs are the same everywhere. What was said decides (`--platform`, or a flag that only a cluster has); else the
job's name does; else whether there is anything on this machine at all.
"""

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum

from shoal.core.errors import BadInput


class Platform(StrEnum):
    LOCAL = "local"
    KUBERNETES = "kubernetes"


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """What was said about the place."""

    platform: str | None = None
    kubeconfig: str | None = None
    context: str | None = None
    namespace: str | None = None
    all_namespaces: bool = False

    def __post_init__(self) -> None:
        if self.platform is not None and self.platform not in tuple(Platform):
            raise BadInput(f"--platform wants {' or '.join(Platform)}, got {self.platform!r}")
        if self.platform == Platform.LOCAL and self.names_a_cluster:
            raise BadInput("--platform local: --kubeconfig, --context and --namespace are for a cluster's jobs")
        if self.all_namespaces and self.namespace is not None:
            raise BadInput("--namespace and --all-namespaces contradict each other: give one")

    @property
    def names_a_cluster(self) -> bool:
        return self.all_namespaces or any(v is not None for v in (self.kubeconfig, self.context, self.namespace))


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What there is."""

    local_jobs: Collection[str]
    """Names of jobs that were started on this machine, ended ones too."""
    local_running: bool
    cluster: bool
    """A kubeconfig, or a service account of the Pod we are in."""


def platform_of(where: Where, job: str | None, known: Known) -> Platform:
    """Where a command about `job` goes; None: about all jobs."""
    if where.platform is not None:
        return Platform(where.platform)
    if where.names_a_cluster:
        return Platform.KUBERNETES
    if not known.cluster or job in known.local_jobs:
        return Platform.LOCAL
    if job is None and known.local_running:
        return Platform.LOCAL
    return Platform.KUBERNETES
