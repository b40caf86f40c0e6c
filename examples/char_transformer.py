"""A character transformer with the SDK: clipped gradients, an evaluation now and then, and a file at the end.

python examples/char_transformer.py
shoal run --nnodes 1:4 examples/char_transformer.py --save model.pt
"""

import argparse

import torch

import shoal.torch as elastic
from toys import CharTransformer, next_letter_loss, text

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--steps", type=int, default=300)
parser.add_argument("--save", metavar="FILE", help="where to write the trained model")
args = parser.parse_args()

torch.manual_seed(0)
lines = text()
training, held_out = lines[:-128], lines[-128:]
model = CharTransformer()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)


@elastic.run
def train(state: elastic.State) -> None:
    while state.step < args.steps:
        for micro in state.micro_batches():
            loss = next_letter_loss(model, training[torch.tensor(micro.samples) % len(training)])
            loss.backward()
            micro.record(loss=loss)
        state.synchronize()  # from here on the gradients are everybody's, so clipping clips the whole batch's
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        state.commit(update=False)
        if state.step % 100 == 0 or state.step == args.steps:
            evaluate(state)


def evaluate(state: elastic.State) -> None:
    """Each worker looks at its part of the held-out lines; the sum of all parts is everybody's."""
    part = held_out[state.rank :: state.size]
    with state.busy("evaluation"), torch.no_grad():
        model.eval()
        total = state.all_reduce(torch.stack([next_letter_loss(model, part) * len(part), torch.tensor(len(part))]))
        model.train()
    state.held_out = float(total[0] / total[1])
    if state.is_source:
        loss = state.metrics["loss"]
        print(f"step {state.step}: loss {loss:.4f}, held out {state.held_out:.4f}, {state.size} workers", flush=True)


state = elastic.State(model=model, optimizer=optimizer, micro_batches=4, micro_batch_size=8, held_out=None)
train(state)
if args.save and state.is_source:
    torch.save(model.state_dict(), args.save)
