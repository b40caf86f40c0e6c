"""What tests do in a process that has TensorFlow. Called by `in_worker`; what they return is plain, so
that whoever gets it needs no TensorFlow."""

import contextlib
import gc
import io
import re
import runpy
import sys
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import tensorflow.compat.v1 as tf
from tests.tensorflow.models import PARTS, a_batch, a_cluster, a_model

from shoal.core.errors import BadInput, ShoalError
from shoal.core.ps.cluster import Fresh, PSCluster
from shoal.core.ps.words import Go, Move, PreparedPS, PreparePS
from shoal.tensorflow import checkpoints, hot
from shoal.tensorflow.alone import own_cluster
from shoal.tensorflow.evaluator import HeldOut
from shoal.tensorflow.generation import Generation, ServersLost
from shoal.tensorflow.graphs import Layout, Model, draw, signature_of
from shoal.tensorflow.member import Member
from shoal.tensorflow.placing import build, placed_definition
from shoal.tensorflow.servers import Server, boot, session_config, shares_state
from shoal.tensorflow.sessions import container_of, ps_device, tasks_of
from shoal.tensorflow.transfer import Copier, digest, fingerprint
from shoal.trainer.data import Data

Addresses = list[str]


class Lab:
    """One worker, its model, and versions of the cluster to train it on."""

    def __init__(self, addresses: Addresses, optimizer: Any = None, parts: int = PARTS) -> None:
        self.addresses = dict(enumerate(addresses))
        self.server: Server = boot()
        self.blueprint = draw(a_model(optimizer), signature_of(a_batch()), parts=parts)
        self.layout: Layout = self.blueprint.layout
        self.versions = 0

    def cluster(self, *tasks: int, before: PSCluster | None = None) -> PSCluster:
        self.versions += 1
        servers = {task: self.addresses[task] for task in tasks}
        return a_cluster(self.versions, servers, self.layout.partitions, before)

    def generation(self, cluster: PSCluster) -> Generation:
        return Generation(self.server, 0, self.blueprint, cluster)

    def trained(self, cluster: PSCluster, steps: int = 3) -> Generation:
        generation = self.generation(cluster)
        generation.initialize()
        for seed in range(steps):
            generation.train(a_batch(seed))
        return generation

    def digest(self, cluster: PSCluster) -> str:
        return digest(self.server, 0, self.layout.variables, cluster)

    def copied(self, old: PSCluster, new: PSCluster) -> Any:
        return Copier(self.server, 0, self.layout.variables, old=old, new=new).run()


def state_is_shared() -> tuple[bool, bool]:
    server = boot()
    private = session_config({"probe": {0: server.address}}, shared=False)
    return shares_state(server), shares_state(server, config=private)


def a_life(addresses: Addresses) -> dict[str, Any]:
    """1 → 2 → 3 → 2 servers without a step that counts between; then training goes on, and the version is freed under
    a worker that does not know."""
    lab = Lab(addresses)
    cluster = lab.cluster(0)
    lab.trained(cluster)
    digests, copies, spread = [lab.digest(cluster)], [], []
    for tasks in ((0, 1), (0, 1, 2), (1, 2)):
        before, cluster = cluster, lab.cluster(*tasks, before=cluster)
        copied = lab.copied(before, cluster)
        copies.append((copied.checksum, copied.nbytes, copied.moved_nbytes))
        digests.append(lab.digest(cluster))
        spread.append(len(set(tasks_of(cluster).values())))
    generation = lab.generation(cluster)
    found = fingerprint(generation).checksum
    generation.warm(a_batch(5))
    rehearsed = lab.digest(cluster)
    step = generation.train(a_batch(9)).step
    for address in addresses:
        tf.Session.reset(f"grpc://{address}", [container_of(cluster.version)])
    try:
        generation.train(a_batch())
        fenced = "it trained"
    except ServersLost as exc:
        fenced = str(exc)
    return {
        "digests": digests,
        "copies": copies,
        "spread": spread,
        "found": found,
        "rehearsed": rehearsed,
        "step": step,
        "fenced": fenced,
    }


def with_python(made: Model, doubled: list[Any]) -> Model:
    """That model, and it calls Python in every step."""
    twice = tf.py_func(lambda loss: doubled.append(loss) or 2 * loss, [made.loss], tf.float32)
    return replace(made, metrics={**made.metrics, "twice": tf.reshape(twice, [])})


def with_functions(made: Model) -> Model:
    """That model, and a function adds the square of a variable to its loss, which is 1 at first and has a condition."""
    lift = tf.get_variable("lift", [], initializer=tf.ones_initializer())
    lifted = tf.function(lambda loss: loss + lift * lift)
    plain = tf.cond(made.loss > 0, lambda: made.loss, lambda: -made.loss)
    return replace(made, loss=lifted(plain), metrics={**made.metrics, "plain": made.loss})


