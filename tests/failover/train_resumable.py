"""An elastic script in a fixed order that saves: it writes down what it computes, `step micro-batch loss record …`.

`step loss` of each committed step goes to `<log>/<pid>.steps`, from which the undisturbed run is told from others.
"""

import argparse
import os
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


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--size", type=int, default=120)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--every", type=int, default=4)
    parser.add_argument("--micro-batches", type=int, default=4)
    parser.add_argument("--wide", action="store_true", help="another model")
    parser.add_argument("--hold-at", type=int, help="at this step wait for ever, unless --release exists")
    parser.add_argument("--release", type=Path)
    given = parser.parse_args()
    torch.manual_seed(1)
    width = 8 if given.wide else 4
    layers = (torch.nn.Linear(1, width), torch.nn.Tanh(), torch.nn.Dropout(0.1), torch.nn.Linear(width, 1))
    model = torch.nn.Sequential(*layers).double()
    log = (given.log / f"{os.getpid()}.log").open("w", buffering=1)
    steps = (given.log / f"{os.getpid()}.steps").open("w", buffering=1)

    @elastic.run
    def train(state: elastic.State) -> None:
        data = elastic.ordered(state, "train", size=given.size, epochs=given.epochs, seed=5)
        for batches in data.steps(Numbers()):
            if state.step == given.hold_at and not given.release.exists():
                (given.log / f"held-{os.getpid()}").touch()
                time.sleep(600)
            for micro, records in batches:
                x = records.double().unsqueeze(1) / given.size
                loss = ((model(x) - x.sin()) ** 2).mean()
                loss.backward()
                micro.record(loss=loss)
                log.write(f"{micro.step} {micro.index} {' '.join(str(r) for r in records.tolist())}\n")
            state.commit()
            steps.write(f"{state.step} {state.metrics['loss']!r}\n")
            if state.step % given.every == 0:
                state.save()

    train(
        elastic.State(
            model=model,
            optimizer=torch.optim.Adam(model.parameters(), 0.01),
            micro_batches=given.micro_batches,
            micro_batch_size=3,
            seed=3,
        )
    )


if __name__ == "__main__":
    main()
