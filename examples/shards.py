"""Training shard by shard: every worker reads on in a shard of its own, and every record counts once an epoch.

    python examples/shards.py                             alone
    shoal run --nnodes 1:4 examples/shards.py             with up to four workers; kill some, add some

The batch follows the world: each worker trains 16 pictures in a step. What is trained is part of the state, so a worker
that dies takes nothing along, and after a checkpoint is restored the data goes on where the model is.
"""

import argparse
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

import shoal.torch as elastic
from toys import Cnn, pictures

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--epochs", type=int, default=5)
args = parser.parse_args()

torch.manual_seed(0)
images, labels = pictures()
model = Cnn()
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)


class Pictures(Dataset[tuple[Tensor, Tensor]]):
    def __getitems__(self, indices: Sequence[int]) -> list[tuple[Tensor, Tensor]]:
        return [(images[i], labels[i]) for i in indices]


@elastic.run
def train(state: elastic.State) -> None:
    data = elastic.sharded(
        state, "pictures", size=len(images), shard_size=100, epochs=args.epochs, shuffle="within-shards", seed=7
    )
    for batches in data.steps(Pictures()):
        for micro, (x, y) in batches:  # in the last step of an epoch there may be nothing for this worker
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            micro.record(loss=loss)
        state.commit()
        if state.step % 20 == 0:
            state.save()
            if state.is_source:
                said = f"epoch {data.epoch}, step {state.step}: loss {state.metrics['loss']:.4f}"
                print(f"{said} with {state.size} workers", flush=True)
    if state.is_source:
        print(f"{args.epochs} epochs of {len(images)} pictures in {state.step} steps", flush=True)


train(elastic.State(model=model, optimizer=optimizer, micro_batches="world", micro_batch_size=16))