def called_once(addresses: Addresses) -> dict[str, Any]:
    """A model that calls Python and functions in every step, on one server and then on two."""
    server, calls, doubled = boot(), [], []

    def model(batch: Any) -> Model:
        calls.append(batch)
        return with_python(with_functions(a_model()(batch)), doubled)

    blueprint = draw(model, signature_of(a_batch()), parts=PARTS)
    found = {}
    for version, tasks in enumerate(((0,), (0, 1)), start=1):
        servers = {task: addresses[task] for task in tasks}
        cluster = a_cluster(version, servers, blueprint.layout.partitions)
        generation = Generation(server, 0, blueprint, cluster)
        generation.initialize()
        steps = [generation.train(a_batch()) for _ in range(2)]
        nodes = generation.built.graph.as_graph_def().node
        homes, handles = tasks_of(cluster), {node.name: node for node in nodes if node.op == "VarHandleOp"}
        found[version] = {
            "devices": {re.sub(r"/device:.*", "", node.device) for node in nodes} - {""},
            "strays": [v.name for v in blueprint.layout.variables if not _is_home(handles[v.name], homes[v.partition])],
            "containers": {node.attr["container"].s.decode() for node in handles.values()},
            "metric": all(step.metrics["twice"] == 2 * step.loss for step in steps),
            "lift": [round(step.loss - step.metrics["plain"], 3) for step in steps],
        }
    return {"calls": len(calls), "doubled": len(doubled), "found": found}


def scored_after_a_collection(directory: str) -> tuple[dict[str, float], int]:
    """The scores of a checkpoint by a model that calls Python, and how often that was called. Python has collected what
    nothing refers to before."""
    lab, doubled = Lab([]), []
    cluster = replace(own_cluster(lab.server.address, lab.layout.partitions), version=2)
    trained = Generation(lab.server, None, lab.blueprint, cluster)
    trained.initialize()
    path = str(Path(directory) / "ckpt-1")
    checkpoints.save(trained, path, saved_at=1.0)
    held_out = HeldOut(
        lab.server,
        lambda batch: with_python(a_model()(batch), doubled),
        lambda records: a_batch(records[0], size=len(records)),
        range(8),
        batch_size=4,
        parts=PARTS,
    )
    gc.collect()
    return held_out.score(path), len(doubled)


def _is_home(handle: Any, task: int) -> bool:
    return bool(handle.device == ps_device(task))


def with_a_function() -> Any:
    """The devices in a blueprint's function body and in the copy of it, and those that the model named itself."""
    blank = tf.GraphDef()
    function = blank.library.function.add()
    named = "/job:elsewhere/task:1"
    for device in ("/job:partition/replica:0/task:1/device:CPU:0", "/job:own/task:0", named):
        function.node_def.add(name=device[5:8], op="NoOp", device=device)
    placed = placed_definition(blank, ["/job:ps/task:4", "/job:ps/task:7"], "/job:worker/task:3", "gen2")
    return [[node.device for node in each.library.function[0].node_def] for each in (blank, placed)]


class Told:
    """A `Coordinator` that only listens. `prepared`: a version was said to be."""

    node = "worker-0"

    def __init__(self) -> None:
        self.words: list[Any] = []
        self.prepared = threading.Event()

    def say(self, word: Any) -> None:
        self.words.append(word)
        if isinstance(word, PreparedPS):
            self.prepared.set()

    def hear(self, *, wait: float | None) -> None:
        raise AssertionError("it is told directly")


class Fed:
    """An array that tells when it is first given to TensorFlow, and whether a version was prepared by then."""

    def __init__(self, array: Any, prepared: threading.Event) -> None:
        self._array, self._prepared = array, prepared
        self.is_prepared = False
        self.at = threading.Event()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        if not self.at.is_set():
            self.is_prepared = self._prepared.wait(60)
            self.at.set()
        return self._array if dtype is None else self._array.astype(dtype)


def rehearsed_before_it_may_train(addresses: Addresses) -> dict[str, Any]:
    lab, told = Lab(addresses), Told()
    ids, labels = a_batch()
    fed = Fed(ids, told.prepared)
    member = Member(lab.server, 0, lab.blueprint, coordinator=told, data=Data(lambda _: None), batch=(fed, labels))
    cluster = lab.cluster(0, 1)
    member.obey(PreparePS(cluster=cluster, chief=told.node))
    rehearsed = fed.at.wait(120)
    member.obey(Move(version=cluster.version, attempt=1, transfer=Fresh()))
    member.obey(Go(version=cluster.version, chief=told.node))
    return {
        "rehearsed": rehearsed,
        "waited for": not fed.is_prepared,
        "said": [type(word).__name__ for word in told.words],
        "steps": [member.train(a_batch(seed)).step for seed in range(2)],
    }


