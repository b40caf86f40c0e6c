"""What the operator needs of Kubernetes: objects as they are, named calls that are safe to repeat, words for people.

Reads come from caches. They may be behind the API server, but never behind what this process wrote. Objects are JSON
as the API server has it; nobody changes what was read. Writes raise:

- `Outdated`: the object has changed since it was read; decide again;
- `NameTaken`: an object of that name belongs to somebody else; it was left alone;
- `Denied`: the server understood and refused (`reason`: QuotaExceeded, NamespaceEnding, Forbidden, InvalidObject);
- `PlatformUnavailable`, or another error of the platform's own: it may work later, maybe it has worked.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from shoal.core.pods import PodSeen

Json = Mapping[str, Any]


class Cluster(Protocol):
    # Reading ---------------------------------------------------------------------------------------------------

    def jobs(self) -> Sequence[Json]:
        """All ElasticJobs that are watched."""
        ...

    def job(self, namespace: str, name: str) -> Json | None: ...

    def plans(self, namespace: str, job: str) -> Sequence[Json]:
        """The ScalePlans and JobResources of the namespace that name the job; for the empty name, that name none."""
        ...

    def namespaces_of(self, job: str) -> Sequence[str]:
        """Where there are jobs of that name."""
        ...

    async def pods(self, namespace: str, uid: str, expected: Mapping[str, str]) -> Sequence[PodSeen]:
        """The Pods owned by the job with that uid. `expected` are names and uids of Pods that were seen before: one
        that the cache lacks is asked of the server, so that who is not in the answer is gone. Where hosts may be
        looked at, a Pod says since when its host is silent."""
        ...

    # Writing ---------------------------------------------------------------------------------------------------

    async def write_status(self, there: Json, status: Json) -> None:
        """Make our part of an object's status this, if the object is still as it was read, and still there."""
        ...

    async def ensure(self, manifest: Json) -> None:
        """See that an object exists and is like this. One of the same name with another owner: `NameTaken`."""
        ...

    async def create_pod(self, manifest: Json) -> str:
        """Create a Pod, and return its uid. That it exists already is fine, if it is the same owner's."""
        ...

    async def delete_pod(self, namespace: str, name: str, uid: str) -> None:
        """Delete this very Pod. That it is gone is fine."""
        ...

    async def can_resize(self) -> bool:
        """Whether the server changes what running Pods have."""
        ...

    async def resize_pod(self, namespace: str, name: str, uid: str, container: str, resources: Json) -> None:
        """Give a container of this very Pod these resources, while it runs. That it is gone is fine."""
        ...

    async def delete_job(self, namespace: str, name: str, uid: str) -> None: ...

    def tell(self, about: Json, *, reason: str, note: str, warning: bool) -> None:
        """An event for people. Never waits, never fails."""
        ...
