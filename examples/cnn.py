"""A small CNN with the SDK: workers may come, go and die while it trains.

    python examples/cnn.py                          alone
    shoal run --nnodes 1:4 examples/cnn.py          with up to four workers; then try `shoal scale worker=2`

One step is always the same micro-batches, so the result does not depend on how many workers there are: try it.
"""

import argparse

import torch
from torch import nn

import shoal.torch as elastic
from toys import Cnn, pictures

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--steps", type=int, default=500)
args = parser.parse_args()

torch.manual_seed(0)
images, labels = pictures()
model = Cnn()
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=args.steps)


@elastic.run
def train(state: elastic.State) -> None:
    while state.step < args.steps:
        for micro in state.micro_batches():
            picked = torch.tensor(micro.samples) % len(images)
            loss = nn.functional.cross_entropy(model(images[picked]), labels[picked])
            loss.backward()
            micro.record(loss=loss)
        state.commit()
        if state.is_source and (state.step % 100 == 0 or state.step == args.steps):
            print(f"step {state.step}: loss {state.metrics['loss']:.4f} with {state.size} workers", flush=True)


train(elastic.State(model=model, optimizer=optimizer, scheduler=scheduler, micro_batches=4, micro_batch_size=16))
