"""Which parameter server is hot, by a step that is traced.

The processor time of a server's process shows only gross cases. A traced step tells for each operation where it ran,
how long it took and what it produced; it is slow itself, so one is traced now and then and not every step.
"""

import re
from dataclasses import dataclass
from typing import Any

import tensorflow.compat.v1 as tf

from shoal.core.ps.cluster import PSCluster
from shoal.tensorflow.sessions import PS_JOB

_TASK = re.compile(rf"/job:{PS_JOB}/replica:\d+/task:(\d+)/")


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What one step cost one server."""

    operations: int = 0
    seconds: float = 0.0
    """Of all its operations together; they may have run side by side."""
    nbytes: int = 0
    """That its operations produced: what was read of variables, sent, and written back."""


def traced() -> tuple[Any, Any]:
    """Options for one step that is traced, and where its trace will be."""
    return tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE), tf.RunMetadata()


def loads(metadata: Any, cluster: PSCluster) -> dict[int, Load]:
    """The load of each server, by its rank. One device comes several times in a trace: it is added up."""
    ranks = {server.task: server.rank for server in cluster.servers}
    found = {rank: Load() for rank in cluster.ranks}
    for device in metadata.step_stats.dev_stats:
        named = _TASK.search(device.device)
        if named is None or int(named[1]) not in ranks:
            continue
        rank = ranks[int(named[1])]
        found[rank] = _added(found[rank], device.node_stats)
    return found


def _added(load: Load, operations: Any) -> Load:
    return Load(
        operations=load.operations + len(operations),
        seconds=load.seconds + sum(op.op_end_rel_micros - op.op_start_rel_micros for op in operations) / 1e6,
        nbytes=load.nbytes
        + sum(out.tensor_description.allocation_description.requested_bytes for op in operations for out in op.output),
    )
