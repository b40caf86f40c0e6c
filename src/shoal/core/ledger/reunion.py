"""An owner reconnects and tells which leases it believes to hold, after its connection or the master was lost.

Three cases. Both sides know the lease: it holds on, with a new deadline. Only the ledger knows it, because the answer
never arrived: back to TODO, uncharged. Only the owner knows it, because it was given by a master whose last words were
not kept: it is *adopted* as long as the shard is not complete and nobody has a newer lease of it. For that a new master
calls `fenced` first, so that it never gives an attempt that its predecessor may have given.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime

from shoal.core.ledger.dynamic import DynamicDataset, settled, with_leases
from shoal.core.ledger.lanes import bounds, shards_in
from shoal.core.ledger.leases import ATTEMPTS_PER_TERM, Lease, Owner, Refusal, Returned, Wake
from shoal.core.ledger.losses import given_back

MAX_UNHEARD = 1 << 17
"""How many shards a lost master may have leased after its last kept words. A claim further ahead is no honest one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reunion:
    """What an owner that reconnected holds from now on."""

    kept: tuple[Lease, ...] = ()
    refused: tuple[Refusal, ...] = ()
    """Stop training these: they are complete, or somebody else's."""
    woken: tuple[Wake, ...] = ()


def fenced(d: DynamicDataset, term: int) -> DynamicDataset:
    """The master of this term takes over: its attempts are above all that earlier ones have given."""
    return replace(d, attempts=max(d.attempts, term * ATTEMPTS_PER_TERM))


def reconnected(
    d: DynamicDataset, owner: Owner, holding: Iterable[Lease], now: datetime
) -> tuple[DynamicDataset, Reunion]:
    claims = {lease.attempt: lease for lease in holding}
    unknown = tuple(attempt for attempt in d.held.get(owner, ()) if attempt not in claims)
    if unknown:
        d = given_back(d, owner, unknown, charged=False, reason=f"{owner} does not know of it")
    table = _Table(d)
    refused: list[Refusal] = []
    for attempt, claim in sorted(claims.items(), reverse=True):  # of two claims to one shard the newer counts
        if (why := table.why_not(owner, claim)) is None:
            table.adopt(owner, claim)
        else:
            refused.append(Refusal(attempt, why))
    d, woken = settled(_renewed(table.closed(), owner, now))
    return d, Reunion(kept=tuple(d.held.get(owner, {}).values()), refused=tuple(refused), woken=woken)


def _renewed(d: DynamicDataset, owner: Owner, now: datetime) -> DynamicDataset:
    """Give the owner as much time for each of its leases as if it had got them now."""
    leases, time = d.held.get(owner), d.spec.leases.time
    if leases is None:
        return d
    mine = {a: replace(lease, deadline=now + place * time) for place, (a, lease) in enumerate(leases.items(), 1)}
    due = now + time if d.due is None else min(d.due, now + time)
    return replace(d, held=with_leases(d.held, owner, mine), due=due)


class _Table:
    """Where each shard is, by number, for the length of one call."""

    def __init__(self, d: DynamicDataset) -> None:
        self._d = d
        self._todo = {(shard.partition, shard.shard): shard for shard in d.returned}
        self._held = {owner: dict(leases) for owner, leases in d.held.items()}
        self._holders = {
            (lease.partition, lease.shard): (owner, lease)
            for owner, leases in d.held.items()
            for lease in leases.values()
        }
        self._cursors = [lane.cursor for lane in d.lanes]
        self._attempts = d.attempts

    def why_not(self, owner: Owner, claim: Lease) -> str | None:
        """Why a claim is refused; None: the owner may hold on to it."""
        name = f"attempt {claim.attempt}"
        if claim.attempt in self._held.get(owner, ()):
            return None
        if claim.attempt <= self._d.floor:
            return f"{name} is from before a restore"
        if claim.attempt > (self._d.attempts // ATTEMPTS_PER_TERM + 1) * ATTEMPTS_PER_TERM:
            return f"{name} was never given, the last is {self._d.attempts}"
        if claim.epoch != self._d.epoch:
            return f"{name} is of epoch {claim.epoch}, this is epoch {self._d.epoch}"
        if not self._is_plausible(claim):
            return f"{name} claims {claim.start}..{claim.stop}, which is not shard {claim.shard}"
        holder = self._holders.get((claim.partition, claim.shard))
        if holder is not None and holder[1].attempt >= claim.attempt:
            return f"{holder[0]} has shard {claim.shard} as attempt {holder[1].attempt}"
        is_todo = (claim.partition, claim.shard) in self._todo or claim.shard >= self._cursors[claim.partition]
        return None if holder is not None or is_todo else f"shard {claim.shard} is complete"

    def adopt(self, owner: Owner, claim: Lease) -> None:
        """Let the owner hold what it claims, wherever the ledger thought that shard to be."""
        if claim.attempt in self._held.get(owner, ()):
            return
        key = (claim.partition, claim.shard)
        lease = self._taken(key, claim)
        self._held.setdefault(owner, {})[claim.attempt] = lease
        self._holders[key] = (owner, lease)
        self._attempts = max(self._attempts, claim.attempt)

    def closed(self) -> DynamicDataset:
        lanes = zip(self._d.lanes, self._cursors, strict=True)
        return replace(
            self._d,
            lanes=tuple(replace(lane, cursor=cursor) for lane, cursor in lanes),
            returned=tuple(self._todo.values()),
            held={owner: dict(sorted(leases.items())) for owner, leases in self._held.items() if leases},
            attempts=self._attempts,
        )

    def _taken(self, key: tuple[int, int], claim: Lease) -> Lease:
        """The claimed lease, with what the ledger knows about its shard; the shard is taken from where it was."""
        if (holder := self._holders.pop(key, None)) is not None:
            owner, known = holder
            del self._held[owner][known.attempt]
            return replace(claim, done=known.done, failures=known.failures)
        partition, shard = key
        for skipped in range(self._cursors[partition], shard):
            self._todo[partition, skipped] = Returned(partition, skipped, 0, 0)
        self._cursors[partition] = max(self._cursors[partition], shard + 1)
        back = self._todo.pop(key, Returned(partition, shard, 0, 0))
        return replace(claim, done=back.done, failures=back.failures)

    def _is_plausible(self, claim: Lease) -> bool:
        if not 0 <= claim.partition < len(self._d.lanes):
            return False
        lane = self._d.lanes[claim.partition]
        end = shards_in(self._d.spec, lane)
        ahead = self._cursors[claim.partition] + MAX_UNHEARD
        if not 0 <= claim.shard < (ahead if end is None else min(end, ahead)):
            return False
        return (claim.start, claim.stop) == bounds(self._d.spec, lane, claim.shard)