def through_checkpoints(addresses: Addresses, directory: str, optimizer: str) -> dict[str, Any]:
    """Saved from two servers, restored onto three and onto one; then all that can be wrong with one."""
    lab = Lab(addresses, lambda: getattr(tf.train, optimizer)(0.01))
    root = Path(directory)
    (root / "file").write_text("not a directory")
    good = root / "ckpt-1"
    cluster = lab.cluster(0, 1)
    generation = lab.trained(cluster)
    said = {"unwritable": _said(lambda: checkpoints.save(generation, str(root / "file" / "ckpt"), saved_at=1.0))}
    checkpoints.save(generation, str(good), saved_at=1.0)
    said["there"] = _said(lambda: checkpoints.save(generation, str(good), saved_at=1.0))
    digests = [lab.digest(cluster)]
    for tasks in ((0, 1, 2), (2,)):
        cluster = lab.cluster(*tasks)
        generation = lab.generation(cluster)
        assert checkpoints.restore(generation, str(good)).step == 3
        digests.append(lab.digest(cluster))
    generation.layout = replace(lab.layout, parts=PARTS + 1)
    said["parts"] = _said(lambda: checkpoints.restore(generation, str(good)))
    generation.layout = lab.layout
    reader = tf.train.load_checkpoint(str(good / "variables"))
    saved = {name: tuple(shape) for name, shape in reader.get_variable_to_shape_map().items()}
    files = sorted(path.name for path in good.iterdir())
    for name in ("ckpt-2", "ckpt-3-v1-worker-0", "ckpt-10-v1-worker-1", "move-00000002-worker-0", "mine"):
        checkpoints.save(generation, str(root / name), saved_at=10.0 - len(digests))  # by a clock that stands
    checkpoints.save(generation, str(root / "ckpt-11"), saved_at=0.5)  # by one that is behind
    checkpoints.prune(str(root / "ckpt-11"), keep=2, needed=["/elsewhere/ckpt-2"])
    left = sorted(path.name for path in root.iterdir())
    said["unlisted"] = _said(lambda: checkpoints.prune(str(root / "file" / "ckpt-1"), keep=1))
    last = root / "ckpt-11"
    data = next(last.glob("variables.data-*"))
    data.write_bytes(data.read_bytes()[:-1])
    said["short"] = _said(lambda: checkpoints.restore(generation, str(last)))
    (last / "manifest.json").write_text((last / "manifest.json").read_text().replace('"step":3', '"step":4'))
    said["manifest"] = _said(lambda: checkpoints.restore(generation, str(last)))
    told: list[str] = []
    newest = next(checkpoints.scan(directory, damaged=lambda exc: told.append(str(exc))))
    return {
        "digests": digests,
        "saved": saved,
        "files": files,
        "said": said,
        "left": left,
        "newest": newest.path.name,
        "damaged": len(told),
        "step": generation.train(a_batch(4)).step,
    }


def read_by_a_saver_and_written_by_one(addresses: Addresses, directory: str) -> dict[str, Any]:
    """TensorFlow's own `Saver` in the same graph, and what each makes of the other's checkpoint on other servers."""
    savers: list[Any] = []

    class Saved(tf.train.AdamOptimizer):  # type: ignore[misc]
        def minimize(self, *args: Any, **kwargs: Any) -> Any:
            update = super().minimize(*args, **kwargs)
            with tf.control_dependencies(None):  # without a step
                savers.append(tf.train.Saver(sharded=True).saver_def)
            return update

    lab = Lab(addresses, lambda: Saved(0.01))
    (saver,) = savers
    clusters = [lab.cluster(*tasks) for tasks in ((0, 1), (0, 1, 2), (2,))]
    trained, ours, theirs = lab.trained(clusters[0]), *(lab.generation(cluster) for cluster in clusters[1:])
    written = f"{directory}/theirs"
    trained.session.run(saver.save_tensor_name, {saver.filename_tensor_name: written})
    ours.session.run(ours.built.saving.restore, {ours.built.saving.path: written})
    checkpoints.save(ours, f"{directory}/ours", saved_at=1.0)
    theirs.session.run(saver.restore_op_name, {saver.filename_tensor_name: f"{directory}/ours/variables"})
    parts = Counter(variable.key for variable in lab.layout.variables)
    whole = tf.train.load_checkpoint(written).get_variable_to_shape_map()
    return {
        "digests": [lab.digest(cluster) for cluster in clusters],
        "cut": {key for key, count in parts.items() if count == PARTS},
        "names": (set(parts), set(whole)),
        "step": ours.train(a_batch(4)).step,
    }


