"""An elastic script in a fixed order. It writes down what it has: `step micro-batch record …`.

Before each commit: a worker may be killed when the others have its gradients and it has not returned from the commit.
"""

import argparse
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


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--log", required=True)
    parser.add_argument("--size", type=int, default=200)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--pace", type=float, default=0.05)
    given = parser.parse_args()
    torch.manual_seed(1)
    model = torch.nn.Linear(1, 1)
    state = elastic.State(
        model=model, optimizer=torch.optim.SGD(model.parameters(), 1e-6), micro_batches=6, micro_batch_size=2
    )
    log = open(Path(given.log) / f"{os.getpid()}.log", "w", buffering=1)  # noqa: SIM115

    @elastic.run
    def train(state: elastic.State) -> None:
        data = elastic.ordered(state, "train", size=given.size, epochs=given.epochs, seed=5)
        for batches in data.steps(Numbers()):
            lines = []
            for micro, records in batches:
                model(records.float().unsqueeze(1)).mean().backward()
                lines.append(f"{micro.step} {micro.index} {' '.join(str(r) for r in records.tolist())}\n")
                time.sleep(given.pace / 6)
            log.write("".join(lines))
            state.commit()

    train(state)


if __name__ == "__main__":
    main()
