"""The ledger of a job: all its datasets. Every function takes the ledger and something that happened, and returns the
next ledger, with what is to be told to whom.

One ledger holds any number of datasets, ordered and dynamic ones, for training and for evaluation; what happens to one
does not touch the others, but that an owner is lost to all of them and that a checkpoint is of all of them together.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from shoal.core.errors import BadInput
from shoal.core.ledger import dynamic, losses, ordered, reunion, rewind, streams
from shoal.core.ledger.account import Account, of_dataset
from shoal.core.ledger.datasets import DatasetSpec, Purpose, differences
from shoal.core.ledger.dynamic import DynamicDataset, Moved
from shoal.core.ledger.leases import Answer, Ask, Lease, Owner, Poison, Wake
from shoal.core.ledger.ordered import OrderedCheckpoint, OrderedDataset
from shoal.core.ledger.reunion import Reunion
from shoal.core.ledger.rewind import DynamicCheckpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """A job's datasets by name. Made by `Ledger()`, changed only by the functions below."""

    ordered: Mapping[str, OrderedDataset] = field(default_factory=dict)
    dynamic: Mapping[str, DynamicDataset] = field(default_factory=dict)
    inherited: frozenset[str] = frozenset()
    """Datasets of a job that was resumed, which no worker has named since."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """What the model has seen of every dataset. Goes with the model's checkpoint."""

    ordered: tuple[OrderedCheckpoint, ...] = ()
    dynamic: tuple[DynamicCheckpoint, ...] = ()


MAY_CHANGE = frozenset({"epochs", "leases"})
"""What may differ when a job goes on from a checkpoint, or is resumed: neither says which record is where."""


def registered(ledger: Ledger, spec: DatasetSpec) -> Ledger:
    """A worker names a dataset. All workers do, so the same words again change nothing; other words are refused."""
    if spec.name in ledger.inherited:
        return _taken_up(ledger, spec)
    if (known := _spec(ledger, spec.name)) is not None:
        if known != spec:
            raise BadInput(f"dataset {spec.name} is registered already, now with {differences(known, spec)}")
        return ledger
    if spec.is_ordered:
        return replace(ledger, ordered={**ledger.ordered, spec.name: OrderedDataset(spec=spec)})
    return _put(ledger, dynamic.opened(spec))


# The dynamic mode --------------------------------------------------------------------------------------------


def exchange(ledger: Ledger, ask: Ask, now: datetime) -> tuple[Ledger, Answer]:
    """One round trip: completions and progress in, the next leases out."""
    known = _dynamic(ledger, ask.dataset)
    if known.spec.together:
        raise BadInput(f"dataset {ask.dataset} is dealt inside a world: nothing of it is leased")
    dataset, answer = dynamic.exchange(known, ask, now)
    return _put(ledger, dataset), answer


def lost(ledger: Ledger, owner: Owner, *, charged: bool, reason: str) -> tuple[Ledger, tuple[Wake, ...]]:
    """An owner is gone, or leaves. `charged`: by its own failure, which may be the data's fault."""
    return _all_moved(
        ledger, {n: losses.lost(d, owner, charged=charged, reason=reason) for n, d in ledger.dynamic.items()}
    )


def ticked(ledger: Ledger, now: datetime) -> tuple[Ledger, tuple[Wake, ...]]:
    """Time passed; see `deadline`."""
    return _all_moved(ledger, {name: losses.ticked(d, now) for name, d in ledger.dynamic.items()})


def deadline(ledger: Ledger) -> datetime | None:
    """When `ticked` should be called if nothing happens before. It may find nothing to do and name a later time."""
    return min((d.due for d in ledger.dynamic.values() if d.due is not None), default=None)


def reconnected(
    ledger: Ledger, owner: Owner, dataset: str, holding: Iterable[Lease], now: datetime
) -> tuple[Ledger, Reunion]:
    """An owner is back and tells what it believes to hold of a dataset."""
    d, answer = reunion.reconnected(_dynamic(ledger, dataset), owner, holding, now)
    return _put(ledger, d), answer


