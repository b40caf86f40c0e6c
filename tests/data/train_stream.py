"""A worker on its own that reads a stream, and tells how far the stream goes: what stands in the file `--extents`.

Every worker tells it, again and again: one line for each word, `partition offset` or `partition offset closed`. One log
per process, one line per record: `clicks partition offset`.
"""

import argparse
import os
import threading
import time
from pathlib import Path

import shoal.trainer
from shoal.trainer.job import Dataset

FIRST = (0, 100)
"""Where the two partitions begin."""


def tell(clicks: Dataset, extents: Path) -> None:
    while True:
        for line in extents.read_text().splitlines():
            partition, offset, *closed = line.split()
            (clicks.close if closed else clicks.grow)(int(partition), int(offset))
        time.sleep(0.05)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--log", required=True)
    parser.add_argument("--extents", required=True)
    given = parser.parse_args()
    job = shoal.trainer.join()
    clicks = job.dataset("clicks", kind="stream", partitions=FIRST, shard_size=10)
    for partition, first in enumerate(FIRST):
        clicks.grow(partition, first)  # nothing is there yet: without this word a stream is taken to have no end
    threading.Thread(target=tell, args=(clicks, Path(given.extents)), daemon=True).start()
    with open(Path(given.log) / f"{os.getpid()}.log", "w", buffering=1) as log:
        for shard in clicks.shards():
            for offset in shard:
                log.write(f"clicks {shard.partition} {offset}\n")
                time.sleep(0.005)


if __name__ == "__main__":
    main()
