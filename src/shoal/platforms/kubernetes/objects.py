"""The Kubernetes objects we touch, with only the fields we use, and where each kind is served.

Decoding skips whatever is not named here: that is what makes 10,000 cached Pods cost 22 MB. Every field but `metadata`
has a default, because a watch's BOOKMARK has no other, and fields at their default are not sent.

A Struct that holds *part* of an object must never be sent as a replacement: the server would take the fields we do not
know for deleted. Such kinds are changed by patch or server-side apply; `Kind.whole` marks those that may be replaced.

Values are frozen and shared (an informer hands out what it caches): change one with `msgspec.structs.replace`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import field

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
Json = dict[str, Any]


class Part(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, gc=False):
    """The root of everything here. Decoded trees have no cycles, so the garbage collector need not look at them."""


# What every object has ---------------------------------------------------------------------------------------------


class OwnerReference(Part, frozen=True):
    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool | None = None
    block_owner_deletion: bool | None = None


class ObjectMeta(Part, frozen=True):
    name: str = ""
    generate_name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int | None = None
    creation_timestamp: datetime | None = None
    deletion_timestamp: datetime | None = None
    deletion_grace_period_seconds: int | None = None
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    owner_references: list[OwnerReference] = []
    finalizers: list[str] = []


def metadata_of(obj: Any) -> ObjectMeta:
    """The metadata of a Struct of ours, of another package's that has None for "not there", or of plain JSON."""
    if isinstance(obj, Mapping):
        return msgspec.convert(obj.get("metadata", {}), ObjectMeta)
    meta = obj.metadata
    if isinstance(meta, ObjectMeta):
        return meta
    known = {name: getattr(meta, name, None) for name in ObjectMeta.__struct_fields__}
    return ObjectMeta(**{name: value for name, value in known.items() if value is not None})


class Bare(Part, frozen=True):
    """An object of any kind of which only the metadata was asked for."""

    api_version: str = ""
    kind: str = ""
    metadata: ObjectMeta = ObjectMeta()


class ListMeta(Part, frozen=True):
    resource_version: str = ""
    continue_: str = field(default="", name="continue")
    remaining_item_count: int | None = None


class Page(Part, Generic[T], frozen=True):
    """One page of a list."""

    metadata: ListMeta = ListMeta()
    items: list[T] | None = None  # an empty Go slice is null


class Condition(Part, frozen=True):
    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""
    last_transition_time: datetime | None = None
    observed_generation: int | None = None


class LabelSelector(Part, frozen=True):
    match_labels: dict[str, str] = {}
    match_expressions: list[Json] = []


# Pods --------------------------------------------------------------------------------------------------------------

Quantities = dict[str, str]
"""cpu, memory and so on, as the server writes them."""


class ResourceRequirements(Part, frozen=True):
    requests: Quantities = {}
    limits: Quantities = {}


class EnvVar(Part, frozen=True):
    name: str = ""
    value: str = ""
    value_from: Json | None = None


class ContainerPort(Part, frozen=True):
    container_port: int = 0
    name: str = ""
    protocol: str = ""


class VolumeMount(Part, frozen=True):
    name: str = ""
    mount_path: str = ""
    sub_path: str = ""
    read_only: bool = False


class Container(Part, frozen=True):
    """Volumes, probes and security contexts are the user's or a template's: carried as JSON, not understood."""

    name: str = ""
    image: str = ""
    image_pull_policy: str = ""
    command: list[str] = []
    args: list[str] = []
    working_dir: str = ""
    env: list[EnvVar] = []
    env_from: list[Json] = []
    ports: list[ContainerPort] = []
    resources: ResourceRequirements = ResourceRequirements()
    resize_policy: list[Json] = []
    volume_mounts: list[VolumeMount] = []
    security_context: Json | None = None
    liveness_probe: Json | None = None
    readiness_probe: Json | None = None
    startup_probe: Json | None = None
    lifecycle: Json | None = None
    termination_message_policy: str = ""
    restart_policy: str = ""
    """Of an init container: `Always` makes it a sidecar."""


