"""Elastic training with PyTorch: a decorator and a state object.

    import shoal.torch as elastic

    @elastic.run
    def train(state: elastic.State) -> None:
        while state.step < 1000:
            for micro in state.micro_batches():
                x, y = batch_for(micro.samples)
                loss = F.cross_entropy(model(x), y)
                loss.backward()
                micro.record(loss=loss)
            state.commit()

    train(elastic.State(model=model, optimizer=optimizer, micro_batch_size=32))

One step is always the same N micro-batches; each worker does its share of them, so the update is the same however many
workers there are. When a member is lost or joins, the world changes under the running function: it is entered again
from the top, in the same process, with `state` as the last commit left it. Outside of `shoal run` the same script
trains alone.

The layers, from the user inwards: `loop` (`run`), `state` (`State`), `stepping` (one step), and below it `reducer`
(gradients), `norms` (BatchNorm), `tally` (what a step sums besides gradients); `replica`, `takeover` and `tree` (state
from member to member); `data` (which records) and `standings` (how far shards are trained); `forming`, `store` and
`group` (process groups that never block).
"""

from shoal.torch.data import OrderedData, ShardedData, ShardLoader, ordered, sharded
from shoal.torch.loop import run
from shoal.torch.state import State
from shoal.torch.stepping import MicroBatch

__all__ = ["MicroBatch", "OrderedData", "ShardLoader", "ShardedData", "State", "ordered", "run", "sharded"]
