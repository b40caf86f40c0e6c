"""The click model under `shoal`, for tests of jobs that size themselves: before each step a worker waits a while, as
one does for data that others bring, so that a small machine has room for a few of them.

`--crosses ROWS`: the model also remembers pairs of user and item, hashed to so many rows, and trains with Adam.
TensorFlow's rewrites its moments of every row in every step, and it does so where they lie: on the parameter servers.

`--log DIR`: when each step ended, one file for each worker. `--busy FILE`: the server whose node FILE names has company
on its core, of `--company` processes that compute without end: little of the core is left for TensorFlow. They belong
to that node, and do not follow to the one that takes its place.
"""

import argparse
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import tensorflow.compat.v1 as tf

import shoal.tensorflow as elastic
from examples import ctr_wide_deep as clicks

RECORDS = 100_000_000
BURN = "import os\nparent = os.getppid()\nwhile os.getppid() == parent:\n    sum(range(100_000))\n"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--wait", type=float, default=0.1, help="seconds before a step in which nobody computes")
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--crosses", type=int, default=0)
    parser.add_argument("--busy", type=Path)
    parser.add_argument("--company", type=int, default=15)
    parser.add_argument("--log", type=Path)
    options = parser.parse_args()
    tf.get_logger().setLevel("ERROR")
    node, role = os.environ["SHOAL_NODE"], os.environ["SHOAL_ROLE"]
    if role == "ps" and options.busy is not None:
        threading.Thread(target=get_company_when_named, args=(options.busy, node, options.company), daemon=True).start()

    def load(records: Any) -> dict[str, Any]:
        time.sleep(options.wait)
        return clicks.load(records)

    def model(batch: Any) -> elastic.Model:
        made = clicks.model(batch)
        return made if options.crosses == 0 else with_crosses(batch, made, options.crosses)

    path = Path(os.devnull) if options.log is None or role == "ps" else options.log / f"{node}.steps"
    with path.open("a", buffering=1) as log:
        elastic.run(
            model,
            load,
            batch_size=options.batch_size,
            dataset="clicks",
            size=RECORDS,
            shard_size=200 * options.batch_size,
            on_step=lambda _: print(time.time(), file=log),
        )


def with_crosses(batch: Any, made: elastic.Model, rows: int) -> elastic.Model:
    crossed = clicks.looked_up("crosses", rows, 1, (batch["user"] * clicks.ITEMS + batch["item"]) % rows)
    return elastic.Model(loss=made.loss + tf.reduce_mean(tf.square(crossed)), optimizer=tf.train.AdamOptimizer(0.001))


def get_company_when_named(path: Path, node: str, company: int) -> None:
    while not path.exists() or path.read_text() != node:
        time.sleep(0.2)
    core = {sorted(os.sched_getaffinity(0))[0]}
    for task in os.listdir("/proc/self/task"):
        os.sched_setaffinity(int(task), core)
    for _ in range(company):
        # On that core, as we are; in a session of its own, for the kernel shares cores out by session.
        subprocess.Popen([sys.executable, "-S", "-E", "-c", BURN], start_new_session=True)
    print("the server has company", flush=True)


if __name__ == "__main__":
    main()
