"""Sessions: one worker's view of one version of the cluster.

A session names the parameter servers of its version, by numbers that need not be consecutive, and the worker itself;
never another worker, so that workers come and go without anybody noticing. Its graph keeps all variables in a
**container** of its own generation (`container_of`): variables of an older generation can then not look initialised,
and a worker that missed a change finds nothing to write to.

Closing a session may take forever when one of its servers is dead, so nobody waits for it (`close_behind`).
"""

import logging
from collections.abc import Collection, Mapping
from typing import Any

import tensorflow.compat.v1 as tf

from shoal.core.ps.cluster import PSCluster
from shoal.tensorflow.behind import behind
from shoal.tensorflow.servers import Server, session_config

PS_JOB = "ps"
WORKER_JOB = "worker"
_log = logging.getLogger(__name__)


def container_of(generation: int) -> str:
    return f"gen{generation}"


def ps_device(number: int) -> str:
    return f"/job:{PS_JOB}/task:{number}"


def worker_device(number: int) -> str:
    return f"/job:{WORKER_JOB}/task:{number}"


def addresses_of(*clusters: PSCluster) -> dict[int, str]:
    """The servers of these versions, by task."""
    return {server.task: server.address for cluster in clusters for server in cluster.servers}


def tasks_of(cluster: PSCluster) -> dict[str, int]:
    """The task that holds each partition, by the partition's name."""
    task = {server.rank: server.task for server in cluster.servers}
    return {partition.name: task[rank] for partition, rank in zip(cluster.partitions, cluster.placement, strict=True)}


def open_session(server: Server, worker: int | None, servers: Mapping[int, str], graph: Any) -> Any:
    """A session of this worker on these parameter servers; None: the process is its own and only one."""
    jobs = {PS_JOB: dict(servers)}
    if worker is not None:
        jobs[WORKER_JOB] = {worker: server.address}
    config = session_config(jobs)
    return tf.Session(server.target, graph=graph, config=config)


def close_behind(session: Any) -> None:
    """Close it without waiting: with a dead server in it that may never end."""
    behind(_close, session, name="shoal-close")


def _close(session: Any) -> None:
    try:
        session.close()
    except tf.errors.OpError as exc:
        _log.debug("a session was closed over a server that is gone: %s", exc.message)


def free(addresses: Collection[str], generation: int) -> None:
    """Give back the memory that a generation's variables have on these servers. Does not wait: they may be dead."""
    for address in addresses:
        behind(_reset, address, generation, name=f"shoal-free-{address}")


def _reset(address: str, generation: int) -> None:
    try:
        tf.Session.reset(f"grpc://{address}", [container_of(generation)])
    except tf.errors.OpError as exc:
        _log.debug("generation %d was not freed on %s: %s", generation, address, exc.message)
