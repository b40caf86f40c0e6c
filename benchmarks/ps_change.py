"""What a change of the parameter servers costs: seconds in which nobody trains.

Real TensorFlow: two workers train without rest on parameter servers in processes of their own, all on this machine. The
servers go from two to three and back; the pause is from the word to stand still until both workers have done a step
on the new servers, with every variable at its new place and its checksum compared. The next graph and session are made
before it, while the old ones train. Beside it, from the same run: the two workers are started again instead (from their
start to the first step of both; the checkpoint that they start from is there already).

`killed`: a parameter server is killed with SIGKILL, and another one that is running already takes its place; from the
kill until both workers train again, from the last checkpoint. Of it, `restore` is to read the checkpoint and to take
the checksum of what was read, and `prepare` the next graph and session of both workers.

`shoal run`: the same in a whole job, with agents and a master, two workers and two servers that train the click model
(0.8 M floats; a step waits 20 ms for its batch): from SIGKILL of a server's process until each worker has made a step
on what was restored. A process in waiting takes its place, as is usual; beside it, from the same run, `--no-ps-spare`:
another process has to be started. Of it `launch`, `prepare`, `drain`, `move` (the restore) and `go` are the master's.

The state of the model is a table and what Adagrad keeps for it, so many floats together.

Measured by hand before: 0.26 s at 1 M, 0.26 s at 20 M, 0.53 s at 100 M floats; 20 s for a restart of two workers.
"""

import asyncio
import contextlib
import functools
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil

from _common import Row, parse_options, progress, report
from shoal.core.ps.cluster import FromCheckpoint
from shoal.core.ps.words import SavedPS, ServerUnreachable
from shoal.wire.local import SPARE_VARIABLE

sys.path.append(str(Path(__file__).parents[1]))
from tests.e2e.harness import JobRun, family, shoal_run
from tests.tensorflow.driver import Job, Pause, Recovery, Work

MILLION = 1_000_000
WIDTH = 64
WORKERS = ("worker-0", "worker-1")
SCRIPT = Path(__file__).parents[1] / "tests" / "tensorflow" / "train_waiting.py"
PHASES = ("launch", "prepare", "drain", "move", "go")


def main() -> None:
    options = parse_options(__doc__)
    sizes = (1, 20) if options.quick else (1, 20, 100)
    rounds = 1 if options.quick else 3
    rows = [row for millions in sizes for row in at(millions, rounds, with_restart=millions == 1 or not options.quick)]
    rows += in_a_job(rounds)
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
            killed = lost(job, spare)
            progress(f"killed: {killed}")
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
    yield Row(case=f"{millions} M: killed, until both train again", value=killed.total, unit="s")
    yield Row(case=f"{millions} M: killed, without the restore", value=killed.total - killed.cost.restore, unit="s")
    yield Row(case=f"{millions} M: of it notice, killed", value=killed.noticed, unit="s")
    for phase in ("drain", "prepare", "restore", "resume", "first_step"):
        value = getattr(killed.cost, phase)
        yield Row(case=f"{millions} M: of it {phase.replace('_', ' ')}, killed", value=value, unit="s")


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


@dataclass
class Killed:
    noticed: float
    """Until one of the workers noticed."""
    total: float
    """Until both train again."""
    cost: Recovery


def lost(job: Job, spare: Any) -> Killed:
    """A server is killed."""
    saved = job.save()
    assert isinstance(saved, SavedPS), saved
    job.wait_for_steps(count=3)
    since = len(job.heard)
    began = time.monotonic()
    job.servers.pop(1).kill()
    job.wait(ServerUnreachable, WORKERS[0], since=since)
    noticed = time.monotonic() - began
    job.servers[3] = spare
    cost = job.recover(0, 3)
    return Killed(noticed, time.monotonic() - began, cost)


# In a whole job --------------------------------------------------------------------------------------------------


def in_a_job(rounds: int) -> Iterator[Row]:
    with_spare = [asyncio.run(lost_in_a_job(has_spare=True)) for _ in range(rounds)]
    without = [asyncio.run(lost_in_a_job(has_spare=False)) for _ in range(rounds)]
    case, peer = "shoal run: killed, until both train again", "shoal run --no-ps-spare: the same"
    seconds, peer_seconds = (statistics.median(each["total"] for each in some) for some in (with_spare, without))
    yield Row(case=case, value=seconds, unit="s", peer=peer, peer_value=peer_seconds)
    for phase in PHASES:
        of_it, of_peer = (statistics.median(each[phase] for each in some) for some in (with_spare, without))
        yield Row(case=f"shoal run: of it {phase}, killed", value=of_it, unit="s", peer=peer, peer_value=of_peer)


async def lost_in_a_job(*, has_spare: bool) -> dict[str, float]:
    """Seconds until both workers have made a step again, in all, and of it those of each phase."""
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        flags = ("--strategy", "ps", "--nnodes", "2", "--ps", "2", "--checkpoint-dir", str(folder / "kept"))
        flags += ("--checkpoint-every", "5", *(() if has_spare else ("--no-ps-spare",)))
        words = ("--wait", "0.02", "--log", str(folder))
        async with shoal_run(folder, *flags, script=SCRIPT, script_args=words) as run:
            await run.wait_for("a checkpoint", lambda state: state["servers"]["checkpoint"] is not None)
            if has_spare:
                await spares_wait(run)
            state = await run.wait_for("nothing under way", lambda state: state["servers"]["changes"][-1]["outcome"])
            at = time.time()
            os.kill(process_of(state, state["servers"]["nodes"][-1]), signal.SIGKILL)
            state = await run.wait_for("the way back", lambda state: rollbacks(state) != [])
            (change,) = rollbacks(state)
            restored = datetime.fromisoformat(change["at"]).timestamp() + sum(change[phase] for phase in PHASES[:-1])
            await run.wait_for("steps of both", lambda _: both_trained(folder, after=restored) is not None)
        again = both_trained(folder, after=restored)
    assert again is not None
    found = {"total": again - at, **{phase: change[phase] for phase in PHASES}}
    progress(f"shoal run, killed, {'a' if has_spare else 'no'} spare: {found}")
    return found


async def spares_wait(run: JobRun) -> None:
    """Until both servers have a process in waiting that has nothing more to import."""
    seen, still_since = dict[int, float](), time.monotonic()
    while len(seen) < 2 or time.monotonic() - still_since < 2:
        await asyncio.sleep(0.2)
        now = dict[int, float]()
        for process in family(str(run.home)):
            with contextlib.suppress(psutil.Error):
                if SPARE_VARIABLE in process.environ():
                    now[process.pid] = sum(process.cpu_times()[:2])
        if now != seen:
            seen, still_since = now, time.monotonic()


def process_of(state: dict[str, Any], name: str) -> int:
    return next(int(p["pid"]) for node in state["nodes"] if node["node"] == name for p in node["processes"])


def rollbacks(state: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        change for change in state["servers"]["changes"] if (change["kind"], change["outcome"]) == ("rollback", "done")
    ]


def both_trained(folder: Path, *, after: float) -> float | None:
    """When each worker had ended a step after that moment."""
    ends = [list(map(float, log.read_text().split("\n")[:-1])) for log in folder.glob("*.steps")]
    firsts = [end for steps in ends for end in [next((end for end in steps if end > after), None)] if end is not None]
    return max(firsts) if len(firsts) == len(WORKERS) else None


# The work --------------------------------------------------------------------------------------------------------


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
