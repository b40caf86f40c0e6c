"""The user's model as a TensorFlow graph for one version of the cluster.

The model function is called once for each version, in a graph of its own, and makes its variables with
`tf.compat.v1.get_variable`. Where a variable lives is not its business: large ones are cut into parts
(`core.ps.parts`), and the version says which server has which. `minimize` is called here and not by the model, for
TensorFlow names the optimizer's variables wrongly when a variable scope is open.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import tensorflow.compat.v1 as tf

from shoal.core.errors import BadInput
from shoal.core.ps.cluster import Partition, PSCluster
from shoal.core.ps.parts import grouped, parts_of
from shoal.tensorflow.sessions import PS_JOB, container_of, ps_device, tasks_of, worker_device

REHEARSAL = "shoal: only a rehearsal of this step"


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """What a model function returns."""

    loss: Any
    """A scalar tensor."""
    optimizer: Any
    """A `tf.compat.v1.train.Optimizer`."""
    metrics: Mapping[str, Any] = field(default_factory=dict)
    """Further scalars that each step is to tell."""


ModelFunction = Callable[[Any], Model]
"""Called with placeholders in the shape of a batch: a tensor, or a tuple or dict of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Variable:
    """One variable, or one part of a large one."""

    name: str
    shape: tuple[int, ...]
    dtype: Any
    partition: str
    """The name of the variable that it stays with; often itself."""

    @property
    def nbytes(self) -> int:
        count = 1
        for length in self.shape:
            count *= length
        return count * int(self.dtype.size)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """What a model consists of, whatever servers there are. Every worker finds the same."""

    variables: tuple[Variable, ...]
    """Sorted by name."""
    partitions: tuple[Partition, ...]
    parts: int
    """Into how many parts a large variable is cut, at most."""


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
    saver: Any

    def feed(self, batch: Any, *, real: bool = True) -> dict[Any, Any]:
        """Always the same keys: with others TensorFlow makes another graph of it, and a rehearsal is for nothing."""
        tf.nest.assert_same_structure(self.inputs, batch)
        return {self.real: real, **dict(zip(tf.nest.flatten(self.inputs), tf.nest.flatten(batch), strict=True))}


def signature_of(batch: Any) -> Any:
    """The shape of a batch: as it is, with its first axis left open."""
    return tf.nest.map_structure(lambda array: tf.TensorSpec([None, *array.shape[1:]], array.dtype), batch)


def lay_out(function: ModelFunction, signature: Any, *, parts: int) -> Layout:
    """Build the model once to see what there is to place. Raises `BadInput` for one that cannot be trained like this.

    Each variable gets a server of its own here. TensorFlow keeps some beside others by itself, so which one a variable
    stays with is read from the device that it got in the end.
    """
    numbers: dict[str, int] = {}
    graph = tf.Graph()
    with graph.as_default():
        number = lambda name: numbers.setdefault(name, len(numbers))  # noqa: E731
        _make(function, signature, parts, _devices(number, worker_device(0)))
        names = list(numbers)
        variables = [_described(variable, names) for variable in tf.global_variables()]
    variables.sort(key=lambda variable: variable.name)
    leaders = {variable.name: variable.partition for variable in variables}
    partitions = grouped(leaders, {variable.name: variable.nbytes for variable in variables})
    return Layout(variables=tuple(variables), partitions=partitions, parts=parts)


def build(function: ModelFunction, signature: Any, *, layout: Layout, cluster: PSCluster, worker: int | None) -> Built:
    """The model's graph for one version of the cluster.

    `worker` is this worker's number; None: the process is its own and only parameter server. Raises `BadInput` when
    the model function does not make the same variables as it did before, or the cluster is one for another model.
    """
    if cluster.partitions != layout.partitions:
        raise BadInput(f"version {cluster.version} of the cluster is for another model than this script's")
    homes = tasks_of(cluster)
    known = {variable.name: variable.partition for variable in layout.variables}

    def task_of(name: str) -> int:
        if name not in known:
            raise BadInput(f"the model function made variable {name}, which it did not make when it was called before")
        return homes[known[name]]

    own = ps_device(cluster.servers[0].task) if worker is None else worker_device(worker)
    graph = tf.Graph()
    with graph.as_default(), graph.container(container_of(cluster.version)):
        devices = _devices(task_of, own)
        inputs, real, train = _make(function, signature, layout.parts, devices)
        with tf.device(devices):
            initialize = tf.global_variables_initializer()
            missing = tf.report_uninitialized_variables(tf.global_variables())
            saver = tf.train.Saver(sharded=True, max_to_keep=0)
        made = {variable.op.name for variable in tf.global_variables()}
    if gone := sorted(known.keys() - made):
        raise BadInput(f"the model function did not make variable {gone[0]}, which it made when it was called before")
    graph.finalize()
    return Built(
        graph=graph, inputs=inputs, real=real, train=train, initialize=initialize, missing=missing, saver=saver
    )


def _make(function: ModelFunction, signature: Any, parts: int, devices: Any) -> tuple[Any, Any, dict[str, Any]]:
    """The model, its update and the global step in the current graph: what is fed, and what is fetched.

    Not every write waits for a gradient (Adam lets all of its averages decay first), so all of them wait for `real`.
    """
    root = tf.get_variable_scope()
    root.set_partitioner(lambda shape, dtype: _cut(shape, dtype, parts))
    root.set_use_resource(True)
    with tf.device(devices):
        step = tf.train.get_or_create_global_step()
        inputs = tf.nest.map_structure(lambda spec: tf.placeholder(spec.dtype, spec.shape), signature)
        real = tf.placeholder(tf.bool, [])
        model = function(inputs)
        if not isinstance(model, Model):
            raise BadInput(f"the model function must return a shoal.tensorflow.Model, got {type(model).__name__}")
        with tf.control_dependencies([tf.Assert(real, [REHEARSAL])]):
            update = model.optimizer.minimize(model.loss, global_step=step)
    return inputs, real, {"update": update, "loss": model.loss, "step": step, "metrics": dict(model.metrics)}


def _cut(shape: Any, dtype: Any, parts: int) -> list[int]:
    lengths = shape.as_list()
    return [parts_of(lengths, dtype.size, parts), *([1] * (len(lengths) - 1))]


def _devices(task_of: Callable[[str], int], own: str) -> Any:
    """A device function: variables go to a task by their name, everything else to the worker."""
    return tf.train.replica_device_setter(
        ps_tasks=1,
        ps_device=f"/job:{PS_JOB}",
        worker_device=own,
        ps_ops=["VarHandleOp"],
        ps_strategy=lambda op: task_of(op.name),
    )


def _described(variable: Any, names: Sequence[str]) -> Variable:
    name, shape = variable.op.name, variable.shape
    if variable.op.type != "VarHandleOp":
        raise BadInput(
            f"variable {name} is of the old kind ({variable.op.type}), which cannot be moved; "
            "make it with use_resource=True, or leave that argument out"
        )
    if not shape.is_fully_defined():
        raise BadInput(f"variable {name} has no fixed shape ({shape}), so it cannot be moved")
    return Variable(
        name=name,
        shape=tuple(shape.as_list()),
        dtype=variable.dtype.base_dtype,
        partition=names[int(tf.DeviceSpec.from_string(variable.op.device).task)],
    )