class Toleration(Part, frozen=True):
    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""
    toleration_seconds: int | None = None


class PodSpec(Part, frozen=True):
    node_name: str = ""
    containers: list[Container] = []
    init_containers: list[Container] = []
    volumes: list[Json] = []
    restart_policy: str = ""
    service_account_name: str = ""
    automount_service_account_token: bool | None = None
    enable_service_links: bool | None = None
    scheduler_name: str = ""
    priority_class_name: str = ""
    priority: int | None = None
    overhead: Quantities = {}
    """What its runtime takes beside the containers; Kubernetes fills it in."""
    node_selector: dict[str, str] = {}
    affinity: Json | None = None
    tolerations: list[Toleration] = []
    hostname: str = ""
    subdomain: str = ""
    termination_grace_period_seconds: int | None = None
    security_context: Json | None = None
    image_pull_secrets: list[Json] = []
    scheduling_gates: list[Json] = []
    topology_spread_constraints: list[Json] = []


class ContainerStateRunning(Part, frozen=True):
    started_at: datetime | None = None


class ContainerStateWaiting(Part, frozen=True):
    reason: str = ""
    message: str = ""


class ContainerStateTerminated(Part, frozen=True):
    exit_code: int = 0
    signal: int | None = None
    reason: str = ""
    message: str = ""
    started_at: datetime | None = None
    finished_at: datetime | None = None


class ContainerState(Part, frozen=True):
    waiting: ContainerStateWaiting | None = None
    running: ContainerStateRunning | None = None
    terminated: ContainerStateTerminated | None = None


class ContainerStatus(Part, frozen=True):
    name: str = ""
    ready: bool = False
    restart_count: int = 0
    state: ContainerState = ContainerState()
    last_state: ContainerState = ContainerState()
    allocated_resources: Quantities = {}
    resources: ResourceRequirements | None = None


class PodStatus(Part, frozen=True):
    phase: str = ""
    reason: str = ""
    message: str = ""
    pod_ip: str = field(default="", name="podIP")
    host_ip: str = field(default="", name="hostIP")
    start_time: datetime | None = None
    conditions: list[Condition] = []
    container_statuses: list[ContainerStatus] = []
    init_container_statuses: list[ContainerStatus] = []
    resize: str = ""
    nominated_node_name: str = ""
    observed_generation: int | None = None


