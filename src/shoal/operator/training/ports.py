"""What the controller of TrainingJobs needs of Kubernetes. The errors are those of `operator.ports.Cluster`."""

from collections.abc import Sequence
from typing import Protocol

from shoal.core.workloads import TrainingPod, Workload, WorkloadKind
from shoal.operator.ports import Json


class TrainingCluster(Protocol):
    # Reading, from caches ------------------------------------------------------------------------------------

    def job(self, namespace: str, name: str) -> Json | None: ...

    def workloads(self, uid: str) -> Sequence[Workload]:
        """The ReplicaSets, StatefulSets and Jobs that the job with this uid owns."""
        ...

    def pods(self, uid: str) -> Sequence[TrainingPod]:
        """The Pods of the job with this uid, whichever of its workloads made them."""
        ...

    # Writing -------------------------------------------------------------------------------------------------

    async def write_status(self, there: Json, status: Json) -> None:
        """Make an object's status this, if the object is still as it was read, and still there."""
        ...

    async def ensure(self, manifest: Json) -> None:
        """See that an object exists and is like this. One of the same name with another owner: `NameTaken`."""
        ...

    async def create(self, manifest: Json) -> None:
        """Create a workload. That it exists already is fine, if it is the same owner's."""
        ...

    async def resize(
        self,
        kind: WorkloadKind,
        namespace: str,
        name: str,
        uid: str,
        generation: int,
        count: int,
        affinity: Json | None,
    ) -> None:
        """Let this very workload make so many Pods; `Outdated` if anybody has asked something else of it since this
        generation, but not because more of its Pods run by now. `affinity`: of those that it makes from now on; None:
        as before."""
        ...

    async def delete(self, kind: WorkloadKind, namespace: str, name: str, uid: str) -> None:
        """Delete this very workload, and its Pods after it. That it is gone is fine."""
        ...

    async def evict(self, namespace: str, name: str, uid: str) -> None:
        """Ask this very Pod to go. That it is gone is fine; `Denied` where a disruption budget forbids it."""
        ...

    def tell(self, about: Json, *, reason: str, note: str, warning: bool) -> None:
        """An event for people. Never waits, never fails."""
        ...
