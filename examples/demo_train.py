"""What the demo trains: the CNN in float64, with dropout and BatchNorm, and the whole loss curve in a file at the end.

`state.curve` is a loop attribute: it travels with the model, so whoever writes the file has every step's loss.
"""

import argparse
import json
import time
from pathlib import Path

import torch
from torch import nn

import shoal.torch as elastic
from toys import Cnn, pictures

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, help="train so many steps")
parser.add_argument("--until", type=Path, help="train until this file is there")
parser.add_argument("--curve", type=Path, required=True, help="where the losses go, as JSON")
parser.add_argument(
    "--pace", type=float, default=0.0, help="seconds to rest in each step, as a larger model would need"
)
args = parser.parse_args()

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
images, labels = pictures(512)
model = Cnn(width=8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)


def is_done(state: elastic.State) -> bool:
    """Metrics are the same on all workers, so all of them stop after the same step."""
    return state.step == args.steps or state.metrics.get("told_to_stop", 0) > 0


@elastic.run
def train(state: elastic.State) -> None:
    while not is_done(state):
        for micro in state.micro_batches():
            picked = torch.tensor(micro.samples) % len(images)
            loss = nn.functional.cross_entropy(model(images[picked]), labels[picked])
            loss.backward()
            micro.record(loss=loss, told_to_stop=float(args.until is not None and args.until.exists()))
        time.sleep(args.pace)
        state.commit()
        state.curve.append(state.metrics["loss"])
    if state.is_source:
        args.curve.write_text(json.dumps(state.curve))


train(
    elastic.State(
        model=model,
        optimizer=optimizer,
        micro_batches=4,
        micro_batch_size=8,
        metrics=("loss", "told_to_stop"),
        curve=[],
    )
)