class Pod(Part, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()


# Services, secrets, configuration ----------------------------------------------------------------------------------


class ServicePort(Part, frozen=True):
    port: int = 0
    name: str = ""
    protocol: str = ""
    target_port: int | str | None = None


class ServiceSpec(Part, frozen=True):
    selector: dict[str, str] = {}
    ports: list[ServicePort] = []
    cluster_ip: str = field(default="", name="clusterIP")
    type: str = ""
    publish_not_ready_addresses: bool = False


class Service(Part, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: ServiceSpec = ServiceSpec()


class Secret(Part, frozen=True):
    """`data` is base64 on the wire; msgspec does that for bytes."""

    metadata: ObjectMeta = ObjectMeta()
    type: str = ""
    data: dict[str, bytes] = {}
    string_data: dict[str, str] = {}
    immutable: bool | None = None

    def __repr__(self) -> str:
        return f"Secret({self.metadata.namespace}/{self.metadata.name}, keys {sorted(self.data)})"


class ConfigMap(Part, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    data: dict[str, str] = {}
    binary_data: dict[str, bytes] = {}
    immutable: bool | None = None


class Namespace(Part, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    status: Json = {}


# Who may do what ---------------------------------------------------------------------------------------------------


class ServiceAccount(Part, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    automount_service_account_token: bool | None = None


class PolicyRule(Part, frozen=True):
    api_groups: list[str] = []
    resources: list[str] = []
    resource_names: list[str] = []
    verbs: list[str] = []
    non_resource_urls: list[str] = field(default_factory=list, name="nonResourceURLs")


class Role(Part, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    rules: list[PolicyRule] | None = None


class RoleRef(Part, frozen=True):
    api_group: str = ""
    kind: str = ""
    name: str = ""


class Subject(Part, frozen=True):
    kind: str = ""
    name: str = ""
    namespace: str = ""
    api_group: str = ""


class RoleBinding(Part, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    role_ref: RoleRef = RoleRef()
    subjects: list[Subject] = []


class TokenRequestSpec(Part, frozen=True):
    audiences: list[str] = []
    expiration_seconds: int | None = None
    bound_object_ref: Json | None = None


class TokenRequestStatus(Part, frozen=True):
    token: str = ""
    expiration_timestamp: datetime | None = None

    def __repr__(self) -> str:
        return f"TokenRequestStatus(token=..., expiration_timestamp={self.expiration_timestamp})"


class TokenRequest(Part, frozen=True):
    spec: TokenRequestSpec = TokenRequestSpec()
    status: TokenRequestStatus = TokenRequestStatus()


class ResourceAttributes(Part, frozen=True):
    namespace: str = ""
    verb: str = ""
    group: str = ""
    resource: str = ""
    subresource: str = ""
    name: str = ""


class AccessReviewSpec(Part, frozen=True):
    resource_attributes: ResourceAttributes | None = None


class AccessReviewStatus(Part, frozen=True):
    allowed: bool = False
    reason: str = ""


class SelfSubjectAccessReview(Part, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: AccessReviewSpec = AccessReviewSpec()
    status: AccessReviewStatus = AccessReviewStatus()


# Hosts -------------------------------------------------------------------------------------------------------------


class Taint(Part, frozen=True):
    key: str = ""
    value: str = ""
    effect: str = ""


class NodeSpec(Part, frozen=True):
    unschedulable: bool = False
    taints: list[Taint] = []


class NodeStatus(Part, frozen=True):
    capacity: Quantities = {}
    allocatable: Quantities = {}
    conditions: list[Condition] = []


class Node(Part, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


class ResourceQuotaSpec(Part, frozen=True):
    hard: Quantities = {}
    scopes: list[str] = []
    scope_selector: Json | None = None


class ResourceQuota(Part, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: ResourceQuotaSpec = ResourceQuotaSpec()


# The rest ----------------------------------------------------------------------------------------------------------


class LeaseSpec(Part, frozen=True):
    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: datetime | None = None
    renew_time: datetime | None = None
    lease_transitions: int | None = None
    strategy: str | None = None
    preferred_holder: str | None = None


class Lease(Part, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: LeaseSpec = LeaseSpec()


class ObjectReference(Part, frozen=True):
    api_version: str = ""
    kind: str = ""
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    field_path: str = ""


class EventSeries(Part, frozen=True):
    count: int = 0
    last_observed_time: datetime | None = None


class Event(Part, frozen=True):
    """An event of `events.k8s.io/v1`; `kubectl describe` shows it like any other."""

    metadata: ObjectMeta = ObjectMeta()
    event_time: datetime | None = None
    series: EventSeries | None = None
    reporting_controller: str = ""
    reporting_instance: str = ""
    action: str = ""
    reason: str = ""
    regarding: ObjectReference = ObjectReference()
    related: ObjectReference | None = None
    note: str = ""
    type: str = ""


class NetworkPolicySpec(Part, frozen=True):
    pod_selector: LabelSelector = LabelSelector()
    policy_types: list[str] = []
    ingress: list[Json] = []
    egress: list[Json] = []


class NetworkPolicy(Part, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: NetworkPolicySpec = NetworkPolicySpec()


class PodDisruptionBudgetSpec(Part, frozen=True):
    min_available: int | str | None = None
    max_unavailable: int | str | None = None
    selector: LabelSelector | None = None


class PodDisruptionBudgetStatus(Part, frozen=True):
    disruptions_allowed: int = 0
    current_healthy: int = 0
    desired_healthy: int = 0


class PodDisruptionBudget(Part, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: PodDisruptionBudgetSpec = PodDisruptionBudgetSpec()
    status: PodDisruptionBudgetStatus = PodDisruptionBudgetStatus()


class ScaleSpec(Part, frozen=True, omit_defaults=False):
    replicas: int = 0


class ScaleStatus(Part, frozen=True):
    replicas: int = 0
    selector: str = ""


class Scale(Part, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: ScaleSpec = ScaleSpec()
    status: ScaleStatus = ScaleStatus()


# Where each kind is served -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind(Generic[T_co]):
    """A kind: its place in the API, and what its objects are decoded into (a Struct, or `dict` for plain JSON)."""

    group: str
    version: str
    kind: str
    plural: str
    type: type[T_co]
    namespaced: bool = True
    whole: bool = False
    """The type holds every field that matters: an object may be sent back as a replacement."""

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str | None = None, name: str | None = None, subresource: str | None = None) -> str:
        """The path of one object, or of the collection; of all namespaces' objects without a namespace."""
        parts = ["apis", self.group, self.version] if self.group else ["api", self.version]
        if self.namespaced and namespace:
            parts += ["namespaces", namespace]
        parts.append(self.plural)
        if name:
            parts.append(name)
        if subresource:
            parts.append(subresource)
        return "/" + "/".join(parts)


def _core(kind: str, plural: str, type_: type[T], *, namespaced: bool = True, whole: bool = False) -> Kind[T]:
    return Kind(group="", version="v1", kind=kind, plural=plural, type=type_, namespaced=namespaced, whole=whole)


PODS = _core("Pod", "pods", Pod)
SERVICES = _core("Service", "services", Service)
SECRETS = _core("Secret", "secrets", Secret, whole=True)
CONFIG_MAPS = _core("ConfigMap", "configmaps", ConfigMap, whole=True)
NAMESPACES = _core("Namespace", "namespaces", Namespace, namespaced=False)
NODES = _core("Node", "nodes", Node, namespaced=False)
RESOURCE_QUOTAS = _core("ResourceQuota", "resourcequotas", ResourceQuota)
SERVICE_ACCOUNTS = _core("ServiceAccount", "serviceaccounts", ServiceAccount)
ROLES = Kind(group="rbac.authorization.k8s.io", version="v1", kind="Role", plural="roles", type=Role, whole=True)
ROLE_BINDINGS = Kind(
    group="rbac.authorization.k8s.io",
    version="v1",
    kind="RoleBinding",
    plural="rolebindings",
    type=RoleBinding,
    whole=True,
)
LEASES = Kind(group="coordination.k8s.io", version="v1", kind="Lease", plural="leases", type=Lease, whole=True)
EVENTS = Kind(group="events.k8s.io", version="v1", kind="Event", plural="events", type=Event)
NETWORK_POLICIES = Kind(
    group="networking.k8s.io", version="v1", kind="NetworkPolicy", plural="networkpolicies", type=NetworkPolicy
)
POD_DISRUPTION_BUDGETS = Kind(
    group="policy", version="v1", kind="PodDisruptionBudget", plural="poddisruptionbudgets", type=PodDisruptionBudget
)
ACCESS_REVIEWS = Kind(
    group="authorization.k8s.io",
    version="v1",
    kind="SelfSubjectAccessReview",
    plural="selfsubjectaccessreviews",
    type=SelfSubjectAccessReview,
    namespaced=False,
)


def micro_time(moment: datetime) -> datetime:
    """A time as Kubernetes' MicroTime takes it: in UTC and never on a whole second.

    The server wants exactly six digits behind the point, and a whole second would be written without any.
    """
    moment = moment.astimezone(UTC)
    return moment if moment.microsecond else moment.replace(microsecond=1)
