"""Training functions over datasets, as a user would write them. They kill their own process where a test says so."""

from collections.abc import Sequence
from typing import Any

import torch
from tests.torch.crew import Wire
from tests.torch.scripts import FragileAdam, a_model, batch_for, die, final
from torch import nn
from torch.utils.data import Dataset

import shoal.torch as elastic


class Numbers(Dataset[int]):
    def __getitem__(self, index: int) -> int:
        return index


class Counts(nn.Module):
    """A model that remembers how often it was trained with each record."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.seen = nn.Parameter(torch.zeros(size, dtype=torch.float64))


def the_data(state: elastic.State, mode: str, **words: Any) -> elastic.OrderedData | elastic.ShardedData:
    if mode == "ordered":
        return elastic.ordered(state, "train", seed=5, **words)
    return elastic.sharded(state, "train", seed=5, shard_size=7, **words)


def batch_of(records: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
    parts = [batch_for(range(record, record + 1), torch.float64) for record in records]
    return torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts])


def counting(
    wire: Wire,
    *,
    mode: str,
    size: int = 61,
    epochs: int = 3,
    micro_batches: Any = "world",
    gates: Sequence[int] = (),
    kills: dict[str, tuple[int, str]] | None = None,
) -> None:
    """Each record adds one to its count: what the model has seen is in its parameters."""
    model = Counts(size)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    state = elastic.State(model=model, optimizer=optimizer, micro_batch_size=3, micro_batches=micro_batches, metrics=())
    kill_step, where = (kills or {}).get(wire.node, (None, ""))

    @elastic.run
    def train(state: elastic.State) -> None:
        data = the_data(state, mode, size=size, epochs=epochs)
        wire.tell("entered", state.step, state.size)
        for batches in data.steps(Numbers()):
            if state.step in gates and state.is_source:
                wire.gate(state.step)
            doomed, mine = state.step == kill_step, 0
            for micro, records in batches:
                if doomed and where == "before":
                    die()
                (-model.seen[records].sum() / micro.weight).backward()
                mine += len(records)
            if doomed and where == "in":
                die()
            state.synchronize()
            if doomed and where == "after":
                die()
            optimizer.step()
            state.commit(update=False)
            wire.tell("records", state.step, mine)
            if doomed and where == "committed":
                die()

    train(state)
    wire.tell("final", model.seen.tolist(), state.step)


def regression(wire: Wire, *, mode: str, size: int = 50, epochs: int = 3, norms: bool = True, **words: Any) -> None:
    """With dropout, normalisation and an optimizer that remembers."""
    model = a_model(torch.float64) if norms else nn.Linear(6, 1, bias=False).double()
    if not norms:
        nn.init.constant_(model.weight, 0.5)  # type: ignore[arg-type]
    optimizer = FragileAdam(model.parameters(), lr=0.01)
    state = elastic.State(
        model=model, optimizer=optimizer, micro_batch_size=4, micro_batches=3, seed=3, bucket_bytes=256
    )

    @elastic.run
    def train(state: elastic.State) -> None:
        data = the_data(state, mode, size=size, epochs=epochs, **words)
        for batches in data.steps(Numbers()):
            for micro, records in batches:
                x, y = batch_of(records.tolist())
                loss = nn.functional.mse_loss(model(x), y)
                loss.backward()
                micro.record(loss=loss)
            state.commit()
            wire.tell("loss", state.step, state.metrics["loss"])

    train(state)
    wire.tell("final", final(model))
