"""Small datasets, and an owner's round trips in few words."""

from datetime import UTC, datetime, timedelta
from typing import Any

from shoal.core.ledger import (
    Answer,
    Ask,
    DatasetSpec,
    GlobalBatch,
    Kind,
    LeaseSettings,
    Ledger,
    Owner,
    Progress,
    Wake,
    exchange,
    lost,
    registered,
    ticked,
)

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LEASE_TIME = timedelta(seconds=60)


def a_dataset(size: int = 10, shard_size: int = 2, **others: Any) -> DatasetSpec:
    leases = LeaseSettings(time=LEASE_TIME, max_attempts=others.pop("max_attempts", 3))
    return DatasetSpec(**{"name": "train", "size": size, "shard_size": shard_size, "leases": leases, **others})


def an_ordered_dataset(size: int, micro_batches: int, micro_batch_size: int, **others: Any) -> DatasetSpec:
    batch = GlobalBatch(micro_batches=micro_batches, micro_batch_size=micro_batch_size)
    return DatasetSpec(**{"name": "train", "size": size, "batch": batch, **others})


def a_stream(*first_offsets: int, shard_size: int = 10, **others: Any) -> DatasetSpec:
    return DatasetSpec(
        **{"name": "clicks", "kind": Kind.STREAM, "partitions": first_offsets, "shard_size": shard_size, **others}
    )


class Desk:
    """A ledger with one dataset that answers; holds the ledger as it becomes."""

    def __init__(self, spec: DatasetSpec) -> None:
        self.spec = spec
        self.ledger = registered(Ledger(), spec)
        self.now = NOW

    def ask(
        self,
        owner: str,
        want: int = 1,
        *,
        completed: tuple[int, ...] = (),
        progress: tuple[tuple[int, int], ...] = (),
        epoch: int | None = None,
    ) -> Answer:
        words = Ask(
            owner=Owner(owner),
            dataset=self.spec.name,
            completed=completed,
            progress=tuple(Progress(attempt, done) for attempt, done in progress),
            want=want,
            epoch=epoch,
        )
        self.ledger, answer = exchange(self.ledger, words, self.now)
        return answer

    def shards(self, owner: str, want: int = 1) -> list[int]:
        return [lease.shard for lease in self.ask(owner, want).leases]

    def lose(self, owner: str, *, charged: bool = True) -> tuple[Wake, ...]:
        self.ledger, woken = lost(self.ledger, Owner(owner), charged=charged, reason=f"{owner} died")
        return woken

    def wait(self, time: timedelta) -> tuple[Wake, ...]:
        self.now += time
        self.ledger, woken = ticked(self.ledger, self.now)
        return woken
