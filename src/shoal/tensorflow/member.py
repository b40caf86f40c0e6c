"""A trainer: one process that trains on the parameter servers, and what it does when it is told of a change.

The main thread trains, and between two steps attends to what the coordinator has said (`attend`). It stands still
there while it is drained, or cannot reach a server, or was never told to go. Only the preparation of a next version
runs beside it, in a thread of its own: building a graph takes seconds, and training goes on meanwhile.

Words are levels: what is done already is answered again, and a version that is older than the newest one is ignored.
"""

import logging
import re
import socket
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, assert_never

import tensorflow.compat.v1 as tf

from shoal.core.errors import ShoalError
from shoal.core.ps.cluster import Fresh, FromCheckpoint, LiveCopy, PSCluster, ThroughCheckpoint, Transfer
from shoal.core.ps.words import (
    Abandon,
    ChiefIs,
    Drain,
    Drained,
    Go,
    ModelNamed,
    Move,
    Moved,
    MoveFailed,
    PreparedPS,
    PrepareFailed,
    PreparePS,
    Resumed,
    Save,
    SavedPS,
    SaveFailed,
    SaveWanted,
    ServerUnreachable,
    Settled,
    ToTrainer,
)
from shoal.tensorflow import checkpoints
from shoal.tensorflow.behind import behind
from shoal.tensorflow.checkpoints import CheckpointFailed
from shoal.tensorflow.coordinator import Coordinator
from shoal.tensorflow.generation import Generation, ServersLost, Step, why
from shoal.tensorflow.graphs import Blueprint
from shoal.tensorflow.pauses import Pause, Stopwatch
from shoal.tensorflow.servers import Server
from shoal.tensorflow.sessions import addresses_of, free
from shoal.tensorflow.transfer import Copied, Copier, TransferFailed, fingerprint
from shoal.trainer.data import Data

RETRY_SECONDS = 1.0
"""How often a new session is tried on servers that could not be reached."""
_LONGEST_DETAIL = 2000
_log = logging.getLogger(__name__)


class Leaving(Exception):
    """This trainer stands still and was told to leave: there is no step to wait for."""


@dataclass(slots=True)
class _Preparation:
    """A version that is being prepared, or is ready. Written by its thread, then read by the main one."""

    cluster: PSCluster
    generation: Generation | None = None
    copier: Copier | None = None
    is_dropped: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)

    def drop(self) -> None:
        with self.lock:
            self.is_dropped = True
            self._close()

    def ready(self, generation: Generation, copier: Copier | None) -> bool:
        """False: nobody wants it any more."""
        with self.lock:
            self.generation, self.copier = generation, copier
            if self.is_dropped:
                self._close()
            return not self.is_dropped

    def _close(self) -> None:
        if self.generation is not None:
            self.generation.close()
        if self.copier is not None:
            self.copier.close()


