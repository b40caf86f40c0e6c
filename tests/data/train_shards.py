"""A worker that trains nothing: it writes down every record it was given, before it counts as trained.

One file per process, one line per record: `dataset epoch record`.
"""

import argparse
import os
import sys
import time
from pathlib import Path

import shoal.trainer


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--log", required=True)
    parser.add_argument("--size", type=int, default=1000)
    parser.add_argument("--shard", type=int, default=20)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=0.0, help="for each record")
    parser.add_argument("--evaluate", type=int, default=0, help="evaluation rounds after training")
    parser.add_argument("--poison", type=int, default=None, help="the record that kills whoever trains it")
    parser.add_argument("--lease", type=float, default=300.0)
    parser.add_argument("--gate", help="wait until this file exists before the first record")
    parser.add_argument("--contradict", action="store_true", help="no two workers have the same seed")
    given = parser.parse_args()

    job = shoal.trainer.join()
    job.dataset(
        "train",
        size=given.size,
        shard_size=given.shard,
        epochs=given.epochs,
        shuffle="samples",
        seed=os.getpid() if given.contradict else 7,
        lease_seconds=given.lease,
    )
    if given.evaluate:
        job.dataset("eval", size=given.size // 10, shard_size=7, evaluation=True)
    with open(Path(given.log) / f"{os.getpid()}.log", "w", buffering=1) as log:
        while given.gate and not os.path.exists(given.gate):
            time.sleep(0.01)
        for shard in job.shards("train"):
            for record in shard:
                if record == given.poison:
                    sys.exit(f"record {record} cannot be read")
                log.write(f"train {shard.epoch} {record}\n")
                if given.seconds:
                    time.sleep(given.seconds)
        for number in range(given.evaluate):
            for shard in job.shards("eval", epoch=number):
                for record in shard:
                    log.write(f"eval {shard.epoch} {record}\n")


if __name__ == "__main__":
    main()
