"""What a change of the parameter servers costs: seconds in which nobody trains.

Real TensorFlow: two workers train without rest on parameter servers in processes of their own, all on this machine. The
servers go from two to three and back; the pause is from the word to stand still until both workers have done a step
on the new servers, with every variable at its new place and its checksum compared. The next graph and session are made
before it, while the old ones train. Beside it, from the same run: the two workers are started again instead (from their
start to the first step of both; the checkpoint that they start from is there already).

`killed`: a parameter server is killed with SIGKILL, and another one that is running already takes its place; from the
kill until both workers train again, from the last checkpoint. The state of the model is a table and what Adagrad keeps
for it, so many floats together.

Measured by hand before: 0.26 s at 1 M, 0.26 s at 20 M, 0.53 s at 100 M floats; 20 s for a restart of two workers.
"""

import functools
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from _common import Row, parse_options, progress, report
from shoal.core.ps.cluster import FromCheckpoint
from shoal.core.ps.words import SavedPS, ServerUnreachable

sys.path.append(str(Path(__file__).parents[1]))
from tests.tensorflow.driver import Job, Pause, Work

MILLION = 1_000_000
WIDTH = 64
WORKERS = ("worker-0", "worker-1")


def main() -> None:
    options = parse_options(__doc__)
    sizes = (1, 20) if options.quick else (1, 20, 100)
    rounds = 1 if options.quick else 3
    rows = [row for millions in sizes for row in at(millions, rounds, with_restart=millions == 1 or not options.quick)]
    report("ps_change", f"2 workers, 2 ⇄ 3 parameter servers, {rounds} times each way", beside(rows), options)


def beside(rows: Sequence[Row]) -> list[Row]:
    """Where no restart was measured at a size, the one at the smallest size stands beside it."""
    restart = next(row for row in rows if row.case.endswith("workers started again"))
    return [
        Row(case=row.case, value=row.value, unit=row.unit, peer=restart.case, peer_value=restart.value)
        if row.case.endswith("servers changed") and row.peer is None
        else row
        for row in rows
    ]


def at(millions: int, rounds: int, *, with_restart: bool) -> Iterator[Row]:
    progress(f"{millions} M floats")
    with tempfile.TemporaryDirectory() as directory:
        job = Job(a_work(millions), Path(directory))
        try:
            job.add_servers(0, 1, 2, 3)
            spare = job.servers.pop(3)
            job.begin(*WORKERS, tasks=(0, 1))
            job.wait_for_steps(count=3)
            pauses = list(changes(job, rounds))
            restart = restarted(job) if with_restart else None
            killed, found = lost(job, spare)
        finally:
            job.end()
    pause = statistics.median(each.total for each in pauses)
    peer = f"{millions} M: workers started again" if with_restart else None
    yield Row(case=f"{millions} M: servers changed", value=pause, unit="s", peer=peer, peer_value=restart)
    for phase in ("drain", "move", "resume", "first_step"):
        of_it = statistics.median(getattr(each, phase) for each in pauses)
        yield Row(case=f"{millions} M: of it {phase.replace('_', ' ')}", value=of_it, unit="s")
    if restart is not None:
        yield Row(case=f"{millions} M: workers started again", value=restart, unit="s")
    yield Row(case=f"{millions} M: killed, until it is noticed", value=found, unit="s")
    yield Row(case=f"{millions} M: killed, until both train again", value=killed, unit="s")


def changes(job: Job, rounds: int) -> Iterator[Pause]:
    for _ in range(rounds):
        for tasks in ((0, 1, 2), (0, 1)):
            _, pause = job.change(*tasks)
            progress(f"servers changed: {pause}")
            yield pause
            job.wait_for_steps(count=3)


def restarted(job: Job) -> float:
    """Both workers are killed, and new ones begin with a fresh interpreter."""
    saved = job.save()
    assert isinstance(saved, SavedPS), saved
    began = time.monotonic()
    for trainer in job.trainers.values():
        trainer.process.kill()
    job.trainers.clear()
    since = len(job.heard)
    source = FromCheckpoint(saved.checkpoint.path, saved.checkpoint.step)
    job.begin(*WORKERS, tasks=(0, 1), source=source, fresh=True)
    job.wait_for_steps(since)
    return time.monotonic() - began


def lost(job: Job, spare: Any) -> tuple[float, float]:
    """A server is killed. Until both workers train again, and until one of them noticed."""
    saved = job.save()
    assert isinstance(saved, SavedPS), saved
    job.wait_for_steps(count=3)
    since = len(job.heard)
    began = time.monotonic()
    job.servers.pop(1).kill()
    job.wait(ServerUnreachable, WORKERS[0], since=since)
    noticed = time.monotonic() - began
    job.servers[3] = spare
    job.recover(0, 3)
    job.wait_for_steps()
    return time.monotonic() - began, noticed


def a_work(millions: int) -> Work:
    rows = millions * MILLION // 2 // WIDTH
    return Work(
        model=functools.partial(a_table, rows),
        load=functools.partial(some_ids, rows),
        size=10**9,
        shard_size=10**6,
        batch_size=256,
        parts=8,
    )


def a_table(rows: int) -> Any:
    """A model that is one large table, and a layer on it."""
    import tensorflow.compat.v1 as tf

    from shoal.tensorflow import Model

    def model(ids: Any) -> Model:
        table = tf.get_variable("table", [rows, WIDTH], initializer=tf.random_uniform_initializer(-0.1, 0.1))
        kernel = tf.get_variable("kernel", [WIDTH, 1])
        logits = tf.matmul(tf.nn.embedding_lookup(table, ids, partition_strategy="div"), kernel)
        return Model(loss=tf.reduce_mean(tf.square(logits - 1.0)), optimizer=tf.train.AdagradOptimizer(0.01))

    return model


def some_ids(rows: int, records: Sequence[int]) -> Any:
    import numpy as np

    return (np.asarray(records, dtype=np.int64) * 7919) % rows


if __name__ == "__main__":
    main()