def fenced(ledger: Ledger, term: int) -> Ledger:
    """The master of this term takes the ledger over."""
    return replace(ledger, dynamic={name: reunion.fenced(d, term) for name, d in ledger.dynamic.items()})


def grown(ledger: Ledger, dataset: str, partition: int, until: int) -> tuple[Ledger, tuple[Wake, ...]]:
    """Records of a stream exist up to this offset."""
    return _all_moved(ledger, {dataset: streams.grown(_dynamic(ledger, dataset), partition, until)})


def closed(ledger: Ledger, dataset: str, partition: int, at: int) -> tuple[Ledger, tuple[Wake, ...]]:
    """A stream's partition ends here, for good."""
    return _all_moved(ledger, {dataset: streams.closed(_dynamic(ledger, dataset), partition, at)})


def stood(ledger: Ledger, mark: DynamicCheckpoint, *, generation: int, step: int) -> Ledger:
    """The world of this generation deals a dataset by itself, and its model of this step has seen what the mark says.

    The ledger stands where the model does, be it further back. A word from before the last one changes nothing.
    """
    known, at = _dynamic(ledger, mark.spec.name), (generation, step)
    if not known.spec.together:
        raise BadInput(f"dataset {mark.spec.name} is leased by the master: no world stands in it")
    _check_same_line(ledger, mark.spec)
    rewind.check(mark)
    if known.stood is not None and at < known.stood:
        return ledger
    dataset, _ = rewind.restored(known, mark)
    return _put(ledger, replace(dataset, stood=at))


# The ordered mode --------------------------------------------------------------------------------------------


def committed(ledger: Ledger, dataset: str, step: int) -> Ledger:
    """Rank 0 says that this step is committed."""
    known = _ordered(ledger, dataset)
    return replace(ledger, ordered={**ledger.ordered, dataset: ordered.committed(known, step)})


def rewound(ledger: Ledger, dataset: str, steps: int) -> Ledger:
    """A world begins whose model has this many steps."""
    known = _ordered(ledger, dataset)
    return replace(ledger, ordered={**ledger.ordered, dataset: ordered.rewound(known, steps)})


# All of it ---------------------------------------------------------------------------------------------------


def checkpoint(ledger: Ledger) -> Checkpoint:
    return Checkpoint(
        ordered=tuple(OrderedCheckpoint(spec=d.spec, steps=d.steps) for d in ledger.ordered.values()),
        dynamic=tuple(rewind.checkpoint(d) for d in ledger.dynamic.values()),
    )


def restored(ledger: Ledger, mark: Checkpoint) -> tuple[Ledger, tuple[Wake, ...]]:
    """Stand where the checkpoint was taken: what the restored model has not seen is TODO, what it has seen is done.

    A dataset that is not in the checkpoint begins anew, for the model has seen nothing of it. One that is not
    registered yet is taken over from the checkpoint; register first if it should have other epochs or lease settings.
    """
    for seen in mark.ordered:
        ordered.rewound(OrderedDataset(spec=seen.spec), seen.steps)  # raises for what cannot be
    for known in mark.dynamic:
        rewind.check(known)
    for spec in (*(known.spec for known in mark.ordered), *(known.spec for known in mark.dynamic)):
        _check_same_line(ledger, spec)
        ledger = ledger if _spec(ledger, spec.name) is not None else registered(ledger, spec)
    steps = {known.spec.name: known.steps for known in mark.ordered}
    marks = {known.spec.name: known for known in mark.dynamic}
    ledger = replace(
        ledger, ordered={name: ordered.rewound(d, steps.get(name, 0)) for name, d in ledger.ordered.items()}
    )
    moved = {
        name: rewind.restored(d, marks[name]) if name in marks else rewind.restarted(d)
        for name, d in ledger.dynamic.items()
    }
    return _all_moved(ledger, moved)


def resumed(ledger: Ledger, term: int) -> Ledger:
    """All workers are gone, and the master of this term goes on with others: what was held is TODO again, behind its
    reported records. Each dataset waits to be named again."""
    ledger, _ = restored(ledger, checkpoint(ledger))
    return replace(fenced(ledger, term), inherited=frozenset((*ledger.ordered, *ledger.dynamic)))


