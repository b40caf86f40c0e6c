"""Everything a policy may look at, at one moment.

The rows are the facts; policies that look at many of them at once use the columns, which are made from the rows once
and are never changed.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from shoal.scheduler.columns import Columns, columns_from
from shoal.scheduler.rows import Host, Job, Quota, ServicePod


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    hosts: tuple[Host, ...] = ()
    """By name."""
    jobs: tuple[Job, ...] = ()
    """By key. Those that are over or suspended by their owner are left out."""
    services: tuple[ServicePod, ...] = ()
    quotas: Mapping[str, Quota] = field(default_factory=dict)
    """By namespace: Kubernetes' own and the settings' together."""
    min_v: float = 0.0
    """As the last decisions left it."""
    kept_columns: Columns | None = field(default=None, compare=False, repr=False)
    """The rows in columns, where somebody keeps them up to date (`board`)."""

    def columns(self) -> Columns:
        """The rows in columns. Whoever calls this keeps the answer: it may be made anew each time."""
        return columns_from(self.hosts, self.jobs) if self.kept_columns is None else self.kept_columns

    @classmethod
    def of(
        cls,
        hosts: Iterable[Host],
        jobs: Iterable[Job],
        services: Iterable[ServicePod] = (),
        quotas: Mapping[str, Quota] | None = None,
        min_v: float = 0.0,
    ) -> "Snapshot":
        return cls(
            hosts=tuple(sorted(hosts, key=lambda host: host.name)),
            jobs=tuple(sorted((job for job in jobs if not (job.over or job.suspended)), key=lambda job: job.key)),
            services=tuple(sorted(services, key=lambda pod: (pod.namespace, pod.name))),
            quotas=dict(quotas or {}),
            min_v=min_v,
        )
