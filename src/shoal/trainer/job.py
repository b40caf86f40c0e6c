"""`join`: a worker that needs nothing of the others but its share of the data.

Each worker trains by itself (with parameter servers, or a model of its own, or no model at all) and the job's ledger
sees to it that every record is trained once. Worlds change around such a worker without it noticing: it says by itself
that it is ready for the next one, in the link's thread, and trains on.

    import shoal.trainer

    job = shoal.trainer.join()
    job.dataset("train", size=1_000_000, shard_size=1_000, epochs=2, shuffle="samples", seed=7)
    for shard in job.shards("train"):
        for index in shard:
            ...

Outside of `shoal run` the same script trains alone.
"""

import faulthandler
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from enum import StrEnum
from typing import TypeVar

from shoal.core.errors import BadInput, Disconnected, Refused
from shoal.core.exits import EXIT_DO_NOT_RESTART
from shoal.core.ledger import DatasetSpec, GlobalBatch, Kind, LeaseSettings, Purpose, Shuffle
from shoal.trainer.data import PREFETCH, Alone, Data, Shard
from shoal.trainer.errorfile import write_error
from shoal.trainer.inbox import Inbox
from shoal.trainer.session import Session
from shoal.wire.local import FromAgentLocal, Report
from shoal.wire.messages import Interrupt, Pause, Prepare

E = TypeVar("E", bound=StrEnum)


def join(environ: Mapping[str, str] | None = None, *, independent: bool = True) -> "Job":
    """Become a worker of the job that the environment names, or of one that has nobody else.

    `independent` False: the workers speak to each other in ways of their own (plain `torch.distributed`, say), so all
    of them are to be restarted when one is lost.
    """
    return Job(os.environ if environ is None else environ, inbox=_Follower() if independent else Inbox())


class Job:
    """`inbox` says how it takes part in worlds: a bare one does not. `progress` is what it tells of itself."""

    def __init__(
        self, environ: Mapping[str, str], *, inbox: Inbox, progress: Callable[[], Report | None] | None = None
    ) -> None:
        self._environ = environ
        with self.final():
            self._session = Session.from_environment(environ, inbox=inbox, progress=progress or self._report)
        self._data = Alone().data if self._session is None else self._session.data
        self._inbox = inbox
        if self._session is None:
            return
        if sys.__stderr__ is not None:
            faulthandler.register(signal.SIGUSR2, file=sys.__stderr__, all_threads=True)
        if isinstance(inbox, _Follower):
            inbox.follow(self._session)

    @property
    def data(self) -> Data:
        return self._data

    @property
    def session(self) -> Session | None:
        """The tie to the agent; None: it trains alone."""
        return self._session

    def dataset(
        self,
        name: str,
        *,
        size: int | None = None,
        shard_size: int | None = None,
        kind: str = "range",
        partitions: tuple[int, ...] = (),
        epochs: int | None = 1,
        shuffle: str = "none",
        seed: int = 0,
        drop_last: bool = False,
        evaluation: bool = False,
        lease_seconds: float = 300.0,
        max_attempts: int = 3,
    ) -> "Dataset":
        """Name a dataset that this job trains on, or evaluates with. All workers say the same."""
        with self.final():
            self._data.register(
                dataset_spec(
                    name,
                    size=size,
                    shard_size=shard_size,
                    kind=kind,
                    partitions=partitions,
                    epochs=epochs,
                    shuffle=shuffle,
                    seed=seed,
                    drop_last=drop_last,
                    evaluation=evaluation,
                    lease_seconds=lease_seconds,
                    max_attempts=max_attempts,
                )
            )
        return Dataset(self, name)

    def grow(self, name: str, partition: int, upto: int) -> None:
        """Records of a stream's partition exist up to this offset (not included); workers that wait are woken.

        Any process may say so, in any order and again: only the furthest word counts.
        """
        with self.final():
            self._data.grow(name, partition, upto)

    def close(self, name: str, partition: int, at: int) -> None:
        """A stream's partition ends at this offset (not included). When all are closed and trained, loops end."""
        with self.final():
            self._data.end(name, partition, at)

    def shards(self, name: str, *, epoch: int | None = None, prefetch: int = PREFETCH) -> Iterator[Shard]:
        """The shards that are this worker's to train, until all of the dataset is trained.

        `epoch`: only those of one epoch; for an evaluation dataset, its rounds 0, 1, 2, …
        """
        with self.final():
            yield from self._data.shards(name, epoch=epoch, prefetch=prefetch)

    def checkpoint(self) -> bytes:
        """What is trained by now; goes with the model's checkpoint."""
        return self._data.checkpoint()

    def restore(self, saved: bytes) -> None:
        """Go on where the data stood when `checkpoint` gave this; call it when the model was restored."""
        with self.final():
            self._data.restore(saved)

    @contextmanager
    def final(self) -> Iterator[None]:
        """What is wrong with the user's words is wrong again after a restart: say so, and end for good."""
        try:
            yield
        except (BadInput, Refused) as exc:
            if "SHOAL_AGENT_SOCKET" not in self._environ:
                raise
            write_error(exc, self._environ)
            sys.stderr.write(f"shoal: {exc}\n")
            raise SystemExit(EXIT_DO_NOT_RESTART) from exc

    def _report(self) -> Report | None:
        return Report(generation=self._inbox.committed, rank=0, step=None, collectives=0, busy="data")


