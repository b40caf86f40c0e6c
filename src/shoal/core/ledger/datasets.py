"""What a dataset is: how many records, in which order, handed out how.

A `DatasetSpec` is what a user registers. It has one of two modes:

- **ordered** (`batch` is given): a fixed global batch. Which records are in step s is arithmetic; nothing is leased.
- **dynamic** (`batch` is None): shards of `shard_size` records are leased to whoever asks; or, `together`, dealt among
  the members of a world that trains in lockstep (`dealing`).

Contradictions are refused here, once, in words that the user can act on; everything behind may rely on the spec.
"""

from dataclasses import dataclass, field, fields
from datetime import timedelta
from enum import StrEnum

from shoal.core.errors import BadInput
from shoal.core.ledger.permutation import MAX_SIZE


class Kind(StrEnum):
    RANGE = "range"
    """The indices 0..size-1 of anything."""
    TEXT = "text"
    """The records of text files, by number."""
    TABLE = "table"
    """The rows of a table, by number."""
    STREAM = "stream"
    """Partitions whose offsets grow without end. Read in order, once."""


class Shuffle(StrEnum):
    """The scope inside which the order of an epoch is drawn anew."""

    NONE = "none"
    SHARDS = "shards"
    """Shards in a random order, the records of each as they lie: for sources that are slow out of order."""
    WITHIN_SHARDS = "within-shards"
    """As `SHARDS`, and the records of each shard shuffled among themselves."""
    SAMPLES = "samples"
    """All records, freely: a shard is a slice of one permutation of the whole dataset."""


