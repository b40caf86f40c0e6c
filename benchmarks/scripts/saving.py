"""A training script that measures its own checkpoints: run by `shoal run` for `benchmarks/checkpoint.py`.

The first process saves, times it beside its peers and kills itself; the one that follows is timed restoring.
"""

import argparse
import json
import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

import shoal.torch as elastic
from shoal.torch.checkpoint import Checkpoints


def seconds(act: Callable[[], object]) -> float:
    began = time.perf_counter()
    act()
    return time.perf_counter() - began


def timed_restore(results: dict[str, float]) -> None:
    """Have every `restore` timed."""
    plain = Checkpoints.restore

    def restore(self: Checkpoints, group: object) -> int | None:
        began = time.perf_counter()
        found = plain(self, group)  # type: ignore[arg-type]
        results["restore"] = time.perf_counter() - began
        return found

    Checkpoints.restore = restore  # type: ignore[method-assign,assignment]


def copy(source: list[torch.Tensor], target: list[torch.Tensor]) -> None:
    for to, tensor in zip(target, source, strict=True):
        to.copy_(tensor)


def tensors_of(state: elastic.State) -> list[torch.Tensor]:
    moments = [t for each in state.optimizer.state.values() for t in each.values() if isinstance(t, torch.Tensor)]
    return [p.detach() for p in state.model.parameters()] + moments


def into_new_memory(state: elastic.State) -> float:
    """What a restore has to do at least, done plainly: the parameters into memory that is there, the moments, which the
    new process has no memory for yet, into new memory. Nothing has been freed that could be had again."""
    parameters = len(list(state.model.parameters()))
    source = tensors_of(state)
    there = [t.clone() for t in source[:parameters]]
    new: list[torch.Tensor] = []

    def plainly() -> None:
        copy(source[:parameters], there)
        new.extend(t.clone() for t in source[parameters:])

    return seconds(plainly)


def asynchronously(tensors: list[torch.Tensor], folder: Path) -> list[float]:
    """The blocking part of `torch.distributed.checkpoint.async_save`. (To keep its staging memory it needs a GPU.)"""
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    named = {f"t{i}": t for i, t in enumerate(tensors)}
    writer = dcp.FileSystemWriter(folder, sync_files=False)
    took = []
    for _ in range(3):
        began = time.perf_counter()
        future = dcp.async_save(named, storage_writer=writer)
        took.append(time.perf_counter() - began)
        future.result()  # type: ignore[union-attr]
    dist.destroy_process_group()
    return took


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--mib", type=int, required=True)
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--prepare", action="store_true")
    parser.add_argument("--restores", type=int, default=1)
    parser.add_argument("--peers", action="store_true")
    args = parser.parse_args()
    results: dict[str, float] = {}
    again = args.results.exists()
    timed_restore(results)
    rows = args.mib * (1 << 20) // 4 // 3 // 16 // 1024  # 16 layers, a third of the bytes is parameters
    model = nn.Sequential(*(nn.Linear(1024, rows, bias=False) for _ in range(16)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-6)

    @elastic.run
    def train(state: elastic.State) -> None:
        if again:
            told = json.loads(args.results.read_text())
            told["restores"] = [*told.get("restores", []), results["restore"]]
            told["into_new"] = [*told.get("into_new", []), into_new_memory(state)]
            args.results.write_text(json.dumps(told))
            if len(told["restores"]) < args.restores:
                os.kill(os.getpid(), signal.SIGKILL)
            return
        for micro in state.micro_batches():
            loss = sum(p.sum() for p in model.parameters())
            loss.backward()  # type: ignore[union-attr]
            micro.record(loss=loss)
        state.commit()
        measure(state)

    def measure(state: elastic.State) -> None:
        source = tensors_of(state)
        if args.prepare:
            state.prepare()
        results["first"] = seconds(state.save)
        time.sleep(2)  # as between two saves of a real job: the second slot is made ready behind it
        results["second"] = seconds(state.save)
        target = [t.clone() for t in source]
        saves, copies = [], []
        for _ in range(8):  # in turn, and the best of each: who else uses the machine is not the question
            saves.append(seconds(state.save))
            copies.append(seconds(lambda: copy(source, target)))
        results["memcpy"], results["later"] = min(copies), min(saves)
        results.pop("restore", None)
        back = []
        for _ in range(4):
            state._checkpoints.restore(state._running("restore").group)
            back.append(results.pop("restore"))
        results["back"] = min(back)
        results["bytes"] = sum(t.numel() * t.itemsize for t in source)
        if args.peers:
            folder = args.results.with_suffix(".peers")
            folder.mkdir()
            named = {f"t{i}": t for i, t in enumerate(source)}
            results["torch_save"] = min(seconds(lambda: torch.save(named, folder / "torch")) for _ in range(3))
            results["dcp_async"] = min(asynchronously(source, folder / "dcp"))
            shutil.rmtree(folder)
        state.save()
        args.results.write_text(json.dumps(results))
        os.kill(os.getpid(), signal.SIGKILL)

    train(elastic.State(model=model, optimizer=optimizer))


if __name__ == "__main__":
    main()
