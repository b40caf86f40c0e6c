"""What the training scripts have in common: command line, model, data, and a line for every finished step."""

import argparse
import itertools
import os
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

BATCH = 32
"""Samples of one worker in one step."""
INPUTS, CLASSES = 64, 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    steps: Path
    """Directory for the step files, one for each process."""
    hidden: int
    layers: int
    pace: float
    """Seconds that each step sleeps, as a process does that waits for its accelerator."""
    checkpoint: Path | None
    save_every: int
    """Steps from one `state.save()` to the next, with the SDK; 0: never."""


def parse_settings() -> Settings:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=Path, required=True)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--pace", type=float, default=0.0)
    parser.add_argument("--checkpoint", type=Path)
    parser.add_argument("--save-every", type=int, default=0)
    given = parser.parse_args()
    return Settings(**vars(given))


def build(settings: Settings) -> nn.Module:
    """A perceptron: `layers` hidden layers of `hidden` units."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    widths = [INPUTS, *[settings.hidden] * settings.layers]
    hidden = [part for pair in itertools.pairwise(widths) for part in (nn.Linear(*pair), nn.ReLU())]
    return nn.Sequential(*hidden, nn.Linear(widths[-1], CLASSES))


class Data:
    """A bank of generated samples. Any range of sample numbers can be had from it without copying."""

    def __init__(self, batches: int = 64) -> None:
        generator = torch.Generator().manual_seed(0)
        self._batches = batches
        self._inputs = torch.randn(batches, BATCH, INPUTS, generator=generator)
        self._labels = torch.randint(CLASSES, (batches, BATCH), generator=generator)

    def batch(self, number: int) -> tuple[Tensor, Tensor]:
        return self._inputs[number % self._batches], self._labels[number % self._batches]


class StepFile:
    """`<directory>/<pid>`: one line for every step this process has finished."""

    def __init__(self, directory: Path) -> None:
        self._file = (directory / str(os.getpid())).open("a", buffering=1)

    def finished(self, step: int, rank: int, size: int) -> None:
        self._file.write(f"{time.time_ns()} {step} {rank} {size}\n")
