"""Plain DDP, for torchrun and for anything that can stand in for it. Knows how to go on after a restart: the model and
the number of steps are saved now and then, and loaded at the start.
"""

import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from workload import Data, Settings, StepFile, build, parse_settings

SAVE_EVERY = 20


def load(model: nn.Module, checkpoint: Path | None) -> int:
    """The number of steps that the checkpoint has; 0 without one."""
    if checkpoint is None or not checkpoint.exists():
        return 0
    saved = torch.load(checkpoint, weights_only=True)
    model.load_state_dict(saved["model"])
    step: int = saved["step"]
    return step


def save(model: nn.Module, step: int, checkpoint: Path) -> None:
    partial = checkpoint.with_suffix(f".{os.getpid()}")
    torch.save({"model": model.state_dict(), "step": step}, partial)
    partial.replace(checkpoint)


def main(settings: Settings) -> None:
    model = build(settings)
    step = load(model, settings.checkpoint)
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    data, finished = Data(), StepFile(settings.steps)
    while True:
        inputs, labels = data.batch(step * size + rank)
        loss = nn.functional.cross_entropy(ddp(inputs), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        time.sleep(settings.pace)
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        finished.finished(step, rank, size)
        if settings.checkpoint is not None and rank == 0 and step % SAVE_EVERY == 0:
            save(model, step, settings.checkpoint)


if __name__ == "__main__":
    main(parse_settings())