def saved_where_servers_cannot_write(addresses: Addresses, directory: str) -> tuple[str, int, list[str]]:
    """What is said, the next step, and what is left in the directory."""
    lab = Lab(addresses)
    generation = lab.trained(lab.cluster(0))
    said = _said(lambda: checkpoints.save(generation, str(Path(directory) / "ckpt"), saved_at=1.0))
    return said, generation.train(a_batch(4)).step, [path.name for path in Path(directory).iterdir()]


def _said(act: Callable[[], Any]) -> str:
    try:
        act()
    except ShoalError as exc:
        return str(exc)
    return "nothing"


def bad_models() -> dict[str, str]:
    """What is said about models that cannot be trained."""
    said: dict[str, str] = {}
    signature = signature_of(a_batch())
    cluster = a_cluster(1, {0: "localhost:1"}, draw(a_model(), signature, parts=PARTS).layout.partitions)

    def old_kind(batch: Any) -> Model:
        variable = tf.get_variable("v", [4], use_resource=False)
        return Model(loss=tf.reduce_sum(variable), optimizer=tf.train.AdamOptimizer())

    def counting(batch: Any) -> Model:
        made = a_model()(batch)
        mean, _ = tf.metrics.mean(made.loss)
        return replace(made, metrics={"mean": mean})

    def with_a_table(batch: Any) -> Model:
        table = tf.lookup.experimental.MutableHashTable(tf.int64, tf.float32, default_value=0.0, name="seen")
        return replace(a_model()(batch), metrics={"seen": tf.cast(table.size(), tf.float32)})

    for name, act in {
        "old kind": lambda: draw(old_kind, signature, parts=PARTS),
        "no model": lambda: draw(lambda _: None, signature, parts=PARTS),  # type: ignore[arg-type, return-value]
        "another": lambda: build(draw(a_model(width=64), signature, parts=PARTS), cluster=cluster, worker=0),
        "local": lambda: draw(counting, signature, parts=PARTS),
        "table": lambda: draw(with_a_table, signature, parts=PARTS),
    }.items():
        try:
            act()
        except BadInput as exc:
            said[name] = str(exc)
    return said


def a_traced_step(addresses: Addresses) -> dict[int, Any]:
    """All of the table on one server, next to nothing on the other. What each had to do in a step, by rank."""
    lab = Lab(addresses)
    even = lab.cluster(0, 1)
    cluster = replace(even, placement=tuple(int("table" not in p.name) for p in even.partitions))
    generation = lab.trained(cluster, steps=1)
    options, metadata = hot.traced()
    generation.train(a_batch(1), options=options, metadata=metadata)
    loads = hot.loads(metadata, cluster)
    return {rank: (load.operations, load.seconds, load.nbytes) for rank, load in loads.items()}


def the_example(arguments: list[str]) -> str:
    """The example, as a user runs it: what it prints."""
    path = Path(__file__).parents[2] / "examples" / "ctr_wide_deep.py"
    said = io.StringIO()
    sys.argv = [str(path), *arguments]
    with contextlib.redirect_stdout(said):
        runpy.run_path(str(path), run_name="__main__")
    return said.getvalue()


def undisturbed(seeds: Sequence[int], workers: int, records: int, batch_size: int) -> list[float]:
    """The example's loss on held-out records after one epoch that nobody disturbed, once for each seed of its first
    values: so many workers train at once, as they come, on one server."""
    sys.path.append(str(Path(__file__).parents[2]))
    from examples import ctr_wide_deep as clicks

    server = boot()
    signature = signature_of(clicks.load([0]))
    held_out = clicks.load(range(records, records + clicks.HELD_OUT))
    losses = []
    for version, seed in enumerate(seeds, start=1):

        def model(batch: Any, seed: int = seed) -> Model:
            tf.set_random_seed(seed)
            return clicks.model(batch)

        blueprint = draw(model, signature, parts=PARTS)
        cluster = replace(own_cluster(server.address, blueprint.layout.partitions), version=version)
        generation = Generation(server, None, blueprint, cluster)
        generation.initialize()
        batches = (range(at, min(at + batch_size, records)) for at in range(0, records, batch_size))
        with ThreadPoolExecutor(workers) as pool:
            list(pool.map(lambda batch, on=generation: on.train(clicks.load(batch)), batches))
        losses.append(generation.score(held_out)["loss"])
        generation.close()
    return losses


def seen(path: str) -> tuple[int, int, int]:
    """Of a checkpoint of `train_ctr`: how many records there are, how many the model has not seen, and how many times
    too often it has seen some."""
    counts = tf.train.load_checkpoint(str(Path(path) / "variables")).get_tensor("seen")
    return len(counts), int((counts < 1).sum()), int((counts[counts > 1] - 1).sum())
