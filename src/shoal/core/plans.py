"""Plans: what should be true of a job's nodes. The seeds' vocabulary, as values.

A `ResourcePlan` says what every role and some named nodes should have. A `ScalePlan` says which nodes to
launch, remove or migrate to get there, and is what a `Scaler` carries out. Both are absolute (they name
the state that is wanted, not the difference), and neither is made without a reason.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shoal.core.nodes import Node


class Priority(StrEnum):
    HIGH = "high"
    LOW = "low"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeResource:
    """What one node has or should have. `None` is "not said", never zero."""

    cpu: float | None = None
    """Cores."""
    memory: int | None = None
    """MiB."""
    disk: int | None = None
    """MiB."""
    gpu_num: int | None = None
    gpu_type: str | None = None
    priority: Priority | None = None

    def __post_init__(self) -> None:
        for name in ("cpu", "memory", "disk"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise ValueError(f"{name} must be above 0 when it is said, got {value}")
        if self.gpu_num is not None and self.gpu_num < 0:
            raise ValueError(f"gpu_num must not be negative, got {self.gpu_num}")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeGroupResource:
    """How many nodes of one role, and what each has."""

    count: int
    node_resource: NodeResource = field(default_factory=NodeResource)

    def __post_init__(self) -> None:
        if self.count < 0:
            raise ValueError(f"count must not be negative, got {self.count}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourcePlan:
    """What an optimizer or a user wants of the job. An empty one wants nothing changed, and its reason says why.

    A role's entry holds for all its nodes but those that `node_resources` names.
    """

    node_group_resources: Mapping[str, NodeGroupResource] = field(default_factory=dict)
    node_resources: Mapping[str, NodeResource] = field(default_factory=dict)
    replace_nodes: tuple[str, ...] = ()
    """Nodes that are to be replaced as they are, on other hosts."""
    reason: str
    algorithm: str | None = None
    """Who made it; None: a user."""
    predicted_speed: float | None = None
    """Samples per second that the job should reach with it."""
    confidence: float | None = None
    """From 0 to 1, how far the fit behind it can be trusted; None: there was none."""

    @property
    def is_empty(self) -> bool:
        return not (self.node_group_resources or self.node_resources or self.replace_nodes)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalePlan:
    """What a scaler should do to the platform. Carrying it out twice does it once: nodes are named."""

    node_group_resources: Mapping[str, NodeGroupResource] = field(default_factory=dict)
    launch_nodes: tuple["Node", ...] = ()
    remove_nodes: tuple["Node", ...] = ()
    migrate_nodes: tuple["Node", ...] = ()
    ps_addrs: tuple[str, ...] = ()
    reason: str

    @property
    def is_empty(self) -> bool:
        return not (self.launch_nodes or self.remove_nodes or self.migrate_nodes)

    @property
    def is_ask(self) -> bool:
        """It says only what each role and some nodes should have: on a platform that makes the nodes itself."""
        return not (self.launch_nodes or self.remove_nodes) and bool(self.node_group_resources or self.migrate_nodes)