class Dataset:
    """One dataset of a job, by its name."""

    def __init__(self, job: Job, name: str) -> None:
        self._job = job
        self.name = name

    def shards(self, *, epoch: int | None = None, prefetch: int = PREFETCH) -> Iterator[Shard]:
        """As `Job.shards`."""
        return self._job.shards(self.name, epoch=epoch, prefetch=prefetch)

    def grow(self, partition: int, upto: int) -> None:
        """As `Job.grow`."""
        self._job.grow(self.name, partition, upto)

    def close(self, partition: int, at: int) -> None:
        """As `Job.close`."""
        self._job.close(self.name, partition, at)


class _Follower(Inbox):
    """An inbox that goes along with every change of world, without disturbing anybody."""

    def __init__(self) -> None:
        super().__init__()
        self._session: Session | None = None

    def follow(self, session: Session) -> None:
        self._session = session
        session.ready(None)

    def receive(self, message: FromAgentLocal) -> None:
        super().receive(message)
        if self._session is None:
            return
        try:
            match message:
                case Prepare(world=world):
                    self._session.acknowledge(world.generation, {})
                case Pause() | Interrupt():
                    self._session.ready(None)
                case _:
                    pass
        except Disconnected:
            pass  # the agent is gone: the link's thread ends the process


def dataset_spec(
    name: str,
    *,
    size: int | None = None,
    shard_size: int | None = None,
    kind: str = "range",
    partitions: tuple[int, ...] = (),
    epochs: int | None = 1,
    shuffle: str = "none",
    seed: int = 0,
    drop_last: bool = False,
    evaluation: bool = False,
    lease_seconds: float = 300.0,
    max_attempts: int = 3,
    batch: GlobalBatch | None = None,
    together: bool = False,
) -> DatasetSpec:
    """A dataset in a user's words. Raises `BadInput`."""
    return DatasetSpec(
        name=name,
        kind=_one_of(Kind, kind, name, "kind"),
        size=size,
        partitions=tuple(partitions),
        epochs=None if evaluation else epochs,
        shuffle=_one_of(Shuffle, shuffle, name, "shuffle"),
        seed=seed,
        shard_size=shard_size,
        drop_last=drop_last,
        purpose=Purpose.EVALUATION if evaluation else Purpose.TRAINING,
        batch=batch,
        together=together,
        leases=LeaseSettings(time=timedelta(seconds=lease_seconds), max_attempts=max_attempts),
    )


def _one_of(kind: type[E], value: str, name: str, what: str) -> E:
    try:
        return kind(value)
    except ValueError:
        wanted = ", ".join(kind)
        raise BadInput(f"dataset {name}: {what} must be one of {wanted}, got {value}") from None
