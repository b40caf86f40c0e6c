"""A plain DDP script, torchrun style: it knows nothing of Shoal and goes on from a file after a restart."""

import argparse
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.nn  # DDP imports it later, and what it defines would then hold the group to the very end
from torch import nn
from torch.nn.parallel import DistributedDataParallel

torch.set_num_threads(1)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=10**9)
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--until", type=Path)
    parser.add_argument("--pace", type=float, default=0.02)
    parser.add_argument("--crash-once", type=Path, help="rank 1 raises at step 20 unless this file exists")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    train(args)  # the model is gone when it returns: gloo's threads end with the group, not while Python ends
    dist.destroy_process_group()


def train(args: argparse.Namespace) -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    saved = args.log / "saved.pt"
    step = int(saved.read_text()) if saved.exists() else 0
    start = torch.tensor([step])
    dist.broadcast(start, 0)
    step = int(start)
    model = DistributedDataParallel(nn.Linear(4, 4))
    log = (args.log / f"{os.getpid()}.log").open("a", buffering=1)
    stop = torch.zeros(1)
    while step < args.steps and not stop.item():
        model(torch.ones(2, 4)).sum().backward()
        stop[0] = float(args.until is not None and args.until.exists())
        dist.all_reduce(stop)
        step += 1
        time.sleep(args.pace)
        if args.crash_once and rank == 1 and step == 20 and not args.crash_once.exists():
            args.crash_once.touch()
            raise ValueError("crashed once")
        log.write(f"{time.time_ns()} {step} {rank} {size} 0.0\n")
        if rank == 0 and step % 5 == 0:
            part = saved.with_suffix(".part")
            part.write_text(str(step))
            part.replace(saved)


if __name__ == "__main__":
    main()
