"""The dynamic mode: shards leased to whoever asks, each counted once.

TODO is what came back (`returned`, first) and all shards from each lane's `cursor` on; DOING is `held`; everything else
below the cursors is done. So nothing has to be listed that is not in flight, and no shard can be in two places.

Epochs do not overlap: the next one begins when every shard of this one is complete. Whoever asks before that waits.
What never happens: a report counts whose attempt is not the current one; a shard is dropped; END is said while
a shard is not complete; somebody waits who could go on.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from shoal.core.ledger.datasets import DatasetSpec, Kind, Purpose
from shoal.core.ledger.lanes import Lane, bounds, lanes_of, shards_in
from shoal.core.ledger.leases import Answer, Ask, Lease, Owner, Poison, Refusal, Returned, Verdict, Wake


@dataclass(frozen=True, slots=True, kw_only=True)
class DynamicDataset:
    """Where a dataset of the dynamic mode stands. Made by `opened`."""

    spec: DatasetSpec
    epoch: int = 0
    lanes: tuple[Lane, ...]
    returned: tuple[Returned, ...] = ()
    held: Mapping[Owner, Mapping[int, Lease]] = field(default_factory=dict)
    """Leases by owner and attempt, the oldest first. Nobody is in it who holds none."""
    waiting: Mapping[Owner, int | None] = field(default_factory=dict)
    """Who was told to wait, and for which epoch."""
    attempts: int = 0
    """The highest attempt ever given."""
    floor: int = 0
    """Attempts up to here are void: they are from before a restore."""
    turn: int = 0
    """The lane that is next to give a shard."""
    poison: Poison | None = None
    due: datetime | None = None
    """No lease passes its deadline before this."""
    stood: tuple[int, int] | None = None
    """Of a dataset that a world deals by itself: the generation and the step whose standing this is."""


Moved = tuple[DynamicDataset, tuple[Wake, ...]]


def opened(spec: DatasetSpec) -> DynamicDataset:
    return DynamicDataset(spec=spec, lanes=lanes_of(spec, 0))


def exchange(d: DynamicDataset, ask: Ask, now: datetime) -> tuple[DynamicDataset, Answer]:
    """Count what an owner reports, then lease it what it wants, as far as there is."""
    mine = dict(d.held.get(ask.owner, ()))
    refused = [Refusal(a, _late(d, ask.owner, a)) for a in ask.completed if mine.pop(a, None) is None]
    for report in ask.progress:
        lease = mine.get(report.attempt)
        if lease is None:
            refused.append(Refusal(report.attempt, _late(d, ask.owner, report.attempt)))
        elif not 0 <= report.done <= lease.stop - lease.start:
            refused.append(Refusal(report.attempt, f"{report.done} records done of {lease.stop - lease.start}"))
        elif report.done > lease.done:  # an older report may arrive behind a newer one
            mine[report.attempt] = replace(
                lease, done=report.done, deadline=max(lease.deadline, now + d.spec.leases.time)
            )
    d = replace(d, held=with_leases(d.held, ask.owner, mine))
    if ask.want and ask.owner in d.waiting:  # it does not wait but ask; one that only reports goes on waiting
        d = replace(d, waiting={owner: epoch for owner, epoch in d.waiting.items() if owner != ask.owner})
    d = _turned(d, ask)
    d, leases = _leased(d, ask, now)
    verdict = _verdict(d, ask, leases)
    if verdict is Verdict.WAIT:
        d = replace(d, waiting={**d.waiting, ask.owner: ask.epoch})
    d, woken = settled(d)
    reason = d.poison.reason if d.poison is not None else ""
    return d, Answer(verdict=verdict, leases=leases, refused=tuple(refused), woken=woken, reason=reason)


def _turned(d: DynamicDataset, ask: Ask) -> DynamicDataset:
    """Begin the next epoch if this one is complete: by itself in training, when it is asked for in evaluation."""
    if d.spec.purpose is Purpose.TRAINING:
        return _begun(d, d.epoch + 1) if is_over(d) else d
    if ask.want and ask.epoch is not None and ask.epoch > d.epoch and (is_over(d) or _is_untouched(d)):
        return _begun(d, ask.epoch)
    return d


def _begun(d: DynamicDataset, epoch: int) -> DynamicDataset:
    if d.spec.epochs is not None and epoch >= d.spec.epochs:
        return d
    if d.spec.kind is Kind.STREAM:
        return d
    return replace(d, epoch=epoch, lanes=lanes_of(d.spec, epoch))


def _leased(d: DynamicDataset, ask: Ask, now: datetime) -> tuple[DynamicDataset, tuple[Lease, ...]]:
    """As many shards as the owner wants and may have: what came back first, then each lane in turn."""
    if d.poison is not None or ask.epoch not in (None, d.epoch):
        return d, ()
    mine = d.held.get(ask.owner, {})
    count = min(ask.want, d.spec.leases.max_held - len(mine), _fair_share(d, ask.owner))
    if count <= 0:
        return d, ()
    again = d.returned[:count]
    d, fresh = _drawn(replace(d, returned=d.returned[count:]), count - len(again))
    attempt, time, ahead = d.attempts, d.spec.leases.time, len(mine)
    leases: list[Lease] = []
    for shard in (*again, *fresh):
        attempt += 1
        ahead += 1  # an owner trains one after the other: the clock of a shard starts when it is its turn
        start, stop = bounds(d.spec, d.lanes[shard.partition], shard.shard)
        leases.append(
            Lease(
                attempt,
                d.epoch,
                shard.partition,
                shard.shard,
                start,
                stop,
                shard.done,
                shard.failures,
                now + ahead * time,
            )
        )
    if not leases:
        return d, ()
    held = with_leases(d.held, ask.owner, {**mine, **{lease.attempt: lease for lease in leases}})
    due = now + time if d.due is None else min(d.due, now + time)
    return replace(d, held=held, attempts=attempt, due=due), tuple(leases)


def _drawn(d: DynamicDataset, count: int) -> tuple[DynamicDataset, list[Returned]]:
    """The next `count` shards that were never leased, from each lane in turn."""
    cursors = [lane.cursor for lane in d.lanes]
    ends = [shards_in(d.spec, lane) for lane in d.lanes]
    drawn: list[Returned] = []
    turn, empty = d.turn, 0
    while len(drawn) < count and empty < len(cursors):
        end = ends[turn]
        if end is None or cursors[turn] < end:
            drawn.append(Returned(turn, cursors[turn], 0, 0))
            cursors[turn] += 1
            empty = 0
        else:
            empty += 1
        turn = (turn + 1) % len(cursors)
    if not drawn:
        return d, drawn
    lanes = tuple(
        lane if lane.cursor == cursor else replace(lane, cursor=cursor)
        for lane, cursor in zip(d.lanes, cursors, strict=True)
    )
    return replace(d, lanes=lanes, turn=turn), drawn


def _fair_share(d: DynamicDataset, owner: Owner) -> int:
    """Towards the end nobody takes more than its part, so that nobody waits for one who took many."""
    left = len(d.returned)
    for lane in d.lanes:
        end = shards_in(d.spec, lane)
        if end is None:
            return d.spec.leases.max_held
        left += end - lane.cursor
    owners = len(d.held) + len(d.waiting) + (owner not in d.held)
    return max(1, left // owners)


def _verdict(d: DynamicDataset, ask: Ask, leases: tuple[Lease, ...]) -> Verdict:
    if d.poison is not None:
        return Verdict.POISONED
    if leases:
        return Verdict.GO
    wanted = d.epoch if ask.epoch is None else ask.epoch
    if wanted < d.epoch or is_over(d):
        return Verdict.END
    if ask.want == 0 or (wanted == d.epoch and has_todo(d)):
        return Verdict.GO  # it holds all that it may
    return Verdict.WAIT


# What follows from every change ------------------------------------------------------------------------------


def settled(d: DynamicDataset) -> Moved:
    """Begin the next epoch if this one is complete, and wake whoever can go on."""
    if d.spec.purpose is Purpose.TRAINING and is_over(d):
        d = _begun(d, d.epoch + 1)
    if not d.waiting:
        return d, ()
    woken = tuple(Wake(owner, d.spec.name) for owner, epoch in d.waiting.items() if _can_go_on(d, epoch))
    if not woken:
        return d, ()
    names = {wake.owner for wake in woken}
    return replace(d, waiting={o: e for o, e in d.waiting.items() if o not in names}), woken


def _can_go_on(d: DynamicDataset, epoch: int | None) -> bool:
    if d.poison is not None or (epoch is not None and epoch < d.epoch) or is_over(d):
        return True
    return (epoch is None or epoch == d.epoch) and has_todo(d)


def is_over(d: DynamicDataset) -> bool:
    """Every shard of this epoch is complete, and there will be no more."""
    return not d.held and not d.returned and all(_is_drawn(d.spec, lane) for lane in d.lanes)


def has_todo(d: DynamicDataset) -> bool:
    if d.returned:
        return True
    ends = ((lane.cursor, shards_in(d.spec, lane)) for lane in d.lanes)
    return any(end is None or cursor < end for cursor, end in ends)


def _is_drawn(spec: DatasetSpec, lane: Lane) -> bool:
    return lane.closed and lane.cursor == shards_in(spec, lane)


def _is_untouched(d: DynamicDataset) -> bool:
    return not d.held and not d.returned and all(lane.cursor == 0 for lane in d.lanes)


def with_leases(
    held: Mapping[Owner, Mapping[int, Lease]], owner: Owner, mine: Mapping[int, Lease]
) -> Mapping[Owner, Mapping[int, Lease]]:
    out = dict(held)
    if mine:
        out[owner] = mine
    else:
        out.pop(owner, None)
    return out


def _late(d: DynamicDataset, owner: Owner, attempt: int) -> str:
    if attempt <= d.floor:
        return f"attempt {attempt} is from before a restore"
    if attempt > d.attempts:
        return f"attempt {attempt} was never given, the last is {d.attempts}"
    return f"attempt {attempt} is not {owner}'s lease (any more): it was completed, or given back and away"