class Purpose(StrEnum):
    TRAINING = "training"
    """Its epochs follow one another by themselves; the job is through when all training datasets are."""
    EVALUATION = "evaluation"
    """Each epoch is a round that begins when somebody asks for it by number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GlobalBatch:
    """The ordered mode: a step is always these N micro-batches of m records, whoever computes them."""

    micro_batches: int
    micro_batch_size: int

    def __post_init__(self) -> None:
        _at_least_one("global batch", "micro_batches", self.micro_batches)
        _at_least_one("global batch", "micro_batch_size", self.micro_batch_size)

    @property
    def size(self) -> int:
        return self.micro_batches * self.micro_batch_size


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseSettings:
    time: timedelta = timedelta(minutes=5)
    """How long a worker may go without a word about the shard it is at. Longer than any healthy shard takes; only a
    worker that hangs unnoticed costs this much time, for one that dies is known to be lost at once."""
    max_attempts: int = 3
    """After so many workers failed on the same shard the dataset is poisoned: by then it is the data, not bad luck."""
    max_held: int = 64
    """How many leases one worker may hold. It bounds what is prefetched, and what a lost worker brings back."""

    def __post_init__(self) -> None:
        if self.time <= timedelta(0):
            raise BadInput(f"lease time must be longer than 0 s, got {self.time.total_seconds():g} s")
        _at_least_one("leases", "max_attempts", self.max_attempts)
        _at_least_one("leases", "max_held", self.max_held)


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetSpec:
    name: str
    kind: Kind = Kind.RANGE
    size: int | None = None
    """How many records; None for a stream."""
    partitions: tuple[int, ...] = ()
    """The first offset of each partition of a stream."""
    epochs: int | None = 1
    """None: again and again. Always None for an evaluation, which has as many rounds as are asked for."""
    shuffle: Shuffle = Shuffle.NONE
    seed: int = 0
    shard_size: int | None = None
    """Records in a shard: what is leased at a time, and the block that `Shuffle.SHARDS` moves."""
    drop_last: bool = False
    """Leave the incomplete last shard (dynamic) or global batch (ordered) of an epoch out. Otherwise it is short."""
    purpose: Purpose = Purpose.TRAINING
    batch: GlobalBatch | None = None
    together: bool = False
    """Dealt inside a world whose members train in lockstep: the master is told where they stand, and leases nothing."""
    leases: LeaseSettings = field(default_factory=LeaseSettings)

    def __post_init__(self) -> None:
        if not self.name:
            raise BadInput("a dataset needs a name, got an empty one")
        if not 0 <= self.seed < 1 << 63:
            raise self._wrong("seed", "0 <= seed < 2**63", self.seed)
        if self.epochs is not None:
            _at_least_one(f"dataset {self.name}", "epochs", self.epochs)
        if self.shard_size is not None:
            _at_least_one(f"dataset {self.name}", "shard_size", self.shard_size)
        if self.kind is Kind.STREAM:
            self._check_stream()
        else:
            self._check_bounded()
        if self.batch is None:
            self._check_dynamic()
        else:
            self._check_ordered(self.batch)
        if self.together:
            self._check_together()

    @property
    def is_ordered(self) -> bool:
        return self.batch is not None

    @property
    def records(self) -> int:
        """How many records a bounded dataset has."""
        assert self.size is not None, "a stream has no size"
        return self.size

    @property
    def shard(self) -> int:
        """Records in a shard; a dataset that has no shards is one."""
        return self.shard_size if self.shard_size is not None else self.records

    def _check_stream(self) -> None:
        if self.size is not None:
            raise self._wrong("size", "none for a stream, whose end is not known", self.size)
        if not self.partitions or min(self.partitions) < 0:
            raise self._wrong("partitions", "the first offset (0 or more) of each partition", self.partitions)
        if self.batch is not None:
            raise self._wrong("batch", "none for a stream: a fixed order needs a known size", self.batch)
        if self.shuffle is not Shuffle.NONE:
            raise self._wrong("shuffle", "none for a stream, which is read in order", self.shuffle)
        if self.epochs != 1:
            raise self._wrong("epochs", "1 for a stream, which cannot be read twice", self.epochs)
        if self.drop_last:
            raise self._wrong("drop_last", "False for a stream: its last shard is short when it is closed", True)
        if self.purpose is not Purpose.TRAINING:
            raise self._wrong("purpose", "training for a stream, which has one round only", self.purpose)

    def _check_bounded(self) -> None:
        if self.size is None or not 1 <= self.size <= MAX_SIZE:
            raise self._wrong("size", "at least 1 record (and at most 2**62)", self.size)
        if self.partitions:
            raise self._wrong("partitions", f"none for a {self.kind} dataset", self.partitions)
        if self.shard_size is not None and self.shard_size > self.size:
            raise self._wrong("shard_size", f"at most the dataset's {self.size} records", self.shard_size)

    def _check_dynamic(self) -> None:
        if self.shard_size is None:
            raise self._wrong("shard_size", "how many records are leased at a time (or batch, for a fixed order)", None)
        if self.purpose is Purpose.EVALUATION and self.epochs is not None:
            raise self._wrong("epochs", "None for an evaluation, whose rounds are asked for by number", self.epochs)

    def _check_ordered(self, batch: GlobalBatch) -> None:
        if self.purpose is not Purpose.TRAINING:
            raise self._wrong("purpose", "training for a fixed global batch", self.purpose)
        if self.shard_size is None and self.shuffle in (Shuffle.SHARDS, Shuffle.WITHIN_SHARDS):
            raise self._wrong("shard_size", f"the block that shuffle={self.shuffle} moves", None)
        if self.drop_last and batch.size > self.records:
            raise self._wrong(
                "batch", f"at most the dataset's {self.records} records with drop_last (no step is left)", batch.size
            )

    def _check_together(self) -> None:
        if self.kind is Kind.STREAM:
            raise self._wrong("kind", "bounded inside a world; a stream is for workers on their own", self.kind)
        if self.batch is not None:
            raise self._wrong("batch", "none when shards are dealt: a fixed order has no shards to deal", self.batch)
        if self.purpose is not Purpose.TRAINING:
            raise self._wrong("purpose", "training inside a world", self.purpose)

    def _wrong(self, what: str, wanted: str, got: object) -> BadInput:
        return BadInput(f"dataset {self.name}: {what} must be {wanted}, got {got}")


def differences(known: DatasetSpec, given: DatasetSpec, *, ignoring: frozenset[str] = frozenset()) -> str:
    """In which fields two specs differ, as words; empty when they do not."""
    names = (f.name for f in fields(DatasetSpec) if f.name not in ignoring)
    pairs = ((name, getattr(known, name), getattr(given, name)) for name in names)
    return ", ".join(f"{name} {given} instead of {known}" for name, known, given in pairs if known != given)


def _at_least_one(owner: str, what: str, got: int) -> None:
    if got < 1:
        raise BadInput(f"{owner}: {what} must be at least 1, got {got}")
