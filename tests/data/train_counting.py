"""An elastic script whose model remembers what it was trained with: each record adds one to its count.

At the end every worker writes its model's counts to a file of its own.
"""

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset

import shoal.torch as elastic


class Numbers(Dataset[Any]):
    def __getitem__(self, index: int) -> int:
        return index


class Counts(torch.nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.seen = torch.nn.Parameter(torch.zeros(size, dtype=torch.float64))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True, help="a directory for what the workers write")
    parser.add_argument("--mode", choices=["sharded", "ordered"], default="sharded")
    parser.add_argument("--size", type=int, default=200)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--pace", type=float, default=0.0)
    parser.add_argument("--save-every", type=int, default=5)
    parser.add_argument("--hold-at", type=int, help="stand at this step until the directory has a file `go`")
    given = parser.parse_args()
    out = Path(given.out)
    model = Counts(given.size)
    state = elastic.State(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=1.0),
        micro_batch_size=4,
        micro_batches="world" if given.mode == "sharded" else 3,
        metrics=(),
    )

    @elastic.run
    def train(state: elastic.State) -> None:
        words = {"size": given.size, "epochs": given.epochs, "seed": 5}
        if given.mode == "sharded":
            data: Any = elastic.sharded(state, "train", shard_size=15, **words)
        else:
            data = elastic.ordered(state, "train", **words)
        for batches in data.steps(Numbers()):
            if state.step == given.hold_at:
                (out / f"held-{os.getpid()}").touch()
                while not (out / "go").exists():
                    time.sleep(0.01)
            for micro, records in batches:
                (-model.seen[records].sum() / micro.weight).backward()
                time.sleep(given.pace)
            state.commit()
            if state.step % given.save_every == 0:
                state.save()

    train(state)
    (out / f"{os.getpid()}.json").write_text(json.dumps(model.seen.tolist()))


if __name__ == "__main__":
    main()
