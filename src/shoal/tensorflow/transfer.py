"""State from the servers of one version to those of the next, straight from server to server.

A graph of its own has every variable twice, in the container of the old version and in that of the new one, and assigns
one to the other. What stays on its server is handed over without a copy; what moves goes over the wire once. It can run
only while nobody trains: an update during the copy would be lost.

Each value is fingerprinted (64 bits) by the server it leaves and again by the server it arrives on. The checksum of a
whole model is the SHA-256 of those fingerprints in the order of the variables' names, so no value has to travel to the
worker for it. `digest` is the slow, plain thing for tests: SHA-256 of all values.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow.compat.v1 as tf

from shoal.core.errors import ShoalError
from shoal.core.ps.cluster import PSCluster
from shoal.tensorflow.generation import Generation, why
from shoal.tensorflow.graphs import Variable, fingerprint_of
from shoal.tensorflow.servers import Server
from shoal.tensorflow.sessions import addresses_of, close_behind, container_of, open_session, ps_device, tasks_of


class TransferFailed(ShoalError):
    """The new version does not hold the old one's state. The old one was not touched."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied:
    checksum: str
    """As it arrived."""
    nbytes: int
    """Of everything."""
    moved_nbytes: int
    """Of what changed its server."""
    left: str | None = None
    """The checksum of what it was copied from, taken there; None: it was not copied."""


class Copier:
    """A prepared copy from one version to the next. Making it is slow, running it is not."""

    def __init__(
        self, server: Server, worker: int | None, variables: Sequence[Variable], *, old: PSCluster, new: PSCluster
    ) -> None:
        self._variables = variables
        homes, next_homes = tasks_of(old), tasks_of(new)
        self._moving = [v for v in variables if homes[v.partition] != next_homes[v.partition]]
        graph = tf.Graph()
        with graph.as_default():
            pairs = [
                _copy(v, (old.version, homes[v.partition]), (new.version, next_homes[v.partition])) for v in variables
            ]
            self._fingerprints = ([left for left, _ in pairs], [arrived for _, arrived in pairs])
        self._session = open_session(server, worker, addresses_of(old, new), graph)

    def run(self) -> Copied:
        """Copy everything. Raises `TransferFailed`; may be run again."""
        try:
            left, arrived = self._session.run(self._fingerprints)
        except tf.errors.OpError as exc:
            raise TransferFailed(f"a parameter server failed during the copy: {why(exc)}") from exc
        for variable, before, after in zip(self._variables, left, arrived, strict=True):
            if bytes(before) != bytes(after):
                raise TransferFailed(f"variable {variable.name} arrived as something else than it left")
        return Copied(
            left=checksum(self._variables, left),
            checksum=checksum(self._variables, arrived),
            nbytes=sum(variable.nbytes for variable in self._variables),
            moved_nbytes=sum(variable.nbytes for variable in self._moving),
        )

    def close(self) -> None:
        close_behind(self._session)


def checksum(variables: Sequence[Variable], fingerprints: Sequence[Any]) -> str:
    """SHA-256 of the variables' fingerprints, in the order of their names."""
    total = hashlib.sha256()
    for variable, fingerprint in sorted(zip(variables, fingerprints, strict=True), key=lambda pair: pair[0].name):
        total.update(f"{variable.name}\0{variable.shape}\0{variable.dtype.name}\0".encode())
        total.update(bytes(fingerprint))
    return total.hexdigest()


def fingerprint(generation: Generation) -> Copied:
    """The checksum of a version that was filled in some other way. Raises `TransferFailed`."""
    variables = generation.layout.variables
    try:
        found = generation.session.run(generation.built.fingerprints)
    except tf.errors.OpError as exc:
        raise TransferFailed(f"a parameter server failed while its variables were checked: {why(exc)}") from exc
    nbytes = sum(variable.nbytes for variable in variables)
    return Copied(checksum=checksum(variables, found), nbytes=nbytes, moved_nbytes=0)


def digest(server: Server, worker: int | None, variables: Sequence[Variable], cluster: PSCluster) -> str:
    """SHA-256 over all values of a version, each brought here. For tests and benchmarks."""
    homes = tasks_of(cluster)
    graph = tf.Graph()
    with graph.as_default():
        reads = [_read(v, cluster.version, ps_device(homes[v.partition])) for v in variables]
    total = hashlib.sha256()
    with open_session(server, worker, addresses_of(cluster), graph) as session:
        for variable, read in sorted(zip(variables, reads, strict=True), key=lambda pair: pair[0].name):
            value = session.run(read)
            total.update(f"{variable.name}\0{value.shape}\0{value.dtype}\0".encode())
            total.update(value.tobytes())
    return total.hexdigest()


def _copy(variable: Variable, source: tuple[int, int], target: tuple[int, int]) -> tuple[Any, Any]:
    """Assign a variable from one (version, task) to another. Its fingerprints: as it left, as it arrived."""
    (old, task), (new, next_task) = source, target
    here, there = ps_device(task), ps_device(next_task)
    value = _read(variable, old, here)
    with tf.device(there):
        assigned = tf.raw_ops.AssignVariableOp(resource=_handle(variable, new), value=value)
    if here == there:  # the same memory: nothing was sent that could be damaged on the way
        with tf.control_dependencies([assigned]):
            return (fingerprint := fingerprint_of(value, here)), fingerprint
    with tf.control_dependencies([assigned]):
        arrived = _read(variable, new, there)
    return fingerprint_of(value, here), fingerprint_of(arrived, there)


def _handle(variable: Variable, version: int) -> Any:
    return tf.raw_ops.VarHandleOp(
        dtype=variable.dtype, shape=variable.shape, container=container_of(version), shared_name=variable.name
    )


def _read(variable: Variable, version: int, device: str) -> Any:
    with tf.device(device):
        return tf.raw_ops.ReadVariableOp(resource=_handle(variable, version), dtype=variable.dtype)
