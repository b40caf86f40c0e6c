"""What tests do in a process that has TensorFlow. Called by `in_worker`; what they return is plain, so
that whoever gets it needs no TensorFlow."""

import contextlib
import io
import runpy
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import tensorflow.compat.v1 as tf
from tests.tensorflow.models import PARTS, a_batch, a_cluster, a_model

from shoal.core.errors import BadInput, ShoalError
from shoal.core.ps.cluster import PSCluster
from shoal.tensorflow import checkpoints, hot
from shoal.tensorflow.generation import Generation, ServersLost
from shoal.tensorflow.graphs import Layout, Model, build, lay_out, signature_of
from shoal.tensorflow.servers import Server, boot, session_config, shares_state
from shoal.tensorflow.sessions import container_of, tasks_of
from shoal.tensorflow.transfer import Copier, digest, fingerprint

Addresses = list[str]


class Lab:
    """One worker, its model, and versions of the cluster to train it on."""

    def __init__(self, addresses: Addresses, optimizer: Any = None, parts: int = PARTS) -> None:
        self.addresses = dict(enumerate(addresses))
        self.server: Server = boot()
        self.model = a_model(optimizer)
        self.signature = signature_of(a_batch())
        self.layout: Layout = lay_out(self.model, self.signature, parts=parts)
        self.versions = 0

    def cluster(self, *tasks: int, before: PSCluster | None = None) -> PSCluster:
        self.versions += 1
        servers = {task: self.addresses[task] for task in tasks}
        return a_cluster(self.versions, servers, self.layout.partitions, before)

    def generation(self, cluster: PSCluster) -> Generation:
        return Generation(self.server, 0, self.model, self.signature, layout=self.layout, cluster=cluster)

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
    found = fingerprint(lab.server, 0, lab.layout.variables, cluster).checksum
    generation = lab.generation(cluster)
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
    for number in (2, 3, 4):
        checkpoints.save(generation, str(root / f"ckpt-{number}"), saved_at=float(number))
    checkpoints.prune(directory, keep=2)
    left = sorted(path.name for path in root.iterdir())
    last = root / "ckpt-4"
    data = next(last.glob("variables.data-*"))
    data.write_bytes(data.read_bytes()[:-1])
    said["short"] = _said(lambda: checkpoints.restore(generation, str(last)))
    (last / "manifest.json").write_text((last / "manifest.json").read_text().replace('"step":3', '"step":4'))
    said["manifest"] = _said(lambda: checkpoints.restore(generation, str(last)))
    told: list[str] = []
    newest = next(checkpoints.scan(directory, damaged=lambda exc: told.append(str(exc))))
    return {
        "digests": digests,
        "said": said,
        "left": left,
        "newest": newest.path.name,
        "damaged": len(told),
        "step": generation.train(a_batch(4)).step,
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
    cluster = a_cluster(1, {0: "localhost:1"}, lay_out(a_model(), signature, parts=PARTS).partitions)

    def old_kind(batch: Any) -> Model:
        variable = tf.get_variable("v", [4], use_resource=False)
        return Model(loss=tf.reduce_sum(variable), optimizer=tf.train.AdamOptimizer())

    def changing(width: int) -> Any:
        return a_model(width=width)

    for name, act in {
        "old kind": lambda: lay_out(old_kind, signature, parts=PARTS),
        "no model": lambda: lay_out(lambda _: None, signature, parts=PARTS),  # type: ignore[arg-type, return-value]
        "another": lambda: build(
            a_model(), signature, layout=lay_out(changing(64), signature, parts=PARTS), cluster=cluster, worker=0
        ),
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
