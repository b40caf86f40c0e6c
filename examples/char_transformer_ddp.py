"""The character transformer in plain DDP, as for torchrun: it knows nothing of Shoal.

python examples/char_transformer_ddp.py
torchrun --standalone --nproc-per-node 2 examples/char_transformer_ddp.py
shoal run --nnodes 1:4 examples/char_transformer_ddp.py
"""

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.nn  # DDP imports it later, and what it defines would then hold the group to the very end
from torch.nn.parallel import DistributedDataParallel

from toys import CharTransformer, next_letter_loss, text

BATCH = 32  # over all workers together


def train(args: argparse.Namespace) -> None:
    rank, size = dist.get_rank(), dist.get_world_size()

    torch.manual_seed(0)
    lines = text()
    model = DistributedDataParallel(CharTransformer())
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    step = 0

    if args.checkpoint.exists():
        saved = torch.load(args.checkpoint)
        step = saved["step"]
        model.module.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        if rank == 0:
            print(f"going on from step {step} with {size} workers", flush=True)

    while step < args.steps:
        picked = torch.arange(step * BATCH, (step + 1) * BATCH)[rank::size] % len(lines)
        optimizer.zero_grad()
        loss = next_letter_loss(model, lines[picked])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        step += 1
        if rank == 0 and (step % args.every == 0 or step == args.steps):
            fresh = args.checkpoint.with_suffix(".new")
            torch.save({"step": step, "model": model.module.state_dict(), "optimizer": optimizer.state_dict()}, fresh)
            os.replace(fresh, args.checkpoint)
            print(f"step {step}: loss {loss.item():.4f} with {size} workers", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--checkpoint", type=Path, default=Path("char_transformer_ddp.pt"))
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
