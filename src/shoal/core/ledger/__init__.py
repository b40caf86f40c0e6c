"""The shard ledger: every sample of an epoch is trained exactly once by its account, whatever dies.

`datasets` says what a dataset is, `order` and `permutation` in which order its records are trained. Two modes:
`ordered` (a fixed global batch, arithmetic on the step) and `dynamic` (shards with leases; `leases` has the nouns,
`lanes` where shards lie, `losses` how leases come back, `reunion` how an owner finds its own again, `streams` how far a
stream goes, `rewind` checkpoints; `dealing` is for worlds that train in lockstep and share shards out by themselves).
`ledger` holds all datasets of a job and is the door; `account` tells what is done, in ranges (`intervals`).
"""

from shoal.core.ledger.account import Account, records
from shoal.core.ledger.datasets import DatasetSpec, GlobalBatch, Kind, LeaseSettings, Purpose, Shuffle
from shoal.core.ledger.leases import MAX_TERM, Answer, Ask, Lease, Owner, Poison, Progress, Refusal, Verdict, Wake
from shoal.core.ledger.ledger import (
    Checkpoint,
    Ledger,
    account_of,
    checkpoint,
    closed,
    committed,
    deadline,
    exchange,
    fenced,
    grown,
    is_complete,
    lost,
    poisons,
    reconnected,
    registered,
    restored,
    resumed,
    rewound,
    stood,
    ticked,
)
from shoal.core.ledger.order import Order, order_of
from shoal.core.ledger.ordered import Slice, micro_batch, step_slice, steps_per_epoch, total_steps
from shoal.core.ledger.reunion import Reunion
from shoal.core.ledger.rewind import DynamicCheckpoint

__all__ = [
    "MAX_TERM",
    "Account",
    "Answer",
    "Ask",
    "Checkpoint",
    "DatasetSpec",
    "DynamicCheckpoint",
    "GlobalBatch",
    "Kind",
    "Lease",
    "LeaseSettings",
    "Ledger",
    "Order",
    "Owner",
    "Poison",
    "Progress",
    "Purpose",
    "Refusal",
    "Reunion",
    "Shuffle",
    "Slice",
    "Verdict",
    "Wake",
    "account_of",
    "checkpoint",
    "closed",
    "committed",
    "deadline",
    "exchange",
    "fenced",
    "grown",
    "is_complete",
    "lost",
    "micro_batch",
    "order_of",
    "poisons",
    "reconnected",
    "records",
    "registered",
    "restored",
    "resumed",
    "rewound",
    "step_slice",
    "steps_per_epoch",
    "stood",
    "ticked",
    "total_steps",
]
