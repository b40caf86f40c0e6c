"""What one look at a job comes to: a status to record, then things to do. Values; `reconcile` carries them out."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from shoal.operator.counting import Resized
from shoal.operator.objects import Manifest
from shoal.operator.snapshot import JobStatus, PlanStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class PodRef:
    name: str
    uid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Resize:
    """What a running Pod's training container should have instead."""

    pod: PodRef
    container: str
    resources: Manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """An event for people."""

    reason: str
    note: str
    warning: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPlan:
    status: JobStatus
    plan_statuses: Mapping[str, PlanStatus] = field(default_factory=dict)
    """By `PlanSeen.ask`."""
    ensure: tuple[Manifest, ...] = ()
    """Fixed objects that must exist, as they are here, before any Pod can be made."""
    check: tuple[Manifest, ...] = ()
    """The same that were made before, by another process: somebody may have deleted one. Nobody waits for that."""
    form: str | None = None
    """What is prepared once all of `ensure` or `check` is there."""
    create: tuple[Manifest, ...] = ()
    delete: tuple[PodRef, ...] = ()
    resize: tuple[Resize, ...] = ()
    delete_job: bool = False
    notices: tuple[Notice, ...] = ()
    resized: Resized | None = None
    """What became of the job's size, and the classes of `lost` members: counted when they are recorded."""
    lost: tuple[str, ...] = ()
    recheck_at: datetime | None = None
    """When time alone will have changed something; None: only events can."""
