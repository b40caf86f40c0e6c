"""The same CNN in plain DDP, as for torchrun: it knows nothing of Shoal.

    python examples/cnn_ddp.py
    torchrun --standalone --nproc-per-node 2 examples/cnn_ddp.py
    shoal run --nnodes 1:4 examples/cnn_ddp.py

When the world changes, the processes are started again; what they had done since the last checkpoint is lost.
"""

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.nn  # DDP imports it later, and what it defines would then hold the group to the very end
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from toys import Cnn, pictures

BATCH = 64  # over all workers together


def train(args: argparse.Namespace) -> None:
    rank, size = dist.get_rank(), dist.get_world_size()

    torch.manual_seed(0)
    images, labels = pictures()
    model = DistributedDataParallel(Cnn())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    step = 0

    if args.checkpoint.exists():
        saved = torch.load(args.checkpoint)
        step = saved["step"]
        model.module.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        if rank == 0:
            print(f"going on from step {step} with {size} workers", flush=True)

    while step < args.steps:
        picked = torch.arange(step * BATCH, (step + 1) * BATCH)[rank::size] % len(images)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images[picked]), labels[picked])
        loss.backward()
        optimizer.step()
        step += 1
        if rank == 0 and (step % args.every == 0 or step == args.steps):
            fresh = args.checkpoint.with_suffix(".new")  # renamed when it is whole: a kill leaves the old one
            torch.save({"step": step, "model": model.module.state_dict(), "optimizer": optimizer.state_dict()}, fresh)
            os.replace(fresh, args.checkpoint)
            print(f"step {step}: loss {loss.item():.4f} with {size} workers", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--checkpoint", type=Path, default=Path("cnn_ddp.pt"), help="read at the start if it is there")
    parser.add_argument("--every", type=int, default=50, help="steps between checkpoints")
    args = parser.parse_args()
    if dist.is_torchelastic_launched():
        dist.init_process_group("gloo")
    else:  # alone
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    train(args)  # the model is gone when it returns: gloo's threads end with the group, not while Python ends
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
