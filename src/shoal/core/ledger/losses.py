"""How leases come back: the owner is lost, or a deadline passed.

A shard that comes back goes to the front of TODO and resumes behind the records that were reported. An owner trains
its shards one after the other in the order in which it got them, so only the *oldest* lease can be what it failed on:
that one is charged with a failure, the others were never begun. After `max_attempts` failures the dataset is poisoned
at that shard; it stays in TODO, nothing is leased any more, and the job fails with its name.
"""

from dataclasses import replace
from datetime import datetime

from shoal.core.ledger.dynamic import DynamicDataset, Moved, settled, with_leases
from shoal.core.ledger.leases import Lease, Owner, Poison, Returned


def lost(d: DynamicDataset, owner: Owner, *, charged: bool, reason: str) -> Moved:
    """An owner is gone, or leaves. `charged`: it failed, perhaps by the data; it was neither preempted nor drained."""
    leases = d.held.get(owner)
    if owner in d.waiting:
        d = replace(d, waiting={o: epoch for o, epoch in d.waiting.items() if o != owner})
    if leases:
        d = given_back(d, owner, tuple(leases), charged=charged, reason=reason)
    return settled(d)


def ticked(d: DynamicDataset, now: datetime) -> Moved:
    """Time passed; see `due`.

    An owner whose oldest lease has passed its deadline is stuck or too slow: all it holds goes to others. While that
    one makes progress, leases behind it may still pass theirs, and are given away uncharged.
    """
    if d.due is None or now < d.due:
        return d, ()
    for owner, leases in d.held.items():
        passed = tuple(attempt for attempt, lease in leases.items() if lease.deadline <= now)
        stuck = bool(passed) and passed[0] == next(iter(leases))
        if passed:
            gone = tuple(leases) if stuck else passed
            d = given_back(d, owner, gone, charged=stuck, reason=f"{owner} passed its deadline")
    deadlines = (lease.deadline for leases in d.held.values() for lease in leases.values())
    return settled(replace(d, due=min(deadlines, default=None)))


def given_back(
    d: DynamicDataset, owner: Owner, attempts: tuple[int, ...], *, charged: bool, reason: str
) -> DynamicDataset:
    """Put leases of an owner to the front of TODO, in their order. Those of which every record is done are complete."""
    leases = d.held[owner]
    oldest = next(iter(leases))
    back: list[Returned] = []
    poison = d.poison
    for attempt in attempts:
        lease = leases[attempt]
        if lease.done == lease.stop - lease.start:
            continue
        failed = charged and attempt == oldest
        failures = lease.failures + failed
        back.append(Returned(lease.partition, lease.shard, lease.done, failures))
        if failed and failures >= d.spec.leases.max_attempts and poison is None:
            poison = _poison(d, lease, failures, reason)
    kept = {attempt: lease for attempt, lease in leases.items() if attempt not in set(attempts)}
    return replace(d, held=with_leases(d.held, owner, kept), returned=(*back, *d.returned), poison=poison)


def _poison(d: DynamicDataset, lease: Lease, failures: int, reason: str) -> Poison:
    where = f"partition {lease.partition}, offsets" if len(d.lanes) > 1 else f"epoch {lease.epoch}, positions"
    text = (
        f"dataset {d.spec.name}: poisoned at shard {lease.shard} ({where} {lease.start}..{lease.stop - 1}, "
        f"stuck behind {lease.done} of its records): {failures} attempts failed, the last because {reason}"
    )
    return Poison(epoch=lease.epoch, partition=lease.partition, shard=lease.shard, reason=text)
