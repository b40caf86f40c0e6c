"""A training script for Pods: all-reduce on gloo with the SDK, over data in a fixed order.

It writes down what it trains, one file for each process: `step micro-batch rank size record …`, before each commit. The
test speaks to it through the folder: with a file `fast` there it does not wait between steps any more.
"""

import argparse
import os
import socket
import time
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset

import shoal.torch as elastic

torch.set_num_threads(1)


class Numbers(Dataset[Any]):
    def __getitem__(self, index: int) -> int:
        return index


def blame_the_first_process() -> None:
    """What `memory.oom.group` does where control groups are of version 2, where they are not: when memory runs out the
    kernel kills the container's first process, and so all of them. It kills the largest: this one is made small, with
    what it takes in a file that counts for nobody, and that one large. Wants a Pod whose every container is limited to
    what it requests: the others are all blamed from the start."""
    Path("/proc/1/oom_score_adj").write_text("1000")
    with Path("/dev/shm/taken").open("wb") as file:
        for _ in range(340):
            file.write(bytes(2**20))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--size", type=int, default=6000)
    parser.add_argument("--pace", type=float, default=0.1, help="seconds of a step, whoever trains it")
    parser.add_argument("--wait", type=float, default=0.0, help="seconds of a micro-batch, so that more members scale")
    parser.add_argument("--hungry", type=int, help="MiB that the member in seat 1 takes when it trains")
    parser.add_argument("--takes-all", action="store_true", help="the kernel kills the whole container for it")
    given = parser.parse_args()
    torch.manual_seed(1)
    model = torch.nn.Linear(1, 1)
    state = elastic.State(
        model=model, optimizer=torch.optim.SGD(model.parameters(), 1e-6), micro_batches=6, micro_batch_size=2
    )
    name = f"{socket.gethostname()}.{os.getpid()}.{time.time_ns()}"
    log = (given.log / f"{name}.log").open("w", buffering=1)
    eaten = bytearray()

    @elastic.run
    def train(state: elastic.State) -> None:
        nonlocal eaten
        data = elastic.ordered(state, "train", size=given.size, epochs=1, seed=5)
        for batches in data.steps(Numbers()):
            lines = []
            for micro, records in batches:
                time.sleep(given.wait)
                model(records.float().unsqueeze(1)).mean().backward()
                words = " ".join(str(record) for record in records.tolist())
                lines.append(f"{micro.step} {micro.index} {state.rank} {state.size} {words}\n")
            if given.hungry and not eaten and state.size > 1 and os.environ["SHOAL_RANK_HINT"] == "1":
                if given.takes_all:
                    blame_the_first_process()
                eaten = bytearray(os.urandom(1024)) * (given.hungry * 1024)
            if not (given.log / "fast").exists():
                time.sleep(given.pace)
            log.write("".join(lines))
            state.commit()

    train(state)


if __name__ == "__main__":
    main()
