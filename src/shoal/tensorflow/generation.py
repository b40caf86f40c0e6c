"""One worker's graph and session for one version of the cluster, ready to train or nearly so.

It is made in the background while the version before it trains. A session's first step is slow, for only then do the
servers get their pieces of the graph; so a step is rehearsed (`warm`). It is made to fail before it writes anything:
the version may have no state yet, or be one that others train on.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import tensorflow.compat.v1 as tf

from shoal.core.errors import ShoalError
from shoal.core.ps.cluster import PSCluster
from shoal.tensorflow.graphs import REHEARSAL, Blueprint
from shoal.tensorflow.placing import Built, build
from shoal.tensorflow.servers import Server
from shoal.tensorflow.sessions import addresses_of, close_behind, open_session

LOST = (
    tf.errors.UnavailableError,
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
    tf.errors.InternalError,
)
"""What a step raises when a server is gone, by experience."""


_NO_STATE = re.compile(r"Could not find (variable|resource)|uninitialized value|Container gen\d+ does not exist")


def why(exc: Any) -> str:
    """The first thing that an error of TensorFlow says, without the graph's life story."""
    lines = [line.strip() for line in exc.message.splitlines()]
    said = [line for line in lines if line and not _CHATTER.match(line)]
    return f"{type(exc).__name__}: {said[0][:300] if said else 'no more is known'}"


_CHATTER = re.compile(
    r"Graph execution error|Detected at node|File \"|Node: |([A-Z_]+: )?From /job|"
    r"\d+ root error|\(\d+\)|Recent warning|=+$|\[\["
)


def _has_no_state(exc: Any) -> bool:
    return _NO_STATE.search(exc.message) is not None


class ServersLost(ShoalError):
    """A step could not be done: a parameter server is gone, or has none of this version's variables."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    step: int
    """The global step, as it was read while this one was done."""
    loss: float
    metrics: Mapping[str, float]


class Generation:
    def __init__(self, server: Server, worker: int | None, blueprint: Blueprint, cluster: PSCluster) -> None:
        self.blueprint = blueprint  # the functions of Python's that the graph calls live no longer than it
        self.cluster, self.layout = cluster, blueprint.layout
        self.built: Built = build(blueprint, cluster=cluster, worker=worker)
        self._server, self._worker = server, worker
        self.session = self._open()

    @property
    def version(self) -> int:
        return self.cluster.version

    def warm(self, batch: Any) -> None:
        """Try a step that fails before it writes anything, so that the first one that counts is fast. Raises
        `ServersLost`."""
        try:
            self.session.run(self.built.train, self.built.feed(batch, real=False))
        except tf.errors.OpError as exc:
            if REHEARSAL not in exc.message and not _has_no_state(exc):
                raise ServersLost(why(exc)) from exc

    def train(self, batch: Any, *, options: Any = None, metadata: Any = None) -> Step:
        """One step. Raises `ServersLost`."""
        try:
            done = self.session.run(self.built.train, self.built.feed(batch), options=options, run_metadata=metadata)
        except tf.errors.OpError as exc:
            if _has_no_state(exc):
                raise ServersLost(f"version {self.version} has no state: {why(exc)}") from exc
            if isinstance(exc, LOST):
                raise ServersLost(why(exc)) from exc
            raise  # the model's own: a bad index, a NaN that it checks for
        metrics = {name: float(value) for name, value in done["metrics"].items()}
        return Step(step=int(done["step"]), loss=float(done["loss"]), metrics=metrics)

    def score(self, batch: Any) -> dict[str, float]:
        """Loss and metrics of a batch, without a step."""
        wanted = {"loss": self.built.train["loss"], **self.built.train["metrics"]}
        found = self.session.run(wanted, self.built.feed(batch))
        return {name: float(value) for name, value in found.items()}

    def initialize(self) -> None:
        """Give every variable its first value. Raises `ServersLost`."""
        try:
            self.session.run(self.built.initialize)
        except LOST as exc:
            raise ServersLost(why(exc)) from exc

    def step(self) -> int:
        """The global step. Raises `ServersLost`."""
        try:
            return int(self.session.run(self.built.train["step"]))
        except (*LOST, tf.errors.FailedPreconditionError) as exc:
            raise ServersLost(why(exc)) from exc

    def reconnect(self) -> bool:
        """Try a new session; False: it does not work, or variables have no value."""
        session = self._open()
        try:
            complete = len(session.run(self.built.missing)) == 0
        except tf.errors.OpError:
            complete = False
        if not complete:
            close_behind(session)
            return False
        close_behind(self.session)
        self.session = session
        return True

    def close(self) -> None:
        close_behind(self.session)

    def _open(self) -> Any:
        return open_session(self._server, self._worker, addresses_of(self.cluster), self.built.graph)
