"""A blueprint becomes the graph of one version of the cluster: every partition gets its server, all state the version's
container, and each server what it needs to save and restore what it holds.

Nothing of the model is built again for it. The blueprint's definition is copied with other devices, in function bodies
too, and read by TensorFlow as a whole.
"""

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow.compat.v1 as tf

from shoal.core.errors import BadInput
from shoal.core.ps.cluster import PSCluster
from shoal.tensorflow.graphs import BLANK, OWN_JOB, PARTITION_JOB, Blueprint, Variable
from shoal.tensorflow.sessions import container_of, ps_device, tasks_of, worker_device

_DEVICE = re.compile(rf"/job:({PARTITION_JOB}|{OWN_JOB})(?:/replica:\d+)?/task:(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Saving:
    """What writes and reads checkpoints: each server what it holds."""

    path: Any
    """To be fed: where it begins, without the endings of the files."""
    save: Any
    restore: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """A graph and what is needed of it. All variables are in the container of its version."""

    graph: Any
    inputs: Any
    real: Any
    """Fed with False, a step fails before it writes anything."""
    train: Any
    """Fetched in every step: the update, the loss, the global step, the metrics."""
    initialize: Any
    missing: Any
    """The names of variables that have no value."""
    saving: Saving
    fingerprints: tuple[Any, ...]
    """Of all variables, in the order of the layout."""

    def feed(self, batch: Any, *, real: bool = True) -> dict[Any, Any]:
        """Always the same keys: with others TensorFlow makes another graph of it, and a rehearsal is for nothing."""
        tf.nest.assert_same_structure(self.inputs, batch)
        return {self.real: real, **dict(zip(tf.nest.flatten(self.inputs), tf.nest.flatten(batch), strict=True))}


def build(blueprint: Blueprint, *, cluster: PSCluster, worker: int | None) -> Built:
    """The model's graph for one version of the cluster.

    `worker` is this worker's number; None: the process is its own and only parameter server. Raises `BadInput` when
    the cluster is one for another model.
    """
    if cluster.partitions != blueprint.layout.partitions:
        raise BadInput(f"version {cluster.version} of the cluster is for another model than this script's")
    homes = tasks_of(cluster)
    own = ps_device(cluster.servers[0].task) if worker is None else worker_device(worker)
    servers = [ps_device(homes[partition]) for partition in blueprint.partitions]
    graph = tf.Graph()
    with graph.as_default():
        definition = placed_definition(blueprint.definition, servers, own, container_of(cluster.version))
        tf.import_graph_def(definition, name="")
        saving = _saving(graph, blueprint.layout.variables, homes)
    graph.finalize()
    return Built(
        graph=graph,
        inputs=tf.nest.map_structure(graph.as_graph_element, blueprint.inputs),
        real=graph.as_graph_element(blueprint.real),
        train=tf.nest.map_structure(graph.as_graph_element, blueprint.train),
        initialize=graph.as_graph_element(blueprint.initialize),
        missing=graph.as_graph_element(blueprint.missing),
        saving=saving,
        fingerprints=tuple(graph.as_graph_element(name) for name in blueprint.fingerprints),
    )


def placed_definition(blank: Any, servers: Sequence[str], own: str, container: str) -> Any:
    """A copy of a blueprint's definition, with the devices and the container of a version."""
    definition = tf.GraphDef()
    definition.CopyFrom(blank)
    devices: dict[str, str] = {}
    for node in _nodes(definition):
        if node.device not in devices:
            devices[node.device] = _placed(node.device, servers, own)
        node.device = devices[node.device]
        if "container" in node.attr and node.attr["container"].s == BLANK.encode():
            node.attr["container"].s = container.encode()
    return definition


def _nodes(definition: Any) -> Iterator[Any]:
    return itertools.chain(definition.node, *(function.node_def for function in definition.library.function))


def _placed(device: str, servers: Sequence[str], own: str) -> str:
    """Devices that the model itself has named stay as they are."""
    return _DEVICE.sub(lambda found: own if found[1] == OWN_JOB else servers[int(found[2])], device)


def _saving(graph: Any, variables: Sequence[Variable], homes: Mapping[str, int]) -> Saving:
    """Each server writes a file of its own beside the place where they belong; one of them then brings all there."""
    path = tf.placeholder(tf.string, [])
    held: dict[int, list[Variable]] = {}
    for variable in variables:
        held.setdefault(homes[variable.partition], []).append(variable)
    files, saved, restored = [], [], []
    for number, (task, here) in enumerate(sorted(held.items())):
        handles = [graph.get_tensor_by_name(f"{variable.name}:0") for variable in here]
        keys, slices = [variable.key for variable in here], [variable.slice for variable in here]
        dtypes = [variable.dtype for variable in here]
        with tf.device(ps_device(task)):
            beside = tf.strings.join([path, "_temp/part"])
            file = tf.raw_ops.ShardedFilename(basename=beside, shard=number, num_shards=len(held))
            values = [tf.raw_ops.ReadVariableOp(resource=h, dtype=d) for h, d in zip(handles, dtypes, strict=True)]
            written = tf.raw_ops.SaveV2(prefix=file, tensor_names=keys, shape_and_slices=slices, tensors=values)
            read = tf.raw_ops.RestoreV2(prefix=path, tensor_names=keys, shape_and_slices=slices, dtypes=dtypes)
            restored += [
                tf.raw_ops.AssignVariableOp(resource=h, value=value) for h, value in zip(handles, read, strict=True)
            ]
        files.append(file)
        saved.append(written)
    with tf.device(ps_device(min(held))), tf.control_dependencies(saved):
        merged = tf.raw_ops.MergeV2Checkpoints(
            checkpoint_prefixes=tf.stack(files), destination_prefix=path, delete_old_dirs=True
        )
    return Saving(path=path, save=merged, restore=tf.group(*restored))
