"""The training script of the end-to-end tests: a small network with dropout and BatchNorm on generated data.

Every finished step is one line in `<log>/<pid>.log`: time, step, rank, size, world generation's loss. The script knows
nothing of the tests; what happens to it comes from outside.
"""

import argparse
import os
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

import shoal.torch as elastic

torch.set_num_threads(1)


def build(dtype: torch.dtype) -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(12, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 4)).to(dtype)


def batch(samples: range, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(samples.start)
    x = torch.randn(len(samples), 12, generator=generator, dtype=dtype)
    return x, (x.sum(1) > 0).long() + 2 * (x[:, 0] > 0).long()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--pace", type=float, default=0.0, help="seconds that a step takes at least")
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--until", type=Path, help="train on until this file exists")
    parser.add_argument("--dtype", default="float64")
    parser.add_argument("--crash-at", type=int, help="exit 1 at this step, on rank 1 of the first incarnation")
    args = parser.parse_args()
    dtype = getattr(torch, args.dtype)
    log = (args.log / f"{os.getpid()}.log").open("a", buffering=1)
    model = build(dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 50, 0.5)

    @elastic.run
    def train(state: elastic.State) -> None:
        while state.step < args.steps or (args.until is not None and not state.stop):
            if args.crash_at is not None and state.step == args.crash_at and state.rank == 1:
                raise ValueError(f"crash at step {state.step}")
            for micro in state.micro_batches():
                assert micro.samples is not None
                x, y = batch(micro.samples, dtype)
                loss = F.cross_entropy(model(x), y)
                loss.backward()
                micro.record(loss=loss, stop=float(args.until is not None and args.until.exists()))
            time.sleep(args.pace)
            state.stop = False
            state.commit()
            state.stop = state.metrics["stop"] > 0
            log.write(f"{time.time_ns()} {state.step} {state.rank} {state.size} {state.metrics['loss']!r}\n")

    train(
        elastic.State(
            model=model,
            optimizer=optimizer,
            scheduler=scheduler,
            micro_batch_size=8,
            seed=7,
            metrics=("loss", "stop"),
            stop=False,
        )
    )


if __name__ == "__main__":
    main()
