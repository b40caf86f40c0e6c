"""The user's model as a TensorFlow graph, drawn once: before it is known which servers there will be.

The model function is called once in the life of a process, and makes its variables with `tf.compat.v1.get_variable`.
Where a variable lives is not its business: large ones are cut into parts (`core.ps.parts`), and the version says which
server has which. So each variable has a server of its own in the blueprint, and a version's graph is a copy of it in
which those have become the servers that there are (`placing`). Copying takes a fraction of the time that the function
takes, and when a server is lost everybody waits for it.

`minimize` is called here and not by the model, for TensorFlow names the optimizer's variables wrongly when a variable
scope is open.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import tensorflow.compat.v1 as tf

from shoal.core.errors import BadInput
from shoal.core.ps.cluster import Partition
from shoal.core.ps.parts import grouped, parts_of

REHEARSAL = "shoal: only a rehearsal of this step"
PARTITION_JOB = "partition"
OWN_JOB = "own"
BLANK = "shoal-blank"
"""The container of a blueprint's variables."""


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
    key: str
    """What the whole variable is called in a checkpoint."""
    slice: str
    """Which part of that it is; empty: all of it."""

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
class Blueprint:
    """A model's graph without servers, and the names of what is needed of it. Nobody changes it."""

    layout: Layout
    graph: Any
    """Kept for what its definition only refers to: functions of Python's that the model calls."""
    definition: Any
    """All variables are in the container `BLANK`; devices are `PARTITION_JOB` and `OWN_JOB`."""
    partitions: tuple[str, ...]
    """The name of the partition that each task of `PARTITION_JOB` stands for."""
    inputs: Any
    real: str
    train: Any
    initialize: str
    missing: str
    fingerprints: tuple[str, ...]
    """In the order of the layout's variables."""


def signature_of(batch: Any) -> Any:
    """The shape of a batch: as it is, with its first axis left open."""
    return tf.nest.map_structure(lambda array: tf.TensorSpec([None, *array.shape[1:]], array.dtype), batch)


def draw(function: ModelFunction, signature: Any, *, parts: int) -> Blueprint:
    """Call the model function. Raises `BadInput` for a model that cannot be trained like this.

    TensorFlow keeps some variables beside others by itself, so which one a variable stays with is read from the device
    that it got in the end.
    """
    numbers: dict[str, int] = {}
    graph = tf.Graph()
    with graph.as_default(), graph.container(BLANK):
        devices = _devices(lambda name: numbers.setdefault(name, len(numbers)))
        inputs, real, train = _make(function, signature, parts, devices)
        with tf.device(devices):
            initialize = tf.global_variables_initializer()
            missing = tf.report_uninitialized_variables(tf.global_variables())
            missing.mark_used()  # perhaps not: it is for a server that was out of reach
        names = list(numbers)
        made = [(_described(variable, names), variable) for variable in tf.global_variables()]
        made.sort(key=lambda pair: pair[0].name)
        variables = [described for described, _ in made]
        fingerprints = [fingerprint_of(variable.read_value(), variable.op.device) for _, variable in made]
    graph.finalize()
    leaders = {variable.name: variable.partition for variable in variables}
    if stray := sorted(numbers.keys() - leaders.keys()):
        raise BadInput(
            f"variable {stray[0]} is not a global one (tf.metrics makes such), so it would be neither initialised nor "
            "moved; give Model(metrics=) plain tensors"
        )
    if own := graph.get_collection(tf.GraphKeys.SAVEABLE_OBJECTS):
        raise BadInput(
            f"{own[0].name} keeps state of its own (tables do: tf.lookup.experimental.MutableHashTable), which would "
            "be neither moved nor in a checkpoint; keep what is learnt in variables (tf.get_variable), or give the "
            "table checkpoint=False if it may be empty again after each change of the servers"
        )
    partitions = grouped(leaders, {variable.name: variable.nbytes for variable in variables})
    return Blueprint(
        layout=Layout(variables=tuple(variables), partitions=partitions, parts=parts),
        graph=graph,
        definition=graph.as_graph_def(),
        partitions=tuple(leaders[name] for name in names),
        inputs=_names(graph, inputs),
        real=real.name,
        train=_names(graph, train),
        initialize=initialize.name,
        missing=missing.name,
        fingerprints=tuple(each.name for each in fingerprints),
    )


def fingerprint_of(value: Any, device: str) -> Any:
    """64 bits of a value, taken on that device."""
    with tf.device(device):
        return tf.raw_ops.Fingerprint(data=tf.reshape(value, [1, -1]), method=b"farmhash64")


def _names(graph: Any, wanted: Any) -> Any:
    return tf.nest.map_structure(lambda each: graph.as_graph_element(each).name, wanted)


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


def _devices(number: Callable[[str], int]) -> Any:
    """A device function: each variable has a task of its own by its name, everything else is the worker's."""
    return tf.train.replica_device_setter(
        ps_tasks=1,
        ps_device=f"/job:{PARTITION_JOB}",
        worker_device=f"/job:{OWN_JOB}/task:0",
        ps_ops=["VarHandleOp"],
        ps_strategy=lambda op: number(op.name),
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
    key, rows = _saved_as(variable)
    return Variable(
        name=name,
        shape=tuple(shape.as_list()),
        dtype=variable.dtype.base_dtype,
        partition=names[int(tf.DeviceSpec.from_string(variable.op.device).task)],
        key=key,
        slice=rows,
    )


def _saved_as(variable: Any) -> tuple[str, str]:
    """The name of the whole variable, and which slice of it this is, in the words of TensorFlow's checkpoints."""
    of = variable.to_proto().save_slice_info_def
    if not of.full_name:
        return variable.op.name, ""
    whole = " ".join(str(length) for length in of.full_shape)
    part = ":".join(f"{offset},{length}" for offset, length in zip(of.var_offset, of.var_shape, strict=True))
    return of.full_name, f"{whole} {part}"
