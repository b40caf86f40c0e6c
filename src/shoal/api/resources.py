"""What a Pod gets, in the units of the core: cores, MiB, devices. `None` is "not said", never zero.

Three writings end here: a role's or a plan's `resource`, a JobResource's (bare numbers are MiB), and the requests in
a Pod template. No cpu, memory or disk at all cannot be meant, so a zero there is "not said" too, as in the plans of
programs that write out fields they did not fill. Amounts end where Kubernetes' own do, at 2^63 - 1 bytes.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from shoal.api.elasticjob import ResourceSpec
from shoal.api.fields import IntOrString, Template
from shoal.api.jobresource import MebibyteResource
from shoal.api.quantities import MEBIBYTE, cores, format_cores, format_mebibytes, mebibytes, parse_quantity

GPU_NAMES = ("nvidia.com/gpu", "amd.com/gpu", "alpha.kubernetes.io/nvidia-gpu")
"""What devices are called in Kubernetes' resource lists."""
MOST_MEBIBYTES = (2**63 - 1) // MEBIBYTE
MOST_CORES = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """What one Pod has or should have. Field for field the core's `NodeResource`, without the priority."""

    cpu: float | None = None
    """Cores."""
    memory: int | None = None
    """MiB."""
    disk: int | None = None
    """MiB."""
    gpu_num: int | None = None
    gpu_type: str | None = None

    def over(self, other: "Resource") -> "Resource":
        """This one's words, and the other's where this one is silent."""
        return Resource(
            cpu=self.cpu if self.cpu is not None else other.cpu,
            memory=self.memory if self.memory is not None else other.memory,
            disk=self.disk if self.disk is not None else other.disk,
            gpu_num=self.gpu_num if self.gpu_num is not None else other.gpu_num,
            gpu_type=self.gpu_type if self.gpu_type is not None else other.gpu_type,
        )

    @property
    def is_silent(self) -> bool:
        return self == Resource()


def of_spec(written: ResourceSpec | None) -> Resource:
    """A role's or a plan's `resource`."""
    if written is None:
        return Resource()
    return _resource(
        cpu=written.cpu,
        memory=written.memory,
        disk=_first((written.disk, written.ephemeral_storage)),
        gpu=_first((written.gpu, written.nvidia_gpu)),
        gpu_type=written.gpu_type,
        bare=1,
    )


def of_job_resource(written: MebibyteResource | None) -> Resource:
    """A JobResource's `resource`, where bare numbers are MiB."""
    if written is None:
        return Resource()
    return _resource(
        cpu=written.cpu,
        memory=written.memory,
        disk=written.disk,
        gpu=written.gpu,
        gpu_type=written.gpu_type,
        bare=MEBIBYTE,
    )


def of_template(template: Template) -> Resource:
    """What a template's training container requests, or is limited to where it requests nothing."""
    written = template["spec"]["containers"][0].get("resources") or {}
    return of_list({**(written.get("limits") or {}), **(written.get("requests") or {})})


def of_list(amounts: Mapping[str, Any]) -> Resource:
    """A Kubernetes resource list: `cpu`, `memory`, `ephemeral-storage`, devices by their vendor's name."""
    return _resource(
        cpu=amounts.get("cpu"),
        memory=amounts.get("memory"),
        disk=_first((amounts.get("disk"), amounts.get("ephemeral-storage"))),
        gpu=_first((amounts.get("gpu"), *(amounts.get(vendor) for vendor in GPU_NAMES))),
        gpu_type=None,
        bare=1,
    )


def to_spec(resource: Resource) -> ResourceSpec:
    """The writing of a resource, for a plan or a status."""
    return ResourceSpec(
        cpu=None if resource.cpu is None else format_cores(resource.cpu),
        memory=None if resource.memory is None else format_mebibytes(resource.memory),
        disk=None if resource.disk is None else format_mebibytes(resource.disk),
        gpu=resource.gpu_num,
        gpu_type=resource.gpu_type,
    )


def _resource(
    *,
    cpu: IntOrString | None,
    memory: IntOrString | None,
    disk: IntOrString | None,
    gpu: IntOrString | None,
    gpu_type: str | None,
    bare: int,
) -> Resource:
    return Resource(
        cpu=None if cpu is None else min(cores(cpu), MOST_CORES) or None,
        memory=None if memory is None else min(mebibytes(memory, bare=bare), MOST_MEBIBYTES) or None,
        disk=None if disk is None else min(mebibytes(disk, bare=bare), MOST_MEBIBYTES) or None,
        gpu_num=None if gpu is None else int(parse_quantity(gpu)),
        gpu_type=gpu_type,
    )


def _first(written: Iterable[IntOrString | None]) -> IntOrString | None:
    return next((each for each in written if each is not None), None)
