"""The training script of the checkpoint tests: `tests/e2e/train_elastic.py`'s model, saved every few steps.

Every finished step is one line in `<log>/<pid>.log`: time, step, rank, size, loss. `--save-log` gets one line per save.
"""

import argparse
import os
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from tests.e2e.train_elastic import batch, build
from torch import nn

import shoal.torch as elastic

torch.set_num_threads(1)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--pace", type=float, default=0.0)
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--every", type=int, default=5)
    parser.add_argument("--hold-at", type=int, help="at this step wait until --release exists")
    parser.add_argument("--release", type=Path)
    parser.add_argument("--micro-batches", type=int, default=4)
    parser.add_argument("--wide", action="store_true", help="another model")
    parser.add_argument("--ballast", type=int, default=0, help="MiB that the state has besides")
    args = parser.parse_args()
    log = (args.log / f"{os.getpid()}.log").open("a", buffering=1)
    saves = (args.log / "saves").open("a", buffering=1)
    model = (
        nn.Sequential(build(torch.float64), nn.Linear(4, 4, dtype=torch.float64)) if args.wide else build(torch.float64)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 20, 0.5)

    @elastic.run
    def train(state: elastic.State) -> None:
        while state.step < args.steps:
            if state.step == args.hold_at:
                (args.log / f"held-{os.getpid()}").touch()
                while not args.release.exists():
                    time.sleep(0.01)
            for micro in state.micro_batches():
                x, y = batch(micro.samples, torch.float64)
                loss = F.cross_entropy(model(x), y)
                loss.backward()
                micro.record(loss=loss)
            time.sleep(args.pace)
            state.seen = [*state.seen, state.step][-3:]
            state.commit()
            log.write(f"{time.time_ns()} {state.step} {state.rank} {state.size} {state.metrics['loss']!r}\n")
            if state.step % args.every == 0 and state.save():
                saves.write(f"{state.step}\n")

    train(
        elastic.State(
            model=model,
            optimizer=optimizer,
            scheduler=scheduler,
            micro_batch_size=8,
            micro_batches=args.micro_batches,
            seed=7,
            seen=[],
            **({"ballast": torch.zeros(args.ballast << 18)} if args.ballast else {}),
        )
    )


if __name__ == "__main__":
    main()
