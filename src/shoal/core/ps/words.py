"""What training processes and the master say to each other about parameter servers. Agents pass it on as it is.

One change, from the first word to the last:

    master    PreparePS ─▶        Drain ─▶          Move ─▶ (chief)   Go ─▶            Settled ─▶
    trainers        ◀─ PreparedPS      ◀─ Drained        ◀─ Moved         ◀─ Resumed

A word is a level, not an edge: it is said again to whoever comes back, and who has done it already answers again. So
that an answer to an earlier asking is not taken for one to this, each pause has a number, its *barrier*, and each try
to move state has one too.
"""

from typing import Annotated

import msgspec

from shoal.core.ledger import Checkpoint
from shoal.core.ps.cluster import MAX_PARTITIONS, Bytes, Partition, PSCheckpoint, PSCluster, Transfer

Number = Annotated[int, msgspec.Meta(ge=0, lt=2**53)]
Detail = Annotated[str, msgspec.Meta(max_length=2000)]
Path = Annotated[str, msgspec.Meta(min_length=1, max_length=4096)]


class Word(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag=True):
    """The base of all of them. The class name is the tag."""


# From a process --------------------------------------------------------------------------------------------------


class ServerReady(Word, frozen=True, kw_only=True):
    """A server is up and can be reached there."""

    address: Annotated[str, msgspec.Meta(min_length=1, max_length=300)]


class ModelNamed(Word, frozen=True, kw_only=True):
    """A trainer is ready to train, and this is its model. All trainers name the same."""

    partitions: Annotated[tuple[Partition, ...], msgspec.Meta(min_length=1, max_length=MAX_PARTITIONS)]


class PreparedPS(Word, frozen=True, kw_only=True):
    """Graph and session for this version exist. Nothing is run on it before `Go`."""

    version: Number


class PrepareFailed(Word, frozen=True, kw_only=True):
    version: Number
    reason: Detail


class Drained(Word, frozen=True, kw_only=True):
    """No step is under way, all that was trained is reported, and no step begins before `Go`."""

    barrier: Number
    step: Number


class Moved(Word, frozen=True, kw_only=True):
    """The chief's: every partition of the version holds its state."""

    version: Number
    attempt: Number
    checksum: Annotated[str, msgspec.Meta(max_length=128)]
    """Of all variables; the same before and after."""
    nbytes: Bytes


class MoveFailed(Word, frozen=True, kw_only=True):
    version: Number
    attempt: Number
    reason: Detail


class Resumed(Word, frozen=True, kw_only=True):
    """A trainer uses only this version from now on."""

    version: Number


class SaveWanted(Word, frozen=True, kw_only=True):
    """The chief's: it is time for a checkpoint."""

    reason: Detail
    fuzzy: bool = False
    """Nobody need stand still for it."""


class SavedPS(Word, frozen=True, kw_only=True):
    checkpoint: PSCheckpoint
    barrier: Number
    """Of the `Save` that it answers."""


class SaveFailed(Word, frozen=True, kw_only=True):
    barrier: Number
    reason: Detail


class ServerUnreachable(Word, frozen=True, kw_only=True):
    """A trainer stands still because it cannot reach this server. It tries on; if it succeeds it says `Resumed`."""

    version: Number
    rank: Number
    detail: Detail


FromTrainer = (
    ModelNamed
    | PreparedPS
    | PrepareFailed
    | Drained
    | Moved
    | MoveFailed
    | Resumed
    | SaveWanted
    | SavedPS
    | SaveFailed
    | ServerUnreachable
)


class EvaluatorReady(Word, frozen=True, kw_only=True):
    """An evaluator can score checkpoints."""


class Scored(Word, frozen=True, kw_only=True):
    """An evaluator's: how good the model of this checkpoint is."""

    path: Path
    metrics: Annotated[dict[str, float], msgspec.Meta(max_length=100)]


FromEvaluator = EvaluatorReady | Scored
FromNode = ServerReady | FromTrainer | FromEvaluator
Standing = ServerReady | ModelNamed | EvaluatorReady
"""What a process is, said once; its agent says it again to a master that may not know."""


# From the master -------------------------------------------------------------------------------------------------


class PreparePS(Word, frozen=True, kw_only=True):
    """Make graph and session for this version, beside the one that trains."""

    cluster: PSCluster
    chief: str


class Drain(Word, frozen=True, kw_only=True):
    """End the step that is under way, report, stand still."""

    version: Number
    """On which it trains."""
    barrier: Number
    reason: str


class Move(Word, frozen=True, kw_only=True):
    """To the chief: everybody stands still; bring the state of this version to its servers."""

    version: Number
    attempt: Number
    transfer: Transfer


class Save(Word, frozen=True, kw_only=True):
    """To the chief: everybody stands still, unless it is to be fuzzy; save the state of this version."""

    version: Number
    barrier: Number
    path: Path
    """Nothing is there yet."""
    fuzzy: bool = False
    """The others train on meanwhile."""
    mark: Checkpoint = msgspec.field(default_factory=Checkpoint)
    """What the model has seen, at the least; belongs into the checkpoint."""
    needed: tuple[Path, ...] = ()
    """Earlier checkpoints that must stay, however old: one that the job would go back to, those yet to be scored."""


class Go(Word, frozen=True, kw_only=True):
    """Train on this version: a new one, or the old one again."""

    version: Number
    chief: str


class Abandon(Word, frozen=True, kw_only=True):
    """This version will not come: drop what was made for it. Who stands still waits for `Go`."""

    version: Number
    reason: str


class ChiefIs(Word, frozen=True, kw_only=True):
    chief: str


class Settled(Word, frozen=True, kw_only=True):
    """All trainers are on this version: what older ones have left on the servers can go."""

    version: Number


class CheckpointMade(Word, frozen=True, kw_only=True):
    """To the evaluator: score this. It is given one at a time, the oldest first."""

    path: Path
    step: Number
    final: bool = False
    """It is the last: score it, then end."""


ToTrainer = PreparePS | Drain | Move | Save | Go | Abandon | ChiefIs | Settled
ToNode = ToTrainer | CheckpointMade