class Member:
    """`worker` is this process's number among workers; None: it is its own and only parameter server. `batch` is any
    batch, to rehearse steps with. `keep`: how many checkpoints the chief leaves. `on_pause` hears of every pause when
    training goes on."""

    def __init__(
        self,
        server: Server,
        worker: int | None,
        blueprint: Blueprint,
        *,
        coordinator: Coordinator,
        data: Data,
        batch: Any,
        keep: int = 3,
        leave: threading.Event | None = None,
        on_pause: Callable[[Pause], None] = lambda _: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._server, self._worker = server, worker
        self._blueprint, self._layout = blueprint, blueprint.layout
        self._coordinator, self._data, self._batch, self._keep = coordinator, data, batch, keep
        self._clock = clock
        self._leave = leave or threading.Event()
        self._on_pause = on_pause
        self._stopwatch: Stopwatch | None = None
        """Runs while this trainer, which has trained, stands still."""
        self._chief: str | None = None
        self._training: Generation | None = None
        self._next: _Preparation | None = None
        self._newest = 0
        self._past: dict[int, PSCluster] = {}
        """Versions whose containers may still hold variables."""
        self._may_train = False
        self._unreachable = False
        self._step = 0
        self._save_asked = False
        self.saves = 0
        """Checkpoints that were made here while all stood still."""
        self.failed_saves = 0
        self.why_not_saved = ""
        """The last time that it failed."""

    @property
    def is_chief(self) -> bool:
        return self._chief == self._coordinator.node

    @property
    def may_train(self) -> bool:
        return self._may_train

    @property
    def version(self) -> int:
        return 0 if self._training is None else self._training.version

    def name_model(self) -> None:
        """Say what there is to place, and that this trainer is ready."""
        self._coordinator.say(ModelNamed(partitions=self._layout.partitions))

    def ask_to_save(self, why: str, *, fuzzy: bool = False) -> None:
        """The chief's wish for a checkpoint; at most one at a time, but for fuzzy ones: if one of those is given up
        there is no pause whose end would tell."""
        if fuzzy:
            self._coordinator.say(SaveWanted(reason=why, fuzzy=True))
        elif not self._save_asked:
            self._save_asked = True
            self._coordinator.say(SaveWanted(reason=why))

    # Training ------------------------------------------------------------------------------------------------

    def train(self, batch: Any, *, options: Any = None, metadata: Any = None) -> Step:
        """One step on the version of the hour. Raises `ServersLost`; then `attend`, and try again."""
        assert self._training is not None
        assert self._may_train
        try:
            step = self._training.train(batch, options=options, metadata=metadata)
        except ServersLost as exc:
            self._stand_lost(exc)
            raise
        self._step = step.step
        if self._stopwatch is not None:
            self._on_pause(self._stopwatch.ended(self.version))
            self._stopwatch = None
        return step

    def listen(self, *, wait: float) -> None:
        """Wait for one word and do what it says, whether or not a step may begin then. If none comes, what was asked
        for may be asked again. Raises `Leaving`."""
        if (word := self._coordinator.hear(wait=wait)) is not None:
            self.obey(word)
        elif self._leave.is_set():
            raise Leaving
        else:
            self._save_asked = False

    def attend(self, *, idle: float = 0.0) -> None:
        """Do what was said since the last step; return when the next one may begin. `idle`: there is nothing to train
        now, so listen for so many seconds first. Raises `Leaving`."""
        if idle and self._may_train and (word := self._coordinator.hear(wait=idle)) is not None:
            self.obey(word)
        while True:
            word = self._coordinator.hear(wait=self._patience())
            if word is not None:
                self.obey(word)
            elif self._may_train:
                return
            elif self._leave.is_set():
                raise Leaving
            elif self._unreachable:
                self._try_again()

    def _patience(self) -> float | None:
        if self._may_train:
            return 0.0
        return RETRY_SECONDS if self._unreachable else None

    def _stand_lost(self, exc: ServersLost) -> None:
        """Stand still and say so; who of the servers it is, is found by knocking."""
        assert self._training is not None
        self._may_train, self._unreachable = False, True
        self._stopwatch = self._stopwatch or Stopwatch("a parameter server was out of reach")
        rank = _unreachable_rank(self._training.cluster, str(exc))
        self._coordinator.say(ServerUnreachable(version=self.version, rank=rank, detail=str(exc)[:_LONGEST_DETAIL]))

    def _try_again(self) -> None:
        assert self._training is not None
        if not all(_answers(server.address) for server in self._training.cluster.servers):
            return
        if self._training.reconnect():
            self._unreachable, self._may_train = False, True
            if self._stopwatch is not None:
                self._stopwatch.went()
            self._coordinator.say(Resumed(version=self.version))

    # Words ---------------------------------------------------------------------------------------------------

    def obey(self, word: ToTrainer) -> None:
        match word:
            case PreparePS(cluster=cluster, chief=chief):
                self._chief = chief
                self._prepare(cluster)
            case Drain():
                self._drain(word)
            case Move():
                self._move(word)
            case Save():
                self._save(word)
            case Go(version=version, chief=chief):
                self._chief = chief
                self._go(version)
            case Abandon(version=version):
                self._abandon(version)
            case ChiefIs(chief=chief):
                self._chief = chief
            case Settled(version=version):
                self._settle(version)
            case _:
                assert_never(word)

    def _prepare(self, cluster: PSCluster) -> None:
        version = cluster.version
        if version == self.version:
            self._coordinator.say(PreparedPS(version=version))
        elif self._next is not None and version == self._next.cluster.version:
            if self._next.generation is not None:
                self._coordinator.say(PreparedPS(version=version))
        elif version > self._newest:
            if self._next is not None:
                self._next.drop()
            self._newest = version
            self._past[version] = cluster
            self._next = _Preparation(cluster)
            copies = self.is_chief and cluster.source == LiveCopy(self.version)
            source = self._training if copies else None
            behind(self._prepare_behind, self._next, source, name=f"shoal-prepare-{version}")

    def _prepare_behind(self, preparation: _Preparation, source: Generation | None) -> None:
        """In a thread. Whoever is to copy rehearses that too: the servers then have the graph for it, and a copy that
        cannot work is found out before anybody stands still. What it writes is written again when it counts. Where
        all stand still already, a step is rehearsed only when they need not wait for it: while the state is brought."""
        cluster = preparation.cluster
        generation: Generation | None = None
        copier: Copier | None = None
        try:
            generation = self._generation(cluster)
            if isinstance(cluster.source, LiveCopy):
                generation.warm(self._batch)
            if source is not None:
                copier = self._copier(source.cluster, cluster)
                copier.run()
        except (ShoalError, tf.errors.OpError) as exc:
            reason = why(exc) if isinstance(exc, tf.errors.OpError) else str(exc)
            for made in (generation, copier):
                if made is not None:
                    made.close()
            self._coordinator.say(PrepareFailed(version=cluster.version, reason=reason[:_LONGEST_DETAIL]))
        else:
            if preparation.ready(generation, copier):
                self._coordinator.say(PreparedPS(version=cluster.version))
                if not isinstance(cluster.source, LiveCopy):
                    _warm(generation, self._batch)

    def _drain(self, word: Drain) -> None:
        """No step is under way here: they are done by the thread that reads this."""
        if self._may_train or self._unreachable:
            self._may_train = self._unreachable = False
            self._stopwatch = self._stopwatch or Stopwatch(word.reason)
            self._stopwatch.reason = word.reason
            self._data.checkpoint()  # its answer proves that the ledger has all that was reported from here
            self._stopwatch.drained()
        self._coordinator.say(Drained(barrier=word.barrier, step=self._step))

    def _move(self, word: Move) -> None:
        preparation = self._next
        if preparation is None or preparation.cluster.version != word.version or preparation.generation is None:
            reason = f"version {word.version} is not prepared here"
            self._coordinator.say(MoveFailed(version=word.version, attempt=word.attempt, reason=reason))
            return
        began = time.monotonic()
        try:
            copied = self._bring(preparation, preparation.generation, word.transfer)
        except (TransferFailed, CheckpointFailed, ServersLost) as exc:
            reason = str(exc)[:_LONGEST_DETAIL]
            self._coordinator.say(MoveFailed(version=word.version, attempt=word.attempt, reason=reason))
            return
        if self._stopwatch is not None:
            self._stopwatch.moved(time.monotonic() - began, copied.checksum, before=copied.left)
        moved = Moved(version=word.version, attempt=word.attempt, checksum=copied.checksum, nbytes=copied.nbytes)
        self._coordinator.say(moved)

    def _bring(self, preparation: _Preparation, generation: Generation, transfer: Transfer) -> Copied:
        match transfer:
            case Fresh():
                generation.initialize()
            case LiveCopy(version=version):
                if preparation.copier is None:  # the chief was another one when this was prepared
                    preparation.copier = self._copier(self._past[version], generation.cluster)
                return preparation.copier.run()
            case ThroughCheckpoint(path=path):
                if self._training is None:
                    raise TransferFailed("this chief has not trained on the version that is to be saved")
                before = fingerprint(self._training)
                if Path(path).exists():
                    checkpoints.delete(Path(path))  # of this chief's life before
                checkpoints.save(self._training, path, saved_at=self._clock())
                try:
                    checkpoints.restore(generation, path)
                finally:
                    self._delete(path)
                after = fingerprint(generation)
                if before != after:
                    raise TransferFailed("what was restored is not what was saved")
                return replace(after, left=before.checksum)
            case FromCheckpoint(path=path):
                checkpoints.restore(generation, path)
            case _:
                assert_never(transfer)
        return fingerprint(generation)

    def _save(self, word: Save) -> None:
        """The model stays where it is, whatever becomes of the checkpoint."""
        self._save_asked = self._save_asked and word.fuzzy
        began = time.monotonic()
        try:
            if self._training is None or self.version != word.version:
                raise CheckpointFailed(f"version {word.version} is not the one that trains here ({self.version})")
            saved = checkpoints.save(
                self._training, word.path, mark=word.mark, fuzzy=word.fuzzy, saved_at=self._clock()
            )
        except CheckpointFailed as exc:
            _log.warning("%s; training goes on", exc)
            self.failed_saves, self.why_not_saved = self.failed_saves + 1, str(exc)
            self._coordinator.say(SaveFailed(barrier=word.barrier, reason=str(exc)[:_LONGEST_DETAIL]))
        else:
            self.saves += not word.fuzzy
            self._coordinator.say(SavedPS(checkpoint=saved, barrier=word.barrier))
            self._prune(saved.path, word.needed)
        if self._stopwatch is not None:
            self._stopwatch.moved(time.monotonic() - began, None)

    def _prune(self, saved: str, needed: Collection[str]) -> None:
        try:
            checkpoints.prune(saved, keep=self._keep, needed=needed)
        except CheckpointFailed as exc:
            _log.warning("%s; training goes on", exc)

    def _delete(self, path: str) -> None:
        """It has served its purpose."""
        try:
            checkpoints.delete(Path(path))
        except CheckpointFailed as exc:
            _log.warning("%s; training goes on", exc)

    def _go(self, version: int) -> None:
        if version != self.version:
            preparation = self._next
            if preparation is None or preparation.cluster.version != version or preparation.generation is None:
                return  # of an older version, or of one that was given up
            self._switch(preparation, preparation.generation)
        self._may_train, self._unreachable = True, False
        self._save_asked = False
        if self._stopwatch is not None:
            self._stopwatch.went()
        self._coordinator.say(Resumed(version=version))

    def _switch(self, preparation: _Preparation, generation: Generation) -> None:
        if preparation.copier is not None:
            preparation.copier.close()
        before, self._training, self._next = self._training, generation, None
        if before is not None:
            before.close()
            if generation.cluster.is_rollback:
                self._data.forget()  # the ledger stands where the model does now: what is held here is from later

    def _abandon(self, version: int) -> None:
        preparation = self._next
        if preparation is None or preparation.cluster.version != version:
            return
        self._next = None
        preparation.drop()
        self._past.pop(version, None)
        if self.is_chief:
            free(addresses_of(preparation.cluster).values(), version)

    def _settle(self, version: int) -> None:
        for older in [number for number in self._past if number < version]:
            cluster = self._past.pop(older)
            if self.is_chief:
                free(addresses_of(cluster).values(), older)

    def _generation(self, cluster: PSCluster) -> Generation:
        return Generation(self._server, self._worker, self._blueprint, cluster)

    def _copier(self, old: PSCluster, new: PSCluster) -> Copier:
        return Copier(self._server, self._worker, self._layout.variables, old=old, new=new)


def _warm(generation: Generation, batch: Any) -> None:
    """For speed alone: whether its servers are there is found out by whoever brings the state or trains."""
    try:
        generation.warm(batch)
    except (ServersLost, RuntimeError) as exc:  # the latter: its session was closed before it began
        _log.debug("a step of version %d could not be rehearsed: %s", generation.version, exc)


def _unreachable_rank(cluster: PSCluster, detail: str) -> int:
    """The server that does not answer; else the one that the error names; else the first."""
    for server in cluster.servers:
        if not _answers(server.address):
            return server.rank
    named = re.search(r"/job:ps/replica:\d+/task:(\d+)", detail)
    ranks = {server.task: server.rank for server in cluster.servers}
    return ranks.get(int(named[1]) if named else -1, cluster.servers[0].rank)


def _answers(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=RETRY_SECONDS).close()
    except OSError:
        return False
    return True