def is_complete(ledger: Ledger) -> bool:
    """Every training dataset that workers have named is complete. An evaluation may still run."""
    in_order = [d for name, d in ledger.ordered.items() if name not in ledger.inherited]
    training = [
        d for name, d in ledger.dynamic.items() if d.spec.purpose is Purpose.TRAINING and name not in ledger.inherited
    ]
    return all(ordered.is_complete(d) for d in in_order) and all(dynamic.is_over(d) for d in training)


def poisons(ledger: Ledger) -> tuple[Poison, ...]:
    """The shards that nobody could train: if there is one, the job has failed."""
    return tuple(d.poison for d in ledger.dynamic.values() if d.poison is not None)


def account_of(ledger: Ledger, dataset: str) -> Account:
    """What of a dataset is trained, exactly once."""
    if dataset in ledger.ordered:
        return of_dataset(ledger.ordered[dataset])
    return of_dataset(_dynamic(ledger, dataset))


# Helpers -----------------------------------------------------------------------------------------------------


def _spec(ledger: Ledger, name: str) -> DatasetSpec | None:
    known = ledger.ordered.get(name) or ledger.dynamic.get(name)
    return None if known is None else known.spec


def _taken_up(ledger: Ledger, spec: DatasetSpec) -> Ledger:
    """A worker of a resumed job names a dataset that was trained before: it goes on where it stands."""
    known = _spec(ledger, spec.name)
    assert known is not None
    if changed := differences(known, spec, ignoring=MAY_CHANGE):
        raise BadInput(f"dataset {spec.name} is not the one that this job has trained so far: {changed}")
    ledger = replace(ledger, inherited=ledger.inherited - {spec.name})
    if spec.is_ordered:
        steps, end = ledger.ordered[spec.name].steps, ordered.total_steps(spec)
        dataset = OrderedDataset(spec=spec, steps=steps if end is None else min(steps, end))
        return replace(ledger, ordered={**ledger.ordered, spec.name: dataset})
    mark = rewind.checkpoint(ledger.dynamic[spec.name])
    return _put(ledger, rewind.restored(dynamic.opened(spec), mark)[0])


def _dynamic(ledger: Ledger, name: str) -> DynamicDataset:
    if name in ledger.ordered:
        raise BadInput(f"dataset {name} has a fixed global batch: its records follow from the step, nothing is leased")
    if name not in ledger.dynamic:
        raise _unknown(ledger, name)
    return ledger.dynamic[name]


def _ordered(ledger: Ledger, name: str) -> OrderedDataset:
    if name in ledger.dynamic:
        raise BadInput(f"dataset {name} has no steps: it is leased in shards (no batch was given)")
    if name not in ledger.ordered:
        raise _unknown(ledger, name)
    return ledger.ordered[name]


def _unknown(ledger: Ledger, name: str) -> BadInput:
    known = ", ".join(sorted({*ledger.ordered, *ledger.dynamic})) or "none"
    return BadInput(f"dataset {name} is not registered; registered: {known}")


def _check_same_line(ledger: Ledger, saved: DatasetSpec) -> None:
    now = _spec(ledger, saved.name)
    if now is not None and (changed := differences(saved, now, ignoring=MAY_CHANGE)):
        raise BadInput(f"dataset {saved.name} is not the one of the checkpoint: {changed}")


def _put(ledger: Ledger, dataset: DynamicDataset) -> Ledger:
    return replace(ledger, dynamic={**ledger.dynamic, dataset.spec.name: dataset})


def _all_moved(ledger: Ledger, moved: Mapping[str, Moved]) -> tuple[Ledger, tuple[Wake, ...]]:
    changed = {name: dataset for name, (dataset, _) in moved.items()}
    woken = tuple(wake for _, wakes in moved.values() for wake in wakes)
    return replace(ledger, dynamic={**ledger.dynamic, **changed}), woken
