"""A job's state as a row of records: one snapshot, then what changed since. `replay` makes the state of them again.

The records hold *states*, not events. Most events are not worth keeping (thousands of heartbeats a minute), and an
event that is replayed without those before it may be decided differently; so may an event that a newer release
replays. A change of state means the same whatever was left out and whoever reads it.

What a new master learns again within a heartbeat is not kept: when an agent was last heard, what its processes use.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import msgspec

from shoal.core.changes import Differ, Patch
from shoal.core.errors import StateUnreadable
from shoal.core.job.values import Event, HeartbeatSeen, Job, ResizeTold, Seen, StepGained

FORMAT = 1
"""Grows when an older release could not read the records any more."""
MINOR = frozenset({"gain", "statistics"})
"""Progress and figures: worth keeping, not worth a record for each step."""
REPLAYED = frozenset(
    {
        "gain",
        "statistics",
        "seen",
        "rendezvous",
        "ledger",
        "resizes",
        "decisions",
        "why",
        "reason",
        "continuing",
        "early",
        "peer_closed",
        "short_since",
        "hanging",
        "hang_warned",
        "reunion",
        "changes",
        "held",
        "stopped",
    }
)
"""What the agents say again to a new master, or what is for people only. All else is lost with a master that did not
write it down."""
FIXED = frozenset({"spec", "epoch", "floor", "poison"})
"""Of a dataset, what agents could not say again: leases they hold are of one epoch, and given after one restore."""
_LONG_AGO = datetime(2000, 1, 1, tzinfo=UTC)


class SnapshotRecord(msgspec.Struct, frozen=True, tag="snapshot"):
    format: int
    job: msgspec.Raw


class ChangeRecord(msgspec.Struct, frozen=True, tag="change"):
    patch: Patch


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    record: bytes
    is_minor: bool
    """Nothing but progress: it may wait for more of it."""
    is_replayed: bool
    """Another master would learn it again from the agents."""


def _kept(seen: Seen) -> Seen:
    return replace(seen, at=_LONG_AGO, processes=(), still_since=None)


DEEP = frozenset({"servers", "current", "change", "cluster"})
"""A job's parameter servers. A version lists the whole model, and hundreds of words lead from one to the next."""
_differ = Differ(Job, clean={"seen": _kept}, deep=DEEP)
_jobs: msgspec.msgpack.Decoder[Job] = msgspec.msgpack.Decoder(Job)
_records: msgspec.msgpack.Decoder[SnapshotRecord | ChangeRecord] = msgspec.msgpack.Decoder(
    SnapshotRecord | ChangeRecord
)


def is_worth_a_look(event: Event) -> bool:
    """Whether an event may change what is kept. What the others change goes with the next record."""
    return not isinstance(event, HeartbeatSeen | StepGained | ResizeTold)


def kept(job: Job) -> Job:
    """The job as `replay` gives it back."""
    return _differ.cleaned(job)


def snapshot(job: Job) -> bytes:
    return msgspec.msgpack.encode(SnapshotRecord(FORMAT, msgspec.Raw(msgspec.msgpack.encode(kept(job)))))


def change(before: Job, after: Job) -> Change | None:
    """The record that makes `after` of `before`; None: nothing worth keeping has changed."""
    patch = _differ.between(before, after)
    if patch is None:
        return None
    return Change(
        record=msgspec.msgpack.encode(ChangeRecord(patch)),
        is_minor=_touched(patch) <= MINOR,
        is_replayed=_touched(patch) <= REPLAYED and _is_replayed(patch.inner.get("ledger", Patch())),
    )


def _touched(patch: Patch) -> frozenset[str]:
    """Without the job's sizing when only the words about it are new: those change with every look."""
    sizing = patch.inner.get("sizing", Patch())
    words = sizing.inner.get("optimizer", Patch())
    only_words = sizing.touched == {"optimizer"} and words.touched <= {"reason", "confidence"}
    return patch.touched - {"sizing"} if only_words else patch.touched


def _is_replayed(ledger: Patch) -> bool:
    """Leases, completions and progress are said again; which datasets there are, and in which epoch, is not."""
    moved = ledger.entries.get("dynamic", [])
    return ledger.touched <= {"ordered", "dynamic"} and not (
        "dynamic" in {*ledger.whole, *ledger.put, *ledger.drop} or any(patch.touched & FIXED for _, patch in moved)
    )


def replay(records: Iterable[bytes]) -> Job | None:
    """The job that these records tell of; None: there are none. Raises `StateUnreadable`."""
    job: Job | None = None
    for number, data in enumerate(records, start=1):
        try:
            job = _after(job, _records.decode(data))
        except (msgspec.MsgspecError, KeyError, ValueError, TypeError) as exc:
            raise StateUnreadable(f"record {number} of the job's state is not one of this release: {exc}") from exc
    return job


def _after(job: Job | None, record: SnapshotRecord | ChangeRecord) -> Job:
    match record:
        case SnapshotRecord(format=format) if format != FORMAT:
            raise StateUnreadable(f"the job's state has format {format}, this release reads {FORMAT}")
        case SnapshotRecord(job=data):
            return _jobs.decode(data)
        case ChangeRecord() if job is None:
            raise StateUnreadable("the job's state begins with a change: its snapshot is missing")
        case ChangeRecord(patch=patch):
            assert job is not None
            return _differ.applied(job, patch)
