"""How far a stream goes: without end until somebody says; then as far as records exist; at last to where it is closed.

A stream of which nobody has said leases on and on, and its readers block at the source. With `grown` the ledger knows
how far records exist, leases only whole shards of them, and lets workers wait for more. `closed` makes the end final:
the last shard is short, and END comes when all is complete.
"""

from collections.abc import Mapping
from dataclasses import replace

from shoal.core.errors import BadInput
from shoal.core.ledger.datasets import Kind
from shoal.core.ledger.dynamic import DynamicDataset, Moved, settled
from shoal.core.ledger.lanes import Lane
from shoal.core.ledger.leases import Lease


def grown(d: DynamicDataset, partition: int, until: int) -> Moved:
    """Records exist up to the offset `until` (not included). An older word than the last one changes nothing."""
    lane = _lane(d, partition, until)
    if lane.closed or (lane.until is not None and until <= lane.until):
        return d, ()
    return settled(_put(d, partition, replace(lane, until=until)))


def closed(d: DynamicDataset, partition: int, at: int) -> Moved:
    """The partition ends at the offset `at` (not included), for good.

    Shards leased beyond it have no records there: they are cut short, or vanish. Records already trained cannot.
    """
    lane = _lane(d, partition, at)
    name = f"dataset {d.spec.name}: partition {partition}"
    if lane.closed:
        if lane.until != at:
            raise BadInput(f"{name} is closed at {lane.until}, and cannot be closed at {at}")
        return d, ()
    if at < (trained := _trained_up_to(d, partition, lane)):
        raise BadInput(f"{name} must be closed at {trained} or later, for so far it is trained; got {at}")
    lane = replace(lane, until=at, closed=True)
    shards = -(-(at - lane.first) // d.spec.shard)
    lane = replace(lane, cursor=min(lane.cursor, shards))
    held = {owner: _cut(leases, partition, at) for owner, leases in d.held.items()}
    d = replace(d, held={owner: leases for owner, leases in held.items() if leases})
    return settled(_without_empty(_put(d, partition, lane), partition))


def _trained_up_to(d: DynamicDataset, partition: int, lane: Lane) -> int:
    """The offset behind the last record that is trained."""
    size = d.spec.shard
    open_shards = {r.shard: r.done for r in d.returned if r.partition == partition}
    for leases in d.held.values():
        open_shards |= {lease.shard: lease.done for lease in leases.values() if lease.partition == partition}
    for shard in range(lane.cursor - 1, -1, -1):
        if open_shards.get(shard, size):
            return lane.first + shard * size + open_shards.get(shard, size)
    return lane.first


def _without_empty(d: DynamicDataset, partition: int) -> DynamicDataset:
    """Of a shard in TODO nothing is left when the partition ends before it, or where its progress stood."""
    lane = d.lanes[partition]
    assert lane.until is not None
    end, size = lane.until, d.spec.shard
    left = (r for r in d.returned if r.partition != partition or lane.first + r.shard * size + r.done < end)
    return replace(d, returned=tuple(left))


def _lane(d: DynamicDataset, partition: int, offset: int) -> Lane:
    if d.spec.kind is not Kind.STREAM:
        raise BadInput(f"dataset {d.spec.name}: only a stream grows or is closed, this is a {d.spec.kind} dataset")
    if not 0 <= partition < len(d.lanes):
        raise BadInput(f"dataset {d.spec.name}: partition must be in 0..{len(d.lanes) - 1}, got {partition}")
    lane = d.lanes[partition]
    if offset < lane.first:
        name = f"dataset {d.spec.name}: partition {partition}"
        raise BadInput(f"{name} must end at {lane.first} or later, for there it begins; got {offset}")
    return lane


def _put(d: DynamicDataset, partition: int, lane: Lane) -> DynamicDataset:
    return replace(d, lanes=(*d.lanes[:partition], lane, *d.lanes[partition + 1 :]))


def _cut(leases: Mapping[int, Lease], partition: int, at: int) -> dict[int, Lease]:
    """The leases as they are when the partition ends: those wholly beyond the end are none."""
    cut = {a: replace(x, stop=min(x.stop, at)) if x.partition == partition else x for a, x in leases.items()}
    return {attempt: lease for attempt, lease in cut.items() if lease.start < lease.stop}
