"""One round trip about data between an agent and its master: everything its processes have to say, and all answers.

An agent has at most one round under way; what its processes say meanwhile goes into the next. That is the batching, and
the back-pressure too. Whatever was in a round that was never answered is said again after the next handshake: names of
datasets, completions, progress and departures mean the same when they are heard twice, and leases that were on their
way when the connection broke are found by comparing what the agent is `holding` with what the ledger has given.

An owner is one training process in one life: `worker-3.0@4711-8c1f9e02` is local rank 0 of worker-3 with pid 4711. The
rest is a name that its agent gave it: in a container that starts again all have the pids of those before.
"""

from dataclasses import dataclass

from shoal.core.ledger import Ask, Checkpoint, DatasetSpec, DynamicCheckpoint, Lease, Owner, Refusal, Verdict
from shoal.core.nodes import NodeId


def owner_of(node: str, local_rank: int, pid: int, life: str) -> Owner:
    return Owner(f"{node}.{local_rank}@{pid}-{life}")


def node_of(owner: Owner) -> NodeId:
    return NodeId(owner.rpartition("@")[0].rpartition(".")[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """What an owner believes to hold of a dataset; said after every handshake."""

    owner: Owner
    dataset: str
    leases: tuple[Lease, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Departure:
    """An owner has ended; what it held goes to others."""

    owner: Owner
    charged: bool
    """It failed by itself, perhaps because of the data."""
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Restore:
    """An owner's model stands where this checkpoint was taken: so must the ledger."""

    owner: Owner
    number: int
    """The owner's own; said again, it changes nothing. It is in every round until one that carried it was answered."""
    mark: Checkpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """How far a partition of a stream goes. Somebody who knows says so; said again, or late, it changes nothing."""

    dataset: str
    partition: int
    until: int
    """Records exist up to here (not included)."""
    closed: bool = False
    """There will never be more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stand:
    """Where the world that an owner speaks for stands in a dataset that its members deal by themselves."""

    owner: Owner
    generation: int
    step: int
    mark: DynamicCheckpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    number: int
    specs: tuple[DatasetSpec, ...] = ()
    """Datasets that processes have named."""
    extents: tuple[Extent, ...] = ()
    """Heard before the asks: who asks for more gets it from what has grown."""
    stands: tuple[Stand, ...] = ()
    roll_call: bool = False
    """All owners of the node are in `holding`: any other that the ledger knows is gone, and perhaps its agent with it.
    In the first round after every handshake."""
    holding: tuple[Holding, ...] = ()
    asks: tuple[Ask, ...] = ()
    departed: tuple[Departure, ...] = ()
    """Heard behind the asks: what they reported still counts."""
    restores: tuple[Restore, ...] = ()
    marks: tuple[Owner, ...] = ()
    """Who wants a checkpoint of the ledger, with all that this round reports in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetRefusal:
    """A dataset cannot be used as asked: the process that did so has to end."""

    dataset: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """The answer to one owner about one dataset."""

    owner: Owner
    dataset: str
    verdict: Verdict
    leases: tuple[Lease, ...] = ()
    refused: tuple[Refusal, ...] = ()
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundAnswer:
    number: int
    unusable: tuple[DatasetRefusal, ...] = ()
    void: tuple[tuple[Owner, str, int], ...] = ()
    """(owner, dataset, attempt) of what was held and is no longer."""
    given: tuple[Given, ...] = ()
    mark: Checkpoint | None = None
    """If somebody wanted it."""
    refused: tuple[tuple[Owner, str], ...] = ()
    """Checkpoints that are not of this job's datasets, and why."""
